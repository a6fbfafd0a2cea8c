/* Softmax and cross-entropy. */
#include "kernels/ref/ref.h"

#include <math.h>

/* log(sum(exp(x))), with the largest taken out first */
static double log_sum_exp(int64_t n, const real *x)
{
    double max = (double)x[0], sum = 0;
    for (int64_t j = 1; j < n; j++)
        max = (double)x[j] > max ? (double)x[j] : max;
    for (int64_t j = 0; j < n; j++)
        sum += exp((double)x[j] - max);
    return max + log(sum);
}

void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum)
{
    for (int64_t i = 0; i < t; i++) {
        real *x = (real *)logits + i * v;
        double lse = log_sum_exp(v, x);
        if (targets[i] >= 0)
            *loss_sum += lse - (double)x[targets[i]];
        for (int64_t j = 0; grad && j < v; j++)
            x[j] = targets[i] < 0 ? 0 : (real)((exp((double)x[j] - lse) - (j == targets[i])) * scale);
    }
}
