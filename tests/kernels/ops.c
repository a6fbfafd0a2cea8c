/* The rows of op_desc. Operands stand in the order of the kernel's arguments. */
#include "tests/kernels/ops.h"

#include <stddef.h>
#include <string.h>

static struct operand in(int64_t n)
{
    return (struct operand){IN, REALS, n};
}

static struct operand out(int64_t n)
{
    return (struct operand){OUT, REALS, n};
}

static struct operand acc(int64_t n)
{
    return (struct operand){ACC, REALS, n};
}

static struct operand input(enum content content, int64_t n)
{
    return (struct operand){IN, content, n};
}

static struct operand when(bool present, struct operand o)
{
    return present ? o : (struct operand){0};
}

/* rows x cols elements with a row stride of `stride`: the last row ends where its columns do */
static int64_t strided(int64_t rows, int64_t cols, int64_t stride)
{
    return rows ? (rows - 1) * stride + cols : 0;
}

/* ---- products ---- */

static struct kern_gemm gemm_of(const struct kcase *c)
{
    bool ta = c->flags & TRANS_A, tb = c->flags & TRANS_B;
    return (struct kern_gemm){.trans_a = ta,
                              .trans_b = tb,
                              .accumulate = c->flags & ADD_TO,
                              .m = c->m,
                              .n = c->n,
                              .k = c->k,
                              .lda = (ta ? c->m : c->k) + c->pad,
                              .ldb = (tb ? c->k : c->n) + c->pad,
                              .ldc = c->n + c->pad};
}

static void gemm_shape(const struct kcase *c, struct operand *o)
{
    struct kern_gemm g = gemm_of(c);
    o[0] = in(g.trans_a ? strided(g.k, g.m, g.lda) : strided(g.m, g.k, g.lda));
    o[1] = in(g.trans_b ? strided(g.n, g.k, g.ldb) : strided(g.k, g.n, g.ldb));
    o[2] = when(c->flags & BIAS, in(g.n));
    o[3] = g.accumulate ? acc(strided(g.m, g.n, g.ldc)) : out(strided(g.m, g.n, g.ldc));
}

static err_t gemm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_gemm g = gemm_of(c);
    g.a = p[0];
    g.b = p[1];
    g.bias = p[2];
    g.c = p[3];
    return k->gemm(s, &g);
}

static int64_t gemm_terms(const struct kcase *c)
{
    return c->k + 1;
}

static void bias_grad_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->m * c->n);
    o[1] = acc(c->n);
}

static err_t bias_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->bias_grad(s, c->m, c->n, p[0], p[1]);
    return OK;
}

static void bias_grad_link(const struct kcase *c, struct link *l)
{
    l->forward = "gemm";
    l->seed[0] = 3;
    l->target[1] = 2;
}

static int64_t bias_grad_terms(const struct kcase *c)
{
    return c->m;
}

/* ---- embeddings ---- */

static void embed_shape(const struct kcase *c, struct operand *o)
{
    o[0] = input(IDS, c->t);
    o[1] = in(c->vocab * c->d);
    o[2] = when(c->flags & POS, in(c->seq * c->d));
    o[3] = out(c->t * c->d);
}

static err_t embed_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->embed(s, c->t, c->d, c->seq, p[0], p[1], p[2], p[3]);
    return OK;
}

static void embed_grad_shape(const struct kcase *c, struct operand *o)
{
    o[0] = input(IDS, c->t);
    o[1] = in(c->t * c->d);
    o[2] = acc(c->vocab * c->d);
    o[3] = when(c->flags & POS, acc(c->seq * c->d));
}

static err_t embed_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->embed_grad(s, c->t, c->d, c->seq, p[0], p[1], p[2], p[3]);
    return OK;
}

static void embed_grad_link(const struct kcase *c, struct link *l)
{
    l->forward = "embed";
    l->from[0] = 0;
    l->seed[1] = 3;
    l->target[2] = 1;
    l->target[3] = c->flags & POS ? 2 : NONE;
}

static int64_t rows_terms(const struct kcase *c)
{
    return c->t;
}

/* ---- norms ---- */

#define NORM_EPS 1e-5

