/* Philox 4x32-10 (Salmon et al. 2011; common/base/rng.h) for a vector of counters at a time. Private to kernels/cpu.
 *
 * A 64-bit lane holds one 32-bit word of a counter in its lower half. The content of the upper half does not matter,
 * because a product reads only lower halves. A round therefore takes two products, two shifts and four exclusive ors
 * for VD counters. */
#ifndef DTD_KERNELS_CPU_PHILOX_H
#define DTD_KERNELS_CPU_PHILOX_H

#include "kernels/cpu/simd.h"

typedef uint64_t vw __attribute__((vector_size(VD * 8))); /* the same word of VD counters */

#if VD == 8
static const vw lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
#elif VD == 4
static const vw lane_numbers = {0, 1, 2, 3};
#else
static const vw lane_numbers = {0, 1};
#endif

/* The full 64-bit products of the lower halves. */
static ALWAYS_INLINE vw mul_low(vw a, uint32_t b)
{
    vw factor = b - (vw){0};
#if defined(__AVX512F__)
    return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined(__AVX2__)
    return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__SSE2__)
    return (vw)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
    return (a & 0xffffffffu) * factor;
#endif
}

/* Replaces the four words of each counter by its random words, with the key `seed`. */
static ALWAYS_INLINE void v_philox(uint64_t seed, vw c[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        vw p0 = mul_low(c[0], 0xD2511F53u), p1 = mul_low(c[2], 0xCD9E8D57u);
        c[0] = (p1 >> 32) ^ c[1] ^ k0;
        c[2] = (p0 >> 32) ^ c[3] ^ k1;
        c[1] = p1;
        c[3] = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

#endif
