/* Experts with a capacity; the numbers of choices and the search for the least one that is kept are those of
 * cpu/drop.c. A block searches for one expert of one sample; it reads the choices of the sample once for each bit if
 * the expert has more of them than it keeps, else once. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <math.h>

#define SEARCH_THREADS 256
#define CHOICE_THREADS 256
#define COUNT_THREADS 1024 /* one block counts what was dropped */

static __host__ __device__ __forceinline__ int64_t sample_size(const struct kern_drop &d)
{
    return (d.by_weight ? 2 : 1) * d.seq * d.k;
}

/* Ascending with x; NaN is the largest. */
static __device__ __forceinline__ unsigned weight_key(float x)
{
    unsigned bits = __float_as_uint(x == 0 ? 0 : x); /* -0 and 0 are equal */
    return x != x ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The number of choice `at` of a sample. */
static __device__ __forceinline__ uint64_t number_of(const struct kern_drop &d, const double *sample, int64_t at)
{
    const uint64_t behind = (uint64_t)(d.seq - 1 - at / d.k);
    return d.by_weight ? (uint64_t)weight_key((float)sample[d.seq * d.k + at]) << 32 | behind : behind;
}

/* The number of choices of expert e with a number of at least `least`, in all threads. */
static __device__ int reaching(const struct kern_drop &d, const double *sample, int e, uint64_t least)
{
    int n = 0;
    for (int64_t at = threadIdx.x; at < d.seq * d.k; at += blockDim.x)
        n += (int)sample[at] == e + 1 && number_of(d, sample, at) >= least;
    return block_sum(n);
}

/* least[sets, experts] */
static __global__ void __launch_bounds__(SEARCH_THREADS) find_least(struct kern_drop d, uint64_t *least)
{
    const int e = (int)blockIdx.x;
    const double *sample = d.table + blockIdx.y * sample_size(d);
    const bool all = reaching(d, sample, e, 0) <= d.capacity;
    uint64_t found = 0;
    for (int bit = d.by_weight ? 63 : 31; bit >= 0 && !all; bit--) {
        const uint64_t one = (uint64_t)1 << bit;
        if (bit < 32 && one > (uint64_t)d.seq)
            continue; /* no number has this bit */
        if (reaching(d, sample, e, found | one) >= d.capacity)
            found |= one;
    }
    if (threadIdx.x == 0)
        least[blockIdx.y * d.experts + e] = found;
}

static __global__ void __launch_bounds__(CHOICE_THREADS) keep_choices(struct kern_drop d, const uint64_t *least)
{
    const int64_t i = grid_index();
    if (i >= d.t * d.k)
        return;
    const int64_t at = d.rows[i / d.k] - d.set0 * d.seq, set = at / d.seq;
    const double *sample = d.table + set * sample_size(d);
    const bool kept = number_of(d, sample, at % d.seq * d.k + i % d.k) >= least[set * d.experts + d.ids[i]];
    d.kept[i] = kept ? d.ids[i] : -1;
}

static __global__ void __launch_bounds__(COUNT_THREADS) count_dropped(struct kern_drop d)
{
    int n = 0;
    for (int64_t i = threadIdx.x; i < d.t * d.k; i += COUNT_THREADS)
        n += d.kept[i] < 0;
    n = block_sum(n);
    if (threadIdx.x == 0)
        *d.dropped += n;
}

static unsigned choice_blocks(int64_t n)
{
    return (unsigned)((n + CHOICE_THREADS - 1) / CHOICE_THREADS);
}

/* Floor: the table once. */
err_t KERN_FN(drop)(struct kern_stream *s, const struct kern_drop *d)
{
    if (d->t == 0)
        return OK;
    uint64_t *least = (uint64_t *)cuda_scratch(s, (size_t)(d->sets * d->experts) * sizeof(*least));
    if (!least)
        return OK; /* the stream has the error */
    dim3 searches((unsigned)d->experts, (unsigned)d->sets);
    CUDA_LAUNCH(s, find_least, searches, SEARCH_THREADS, 0, *d, least);
    CUDA_LAUNCH(s, keep_choices, choice_blocks(d->t * d->k), CHOICE_THREADS, 0, *d, (const uint64_t *)least);
    if (d->dropped)
        CUDA_LAUNCH(s, count_dropped, 1, COUNT_THREADS, 0, *d);
    return OK;
}

/* ---- the table ---- */

static __global__ void __launch_bounds__(CHOICE_THREADS) clear_table(int64_t n, double *table)
{
    const int64_t i = grid_index();
    if (i < n)
        table[i] = 0;
}

static __global__ void __launch_bounds__(CHOICE_THREADS) write_choices(struct kern_drop d)
{
    const int64_t i = grid_index();
    if (i >= d.t * d.k)
        return;
    const int64_t at = d.rows[i / d.k] - d.set0 * d.seq;
    double *to = d.table + at / d.seq * sample_size(d) + at % d.seq * d.k + i % d.k;
    to[0] = d.ids[i] + 1;
    if (d.by_weight)
        to[d.seq * d.k] = (double)((const float *)d.weights)[i];
}

/* Floor: the table once. */
void KERN_FN(choices)(struct kern_stream *s, const struct kern_drop *d)
{
    const int64_t n = d->sets * sample_size(*d);
    if (n > 0)
        CUDA_LAUNCH(s, clear_table, choice_blocks(n), CHOICE_THREADS, 0, n, d->table);
    if (d->t > 0)
        CUDA_LAUNCH(s, write_choices, choice_blocks(d->t * d->k), CHOICE_THREADS, 0, *d);
}
