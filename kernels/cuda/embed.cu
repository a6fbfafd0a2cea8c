/* Token and position embeddings.
 *
 * The gradient adds rows to the table rows that the ids select, without atomics. The tokens are sorted by (id, token):
 * runs of 512 by counting, then merged two by two, where every key finds its position by binary search. Keys are
 * distinct, so the sorted order is unique.
 *
 * The sorted tokens are cut into pieces of 16 whatever the ids are, and a block sums a piece, so an id that all tokens
 * share still occupies the whole GPU. A piece adds to the table the runs of equal ids that begin in it. The sum of a
 * run that began in an earlier piece goes to scratch memory, and a last launch adds these sums in order, for every run
 * that continued. So each row gets its own piece's sum of ascending tokens, then the sums of the following pieces,
 * always in the same order. Positions are ids with a known order (t % seq) and are processed the same way. */
#include "kernels/cuda/vec.h"

#include <assert.h>

#define MOST_THREADS 512
#define FOR_COLUMNS(j, d) for (int64_t j = (int64_t)threadIdx.x * VEC; j < (d); j += (int64_t)blockDim.x * VEC)

/* ---- forward ---- */

struct embed {
    int64_t t, d, seq, lo, hi;
    const int32_t *ids;
    const elem *table, *pos;
    elem *y;
};

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) embed_rows(struct embed a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        int64_t id = a.ids[i];
        bool here = id >= a.lo && id < a.hi;
        FOR_COLUMNS(j, a.d)
        {
            float x[VEC] = {}, p[VEC] = {};
            if (here)
                row_load<WHOLE>(a.table + (id - a.lo) * a.d, j, a.d, x);
            if (a.pos)
                row_load<WHOLE>(a.pos + i % a.seq * a.d, j, a.d, p);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                x[k] += p[k];
            row_store<WHOLE>(a.y + i * a.d, j, a.d, x);
        }
    }
}

