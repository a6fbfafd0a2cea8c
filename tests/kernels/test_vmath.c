/* Checks the bounds stated in kernels/cpu/vmath.h over the whole range, on every instruction set of this processor. */
#include "kernels/variants.h"
#include "tests/kernels/vmath_probe.h"
#include "tests/lib/test.h"

#include <math.h>

enum { N = 4096 };

/* Calls fn for every instruction set. */
static void each_isa(void (*fn)(const struct vmath_probe *p, const char *isa))
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++) {
#ifdef KERN_CPU_X86
        if (strcmp(isa, "avx512") == 0)
            fn(&vmath_avx512, isa);
        if (strcmp(isa, "avx2") == 0)
            fn(&vmath_avx2, isa);
#endif
        if (strcmp(isa, "base") == 0)
            fn(&vmath_base, isa);
    }
}

/* The distance in units in the last place of the float32 nearest to `want`. */
static double ulps(float got, double want)
{
    float at = fabsf((float)want);
    return fabs((double)got - want) / ((double)nextafterf(at, INFINITY) - (double)at);
}

/* The largest distance over [lo, hi] in steps of a few thousand float32 values. */
static double worst(void (*fn)(int64_t, const float *, float *), double (*exact)(double), float lo, float hi)
{
    float x[N], y[N];
    double most = 0;
    for (int64_t run = 0; run < 256; run++) {
        for (int64_t i = 0; i < N; i++)
            x[i] = lo + (hi - lo) * (float)((double)(run * N + i) / (256.0 * N));
        fn(N, x, y);
        for (int64_t i = 0; i < N; i++)
            most = fmax(most, ulps(y[i], exact((double)x[i])));
    }
    return most;
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

static void check_bound(const char *isa, const char *what, double got, double bound)
{
    print_message("%s %s: %.3g\n", isa, what, got);
    if (!(got <= bound))
        fail_msg("%s %s has an error of %.3g, bound %.3g", isa, what, got, bound);
}

static void check_exp(const struct vmath_probe *p, const char *isa)
{
    check_bound(isa, "exp ulp", worst(p->exp, exp, -85.9f, 88.7f), 1.5);
    check_bound(isa, "exp ulp near 0", worst(p->exp, exp, -1, 1), 1.5);
    float x[16] = {-INFINITY, INFINITY, NAN, 0, -0.0f, -86.1f, -1000, 88.7f, 88.8f, 1000}, y[16];
    p->exp(16, x, y);
    assert_true(y[0] == 0 && isinf(y[1]) && isnan(y[2]) && y[3] == 1 && y[4] == 1 && y[5] == 0 && y[6] == 0);
    assert_true(isfinite(y[7]) && isinf(y[8]) && isinf(y[9]));
}

static void check_sigmoid(const struct vmath_probe *p, const char *isa)
{
    check_bound(isa, "sigmoid ulp", worst(p->sigmoid, logistic, -80, 80), 3);
    check_bound(isa, "sigmoid ulp near 0", worst(p->sigmoid, logistic, -4, 4), 3);
    float x[16] = {-INFINITY, INFINITY, NAN, 0, -200, 200}, y[16];
    p->sigmoid(16, x, y);
    assert_true(y[0] < 5e-38f && y[1] == 1 && isnan(y[2]) && y[3] == 0.5f && y[4] < 5e-38f && y[5] == 1);
}

static void check_tanh(const struct vmath_probe *p, const char *isa)
{
    check_bound(isa, "tanh ulp", worst(p->tanh, tanh, -12, 12), 4);
    check_bound(isa, "tanh ulp near 0", worst(p->tanh, tanh, -0.7, 0.7), 4);
    float x[16] = {-INFINITY, INFINITY, NAN, 0, -200, 200, 1e-20f}, y[16];
    p->tanh(16, x, y);
    assert_true(y[0] == -1 && y[1] == 1 && isnan(y[2]) && y[3] == 0 && y[4] == -1 && y[5] == 1 && y[6] == 1e-20f);
}

static void check_sincos(const struct vmath_probe *p, const char *isa)
{
    double x[N], s[N], c[N], most = 0;
    for (int run = 0; run < 40; run++) {
        for (int i = 0; i < N; i++)
            x[i] = ldexp((double)i / N - 0.3, run / 2);
        p->sincos(N, x, s, c);
        for (int i = 0; i < N; i++)
            most = fmax(most, fmax(fabs(s[i] - sin(x[i])), fabs(c[i] - cos(x[i]))));
    }
    check_bound(isa, "sincos", most, 1e-11);
}

static void check_exp_d(const struct vmath_probe *p, const char *isa)
{
    double x[N], y[N], most = 0;
    for (int run = 0; run < 64; run++) {
        for (int i = 0; i < N; i++)
            x[i] = run % 2 ? -1 + 2.0 * i / N : -707.9 + 1417 * ((double)i + run / 64.0) / N;
        p->exp_d(N, x, y);
        for (int i = 0; i < N; i++) {
            double want = exp(x[i]);
            most = fmax(most, fabs(y[i] - want) / (nextafter(want, INFINITY) - want));
        }
    }
    check_bound(isa, "float64 exp ulp", most, 2);
    double edge[16] = {-INFINITY, INFINITY, NAN, 0, -709, 709.7, 709.8, 1e9};
    p->exp_d(16, edge, y);
    assert_true(y[0] == 0 && isinf(y[1]) && isnan(y[2]) && y[3] == 1 && y[4] == 0);
    assert_true(isfinite(y[5]) && isinf(y[6]) && isinf(y[7]));
}

TEST(float64_exp_is_within_its_bound)
{
    each_isa(check_exp_d);
}

TEST(exp_is_within_its_bound)
{
    each_isa(check_exp);
}

TEST(sigmoid_is_within_its_bound)
{
    each_isa(check_sigmoid);
}

TEST(tanh_is_within_its_bound)
{
    each_isa(check_tanh);
}

TEST(sincos_is_within_its_bound)
{
    each_isa(check_sincos);
}