static void rmsnorm_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->t * c->d);
    o[1] = when(c->flags & RES, in(c->t * c->d));
    o[2] = input(WEIGHTS, c->d);
    o[3] = when(c->flags & RES, out(c->t * c->d));
    o[4] = out(c->t * c->d);
    o[5] = out(c->t);
}

static err_t rmsnorm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm(s, c->t, c->d, NORM_EPS, p[0], p[1], p[2], p[3], p[4], p[5]);
    return OK;
}

static void rmsnorm_grad_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->t * c->d);
    o[1] = input(WEIGHTS, c->d);
    o[2] = input(POSITIVE, c->t);
    o[3] = in(c->t * c->d);
    o[4] = when(c->flags & RES, in(c->t * c->d));
    o[5] = out(c->t * c->d);
    o[6] = acc(c->d);
}

static err_t rmsnorm_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm_grad(s, c->t, c->d, p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    return OK;
}

static void rmsnorm_grad_link(const struct kcase *c, struct link *l)
{
    bool res = c->flags & RES;
    l->forward = "rmsnorm";
    l->from[0] = res ? 3 : 0;
    l->from[1] = 2;
    l->from[2] = 5;
    l->seed[3] = 4;
    l->seed[4] = res ? 3 : NONE;
    l->target[5] = 0;
    l->target[6] = 2;
}

static void layernorm_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->t * c->d);
    o[1] = when(c->flags & RES, in(c->t * c->d));
    o[2] = input(WEIGHTS, c->d);
    o[3] = in(c->d);
    o[4] = when(c->flags & RES, out(c->t * c->d));
    o[5] = out(c->t * c->d);
    o[6] = out(c->t);
    o[7] = out(c->t);
}

static err_t layernorm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->layernorm(s, c->t, c->d, NORM_EPS, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
    return OK;
}

static void layernorm_grad_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->t * c->d);
    o[1] = input(WEIGHTS, c->d);
    o[2] = in(c->t);
    o[3] = input(POSITIVE, c->t);
    o[4] = in(c->t * c->d);
    o[5] = when(c->flags & RES, in(c->t * c->d));
    o[6] = out(c->t * c->d);
    o[7] = acc(c->d);
    o[8] = acc(c->d);
}

static err_t layernorm_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->layernorm_grad(s, c->t, c->d, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]);
    return OK;
}

static void layernorm_grad_link(const struct kcase *c, struct link *l)
{
    bool res = c->flags & RES;
    l->forward = "layernorm";
    l->from[0] = res ? 4 : 0;
    l->from[1] = 2;
    l->from[2] = 6;
    l->from[3] = 7;
    l->seed[4] = 5;
    l->seed[5] = res ? 4 : NONE;
    l->target[6] = 0;
    l->target[7] = 2;
    l->target[8] = 3;
}

static int64_t norm_terms(const struct kcase *c)
{
    return c->d > c->t ? c->d : c->t;
}

/* ---- positions and attention ---- */

static void rope_shape(const struct kcase *c, struct operand *o)
{
    o[0] = acc(strided(c->t, c->heads * c->head_dim, c->heads * c->head_dim + c->pad));
}

static err_t rope_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rope(s, c->t, c->seq, 3 /* as if a prefix had been there */, c->heads, c->head_dim,
            c->heads * c->head_dim + c->pad, 10000, c->flags & INVERSE, p[0]);
    return OK;
}

static struct kern_attention attention_of(const struct kcase *c)
{
    int64_t q = c->heads * c->head_dim + c->pad, kv = c->kv_heads * c->head_dim + 2 * c->pad;
    return (struct kern_attention){.batch = c->t / c->seq,
                                   .seq = c->seq,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .head_dim = c->head_dim,
                                   .q_stride = q,
                                   .k_stride = kv,
                                   .v_stride = kv + c->pad,
                                   .o_stride = q + c->pad,
                                   .causal = c->flags & CAUSAL};
}

