/* Root-mean-square norm (Zhang and Sennrich 2019) and layer norm (Ba et al. 2016), preceded by the residual sum.
 *
 * With h = (r - mean) * rstd (mean 0 for the former) and g = dy * w, the input's gradient is
 * rstd * (g - [mean(g)] - h * mean(g h)); the term in brackets applies only to layer norm. */
#include "kernels/ref/ref.h"

#include <math.h>

static const real *residual_sum(int64_t d, const real *x, const real *res, real *r)
{
    if (!res)
        return x;
    for (int64_t j = 0; j < d; j++)
        r[j] = x[j] + res[j];
    return r;
}

static double mean_of(int64_t d, const real *x)
{
    double sum = 0;
    for (int64_t j = 0; j < d; j++)
        sum += (double)x[j];
    return sum / (double)d;
}

static double reciprocal_deviation(int64_t d, const real *x, double mean, double eps)
{
    double sum = 0;
    for (int64_t j = 0; j < d; j++)
        sum += ((double)x[j] - mean) * ((double)x[j] - mean);
    return 1 / sqrt(sum / (double)d + eps);
}

void KERN_FN(rmsnorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, bool plus_one, const void *x,
                      const void *res, const void *w, void *r, void *y, void *rstd)
{
    const double one = plus_one ? 1 : 0;
    for (int64_t i = 0; i < t; i++) {
        const real *row = residual_sum(d, (const real *)x + i * d, res ? (const real *)res + i * d : NULL,
                                       res ? (real *)r + i * d : NULL);
        double k = reciprocal_deviation(d, row, 0, eps);
        for (int64_t j = 0; j < d; j++)
            ((real *)y)[i * d + j] = (real)((double)row[j] * k * (one + (double)((const real *)w)[j]));
        ((real *)rstd)[i] = (real)k;
    }
}

void KERN_FN(layernorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, const void *x, const void *res,
                        const void *w, const void *b, void *r, void *y, void *mean, void *rstd)
{
    for (int64_t i = 0; i < t; i++) {
        const real *row = residual_sum(d, (const real *)x + i * d, res ? (const real *)res + i * d : NULL,
                                       res ? (real *)r + i * d : NULL);
        double m = mean_of(d, row), k = reciprocal_deviation(d, row, m, eps);
        for (int64_t j = 0; j < d; j++)
            ((real *)y)[i * d + j] =
                (real)(((double)row[j] - m) * k * (double)((const real *)w)[j] + (double)((const real *)b)[j]);
        ((real *)mean)[i] = (real)m;
        ((real *)rstd)[i] = (real)k;
    }
}

/* One row of the gradient; `centered` for layer norm; factors are one + w. `d_res` may be NULL. */
static void input_grad(int64_t d, bool centered, const real *x, double one, const real *w, double mean, double rstd,
                       const real *dy, const real *d_res, real *dx)
{
    double sum_g = 0, sum_gh = 0;
    for (int64_t j = 0; j < d; j++) {
        double g = (double)dy[j] * (one + (double)w[j]);
        sum_g += centered ? g : 0;
        sum_gh += g * ((double)x[j] - mean) * rstd;
    }
    for (int64_t j = 0; j < d; j++) {
        double g = (double)dy[j] * (one + (double)w[j]), h = ((double)x[j] - mean) * rstd;
        dx[j] = (real)(rstd * (g - sum_g / (double)d - h * (sum_gh / (double)d)) + (d_res ? (double)d_res[j] : 0));
    }
}

static void weight_grad(int64_t t, int64_t d, const real *x, const real *mean, const real *rstd, const real *dy,
                        real *dw, real *db)
{
    for (int64_t j = 0; j < d; j++) {
        double sum_w = 0, sum_b = 0;
        for (int64_t i = 0; i < t; i++) {
            sum_w += (double)dy[i * d + j] * ((double)x[i * d + j] - (mean ? (double)mean[i] : 0)) * (double)rstd[i];
            sum_b += (double)dy[i * d + j];
        }
        dw[j] = (real)((double)dw[j] + sum_w);
        if (db)
            db[j] = (real)((double)db[j] + sum_b);
    }
}

void KERN_FN(rmsnorm_grad)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *x, const void *w,
                           const void *rstd, const void *dy, const void *d_res, void *dx, void *dw)
{
    weight_grad(t, d, x, NULL, rstd, dy, dw, NULL);
    for (int64_t i = 0; i < t; i++)
        input_grad(d, false, (const real *)x + i * d, plus_one ? 1 : 0, w, 0, (double)((const real *)rstd)[i],
                   (const real *)dy + i * d, d_res ? (const real *)d_res + i * d : NULL, (real *)dx + i * d);
}

void KERN_FN(row_dots)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *a, const void *b,
                       const void *w, double *sums)
{
    const double one = plus_one ? 1 : 0;
    for (int64_t i = 0; i < t; i++) {
        sums[i] = 0;
        for (int64_t j = 0; j < d; j++) {
            double factor = w ? one + (double)((const real *)w)[j] : 1;
            sums[i] += (double)((const real *)a)[i * d + j] * (double)((const real *)b)[i * d + j] * factor;
        }
    }
}

void KERN_FN(rmsnorm_part)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, double eps, bool plus_one,
                           const void *x, const void *w, const double *sums, void *y, void *rstd)
{
    const double one = plus_one ? 1 : 0;
    for (int64_t i = 0; i < t; i++) {
        double k = 1 / sqrt(sums[i] / (double)whole + eps);
        for (int64_t j = 0; j < d; j++)
            ((real *)y)[i * d + j] =
                (real)((double)((const real *)x)[i * d + j] * k * (one + (double)((const real *)w)[j]));
        ((real *)rstd)[i] = (real)k;
    }
}

void KERN_FN(rmsnorm_part_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, bool plus_one,
                                const void *x, const void *w, const void *rstd, const double *sums, const void *dy,
                                void *dx, void *dw)
{
    const double one = plus_one ? 1 : 0;
    weight_grad(t, d, x, NULL, rstd, dy, dw, NULL);
    for (int64_t i = 0; i < t; i++) {
        double k = (double)((const real *)rstd)[i], mean = sums ? sums[i] * k / (double)whole : 0;
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            double g = (double)((const real *)dy)[j] * (one + (double)((const real *)w)[j - i * d]);
            ((real *)dx)[j] = (real)(k * (g - (double)((const real *)x)[j] * k * mean));
        }
    }
}

void KERN_FN(layernorm_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *w,
                             const void *mean, const void *rstd, const void *dy, const void *d_res, void *dx, void *dw,
                             void *db)
{
    weight_grad(t, d, x, mean, rstd, dy, dw, db);
    for (int64_t i = 0; i < t; i++)
        input_grad(d, true, (const real *)x + i * d, 0, w, (double)((const real *)mean)[i],
                   (double)((const real *)rstd)[i], (const real *)dy + i * d,
                   d_res ? (const real *)d_res + i * d : NULL, (real *)dx + i * d);
}
