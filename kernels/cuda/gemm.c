/* Products by cuBLASLt, float32 accumulation, never TF32.
 *
 * A product is tried with its epilogue fused: bias, GELU with what its gradient needs, GELU's gradient, or the sum over
 * k of an operand (a bias' gradient). Where cuBLASLt has no algorithm for a fused form, or a pointer or leading
 * dimension is not aligned as that form asks, the plain product and kernels of our own do the same: the bias is written
 * into the result first and the product adds to it, so that x is rounded once in both ways. What was decided is kept by
 * shape (gemm_cache.h). In float32 GELU is always ours: how exactly the library computes it is written nowhere, and
 * bfloat16 alone forgives it.
 *
 * A fused sum overwrites, so it goes to scratch and is added from there. A sum that cannot be fused is bias_grad's
 * where the operand lies as that reads it, else a product with a vector of ones.
 *
 * Matrices that span 2^31 elements and more are cut, because not every algorithm of the library counts in 64 bits. */
#include "kernels/cuda/gemm_cache.h"
#include "kernels/cuda/gemm_fill.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#ifndef GEMM_SPAN /* a test makes it small */
#define GEMM_SPAN INT32_MAX
#endif
#define GEMM_CUT_ALIGN 256 /* cuts fall on multiples, so that parts stay aligned */
#define FUSED_ALIGN 16     /* bytes, of vectors and of aux */
#define AUX_LD_ALIGN 8     /* elements */
#define SCRATCH_ALIGN 256
#define ELEM_BYTES ((int64_t)(KERN_CUDA_BITS / 8))
#define WIDE_BYTES ((int64_t)sizeof(float))
#define ELEM_TYPE (KERN_CUDA_BITS == 32 ? CUDA_R_32F : CUDA_R_16BF)

/* Sums are float32 in both tables. */
void kern_cuda_f32_add(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);

static err_t gemm_any(struct kern_stream *s, const struct kern_gemm *g);

static void *offset(const void *p, int64_t elements, int64_t bytes)
{
    return p ? (char *)(uintptr_t)p + elements * bytes : NULL;
}

static int64_t c_bytes(const struct kern_gemm *g)
{
    return g->wide_c ? WIDE_BYTES : ELEM_BYTES;
}

static uint32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return p == NULL ? 0 : low == 0 || low > 256 ? 256 : (uint32_t)low;
}

