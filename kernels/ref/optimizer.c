/* AdamW, a gradient's norm, and casts. */
#include "kernels/ref/ref.h"

#include <math.h>

void KERN_FN(adamw)(struct kern_stream *s, const struct kern_adamw *a)
{
    real *p = a->p, *m = a->m, *v = a->v;
    const real *g = a->g;
    if (!isfinite(*a->grad_scale))
        return;
    double unbias_m = 1 - pow(a->beta1, (double)a->step), unbias_v = 1 - pow(a->beta2, (double)a->step);
    for (int64_t i = 0; i < a->n; i++) {
        double grad = (double)g[i] * *a->grad_scale;
        double first = a->beta1 * (double)m[i] + (1 - a->beta1) * grad;
        double second = a->beta2 * (double)v[i] + (1 - a->beta2) * grad * grad;
        double decayed = (double)p[i] * (1 - a->lr * a->weight_decay);
        p[i] = (real)(decayed - a->lr * (first / unbias_m) / (sqrt(second / unbias_v) + a->eps));
        m[i] = (real)first;
        v[i] = (real)second;
    }
}

void KERN_FN(sumsq_blocks)(struct kern_stream *s, int64_t n, int64_t block, const void *x, double *blocks)
{
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((const real *)x)[i];
        if (i % block == 0)
            blocks[i / block] = 0;
        blocks[i / block] += v * v;
    }
}

static double sum_of(int64_t n, const double *x)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

void KERN_FN(clip)(struct kern_stream *s, const struct kern_clip *c)
{
    double norm = sqrt(sum_of(c->n_blocks, c->blocks));
    *c->norm = norm;
    *c->factor = c->limit == 0 || norm <= c->limit ? 1 : c->limit / norm;
    if (!isfinite(norm) || !isfinite(sum_of(c->n_losses, c->losses)))
        *c->factor = NAN;
}

/* In this backend the wide type is `real` itself. */
void KERN_FN(cast)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = ((const real *)x)[i];
}
