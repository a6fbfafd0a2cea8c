#include "common/plan/search/draw.h"

#include <math.h>

#define STEPS 8 /* of Newton's method; from one quantile to the next it needs fewer */

/* The distribution function is concave above 0, so Newton's method comes from below and never goes too far. */
static double quantile_after(double z, double p)
{
    for (int i = 0; i < STEPS; i++)
        z -= (1 - 0.5 * erfc(z / sqrt(2)) - p) / (exp(-z * z / 2) / sqrt(2 * M_PI));
    return z;
}

void draw_fill(float ret[DRAW_TABLE + DRAW_WINDOW])
{
    const int half = DRAW_TABLE / 2;
    double z = 0, squares = 0;
    uint64_t state = draw_start(0);
    for (int i = 0; i < half; i++) {
        z = quantile_after(z, 0.5 + (i + 0.5) / DRAW_TABLE);
        ret[i] = (float)z;
        squares += 2 * z * z;
    }
    for (int i = 0; i < half; i++) {
        ret[i] *= (float)sqrt(DRAW_TABLE / squares);
        ret[half + i] = -ret[i];
    }
    for (int i = DRAW_TABLE - 1; i > 0; i--) {
        const int other = (int)(draw_share(&state) * (i + 1));
        const float swap = ret[i];
        ret[i] = ret[other];
        ret[other] = swap;
    }
    for (int i = 0; i < DRAW_WINDOW; i++)
        ret[DRAW_TABLE + i] = ret[i];
}
