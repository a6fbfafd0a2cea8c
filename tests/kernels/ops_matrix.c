/* The rows of op_desc for kernels with rows and columns: products, embeddings, norms, positions, attention. Operands
 * are in the order of the kernel's arguments. */
#include "tests/kernels/ops.h"

#include <math.h>
#include <stddef.h>

/* ---- products ---- */

static struct kern_gemm gemm_of(const struct kcase *c)
{
    bool ta = c->flags & TRANS_A, tb = c->flags & TRANS_B;
    return (struct kern_gemm){.trans_a = ta,
                              .trans_b = tb,
                              .accumulate = c->flags & ADD_TO,
                              .wide_c = c->flags & WIDE_C,
                              .few = c->parts,
                              .act = c->flags & GELU        ? KERN_ACT_GELU
                                     : c->flags & GELU_GRAD ? KERN_ACT_GELU_GRAD
                                                            : KERN_ACT_NONE,
                              .m = c->m,
                              .n = c->n,
                              .k = c->k,
                              .lda = (ta ? c->m : c->k) + c->pad,
                              .ldb = (tb ? c->k : c->n) + c->pad,
                              .ldc = c->n + c->pad};
}

static void gemm_shape(const struct kcase *c, struct case_operand *o)
{
    struct kern_gemm g = gemm_of(c);
    const struct case_operand in = operand_in(0), out = operand_out(0);
    o[0] = g.trans_a ? operand_rows(in, g.k, g.m, g.lda) : operand_rows(in, g.m, g.k, g.lda);
    o[1] = g.trans_b ? operand_rows(in, g.n, g.k, g.ldb) : operand_rows(in, g.k, g.n, g.ldb);
    o[2] = operand_when(c->flags & BIAS, operand_in(g.n));
    o[3] = operand_rows(g.accumulate ? operand_acc(0) : out, g.m, g.n, g.ldc);
    o[3].wide = g.wide_c;
    o[4] = operand_when(g.act, operand_rows(g.act == KERN_ACT_GELU ? out : in, g.m, g.n, g.ldc));
    o[5] = operand_when(c->flags & A_SUM, operand_wide(operand_acc(g.m)));
    o[6] = operand_when(c->flags & B_SUM, operand_wide(operand_acc(g.n)));
}

static err_t gemm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_gemm g = gemm_of(c);
    g.a = p[0];
    g.b = p[1];
    g.bias = p[2];
    g.c = p[3];
    g.aux = p[4];
    g.a_sum = p[5];
    g.b_sum = p[6];
    return k->gemm(s, &g);
}

static int64_t gemm_terms(const struct kcase *c)
{
    return c->k + (c->flags & (GELU | GELU_GRAD) ? GATE_TERMS : 1);
}

/* The activation may be applied to x as rounded by a store. */
static double gemm_between(const struct kcase *c)
{
    return c->flags & (GELU | GELU_GRAD) ? 2 : 0;
}

static void bias_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->m * c->n);
    o[1] = operand_wide(operand_acc(c->n));
}

static err_t bias_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->bias_grad(s, c->m, c->n, p[0], p[1]);
    return OK;
}

static void bias_grad_link(const struct kcase *c, struct grad_link *l)
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

static void embed_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, IDS, c->t);
    o[1] = operand_in(vocab_cols(c) * c->d);
    o[2] = operand_when(c->flags & POS, operand_in(c->seq * c->d));
    o[3] = operand_out(c->t * c->d);
}

static err_t embed_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->embed(s, c->t, c->d, c->seq, vocab_lo(c), vocab_lo(c) + vocab_cols(c), p[0], p[1], p[2], p[3]);
    return OK;
}

/* A copy, or one sum of two numbers. */
static int64_t exact(const struct kcase *c)
{
    return 0;
}

static void embed_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, IDS, c->t);
    o[1] = operand_in(c->t * c->d);
    o[2] = operand_wide(operand_acc(vocab_cols(c) * c->d));
    o[3] = operand_when(c->flags & POS, operand_wide(operand_acc(c->seq * c->d)));
}

static err_t embed_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->embed_grad(s, c->t, c->d, c->seq, vocab_lo(c), vocab_lo(c) + vocab_cols(c), p[0], p[1], p[2], p[3]);
    return OK;
}

static void embed_grad_link(const struct kcase *c, struct grad_link *l)
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

static void rmsnorm_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_when(c->flags & RES, operand_in(c->t * c->d));
    o[2] = operand_of(IN, WEIGHTS, c->d);
    o[3] = operand_when(c->flags & RES, operand_out(c->t * c->d));
    o[4] = operand_out(c->t * c->d);
    o[5] = operand_wide(operand_out(c->t));
}

static err_t rmsnorm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm(s, c->t, c->d, NORM_EPS, c->flags & PLUS_ONE, p[0], p[1], p[2], p[3], p[4], p[5]);
    return OK;
}

