/* Every form is drawn within a frame, from top to bottom: title, legend, picture, axis. The grid follows the reports of
 * LLview, which users of many clusters know: top left the mean of all ranks with a band from the least to the most,
 * below it a colour map of time and rank, right of it the mean of each rank, and above that the numbers. */
#include "client/report/plot.h"

#include "client/report/doc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TITLE 14.0  /* height of the title's line */
#define LEGEND 12.0 /* height of the legend's line */
#define AXIS 14.0   /* height of the labels below a picture */
#define LEFT 44.0   /* width of the labels left of a picture */
#define CURVES 118.0
#define GRID_MEAN 44.0 /* heights of the grid's rows: 1 to 2.5 */
#define GRID_MAP 110.0
#define GRID_RIGHT 4.5 /* the right column's part of the width: 1 to 3.5 */
#define GRID_GAP 8.0
#define STACK 20.0
#define SPAN 13.0
#define SMALL 7.0
#define TICKS_MAX 32 /* of an axis; a tick may vanish beside huge values, and the loop must end */

struct plot *plot_new(enum plot_form form, const char *title, const char *unit)
{
    struct plot *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->form = form;
    p->title = doc_text_clean(title);
    p->unit = doc_text_clean(unit);
    if (p->title && p->unit)
        return p;
    plot_free(p);
    return NULL;
}

void plot_free(struct plot *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_curves; i++) {
        free(p->curve[i].label);
        free(p->curve[i].x);
        free(p->curve[i].mean);
        free(p->curve[i].lo);
        free(p->curve[i].hi);
    }
    for (int i = 0; i < p->n_parts; i++) {
        free(p->part[i].label);
        free(p->part[i].value_text);
    }
    for (int i = 0; i < p->ranks && p->rank_label; i++)
        free(p->rank_label[i]);
    for (int i = 0; i < p->n_rows && p->row_label; i++)
        free(p->row_label[i]);
    free(p->row_label);
    free(p->rank_label);
    free(p->part);
    free(p->span);
    free(p->mark);
    free(p->cell);
    free(p->title);
    free(p->unit);
    free(p);
}

/* ---- numbers ---- */

double plot_tick(double range, int n)
{
    const double power = pow(10, floor(log10(range / n))), ratio = range / n / power;
    return power * (ratio < 1.5 ? 1 : ratio < 3.5 ? 2 : ratio < 7.5 ? 5 : 10);
}

