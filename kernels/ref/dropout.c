/* Dropout, one element at a time. */
#include "common/base/rng.h"
#include "kernels/ref/ref.h"

#include <assert.h>

static uint32_t word_at(const struct kern_dropout *d, int64_t element)
{
    uint64_t quad = (uint64_t)element / 4;
    const uint32_t key[2] = {(uint32_t)d->seed, (uint32_t)(d->seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)d->step, (uint32_t)d->site};
    uint32_t word[4];
    rng_philox4x32(key, counter, word);
    return word[element % 4];
}

void KERN_FN(dropout)(struct kern_stream *s, const struct kern_dropout *d)
{
    assert(d->rate >= 0 && d->rate < 1);
    for (int64_t i = 0; i < d->t; i++)
        for (int64_t j = 0; j < d->n; j++) {
            uint32_t word = word_at(d, d->rows[i] * d->cols + d->col0 + j);
            double x = (double)((const real *)d->x)[i * d->n + j];
            ((real *)d->y)[i * d->n + j] = word >= KERN_DROPOUT_BOUND(d->rate) ? (real)(x / (1 - d->rate)) : 0;
        }
}
