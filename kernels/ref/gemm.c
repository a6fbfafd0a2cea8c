/* Products. Each element is one sum over k, ascending, in double; 64 columns are summed side by side only so that rows
 * of B are read as they lie in memory. */
#include "kernels/ref/ref.h"

#include <assert.h>

#define COLUMNS 64

static void row_block(const struct kern_gemm *g, int64_t i, int64_t j0, int64_t columns)
{
    const real *a = g->a, *b = g->b, *bias = g->bias;
    real *c = (real *)g->c + i * g->ldc + j0;
    int64_t a_step = g->trans_a ? g->lda : 1, b_step = g->trans_b ? 1 : g->ldb, b_col = g->trans_b ? g->ldb : 1;
    a += g->trans_a ? i : i * g->lda;
    b += j0 * b_col;
    double sum[COLUMNS] = {0};
    for (int64_t l = 0; l < g->k; l++)
        for (int64_t j = 0; j < columns; j++)
            sum[j] += (double)a[l * a_step] * (double)b[l * b_step + j * b_col];
    for (int64_t j = 0; j < columns; j++)
        c[j] = (real)(sum[j] + (g->accumulate ? (double)c[j] : 0) + (bias ? (double)bias[j0 + j] : 0));
}

err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g)
{
    assert(g->lda >= (g->trans_a ? g->m : g->k) && g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n);
    assert(!g->bias || !g->accumulate);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j += COLUMNS)
            row_block(g, i, j, g->n - j < COLUMNS ? g->n - j : COLUMNS);
    return OK;
}

void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db)
{
    const real *g = dy;
    real *b = db;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < t; i++)
            sum += (double)g[i * n + j];
        b[j] = (real)((double)b[j] + sum);
    }
}
