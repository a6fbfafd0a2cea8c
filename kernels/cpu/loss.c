/* Softmax and cross-entropy, over the whole vocabulary or a part of its columns.
 *
 * A row of logits (200 KB for GPT-2) stays in the second-level cache between the passes over it, so memory serves one
 * read and, with the gradient, one write. Dense rows of an odd vocabulary start anywhere in a cache line, so the first
 * elements of a row are processed separately to keep vectors within lines. Their number follows from the row's index
 * and the stride, not from its address, so the order of a sum depends only on the arguments. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#define ROWS 256 /* rows whose losses are stored before they are summed in order */
/* Whether exp(x - max) is stored between the passes. In bfloat16 it is computed twice instead, because storing rounds
 * it.
 */
#define KEEPS_TERMS (KERN_CPU_BITS == 32)
#define SUM_RUN 1024 /* elements summed in float32 before the sum continues in float64 */

struct loss_args {
    int64_t v, ld;
    const int32_t *targets;
    bool grad;
    float scale;
    elem *logits;
    int64_t lo, t, parts; /* lo: first column of a part; t: rows between the parts of stats; parts: their number */
    double *stats;
    double *loss; /* [ROWS], losses of the current rows */
};

/* The number of elements of row i that are processed separately. */
static int64_t head_of(const struct loss_args *a, int64_t i)
{
    int64_t head = -(i * a->ld) & (VF - 1);
    return head < a->v ? head : a->v;
}

static float row_max(const elem *x, int64_t head, int64_t n)
{
    vf a = v_set(-INFINITY), b = a, c = a, d = a;
    float max = -INFINITY;
    int64_t j = 0;
    for (; j < head; j++)
        max = e_value(x[j]) > max ? e_value(x[j]) : max;
    for (; j + 4 * VF <= n; j += 4 * VF) {
        a = v_max(a, e_load(x + j));
        b = v_max(b, e_load(x + j + VF));
        c = v_max(c, e_load(x + j + 2 * VF));
        d = v_max(d, e_load(x + j + 3 * VF));
    }
    for (; j < n; j++)
        max = e_value(x[j]) > max ? e_value(x[j]) : max;
    float largest = v_largest(v_max(v_max(a, b), v_max(c, d)));
    return largest > max ? largest : max;
}

/* Sum of exp(x - max), 1 <= n <= SUM_RUN; with `keep` the terms replace x. Prefetches `next`. */
static ALWAYS_INLINE float exp_run(elem *x, int64_t n, float max, bool keep, const elem *next)
{
    vf sum = {0}, other = {0}, e;
    int64_t j = 0;
    for (; j + 2 * VF <= n; j += 2 * VF) {
        __builtin_prefetch(next + j, 1, 2);
        __builtin_prefetch(next + j + 16, 1, 2);
        e = v_exp(e_load(x + j) - max);
        vf f = v_exp(e_load(x + j + VF) - max);
        sum += e;
        other += f;
        if (keep) {
            e_store(x + j, e);
            e_store(x + j + VF, f);
        }
    }
    for (int64_t left; (left = n - j) > 0; j += VF) {
        left = left < VF ? left : VF;
        e = v_exp(e_load_n(x + j, left) - max);
        if (keep)
            e_store_n(x + j, e, left);
        float lane[VF];
        v_store(lane, e);
        other += v_load_n(lane, left); /* lanes that were not loaded hold exp(-max) */
    }
    return v_sum(sum + other);
}

/* Prefetches the next row at the same time. */
static double exp_sum(const struct loss_args *a, elem *x, int64_t head, float max, bool keep)
{
    double sum = 0;
    const elem *next = x + a->ld;
    for (int64_t j = 0, run = head; j < a->v; j += run, run = SUM_RUN) {
        run = a->v - j < run ? a->v - j : run;
        sum += (double)(keep ? exp_run(x + j, run, max, true, next + j) : exp_run(x + j, run, max, false, next + j));
    }
    return sum;
}

/* Replaces the terms of row i by the gradient. */
static void scale_row(elem *x, int64_t head, int64_t n, float factor)
{
    for (int64_t j = 0; j < head; j += VF)
        e_store_part(x, j, head, e_load_part(x, j, head) * factor);
    for (int64_t j = head; j < n; j += VF)
        e_store_part(x, j, n, e_load_part(x, j, n) * factor);
}

/* x[0..n) = exp(x - max) * factor, rounded once */
static void grad_run(elem *x, int64_t n, float max, float factor)
{
    int64_t j = 0;
    for (; j + VF <= n; j += VF) {
        v_expect_store((const float *)(x + j));
        e_store(x + j, v_exp(e_load(x + j) - max) * factor);
    }
    if (j < n)
        e_store_n(x + j, v_exp(e_load_n(x + j, n - j) - max) * factor, n - j);
}

/* The gradient of the target's logit, rounded once: where it is nearly 0, its terms nearly cancel. */
static elem target_grad(elem logit, float max, float factor, float scale)
{
    return e_of(v_exp(v_set(e_value(logit)) - max)[0] * factor - scale);
}

