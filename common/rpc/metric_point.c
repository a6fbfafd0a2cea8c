/* A point may have thousands of rows, so nothing here depends on their number. */
#include "common/rpc/metric_point.h"

#include <stdlib.h>

_Static_assert(METRIC_COLUMNS <= 64, "client/cmd_metrics.c keeps a bit per row of the table");

static bool number_of(const struct field *f, const struct metric *row, double *ret)
{
    const struct field_value v = field_get(f, row);
    *ret = f->kind == FIELD_REAL ? v.real : (double)v.whole;
    return isfinite(*ret) && !field_absent(f, row);
}

void metric_point_set(struct metric_point *p, const struct metric *row)
{
    double x;
    *p = (struct metric_point){.last = *row, .steps = 1};
    for (int i = 0; i < METRIC_COLUMNS; i++)
        if (number_of(&metric_fields.field[i], row, &x))
            p->of[i] = (struct metric_spread){x, x, x, 1};
}

static void spread_merge(struct metric_spread *s, const struct metric_spread *more)
{
    if (!more->n)
        return;
    s->min = s->n ? fmin(s->min, more->min) : more->min;
    s->max = s->n ? fmax(s->max, more->max) : more->max;
    s->sum += more->sum;
    s->n += more->n;
}

void metric_point_merge(struct metric_point *p, const struct metric_point *newer)
{
    const struct metric old = p->last;
    p->last = newer->last;
    p->steps += newer->steps;
    for (int i = 0; i < METRIC_COLUMNS; i++) {
        const struct field *f = &metric_fields.field[i];
        if (f->presence == FIELD_OPTIONAL && field_absent(f, &p->last))
            field_set(f, &p->last, field_get(f, &old));
        spread_merge(&p->of[i], &newer->of[i]);
    }
}

err_t metric_points_add(struct metric_points *points, const struct metric_point *p)
{
    if (points->n == points->cap) {
        size_t cap = points->cap ? 2 * points->cap : 64;
        struct metric_point *more = realloc(points->point, cap * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        points->point = more;
        points->cap = cap;
    }
    points->point[points->n++] = *p;
    return OK;
}

bool metric_has_spread(const struct field *f)
{
    return f->kind == FIELD_REAL || (f->kind == FIELD_INT && f->presence == FIELD_OPTIONAL);
}
