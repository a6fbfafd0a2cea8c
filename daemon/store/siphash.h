/* SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF"). A client that does not know the seed cannot
 * choose keys that collide. Pure. */
#ifndef DTD_DAEMON_STORE_SIPHASH_H
#define DTD_DAEMON_STORE_SIPHASH_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t siphash_turn(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = siphash_turn(v[1], 13) ^ v[0];
    v[3] = siphash_turn(v[3], 16) ^ v[2];
    v[0] = siphash_turn(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = siphash_turn(v[3], 21) ^ v[0];
    v[1] = siphash_turn(v[1], 17) ^ v[2];
    v[2] = siphash_turn(v[2], 32);
}

static inline void siphash_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    siphash_round(v);
    v[0] ^= word;
}

static inline uint64_t siphash(const uint64_t seed[2], const uint8_t *p, size_t len)
{
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du, seed[0] ^ 0x6c7967656e657261u,
                     seed[1] ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)len << 56;
    for (; len >= sizeof(word); p += sizeof(word), len -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        siphash_word(v, le64toh(word));
    }
    for (size_t i = 0; i < len; i++)
        last |= (uint64_t)p[i] << (8 * i);
    siphash_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
