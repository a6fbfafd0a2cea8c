/* The vector functions of one instruction set, callable from a test. n is a multiple of 16. */
#ifndef DTD_TESTS_KERNELS_VMATH_PROBE_H
#define DTD_TESTS_KERNELS_VMATH_PROBE_H

#include <stdint.h>

struct vmath_probe {
    void (*exp)(int64_t n, const float *x, float *y);
    void (*exp_d)(int64_t n, const double *x, double *y);
    void (*sigmoid)(int64_t n, const float *x, float *y);
    void (*tanh)(int64_t n, const float *x, float *y);
    void (*sincos)(int64_t n, const double *x, double *sine, double *cosine);
};

extern const struct vmath_probe vmath_base, vmath_avx2, vmath_avx512;

#endif
