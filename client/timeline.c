/* The picture consists of rectangles and text without scripts, so that every browser and editor shows it. The rows of a
 * rank have a pale background, which is visible while the stream waits. Every box has a visible width. A box shows the
 * number of its microbatch if there is room, and all its details in its tooltip. */
#include "client/timeline.h"

#include "common/plan/estimate/measured.h" /* stream_name */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT 130.0
#define WIDTH 1400.0
#define TITLE 18.0 /* height of a title line */
#define TOP 54.0   /* height of legend and axis, below the titles */
#define ROW 18.0
#define GAP 8.0
#define MAX_ROWS 512 /* ranks that are drawn; a larger picture is not readable */

static const struct {
    const char *color, *name;
} kinds[ACT_COUNT] = {
    [ACT_BEGIN] = {"#9aa5b1", "begin"},        [ACT_FORWARD] = {"#4c8bf5", "forward"},
    [ACT_BACKWARD] = {"#34a853", "backward"},  [ACT_INPUT] = {"#34a853", "backward for inputs"},
    [ACT_WEIGHT] = {"#a3c644", "for weights"}, [ACT_EXCHANGE] = {"#f29900", "exchange"},
    [ACT_GATHER] = {"#8e63ce", "gather"},      [ACT_REDUCE] = {"#d9534f", "reduce"},
    [ACT_NORM] = {"#c2185b", "norm"},          [ACT_UPDATE] = {"#795548", "update"},
    [ACT_RESTORE] = {"#9e9d24", "restore"},    [ACT_SNAPSHOT] = {"#607d8b", "snapshot"},
};

static void print_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        const char *as = *text == '<'   ? "&lt;"
                         : *text == '>' ? "&gt;"
                         : *text == '&' ? "&amp;"
                         : *text == '"' ? "&quot;"
                                        : NULL;
        if (as)
            fputs(as, out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
}

/* 1, 2 or 5 times a power of ten, so that there are about ten ticks. */
static double tick_of(double seconds)
{
    double power = pow(10, floor(log10(seconds / 10)));
    double ratio = seconds / 10 / power;
    return power * (ratio < 1.5 ? 1 : ratio < 3.5 ? 2 : ratio < 7.5 ? 5 : 10);
}

/* The page and time axis that both steps share. */
struct timeline_sheet {
    FILE *out;
    double seconds; /* duration of the longer step */
};

static double x_of(const struct timeline_sheet *s, double seconds)
{
    return LEFT + WIDTH * seconds / s->seconds;
}

static void print_axis(const struct timeline_sheet *s, double top, double bottom)
{
    double tick = tick_of(s->seconds);
    bool fine = s->seconds < 1;
    for (int i = 0; i * tick <= s->seconds * (1 + 1e-9); i++) {
        double x = x_of(s, i * tick);
        fprintf(s->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#c8ced4\"/>\n", x, top - 6, x,
                bottom);
        fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g %s</text>\n", x, top - 10,
                fine ? i * tick * 1e3 : i * tick, fine ? "ms" : "s");
    }
}

static void note_kinds(const struct forecast *f, bool used[ACT_COUNT])
{
    for (int r = 0; f && r < f->n; r++)
        for (int i = 0; i < f->ranks[r].n; i++)
            used[f->ranks[r].boxes[i].kind] = true;
}

static void print_legend(FILE *out, const bool used[ACT_COUNT], double y)
{
    double x = LEFT;
    for (int k = 0; k < ACT_COUNT; k++) {
        if (!used[k])
            continue;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                kinds[k].color);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 16, y, kinds[k].name);
        x += 40 + 7.0 * (double)strlen(kinds[k].name);
    }
}

static void print_box(const struct timeline_sheet *s, const struct forecast_box *b, double y)
{
    FILE *out = s->out;
    double x = x_of(s, b->start), width = x_of(s, b->end) - x;
    width = width < 0.3 ? 0.3 : width;
    fprintf(out, "<g><title>%s", action_name(b->kind));
    if (b->micro >= 0)
        fprintf(out, " micro %d chunk %d", b->micro, b->chunk);
    fprintf(out, ", %.4g to %.4g ms</title>", b->start * 1e3, b->end * 1e3);
    fprintf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"%s/>", x, y + 1, width, ROW - 2,
            kinds[b->kind].color, b->chunk % 2 ? " fill-opacity=\"0.6\"" : "");
    if (b->micro >= 0 && b->stream == STREAM_COMPUTE && width > (b->micro > 99 ? 24 : b->micro > 9 ? 16 : 9))
        fprintf(out, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#fff\">%d</text>", x + width / 2,
                y + ROW - 5, b->micro);
    fputs("</g>\n", out);
}