static void attention_shape(const struct kcase *c, struct operand *o)
{
    struct kern_attention a = attention_of(c);
    o[0] = in(strided(c->t, a.heads * a.head_dim, a.q_stride));
    o[1] = in(strided(c->t, a.kv_heads * a.head_dim, a.k_stride));
    o[2] = in(strided(c->t, a.kv_heads * a.head_dim, a.v_stride));
    o[3] = out(strided(c->t, a.heads * a.head_dim, a.o_stride));
    o[4] = out(c->t * a.heads);
}

static err_t attention_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention a = attention_of(c);
    a.q = p[0];
    a.k = p[1];
    a.v = p[2];
    a.o = p[3];
    a.lse = p[4];
    return k->attention(s, &a);
}

static void attention_grad_shape(const struct kcase *c, struct operand *o)
{
    attention_shape(c, o);
    o[3].role = o[4].role = IN;
    o[5] = in(o[3].n);
    for (int i = 0; i < 3; i++)
        o[6 + i] = out(o[i].n);
}

static err_t attention_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention_grad g = {.fwd = attention_of(c), .d_o = p[5], .d_q = p[6], .d_k = p[7], .d_v = p[8]};
    g.fwd.q = p[0];
    g.fwd.k = p[1];
    g.fwd.v = p[2];
    g.fwd.o = p[3];
    g.fwd.lse = p[4];
    return k->attention_grad(s, &g);
}

static void attention_grad_link(const struct kcase *c, struct link *l)
{
    l->forward = "attention";
    for (int i = 0; i < 5; i++)
        l->from[i] = i;
    l->seed[5] = 3;
    for (int i = 0; i < 3; i++)
        l->target[6 + i] = i;
}

static int64_t attention_terms(const struct kcase *c)
{
    return c->seq * (c->heads / c->kv_heads) + c->head_dim;
}

/* ---- element by element ---- */

/* y = f(x0[, x1]), all of n elements */
#define UNARY(name)                                                                                            \
    static err_t name##_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p) \
    {                                                                                                          \
        k->name(s, c->n, p[0], p[1]);                                                                          \
        return OK;                                                                                             \
    }
#define BINARY(name)                                                                                           \
    static err_t name##_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p) \
    {                                                                                                          \
        k->name(s, c->n, p[0], p[1], p[2]);                                                                    \
        return OK;                                                                                             \
    }

UNARY(gelu)
UNARY(relu)
UNARY(copy)
BINARY(swiglu)
BINARY(gelu_grad)
BINARY(relu_grad)
BINARY(add)

static void unary_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->n);
    o[1] = out(c->n);
}

static void binary_shape(const struct kcase *c, struct operand *o)
{
    o[0] = o[1] = in(c->n);
    o[2] = out(c->n);
}

/* exp magnifies its argument's rounding by the argument: as if so many terms had been added */
static int64_t gate_terms(const struct kcase *c)
{
    return 8;
}

static void gelu_grad_link(const struct kcase *c, struct link *l)
{
    l->forward = "gelu";
    l->from[0] = 0;
    l->seed[1] = 1;
    l->target[2] = 0;
}

static void relu_grad_link(const struct kcase *c, struct link *l)
{
    gelu_grad_link(c, l);
    l->forward = "relu";
}

static void swiglu_grad_shape(const struct kcase *c, struct operand *o)
{
    o[0] = o[1] = o[2] = in(c->n);
    o[3] = o[4] = out(c->n);
}

static err_t swiglu_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->swiglu_grad(s, c->n, p[0], p[1], p[2], p[3], p[4]);
    return OK;
}

static void swiglu_grad_link(const struct kcase *c, struct link *l)
{
    l->forward = "swiglu";
    l->from[0] = 0;
    l->from[1] = 1;
    l->seed[2] = 2;
    l->target[3] = 0;
    l->target[4] = 1;
}

static void zero_shape(const struct kcase *c, struct operand *o)
{
    o[0] = out(c->n);
}

static err_t zero_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->zero(s, c->n, p[0]);
    return OK;
}

/* ---- loss and optimizer ---- */

#define LOSS_SCALE 0.125

static void cross_entropy_shape(const struct kcase *c, struct operand *o)
{
    o[0] = input(TARGETS, c->t);
    o[1] = acc(c->t * c->vocab);
    o[2] = (struct operand){ACC, DOUBLES, 1};
}

