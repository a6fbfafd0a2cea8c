/* Sinusoidal positions. */
#include "kernels/ref/ref.h"

#include <math.h>

void KERN_FN(positions)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *rows, const void *x,
                        void *y)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < d; j++) {
            double angle = (double)(rows[i] % seq) * pow(KERN_POSITIONS_BASE, -(double)(j - j % 2) / (double)d);
            double at = j % 2 ? cos(angle) : sin(angle);
            ((real *)y)[i * d + j] = (real)((double)((const real *)x)[i * d + j] + at);
        }
}