static void rmsnorm_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_of(IN, WEIGHTS, c->d);
    o[2] = operand_wide(operand_of(IN, POSITIVE, c->t));
    o[3] = operand_in(c->t * c->d);
    o[4] = operand_when(c->flags & RES, operand_in(c->t * c->d));
    o[5] = operand_out(c->t * c->d);
    o[6] = operand_wide(operand_acc(c->d));
}

static err_t rmsnorm_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm_grad(s, c->t, c->d, c->flags & PLUS_ONE, p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    return OK;
}

static void rmsnorm_grad_link(const struct kcase *c, struct grad_link *l)
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

static void layernorm_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_when(c->flags & RES, operand_in(c->t * c->d));
    o[2] = operand_of(IN, WEIGHTS, c->d);
    o[3] = operand_in(c->d);
    o[4] = operand_when(c->flags & RES, operand_out(c->t * c->d));
    o[5] = operand_out(c->t * c->d);
    o[6] = operand_wide(operand_out(c->t));
    o[7] = operand_wide(operand_out(c->t));
}

static err_t layernorm_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->layernorm(s, c->t, c->d, NORM_EPS, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
    return OK;
}

static void layernorm_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_of(IN, WEIGHTS, c->d);
    o[2] = operand_wide(operand_in(c->t));
    o[3] = operand_wide(operand_of(IN, POSITIVE, c->t));
    o[4] = operand_in(c->t * c->d);
    o[5] = operand_when(c->flags & RES, operand_in(c->t * c->d));
    o[6] = operand_out(c->t * c->d);
    o[7] = operand_wide(operand_acc(c->d));
    o[8] = operand_wide(operand_acc(c->d));
}

static err_t layernorm_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->layernorm_grad(s, c->t, c->d, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]);
    return OK;
}

static void layernorm_grad_link(const struct kcase *c, struct grad_link *l)
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

/* The residual sum may be used as rounded by a store; a bias may then cancel most of the product. */
/* Columns of rows that have k columns on all ranks. RES: with factors, or with sums. Not linked as a gradient, because
 * the sums, too, depend on x: test_parts.c compares all parts with the whole. */
static void row_dots_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_in(c->t * c->d);
    o[2] = operand_when(c->flags & RES, operand_of(IN, WEIGHTS, c->d));
    o[3] = operand_of(OUT, DOUBLES, c->t);
}

static err_t row_dots_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->row_dots(s, c->t, c->d, c->flags & PLUS_ONE, p[0], p[1], p[2], p[3]);
    return OK;
}

static void norm_part_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_of(IN, WEIGHTS, c->d);
    o[2] = operand_of(IN, SQUARES, c->t);
    o[3] = operand_out(c->t * c->d);
    o[4] = operand_wide(operand_out(c->t));
}

static err_t norm_part_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm_part(s, c->t, c->d, c->k, NORM_EPS, c->flags & PLUS_ONE, p[0], p[1], p[2], p[3], p[4]);
    return OK;
}

static void norm_part_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_of(IN, WEIGHTS, c->d);
    o[2] = operand_wide(operand_of(IN, POSITIVE, c->t));
    o[3] = operand_when(c->flags & RES, operand_of(IN, DOUBLES, c->t));
    o[4] = operand_in(c->t * c->d);
    o[5] = operand_out(c->t * c->d);
    o[6] = operand_wide(operand_acc(c->d));
}

static err_t norm_part_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rmsnorm_part_grad(s, c->t, c->d, c->k, c->flags & PLUS_ONE, p[0], p[1], p[2], p[3], p[4], p[5], p[6]);
    return OK;
}

static double norm_between(const struct kcase *c)
{
    return c->flags & RES ? 3 : 0;
}

static int64_t norm_terms(const struct kcase *c)
{
    return c->d > c->t ? c->d : c->t;
}

/* ---- positions and attention ---- */

static void rope_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_rows(operand_acc(0), c->t, c->heads * c->head_dim, c->heads * c->head_dim + c->pad);
}

static err_t rope_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    double frequency[256];
    const int64_t pairs = c->n ? c->n : c->head_dim / 2;
    for (int64_t i = 0; i < pairs; i++)
        frequency[i] = pow(10000, -(double)i / (double)pairs);
    const struct kern_rope rope = {pairs, frequency, c->limit > 0 ? c->limit : 1};
    k->rope(s, c->t, c->seq, 3 /* as after a prefix of 3 tokens */, c->heads, c->head_dim,
            c->heads * c->head_dim + c->pad, &rope, c->flags & INVERSE, p[0]);
    return OK;
}

static struct kern_attention attention_of(const struct kcase *c)
{
    int64_t q = c->heads * c->head_dim + c->pad, kv = c->kv_heads * c->head_dim + 2 * c->pad;
    return (struct kern_attention){.batch = c->t / c->seq,
                                   .seq = c->seq,
                                   .seq_kv = c->seq_kv,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .head_dim = c->head_dim,
                                   .q_stride = q,
                                   .k_stride = kv,
                                   .v_stride = kv + c->pad,
                                   .o_stride = q + c->pad,
                                   .causal = c->flags & CAUSAL,
                                   .window = c->window,
                                   .q_pos0 = CASE_POS0 + c->ahead,
                                   .k_pos0 = CASE_POS0,
                                   .scale = c->limit,
                                   .softcap = c->softcap};
}

