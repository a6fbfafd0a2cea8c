/* The loops keep more independent sums than the longest pipeline needs (latency 4 x 2 ports = 8) and do not access
 * memory. */
#include "kernels/core_peak.h"

#include <math.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SUMS 16
#define ROUNDS 400000

/* Time of this thread only, so that other programs on a shared machine do not count. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef float (*fma_loop_fn)(float start, float factor);

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float fma_avx512(float start, float factor)
{
    __m512 sum[SUMS], a = _mm512_set1_ps(factor);
    float r = 0;
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps(start + (float)i);
    for (int round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] = _mm512_fmadd_ps(sum[i], a, a);
    }
    for (int i = 0; i < SUMS; i++)
        r += _mm512_reduce_add_ps(sum[i]);
    return r;
}

__attribute__((target("avx2,fma"))) static float fma_avx2(float start, float factor)
{
    enum { N = 12 }; /* sixteen vector registers hold no more sums */
    __m256 sum[N], a = _mm256_set1_ps(factor);
    float lane[8], r = 0;
    for (int i = 0; i < N; i++)
        sum[i] = _mm256_set1_ps(start + (float)i);
    for (int round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < N; i++) sum[i] = _mm256_fmadd_ps(sum[i], a, a);
    }
    for (int i = 0; i < N; i++) {
        _mm256_storeu_ps(lane, sum[i]);
        r += lane[0] + lane[7];
    }
    return r;
}
#endif

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) static float dot_avx512(float start, float factor)
{
    __m512 sum[SUMS];
    __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factor), _mm512_set1_ps(factor));
    float r = 0;
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps(start + (float)i);
    for (int round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
    }
    for (int i = 0; i < SUMS; i++)
        r += _mm512_reduce_add_ps(sum[i]);
    return r;
}
#endif

typedef float vec4 __attribute__((vector_size(16)));

static float fma_base(float start, float factor)
{
    enum { N = 12 };
    vec4 sum[N], a = factor - (vec4){0};
    float r = 0;
    for (int i = 0; i < N; i++)
        sum[i] = start + (float)i - (vec4){0};
    for (int round = 0; round < ROUNDS; round++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < N; i++) sum[i] = sum[i] * a + a;
    }
    for (int i = 0; i < N; i++)
        r += sum[i][0] + sum[i][3];
    return r;
}

/* Chooses the widest loop that this CPU supports, and returns the number of operations per call. */
static fma_loop_fn choose_loop(double *ret_flops)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        *ret_flops = 2.0 * 16 * SUMS * ROUNDS;
        return fma_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *ret_flops = 2.0 * 8 * 12 * ROUNDS;
        return fma_avx2;
    }
#endif
    *ret_flops = 2.0 * 4 * 12 * ROUNDS;
    return fma_base;
}

double kern_core_loop(void)
{
    double flops;
    fma_loop_fn loop = choose_loop(&flops);
    return isnan(loop(1, 0.5f)) ? 0 : flops; /* uses the sum; otherwise the compiler would remove the loop */
}

static double best_rate(fma_loop_fn loop, double flops, int tries)
{
    double best = 0;
    float sum = 0;
    for (int i = 0; i < tries; i++) {
        int64_t start = thread_ns();
        sum += loop((float)i, 0.5f);
        double rate = flops / (double)(thread_ns() - start) * 1e9;
        best = rate > best ? rate : best;
    }
    return isnan(sum) ? 0 : best; /* uses the sums; otherwise the compiler would remove the loop */
}

double kern_core_flops(enum dtype dtype, int tries)
{
    double flops;
#if defined(__x86_64__)
    if (dtype == DT_BF16 && __builtin_cpu_supports("avx512bf16"))
        return best_rate(dot_avx512, 4.0 * 16 * SUMS * ROUNDS, tries);
#endif
    fma_loop_fn loop = choose_loop(&flops);
    double rate = best_rate(loop, flops, tries);
    return dtype == DT_F64 ? rate / 2 : rate; /* a vector has half as many */
}