static double on_grid(double loss)
{
    return rint(loss * KERN_LOSS_GRID) / KERN_LOSS_GRID;
}

static double loss_row(const struct loss_args *a, int64_t i)
{
    elem *x = a->logits + i * a->ld;
    int32_t target = a->targets[i];
    if (target < 0) {
        if (a->grad)
            memset(x, 0, (size_t)a->v * sizeof(elem));
        return 0;
    }
    int64_t head = head_of(a, i);
    float max = row_max(x, head, a->v);
    elem logit = x[target];
    double sum = exp_sum(a, x, head, max, a->grad && KEEPS_TERMS);
    if (a->grad) {
        float factor = (float)((double)a->scale / sum);
        if (KEEPS_TERMS)
            scale_row(x, head, a->v, factor);
        else
            grad_run(x, a->v, max, factor);
        x[target] = target_grad(logit, max, factor, a->scale);
    }
    return on_grid(log(sum) + ((double)max - (double)e_value(logit)));
}

static void loss_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    struct loss_args *a = arg;
    for (int64_t i = lo; i < hi; i++)
        a->loss[i] = loss_row(a, i);
}

/* Calls fn on ROWS rows at a time and adds the values in `loss` to *loss_sum in order, unless loss_sum is NULL. */
static void run_rows(struct kern_stream *s, const struct loss_args *all, int64_t t, kern_range_fn *fn, double *loss_sum)
{
    for (int64_t i = 0; i < t; i += ROWS) {
        struct loss_args a = *all;
        double loss[ROWS];
        int64_t rows = t - i < ROWS ? t - i : ROWS;
        a.loss = loss;
        a.targets += i;
        a.logits += i * a.ld;
        a.stats = a.stats ? a.stats + 3 * i : NULL;
        kern_stream_run(s, rows, 1, fn, &a);
        for (int64_t r = 0; loss_sum && r < rows; r++)
            *loss_sum += loss[r];
    }
}

void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum)
{
    struct loss_args a = {.v = v, .ld = ld, .targets = targets, .grad = grad, .scale = (float)scale, .logits = logits};
    run_rows(s, &a, t, loss_rows, loss_sum);
}

/* ---- a part of the vocabulary ---- */

static void part_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct loss_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        elem *x = a->logits + i * a->ld;
        float max = row_max(x, head_of(a, i), a->v);
        bool here = a->targets[i] >= a->lo && a->targets[i] < a->lo + a->v;
        a->stats[3 * i] = (double)max;
        a->stats[3 * i + 1] = exp_sum(a, x, head_of(a, i), max == -INFINITY ? 0 : max, false);
        a->stats[3 * i + 2] = here ? (double)e_value(x[a->targets[i] - a->lo]) : -INFINITY;
    }
}

void KERN_FN(loss_part)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, const int32_t *targets,
                        const void *logits, double *stats)
{
    struct loss_args a = {.v = v, .ld = ld, .targets = targets, .logits = (elem *)logits, .lo = lo, .stats = stats};
    run_rows(s, &a, t, part_rows, NULL);
}

static double join_row(const struct loss_args *a, int64_t i)
{
    double max = -INFINITY, logit = -INFINITY, sum = 0;
    elem *x = a->logits + i * a->ld;
    int64_t hot = a->targets[i] - a->lo;
    if (a->targets[i] < 0) {
        if (a->grad)
            memset(x, 0, (size_t)a->v * sizeof(elem));
        return 0;
    }
    for (int64_t p = 0; p < a->parts; p++) {
        const double *stats = a->stats + 3 * (p * a->t + i);
        max = stats[0] > max ? stats[0] : max;
        logit = stats[2] > logit ? stats[2] : logit;
    }
    for (int64_t p = 0; p < a->parts; p++)
        sum += a->stats[3 * (p * a->t + i) + 1] * exp(a->stats[3 * (p * a->t + i)] - max);
    if (a->grad) {
        bool here = hot >= 0 && hot < a->v;
        float factor = (float)((double)a->scale / sum);
        elem own = here ? x[hot] : e_of(0);
        grad_run(x, a->v, (float)max, factor);
        if (here)
            x[hot] = target_grad(own, (float)max, factor, a->scale);
    }
    return on_grid(log(sum) + (max - logit));
}

static void join_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    struct loss_args *a = arg;
    for (int64_t i = lo; i < hi; i++)
        a->loss[i] = join_row(a, i);
}

void KERN_FN(loss_join)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, int64_t parts,
                        const int32_t *targets, const double *stats, bool grad, double scale, void *logits,
                        double *loss_sum)
{
    struct loss_args a = {.v = v,
                          .ld = ld,
                          .targets = targets,
                          .grad = grad,
                          .scale = (float)scale,
                          .logits = logits,
                          .lo = lo,
                          .t = t,
                          .parts = parts,
                          .stats = (double *)stats};
    run_rows(s, &a, t, join_rows, loss_sum);
}
