/* Products by oneDNN, and the sums over rows that go with them.
 *
 * The bias goes into C before the product, which then adds to it: beta = 1 costs oneDNN nothing. */
#include "kernels/cpu/cpu.h"

#include "common/base/log.h"

#include <assert.h>
#include <oneapi/dnnl/dnnl.h>

#define BIAS_COLUMNS 1024 /* a block's sums stay in the first level cache */

err_t KERN_FN(sgemm)(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    dnnl_status_t status =
        dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (status == dnnl_success)
        return OK;
    log_error("kernels event=sgemm_failed status=%d m=%lld n=%lld k=%lld", (int)status, (long long)m, (long long)n,
              (long long)k);
    return status == dnnl_out_of_memory ? ERR_NOMEM : ERR_INTERNAL;
}

/* Rows of C become the bias, or zero without one. */
static void prefill_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_gemm *g = arg;
    const float *bias = g->bias;
    for (int64_t i = lo; i < hi; i++) {
        float *row = (float *)g->c + i * g->ldc;
        int64_t j = 0;
        for (; j + VF <= g->n; j += VF) {
            v_expect_store(row + j);
            v_store(row + j, bias ? v_load(bias + j) : (vf){0});
        }
        v_store_n(row + j, bias ? v_load_n(bias + j, g->n - j) : (vf){0}, g->n - j);
    }
}

err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g)
{
    assert(g->lda >= (g->trans_a ? g->m : g->k) && g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n);
    assert(!g->bias || !g->accumulate);
    if (g->m == 0 || g->n == 0)
        return OK;
    bool prefill = g->bias || (g->k == 0 && !g->accumulate);
    if (prefill)
        kern_stream_run(s, g->m, 16, prefill_rows, (void *)g);
    if (g->k == 0)
        return OK;
    kern_stream_limit(s->threads);
    return KERN_FN(sgemm)(g->trans_a, g->trans_b, g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb,
                          g->accumulate || prefill ? 1 : 0, g->c, g->ldc);
}

struct bias_args {
    int64_t t, n;
    const float *dy;
    float *db;
};

/* sum[0..columns) += eight rows, or fewer at the end, as a tree over them */
static void add_rows(int64_t rows, int64_t columns, int64_t n, const float *dy, float *sum)
{
    if (rows < 8) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                sum[j] += dy[i * n + j];
        return;
    }
    for (int64_t j = 0; j < columns; j++) {
        const float *p = dy + j;
        float a = (p[0] + p[n]) + (p[2 * n] + p[3 * n]), b = (p[4 * n] + p[5 * n]) + (p[6 * n] + p[7 * n]);
        sum[j] += a + b;
    }
}

static void bias_columns(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct bias_args *a = arg;
    for (int64_t j0 = lo; j0 < hi; j0 += BIAS_COLUMNS) {
        int64_t columns = hi - j0 < BIAS_COLUMNS ? hi - j0 : BIAS_COLUMNS;
        float sum[BIAS_COLUMNS] = {0};
        for (int64_t i = 0; i < a->t; i += 8)
            add_rows(a->t - i < 8 ? a->t - i : 8, columns, a->n, a->dy + i * a->n + j0, sum);
        for (int64_t j = 0; j < columns; j++)
            a->db[j0 + j] += sum[j];
    }
}

void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db)
{
    struct bias_args a = {t, n, dy, db};
    kern_stream_run(s, n, 64, bias_columns, &a);
}
