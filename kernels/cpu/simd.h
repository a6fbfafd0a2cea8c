/* Vectors of the widest size that a file is compiled for, as compiler vector types: one source for AVX-512, AVX2 and
 * all other instruction sets. Private to kernels/cpu.
 *
 * Nothing depends on alignment. A tail runs through the same functions as the body, in a partial vector whose other
 * lanes are zero, so an element's result does not depend on where a shard begins or ends. Fused multiply-adds are
 * explicit (v_fma) and never left to the compiler, which might fuse one copy of an expression and not another. */
#ifndef DTD_KERNELS_CPU_SIMD_H
#define DTD_KERNELS_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VF 16 /* floats in a vector */
#elif defined(__AVX2__)
#define VF 8
#else
#define VF 4
#endif
#define VD (VF / 2) /* doubles in a vector */

typedef float vf __attribute__((vector_size(VF * 4)));
typedef int32_t vi __attribute__((vector_size(VF * 4)));
typedef float vh __attribute__((vector_size(VD * 4))); /* half a vector; converts to a vd */
typedef double vd __attribute__((vector_size(VD * 8)));
typedef int64_t vl __attribute__((vector_size(VD * 8)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE vf v_set(float x)
{
    return x - (vf){0};
}

static ALWAYS_INLINE vd v_set_d(double x)
{
    return x - (vd){0};
}

static ALWAYS_INLINE vf v_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof(r));
    return r;
}

static ALWAYS_INLINE void v_store(float *p, vf x)
{
    memcpy(p, &x, sizeof(x));
}

static ALWAYS_INLINE vd v_load_d(const double *p)
{
    vd r;
    memcpy(&r, p, sizeof(r));
    return r;
}

static ALWAYS_INLINE void v_store_d(double *p, vd x)
{
    memcpy(p, &x, sizeof(x));
}

/* Loads the first n lanes, 0 <= n <= VF; the others are zero. */
static ALWAYS_INLINE vf v_load_n(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf r = {0};
    for (int64_t i = 0; i < VF; i++)
        r[i] = i < n ? p[i] : 0;
    return r;
#endif
}

static ALWAYS_INLINE void v_store_n(float *p, vf x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    for (int64_t i = 0; i < n; i++)
        p[i] = x[i];
#endif
}

/* a b + c, rounded once if the processor supports it */
static ALWAYS_INLINE vf v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static ALWAYS_INLINE vd v_fma_d(vd a, vd b, vd c)
{
#if defined(__AVX512F__)
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

static ALWAYS_INLINE vf v_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VF; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

static ALWAYS_INLINE vd v_sqrt_d(vd x)
{
#if defined(__AVX512F__)
    return (vd)_mm512_sqrt_pd((__m512d)x);
#elif defined(__AVX2__)
    return (vd)_mm256_sqrt_pd((__m256d)x);
#elif defined(__SSE2__)
    return (vd)_mm_sqrt_pd((__m128d)x);
#else
    for (int i = 0; i < VD; i++)
        x[i] = sqrt(x[i]);
    return x;
#endif
}

/* a in lanes where the mask (a comparison's result) is set, else b. */
static ALWAYS_INLINE vf v_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

static ALWAYS_INLINE vd v_select_d(vl mask, vd a, vd b)
{
    return (vd)((mask & (vl)a) | (~mask & (vl)b));
}

/* The larger or smaller value; b when either is a NaN. */
static ALWAYS_INLINE vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v_select(a > b, a, b);
#endif
}

static ALWAYS_INLINE vf v_min(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return v_select(a < b, a, b);
#endif
}

/* Prefetches the line that will be written a page from here: the hardware predicts reads but not writes (10 GB/s
 * without this, 17 with it). Prefetching unmapped pages is harmless. */
static ALWAYS_INLINE void v_expect_store(const float *p)
{
    __builtin_prefetch(p + 1024, 1);
}

/* Sum and maximum of the lanes, always along the same tree. */
static ALWAYS_INLINE float v_sum(vf x)
{
    float lane[VF];
    memcpy(lane, &x, sizeof(lane));
    for (int half = VF / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static ALWAYS_INLINE float v_largest(vf x)
{
    float lane[VF];
    memcpy(lane, &x, sizeof(lane));
    for (int half = VF / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

static ALWAYS_INLINE double v_sum_d(vd x)
{
    double lane[VD];
    memcpy(lane, &x, sizeof(lane));
    for (int half = VD / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* Converts both halves of a vector to doubles. (gcc 12 splits __builtin_convertvector into quarters.) */
static ALWAYS_INLINE void v_widen(vf x, vd *low, vd *high)
{
#if defined(__AVX512F__)
    *low = (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
    *high = (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
    *low = (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
    *high = (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#else
    vh half[2];
    memcpy(half, &x, sizeof(half));
    *low = __builtin_convertvector(half[0], vd);
    *high = __builtin_convertvector(half[1], vd);
#endif
}

/* Rounds both halves to one vector. */
static ALWAYS_INLINE vf v_narrow(vd low, vd high)
{
#if defined(__AVX512F__)
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low)), _mm512_cvtpd_ps((__m512d)high),
                                  1);
#elif defined(__AVX2__)
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)high), _mm256_cvtpd_ps((__m256d)low));
#else
    vf r;
    vh half[2] = {__builtin_convertvector(low, vh), __builtin_convertvector(high, vh)};
    memcpy(&r, half, sizeof(r));
    return r;
#endif
}

#endif
