/* One picture: below the row of each rank's time, the bytes that it holds. A column of the memory is that moment within
 * it at which the rank holds most, so no peak is lost. Rectangles, paths and text, without scripts. */
#include "client/explain/explain.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT 52.0
#define WIDTH 700.0
#define TOP 50.0
#define COMPUTE 16.0 /* heights of the rows of a rank */
#define COMM 7.0
#define MEMORY 34.0
#define GAP 10.0
#define COLUMNS 175 /* of the memory: 4 pixels each keep a picture of 8 ranks below 60 KB */
#define THIN 0.35   /* pixels: boxes below this are drawn together with the next */

static const char *const kind_color[EXPLAIN_KINDS] = {"#7b52ab", "#3b6fd4", "#d9832b", "#2f9e6e", "#8a94a0"};
static const char *const kind_name[EXPLAIN_KINDS] = {"optimizer state", "parameters", "gradients", "activations",
                                                     "buffers"};

/* How the actions of a step are drawn; actions of one color have one entry in the legend. */
static const struct {
    const char *color, *name;
} actions[ACT_COUNT] = {
    [ACT_BEGIN] = {"#aab4bf", "other"},
    [ACT_FORWARD] = {"#5b93f5", "forward"},
    [ACT_BACKWARD] = {"#3fae6a", "backward"},
    [ACT_INPUT] = {"#3fae6a", "backward"},
    [ACT_WEIGHT] = {"#b4c94c", "gradients of weights"},
    [ACT_EXCHANGE] = {"#f0a030", "communication"},
    [ACT_GATHER] = {"#f0a030", "communication"},
    [ACT_REDUCE] = {"#f0a030", "communication"},
    [ACT_NORM] = {"#a1887f", "update"},
    [ACT_UPDATE] = {"#a1887f", "update"},
    [ACT_RESTORE] = {"#a1887f", "update"},
    [ACT_SNAPSHOT] = {"#aab4bf", "other"},
};

static double x_of(const struct explain *x, double at)
{
    return LEFT + WIDTH * at / x->seconds;
}

static void print_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        const char *as = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (as)
            fputs(as, out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
}

static const char *color_of(const struct forecast_box *b)
{
    return b->stream == STREAM_COMPUTE ? actions[b->kind].color : actions[ACT_EXCHANGE].color;
}

static bool is_drawn(const struct forecast_box *b, bool compute)
{
    return (b->stream == STREAM_COMPUTE) == compute;
}

/* The boxes of one color, as one path. */
static void print_boxes(FILE *out, const struct explain *x, int rank, bool compute, const char *color, bool odd,
                        double y)
{
    const struct forecast_rank *r = &x->did->ranks[rank];
    double drawn = LEFT - 1;
    bool any = false;
    for (int i = 0; i < r->n; i++) {
        const struct forecast_box *b = &r->boxes[i];
        double from = x_of(x, b->start), until = x_of(x, b->end);
        if (!is_drawn(b, compute) || strcmp(color_of(b), color) != 0 || (b->chunk % 2) != odd || until - drawn < THIN)
            continue;
        from = from < drawn ? drawn : from;
        if (!any)
            fprintf(out, "<path fill=\"%s\"%s d=\"", color, odd ? " opacity=\".65\"" : "");
        fprintf(out, "M%.1f %.0fh%.1fv%.0fh%.1fz", from, y, until - from, compute ? COMPUTE : COMM, from - until);
        any = true;
        drawn = until;
    }
    if (any)
        fputs("\"/>\n", out);
}

static void print_micros(FILE *out, const struct explain *x, int rank, double y)
{
    const struct forecast_rank *r = &x->did->ranks[rank];
    fputs("<g class=\"m\">", out);
    for (int i = 0; i < r->n; i++) {
        const struct forecast_box *b = &r->boxes[i];
        if (is_drawn(b, true) && b->micro >= 0 && x_of(x, b->end) - x_of(x, b->start) > 8)
            fprintf(out, "<text x=\"%.0f\" y=\"%.0f\">%d</text>", x_of(x, (b->start + b->end) / 2), y + 12, b->micro);
    }
    fputs("</g>\n", out);
}

