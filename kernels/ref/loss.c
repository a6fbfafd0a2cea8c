/* Softmax and cross-entropy, over the whole vocabulary or over parts of it. */
#include "kernels/ref/ref.h"

#include <math.h>

static double largest_of(int64_t n, const real *x)
{
    double max = (double)x[0];
    for (int64_t j = 1; j < n; j++)
        max = (double)x[j] > max ? (double)x[j] : max;
    return max;
}

static double exp_sum(int64_t n, const real *x, double max)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += exp((double)x[j] - max);
    return sum;
}

/* Replaces logits by their gradient. `hot` is the target's column and may lie outside these columns. */
static void grad_row(int64_t v, bool counts, int64_t hot, double scale, double max, double sum, real *x)
{
    for (int64_t j = 0; j < v; j++)
        x[j] = counts ? (real)((exp((double)x[j] - max) / sum - (j == hot)) * scale) : 0;
}

/* One row. The largest logit is subtracted first and never added back, so large logits lose no precision. */
static double loss_row(int64_t v, int32_t target, bool grad, double scale, real *x)
{
    double max = largest_of(v, x), sum = exp_sum(v, x, max);
    double loss = target < 0 ? 0 : log(sum) + (max - (double)x[target]);
    if (grad)
        grad_row(v, target >= 0, target, scale, max, sum, x);
    return loss;
}

void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum)
{
    for (int64_t i = 0; i < t; i++)
        *loss_sum += loss_row(v, targets[i], grad, scale, (real *)logits + i * ld);
}

void KERN_FN(loss_part)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, const int32_t *targets,
                        const void *logits, double *stats)
{
    for (int64_t i = 0; i < t; i++) {
        const real *x = (const real *)logits + i * ld;
        bool here = targets[i] >= lo && targets[i] < lo + v;
        double max = v ? largest_of(v, x) : -INFINITY;
        stats[3 * i] = max;
        stats[3 * i + 1] = exp_sum(v, x, max == -INFINITY ? 0 : max); /* an empty part gives 0, unless there is a NaN */
        stats[3 * i + 2] = here ? (double)x[targets[i] - lo] : -INFINITY;
    }
}

/* Combines the statistics of row i over all parts. */
static void whole_row(int64_t t, int64_t i, int64_t parts, const double *stats, double *max, double *sum, double *logit)
{
    *max = *logit = -INFINITY;
    *sum = 0;
    for (int64_t p = 0; p < parts; p++) {
        const double *x = stats + 3 * (p * t + i);
        *max = x[0] > *max ? x[0] : *max;
        *logit = x[2] > *logit ? x[2] : *logit;
    }
    for (int64_t p = 0; p < parts; p++)
        *sum += stats[3 * (p * t + i) + 1] * exp(stats[3 * (p * t + i)] - *max);
}

void KERN_FN(loss_join)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, int64_t parts,
                        const int32_t *targets, const double *stats, bool grad, double scale, void *logits,
                        double *loss_sum)
{
    for (int64_t i = 0; i < t; i++) {
        double max, sum, logit;
        whole_row(t, i, parts, stats, &max, &sum, &logit);
        if (loss_sum && targets[i] >= 0)
            *loss_sum += log(sum) + (max - logit);
        if (grad)
            grad_row(v, targets[i] >= 0, targets[i] - lo, scale, max, sum, (real *)logits + i * ld);
    }
}
