/* Tiles of a matrix product in float32 arithmetic, whose rate on an H100 is a fifteenth of the tensor cores'. Operands
 * are read in place, at any alignment. The terms of an element are added in the order of k, so an element depends only
 * on its own row and column.
 *
 * A block of 16 x 16 threads computes a tile of 64 x 64 elements, 4 x 4 per thread. It keeps 16 terms of the tile's
 * rows and columns at a time in shared memory, transposed so that they are read along k. */
#ifndef DTD_KERNELS_CUDA_GEMM_TILE_H
#define DTD_KERNELS_CUDA_GEMM_TILE_H

#include "kernels/cuda/vec.h"

#define TILE 64
#define TILE_STEP 16 /* terms per step */
#define TILE_SIDE 16 /* threads along an edge of the block */
#define TILE_OWN (TILE / TILE_SIDE)
#define TILE_THREADS (TILE_SIDE * TILE_SIDE)
#define TILE_PITCH (TILE + 1) /* puts neighbours along k into different banks */

/* An operand: element (i, l), i < n and l < k, is at i * row + l * term. */
struct tile_operand {
    const elem *p;
    int64_t n, row, term;
};

static __host__ __device__ __forceinline__ int64_t tiles_of(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

/* Loads terms [l0, l0 + TILE_STEP) of TILE rows (columns of the result for B) from i0 on; zeros beyond the edges.
 * Neighbouring threads read neighbouring elements, along k or across it. */
static __device__ __forceinline__ void tile_fetch(const struct tile_operand &s, int64_t k, int64_t i0, int64_t l0,
                                                  float (&to)[TILE_STEP][TILE_PITCH])
{
    for (int at = threadIdx.x; at < TILE * TILE_STEP; at += TILE_THREADS) {
        int i = s.term == 1 ? at / TILE_STEP : at % TILE, l = s.term == 1 ? at % TILE_STEP : at / TILE;
        bool inside = i0 + i < s.n && l0 + l < k;
        to[l][i] = inside ? vec_widen(s.p[(i0 + i) * s.row + (l0 + l) * s.term]) : 0.0f;
    }
}

/* The tile of c = A B, or with `add` c += A B, whose first element is (i0, j0); ldc elements between the rows of c. All
 * threads of the block. */
template <class T>
static __device__ __forceinline__ void tile_product(const struct tile_operand &a, const struct tile_operand &b,
                                                    int64_t k, int64_t i0, int64_t j0, int64_t ldc, bool add, T *c)
{
    CUDA_SHARED(float[TILE_STEP][TILE_PITCH], rows);
    CUDA_SHARED(float[TILE_STEP][TILE_PITCH], columns);
    int y = threadIdx.x / TILE_SIDE, x = threadIdx.x % TILE_SIDE;
    float sum[TILE_OWN][TILE_OWN] = {};
    for (int64_t l0 = 0; l0 < k; l0 += TILE_STEP) {
        tile_fetch(a, k, i0, l0, rows);
        tile_fetch(b, k, j0, l0, columns);
        __syncthreads();
        for (int l = 0; l < TILE_STEP; l++)
#pragma unroll
            for (int i = 0; i < TILE_OWN; i++)
#pragma unroll
                for (int j = 0; j < TILE_OWN; j++)
                    sum[i][j] = fmaf(rows[l][y + i * TILE_SIDE], columns[l][x + j * TILE_SIDE], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < TILE_OWN; i++)
        for (int j = 0; j < TILE_OWN; j++) {
            int64_t row = i0 + y + i * TILE_SIDE, column = j0 + x + j * TILE_SIDE;
            if (row >= a.n || column >= b.n)
                continue;
            T *to = &c[row * ldc + column];
            vec_narrow(add ? vec_widen(*to) + sum[i][j] : sum[i][j], to);
        }
}

#endif
