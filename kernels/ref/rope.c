/* Rotary positions. */
#include "kernels/ref/ref.h"

#include <assert.h>
#include <math.h>

void KERN_FN(rope)(struct kern_stream *s, int64_t t, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                   int64_t stride, const struct kern_rope *rope, bool inverse, void *x)
{
    assert(2 * rope->pairs <= head_dim && stride >= heads * head_dim);
    for (int64_t i = 0; i < t; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = 0; j < 2 * rope->pairs; j += 2) {
                double angle = (double)(pos0 + i % seq) * rope->frequency[j / 2];
                double c = rope->factor * cos(angle), sn = rope->factor * (inverse ? -sin(angle) : sin(angle));
                real *p = (real *)x + i * stride + h * head_dim + j;
                double even = (double)p[0], odd = (double)p[1];
                p[0] = (real)(even * c - odd * sn);
                p[1] = (real)(even * sn + odd * c);
            }
}
