/* Elements of the table's dtype in memory, as vectors of float32 in registers. Private to kernels/cpu.
 *
 * Every file of cpu/ is compiled for float32 (KERN_CPU_BITS 32) and for bfloat16 (16). All arithmetic is in float32, as
 * in the CUDA module: a load widens, which is exact, and a store rounds to nearest even and keeps a NaN a NaN. The
 * processor's own conversion (VCVTNEPS2BF16) is not used, because it replaces subnormals by zero. */
#ifndef DTD_KERNELS_CPU_ELEM_H
#define DTD_KERNELS_CPU_ELEM_H

#include "kernels/cpu/simd.h"

#if KERN_CPU_BITS == 32

typedef float elem;

#define e_value(e) (e)
#define e_of(x) (x)
#define e_load v_load
#define e_load_n v_load_n
#define e_store v_store
#define e_store_n v_store_n
#define e_rounded(x) (x)

#elif KERN_CPU_BITS == 16

typedef uint16_t elem;
typedef uint16_t vq __attribute__((vector_size(VF * 2)));
typedef uint32_t vb __attribute__((vector_size(VF * 4)));

static ALWAYS_INLINE float e_value(elem e)
{
    uint32_t bits = (uint32_t)e << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static ALWAYS_INLINE elem e_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (x != x)
        return (elem)(bits >> 16 | 0x40);
    return (elem)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static ALWAYS_INLINE vf v_of_halves(vq x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16);
#else
    return (vf)(__builtin_convertvector(x, vb) << 16);
#endif
}

/* The rounded bits in the lower half of each lane. Adding half a unit, less one bit if the rest is even, rounds to
 * nearest even; the carry of the largest number gives infinity. */
static ALWAYS_INLINE vb v_half_bits(vf x)
{
    vb bits = (vb)x, nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = (vb)(x != x);
    return (nan & (bits >> 16 | 0x40)) | (~nan & nearest);
}

static ALWAYS_INLINE vq v_to_halves(vf x)
{
    vb bits = v_half_bits(x);
#if defined(__AVX512F__)
    return (vq)_mm512_cvtepi32_epi16((__m512i)bits);
#elif defined(__AVX2__)
    return (vq)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)bits), _mm256_extracti128_si256((__m256i)bits, 1));
#else
    return __builtin_convertvector(bits, vq);
#endif
}

static ALWAYS_INLINE vf e_load(const elem *p)
{
    vq x;
    memcpy(&x, p, sizeof(x));
    return v_of_halves(x);
}

static ALWAYS_INLINE void e_store(elem *p, vf x)
{
    vq y = v_to_halves(x);
    memcpy(p, &y, sizeof(y));
}

/* As v_load_n and v_store_n. */
static ALWAYS_INLINE vf e_load_n(const elem *p, int64_t n)
{
#if defined(__AVX512F__)
    return v_of_halves((vq)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
#else
    vq x = {0};
    memcpy(&x, p, (size_t)n * sizeof(*p));
    return v_of_halves(x);
#endif
}

static ALWAYS_INLINE void e_store_n(elem *p, vf x, int64_t n)
{
    vq y = v_to_halves(x);
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)y);
#else
    memcpy(p, &y, (size_t)n * sizeof(*p));
#endif
}

/* x as a store rounds it. */
static ALWAYS_INLINE vf e_rounded(vf x)
{
    return (vf)(v_half_bits(x) << 16);
}

#else
#error "KERN_CPU_BITS must be 32 or 16"
#endif

/* The vector at column j of a row of d elements, or the remaining elements of the row. */
static ALWAYS_INLINE vf e_load_part(const elem *p, int64_t j, int64_t d)
{
    return d - j >= VF ? e_load(p + j) : e_load_n(p + j, d - j);
}

static ALWAYS_INLINE void e_store_part(elem *p, int64_t j, int64_t d, vf x)
{
    if (d - j >= VF)
        e_store(p + j, x);
    else
        e_store_n(p + j, x, d - j);
}

static ALWAYS_INLINE vf v_load_part(const float *p, int64_t j, int64_t d)
{
    return d - j >= VF ? v_load(p + j) : v_load_n(p + j, d - j);
}

static ALWAYS_INLINE void v_store_part(float *p, int64_t j, int64_t d, vf x)
{
    if (d - j >= VF)
        v_store(p + j, x);
    else
        v_store_n(p + j, x, d - j);
}

/* to[0..n) = from[0..n) */
static ALWAYS_INLINE void e_widen_row(int64_t n, const elem *from, float *to)
{
    for (int64_t j = 0; j < n; j += VF)
        v_store_part(to, j, n, e_load_part(from, j, n));
}

static ALWAYS_INLINE void e_round_row(int64_t n, const float *from, elem *to)
{
    for (int64_t j = 0; j < n; j += VF)
        e_store_part(to, j, n, v_load_part(from, j, n));
}

#endif
