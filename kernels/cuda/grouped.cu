/* Products of each expert with its own rows. The experts' numbers of rows are read on the device, so no launch waits
 * for them: the grid has the most tiles that there can be, and a block finds its tile from the offsets. */
#include "kernels/cuda/gemm_tile.h"
#if KERN_CUDA_BITS == 16
#include "kernels/cuda/gemm_tensor.h"
#endif

/* How a tile is computed: here in float32 arithmetic at any alignment. OUT: the type of c. */
template <class OUT> struct plain_tile {
    typedef OUT out;
    static constexpr int COLUMNS = TILE, THREADS = TILE_THREADS;
    static __device__ __forceinline__ void run(const struct tile_operand &a, const struct tile_operand &b, int64_t k,
                                               int64_t i0, int64_t j0, int64_t ldc, bool add, OUT *c)
    {
        tile_product(a, b, k, i0, j0, ldc, add, c);
    }
};

/* The matrix of expert e, of which each has `size` elements. */
template <class T>
static __device__ __forceinline__ T *matrix_of(const struct kern_grouped &g, T *base, int64_t e, int64_t size)
{
    const int64_t own = g.experts - g.borrowed;
    return e < own ? base + e * size : (T *)g.more + (e - own) * size;
}

/* The first form: tiles of 64 rows of one expert. An expert's last tile of rows may be short, so there are at most rows
 * / 64 + experts of them, for each tile of columns. */
template <class TILES> static __global__ void __launch_bounds__(TILES::THREADS) grouped_rows(struct kern_grouped g)
{
    typedef typename TILES::out out;
    const int64_t across = (g.n + TILES::COLUMNS - 1) / TILES::COLUMNS;
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
        struct tile_operand b = {matrix_of(g, (const elem *)g.b, e, g.k * g.n), g.n, g.trans_b ? g.k : 1,
                                 g.trans_b ? 1 : g.n};
        int64_t row = (tile - first) / across * TILE, column = (tile - first) % across * TILES::COLUMNS;
        TILES::run(a, b, g.k, row, column, g.n, g.accumulate, (out *)g.c + lo * g.n);
    }
}

/* The second form: tiles of each expert's result, whose terms are its rows. */
template <class TILES> static __global__ void __launch_bounds__(TILES::THREADS) grouped_results(struct kern_grouped g)
{
    typedef typename TILES::out out;
    const int64_t across = (g.n + TILES::COLUMNS - 1) / TILES::COLUMNS, each = tiles_of(g.m) * across;
    for (int64_t tile = blockIdx.x; tile < g.experts * each; tile += gridDim.x) {
        int64_t e = tile / each, at = tile % each, lo = g.offsets[e], rows = g.offsets[e + 1] - lo;
        struct tile_operand a = {(const elem *)g.a + lo * g.m, g.m, 1, g.m};
        struct tile_operand b = {(const elem *)g.b + lo * g.n, g.n, 1, g.n};
        TILES::run(a, b, rows, at / across * TILE, at % across * TILES::COLUMNS, g.n,
                   g.accumulate && e < g.experts - g.borrowed, matrix_of(g, (out *)g.c, e, g.m * g.n));
    }
}

template <class TILES> static void launch_rows(struct kern_stream *s, const struct kern_grouped *g)
{
    int64_t across = (g->n + TILES::COLUMNS - 1) / TILES::COLUMNS;
    unsigned grid = grid_blocks(s, (g->rows / TILE + g->experts) * across, TILES::THREADS);
    CUDA_LAUNCH(s, grouped_rows<TILES>, grid, TILES::THREADS, 0, *g);
}

template <class TILES> static void launch_results(struct kern_stream *s, const struct kern_grouped *g)
{
    int64_t across = (g->n + TILES::COLUMNS - 1) / TILES::COLUMNS;
    unsigned grid = grid_blocks(s, g->experts * tiles_of(g->m) * across, TILES::THREADS);
    CUDA_LAUNCH(s, grouped_results<TILES>, grid, TILES::THREADS, 0, *g);
}

/* On tensor cores; false if an operand's or the result's rows do not begin at multiples of 16 bytes. */
#if KERN_CUDA_BITS == 16
template <bool A_ALONG_K, bool B_ALONG_K, class OUT> struct fast_tile {
    typedef OUT out;
    static constexpr int COLUMNS = TENSOR_COLUMNS, THREADS = TENSOR_THREADS;
    static __device__ __forceinline__ void run(const struct tile_operand &a, const struct tile_operand &b, int64_t k,
                                               int64_t i0, int64_t j0, int64_t ldc, bool add, OUT *c)
    {
        tensor_tile<A_ALONG_K, B_ALONG_K>(a, b, k, i0, j0, ldc, add, c);
    }
};

template <class OUT> static bool launch_fast(struct kern_stream *s, const struct kern_grouped *g)
{
    const void *p[] = {g->a, g->b, g->c, g->more};
    if (!vec_all_aligned(g->borrowed ? 4 : 3, p) || g->n % TENSOR_RUN != 0 ||
        (g->trans_a ? g->m : g->k) % TENSOR_RUN != 0)
        return false;
    if (g->trans_a)
        launch_results<fast_tile<false, false, OUT>>(s, g);
    else if (g->trans_b)
        launch_rows<fast_tile<true, true, OUT>>(s, g);
    else
        launch_rows<fast_tile<true, false, OUT>>(s, g);
    return true;
}
#else
template <class OUT> static bool launch_fast(struct kern_stream *s, const struct kern_grouped *g)
{
    return false;
}
#endif

template <class OUT> static void launch(struct kern_stream *s, const struct kern_grouped *g)
{
    if (launch_fast<OUT>(s, g))
        return;
    if (g->trans_a)
        launch_results<plain_tile<OUT>>(s, g);
    else
        launch_rows<plain_tile<OUT>>(s, g);
}

/* Floor: 2 rows n k multiplications; in bfloat16 at the rate of tensor cores where rows are aligned. */
err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g)
{
    if (g->wide_c)
        launch<wide>(s, g);
    else
        launch<elem>(s, g);
    return cuda_stream_of(s)->err;
}