static void print_spans(FILE *out, const struct explain *x, int rank, bool compute, double y)
{
    for (int a = 0; a < ACT_COUNT; a++) {
        bool shown = false;
        for (int b = 0; b < a; b++)
            shown |= strcmp(actions[a].color, actions[b].color) == 0;
        for (int odd = 0; odd < 2 && !shown; odd++)
            print_boxes(out, x, rank, compute, actions[a].color, odd, y);
    }
    if (compute)
        print_micros(out, x, rank, y);
}

/* ---- memory ---- */

static int64_t sum_of(const int64_t bytes[EXPLAIN_KINDS], int until)
{
    int64_t sum = 0;
    for (int k = 0; k < until; k++)
        sum += bytes[k];
    return sum;
}

static void columns_of(const struct explain *x, int rank, int64_t ret[COLUMNS][EXPLAIN_KINDS])
{
    const struct explain_changes *c = &x->ranks[rank].memory;
    int64_t now[EXPLAIN_KINDS] = {0};
    int i = 0;
    for (int col = 0; col < COLUMNS; col++) {
        double end = x->seconds * (col + 1) / COLUMNS;
        memcpy(ret[col], now, sizeof(now));
        while (i < c->n && c->all[i].at < end) {
            double at = c->all[i].at;
            for (; i < c->n && c->all[i].at == at; i++)
                now[c->all[i].key] = c->all[i].bytes;
            if (sum_of(now, EXPLAIN_KINDS) > sum_of(ret[col], EXPLAIN_KINDS) || (col == 0 && at == 0))
                memcpy(ret[col], now, sizeof(now));
        }
    }
}

static int64_t reserved_of(const struct explain *x, int rank)
{
    int64_t sum = 0;
    for (int s = 0; s < SPACE_COUNT; s++)
        sum += x->ranks[rank].reserved[s];
    return sum;
}

/* The area of the first `kinds` kinds; the next smaller one is drawn over it. */
static void print_area(FILE *out, int64_t column[COLUMNS][EXPLAIN_KINDS], int kinds, double scale, double y)
{
    double at = 0;
    int run = 0;
    fprintf(out, "<path fill=\"%s\" d=\"M%.0f %.1f", kind_color[kinds - 1], LEFT, y + MEMORY);
    for (int c = 0; c < COLUMNS; c++) {
        double to = round(10 * scale * (double)sum_of(column[c], kinds)) / 10;
        if (fabs(to - at) > 0.05) {
            if (run)
                fprintf(out, "h%.4g", run * WIDTH / COLUMNS);
            fprintf(out, "v%.4g", at - to);
            at = to;
            run = 0;
        }
        run++;
    }
    fprintf(out, "h%.4gV%.1fz\"/>\n", run * WIDTH / COLUMNS, y + MEMORY);
}

static void print_memory(FILE *out, const struct explain *x, int rank, int64_t most, double y)
{
    int64_t column[COLUMNS][EXPLAIN_KINDS];
    const double scale = MEMORY / (double)most, height = scale * (double)reserved_of(x, rank);
    columns_of(x, rank, column);
    fprintf(out, "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.0f\" height=\"%.1f\" class=\"r\"/>\n", LEFT,
            y + MEMORY - height, WIDTH, height);
    for (int k = EXPLAIN_KINDS; k > 0; k--)
        print_area(out, column, k, scale, y);
    fprintf(out, "<text x=\"%.0f\" y=\"%.1f\" class=\"n\">%.3g MB</text>\n", LEFT - 5, y + MEMORY - 2,
            (double)reserved_of(x, rank) / 1e6);
}

/* ---- the page ---- */

