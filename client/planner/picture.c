/* Labels stand where they cannot cover each other: points have numbers, and a list below explains them. */
#include "client/planner/picture.h"

#include "client/report/plot.h"
#include "client/report/svg.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 760.0
#define MARGIN 16.0
#define TITLE 44.0 /* height of the title and the line below it */
#define ROW 18.0   /* of a list, and of a bar */
#define SIZE 10.0  /* of texts */
#define TICKS 6
#define GIB ((double)(1 << 30))

struct picture {
    struct svg svg;
    struct buf out;
};

static void put_text(struct picture *g, double x, double y, enum anchor anchor, enum ink ink, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

static void put_text(struct picture *g, double x, double y, enum anchor anchor, enum ink ink, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    g->svg.base.ops->text(&g->svg.base, x, y, SIZE, anchor, ink, false, text);
}

static void put_rect(struct picture *g, double x, double y, double w, double h, enum ink ink)
{
    g->svg.base.ops->rect(&g->svg.base, (struct frame){x, y, w, h}, ink, 1);
}

static void put_line(struct picture *g, double x0, double y0, double x1, double y1, enum ink ink, bool dashed)
{
    const struct point p[] = {{x0, y0}, {x1, y1}};
    g->svg.base.ops->line(&g->svg.base, p, 2, ink, dashed ? 1.5 : 1, dashed);
}

static void put_dot(struct picture *g, double x, double y, enum ink ink)
{
    put_rect(g, x - 3.5, y - 3.5, 7, 7, ink);
}

/* ---- the file ---- */

static void picture_begin(struct picture *g, const struct planning *p, const struct job_spec *job, const char *what,
                          double height)
{
    char params[OUT_NUMBER], bytes[OUT_NUMBER], title[400];
    memset(g, 0, sizeof(*g));
    svg_init(&g->svg, &g->out);
    err_t err = buf_printf(&g->out,
                           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"DejaVu "
                           "Sans, Helvetica, sans-serif\">\n<style>",
                           WIDTH, height);
    err = err ? err : svg_put_inks(&g->out);
    g->svg.err = err ? err : buf_printf(&g->out, "</style>\n");
    put_rect(g, 0, 0, WIDTH, height, INK_WHITE);
    snprintf(title, sizeof(title), "%s: %s", job->name, what);
    g->svg.base.ops->text(&g->svg.base, MARGIN, 18, 13, ANCHOR_START, INK_TEXT, true, title);
    put_text(g, MARGIN, 34, ANCHOR_START, INK_DIM, "%s parameters on %s, %s for each worker; estimated",
             out_count(plan_shape_params(&p->shape, NULL), params), p->machine.name,
             out_bytes((int64_t)p->search.memory, bytes));
}

static err_t picture_end(struct picture *g, const char *path, struct why *why)
{
    err_t err = g->svg.err ? g->svg.err : buf_printf(&g->out, "</svg>\n");
    FILE *f = err ? NULL : fopen(path, "w");
    if (!err && !f)
        err = why_set(why, ERR_IO, "--picture %s: %s", path, strerror(errno));
    if (f && fwrite(g->out.data, 1, g->out.len, f) != g->out.len)
        err = why_set(why, ERR_IO, "--picture %s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && !err)
        err = why_set(why, ERR_IO, "--picture %s: %s", path, strerror(errno));
    buf_fini(&g->out);
    return err;
}

/* ---- axes ---- */

struct scale_axis {
    double low, high, from, to; /* of the values, and of the page */
};

static double axis_at(const struct scale_axis *a, double value)
{
    return a->from + (a->to - a->from) * (value - a->low) / (a->high - a->low);
}

/* Ticks below a frame that ends at y0 and begins at y1. */
static void put_axis_below(struct picture *g, const struct scale_axis *x, double y0, double y1, const char *unit)
{
    char text[PLOT_NUMBER];
    const double tick = plot_tick(x->high - x->low, TICKS);
    for (int i = (int)ceil(x->low / tick); i * tick <= x->high; i++) {
        const double v = i * tick;
        put_line(g, axis_at(x, v), y0, axis_at(x, v), y1, INK_LINE, false);
        put_text(g, axis_at(x, v), y0 + 13, ANCHOR_MIDDLE, INK_DIM, "%s", plot_number(v, text));
    }
    put_text(g, x->to, y0 + 26, ANCHOR_END, INK_DIM, "%s", unit);
}

static void put_axis_left(struct picture *g, const struct scale_axis *y, double x0, double x1, const char *unit)
{
    char text[PLOT_NUMBER];
    const double tick = plot_tick(y->high - y->low, TICKS);
    for (int i = (int)ceil(y->low / tick); i * tick <= y->high; i++) {
        const double v = i * tick;
        put_line(g, x0, axis_at(y, v), x1, axis_at(y, v), INK_LINE, false);
        put_text(g, x0 - 5, axis_at(y, v) + 3.5, ANCHOR_END, INK_DIM, "%s", plot_number(v, text));
    }
    put_text(g, x0, y->to - 6, ANCHOR_START, INK_DIM, "%s", unit);
}

/* ---- memory against time ---- */

#define PARETO_HEIGHT 250.0

static void put_pareto_list(struct picture *g, const struct picture_point *list, int n, double y)
{
    char layout[256], bytes[OUT_NUMBER];
    for (int i = 0; i < n; i++, y += ROW) {
        put_text(g, MARGIN + 16, y, ANCHOR_END, INK_1, "%d", i + 1);
        put_text(g, MARGIN + 84, y, ANCHOR_END, INK_TEXT, "%.4g s", list[i].found->time.seconds);
        put_text(g, MARGIN + 152, y, ANCHOR_END, INK_TEXT, "%s", out_bytes((int64_t)list[i].bytes, bytes));
        put_text(g, MARGIN + 164, y, ANCHOR_START, INK_TEXT, "%s",
                 planner_layout_text(&list[i].found->layout, layout, sizeof(layout)));
    }
}

/* A step from each point to the next: with memory between theirs, the slower one is the best. */
static void put_pareto_steps(struct picture *g, const struct picture_point *list, int n, const struct scale_axis *x,
                             const struct scale_axis *y)
{
    for (int i = 0; i < n; i++) {
        const double px = axis_at(x, list[i].bytes / GIB), py = axis_at(y, list[i].found->time.seconds);
        if (i + 1 < n) {
            const double qx = axis_at(x, list[i + 1].bytes / GIB), qy = axis_at(y, list[i + 1].found->time.seconds);
            put_line(g, px, py, px, qy, INK_1, false);
            put_line(g, px, qy, qx, qy, INK_1, false);
        }
        put_dot(g, px, py, INK_1);
        put_text(g, px + 6, py - 5, ANCHOR_START, INK_TEXT, "%d", i + 1);
    }
}

err_t planner_picture_pareto(const char *path, const struct planning *p, const struct job_spec *job,
                             const struct picture_point *list, int n, struct why *why)
{
    const double top = TITLE + 22, bottom = TITLE + PARETO_HEIGHT, height = bottom + 44 + ROW * (double)n;
    const double limit = p->search.memory / GIB;
    double slowest = 0, fastest = INFINITY;
    struct picture g;
    for (int i = 0; i < n; i++) {
        slowest = fmax(slowest, list[i].found->time.seconds);
        fastest = fmin(fastest, list[i].found->time.seconds);
    }
    const double room = fmax(0.2 * (slowest - fastest), 0.01 * slowest);
    const struct scale_axis x = {0, 1.08 * limit, MARGIN + 40, WIDTH - MARGIN};
    const struct scale_axis y = {fastest - room, slowest + room, bottom, top};
    picture_begin(&g, p, job, "memory against time", height);
    put_axis_below(&g, &x, bottom, top, "GiB for each worker");
    put_axis_left(&g, &y, x.from, x.to, "seconds a step");
    put_line(&g, axis_at(&x, limit), bottom, axis_at(&x, limit), top, INK_BAD, true);
    put_text(&g, axis_at(&x, limit) - 4, top + 10, ANCHOR_END, INK_BAD, "memory of a device");
    put_pareto_steps(&g, list, n, &x, &y);
    put_pareto_list(&g, list, n, bottom + 44);
    return picture_end(&g, path, why);
}

/* ---- strategies ---- */

#define BARS_LEFT (MARGIN + 54)
#define BARS_MIDDLE 410.0
#define BARS_RIGHT 440.0
#define BAR 13.0

struct bar_part {
    const char *name;
    enum ink ink;
};

#define MEMORY_PARTS 4
static const struct bar_part memory_parts[MEMORY_PARTS] = {
    {"parameters", INK_1}, {"gradients", INK_2}, {"optimizer", INK_4}, {"activations", INK_3}};
#define TIME_PARTS 6
static const struct bar_part time_parts[TIME_PARTS] = {{"computation", INK_7},    {"repeated", INK_9},
                                                       {"communication", INK_5},  {"bubble", INK_6},
                                                       {"slowest device", INK_2}, {"optimizer", INK_8}};

static void memory_values(const struct plan_bytes *b, double ret[MEMORY_PARTS])
{
    const double values[MEMORY_PARTS] = {b->params, b->grads, b->optimizer, b->activations + b->buffers};
    for (int i = 0; i < MEMORY_PARTS; i++)
        ret[i] = values[i] / GIB;
}

static void time_values(const struct plan_time *t, double ret[TIME_PARTS])
{
    const double values[TIME_PARTS] = {
        t->compute - t->recompute, t->recompute, planning_comm(t), t->bubble, t->wait, t->update};
    memcpy(ret, values, sizeof(values));
}

static void put_bar(struct picture *g, const struct scale_axis *x, double y, const struct bar_part *parts,
                    const double *values, int n)
{
    double at = 0;
    for (int i = 0; i < n; i++) {
        put_rect(g, axis_at(x, at), y, axis_at(x, at + values[i]) - axis_at(x, at), BAR, parts[i].ink);
        at += values[i];
    }
}

static void put_legend(struct picture *g, const struct bar_part *parts, int n, double x, double y)
{
    for (int i = 0; i < n; i++) {
        put_rect(g, x, y - 8, 9, 9, parts[i].ink);
        put_text(g, x + 12, y, ANCHOR_START, INK_TEXT, "%s", parts[i].name);
        x += 20 + g->svg.base.ops->text_width(&g->svg.base, SIZE, false, parts[i].name);
    }
}

/* `limit`: GiB of a device; numbers stand right of its line. */
static void put_strategy(struct picture *g, const struct picture_strategy *s, const struct scale_axis *memory,
                         const struct scale_axis *time, double limit, double y)
{
    double bytes[MEMORY_PARTS], seconds[TIME_PARTS];
    put_text(g, BARS_LEFT - 6, y + 10, ANCHOR_END, !s->found ? INK_DIM : s->fits ? INK_TEXT : INK_BAD, "%s", s->name);
    if (!s->found) {
        put_text(g, BARS_LEFT + 4, y + 10, ANCHOR_START, INK_DIM, "not possible");
        return;
    }
    memory_values(&s->found->bytes, bytes);
    time_values(&s->found->time, seconds);
    put_bar(g, memory, y, memory_parts, bytes, MEMORY_PARTS);
    put_text(g, axis_at(memory, fmax(limit, s->found->bytes.total / GIB)) + 3, y + 10, ANCHOR_START, INK_TEXT, "%.1f",
             s->found->bytes.total / GIB);
    if (s->fits) {
        put_bar(g, time, y, time_parts, seconds, TIME_PARTS);
        put_text(g, axis_at(time, s->found->time.seconds) + 3, y + 10, ANCHOR_START, INK_TEXT, "%.4g",
                 s->found->time.seconds);
    } else {
        put_text(g, time->from + 4, y + 10, ANCHOR_START, INK_BAD, "does not fit");
    }
}

err_t planner_picture_strategies(const char *path, const struct planning *p, const struct job_spec *job,
                                 const struct picture_strategy *list, int n, struct why *why)
{
    const double top = TITLE + 36, bottom = top + ROW * (double)n, limit = p->search.memory / GIB;
    double most = limit, slowest = 0;
    struct picture g;
    for (int i = 0; i < n; i++) {
        most = list[i].found ? fmax(most, list[i].found->bytes.total / GIB) : most;
        slowest = list[i].found && list[i].fits ? fmax(slowest, list[i].found->time.seconds) : slowest;
    }
    const struct scale_axis memory = {0, 1.16 * most, BARS_LEFT, BARS_MIDDLE};
    const struct scale_axis time = {0, slowest > 0 ? 1.16 * slowest : 1, BARS_RIGHT, WIDTH - MARGIN};
    picture_begin(&g, p, job, "strategies", bottom + 44);
    put_legend(&g, memory_parts, MEMORY_PARTS, BARS_LEFT, TITLE + 10);
    put_legend(&g, time_parts, TIME_PARTS / 2, BARS_RIGHT, TITLE + 10);
    put_legend(&g, time_parts + TIME_PARTS / 2, TIME_PARTS - TIME_PARTS / 2, BARS_RIGHT, TITLE + 25);
    put_axis_below(&g, &memory, bottom, top - 6, "GiB for each worker");
    put_axis_below(&g, &time, bottom, top - 6, "seconds a step");
    for (int i = 0; i < n; i++)
        put_strategy(&g, &list[i], &memory, &time, limit, top + ROW * (double)i);
    put_line(&g, axis_at(&memory, limit), bottom, axis_at(&memory, limit), top - 6, INK_BAD, true);
    put_text(&g, axis_at(&memory, limit), top - 9, ANCHOR_MIDDLE, INK_BAD, "memory of a device");
    return picture_end(&g, path, why);
}

/* ---- numbers of nodes ---- */

#define NODES_HEIGHT 230.0
#define NODES_MIDDLE 420.0
#define NODES_RIGHT 470.0

static void put_speed(struct picture *g, const struct picture_nodes *list, int n, const struct scale_axis *x,
                      const struct scale_axis *y)
{
    char number[OUT_NUMBER];
    const double ideal = list[0].tokens_per_s * (double)list[n - 1].nodes / (double)list[0].nodes;
    put_line(g, axis_at(x, log2((double)list[0].nodes)), axis_at(y, log2(list[0].tokens_per_s)),
             axis_at(x, log2((double)list[n - 1].nodes)), axis_at(y, log2(ideal)), INK_DIM, true);
    for (int i = 0; i < n; i++) {
        const double px = axis_at(x, log2((double)list[i].nodes)), py = axis_at(y, log2(list[i].tokens_per_s));
        if (i)
            put_line(g, axis_at(x, log2((double)list[i - 1].nodes)), axis_at(y, log2(list[i - 1].tokens_per_s)), px, py,
                     INK_1, false);
        put_dot(g, px, py, INK_1);
        put_line(g, px, y->from, px, y->from + 4, INK_LINE, false);
        put_text(g, px, y->from + 14, ANCHOR_MIDDLE, INK_DIM, "%" PRId64, list[i].nodes);
        put_text(g, px + 6, py + 13, ANCHOR_START, INK_TEXT, "%s", out_count(list[i].tokens_per_s, number));
    }
}

static void put_efficiency(struct picture *g, const struct picture_nodes *list, int n, double top, double bottom)
{
    const double first = list[0].tokens_per_s / (double)list[0].nodes, width = (WIDTH - MARGIN - NODES_RIGHT) / n;
    double best = 1;
    for (int i = 0; i < n; i++)
        best = fmax(best, list[i].tokens_per_s / (double)list[i].nodes / first);
    for (int i = 0; i < n; i++) {
        const double share = list[i].tokens_per_s / (double)list[i].nodes / first, x = NODES_RIGHT + width * i;
        const double h = (bottom - top - 14) * share / best;
        put_rect(g, x + 3, bottom - h, width - 6, h, share >= 0.8 ? INK_3 : share >= 0.5 ? INK_5 : INK_BAD);
        put_text(g, x + width / 2, bottom - h - 4, ANCHOR_MIDDLE, INK_TEXT, "%.0f", 100 * share);
        put_text(g, x + width / 2, bottom + 14, ANCHOR_MIDDLE, INK_DIM, "%" PRId64, list[i].nodes);
    }
}

err_t planner_picture_nodes(const char *path, const struct planning *p, const struct job_spec *job,
                            const struct picture_nodes *list, int n, struct why *why)
{
    const double top = TITLE + 28, bottom = TITLE + NODES_HEIGHT;
    const double ideal = list[0].tokens_per_s * (double)list[n - 1].nodes / (double)list[0].nodes;
    double most = ideal;
    struct picture g;
    for (int i = 0; i < n; i++)
        most = fmax(most, list[i].tokens_per_s);
    const struct scale_axis x = {log2((double)list[0].nodes), log2((double)list[n - 1].nodes) + (n > 1 ? 0 : 1),
                                 MARGIN + 20, NODES_MIDDLE - 40};
    const struct scale_axis y = {log2(list[0].tokens_per_s) - 0.6, log2(most) + 0.2, bottom, top};
    picture_begin(&g, p, job, "speed and efficiency by the number of nodes", bottom + 40);
    put_text(&g, MARGIN, TITLE + 14, ANCHOR_START, INK_DIM, "tokens per second; dashed: in proportion to the nodes");
    put_text(&g, NODES_RIGHT, TITLE + 14, ANCHOR_START, INK_DIM, "efficiency in percent of the first");
    put_line(&g, MARGIN, bottom, NODES_MIDDLE, bottom, INK_LINE, false);
    put_line(&g, NODES_RIGHT, bottom, WIDTH - MARGIN, bottom, INK_LINE, false);
    put_speed(&g, list, n, &x, &y);
    put_efficiency(&g, list, n, top, bottom);
    put_text(&g, NODES_MIDDLE, bottom + 28, ANCHOR_END, INK_DIM, "nodes");
    put_text(&g, WIDTH - MARGIN, bottom + 28, ANCHOR_END, INK_DIM, "nodes");
    return picture_end(&g, path, why);
}
