/* The order of rows by expert, their gathering and weighted sums, and gates. Memory bandwidth limits all of them. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/vec.h"

#include <assert.h>

#define MOST_THREADS 512
#define FOR_COLUMNS(j, d) for (int64_t j = (int64_t)threadIdx.x * VEC; j < (d); j += (int64_t)blockDim.x * VEC)

/* ---- the order ---- */

/* A counting sort in three launches. The choices are cut into chunks, one warp each: the first launch counts the
 * choices of each chunk by expert, the second turns the counts into each chunk's first row of each expert, the third
 * gives every choice its row. Chunks and the choices of a chunk are in order, so the sort is stable. */
#define CHUNK 512      /* choices */
#define MOST_CHUNKS 64 /* what the second launch adds up serially; with more choices, chunks are longer */

struct sort {
    int64_t n, experts, chunk; /* choices, of which a chunk has `chunk` */
    const int32_t *ids;        /* -1: the choice has no row */
    int32_t *counts;           /* [chunks, experts] */
    int32_t *place, *source, *offsets;
};

/* Visits the warp's chunk, 32 choices at a time. next[e], in shared memory, is the number of choices of e so far, added
 * to counts[chunk, e] if PLACE. */
template <bool PLACE> static __global__ void __launch_bounds__(CUDA_WARP) sort_chunk(struct sort a)
{
    int32_t *next = (int32_t *)cuda_shared(), *counts = a.counts + blockIdx.x * a.experts;
    const int lane = (int)threadIdx.x;
    int64_t lo = blockIdx.x * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    for (int64_t e = lane; e < a.experts; e += CUDA_WARP)
        next[e] = PLACE ? counts[e] : 0;
    __syncwarp();
    for (int64_t i = lo + lane; i - lane < hi; i += CUDA_WARP) {
        int32_t id = i < hi ? a.ids[i] : -1;
        int before = 0, behind = 0; /* lanes with the same id */
        for (int l = 0; l < CUDA_WARP; l++) {
            bool same = __shfl_sync(CUDA_WARP_ALL, id, l) == id;
            before += same && l < lane;
            behind += same && l > lane;
        }
        if (PLACE && i < hi)
            a.place[i] = id < 0 ? -1 : next[id] + before;
        if (PLACE && id >= 0)
            a.source[next[id] + before] = (int32_t)i;
        __syncwarp();
        if (id >= 0 && behind == 0)
            next[id] += before + 1;
        __syncwarp();
    }
    for (int64_t e = lane; e < a.experts && !PLACE; e += CUDA_WARP)
        counts[e] = next[e];
}

/* A thread per expert; together they mark the end of `source`, which has no row. */
static __global__ void __launch_bounds__(KERN_MAX_EXPERTS) sort_offsets(struct sort a, int64_t chunks)
{
    CUDA_SHARED(int32_t[KERN_MAX_EXPERTS], rows);
    const int64_t e = threadIdx.x;
    int32_t sum = 0, first = 0, all = 0;
    for (int64_t c = 0; c < chunks && e < a.experts; c++) {
        int32_t n = a.counts[c * a.experts + e];
        a.counts[c * a.experts + e] = sum;
        sum += n;
    }
    rows[e] = sum;
    __syncthreads();
    for (int64_t i = 0; i < a.experts; i++)
        all += rows[i];
    for (int64_t i = all + e; i < a.n; i += KERN_MAX_EXPERTS)
        a.source[i] = -1;
    if (e >= a.experts)
        return;
    for (int64_t i = 0; i < e; i++)
        first += rows[i];
    for (int64_t c = 0; c < chunks; c++)
        a.counts[c * a.experts + e] += first;
    a.offsets[e] = first;
    if (e == a.experts - 1)
        a.offsets[a.experts] = first + sum;
}

void KERN_FN(route_sort)(struct kern_stream *s, int64_t t, int64_t k, int64_t experts, const int32_t *ids,
                         int32_t *place, int32_t *source, int32_t *offsets)
{
    const int64_t n = t * k, least = (n + MOST_CHUNKS - 1) / MOST_CHUNKS, chunk = least > CHUNK ? least : CHUNK;
    const int64_t chunks = n > 0 ? (n + chunk - 1) / chunk : 1;
    assert(experts <= KERN_MAX_EXPERTS);
    int32_t *counts = (int32_t *)cuda_scratch(s, (size_t)(chunks * experts) * sizeof(int32_t));
    if (!counts)
        return;
    struct sort a = {n, experts, chunk, ids, counts, place, source, offsets};
    const size_t shared = (size_t)experts * sizeof(int32_t);
    CUDA_LAUNCH(s, sort_chunk<false>, (unsigned)chunks, CUDA_WARP, shared, a);
    CUDA_LAUNCH(s, sort_offsets, 1, KERN_MAX_EXPERTS, 0, a, chunks);
    CUDA_LAUNCH(s, sort_chunk<true>, (unsigned)chunks, CUDA_WARP, shared, a);
}