static double print_entry(FILE *out, double x, double y, const char *color, const char *name)
{
    fprintf(out,
            "<rect x=\"%.0f\" y=\"%.0f\" width=\"9\" height=\"9\" fill=\"%s\"/><text x=\"%.0f\" y=\"%.0f\">%s"
            "</text>\n",
            x, y - 8, color, x + 13, y, name);
    return x + 28 + 5.6 * (double)strlen(name);
}

static void print_legend(FILE *out, const struct explain *x)
{
    bool used[ACT_COUNT] = {false};
    double at = LEFT;
    for (int r = 0; r < x->n; r++)
        for (int i = 0; i < x->did->ranks[r].n; i++) {
            const struct forecast_box *b = &x->did->ranks[r].boxes[i];
            used[b->stream == STREAM_COMPUTE ? b->kind : ACT_EXCHANGE] = true;
        }
    for (int a = 0; a < ACT_COUNT; a++) {
        bool shown = !used[a];
        for (int b = 0; b < a; b++)
            shown |= used[b] && strcmp(actions[a].name, actions[b].name) == 0;
        if (!shown)
            at = print_entry(out, at, 30, actions[a].color, actions[a].name);
    }
    at = LEFT;
    for (int k = 0; k < EXPLAIN_KINDS; k++)
        at = print_entry(out, at, 44, kind_color[k], kind_name[k]);
    fprintf(out,
            "<rect x=\"%.0f\" y=\"36\" width=\"9\" height=\"9\" class=\"r\"/><text x=\"%.0f\" y=\"44\">reserved"
            "</text>\n",
            at, at + 13);
}

static bool has_comm(const struct explain *x)
{
    for (int r = 0; r < x->n; r++)
        for (int i = 0; i < x->did->ranks[r].n; i++)
            if (x->did->ranks[r].boxes[i].stream != STREAM_COMPUTE)
                return true;
    return false;
}

static void print_all(FILE *out, const struct explain *x, const char *name)
{
    const double comm = has_comm(x) ? COMM + 1 : 0, row = COMPUTE + 2 + comm + MEMORY + GAP;
    int64_t most = 1;
    for (int r = 0; r < x->n; r++)
        most = reserved_of(x, r) > most ? reserved_of(x, r) : most;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 %.0f\" font-family=\"DejaVu Sans, Helvetica, "
            "sans-serif\" font-size=\"10\">\n<style>.m{fill:#fff;text-anchor:middle;font-size:9px}.n{fill:#556;"
            "text-anchor:end;font-size:8.5px}.r{fill:#eef1f4;stroke:#9aa5b1;stroke-width:.6}</style>\n"
            "<rect width=\"760\" height=\"%.0f\" fill=\"#fff\"/>\n<text x=\"%.0f\" y=\"15\" font-size=\"12\" "
            "font-weight=\"bold\">",
            TOP + row * x->n + 6, TOP + row * x->n + 6, LEFT);
    print_text(out, name);
    fprintf(out, ": %s, %.3g ms, %.0f %% of it idle</text>\n",
            x->did == &x->forecast ? "forecast of a step" : "measured step", x->seconds * 1e3, 100 * x->did->bubble);
    print_legend(out, x);
    for (int r = 0; r < x->n; r++) {
        double y = TOP + row * r;
        fprintf(out, "<text x=\"%.0f\" y=\"%.0f\" class=\"n\">rank %d</text>\n", LEFT - 5, y + 12, r);
        fprintf(out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" fill=\"#f4f6f8\"/>\n", LEFT, y, WIDTH,
                COMPUTE);
        print_spans(out, x, r, true, y);
        print_spans(out, x, r, false, y + COMPUTE + 1);
        print_memory(out, x, r, most, y + COMPUTE + 2 + comm);
    }
    fputs("</svg>\n", out);
}

err_t explain_svg_write(const struct explain *x, const char *name, const char *path, struct why *why)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    print_all(out, x, name);
    bool bad = ferror(out) != 0;
    if (fclose(out) || bad)
        return why_set(why, ERR_IO, "%s: the file could not be written completely", path);
    return OK;
}
