/* Random numbers of simulations, which need some 10^8 a second: xorshift64*, whose high bits are good (Marsaglia 2003,
 * Vigna 2016). What decides a job's bits comes from common/base/rng.h instead. */
#ifndef DTD_COMMON_PLAN_SEARCH_DRAW_H
#define DTD_COMMON_PLAN_SEARCH_DRAW_H

#include <stdint.h>

/* The state of a seed; never 0. */
static inline uint64_t draw_start(uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    return state ? state : 1;
}

static inline uint64_t draw_bits(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

#endif
