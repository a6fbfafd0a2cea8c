/* The picture is plain: rectangles and text, no script, so that any browser and any editor shows it. A rank's rows have
 * a pale ground, and where the ground shows the stream waits. Boxes are wide enough to be seen, and carry the number of
 * their microbatch where there is room for it; the pointer over a box shows all of it. */
#include "client/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT 110.0
#define WIDTH 1400.0
#define TOP 70.0
#define ROW 18.0
#define GAP 8.0
#define MAX_ROWS 512 /* ranks that are drawn */

static const struct {
    const char *color, *name;
} kinds[ACT_COUNT] = {
    [ACT_BEGIN] = {"#9aa5b1", "begin"},        [ACT_FORWARD] = {"#4c8bf5", "forward"},
    [ACT_BACKWARD] = {"#34a853", "backward"},  [ACT_INPUT] = {"#34a853", "backward for inputs"},
    [ACT_WEIGHT] = {"#a3c644", "for weights"}, [ACT_EXCHANGE] = {"#f29900", "exchange"},
    [ACT_GATHER] = {"#8e63ce", "gather"},      [ACT_REDUCE] = {"#d9534f", "reduce"},
    [ACT_NORM] = {"#c2185b", "norm"},          [ACT_UPDATE] = {"#795548", "update"},
    [ACT_SNAPSHOT] = {"#607d8b", "snapshot"},
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

static double x_of(const struct forecast *f, double seconds)
{
    return LEFT + WIDTH * seconds / f->seconds;
}

static void print_axis(FILE *out, const struct forecast *f, double bottom)
{
    double tick = tick_of(f->seconds);
    bool fine = f->seconds < 1;
    for (int i = 0; i * tick <= f->seconds * (1 + 1e-9); i++) {
        double x = x_of(f, i * tick);
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#c8ced4\"/>\n", x, TOP - 6, x,
                bottom);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g %s</text>\n", x, TOP - 10,
                fine ? i * tick * 1e3 : i * tick, fine ? "ms" : "s");
    }
}

static void print_legend(FILE *out, const struct forecast *f, double y)
{
    bool used[ACT_COUNT] = {false};
    double x = LEFT;
    for (int r = 0; r < f->n; r++)
        for (int i = 0; i < f->ranks[r].n; i++)
            used[f->ranks[r].boxes[i].kind] = true;
    for (int k = 0; k < ACT_COUNT; k++) {
        if (!used[k])
            continue;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                kinds[k].color);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 16, y, kinds[k].name);
        x += 40 + 7.0 * (double)strlen(kinds[k].name);
    }
}

static void print_box(FILE *out, const struct forecast *f, const struct forecast_box *b, double y)
{
    double x = x_of(f, b->start), width = x_of(f, b->end) - x;
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

/* A row for each of the rank's streams that does anything; returns where the next rank begins. */
static double print_rank(FILE *out, const struct forecast *f, int rank, double y)
{
    static const char *const names[STREAM_COUNT] = {"compute", "comm", "copy"};
    const struct forecast_rank *r = &f->ranks[rank];
    fprintf(out, "<text x=\"8\" y=\"%.1f\" font-weight=\"bold\">rank %d</text>\n", y + ROW - 5, rank);
    for (int s = 0; s < STREAM_COUNT; s++) {
        if (!has_stream(r, s))
            continue;
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#eef1f4\"/>\n", LEFT, y + 1,
                WIDTH, ROW - 2);
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#667\">%s</text>\n", LEFT - 6, y + ROW - 5,
                names[s]);
        for (int i = 0; i < r->n; i++)
            if ((int)r->boxes[i].stream == s)
                print_box(out, f, &r->boxes[i], y);
        y += ROW;
    }
    return y + GAP;
}

static double height_of(const struct forecast *f, int ranks)
{
    double height = TOP + 40;
    for (int r = 0; r < ranks; r++) {
        for (int s = 0; s < STREAM_COUNT; s++)
            height += has_stream(&f->ranks[r], s) ? ROW : 0;
        height += GAP;
    }
    return height;
}

static void print_all(FILE *out, const struct forecast *f, const char *title)
{
    int ranks = f->n < MAX_ROWS ? f->n : MAX_ROWS;
    double height = height_of(f, ranks), y = TOP;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            LEFT + WIDTH + 40, height);
    fputs("<text x=\"8\" y=\"18\" font-size=\"14\">", out);
    print_text(out, title);
    fputs("</text>\n", out);
    print_legend(out, f, 40);
    for (int r = 0; r < ranks; r++)
        y = print_rank(out, f, r, y);
    print_axis(out, f, y);
    if (ranks < f->n)
        fprintf(out, "<text x=\"8\" y=\"%.1f\">and %d ranks more</text>\n", y + ROW, f->n - ranks);
    fputs("</svg>\n", out);
}

err_t timeline_write(const struct forecast *f, const char *title, const char *path, struct why *why)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    print_all(out, f, title);
    bool bad = ferror(out) != 0;
    if (fclose(out) || bad)
        return why_set(why, ERR_IO, "%s: could not be written to its end", path);
    return OK;
}
