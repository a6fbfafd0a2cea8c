/* Softmax and cross-entropy. */
#include "kernels/ref/ref.h"

#include <math.h>

static double largest_of(int64_t n, const real *x)
{
    double max = (double)x[0];
    for (int64_t j = 1; j < n; j++)
        max = (double)x[j] > max ? (double)x[j] : max;
    return max;
}

/* One row; the largest logit is taken out first and never added back, so that large ones lose nothing. */
static double loss_row(int64_t v, int32_t target, bool grad, double scale, real *x)
{
    double max = largest_of(v, x), sum = 0;
    for (int64_t j = 0; j < v; j++)
        sum += exp((double)x[j] - max);
    double loss = target < 0 ? 0 : log(sum) + (max - (double)x[target]);
    for (int64_t j = 0; grad && j < v; j++)
        x[j] = target < 0 ? 0 : (real)((exp((double)x[j] - max) / sum - (j == target)) * scale);
    return loss;
}

void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum)
{
    for (int64_t i = 0; i < t; i++)
        *loss_sum += loss_row(v, targets[i], grad, scale, (real *)logits + i * v);
}
