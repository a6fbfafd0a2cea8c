/* Matrix products x = op(A) op(B) and the operations that a program attaches to them, by cuBLASLt with float32
 * accumulation, never TF32.
 *
 * A product first tries to fuse its epilogue: bias, GELU with the values that its gradient needs, GELU's gradient, or
 * the sum over k of an operand (the gradient of a bias). The fused form is not used if cuBLASLt must not compute it
 * (gemm_product.h: it cannot, it is slower that way, or it is not exact), or if a pointer or leading dimension is not
 * aligned as that form requires. Then the plain product and our own kernels give the same result: the bias is written
 * to the result first and the product adds to it, so x is rounded once in both cases. If cuBLASLt has no algorithm for
 * the plain product either, gemm_own.cu computes it. In float32 our own kernel always computes GELU, because the
 * library's accuracy is not documented.
 *
 * A fused sum overwrites its output, so it goes to scratch memory and is added from there.
 *
 * Matrices that span 2^31 elements or more are cut, because not every algorithm of the library uses 64-bit indices. */
#include "kernels/cuda/gemm_fill.h"
#include "kernels/cuda/gemm_product.h"
#include "kernels/cuda/reduce.h"

#include <assert.h>
#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

#ifndef GEMM_SPAN /* a test sets a small value */
#define GEMM_SPAN INT32_MAX
#endif
#define GEMM_CUT_ALIGN 256 /* cuts are at multiples of this, so that parts stay aligned */
#define FUSED_ALIGN 16     /* alignment of vectors and of aux, bytes */
#define AUX_LD_ALIGN 8     /* elements */
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

static struct gemm_product product_of(const struct kern_gemm *g, cublasLtEpilogue_t epilogue)
{
    return (struct gemm_product){.g = g,
                                 .type = ELEM_TYPE,
                                 .c_type = g->wide_c ? CUDA_R_32F : ELEM_TYPE,
                                 .epilogue = epilogue,
                                 .add = g->accumulate};
}

/* ---- fused, or in steps ---- */

static bool vector_fits(const void *p)
{
    return gemm_alignment(p) >= FUSED_ALIGN;
}

static bool aux_fits(const struct kern_gemm *g)
{
    return gemm_alignment(g->aux) >= FUSED_ALIGN && g->ldc % AUX_LD_ALIGN == 0;
}

/* Computes x without act and sums, by a product that adds to the bias. */
static err_t plain_apart(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->bias)
        KERN_FN(gemm_fill)(s, g->m, g->n, g->ldc, g->bias, g->wide_c, g->c);
    struct gemm_product p = product_of(g, CUBLASLT_EPILOGUE_DEFAULT);
    p.add = g->accumulate || g->bias;
    err_t err = gemm_product(s, &p);
    if (err != ERR_UNSUPPORTED)
        return err;
    KERN_FN(gemm_own)(s, g, p.add);
    return OK;
}

/* Computes x without act and sums. */
static err_t plain(struct kern_stream *s, const struct kern_gemm *g)
{
    struct gemm_product p = product_of(g, CUBLASLT_EPILOGUE_BIAS);
    p.vector = offset(g->bias, 0, 1);
    p.apart = plain_apart;
    /* cuBLASLt requires the bias to have the result's type. */
    bool fits = g->bias && vector_fits(g->bias) && c_bytes(g) == ELEM_BYTES;
    err_t err = fits ? gemm_product(s, &p) : ERR_UNSUPPORTED;
    return err == ERR_UNSUPPORTED ? plain_apart(s, g) : err;
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

/* Applies the activation row by row if rows are not contiguous. */
static void act_rows(struct kern_stream *s, const struct kern_gemm *g, act_fn *fn)
{
    bool dense = g->ldc == g->n;
    int64_t rows = dense ? 1 : g->m, length = dense ? g->m * g->n : g->n;
    for (int64_t i = 0; i < rows; i++)
        fn(s, length, offset(g->aux, i * g->ldc, ELEM_BYTES), offset(g->c, i * g->ldc, ELEM_BYTES));
}

/* Computes x into the activation's input, then applies the activation. */
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
    struct gemm_product p = product_of(g, CUBLASLT_EPILOGUE_DGELU);
    p.aux = g->aux;
    p.apart = in_steps;
    if (g->act == KERN_ACT_GELU) {
        p.epilogue = g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        p.vector = offset(g->bias, 0, 1);
    }
    bool fits = KERN_CUDA_BITS == 16 && g->k > 0 && aux_fits(g) && (p.vector ? vector_fits(p.vector) : !g->bias);
    err_t err = fits ? gemm_product(s, &p) : ERR_UNSUPPORTED;
    return err == ERR_UNSUPPORTED ? in_steps(s, g) : err;
}

