/* Tiles of a matrix product in bfloat16 on tensor cores, with float32 sums. Each operand is contiguous along k or
 * across it; its contiguous dimension is a multiple of 8 elements, and its address is aligned to 16 bytes.
 *
 * A block of four warps computes a tile of 64 x 128 elements, 32 x 64 per warp. It keeps 32 terms of the tile's rows
 * and columns in shared memory, as they lie in global memory, and copies the next 32 meanwhile. */
#ifndef DTD_KERNELS_CUDA_GEMM_TENSOR_H
#define DTD_KERNELS_CUDA_GEMM_TENSOR_H

#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/ptx.h"

#define TENSOR_ROWS TILE
#define TENSOR_COLUMNS 128
#define TENSOR_STEP 32 /* terms per step */
#define TENSOR_THREADS 128
#define TENSOR_RUN 8 /* elements of a copy of 16 bytes */

/* TENSOR_STEP terms of N rows (or columns) of an operand in shared memory; ALONG_K: it is contiguous along k. Eight
 * neighbouring lines begin in different banks. */
template <int N, bool ALONG_K> struct tensor_side {
    static constexpr int LINES = ALONG_K ? N : TENSOR_STEP;
    static constexpr int LENGTH = ALONG_K ? TENSOR_STEP : N;
    alignas(VEC_BYTES) elem at[LINES][LENGTH + TENSOR_RUN];
};

/* Begins to copy terms [l0, l0 + TENSOR_STEP) of rows i0 and following; zeros beyond the edges. */
template <int N, bool ALONG_K>
static __device__ __forceinline__ void tensor_fetch(const struct tile_operand &s, int64_t k, int64_t i0, int64_t l0,
                                                    tensor_side<N, ALONG_K> *to)
{
    constexpr int runs = tensor_side<N, ALONG_K>::LENGTH / TENSOR_RUN;
    for (int at = threadIdx.x; at < tensor_side<N, ALONG_K>::LINES * runs; at += TENSOR_THREADS) {
        int line = at / runs, first = at % runs * TENSOR_RUN;
        int64_t i = i0 + (ALONG_K ? line : first), l = l0 + (ALONG_K ? first : line);
        bool inside = i < s.n && l < k;
        const elem *from = inside ? s.p + i * s.row + l * s.term : s.p;
        ptx_async_copy16(&to->at[line][first], from, inside ? VEC_BYTES : 0);
    }
}

/* Four 8x8 matrices, as ptx_mma_bf16 wants them: matrix j is at rows i + 8 (j % 2) and terms l + 8 (j / 2), with SWAP
 * at rows i + 8 (j / 2) and terms l + 8 (j % 2). */
template <bool SWAP, int N, bool ALONG_K>
static __device__ __forceinline__ void tensor_load(const tensor_side<N, ALONG_K> &s, int i, int l, uint32_t (&r)[4])
{
    int lane = threadIdx.x % CUDA_WARP, matrix = lane / 8, line = lane % 8;
    i += (SWAP ? matrix / 2 : matrix % 2) * 8;
    l += (SWAP ? matrix % 2 : matrix / 2) * 8;
    if (ALONG_K)
        ptx_ldmatrix_x4(r, &s.at[i + line][l]);
    else
        ptx_ldmatrix_x4_trans(r, &s.at[l + line][i]);
}

#define TENSOR_DOWN 2   /* products of 16 x 8 of a warp: its 32 rows */
#define TENSOR_ACROSS 8 /* and its 64 columns */

/* sum += the product of TENSOR_STEP terms. */
template <bool A_ALONG_K, bool B_ALONG_K>
static __device__ __forceinline__ void tensor_step(const tensor_side<TENSOR_ROWS, A_ALONG_K> &a,
                                                   const tensor_side<TENSOR_COLUMNS, B_ALONG_K> &b, int row, int column,
                                                   float (&sum)[TENSOR_DOWN][TENSOR_ACROSS][4])
{
#pragma unroll
    for (int l = 0; l < TENSOR_STEP; l += 16) {
        uint32_t x[TENSOR_DOWN][4];
#pragma unroll
        for (int i = 0; i < TENSOR_DOWN; i++)
            tensor_load<false>(a, row + 16 * i, l, x[i]);
#pragma unroll
        for (int j = 0; j < TENSOR_ACROSS; j += 2) {
            uint32_t y[4];
            tensor_load<true>(b, column + 8 * j, l, y);
            const uint32_t first[2] = {y[0], y[1]}, second[2] = {y[2], y[3]};
#pragma unroll
            for (int i = 0; i < TENSOR_DOWN; i++) {
                ptx_mma_bf16(sum[i][j], x[i], first);
                ptx_mma_bf16(sum[i][j + 1], x[i], second);
            }
        }
    }
}

/* As tile_product (gemm_tile.h). */
template <bool A_ALONG_K, bool B_ALONG_K, class T>
static __device__ __forceinline__ void tensor_tile(const struct tile_operand &a, const struct tile_operand &b,
                                                   int64_t k, int64_t i0, int64_t j0, int64_t ldc, bool add, T *c)
{
    typedef tensor_side<TENSOR_ROWS, A_ALONG_K> side_a;
    typedef tensor_side<TENSOR_COLUMNS, B_ALONG_K> side_b;
    CUDA_SHARED(side_a[2], rows);
    CUDA_SHARED(side_b[2], columns);
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, row = warp / 2 * 32, column = warp % 2 * 64;
    float sum[TENSOR_DOWN][TENSOR_ACROSS][4] = {};
    for (int64_t l = -TENSOR_STEP, at = 0; l < k; l += TENSOR_STEP, at ^= 1) { /* the first round only copies */
        if (l + TENSOR_STEP < k) {
            tensor_fetch(a, k, i0, l + TENSOR_STEP, &rows[at ^ 1]);
            tensor_fetch(b, k, j0, l + TENSOR_STEP, &columns[at ^ 1]);
        }
        if (l >= 0)
            tensor_step(rows[at], columns[at], row, column, sum);
        ptx_async_wait();
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TENSOR_DOWN; i++)
#pragma unroll
        for (int j = 0; j < TENSOR_ACROSS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t y = i0 + row + 16 * i + lane / 4 + 8 * half, x = j0 + column + 8 * j + lane % 4 * 2;
                if (y >= a.n || x >= b.n)
                    continue;
                float v[2] = {sum[i][j][2 * half], sum[i][j][2 * half + 1]}, old[2] = {};
                if (add)
                    vec_load(&c[y * ldc + x], old);
                v[0] += old[0];
                v[1] += old[1];
                vec_store(&c[y * ldc + x], v);
            }
}

#endif
