/* Normal numbers, by the stream's threads. The elements of all rows form one range that the threads share; a thread
 * finds its first row by division and then proceeds row by row.
 *
 * A number is one long chain of dependent operations, longer than the processor can look ahead. So a batch of vectors
 * goes through the chain in three loops, each with an iteration short enough that several of them run at once. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/philox.h"

#define GRAIN 4096 /* elements: 20 us of one thread, well above the cost of waking another */

#define NORMAL_FN static ALWAYS_INLINE
#define NORMAL_NAME(name) v_normal_##name
#define NORMAL_REAL vd
#define NORMAL_WORD vw
#define NORMAL_ADD(a, b) ((a) + (b))
#define NORMAL_SUB(a, b) ((a) - (b))
#define NORMAL_MUL(a, b) ((a) * (b))
#define NORMAL_DIV(a, b) ((a) / (b))
#define NORMAL_SQRT(a) v_sqrt_d(a)
#define NORMAL_BITS(real) ((vw)(real))
#define NORMAL_FROM_BITS(word) ((vd)(word))
#include "common/base/normal.h"

#define BATCH 16 /* vectors: their words fill an eighth of a first-level cache */

/* The random words of VD elements from `position` on. */
static ALWAYS_INLINE void words_at(const struct kern_normal *k, uint64_t position, vw ret[4])
{
    const vw word = (vw){0} + 0xffffffffu;
    vw c[4] = {position + lane_numbers, (position + lane_numbers) >> 32, k->stream - (vw){0},
               (k->stream >> 32) - (vw){0}};
    v_philox(k->seed, c);
    for (int i = 0; i < 4; i++)
        ret[i] = c[i] & word;
}

/* VD numbers from `position` on. */
static ALWAYS_INLINE vd numbers_at(const struct kern_normal *k, uint64_t position)
{
    vw c[4];
    words_at(k, position, c);
    return v_normal_of_words(c[0], c[1], c[2], c[3]) * k->std + k->mean;
}

static void fill_batch(const struct kern_normal *k, uint64_t position, float *y)
{
    vw words[BATCH][4];
    vd radius[BATCH], number[BATCH];
    for (int i = 0; i < BATCH; i++)
        words_at(k, position + (uint64_t)i * VD, words[i]);
    for (int i = 0; i < BATCH; i++)
        radius[i] = v_normal_radius(words[i][0], words[i][1]);
    for (int i = 0; i < BATCH; i++)
        number[i] = radius[i] * v_normal_direction(words[i][2], words[i][3]) * k->std + k->mean;
    for (int i = 0; i < BATCH; i += 2)
        v_store(y + i * VD, v_narrow(number[i], number[i + 1]));
}

static ALWAYS_INLINE vf values_at(const struct kern_normal *k, uint64_t position)
{
    return v_narrow(numbers_at(k, position), numbers_at(k, position + VD));
}

/* Fills contiguous elements of one row, from `position` on. */
static void fill_run(const struct kern_normal *k, uint64_t position, int64_t n, float *y)
{
    int64_t j = 0;
    for (; j + BATCH * VD <= n; j += BATCH * VD)
        fill_batch(k, position + (uint64_t)j, y + j);
    for (; j + VF <= n; j += VF)
        v_store(y + j, values_at(k, position + (uint64_t)j));
    if (j < n)
        v_store_n(y + j, values_at(k, position + (uint64_t)j), n - j);
}

static void fill_range(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_normal *k = arg;
    int64_t i = lo / k->n, j = lo % k->n;
    for (int64_t run; lo < hi; lo += run, i++, j = 0) {
        run = k->n - j < hi - lo ? k->n - j : hi - lo;
        fill_run(k, k->first + (uint64_t)(i * k->cols + j), run, (float *)k->y + i * k->stride + j);
    }
}

void KERN_FN(normal)(struct kern_stream *s, const struct kern_normal *k)
{
    struct kern_normal own = *k;
    kern_stream_run(s, k->rows * k->n, GRAIN, fill_range, &own);
}
