/* A Feistel network is a bijection for any round function, so the permutation is correct by construction; the rounds
 * only make it look random. The two halves may differ by one bit, so the network covers exactly [0, 2^ceil(log2 n)).
 * Cycle walking, that is, applying the network until the value is below n, keeps the bijection on [0, n) and needs
 * fewer than two steps on average. A well-known sampler pads to an even number of bits instead and repeats an index at
 * n = 2^16 + 1. */
#include "common/data/data.h"

#include <assert.h>

#define ROUNDS 6 /* the statistical tests of test_sampler.c pass; part of the data order, so never change it */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Rounds alternate: the high half changes the low half, then the low half changes the high half. */
static uint64_t permute(uint64_t x, const uint64_t keys[ROUNDS], int low_bits, int high_bits)
{
    uint64_t low_mask = ((uint64_t)1 << low_bits) - 1, high_mask = ((uint64_t)1 << high_bits) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (int r = 0; r < ROUNDS; r += 2) {
        low ^= mix(high + keys[r]) & low_mask;
        high ^= mix(low + keys[r + 1]) & high_mask;
    }
    return high << low_bits | low;
}

int64_t data_sampler(uint64_t seed, int64_t n, int64_t position)
{
    assert(n > 0 && position >= 0);
    uint64_t pass = (uint64_t)(position / n), x = (uint64_t)(position % n), keys[ROUNDS];
    if (n == 1)
        return 0;
    int bits = 64 - __builtin_clzll((uint64_t)n - 1);
    uint64_t base = mix(seed + 0x9e3779b97f4a7c15u) ^ mix(pass + 0xd1b54a32d192ed03u);
    for (uint64_t r = 0; r < ROUNDS; r++)
        keys[r] = mix(base + (r + 1) * 0x9e3779b97f4a7c15u);
    do
        x = permute(x, keys, (bits + 1) / 2, bits / 2);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
