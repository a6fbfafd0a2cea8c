/* Applies the functions of kernels/cpu/vmath.h to arrays; compiled once per instruction set like the kernels. */
#include "tests/kernels/vmath_probe.h"
#include "kernels/cpu/vmath.h"

#define PROBE_JOIN(isa) vmath_##isa
#define PROBE_NAME(isa) PROBE_JOIN(isa)

static void probe_exp(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += VF)
        v_store(y + i, v_exp(v_load(x + i)));
}

static void probe_exp_d(int64_t n, const double *x, double *y)
{
    for (int64_t i = 0; i < n; i += VD)
        v_store_d(y + i, v_exp_d(v_load_d(x + i)));
}

static void probe_sigmoid(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += VF)
        v_store(y + i, v_sigmoid(v_load(x + i)));
}

static void probe_tanh(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += VF)
        v_store(y + i, v_tanh(v_load(x + i)));
}

static void probe_sincos(int64_t n, const double *x, double *sine, double *cosine)
{
    for (int64_t i = 0; i < n; i += VD) {
        vd a, s, c;
        memcpy(&a, x + i, sizeof(a));
        v_sincos(a, &s, &c);
        memcpy(sine + i, &s, sizeof(s));
        memcpy(cosine + i, &c, sizeof(c));
    }
}

const struct vmath_probe PROBE_NAME(KERN_CPU_ISA) = {probe_exp, probe_exp_d, probe_sigmoid, probe_tanh, probe_sincos};