/* ---- the order of rows that arrive ---- */

#define RUN_THREADS 128

/* A block processes the rows of one member for one expert, which stand together in all three orders. It finds their
 * first places from the offsets of all members, which it reads once; a group has few members. */
static __global__ void __launch_bounds__(RUN_THREADS) arrive_runs(struct kern_arrive a)
{
    const int64_t e = a.lo + blockIdx.x / a.members, me = blockIdx.x % a.members;
    int32_t begin = 0, row = 0, end = 0, sent = 0, base = 0;
    for (int64_t i = 0; i < a.members; i++) {
        const int32_t *first = a.all + i * (a.experts + 1);
        begin += first[e] - first[a.lo];
        end += first[e + 1] - first[a.lo];
        if (i < me) {
            row += first[e + 1] - first[e];
            sent += first[a.hi] - first[a.lo];
            base += first[a.experts];
        }
    }
    const int32_t *mine = a.all + me * (a.experts + 1);
    const int32_t n = mine[e + 1] - mine[e], at = sent + mine[e] - mine[a.lo];
    row += begin;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += RUN_THREADS) {
        if (a.index)
            a.index[row + i] = at + i;
        if (a.inverse)
            a.inverse[at + i] = row + i;
        if (a.choices)
            a.choices[row + i] = base + a.sources[base + mine[e] + i];
    }
    if (!a.offsets || me > 0 || threadIdx.x > 0)
        return;
    a.offsets[e - a.lo] = begin;
    if (e == a.hi - 1)
        a.offsets[a.hi - a.lo] = end;
}

void KERN_FN(arrive)(struct kern_stream *s, const struct kern_arrive *a)
{
    CUDA_LAUNCH(s, arrive_runs, (unsigned)((a->hi - a->lo) * a->members), RUN_THREADS, 0, *a);
}

/* ---- rows ---- */

struct rows {
    int64_t t, k, d;
    const int32_t *index; /* source, or place */
    const float *weights;
    const elem *x, *dy;
    elem *y, *dx;
    float *d_weights;
};

/* t: rows of y */
template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) gather_rows(struct rows a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        const elem *x = a.x + a.index[i] / a.k * a.d;
        if (a.index[i] < 0)
            break; /* no row follows */
        const float w = a.weights ? a.weights[a.index[i]] : 1;
        FOR_COLUMNS(j, a.d)
        {
            float v[VEC];
            row_load<WHOLE>(x, j, a.d, v);
#pragma unroll
            for (int e = 0; e < VEC; e++)
                v[e] *= w;
            row_store<WHOLE>(a.y + i * a.d, j, a.d, v);
        }
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) sum_rows(struct rows a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x)
        FOR_COLUMNS(j, a.d)
        {
            float sum[VEC] = {};
            for (int64_t c = i * a.k; c < (i + 1) * a.k; c++) {
                float v[VEC], w = a.weights ? a.weights[c] : 1;
                if (a.index[c] < 0)
                    continue;
                row_load<WHOLE>(a.x + a.index[c] * a.d, j, a.d, v);
#pragma unroll
                for (int e = 0; e < VEC; e++)
                    sum[e] = fmaf(w, v[e], sum[e]);
            }
            row_store<WHOLE>(a.y + i * a.d, j, a.d, sum);
        }
}

