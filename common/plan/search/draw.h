/* Random numbers of simulations, which need some 10^9 a second: xorshift64*, whose high bits are good (Marsaglia 2003,
 * Vigna 2016), and a shuffled table of the normal distribution's quantiles, of which a group of ranks reads a window at
 * a random place. The numbers that decide a job's bits come from common/base/rng.h instead. */
#ifndef DTD_COMMON_PLAN_SEARCH_DRAW_H
#define DTD_COMMON_PLAN_SEARCH_DRAW_H

#include <stdint.h>

#define DRAW_TABLE 32768 /* its tails end at 4.2 standard deviations */
#define DRAW_WINDOW 64

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

/* From 0 to less than 1. */
static inline double draw_share(uint64_t *state)
{
    return (double)(draw_bits(state) >> 11) * 0x1p-53;
}

/* The table, with its first window once more at its end. Its mean is 0, its variance 1. */
void draw_fill(float ret[DRAW_TABLE + DRAW_WINDOW]);

/* DRAW_WINDOW normal numbers, all different. */
static inline const float *draw_window(const float *table, uint64_t *state)
{
    return table + (draw_bits(state) >> 49);
}

#endif
