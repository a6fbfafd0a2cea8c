/* Dropout by Philox4x32-10, a vector of counters at a time: VD counters give 4 VD elements. The four words of each
 * counter are interleaved into the order of the elements. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/philox.h"

#include <assert.h>

typedef uint32_t vu __attribute__((vector_size(VF * 4)));

#define GROUP (2 * VF) /* elements of VD counters */

/* Interleaves the 64-bit lanes of a and b: `low` from their first halves, `high` from their second halves. */
static ALWAYS_INLINE void interleave(vw a, vw b, vw *low, vw *high)
{
#if VD == 8
    *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif VD == 4
    *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
    *low = __builtin_shufflevector(a, b, 0, 2);
    *high = __builtin_shufflevector(a, b, 1, 3);
#endif
}

/* The words of GROUP elements, from element 4 quad on. */
static ALWAYS_INLINE void words_at(const struct kern_dropout *d, uint64_t quad, vu word[2])
{
    vw c[4] = {quad + lane_numbers, (quad + lane_numbers) >> 32, (uint32_t)d->step - (vw){0},
               (uint32_t)d->site - (vw){0}};
    vw low, high;
    v_philox(d->seed, c);
    interleave((c[0] & 0xffffffffu) | c[1] << 32, (c[2] & 0xffffffffu) | c[3] << 32, &low, &high);
    word[0] = (vu)low;
    word[1] = (vu)high;
}

struct dropout_args {
    struct kern_dropout d;
    uint32_t bound;
    float scale;
};

static ALWAYS_INLINE vf dropped(const struct dropout_args *a, vu word, vf x)
{
    return v_select((vi)(word >= a->bound), x * a->scale, (vf){0});
}

/* One vector of a row of n elements, from element `j` on; it may extend past either end of the row. */
static ALWAYS_INLINE void drop_vector(const struct dropout_args *a, vu word, int64_t j, int64_t n, const elem *x,
                                      elem *y)
{
    if (j >= 0 && j + VF <= n) {
        e_store(y + j, dropped(a, word, e_load(x + j)));
        return;
    }
    elem lane[VF] = {0};
    for (int64_t k = 0; k < VF; k++)
        if (j + k >= 0 && j + k < n)
            lane[k] = x[j + k];
    e_store(lane, dropped(a, word, e_load(lane)));
    for (int64_t k = 0; k < VF; k++)
        if (j + k >= 0 && j + k < n)
            y[j + k] = lane[k];
}

static void drop_row(const struct dropout_args *a, int64_t i)
{
    const struct kern_dropout *d = &a->d;
    int64_t first = d->rows[i] * d->cols + d->col0, lead = first % 4;
    const elem *x = (const elem *)d->x + i * d->n;
    elem *y = (elem *)d->y + i * d->n;
    for (int64_t j = -lead; j < d->n; j += GROUP) {
        vu word[2];
        words_at(d, (uint64_t)(first + j) / 4, word);
        drop_vector(a, word[0], j, d->n, x, y);
        if (j + VF < d->n)
            drop_vector(a, word[1], j + VF, d->n, x, y);
    }
}

static void drop_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        drop_row(arg, i);
}

void KERN_FN(dropout)(struct kern_stream *s, const struct kern_dropout *d)
{
    assert(d->rate >= 0 && d->rate < 1);
    struct dropout_args a = {*d, KERN_DROPOUT_BOUND(d->rate), (float)(1 / (1 - d->rate))};
    kern_stream_run(s, d->t, 1 + 4096 / (d->n + 1), drop_rows, &a);
}