/* A block processes a choice. Each thread reads its columns of x before it writes those of dx, which may be x. */
template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) sum_rows_grad(struct rows a)
{
    for (int64_t i = blockIdx.x; i < a.t * a.k; i += gridDim.x) {
        const int64_t row = a.index[i] * a.d;
        float w = a.weights[i], sum = 0;
        if (row < 0) {
            if (threadIdx.x == 0)
                a.d_weights[i] = 0;
            continue;
        }
        FOR_COLUMNS(j, a.d)
        {
            float v[VEC], g[VEC];
            row_load<WHOLE>(a.x + row, j, a.d, v);
            row_load<WHOLE>(a.dy + i / a.k * a.d, j, a.d, g);
#pragma unroll
            for (int e = 0; e < VEC; e++) {
                sum = fmaf(v[e], g[e], sum);
                g[e] *= w;
            }
            if (a.dx)
                row_store<WHOLE>(a.dx + row, j, a.d, g);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            a.d_weights[i] = sum;
    }
}

static bool rows_whole(const struct rows *a)
{
    const void *rows[] = {a->x, a->dy, a->y, a->dx};
    return vec_all_aligned(4, rows) && a->d % VEC == 0;
}

/* Floor: x once for each token, and y rows times d elements. */
void KERN_FN(rows_gather)(struct kern_stream *s, int64_t rows, int64_t k, int64_t d, const int32_t *source,
                          const void *weights, const void *x, void *y)
{
    struct rows a = {rows, k, d, source, (const float *)weights, (const elem *)x, NULL, (elem *)y, NULL, NULL};
    int threads = row_threads(d, MOST_THREADS);
    if (rows_whole(&a))
        CUDA_LAUNCH(s, gather_rows<true>, grid_blocks(s, rows, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, gather_rows<false>, grid_blocks(s, rows, threads), threads, 0, a);
}

/* Floor: x T k times and y T times d elements. */
void KERN_FN(rows_sum)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                       const void *weights, const void *x, void *y)
{
    struct rows a = {t, k, d, place, (const float *)weights, (const elem *)x, NULL, (elem *)y, NULL, NULL};
    int threads = row_threads(d, MOST_THREADS);
    if (rows_whole(&a))
        CUDA_LAUNCH(s, sum_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, sum_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* Floor: x and dx T k times and dy T times d elements. */
void KERN_FN(rows_sum_grad)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                            const void *weights, const void *x, const void *dy, void *dx, void *d_weights)
{
    struct rows a = {t,
                     k,
                     d,
                     place,
                     (const float *)weights,
                     (const elem *)x,
                     (const elem *)dy,
                     NULL,
                     (elem *)dx,
                     (float *)d_weights};
    int threads = row_threads(d, MOST_THREADS);
    if (rows_whole(&a))
        CUDA_LAUNCH(s, sum_rows_grad<true>, grid_blocks(s, t * k, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, sum_rows_grad<false>, grid_blocks(s, t * k, threads), threads, 0, a);
}

/* ---- gates ---- */

struct gate {
    int64_t t, d;
    const elem *x, *z, *dy;
    elem *y, *dx, *dz;
};

static __device__ __forceinline__ float gate_open(const struct gate &a, int64_t i)
{
    return 1.0f / (1.0f + expf(-vec_widen(a.z[i])));
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) gate_rows(struct gate a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float open = gate_open(a, i);
        FOR_COLUMNS(j, a.d)
        {
            float v[VEC];
            row_load<WHOLE>(a.x + i * a.d, j, a.d, v);
#pragma unroll
            for (int e = 0; e < VEC; e++)
                v[e] *= open;
            row_store<WHOLE>(a.y + i * a.d, j, a.d, v);
        }
    }
}

template <bool WHOLE> static __global__ void __launch_bounds__(MOST_THREADS) gate_grad_rows(struct gate a)
{
    for (int64_t i = blockIdx.x; i < a.t; i += gridDim.x) {
        float open = gate_open(a, i), sum = 0;
        FOR_COLUMNS(j, a.d)
        {
            float v[VEC], g[VEC];
            row_load<WHOLE>(a.x + i * a.d, j, a.d, v);
            row_load<WHOLE>(a.dy + i * a.d, j, a.d, g);
#pragma unroll
            for (int e = 0; e < VEC; e++) {
                sum = fmaf(v[e], g[e], sum);
                g[e] *= open;
            }
            row_store<WHOLE>(a.dx + i * a.d, j, a.d, g);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            vec_narrow(open * (1 - open) * sum, &a.dz[i]);
    }
}

static bool gate_whole(const struct gate *a)
{
    const void *rows[] = {a->x, a->dy, a->y, a->dx};
    return vec_all_aligned(4, rows) && a->d % VEC == 0;
}

/* Floor: 2 arrays of T d elements. */
void KERN_FN(gate)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, void *y)
{
    struct gate a = {t, d, (const elem *)x, (const elem *)z, NULL, (elem *)y, NULL, NULL};
    int threads = row_threads(d, MOST_THREADS);
    if (gate_whole(&a))
        CUDA_LAUNCH(s, gate_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, gate_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}

/* Floor: 3 arrays of T d elements. */
void KERN_FN(gate_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, const void *dy,
                        void *dx, void *dz)
{
    struct gate a = {t, d, (const elem *)x, (const elem *)z, (const elem *)dy, NULL, (elem *)dx, (elem *)dz};
    int threads = row_threads(d, MOST_THREADS);
    if (gate_whole(&a))
        CUDA_LAUNCH(s, gate_grad_rows<true>, grid_blocks(s, t, threads), threads, 0, a);
    else
        CUDA_LAUNCH(s, gate_grad_rows<false>, grid_blocks(s, t, threads), threads, 0, a);
}
