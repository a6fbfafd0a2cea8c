/* Products of each expert with its own rows. The experts' numbers of rows are read on the device, so no launch waits
 * for them; the grid has the most blocks that there can be work for, and a block finds its tile from the offsets. */
#include "kernels/cuda/gemm_tile.h"

/* The first form: tiles of 64 rows of one expert by 64 columns. An expert's last tile of rows may be short, so there
 * are at most rows / 64 + experts of them. */
template <class T> static __global__ void __launch_bounds__(TILE_THREADS) grouped_rows(struct kern_grouped g)
{
    const int64_t across = tiles_of(g.n);
    int64_t e = 0, first = 0; /* the first tile of expert e; a block's tiles ascend */
    for (int64_t tile = blockIdx.x;; tile += gridDim.x) {
        int64_t lo = 0, rows = 0;
        for (; e < g.experts; e++) {
            lo = g.offsets[e];
            rows = g.offsets[e + 1] - lo;
            if (tile < first + tiles_of(rows) * across)
                break;
            first += tiles_of(rows) * across;
        }
        if (e == g.experts)
            return;
        struct tile_operand a = {(const elem *)g.a + lo * g.k, rows, g.k, 1};
        struct tile_operand b = {(const elem *)g.b + e * g.k * g.n, g.n, g.trans_b ? g.k : 1, g.trans_b ? 1 : g.n};
        int64_t row = (tile - first) / across * TILE, column = (tile - first) % across * TILE;
        tile_product(a, b, g.k, row, column, g.n, g.accumulate, (T *)g.c + lo * g.n);
    }
}

/* The second form: tiles of each expert's result, whose terms are its rows. */
template <class T> static __global__ void __launch_bounds__(TILE_THREADS) grouped_results(struct kern_grouped g)
{
    const int64_t across = tiles_of(g.n), each = tiles_of(g.m) * across;
    for (int64_t tile = blockIdx.x; tile < g.experts * each; tile += gridDim.x) {
        int64_t e = tile / each, at = tile % each, lo = g.offsets[e], rows = g.offsets[e + 1] - lo;
        struct tile_operand a = {(const elem *)g.a + lo * g.m, g.m, 1, g.m};
        struct tile_operand b = {(const elem *)g.b + lo * g.n, g.n, 1, g.n};
        tile_product(a, b, rows, at / across * TILE, at % across * TILE, g.n, g.accumulate, (T *)g.c + e * g.m * g.n);
    }
}

/* Floor: 2 rows n k multiplications, at the rate of float32. */
err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g)
{
    const bool widened = g->wide_c && sizeof(elem) != sizeof(wide);
    const int64_t most = g->trans_a ? g->experts * tiles_of(g->m) : g->rows / TILE + g->experts;
    unsigned grid = grid_blocks(s, most * tiles_of(g->n), TILE_THREADS);
    if (g->trans_a && widened)
        CUDA_LAUNCH(s, grouped_results<wide>, grid, TILE_THREADS, 0, *g);
    else if (g->trans_a)
        CUDA_LAUNCH(s, grouped_results<elem>, grid, TILE_THREADS, 0, *g);
    else if (widened)
        CUDA_LAUNCH(s, grouped_rows<wide>, grid, TILE_THREADS, 0, *g);
    else
        CUDA_LAUNCH(s, grouped_rows<elem>, grid, TILE_THREADS, 0, *g);
    return cuda_stream_of(s)->err;
}
