/* See gemm_product.h. */
#include "kernels/cuda/gemm_inner.h"

#include <string.h>

uint32_t gemm_alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return p == NULL ? 0 : low == 0 || low > GEMM_ALIGN_MOST ? GEMM_ALIGN_MOST : (uint32_t)low;
}

err_t gemm_failed(struct kern_stream *s, const struct kern_gemm *g, err_t err, const char *cause, const char *call,
                  const char *file, int line)
{
    struct why why;
    why_set(&why, OK, "%s: a product of %lld x %lld x %lld (lda %lld, ldb %lld, ldc %lld)", cause, (long long)g->m,
            (long long)g->n, (long long)g->k, (long long)g->lda, (long long)g->ldb, (long long)g->ldc);
    return cuda_fail(s, err, call, file, line, why.text);
}

err_t gemm_blas_failed(struct kern_stream *s, const struct kern_gemm *g, cublasStatus_t status, const char *call,
                       const char *file, int line)
{
    return gemm_failed(s, g, ERR_INTERNAL, cublasLtGetStatusString(status), call, file, line);
}

static struct gemm_key key_of(const struct gemm_product *p)
{
    const struct kern_gemm *g = p->g;
    struct gemm_key key;
    memset(&key, 0, sizeof(key));
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.epilogue = p->epilogue;
    key.type = p->type, key.c_type = p->c_type;
    key.trans_a = g->trans_a, key.trans_b = g->trans_b, key.accumulate = p->add;
    key.a_align = gemm_alignment(g->a), key.b_align = gemm_alignment(g->b), key.c_align = gemm_alignment(g->c);
    key.vector_align = gemm_alignment(p->vector), key.aux_align = gemm_alignment(p->aux);
    return key;
}

err_t gemm_entry_of(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry **ret)
{
    struct gemm_key key = key_of(p);
    cublasStatus_t status = gemm_cache_find(cuda_dev_of(s), &key, p->vector, p->aux, ret);
    return status == CUBLAS_STATUS_SUCCESS
               ? OK
               : gemm_blas_failed(s, p->g, status, "cublasLtMatmulDescCreate", __FILE__, __LINE__);
}

void *gemm_workspace(struct kern_stream *s, struct gemm_product *p)
{
    char *scratch = cuda_scratch(s, GEMM_WORKSPACE + p->vector_bytes);
    if (scratch && p->vector_bytes)
        p->vector = scratch + GEMM_WORKSPACE;
    return scratch;
}

static cublasStatus_t set_pointers(const struct gemm_product *p, struct gemm_entry *e)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (p->vector)
        status =
            cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->vector, sizeof(p->vector));
    if (p->aux && status == CUBLAS_STATUS_SUCCESS)
        status =
            cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, sizeof(p->aux));
    return status;
}

cublasStatus_t gemm_queue(struct kern_stream *s, const struct gemm_product *p, struct gemm_entry *e, float alpha,
                          float beta, void *workspace)
{
    const struct kern_gemm *g = p->g;
    cublasStatus_t status = set_pointers(p, e);
    return status == CUBLAS_STATUS_SUCCESS
               ? cublasLtMatmul(cuda_dev_of(s)->blaslt, e->desc, &alpha, g->b, e->a, g->a, e->b, &beta, g->c, e->c,
                                g->c, e->c, &e->algo, workspace, GEMM_WORKSPACE, cuda_stream_of(s)->handle)
               : status;
}

bool gemm_was_refused(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

err_t gemm_product(struct kern_stream *s, struct gemm_product *p)
{
    struct gemm_entry *e;
    void *workspace = gemm_workspace(s, p);
    err_t err = workspace ? gemm_entry_of(s, p, &e) : cuda_stream_of(s)->err;
    if (err == OK && e->state == GEMM_FRESH) {
        err = gemm_choose(s, p, &e);
        workspace = gemm_workspace(s, p); /* scratch memory may have grown */
    }
    if (err != OK || !workspace)
        return err != OK ? err : cuda_stream_of(s)->err;
    if (e->state == GEMM_NONE)
        return ERR_UNSUPPORTED;
    cublasStatus_t status = gemm_queue(s, p, e, 1, p->add ? 1 : 0, workspace);
    if (gemm_was_refused(status)) { /* the heuristics proposed an algorithm that this GPU cannot run */
        e->state = GEMM_NONE;
        return ERR_UNSUPPORTED;
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return gemm_blas_failed(s, p->g, status, "cublasLtMatmul", __FILE__, __LINE__);
    return cuda_check(s, cudaSuccess, "cublasLtMatmul", __FILE__, __LINE__);
}
