#include "client/report/series.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int bin_of(double x, double x0, double x1, int bins)
{
    const int i = (int)((x - x0) / (x1 - x0) * bins);
    return i < 0 ? 0 : i < bins ? i : bins - 1;
}

static bool curve_room(struct plot_curve *k, int n, bool band)
{
    k->x = calloc((size_t)n, sizeof(double));
    k->mean = calloc((size_t)n, sizeof(double));
    k->lo = band ? calloc((size_t)n, sizeof(double)) : NULL;
    k->hi = band ? calloc((size_t)n, sizeof(double)) : NULL;
    return k->x && k->mean && (!band || (k->lo && k->hi));
}

static double real_of(const struct field *f, const struct metric *m)
{
    const struct field_value v = field_get(f, m);
    return field_absent(f, m) ? NAN : f->kind == FIELD_REAL ? v.real : (double)v.whole;
}

/* Ends the bin that was summed: its point is at the mean of the steps in it. A bin whose rows all lack a finite value
 * becomes a gap if the field is one of every step. */
static void bin_end(struct plot_curve *k, double x, double sum, int rows, int n, bool gap)
{
    if (rows == 0 || (n == 0 && !gap))
        return;
    k->x[k->n] = x / rows;
    k->mean[k->n] = n ? sum / n : NAN;
    k->n++;
}

static void curve_fill(const struct report *r, const struct field *f, int bins, double x0, double x1,
                       struct plot_curve *k)
{
    const bool gap = f->presence == FIELD_REQUIRED;
    double sum = 0, x = 0, low = INFINITY, high = -INFINITY;
    int rows = 0, n = 0, bin = 0;
    for (size_t i = 0; i <= r->in.n_rows; i++) {
        const struct metric *m = i < r->in.n_rows ? &r->in.row[i] : NULL;
        const int next = m ? bin_of((double)m->step, x0, x1, bins) : -1;
        if (next != bin) {
            if (k->lo && n) {
                k->lo[k->n] = low;
                k->hi[k->n] = high;
            }
            bin_end(k, x, sum, rows, n, gap);
            sum = x = 0;
            rows = n = 0;
            low = INFINITY;
            high = -INFINITY;
            bin = next;
        }
        const double v = m ? real_of(f, m) : NAN;
        if (m && (gap || isfinite(v))) {
            x += (double)m->step;
            rows++;
        }
        if (isfinite(v)) {
            sum += v;
            low = fmin(low, v);
            high = fmax(high, v);
            n++;
        }
    }
}

bool series_metric(const struct report *r, const char *field, const char *label, enum ink ink, bool band,
                   struct plot *ret)
{
    const struct field *f = field_find(&metric_fields, field);
    if (!f || !r->in.n_rows)
        return true;
    const double x0 = (double)r->in.row[0].step, x1 = (double)r->in.row[r->in.n_rows - 1].step + 1;
    const int bins = x1 - x0 < SERIES_BINS ? (int)(x1 - x0) : SERIES_BINS;
    struct plot_curve k = {.label = strdup(label), .ink = ink};
    band = band && x1 - x0 > SERIES_BINS; /* else each point is one step */
    bool room = curve_room(&k, bins, band) && k.label;
    if (room)
        curve_fill(r, f, bins, x0, x1, &k);
    ret->curve[ret->n_curves++] = k;
    if (room && k.n == 0) { /* no row has a value: there is no curve */
        struct plot_curve *last = &ret->curve[--ret->n_curves];
        free(last->label);
        free(last->x);
        free(last->mean);
        free(last->lo);
        free(last->hi);
    }
    ret->x0 = x0;
    ret->x1 = x1 - 1 > x0 ? x1 - 1 : x1;
    return room;
}

static bool mark_add(struct plot *p, double x, enum ink ink, const char *meaning)
{
    struct plot_mark *more = realloc(p->mark, (size_t)(p->n_marks + 1) * sizeof(*more));
    if (!more)
        return false;
    p->mark = more;
    p->mark[p->n_marks++] = (struct plot_mark){x, ink, meaning};
    return true;
}

#define MARKS_MAX 200 /* more would hide the curve */