const char *plot_number(double value, char ret[PLOT_NUMBER])
{
    static const struct {
        double from;
        const char *suffix;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
    const double size = fabs(value);
    if (!isfinite(value)) {
        snprintf(ret, PLOT_NUMBER, "%s", isnan(value) ? "-" : value > 0 ? "inf" : "-inf");
        return ret;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (size >= units[i].from && size < 1e15) {
            snprintf(ret, PLOT_NUMBER, "%.4g%s", value / (i == 3 ? 1e3 : units[i].from), units[i].suffix);
            return ret;
        }
    snprintf(ret, PLOT_NUMBER, "%.4g", size < 1e-300 ? 0 : value);
    return ret;
}

static const struct {
    double seconds;
    const char *name;
    double until; /* for ranges up to this */
} time_units[] = {
    {1e-3, "ms", 1}, {1, "s", 300}, {60, "min", 300 * 60}, {3600, "h", 3600 * 96.0}, {86400, "d", INFINITY}};

static int time_unit(double range)
{
    int i = 0;
    while (range > time_units[i].until)
        i++;
    return i;
}

const char *plot_time(double seconds, double range, char ret[PLOT_NUMBER])
{
    const int i = time_unit(range);
    seconds = fabs(seconds) < range * 1e-6 ? 0 : seconds; /* no "-0" */
    snprintf(ret, PLOT_NUMBER, "%.4g %s", seconds / time_units[i].seconds, time_units[i].name);
    return ret;
}

/* Anchors of even lightness from dark to light, mixed linearly. */
uint32_t plot_map(double share, bool warm)
{
    static const uint32_t cool_map[] = {0x12214a, 0x1f5f8b, 0x2a9d8f, 0x95cb6c, 0xf7ec8b};
    static const uint32_t warm_map[] = {0xfff7d6, 0xf7c873, 0xe8833a, 0xb5392c, 0x5a1020};
    const uint32_t *map = warm ? warm_map : cool_map;
    const double at = 4 * (share > 1 ? 1 : share > 0 ? share : 0); /* NAN is 0 */
    const int i = at >= 4 ? 3 : (int)at;
    uint32_t rgb = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        const double a = map[i] >> shift & 255, b = map[i + 1] >> shift & 255;
        rgb |= (uint32_t)lround(a + (b - a) * (at - i)) << shift;
    }
    return rgb;
}

/* ---- axes ---- */

struct axes {
    struct canvas *c;
    struct frame f; /* of the picture */
    double x0, x1, y0, y1;
};

static double x_of(const struct axes *a, double x)
{
    return a->f.x + a->f.w * (x - a->x0) / (a->x1 - a->x0);
}

static double y_of(const struct axes *a, double y)
{
    const double share = (y - a->y0) / (a->y1 - a->y0);
    return a->f.y + a->f.h * (1 - (share < -0.02 ? -0.02 : share > 1.02 ? 1.02 : share));
}

static void line2(struct canvas *c, double x0, double y0, double x1, double y1, enum ink ink, double width, bool dashed)
{
    const struct point p[2] = {{x0, y0}, {x1, y1}};
    c->ops->line(c, p, 2, ink, width, dashed);
}

static void label(struct canvas *c, double x, double y, enum anchor anchor, enum ink ink, const char *text)
{
    c->ops->text(c, x, y, SMALL, anchor, ink, false, text);
}

static void draw_x(const struct axes *a, bool time)
{
    char text[PLOT_NUMBER];
    const double range = a->x1 - a->x0, unit = time ? time_units[time_unit(range)].seconds : 1;
    double tick = plot_tick(range / unit, 6) * unit;
    tick = !time && tick < 1 ? 1 : tick;
    const double first = ceil(a->x0 / tick - 1e-9);
    for (int i = 0; i < TICKS_MAX && (first + i) * tick <= a->x1 + range * 1e-9; i++) {
        const double x = (first + i) * tick;
        line2(a->c, x_of(a, x), a->f.y + a->f.h, x_of(a, x), a->f.y + a->f.h + 3, INK_DIM, 0.6, false);
        /* The last label ends with the axis, because numbers may stand right of it. */
        const bool last = x_of(a, x) > a->f.x + a->f.w - 12;
        label(a->c, last ? a->f.x + a->f.w : x_of(a, x), a->f.y + a->f.h + 10, last ? ANCHOR_END : ANCHOR_MIDDLE,
              INK_DIM, time ? plot_time(x, range, text) : plot_number(x, text));
    }
}

static void draw_y(const struct axes *a, int n)
{
    char text[PLOT_NUMBER];
    const double range = a->y1 - a->y0, tick = plot_tick(range, n);
    const double first = ceil(a->y0 / tick - 1e-9);
    for (int i = 0; i < TICKS_MAX && (first + i) * tick <= a->y1 + range * 1e-9; i++) {
        const double y = (first + i) * tick;
        line2(a->c, a->f.x, y_of(a, y), a->f.x + a->f.w, y_of(a, y), INK_LINE, 0.4, false);
        label(a->c, a->f.x - 4, y_of(a, y) + 2.5, ANCHOR_END, INK_DIM,
              plot_number(fabs(y) < tick * 1e-6 ? 0 : y, text));
    }
}

/* The range of values, with some space; from 0 where the least is near it. */
static void widen(struct axes *a)
{
    if (!(a->y0 <= a->y1)) { /* no value */
        a->y0 = 0;
        a->y1 = 1;
    }
    if (a->y0 > 0 && a->y0 < 0.4 * a->y1)
        a->y0 = 0;
    const double range = a->y1 - a->y0, least = fmax(fabs(a->y1), fabs(a->y0)) * 0.1;
    const double space = range > least * 0.01 ? 0.05 * range : fmax(least, 1e-12);
    a->y0 -= a->y0 == 0 ? 0 : space;
    a->y1 += space;
}

static void take(struct axes *a, double y)
{
    if (isfinite(y)) {
        a->y0 = fmin(a->y0, y);
        a->y1 = fmax(a->y1, y);
    }
}

/* ---- curves ---- */

/* The end of the run of points from `from` on that have a value. */
static int run_end(const struct plot_curve *k, int from)
{
    while (from < k->n && isfinite(k->mean[from]))
        from++;
    return from;
}

static void draw_run(const struct axes *a, const struct plot_curve *k, int from, int until)
{
    const int n = until - from;
    struct point *p = malloc((size_t)(2 * n + 2) * sizeof(*p));
    if (!p)
        return;
    for (int i = 0; k->lo && k->hi && i < n; i++) {
        p[i] = (struct point){x_of(a, k->x[from + i]), y_of(a, k->hi[from + i])};
        p[2 * n - 1 - i] = (struct point){x_of(a, k->x[from + i]), y_of(a, k->lo[from + i])};
    }
    if (k->lo && k->hi && n > 1)
        a->c->ops->area(a->c, p, 2 * n, k->ink, 0.22);
    for (int i = 0; i < n; i++)
        p[i] = (struct point){x_of(a, k->x[from + i]), y_of(a, k->mean[from + i])};
    if (n > 1)
        a->c->ops->line(a->c, p, n, k->ink, 1.1, false);
    if (n == 1 || (k->n < 30 && n < 30)) /* few points are shown themselves */
        for (int i = 0; i < n; i++)
            a->c->ops->rect(a->c, (struct frame){p[i].x - 1.4, p[i].y - 1.4, 2.8, 2.8}, k->ink, 1);
    free(p);
}

static void draw_curve(const struct axes *a, const struct plot_curve *k)
{
    for (int i = 0, until; i < k->n; i = until + 1) {
        until = run_end(k, i);
        if (until > i)
            draw_run(a, k, i, until);
    }
}

static void draw_marks(const struct plot *p, const struct axes *a)
{
    for (int i = 0; i < p->n_marks; i++)
        if (p->mark[i].x >= a->x0 && p->mark[i].x <= a->x1)
            line2(a->c, x_of(a, p->mark[i].x), a->f.y, x_of(a, p->mark[i].x), a->f.y + a->f.h, p->mark[i].ink, 0.8,
                  true);
}

static double legend_entry(struct canvas *c, double x, double y, enum ink ink, bool mark, const char *text)
{
    if (mark)
        line2(c, x + 4, y - 7, x + 4, y + 1, ink, 0.9, true);
    else
        c->ops->rect(c, (struct frame){x, y - 5, 8, 4}, ink, 1);
    label(c, x + 11, y, ANCHOR_START, INK_DIM, text);
    return x + 22 + c->ops->text_width(c, SMALL, false, text);
}

/* Whether an entry of the same meaning comes before mark or span i. */
static bool mark_again(const struct plot *p, int i)
{
    for (int k = 0; k < i; k++)
        if (p->mark[k].meaning == p->mark[i].meaning)
            return true;
    return false;
}

static void draw_legend(const struct plot *p, struct canvas *c, double x, double y)
{
    for (int i = 0; i < p->n_curves; i++)
        x = legend_entry(c, x, y, p->curve[i].ink, false, p->curve[i].label);
    for (int i = 0; i < p->n_marks; i++)
        if (!mark_again(p, i))
            x = legend_entry(c, x, y, p->mark[i].ink, true, p->mark[i].meaning);
}

static void draw_title(const struct plot *p, struct canvas *c, struct frame f)
{
    c->ops->text(c, f.x, f.y + 9, PLOT_TEXT, ANCHOR_START, INK_TEXT, true, p->title);
    if (p->unit[0])
        label(c, f.x + c->ops->text_width(c, PLOT_TEXT, true, p->title) + 6, f.y + 9, ANCHOR_START, INK_DIM, p->unit);
}

static void curves_range(const struct plot *p, struct axes *a)
{
    a->y0 = INFINITY;
    a->y1 = -INFINITY;
    for (int k = 0; k < p->n_curves; k++)
        for (int i = 0; i < p->curve[k].n; i++) {
            take(a, p->curve[k].mean[i]);
            take(a, p->curve[k].lo ? p->curve[k].lo[i] : NAN);
            take(a, p->curve[k].hi ? p->curve[k].hi[i] : NAN);
        }
    widen(a);
}

static void draw_curves(const struct plot *p, struct canvas *c, struct frame f)
{
    struct axes a = {c, {f.x + LEFT, f.y + TITLE + LEGEND, f.w - LEFT - 12, CURVES}, p->x0, p->x1, 0, 0};
    draw_title(p, c, f);
    draw_legend(p, c, f.x + LEFT, f.y + TITLE + 8);
    c->ops->rect(c, a.f, INK_FACE, 1);
    curves_range(p, &a);
    draw_y(&a, 4);
    draw_x(&a, p->time);
    draw_marks(p, &a);
    for (int i = 0; i < p->n_curves; i++)
        draw_curve(&a, &p->curve[i]);
}

/* ---- grid ---- */

static const double *cells_of(const struct plot *p, int rank)
{
    return p->cell + (size_t)rank * (size_t)p->bins;
}

bool plot_grid_range(const struct plot *p, int rank, double *ret_low, double *ret_mean, double *ret_high)
{
    const int first = rank < 0 ? 0 : rank, last = rank < 0 ? p->ranks - 1 : rank;
    double low = INFINITY, high = -INFINITY, sum = 0;
    int n = 0;
    for (int r = first; r <= last; r++)
        for (int i = 0; i < p->bins; i++)
            if (isfinite(cells_of(p, r)[i])) {
                low = fmin(low, cells_of(p, r)[i]);
                high = fmax(high, cells_of(p, r)[i]);
                sum += cells_of(p, r)[i];
                n++;
            }
    if (n == 0)
        return false;
    *ret_low = low;
    *ret_mean = sum / n;
    *ret_high = high;
    return true;
}

/* Mean and band over the ranks at each time, as a curve in buffers of 4 x bins. */
static struct plot_curve grid_mean(const struct plot *p, double *buffer)
{
    struct plot_curve k = {.ink = INK_1,
                           .n = p->bins,
                           .x = buffer,
                           .mean = buffer + p->bins,
                           .lo = buffer + 2 * p->bins,
                           .hi = buffer + 3 * p->bins};
    for (int i = 0; i < p->bins; i++) {
        double sum = 0;
        int n = 0;
        k.x[i] = p->x0 + (p->x1 - p->x0) * (i + 0.5) / p->bins;
        k.lo[i] = INFINITY;
        k.hi[i] = -INFINITY;
        for (int r = 0; r < p->ranks; r++) {
            const double v = cells_of(p, r)[i];
            if (isfinite(v)) {
                k.lo[i] = fmin(k.lo[i], v);
                k.hi[i] = fmax(k.hi[i], v);
                sum += v;
                n++;
            }
        }
        k.mean[i] = n ? sum / n : NAN;
    }
    return k;
}

static void draw_map(const struct plot *p, struct canvas *c, struct frame f, double low, double high)
{
    uint32_t *rgb = malloc((size_t)p->ranks * (size_t)p->bins * sizeof(*rgb));
    if (!rgb)
        return;
    for (int r = 0; r < p->ranks; r++)
        for (int i = 0; i < p->bins; i++) {
            const double v = cells_of(p, r)[i];
            rgb[(size_t)r * (size_t)p->bins + (size_t)i] =
                isfinite(v) ? plot_map(high > low ? (v - low) / (high - low) : 0.5, p->warm) : 0x9aa5b1;
        }
    c->ops->image(c, f, p->bins, p->ranks, rgb);
    free(rgb);
}

static void draw_rank_labels(const struct plot *p, struct canvas *c, struct frame f)
{
    const int every = (int)ceil(p->ranks * 9.0 / f.h);
    for (int r = 0; r < p->ranks; r += every)
        label(c, f.x - 4, f.y + f.h * (r + 0.5) / p->ranks + 2.5, ANCHOR_END, INK_DIM, p->rank_label[r]);
}

/* Right of the map: the mean of each rank over time, with its band. */
static void draw_rank_means(const struct plot *p, struct canvas *c, struct frame f, double low, double high)
{
    const double range = high > low ? high - low : 1;
    double least, mean, most;
    low = high > low ? low : low - 0.5; /* equal values are in the middle */
    c->ops->rect(c, f, INK_FACE, 1);
    for (int r = 0; r < p->ranks; r++) {
        const double y = f.y + f.h * r / p->ranks, h = f.h / p->ranks;
        if (!plot_grid_range(p, r, &least, &mean, &most))
            continue;
        c->ops->rect(c, (struct frame){f.x + f.w * (least - low) / range, y, f.w * (most - least) / range, h}, INK_1,
                     0.22);
        line2(c, f.x + f.w * (mean - low) / range, y, f.x + f.w * (mean - low) / range, y + h, INK_1, 1.4, false);
    }
}

static void draw_color_bar(const struct plot *p, struct canvas *c, struct frame f, double low, double high)
{
    uint32_t rgb[64];
    char text[PLOT_NUMBER];
    for (int i = 0; i < 64; i++)
        rgb[i] = plot_map(i / 63.0, p->warm);
    c->ops->image(c, (struct frame){f.x, f.y, f.w, 5}, 64, 1, rgb);
    label(c, f.x, f.y + 12, ANCHOR_START, INK_DIM, plot_number(low, text));
    label(c, f.x + f.w, f.y + 12, ANCHOR_END, INK_DIM, plot_number(high, text));
}

static void draw_numbers(struct canvas *c, struct frame f, const double *value)
{
    static const char *const names[] = {"max", "avg", "min"};
    char text[PLOT_NUMBER];
    for (int i = 0; i < 3; i++) {
        label(c, f.x + 10, f.y + 12 + 13 * i, ANCHOR_START, INK_DIM, names[i]);
        c->ops->text(c, f.x + f.w - 4, f.y + 12 + 13 * i, PLOT_TEXT, ANCHOR_END, INK_TEXT, true,
                     plot_number(value[i], text));
    }
}

static void draw_grid(const struct plot *p, struct canvas *c, struct frame f)
{
    const double inner = f.w - LEFT - GRID_GAP, right = inner / GRID_RIGHT, left = inner - right;
    const struct frame mean_f = {f.x + LEFT, f.y + TITLE, left, GRID_MEAN};
    const struct frame map_f = {f.x + LEFT, mean_f.y + GRID_MEAN + GRID_GAP, left, GRID_MAP};
    const struct frame rank_f = {map_f.x + left + GRID_GAP, map_f.y, right, GRID_MAP};
    double low = 0, mean = 0, high = 0, *buffer = malloc((size_t)p->bins * 4 * sizeof(*buffer));
    draw_title(p, c, f);
    if (!buffer || !plot_grid_range(p, -1, &low, &mean, &high)) {
        free(buffer);
        return;
    }
    const struct plot_curve k = grid_mean(p, buffer);
    struct axes a = {c, mean_f, p->x0, p->x1, low, high};
    c->ops->rect(c, mean_f, INK_FACE, 1);
    widen(&a);
    draw_y(&a, 2);
    draw_curve(&a, &k);
    draw_map(p, c, map_f, low, high);
    draw_rank_labels(p, c, map_f);
    a.f = map_f;
    draw_x(&a, p->time);
    draw_rank_means(p, c, rank_f, low, high);
    draw_color_bar(p, c, (struct frame){rank_f.x, rank_f.y + GRID_MAP + 3, right, 5}, low, high);
    draw_numbers(c, (struct frame){rank_f.x, mean_f.y, right, GRID_MEAN}, (const double[]){high, mean, low});
    free(buffer);
}

/* ---- one bar of parts ---- */

static double stack_entry_width(const struct plot *p)
{
    size_t most = 0;
    for (int i = 0; i < p->n_parts; i++) {
        const size_t n = strlen(p->part[i].label) + strlen(p->part[i].value_text);
        most = n > most ? n : most;
    }
    return 30 + 3.9 * (double)most; /* before there is a canvas that could measure */
}

static int stack_columns(const struct plot *p, double width)
{
    const int n = (int)(width / stack_entry_width(p));
    return n < 1 ? 1 : n;
}

static void draw_stack(const struct plot *p, struct canvas *c, struct frame f)
{
    const int columns = stack_columns(p, f.w);
    double sum = 0, x = f.x;
    draw_title(p, c, f);
    for (int i = 0; i < p->n_parts; i++)
        sum += p->part[i].value;
    for (int i = 0; i < p->n_parts && sum > 0; i++) {
        const double w = f.w * p->part[i].value / sum;
        c->ops->rect(c, (struct frame){x, f.y + TITLE, w, STACK}, p->part[i].ink, 1);
        x += w;
    }
    for (int i = 0; i < p->n_parts; i++) {
        const int row = i / columns;
        const double at = f.x + f.w * (i % columns) / columns, y = f.y + TITLE + STACK + 11 + LEGEND * row;
        c->ops->rect(c, (struct frame){at, y - 6, 8, 6}, p->part[i].ink, 1);
        label(c, at + 11, y, ANCHOR_START, INK_TEXT, p->part[i].label);
        label(c, at + 16 + c->ops->text_width(c, SMALL, false, p->part[i].label), y, ANCHOR_START, INK_DIM,
              p->part[i].value_text);
    }
}

/* ---- bars over time ---- */

static bool span_again(const struct plot *p, int i)
{
    for (int k = 0; k < i; k++)
        if (p->span[k].meaning == p->span[i].meaning)
            return true;
    return false;
}

static void draw_spans(const struct plot *p, struct canvas *c, struct frame f)
{
    const double left = LEFT + 46;
    struct axes a = {c, {f.x + left, f.y + TITLE + LEGEND, f.w - left - 12, SPAN * p->n_rows}, p->x0, p->x1, 0, 1};
    double x = f.x + left;
    draw_title(p, c, f);
    for (int i = 0; i < p->n_spans; i++)
        if (!span_again(p, i))
            x = legend_entry(c, x, f.y + TITLE + 8, p->span[i].ink, false, p->span[i].meaning);
    c->ops->rect(c, a.f, INK_FACE, 1);
    draw_x(&a, p->time);
    for (int r = 0; r < p->n_rows; r++)
        label(c, a.f.x - 4, a.f.y + SPAN * (r + 0.5) + 2.5, ANCHOR_END, INK_DIM, p->row_label[r]);
    for (int i = 0; i < p->n_spans; i++) {
        const struct plot_span *s = &p->span[i];
        const double w = x_of(&a, s->until) - x_of(&a, s->from);
        c->ops->rect(c, (struct frame){x_of(&a, s->from), a.f.y + SPAN * s->row + 2, w < 0.6 ? 0.6 : w, SPAN - 4},
                     s->ink, 1);
    }
}

/* ---- all forms ---- */

double plot_height(const struct plot *p, double width)
{
    switch (p->form) {
    case PLOT_CURVES:
        return TITLE + LEGEND + CURVES + AXIS;
    case PLOT_GRID:
        return TITLE + GRID_MEAN + GRID_GAP + GRID_MAP + AXIS + 4;
    case PLOT_STACK:
        return TITLE + STACK + 6 + LEGEND * ceil((double)p->n_parts / stack_columns(p, width));
    case PLOT_SPANS:
        return TITLE + LEGEND + SPAN * p->n_rows + AXIS;
    }
    return 0;
}

void plot_draw(const struct plot *p, struct canvas *c, struct frame f)
{
    static void (*const draw[])(const struct plot *, struct canvas *, struct frame) = {
        [PLOT_CURVES] = draw_curves, [PLOT_GRID] = draw_grid, [PLOT_STACK] = draw_stack, [PLOT_SPANS] = draw_spans};
    draw[p->form](p, c, f);
}