static err_t cross_entropy_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->cross_entropy(s, c->t, c->vocab, p[0], c->flags & GRAD, LOSS_SCALE, p[1], p[2]);
    return OK;
}

/* The terms of a softmax are added in runs and then in float64. */
static int64_t cross_entropy_terms(const struct kcase *c)
{
    return 64;
}

static void adamw_shape(const struct kcase *c, struct operand *o)
{
    o[0] = o[1] = acc(c->n);
    o[2] = (struct operand){ACC, POSITIVE, c->n};
    o[3] = in(c->n);
}

static err_t adamw_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_adamw a = {.n = c->n,
                           .p = p[0],
                           .m = p[1],
                           .v = p[2],
                           .g = p[3],
                           .lr = 3e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = 0.25,
                           .step = 7};
    k->adamw(s, &a);
    return OK;
}

static void sumsq_shape(const struct kcase *c, struct operand *o)
{
    o[0] = in(c->n);
    o[1] = (struct operand){OUT, DOUBLES, (c->n + KERN_SUMSQ_BLOCK - 1) / KERN_SUMSQ_BLOCK};
}

static err_t sumsq_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->sumsq_blocks(s, c->n, p[0], p[1]);
    return OK;
}

static const struct op_desc ops[] = {
    {"gemm", gemm_shape, gemm_call, NULL, gemm_terms, {{0}}, 0},
    {"bias_grad", bias_grad_shape, bias_grad_call, bias_grad_link, bias_grad_terms, {{0}}, 0},
    {"embed", embed_shape, embed_call, NULL, NULL, {{0}}, 0},
    {"embed_grad", embed_grad_shape, embed_grad_call, embed_grad_link, rows_terms, {{0}}, 0},
    {"rmsnorm", rmsnorm_shape, rmsnorm_call, NULL, norm_terms, {{3, 0}, {3, 1}}, 0},
    {"rmsnorm_grad", rmsnorm_grad_shape, rmsnorm_grad_call, rmsnorm_grad_link, norm_terms, {{5, 4}}, 0.1},
    {"layernorm", layernorm_shape, layernorm_call, NULL, norm_terms, {{4, 0}, {4, 1}}, 0},
    {"layernorm_grad", layernorm_grad_shape, layernorm_grad_call, layernorm_grad_link, norm_terms, {{6, 5}}, 0.1},
    {"rope", rope_shape, rope_call, NULL, NULL, {{0}}, 0},
    {"attention", attention_shape, attention_call, NULL, attention_terms, {{0}}, 0},
    {"attention_grad", attention_grad_shape, attention_grad_call, attention_grad_link, attention_terms, {{0}}, 1},
    {"swiglu", binary_shape, swiglu_call, NULL, gate_terms, {{0}}, 0},
    {"swiglu_grad", swiglu_grad_shape, swiglu_grad_call, swiglu_grad_link, gate_terms, {{3, 0}, {4, 1}}, 0},
    {"gelu", unary_shape, gelu_call, NULL, gate_terms, {{0}}, 0},
    {"gelu_grad", binary_shape, gelu_grad_call, gelu_grad_link, gate_terms, {{2, 1}}, 0},
    {"relu", unary_shape, relu_call, NULL, NULL, {{0}}, 0},
    {"relu_grad", binary_shape, relu_grad_call, relu_grad_link, NULL, {{2, 1}}, 0},
    {"add", binary_shape, add_call, NULL, NULL, {{2, 0}, {2, 1}}, 0},
    {"cross_entropy", cross_entropy_shape, cross_entropy_call, NULL, cross_entropy_terms, {{0}}, 0},
    {"adamw", adamw_shape, adamw_call, NULL, NULL, {{0}}, 0},
    {"sumsq_blocks", sumsq_shape, sumsq_call, NULL, NULL, {{0}}, 0},
    {"zero", zero_shape, zero_call, NULL, NULL, {{0}}, 0},
    {"copy", unary_shape, copy_call, NULL, NULL, {{0}}, 0},
};

const struct op_desc *op_find(const char *name)
{
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}
