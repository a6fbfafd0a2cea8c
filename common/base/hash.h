/* A 64-bit hash of bytes, to check that memory has the expected content. It is not safe against deliberate collisions.
 * There are four lanes of eight bytes. Each word is mixed into its lane by an odd factor and a rotation, so a lane's
 * value is a bijection of each of its words: inputs that differ in only one word never have the same hash. Bytes may be
 * added in parts; all parts except the last must be multiples of 32 bytes. Pure. */
#ifndef DTD_COMMON_BASE_HASH_H
#define DTD_COMMON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct hash {
    uint64_t lane[4], bytes;
};

static inline void hash_init(struct hash *h)
{
    *h = (struct hash){{0x243f6a8885a308d3u, 0x13198a2e03707344u, 0xa4093822299f31d0u, 0x082efa98ec4e6c89u}, 0};
}

static inline uint64_t hash_turn(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    return x << 29 | x >> 35;
}

static inline void hash_add(struct hash *h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t word[4];
    h->bytes += bytes;
    for (; bytes >= sizeof(word); bytes -= sizeof(word), p += sizeof(word)) {
        memcpy(word, p, sizeof(word));
        for (int i = 0; i < 4; i++)
            h->lane[i] = hash_turn(h->lane[i] ^ word[i]);
    }
    if (!bytes)
        return;
    memset(word, 0, sizeof(word));
    memcpy(word, p, bytes);
    for (int i = 0; i < 4; i++)
        h->lane[i] = hash_turn(h->lane[i] ^ word[i]);
}

static inline uint64_t hash_end(const struct hash *h)
{
    uint64_t x = h->bytes;
    for (int i = 0; i < 4; i++) {
        x = hash_turn(x ^ h->lane[i]);
        x ^= x >> 32;
    }
    return x;
}

#endif