/* Floor: 2 arrays of T d elements (rows of the table, y), and the positions. */
void KERN_FN(embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                    const int32_t *ids, const void *table, const void *pos, void *y)
{
    struct embed a = {t, d, seq, lo, hi, ids, (const elem *)table, (const elem *)pos, (elem *)y};
    const void *rows[] = {table, pos, y};
    int threads = row_threads(d, MOST_THREADS);
    if (vec_all_aligned(3, rows) && d % VEC == 0)
        CUDA_LAUNCH(s, embed_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, embed_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* ---- the order of the tokens ---- */

#define RUN 512           /* number of keys that a block sorts */
#define NOWHERE INT32_MAX /* id of tokens without a row in the table; their keys come last */

/* id in the upper half, token in the lower */
static __device__ __forceinline__ uint64_t key_of(int64_t id, int64_t token)
{
    return (uint64_t)id << 32 | (uint64_t)token;
}

static __device__ __forceinline__ int64_t key_id(uint64_t key)
{
    return (int64_t)(key >> 32);
}

static __device__ __forceinline__ int64_t key_token(uint64_t key)
{
    return (int64_t)(key & 0xffffffffu);
}

/* A key's position in its run is the number of smaller keys. */
static __global__ void __launch_bounds__(RUN)
    sort_runs(int64_t t, int64_t lo, int64_t hi, const int32_t *__restrict__ ids, uint64_t *__restrict__ keys)
{
    CUDA_SHARED(uint64_t[RUN], run);
    int64_t first = (int64_t)blockIdx.x * RUN, i = first + threadIdx.x;
    int64_t id = i < t ? ids[i] : 0;
    uint64_t key = i < t ? key_of(id >= lo && id < hi ? id - lo : NOWHERE, i) : UINT64_MAX;
    int place = 0;
    run[threadIdx.x] = key;
    __syncthreads();
    for (int k = 0; k < RUN; k++)
        place += run[k] < key;
    if (i < t)
        keys[first + place] = key;
}

/* The number of the n ascending keys that are smaller than `key`. */
static __device__ __forceinline__ int64_t keys_below(const uint64_t *keys, int64_t n, uint64_t key)
{
    int64_t lo = 0;
    while (n > 0) {
        int64_t half = n / 2;
        bool below = keys[lo + half] < key;
        lo += below ? half + 1 : 0;
        n = below ? n - half - 1 : half;
    }
    return lo;
}

/* Merges runs of `width` into runs of twice that: a key moves by the number of smaller keys in the neighbouring run. */
static __global__ void __launch_bounds__(SPAN_THREADS)
    merge_runs(int64_t t, int64_t width, const uint64_t *__restrict__ from, uint64_t *__restrict__ to)
{
    for (int64_t i = grid_index(); i < t; i += grid_threads()) {
        int64_t left = i / (2 * width) * 2 * width, right = min(left + width, t), end = min(left + 2 * width, t);
        bool is_left = i < right;
        int64_t before = keys_below(from + (is_left ? right : left), is_left ? end - right : right - left, from[i]);
        to[(is_left ? i : i - width) + before] = from[i];
    }
}

/* Returns the one of the two arrays that holds the sorted keys. */
static uint64_t *order_by_id(struct kern_stream *s, int64_t t, int64_t lo, int64_t hi, const int32_t *ids,
                             uint64_t *keys, uint64_t *other)
{
    CUDA_LAUNCH(s, sort_runs, (unsigned)((t + RUN - 1) / RUN), RUN, 0, t, lo, hi, ids, keys);
    for (int64_t width = RUN; width < t; width *= 2) {
        uint64_t *from = keys;
        CUDA_LAUNCH(s, merge_runs, grid_for(s, t, SPAN_THREADS), SPAN_THREADS, 0, t, width, from, other);
        keys = other;
        other = from;
    }
    return keys;
}

/* The first t % seq positions occur once more than the others. */
static __global__ void __launch_bounds__(SPAN_THREADS) order_positions(int64_t t, int64_t seq, uint64_t *keys)
{
    int64_t tokens = t / seq, longer = t % seq, split = longer * (tokens + 1);
    for (int64_t i = grid_index(); i < t; i += grid_threads()) {
        int64_t k = i < split ? i : i - split, each = i < split ? tokens + 1 : tokens;
        int64_t pos = (i < split ? 0 : longer) + k / each;
        keys[i] = key_of(pos, pos + k % each * seq);
    }
}

/* ---- the sums ---- */

#define PIECE 16

struct rows_add {
    int64_t t, d, pieces;
    const uint64_t *keys; /* [t], ascending */
    const elem *dy;
    float *partial; /* [pieces, d]: sum of the run that an earlier piece began */
    float *out;
};

template <bool WHOLE>
static __device__ __forceinline__ void row_add(float *row, int64_t j, int64_t d, const float (&x)[VEC])
{
    float sum[VEC];
    row_load<WHOLE>(row, j, d, sum);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum[k] += x[k];
    row_store<WHOLE>(row, j, d, sum);
}

/* Whether the keys at i - 1 and i have the same id. */
static __device__ __forceinline__ bool goes_on(const struct rows_add &a, int64_t i)
{
    return i > 0 && i < a.t && key_id(a.keys[i - 1]) == key_id(a.keys[i]);
}

/* Sums one run of columns of a piece. */
template <bool WHOLE>
static __device__ __forceinline__ void piece_sum(const struct rows_add &a, int64_t piece, int64_t j)
{
    int64_t begin = piece * PIECE, end = min(begin + PIECE, a.t);
    bool continued = goes_on(a, begin);
    float sum[VEC] = {};
    for (int64_t i = begin; i < end && key_id(a.keys[i]) != NOWHERE; i++) {
        float x[VEC];
        row_load<WHOLE>(a.dy + key_token(a.keys[i]) * a.d, j, a.d, x);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] += x[k];
        if (i + 1 < end && goes_on(a, i + 1))
            continue;
        if (continued)
            row_store<WHOLE>(a.partial + piece * a.d, j, a.d, sum);
        else
            row_add<WHOLE>(a.out + key_id(a.keys[i]) * a.d, j, a.d, sum);
        continued = false;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] = 0;
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) sum_pieces(struct rows_add a)
{
    for (int64_t i = blockIdx.x; i < a.pieces; i += gridDim.x)
        FOR_COLUMNS(j, a.d)
    piece_sum<WHOLE>(a, i, j);
}

/* The number of pieces after `piece` into which its last run extends; 0 if that run did not begin in `piece`. */
static __device__ __forceinline__ int64_t pieces_reached(const struct rows_add &a, int64_t piece)
{
    int64_t begin = piece * PIECE, end = begin + PIECE;
    if (!goes_on(a, end))
        return 0;
    int64_t id = key_id(a.keys[end]);
    if (id == NOWHERE)
        return 0;
    if (goes_on(a, begin) && key_id(a.keys[begin]) == id)
        return 0;
    return (keys_below(a.keys + end, a.t - end, key_of(id + 1, 0)) + PIECE - 1) / PIECE;
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) finish_pieces(struct rows_add a)
{
    for (int64_t i = blockIdx.x; i < a.pieces; i += gridDim.x) {
        int64_t reached = pieces_reached(a, i);
        if (reached == 0)
            continue;
        FOR_COLUMNS(j, a.d)
        {
            float sum[VEC] = {};
#pragma unroll 4
            for (int64_t p = i + 1; p <= i + reached; p++) {
                float x[VEC];
                row_load<WHOLE>(a.partial + p * a.d, j, a.d, x);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    sum[k] += x[k];
            }
            row_add<WHOLE>(a.out + key_id(a.keys[(i + 1) * PIECE]) * a.d, j, a.d, sum);
        }
    }
}

static void rows_add(struct kern_stream *s, const struct rows_add *a)
{
    const void *rows[] = {a->dy, a->partial, a->out};
    int threads = row_threads(a->d, MOST_THREADS);
    unsigned blocks = grid_blocks(s, a->pieces, threads);
    if (vec_all_aligned(3, rows) && a->d % VEC == 0) {
        CUDA_LAUNCH(s, sum_pieces<true>, blocks, threads, 0, *a);
        CUDA_LAUNCH(s, finish_pieces<true>, blocks, threads, 0, *a);
    } else {
        CUDA_LAUNCH(s, sum_pieces<false>, blocks, threads, 0, *a);
        CUDA_LAUNCH(s, finish_pieces<false>, blocks, threads, 0, *a);
    }
}

/* Floor: dy once, twice with positions, and the table rows of the tokens read and written in float32. The keys are 8
 * bytes per token and pass; there are 1 + log2(T / 512) passes. */
void KERN_FN(embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                         const int32_t *ids, const void *dy, void *d_table, void *d_pos)
{
    assert(t <= UINT32_MAX);
    int64_t pieces = (t + PIECE - 1) / PIECE;
    size_t keys_bytes = ((size_t)t * sizeof(uint64_t) + 255) / 256 * 256;
    char *scratch = (char *)cuda_scratch(s, 2 * keys_bytes + (size_t)(pieces * d) * sizeof(float));
    if (!scratch)
        return;
    uint64_t *keys = (uint64_t *)scratch, *other = (uint64_t *)(scratch + keys_bytes);
    struct rows_add a = {t, d, pieces, NULL, (const elem *)dy, (float *)(scratch + 2 * keys_bytes), (float *)d_table};
    a.keys = order_by_id(s, t, lo, hi, ids, keys, other);
    rows_add(s, &a);
    if (!d_pos)
        return;
    CUDA_LAUNCH(s, order_positions, grid_for(s, t, SPAN_THREADS), SPAN_THREADS, 0, t, seq, keys);
    a.keys = keys;
    a.out = (float *)d_pos;
    rows_add(s, &a);
}