static void attention_shape(const struct kcase *c, struct case_operand *o)
{
    struct kern_attention a = attention_of(c);
    int64_t keys = a.seq_kv ? a.batch * a.seq_kv : c->t;
    o[0] = operand_rows(operand_in(0), c->t, a.heads * a.head_dim, a.q_stride);
    o[1] = operand_rows(operand_in(0), keys, a.kv_heads * a.head_dim, a.k_stride);
    o[2] = operand_rows(operand_in(0), keys, a.kv_heads * a.head_dim, a.v_stride);
    o[3] = operand_rows(operand_out(0), c->t, a.heads * a.head_dim, a.o_stride);
    o[4] = operand_wide(operand_out(c->t * a.heads));
    o[5] = operand_when(c->flags & DOCUMENTS, operand_of(IN, BEGINS, c->t));
}

static err_t attention_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention a = attention_of(c);
    a.q = p[0];
    a.k = p[1];
    a.v = p[2];
    a.o = p[3];
    a.lse = p[4];
    a.begin = p[5];
    return k->attention(s, &a);
}

static void attention_grad_shape(const struct kcase *c, struct case_operand *o)
{
    attention_shape(c, o);
    o[9] = o[5];
    o[3].role = o[4].role = IN;
    o[4].content = c->flags & PART ? LOG_SUMS : REALS;
    o[5] = o[3];
    for (int i = 0; i < 3; i++) {
        o[6 + i] = o[i];
        o[6 + i].role = c->flags & (i ? ACC_KV : ACC_Q) ? ACC : OUT;
    }
}

static err_t attention_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention_grad g = {.fwd = attention_of(c),
                                    .d_o = p[5],
                                    .d_q = p[6],
                                    .d_k = p[7],
                                    .d_v = p[8],
                                    .acc_q = c->flags & ACC_Q,
                                    .acc_kv = c->flags & ACC_KV};
    g.fwd.q = p[0];
    g.fwd.k = p[1];
    g.fwd.v = p[2];
    g.fwd.o = p[3];
    g.fwd.lse = p[4];
    g.fwd.begin = p[9];
    return k->attention_grad(s, &g);
}

/* No link for a part of the keys: o and lse are then those of more keys. */
static void attention_grad_link(const struct kcase *c, struct grad_link *l)
{
    if (c->flags & PART)
        return;
    l->forward = "attention";
    for (int i = 0; i < 5; i++)
        l->from[i] = i;
    l->from[9] = 5;
    l->seed[5] = 3;
    for (int i = 0; i < 3; i++)
        l->target[6 + i] = i;
}

static int64_t attention_terms(const struct kcase *c)
{
    return (c->seq > c->seq_kv ? c->seq : c->seq_kv) * (c->heads / c->kv_heads) + c->head_dim;
}

/* Weights and their gradients may be rounded before they enter a product. */
static double attention_between(const struct kcase *c)
{
    return 4;
}

static double attention_grad_between(const struct kcase *c)
{
    return 8;
}

const struct op_desc ops_matrix[] = {
    {"gemm", gemm_shape, gemm_call, .terms = gemm_terms, .between = gemm_between},
    {"bias_grad", bias_grad_shape, bias_grad_call, bias_grad_link, .terms = bias_grad_terms},
    {"embed", embed_shape, embed_call, .terms = exact},
    {"embed_grad", embed_grad_shape, embed_grad_call, embed_grad_link, .terms = rows_terms},
    {"rmsnorm", rmsnorm_shape, rmsnorm_call, .terms = norm_terms, .aliases = {{3, 0}, {3, 1}}, .between = norm_between},
    {"rmsnorm_grad", rmsnorm_grad_shape, rmsnorm_grad_call, rmsnorm_grad_link, .terms = norm_terms, .aliases = {{5, 4}},
     .floor = 0.1},
    {"row_dots", row_dots_shape, row_dots_call, .terms = norm_terms},
    {"rmsnorm_part", norm_part_shape, norm_part_call, .terms = norm_terms},
    {"rmsnorm_part_grad", norm_part_grad_shape, norm_part_grad_call, .terms = norm_terms, .floor = 0.1},
    {"layernorm", layernorm_shape, layernorm_call, .terms = norm_terms, .aliases = {{4, 0}, {4, 1}},
     .between = norm_between},
    {"layernorm_grad",
     layernorm_grad_shape,
     layernorm_grad_call,
     layernorm_grad_link,
     norm_terms,
     {{6, 5}},
     .floor = 0.1},
    {"rope", rope_shape, rope_call, .terms = NULL},
    {"attention", attention_shape, attention_call, .terms = attention_terms, .between = attention_between},
    {"attention_grad", attention_grad_shape, attention_grad_call, attention_grad_link, .terms = attention_terms,
     .floor = 1, .between = attention_grad_between},
};
const int n_ops_matrix = sizeof(ops_matrix) / sizeof(ops_matrix[0]);
