/* A matrix product without cuBLASLt, used when cuBLASLt has no algorithm, which would otherwise end the job. Operands
 * are read in place. The arithmetic is float32, whose rate on an H100 is a fifteenth of the tensor cores'. The terms of
 * an element are added in the order of k.
 *
 * A block of 16 x 16 threads computes a tile of 64 x 64 elements, 4 x 4 per thread. It keeps 16 terms of the tile's
 * rows and columns at a time in shared memory, transposed so that they are read along k. */
#include "kernels/cuda/gemm_fill.h"
#include "kernels/cuda/vec.h"

#define TILE 64
#define STEP 16 /* terms per step */
#define SIDE 16 /* threads along an edge of the block */
#define OWN (TILE / SIDE)
#define THREADS (SIDE * SIDE)
#define PITCH (TILE + 1) /* puts neighbours along k into different banks */

/* An operand: element (i, l), i < n and l < k, is at i * row + l * term. */
struct side {
    const elem *p;
    int64_t n, row, term;
};

/* Loads terms [l0, l0 + STEP) of TILE rows (columns of the result for B) from i0 on; zeros beyond the edges.
 * Neighbouring threads read neighbouring elements, along k or across it. */
static __device__ __forceinline__ void fetch(const struct side &s, int64_t k, int64_t i0, int64_t l0,
                                             float (&to)[STEP][PITCH])
{
    for (int at = threadIdx.x; at < TILE * STEP; at += THREADS) {
        int i = s.term == 1 ? at / STEP : at % TILE, l = s.term == 1 ? at % STEP : at / TILE;
        bool inside = i0 + i < s.n && l0 + l < k;
        to[l][i] = inside ? vec_widen(s.p[(i0 + i) * s.row + (l0 + l) * s.term]) : 0.0f;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    own_product(struct side a, struct side b, int64_t k, int64_t ldc, bool add, T *c)
{
    CUDA_SHARED(float[STEP][PITCH], rows);
    CUDA_SHARED(float[STEP][PITCH], columns);
    int64_t across = (b.n + TILE - 1) / TILE, tiles = (a.n + TILE - 1) / TILE * across;
    int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t i0 = tile / across * TILE, j0 = tile % across * TILE;
        float sum[OWN][OWN] = {};
        for (int64_t l0 = 0; l0 < k; l0 += STEP) {
            fetch(a, k, i0, l0, rows);
            fetch(b, k, j0, l0, columns);
            __syncthreads();
            for (int l = 0; l < STEP; l++)
#pragma unroll
                for (int i = 0; i < OWN; i++)
#pragma unroll
                    for (int j = 0; j < OWN; j++)
                        sum[i][j] = fmaf(rows[l][y + i * SIDE], columns[l][x + j * SIDE], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < OWN; i++)
            for (int j = 0; j < OWN; j++) {
                int64_t row = i0 + y + i * SIDE, column = j0 + x + j * SIDE;
                if (row >= a.n || column >= b.n)
                    continue;
                T *to = &c[row * ldc + column];
                vec_narrow(add ? vec_widen(*to) + sum[i][j] : sum[i][j], to);
            }
    }
}

void KERN_FN(gemm_own)(struct kern_stream *s, const struct kern_gemm *g, bool add)
{
    struct side a = {(const elem *)g->a, g->m, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1};
    struct side b = {(const elem *)g->b, g->n, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb};
    int64_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    unsigned grid = grid_blocks(s, tiles, THREADS);
    if (g->wide_c && sizeof(elem) != sizeof(wide))
        CUDA_LAUNCH(s, own_product<wide>, grid, THREADS, 0, a, b, g->k, g->ldc, add, (wide *)g->c);
    else
        CUDA_LAUNCH(s, own_product<elem>, grid, THREADS, 0, a, b, g->k, g->ldc, add, (elem *)g->c);
}