static bool has_stream(const struct forecast_rank *r, int stream)
{
    for (int i = 0; i < r->n; i++)
        if ((int)r->boxes[i].stream == stream)
            return true;
    return stream == STREAM_COMPUTE;
}

static void print_row(const struct timeline_sheet *s, const struct forecast_rank *r, enum op_stream stream, double y)
{
    fprintf(s->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#eef1f4\"/>\n", LEFT, y + 1,
            WIDTH, ROW - 2);
    fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#667\">%s</text>\n", LEFT - 6, y + ROW - 5,
            stream_name(stream));
    for (int i = 0; i < r->n; i++)
        if (r->boxes[i].stream == stream)
            print_box(s, &r->boxes[i], y);
}

/* Draws a row for each stream of the rank that has boxes. Returns the y of the row after them. */
static double print_rank(const struct timeline_sheet *s, const struct forecast *f, int rank, const char *label,
                         double y)
{
    fprintf(s->out, "<text x=\"8\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", y + ROW - 5, label);
    for (enum op_stream stream = 0; stream < STREAM_COUNT; stream++)
        if (has_stream(&f->ranks[rank], (int)stream)) {
            print_row(s, &f->ranks[rank], stream, y);
            y += ROW;
        }
    return y;
}

static double height_of(const struct forecast *f, int ranks)
{
    double height = 0;
    for (int r = 0; f && r < ranks; r++)
        for (int s = 0; s < STREAM_COUNT; s++)
            height += has_stream(&f->ranks[r], s) ? ROW : 0;
    return height;
}

static void print_title(FILE *out, const struct timeline_step *step, double *y)
{
    if (!step->did)
        return;
    fprintf(out, "<text x=\"8\" y=\"%.0f\" font-size=\"14\">", *y);
    print_text(out, step->title);
    fputs("</text>\n", out);
    *y += TITLE;
}

static double longer(const struct forecast *a, const struct forecast *b)
{
    return b && b->seconds > a->seconds ? b->seconds : a->seconds;
}

void timeline_print(FILE *out, const struct timeline_step *forecast, const struct timeline_step *measured)
{
    const struct forecast *f = forecast->did, *m = measured->did;
    const struct timeline_sheet sheet = {out, longer(f, m)};
    int ranks = f->n < MAX_ROWS ? f->n : MAX_ROWS;
    double top = TITLE * (m ? 2 : 1) + TOP, y = TITLE;
    double height = top + height_of(f, ranks) + height_of(m, ranks) + GAP * ranks + 40;
    bool used[ACT_COUNT] = {false};
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            LEFT + WIDTH + 40, height);
    print_title(out, forecast, &y);
    print_title(out, measured, &y);
    note_kinds(f, used);
    note_kinds(m, used);
    print_legend(out, used, y + 4);
    y = top;
    for (int r = 0; r < ranks; r++) {
        char label[32];
        snprintf(label, sizeof(label), "rank %d", r);
        y = print_rank(&sheet, f, r, label, y);
        if (m)
            y = print_rank(&sheet, m, r, "measured", y);
        y += GAP;
    }
    print_axis(&sheet, top, y);
    if (ranks < f->n)
        fprintf(out, "<text x=\"8\" y=\"%.1f\">and %d more ranks</text>\n", y + ROW, f->n - ranks);
    fputs("</svg>\n", out);
}

err_t timeline_write(const struct timeline_step *forecast, const struct timeline_step *measured, const char *path,
                     struct why *why)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    timeline_print(out, forecast, measured);
    bool bad = ferror(out) != 0;
    if (fclose(out) || bad)
        return why_set(why, ERR_IO, "%s: the file could not be written completely", path);
    return OK;
}
