/* AdamW, the pieces of a gradient's norm, and plain memory. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

void KERN_FN(adamw)(struct kern_stream *s, const struct kern_adamw *a)
{
    real *p = a->p, *m = a->m, *v = a->v;
    const real *g = a->g;
    double unbias_m = 1 - pow(a->beta1, (double)a->step), unbias_v = 1 - pow(a->beta2, (double)a->step);
    for (int64_t i = 0; i < a->n; i++) {
        double grad = (double)g[i] * a->grad_scale;
        double first = a->beta1 * (double)m[i] + (1 - a->beta1) * grad;
        double second = a->beta2 * (double)v[i] + (1 - a->beta2) * grad * grad;
        double decayed = (double)p[i] * (1 - a->lr * a->weight_decay);
        p[i] = (real)(decayed - a->lr * (first / unbias_m) / (sqrt(second / unbias_v) + a->eps));
        m[i] = (real)first;
        v[i] = (real)second;
    }
}

void KERN_FN(sumsq_blocks)(struct kern_stream *s, int64_t n, const void *x, double *blocks)
{
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((const real *)x)[i];
        if (i % KERN_SUMSQ_BLOCK == 0)
            blocks[i / KERN_SUMSQ_BLOCK] = 0;
        blocks[i / KERN_SUMSQ_BLOCK] += v * v;
    }
}

void KERN_FN(zero)(struct kern_stream *s, int64_t n, void *x)
{
    memset(x, 0, (size_t)n * sizeof(real));
}

void KERN_FN(copy)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    memcpy(y, x, (size_t)n * sizeof(real));
}
