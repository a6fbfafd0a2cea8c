/* Products in bfloat16, summed in float32.
 *
 * If the processor has instructions for it, oneDNN's matmul computes them (matmul.h). Otherwise blocks of A and B are
 * widened to float32 and multiplied by sgemm; a block of the result stays float32 until all of its terms are added, so
 * that it is rounded once. Widening takes a few percent of the product's time. */
#include "kernels/cpu/cpu.h"
#include "kernels/matmul.h"

/* Two blocks of 2 MiB and one of 1 MiB fit most last-level caches, and are large enough for sgemm's full speed. */
#define BLOCK 512
#define TERMS 1024

struct block_args {
    const struct kern_gemm *g;
    int64_t row, column, n; /* the block's first row and column, and its columns */
    const elem *from;       /* widen: the block's first element, `stride` between rows */
    int64_t stride;
    float *block; /* dense, n columns */
    void *x;      /* the result */
};

static void widen_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct block_args *a = arg;
    for (int64_t i = lo; i < hi; i++)
        e_widen_row(a->n, a->from + i * a->stride, a->block + i * a->n);
}

/* Widens rows x columns of a matrix as stored. */
static void widen(struct kern_stream *s, int64_t rows, int64_t columns, const void *from, int64_t at, int64_t stride,
                  float *block)
{
    struct block_args a = {.n = columns, .from = (const elem *)from + at, .stride = stride, .block = block};
    kern_stream_run(s, rows, 16, widen_rows, &a);
}

static void give_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct block_args *a = arg;
    const struct kern_gemm *g = a->g;
    for (int64_t i = lo; i < hi; i++) {
        int64_t at = (a->row + i) * g->ldc + a->column;
        for (int64_t j = 0; j < a->n; j += VF) {
            vf x = v_load_part(a->block + i * a->n, j, a->n);
            if (g->bias)
                x += e_load_part((const elem *)g->bias + a->column, j, a->n);
            if (g->accumulate)
                x += g->wide_c ? v_load_part((float *)a->x + at, j, a->n) : e_load_part((elem *)a->x + at, j, a->n);
            if (g->wide_c)
                v_store_part((float *)a->x + at, j, a->n, x);
            else
                e_store_part((elem *)a->x + at, j, a->n, x);
        }
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The block of the result at (row, column), of m rows and n columns. */
static err_t product_block(struct kern_stream *s, const struct kern_gemm *g, int64_t row, int64_t column, float *memory,
                           void *x)
{
    const int64_t m = least(BLOCK, g->m - row), n = least(BLOCK, g->n - column);
    float *a = memory, *b = a + BLOCK * TERMS, *c = b + BLOCK * TERMS;
    err_t err = OK;
    for (int64_t l = 0; l < g->k && !err; l += TERMS) {
        int64_t k = least(TERMS, g->k - l);
        if (g->trans_a)
            widen(s, k, m, g->a, l * g->lda + row, g->lda, a);
        else
            widen(s, m, k, g->a, row * g->lda + l, g->lda, a);
        if (g->trans_b)
            widen(s, n, k, g->b, column * g->ldb + l, g->ldb, b);
        else
            widen(s, k, n, g->b, l * g->ldb + column, g->ldb, b);
        kern_stream_limit(kern_stream_threads(s));
        err = KERN_FN(sgemm)(g->trans_a, g->trans_b, m, n, k, 1, a, g->trans_a ? m : k, b, g->trans_b ? k : n,
                             l > 0 ? 1 : 0, c, n);
    }
    struct block_args give = {.g = g, .row = row, .column = column, .n = n, .block = c, .x = x};
    if (!err)
        kern_stream_run(s, m, 16, give_rows, &give);
    return err;
}

static err_t product_by_blocks(struct kern_stream *s, const struct kern_gemm *g, void *x)
{
    void *memory;
    err_t err = kern_stream_scratch(s, (2 * BLOCK * TERMS + BLOCK * BLOCK) * sizeof(float), &memory);
    for (int64_t column = 0; column < g->n && !err; column += BLOCK)
        for (int64_t row = 0; row < g->m && !err; row += BLOCK)
            err = product_block(s, g, row, column, memory, x);
    return err;
}

err_t KERN_FN(product)(struct kern_stream *s, const struct kern_gemm *g, void *x)
{
#ifdef __AVX512BF16__
    bool done;
    err_t err = matmul_run(s, g, x, &done);
    if (err || done)
        return err;
#endif
    return product_by_blocks(s, g, x);
}
