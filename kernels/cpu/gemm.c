/* Matrix products by oneDNN, with the sums and activations that belong to them. product_f32.c and product_bf16.c have
 * the products themselves; those with few rows are in few_rows.c.
 *
 * An activation is a separate pass over the result and takes 3 % of the product's time. Applying it block by block
 * while rows are in cache would be slower, because each block's product would pack B again. */
#include "kernels/cpu/cpu.h"

#include "common/base/log.h"

#include <assert.h>
#include <oneapi/dnnl/dnnl.h>

#define BIAS_COLUMNS 1024 /* a block's sums fit the first-level cache */

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

/* The destination of the product before the activation. */
static void *product_of(const struct kern_gemm *g)
{
    return g->act == KERN_ACT_GELU ? g->aux : g->c;
}

struct sum_args {
    int64_t k, stride; /* k: terms of a sum; stride: elements between rows as stored */
    const elem *x;
    float *out;
};

/* sum[0..columns) += eight rows, or fewer at the end, summed as a tree */
static void add_rows(int64_t rows, int64_t columns, int64_t n, const elem *dy, float *sum)
{
    for (int64_t i = 0; i < rows && rows < 8; i++)
        for (int64_t j = 0; j < columns; j += VF)
            v_store_part(sum, j, columns, v_load_part(sum, j, columns) + e_load_part(dy + i * n, j, columns));
    for (int64_t j = 0; j < columns && rows == 8; j += VF) {
        vf row[8];
        for (int i = 0; i < 8; i++)
            row[i] = e_load_part(dy + i * n, j, columns);
        vf a = (row[0] + row[1]) + (row[2] + row[3]), b = (row[4] + row[5]) + (row[6] + row[7]);
        v_store_part(sum, j, columns, v_load_part(sum, j, columns) + (a + b));
    }
}

/* out[j] += sum over l of x[l, j] */
static void column_sums(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct sum_args *a = arg;
    for (int64_t j0 = lo; j0 < hi; j0 += BIAS_COLUMNS) {
        int64_t columns = hi - j0 < BIAS_COLUMNS ? hi - j0 : BIAS_COLUMNS;
        float sum[BIAS_COLUMNS] = {0};
        for (int64_t i = 0; i < a->k; i += 8)
            add_rows(a->k - i < 8 ? a->k - i : 8, columns, a->stride, a->x + i * a->stride + j0, sum);
        for (int64_t j = 0; j < columns; j++)
            a->out[j0 + j] += sum[j];
    }
}

/* out[i] += sum over l of x[i, l] */
static void row_sums(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct sum_args *a = arg;
    for (int64_t i = lo; i < hi; i++) {
        const elem *x = a->x + i * a->stride;
        vf sum = {0}, other = {0};
        int64_t l = 0;
        for (; l + 2 * VF <= a->k; l += 2 * VF) {
            sum += e_load(x + l);
            other += e_load(x + l + VF);
        }
        for (; l < a->k; l += VF)
            sum += e_load_part(x, l, a->k);
        a->out[i] += v_sum(sum + other);
    }
}

/* out[n] += sums over k of a matrix stored as [k, n] if `columns`, else as [n, k] */
static void add_sums(struct kern_stream *s, bool columns, int64_t n, int64_t k, const elem *x, int64_t stride,
                     float *out)
{
    struct sum_args a = {k, stride, x, out};
    kern_stream_run(s, n, columns ? 64 : 16, columns ? column_sums : row_sums, &a);
}

void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db)
{
    add_sums(s, true, n, t, dy, n, db);
}

/* Fills rows of x with the bias, or with zero. */
static void fill_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_gemm *g = arg;
    for (int64_t i = lo; i < hi; i++)
        for (int64_t j = 0; j < g->n; j += VF) {
            vf x = g->bias ? e_load_part(g->bias, j, g->n) : (vf){0};
            if (g->wide_c)
                v_store_part((float *)product_of(g) + i * g->ldc, j, g->n, x);
            else
                e_store_part((elem *)product_of(g) + i * g->ldc, j, g->n, x);
        }
}

/* x = op(A) op(B) + bias, or c += */
static err_t product(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->k > 0 && KERN_FN(has_few_rows)(g)) {
        KERN_FN(few_rows)(s, g, product_of(g));
        return OK;
    }
    if (g->k > 0)
        return KERN_FN(product)(s, g, product_of(g));
    if (!g->accumulate)
        kern_stream_run(s, g->m, 16, fill_rows, (void *)g);
    return OK;
}

err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g)
{
    assert(g->lda >= (g->trans_a ? g->m : g->k) && g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n);
    assert(!g->accumulate || (!g->bias && !g->act));
    assert(!g->act || g->aux);
    if (g->a_sum)
        add_sums(s, g->trans_a, g->m, g->k, g->a, g->lda, g->a_sum);
    if (g->b_sum)
        add_sums(s, !g->trans_b, g->n, g->k, g->b, g->ldb, g->b_sum);
    if (g->m == 0 || g->n == 0)
        return OK;
    err_t err = product(s, g);
    if (err == OK && g->act == KERN_ACT_GELU)
        KERN_FN(gelu_rows)(s, g->m, g->n, g->ldc, g->aux, g->c);
    if (err == OK && g->act == KERN_ACT_GELU_GRAD)
        KERN_FN(gelu_grad_rows)(s, g->m, g->n, g->ldc, g->aux, g->c, g->c);
    return err;
}