bool series_marks(const struct report *r, struct plot *ret)
{
    static const char epoch[] = "new epoch", incident[] = "epoch after an incident",
                      fault[] = "loss or norm not finite";
    int faults = 0;
    for (size_t i = 0; i < r->in.n_rows; i++) {
        const struct metric *m = &r->in.row[i];
        bool failed = false, ok = true;
        if (!isfinite(m->loss) || !isfinite(m->grad_norm) || m->skipped)
            ok = faults++ >= MARKS_MAX || mark_add(ret, (double)m->step, INK_BAD, fault);
        if (i && m->epoch != r->in.row[i - 1].epoch && ret->n_marks < 2 * MARKS_MAX) {
            for (int k = 0; k < r->job->n_incident; k++)
                failed |= r->job->incident[k].epoch >= r->in.row[i - 1].epoch && r->job->incident[k].epoch < m->epoch;
            ok = ok && mark_add(ret, (double)m->step, failed ? INK_2 : INK_4, failed ? incident : epoch);
        }
        if (!ok)
            return false;
    }
    return true;
}

/* ---- grids ---- */

/* Sums and numbers of the values in each cell. */
struct cells {
    double *sum;
    int *n;
    int per_row; /* ranks that share a row */
};

static void row_add(const struct usage_sample *row, enum usage_field field, int bin, const struct plot *p,
                    const struct cells *cells)
{
    for (int rank = 0; rank < row->ranks; rank++) {
        const size_t at = (size_t)(rank / cells->per_row) * (size_t)p->bins + (size_t)bin;
        if (isfinite(*usage_at(row, field, rank))) {
            cells->sum[at] += *usage_at(row, field, rank);
            cells->n[at]++;
        }
    }
}

static bool labels_make(const struct report *r, struct plot *p, int per_row)
{
    p->rank_label = calloc((size_t)p->ranks, sizeof(char *));
    for (int i = 0; p->rank_label && i < p->ranks; i++) {
        const int first = i * per_row,
                  last = first + per_row - 1 < r->usage.ranks ? first + per_row - 1 : r->usage.ranks - 1;
        const int bad = per_row == 1 ? asprintf(&p->rank_label[i], "rank %d", first)
                                     : asprintf(&p->rank_label[i], "%d-%d", first, last);
        if (bad < 0) {
            p->rank_label[i] = NULL;
            return false;
        }
    }
    return p->rank_label != NULL;
}

/* About one bin for each window; a window counts in all bins that it overlaps, so that none between two is empty. */
static int grid_bins(const struct report *r, double x0, double x1)
{
    double sum = 0;
    for (size_t i = 0; i < r->usage.n; i++)
        sum += (double)r->usage.row[i].window_ms * 1e-3;
    const double mean = sum / (double)r->usage.n, bins = mean > 0 ? (x1 - x0) / mean : (double)r->usage.n;
    return bins < 1 ? 1 : bins < SERIES_BINS ? (int)bins : SERIES_BINS;
}

/* Seconds since the submit. */
static double seconds_of(const struct report *r, int64_t wall_ms)
{
    return (double)(wall_ms - r->job->submitted_ms) * 1e-3;
}

bool series_grid(const struct report *r, enum usage_field field, struct plot *p, bool *ret_any)
{
    const struct usage_shown *about = usage_shown_of(field);
    const struct usage_samples *u = &r->usage;
    const int per_row = (u->ranks + SERIES_RANK_ROWS - 1) / SERIES_RANK_ROWS;
    p->time = true;
    p->x0 = seconds_of(r, u->row[0].wall_ms - u->row[0].window_ms);
    p->x1 = seconds_of(r, u->row[u->n - 1].wall_ms);
    p->x1 = p->x1 > p->x0 ? p->x1 : p->x0 + 1;
    p->warm = about && about->warm;
    p->ranks = (u->ranks + per_row - 1) / per_row;
    p->bins = grid_bins(r, p->x0, p->x1);
    const size_t n = (size_t)p->ranks * (size_t)p->bins;
    struct cells cells = {calloc(n, sizeof(double)), calloc(n, sizeof(int)), per_row};
    p->cell = cells.sum;
    bool ok = cells.sum && cells.n && labels_make(r, p, per_row);
    *ret_any = false;
    for (size_t i = 0; ok && i < u->n; i++) {
        const struct usage_sample *row = &u->row[i];
        const double end = seconds_of(r, row->wall_ms), begin = seconds_of(r, row->wall_ms - row->window_ms);
        const double in = 1e-6 * (end - begin); /* a window that ends where a bin begins is not in it */
        const int last = bin_of(end - in, p->x0, p->x1, p->bins);
        for (int bin = bin_of(begin + in, p->x0, p->x1, p->bins); bin <= last; bin++)
            row_add(row, field, bin, p, &cells);
    }
    for (size_t i = 0; ok && i < n; i++) {
        *ret_any |= cells.n[i] && cells.sum[i] != 0;
        p->cell[i] = cells.n[i] ? cells.sum[i] / cells.n[i] * (about ? about->factor : 1) : NAN;
    }
    free(cells.n);
    return ok;
}