/* ---- sums over k ---- */

/* [m] += op(A) summed along k, which is down the columns of the stored matrix or along its rows. */
static void sum_of_a(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->trans_a)
        KERN_FN(columns_add)(s, g->k, g->m, g->lda, g->a, g->a_sum);
    else
        KERN_FN(rows_add)(s, g->m, g->k, g->lda, g->a, g->a_sum);
}

static void sum_of_b(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->trans_b)
        KERN_FN(rows_add)(s, g->n, g->k, g->ldb, g->b, g->b_sum);
    else
        KERN_FN(columns_add)(s, g->k, g->n, g->ldb, g->b, g->b_sum);
}

static void sums(struct kern_stream *s, const struct kern_gemm *g)
{
    if (g->a_sum && g->m > 0 && g->k > 0)
        sum_of_a(s, g);
    if (g->b_sum && g->n > 0 && g->k > 0)
        sum_of_b(s, g);
}

static err_t with_sum_apart(struct kern_stream *s, const struct kern_gemm *g)
{
    err_t err = in_steps(s, g);
    if (err == OK)
        sums(s, g);
    return err;
}

/* Computes one sum as the product's epilogue. The library writes it in the result's type, so that must be the wide
 * type. B is cuBLASLt's first operand. */
static err_t with_sum(struct kern_stream *s, const struct kern_gemm *g, bool of_b)
{
    struct kern_gemm one = *g; /* without the other sum */
    int64_t length = of_b ? g->n : g->m;
    void *to = of_b ? g->b_sum : g->a_sum;
    if (c_bytes(g) != WIDE_BYTES)
        return ERR_UNSUPPORTED;
    one.a_sum = of_b ? NULL : to;
    one.b_sum = of_b ? to : NULL;
    struct gemm_product p = product_of(&one, of_b ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB);
    p.vector_bytes = (size_t)(length * WIDE_BYTES);
    p.apart = with_sum_apart;
    err_t err = gemm_product(s, &p);
    if (err == OK)
        kern_cuda_f32_add(s, length, to, p.vector, to);
    return err;
}

/* ---- the whole ---- */

/* Computes c and at most one of the sums with it; that sum is cleared in `left`. */
static err_t result(struct kern_stream *s, const struct kern_gemm *g, struct kern_gemm *left)
{
    if (g->m == 0 || g->n == 0)
        return OK;
    if (g->act != KERN_ACT_NONE)
        return with_act(s, g);
    bool of_b = g->b_sum != NULL;
    if ((g->a_sum || g->b_sum) && g->k > 0 && !g->bias) {
        err_t err = with_sum(s, g, of_b);
        if (err == OK)
            *(of_b ? &left->b_sum : &left->a_sum) = NULL;
        if (err != ERR_UNSUPPORTED)
            return err;
    }
    return in_steps(s, g);
}

static err_t gemm_small(struct kern_stream *s, const struct kern_gemm *g)
{
    struct kern_gemm left = *g;
    err_t err = result(s, g, &left);
    if (err == OK)
        sums(s, &left);
    return err;
}

/* ---- cutting ---- */

static bool too_far(int64_t rows, int64_t ld)
{
    return rows > 0 && ld > GEMM_SPAN / rows;
}

/* The dimension to cut: the one that makes the rows of a matrix that is too large; '\0' if none is. */
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

/* Rows [from, from + length) of the dimension. Sums are over k: if the cut is along m or n, one of the two sums belongs
 * to the first part alone. */
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
    /* Partial sums would be rounded to the result's type, or would pass through the activation. */
    if (half == 0 || (cut == 'k' && (c_bytes(g) != WIDE_BYTES || g->act != KERN_ACT_NONE)))
        return gemm_failed(s, g, ERR_UNSUPPORTED, "an operand spans 2^31 elements and cannot be cut", "gemm", __FILE__,
                           __LINE__);
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
