/* Element-wise functions. */
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void KERN_FN(swiglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    for (int64_t i = 0; i < n; i++) {
        double gate = (double)((const real *)a)[i], value = (double)((const real *)b)[i];
        ((real *)y)[i] = (real)(gate * sigmoid(gate) * value);
    }
}

void KERN_FN(swiglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                          void *db)
{
    for (int64_t i = 0; i < n; i++) {
        double gate = (double)((const real *)a)[i], value = (double)((const real *)b)[i];
        double g = (double)((const real *)dy)[i], k = sigmoid(gate);
        ((real *)da)[i] = (real)(g * value * k * (1 + gate * (1 - k)));
        ((real *)db)[i] = (real)(g * gate * k);
    }
}

/* tanh's argument in GPT-2's GELU: sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_SCALE 0.79788456080286535588
#define GELU_CUBIC 0.044715

double KERN_FN(gelu_of)(double x)
{
    return 0.5 * x * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x)));
}

double KERN_FN(gelu_slope)(double x)
{
    double th = tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x));
    return 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
}

void KERN_FN(gelu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = (real)KERN_FN(gelu_of)((double)((const real *)x)[i]);
}

void KERN_FN(gelu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)dx)[i] = (real)(KERN_FN(gelu_slope)((double)((const real *)x)[i]) * (double)((const real *)dy)[i]);
}

void KERN_FN(geglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = (real)(KERN_FN(gelu_of)((double)((const real *)a)[i]) * (double)((const real *)b)[i]);
}

void KERN_FN(geglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                         void *db)
{
    for (int64_t i = 0; i < n; i++) {
        double gate = (double)((const real *)a)[i], value = (double)((const real *)b)[i];
        double g = (double)((const real *)dy)[i];
        ((real *)da)[i] = (real)(g * value * KERN_FN(gelu_slope)(gate));
        ((real *)db)[i] = (real)(g * KERN_FN(gelu_of)(gate));
    }
}

/* The normal distribution; erfc keeps its digits where 1 + erf would lose them. */
static double normal_below(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

void KERN_FN(gelu_erf)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((const real *)x)[i];
        ((real *)y)[i] = (real)(v * normal_below(v));
    }
}

#define NORMAL_PEAK 0.39894228040143267794 /* 1 / sqrt(2 pi) */

void KERN_FN(gelu_erf_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((const real *)x)[i], slope = normal_below(v) + v * NORMAL_PEAK * exp(-0.5 * v * v);
        ((real *)dx)[i] = (real)(slope * (double)((const real *)dy)[i]);
    }
}

void KERN_FN(scale)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = (real)(c * (double)((const real *)x)[i]);
}

void KERN_FN(cap)(struct kern_stream *s, int64_t n, double c, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = (real)(c * tanh((double)((const real *)x)[i] / c));
}

void KERN_FN(cap_grad)(struct kern_stream *s, int64_t n, double c, const void *x, const void *dy, void *dx)
{
    for (int64_t i = 0; i < n; i++) {
        double k = 1 / cosh((double)((const real *)x)[i] / c); /* 1 - tanh^2 without its cancellation */
        ((real *)dx)[i] = (real)(k * k * (double)((const real *)dy)[i]);
    }
}

void KERN_FN(relu)(struct kern_stream *s, int64_t n, const void *x, void *y)
{
    const real *v = x;
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = v[i] <= 0 ? 0 : v[i]; /* a NaN is passed on */
}

void KERN_FN(relu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx)
{
    const real *v = x, *g = dy;
    for (int64_t i = 0; i < n; i++)
        ((real *)dx)[i] = v[i] <= 0 ? 0 : g[i];
}

void KERN_FN(add)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    for (int64_t i = 0; i < n; i++)
        ((real *)y)[i] = ((const real *)a)[i] + ((const real *)b)[i];
}
