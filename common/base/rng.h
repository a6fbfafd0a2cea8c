/* Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11). A number is a function of the seed,
 * a stream (the hash of a tensor's name, or a purpose) and a position in global coordinates; never of a rank or of the
 * number of earlier calls. Pure; any thread. */
#ifndef DTD_COMMON_BASE_RNG_H
#define DTD_COMMON_BASE_RNG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline void rng_philox4x32(const uint32_t key[2], const uint32_t ctr[4], uint32_t ret[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

/* FNV-1a, 64 bits: the stream of a name. */
static inline uint64_t rng_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 0x100000001b3u;
    return h;
}

/* The 128 bits at (seed, stream, position). */
static inline void rng_at(uint64_t seed, uint64_t stream, uint64_t position, uint32_t ret[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t ctr[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)stream,
                             (uint32_t)(stream >> 32)};
    rng_philox4x32(key, ctr, ret);
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_uniform(uint64_t seed, uint64_t stream, uint64_t position)
{
    uint32_t r[4];
    rng_at(seed, stream, position, r);
    return (double)((((uint64_t)r[0] << 32) | r[1]) >> 11) * 0x1p-53;
}

static inline uint64_t rng_normal_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline double rng_normal_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

#define NORMAL_FN static inline
#define NORMAL_NAME(name) rng_normal_##name
#define NORMAL_REAL double
#define NORMAL_WORD uint64_t
#define NORMAL_ADD(a, b) ((a) + (b))
#define NORMAL_SUB(a, b) ((a) - (b))
#define NORMAL_MUL(a, b) ((a) * (b))
#define NORMAL_DIV(a, b) ((a) / (b))
#define NORMAL_SQRT(a) sqrt(a)
#define NORMAL_BITS(real) rng_normal_bits(real)
#define NORMAL_FROM_BITS(word) rng_normal_from_bits(word)
#include "common/base/normal.h"

/* Standard normal, one value per position. Other programs compute the same bits with vectors or on a GPU. */
static inline double rng_normal(uint64_t seed, uint64_t stream, uint64_t position)
{
    uint32_t r[4];
    rng_at(seed, stream, position, r);
    return rng_normal_of_words(r[0], r[1], r[2], r[3]);
}

#endif
