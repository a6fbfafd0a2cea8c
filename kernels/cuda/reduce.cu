/* Column sums (reduce.h), which also give the gradient of a bias.
 *
 * A block of the first launch owns a tile of 32 vectors of columns and visits every `chunks`-th group of 8 rows, so
 * that each access of a warp is contiguous. Its 8 rows of threads add their sums in shared memory. */
#include "kernels/cuda/block.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vec.h"

#define ROWS 8 /* rows of threads in a block, one warp each */
#define TILE (CUDA_WARP * VEC)
#define ROW_THREADS 256

struct columns {
    int64_t t, n, ld;
    const elem *x;
    float *partial; /* [gridDim.y, n] */
};

template <bool WHOLE> static __global__ void __launch_bounds__(ROWS *CUDA_WARP) columns_partial(struct columns c)
{
    CUDA_SHARED(float[ROWS][TILE], part);
    int lane = threadIdx.x % CUDA_WARP, row = threadIdx.x / CUDA_WARP;
    int64_t j = (int64_t)blockIdx.x * TILE + lane * VEC;
    float sum[VEC] = {};
    for (int64_t i = (int64_t)blockIdx.y * ROWS + row; i < c.t && j < c.n; i += (int64_t)gridDim.y * ROWS) {
        float x[VEC];
        row_load<WHOLE>(c.x + i * c.ld, j, c.n, x);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k] += x[k];
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        part[row][lane * VEC + k] = sum[k];
    __syncthreads();
    for (int column = threadIdx.x; column < TILE; column += ROWS * CUDA_WARP) {
        int64_t at = (int64_t)blockIdx.x * TILE + column;
        float total = 0;
        for (int i = 0; i < ROWS; i++)
            total += part[i][column];
        if (at < c.n)
            c.partial[(int64_t)blockIdx.y * c.n + at] = total;
    }
}

/* 32 columns by 32 rows of threads; the rows' sums are added in shared memory, in order. */
static __global__ void __launch_bounds__(CUDA_WARP *CUDA_WARP)
    columns_finish(int64_t parts, int64_t n, int64_t stride, const float *__restrict__ partial, float *__restrict__ out)
{
    CUDA_SHARED(float[CUDA_WARP][CUDA_WARP], part);
    int lane = threadIdx.x % CUDA_WARP, row = threadIdx.x / CUDA_WARP;
    int64_t j = (int64_t)blockIdx.x * CUDA_WARP + lane;
    float sum = 0;
    if (j < n)
        for (int64_t i = row; i < parts; i += CUDA_WARP)
            sum += partial[i * stride + j];
    part[row][lane] = sum;
    __syncthreads();
    if (row || j >= n)
        return;
    for (int i = 1; i < CUDA_WARP; i++)
        sum += part[i][lane];
    out[j] += sum;
}

void KERN_FN(partials_add)(struct kern_stream *s, int64_t parts, int64_t n, int64_t stride, const float *partial,
                           float *out)
{
    int64_t tiles = (n + CUDA_WARP - 1) / CUDA_WARP;
    CUDA_LAUNCH(s, columns_finish, (unsigned)tiles, CUDA_WARP * CUDA_WARP, 0, parts, n, stride, partial, out);
}

/* Floor: the matrix once. The partial sums are 4 bytes per ROWS or more elements of it. */
void KERN_FN(columns_add)(struct kern_stream *s, int64_t t, int64_t n, int64_t ld, const void *x, void *out)
{
    int64_t tiles = (n + TILE - 1) / TILE, groups = (t + ROWS - 1) / ROWS;
    int64_t most = 8 * (int64_t)cuda_dev_of(s)->processors / tiles + 1;
    int64_t chunks = groups < most ? groups : most;
    float *partial = (float *)cuda_scratch(s, (size_t)(chunks * n) * sizeof(float));
    if (!partial)
        return;
    struct columns c = {t, n, ld, (const elem *)x, partial};
    dim3 grid((unsigned)tiles, (unsigned)chunks);
    if (vec_aligned(x) && n % VEC == 0 && ld % VEC == 0)
        CUDA_LAUNCH(s, columns_partial<true>, grid, ROWS * CUDA_WARP, 0, c);
    else
        CUDA_LAUNCH(s, columns_partial<false>, grid, ROWS * CUDA_WARP, 0, c);
    KERN_FN(partials_add)(s, chunks, n, n, partial, (float *)out);
}

/* One block per row; a thread's vectors are a block's width apart. */
template <bool WHOLE>
static __global__ void __launch_bounds__(ROW_THREADS)
    sum_rows(int64_t t, int64_t n, int64_t ld, const elem *__restrict__ x, float *__restrict__ out)
{
    for (int64_t i = blockIdx.x; i < t; i += gridDim.x) {
        float sum = 0;
        for (int64_t j = (int64_t)threadIdx.x * VEC; j < n; j += (int64_t)blockDim.x * VEC) {
            float v[VEC];
            row_load<WHOLE>(x + i * ld, j, n, v);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                sum += v[k];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0)
            out[i] += sum;
    }
}

/* Floor: the matrix once. */
void KERN_FN(rows_add)(struct kern_stream *s, int64_t t, int64_t n, int64_t ld, const void *x, void *out)
{
    int threads = row_threads(n, ROW_THREADS);
    unsigned grid = grid_blocks(s, t, threads);
    if (vec_aligned(x) && n % VEC == 0 && ld % VEC == 0)
        CUDA_LAUNCH(s, sum_rows<true>, grid, threads, 0, t, n, ld, (const elem *)x, (float *)out);
    else
        CUDA_LAUNCH(s, sum_rows<false>, grid, threads, 0, t, n, ld, (const elem *)x, (float *)out);
}

void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db)
{
    KERN_FN(columns_add)(s, t, n, n, dy, db);
}
