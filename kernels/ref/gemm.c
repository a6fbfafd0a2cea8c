/* Matrix products. Each element is one sum over k, ascending, in double. 64 columns are summed side by side only so
 * that rows of B are read in the order of memory. */
#include "kernels/ref/ref.h"

#include <assert.h>

#define COLUMNS 64

/* Applies the activation to one element's sum; aux stores the activation's argument or supplies it. */
static real finished(enum kern_act act, double x, real *aux)
{
    switch (act) {
    case KERN_ACT_GELU:
        *aux = (real)x;
        return (real)KERN_FN(gelu_of)(x);
    case KERN_ACT_GELU_GRAD:
        return (real)(x * KERN_FN(gelu_slope)((double)*aux));
    case KERN_ACT_NONE:
        break;
    }
    return (real)x;
}

static void row_block(const struct kern_gemm *g, int64_t i, int64_t j0, int64_t columns)
{
    const real *a = g->a, *b = g->b, *bias = g->bias;
    real *c = (real *)g->c + i * g->ldc + j0, *aux = g->act ? (real *)g->aux + i * g->ldc + j0 : NULL;
    int64_t a_step = g->trans_a ? g->lda : 1, b_step = g->trans_b ? 1 : g->ldb, b_col = g->trans_b ? g->ldb : 1;
    a += g->trans_a ? i : i * g->lda;
    b += j0 * b_col;
    double sum[COLUMNS] = {0};
    for (int64_t l = 0; l < g->k; l++)
        for (int64_t j = 0; j < columns; j++)
            sum[j] += (double)a[l * a_step] * (double)b[l * b_step + j * b_col];
    for (int64_t j = 0; j < columns; j++) {
        double x = sum[j] + (g->accumulate ? (double)c[j] : 0) + (bias ? (double)bias[j0 + j] : 0);
        c[j] = finished(g->act, x, aux ? aux + j : NULL);
    }
}

/* out[i] += sum over l of x[i * row + l * step], i < n, l < k */
static void add_sums(int64_t n, int64_t k, const real *x, int64_t row, int64_t step, real *out)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += (double)x[i * row + l * step];
        out[i] = (real)((double)out[i] + sum);
    }
}

err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g)
{
    assert(g->lda >= (g->trans_a ? g->m : g->k) && g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n);
    assert(!g->accumulate || (!g->bias && !g->act));
    assert(!g->act || g->aux);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j += COLUMNS)
            row_block(g, i, j, g->n - j < COLUMNS ? g->n - j : COLUMNS);
    if (g->a_sum)
        add_sums(g->m, g->k, g->a, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1, g->a_sum);
    if (g->b_sum)
        add_sums(g->n, g->k, g->b, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb, g->b_sum);
    return OK;
}

void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db)
{
    add_sums(n, t, dy, 1, n, db);
}
