/* A matrix product without cuBLASLt, used when cuBLASLt has no algorithm, which would otherwise end the job. */
#include "kernels/cuda/gemm_fill.h"
#include "kernels/cuda/gemm_tile.h"

template <class T>
static __global__ void __launch_bounds__(TILE_THREADS)
    own_product(struct tile_operand a, struct tile_operand b, int64_t k, int64_t ldc, bool add, T *c)
{
    int64_t across = tiles_of(b.n), tiles = tiles_of(a.n) * across;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        tile_product(a, b, k, tile / across * TILE, tile % across * TILE, ldc, add, c);
}

void KERN_FN(gemm_own)(struct kern_stream *s, const struct kern_gemm *g, bool add)
{
    struct tile_operand a = {(const elem *)g->a, g->m, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1};
    struct tile_operand b = {(const elem *)g->b, g->n, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb};
    unsigned grid = grid_blocks(s, tiles_of(g->m) * tiles_of(g->n), TILE_THREADS);
    if (g->wide_c && sizeof(elem) != sizeof(wide))
        CUDA_LAUNCH(s, own_product<wide>, grid, TILE_THREADS, 0, a, b, g->k, g->ldc, add, (wide *)g->c);
    else
        CUDA_LAUNCH(s, own_product<elem>, grid, TILE_THREADS, 0, a, b, g->k, g->ldc, add, (elem *)g->c);
}