static err_t failed(struct kern_stream *s, const struct kern_gemm *g, err_t err, const char *cause, const char *call,
                    int line)
{
    struct why why;
    why_set(&why, OK, "%s: a %s product of %lld x %lld x %lld (lda %lld, ldb %lld, ldc %lld)", cause,
            dtype_name(CUDA_DTYPE), (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->lda,
            (long long)g->ldb, (long long)g->ldc);
    return cuda_fail(s, err, call, __FILE__, line, why.text);
}

static err_t blas_failed(struct kern_stream *s, const struct kern_gemm *g, cublasStatus_t status, const char *call,
                         int line)
{
    return failed(s, g, ERR_INTERNAL, cublasLtGetStatusString(status), call, line);
}

/* ---- one product, one epilogue ---- */

/* `vector` and `aux` as the epilogue takes them. */
struct product {
    const struct kern_gemm *g;
    uint32_t epilogue;
    const void *vector, *aux;
    bool add; /* c is added to */
};

static struct gemm_key key_of(const struct product *p)
{
    const struct kern_gemm *g = p->g;
    struct gemm_key key;
    memset(&key, 0, sizeof(key));
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.epilogue = p->epilogue;
    key.type = ELEM_TYPE;
    key.c_type = g->wide_c ? CUDA_R_32F : ELEM_TYPE;
    key.trans_a = g->trans_a, key.trans_b = g->trans_b, key.accumulate = p->add;
    key.a_align = alignment(g->a), key.b_align = alignment(g->b), key.c_align = alignment(g->c);
    key.vector_align = alignment(p->vector), key.aux_align = alignment(p->aux);
    return key;
}

static err_t product_find(struct kern_stream *s, const struct product *p, struct gemm_entry **ret)
{
    struct gemm_key key = key_of(p);
    cublasStatus_t status = gemm_cache_find(cuda_dev_of(s), &key, p->vector, p->aux, ret);
    return status == CUBLAS_STATUS_SUCCESS ? OK
                                           : blas_failed(s, p->g, status, "cublasLtMatmulAlgoGetHeuristic", __LINE__);
}

static cublasStatus_t set_pointers(const struct product *p, struct gemm_entry *e)
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

/* The heuristics promised what this GPU then refused. */
static bool was_refused(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* `workspace` has GEMM_WORKSPACE bytes. ERR_UNSUPPORTED, without a trace, for a fused form that is refused. */
static err_t product_run(struct kern_stream *s, const struct product *p, struct gemm_entry *e, void *workspace)
{
    const struct kern_gemm *g = p->g;
    const float alpha = 1, beta = p->add ? 1 : 0;
    cublasStatus_t status = set_pointers(p, e);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(cuda_dev_of(s)->blaslt, e->desc, &alpha, g->b, e->a, g->a, e->b, &beta, g->c, e->c,
                                g->c, e->c, &e->algo, workspace, GEMM_WORKSPACE, cuda_stream_of(s)->handle);
    if (was_refused(status) && p->epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        e->supported = false;
        return ERR_UNSUPPORTED;
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return blas_failed(s, g, status, "cublasLtMatmul", __LINE__);
    return cuda_check(s, cudaSuccess, "cublasLtMatmul", __FILE__, __LINE__);
}

/* ERR_UNSUPPORTED, without a trace: no algorithm. */
static err_t product_try(struct kern_stream *s, const struct product *p)
{
    struct gemm_entry *e;
    err_t err = product_find(s, p, &e);
    if (err != OK)
        return err;
    if (!e->supported)
        return ERR_UNSUPPORTED;
    void *workspace = cuda_scratch(s, GEMM_WORKSPACE);
    return workspace ? product_run(s, p, e, workspace) : cuda_stream_of(s)->err;
}

/* ---- fused, or in steps ---- */

static bool vector_fits(const void *p)
{
    return alignment(p) >= FUSED_ALIGN;
}

static bool aux_fits(const struct kern_gemm *g)
{
    return alignment(g->aux) >= FUSED_ALIGN && g->ldc % AUX_LD_ALIGN == 0;
}

/* x without act and sums. */
static err_t plain(struct kern_stream *s, const struct kern_gemm *g)
{
    struct product p = {.g = g, .epilogue = CUBLASLT_EPILOGUE_BIAS, .vector = g->bias};
    /* cuBLASLt takes a bias of the result's type. */
    if (g->bias && vector_fits(g->bias) && c_bytes(g) == ELEM_BYTES) {
        err_t err = product_try(s, &p);
        if (err != ERR_UNSUPPORTED)
            return err;
    }
    if (g->bias)
        KERN_FN(gemm_fill)(s, g->m, g->n, g->ldc, g->bias, g->wide_c, g->c);
    p = (struct product){.g = g, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .add = g->accumulate || g->bias};
    err_t err = product_try(s, &p);
    return err == ERR_UNSUPPORTED
               ? blas_failed(s, g, CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", __LINE__)
               : err;
}

typedef void act_fn(struct kern_stream *s, int64_t n, const void *aux, void *c);

static void act_gelu(struct kern_stream *s, int64_t n, const void *aux, void *c)
{
    KERN_FN(gelu)(s, n, aux, c);
}

static void act_gelu_grad(struct kern_stream *s, int64_t n, const void *aux, void *c)
{
    KERN_FN(gelu_grad)(s, n, aux, c, c);
}

/* Row by row where rows do not follow each other. */
static void act_rows(struct kern_stream *s, const struct kern_gemm *g, act_fn *fn)
{
    bool dense = g->ldc == g->n;
    int64_t rows = dense ? 1 : g->m, length = dense ? g->m * g->n : g->n;
    for (int64_t i = 0; i < rows; i++)
        fn(s, length, offset(g->aux, i * g->ldc, ELEM_BYTES), offset(g->c, i * g->ldc, ELEM_BYTES));
}

/* x to where the activation reads it, then the activation. */
static err_t in_steps(struct kern_stream *s, const struct kern_gemm *g)
{
    struct kern_gemm x = *g;
    x.act = KERN_ACT_NONE;
    x.aux = NULL;
    if (g->act == KERN_ACT_GELU)
        x.c = g->aux;
    if (g->k > 0) {
        err_t err = plain(s, &x);
        if (err != OK)
            return err;
    } else if (!g->accumulate) {
        KERN_FN(gemm_fill)(s, g->m, g->n, g->ldc, g->bias, g->wide_c, x.c);
    }
    if (g->act == KERN_ACT_GELU)
        act_rows(s, g, act_gelu);
    else if (g->act == KERN_ACT_GELU_GRAD)
        act_rows(s, g, act_gelu_grad);
    return OK;
}

static err_t with_act(struct kern_stream *s, const struct kern_gemm *g)
{
    struct product p = {.g = g, .aux = g->aux};
    if (g->act == KERN_ACT_GELU) {
        p.epilogue = g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        p.vector = g->bias;
    } else {
        p.epilogue = CUBLASLT_EPILOGUE_DGELU;
    }
    bool fits = KERN_CUDA_BITS == 16 && g->k > 0 && aux_fits(g) && (p.vector ? vector_fits(p.vector) : !g->bias);
    err_t err = fits ? product_try(s, &p) : ERR_UNSUPPORTED;
    return err == ERR_UNSUPPORTED ? in_steps(s, g) : err;
}

/* ---- sums over k ---- */

static err_t sum_by_ones(struct kern_stream *s, const struct kern_gemm *sum, int64_t k)
{
    struct kern_gemm g = *sum;
    void *scratch = cuda_scratch(s, GEMM_WORKSPACE + (size_t)(k * ELEM_BYTES));
    struct gemm_entry *e;
    if (!scratch)
        return cuda_stream_of(s)->err;
    void *ones = offset(scratch, GEMM_WORKSPACE, 1);
    KERN_FN(gemm_ones)(s, k, ones);
    if (!g.a)
        g.a = ones;
    else
        g.b = ones;
    struct product p = {.g = &g, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .add = true};
    err_t err = product_find(s, &p, &e);
    if (err != OK)
        return err;
    if (!e->supported)
        return blas_failed(s, &g, CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", __LINE__);
    return product_run(s, &p, e, scratch);
}

/* [m,1] += op(A) ones, [1,n] += ones op(B) */
static err_t sum_of_a(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->trans_a && g->lda == g->m) {
        KERN_FN(bias_grad)(s, g->k, g->m, g->a, g->a_sum);
        return OK;
    }
    struct kern_gemm sum = {.trans_a = g->trans_a,
                            .wide_c = true,
                            .m = g->m,
                            .n = 1,
                            .k = g->k,
                            .lda = g->lda,
                            .ldb = 1,
                            .ldc = 1,
                            .a = g->a,
                            .c = g->a_sum};
    return sum_by_ones(s, &sum, g->k);
}

static err_t sum_of_b(struct kern_stream *s, const struct kern_gemm *g)
{
    if (!g->trans_b && g->ldb == g->n) {
        KERN_FN(bias_grad)(s, g->k, g->n, g->b, g->b_sum);
        return OK;
    }
    struct kern_gemm sum = {.trans_b = g->trans_b,
                            .wide_c = true,
                            .m = 1,
                            .n = g->n,
                            .k = g->k,
                            .lda = g->k,
                            .ldb = g->ldb,
                            .ldc = g->n,
                            .b = g->b,
                            .c = g->b_sum};
    return sum_by_ones(s, &sum, g->k);
}

/* One sum as the product's epilogue. The library writes it in the result's type, so that has to be the wide one. B is
 * cuBLASLt's first operand. */
static err_t with_sum(struct kern_stream *s, const struct kern_gemm *g, bool of_b)
{
    int64_t length = of_b ? g->n : g->m;
    void *to = of_b ? g->b_sum : g->a_sum;
    if (c_bytes(g) != WIDE_BYTES)
        return ERR_UNSUPPORTED;
    char *scratch = cuda_scratch(s, GEMM_WORKSPACE + (size_t)(length * WIDE_BYTES));
    if (!scratch)
        return cuda_stream_of(s)->err;
    struct product p = {.g = g,
                        .epilogue = of_b ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB,
                        .vector = scratch + GEMM_WORKSPACE,
                        .add = g->accumulate};
    struct gemm_entry *e;
    err_t err = product_find(s, &p, &e);
    if (err == OK && !e->supported)
        return ERR_UNSUPPORTED;
    if (err == OK)
        err = product_run(s, &p, e, scratch);
    if (err == OK)
        kern_cuda_f32_add(s, length, to, p.vector, to);
    return err;
}

/* ---- the whole ---- */

/* c, and at most one of the sums with it: then that is cleared in `sums`. */
static err_t result(struct kern_stream *s, const struct kern_gemm *g, struct kern_gemm *sums)
{
    if (g->m == 0 || g->n == 0)
        return OK;
    if (g->act != KERN_ACT_NONE)
        return with_act(s, g);
    bool of_b = g->b_sum != NULL;
    if ((g->a_sum || g->b_sum) && g->k > 0 && !g->bias) {
        err_t err = with_sum(s, g, of_b);
        if (err == OK)
            *(of_b ? &sums->b_sum : &sums->a_sum) = NULL;
        if (err != ERR_UNSUPPORTED)
            return err;
    }
    return in_steps(s, g);
}

static err_t gemm_small(struct kern_stream *s, const struct kern_gemm *g)
{
    struct kern_gemm sums = *g;
    err_t err = result(s, g, &sums);
    if (err == OK && sums.a_sum && g->m > 0 && g->k > 0)
        err = sum_of_a(s, &sums);
    if (err == OK && sums.b_sum && g->n > 0 && g->k > 0)
        err = sum_of_b(s, &sums);
    return err;
}

/* ---- cutting ---- */

static bool too_far(int64_t rows, int64_t ld)
{
    return rows > 0 && ld > GEMM_SPAN / rows;
}

/* Cuts along the dimension that makes rows of what is too large: '\0' when nothing is. */
static char cut_of(const struct kern_gemm *g)
{
    if (too_far(g->m, g->ldc) || (!g->trans_a && too_far(g->m, g->lda)))
        return 'm';
    if (g->trans_b && too_far(g->n, g->ldb))
        return 'n';
    if ((g->trans_a && too_far(g->k, g->lda)) || (!g->trans_b && too_far(g->k, g->ldb)))
        return 'k';
    return '\0';
}

/* Rows [from, from + length) of the dimension. Sums are over k: cut along m or n, one of them belongs to one part. */
static struct kern_gemm part_of(const struct kern_gemm *g, char cut, int64_t from, int64_t length)
{
    struct kern_gemm p = *g;
    if (cut == 'm') {
        p.m = length;
        p.a = offset(g->a, g->trans_a ? from : from * g->lda, ELEM_BYTES);
        p.c = offset(g->c, from * g->ldc, c_bytes(g));
        p.aux = offset(g->aux, from * g->ldc, ELEM_BYTES);
        p.a_sum = offset(g->a_sum, from, WIDE_BYTES);
        p.b_sum = from == 0 ? g->b_sum : NULL;
    } else if (cut == 'n') {
        p.n = length;
        p.b = offset(g->b, g->trans_b ? from * g->ldb : from, ELEM_BYTES);
        p.c = offset(g->c, from, c_bytes(g));
        p.aux = offset(g->aux, from, ELEM_BYTES);
        p.bias = offset(g->bias, from, ELEM_BYTES);
        p.b_sum = offset(g->b_sum, from, WIDE_BYTES);
        p.a_sum = from == 0 ? g->a_sum : NULL;
    } else {
        p.k = length;
        p.a = offset(g->a, g->trans_a ? from * g->lda : from, ELEM_BYTES);
        p.b = offset(g->b, g->trans_b ? from : from * g->ldb, ELEM_BYTES);
        p.accumulate = g->accumulate || from > 0;
        p.bias = from == 0 ? g->bias : NULL;
    }
    return p;
}

static err_t gemm_cut(struct kern_stream *s, const struct kern_gemm *g, char cut)
{
    int64_t whole = cut == 'm' ? g->m : cut == 'n' ? g->n : g->k;
    int64_t half = whole / 2 >= GEMM_CUT_ALIGN ? whole / 2 / GEMM_CUT_ALIGN * GEMM_CUT_ALIGN : whole / 2;
    /* Parts of a sum would be rounded to the result's type, or go through the activation. */
    if (half == 0 || (cut == 'k' && (c_bytes(g) != WIDE_BYTES || g->act != KERN_ACT_NONE)))
        return failed(s, g, ERR_UNSUPPORTED, "an operand spans 2^31 elements and cannot be cut", "gemm", __LINE__);
    struct kern_gemm first = part_of(g, cut, 0, half), second = part_of(g, cut, half, whole - half);
    err_t err = gemm_any(s, &first);
    return err == OK ? gemm_any(s, &second) : err;
}

static err_t gemm_any(struct kern_stream *s, const struct kern_gemm *g)
{
    char cut = cut_of(g);
    return cut ? gemm_cut(s, g, cut) : gemm_small(s, g);
}

err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g)
{
    assert(g->lda >= (g->trans_a ? g->m : g->k) && g->ldb >= (g->trans_b ? g->k : g->n) && g->ldc >= g->n);
    assert(!g->accumulate || (!g->bias && g->act == KERN_ACT_NONE));
    assert((g->act == KERN_ACT_NONE) == !g->aux && (g->act == KERN_ACT_NONE || !g->wide_c));
    return cuda_enter(s) ? gemm_any(s, g) : cuda_stream_of(s)->err;
}
