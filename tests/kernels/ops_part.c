/* The rows of op_desc for kernels that work on a part of a whole whose rest other ranks hold: a part of the vocabulary,
 * of the keys, or of a matrix. */
#include "tests/kernels/ops.h"

/* ---- the loss ---- */

static void loss_part_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, TARGETS, c->t);
    o[1] = operand_rows(operand_in(0), c->t, vocab_cols(c), vocab_cols(c) + c->pad);
    o[2] = operand_of(OUT, DOUBLES, 3 * c->t);
}

static err_t loss_part_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->loss_part(s, c->t, vocab_cols(c), vocab_cols(c) + c->pad, vocab_lo(c), p[0], p[1], p[2]);
    return OK;
}

static void loss_join_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, TARGETS, c->t);
    o[1] = operand_of(IN, STATS, 3 * c->t * c->parts);
    o[2] = operand_rows(operand_acc(0), c->t, vocab_cols(c), vocab_cols(c) + c->pad);
    o[3] = operand_of(ACC, DOUBLES, 1);
}

static err_t loss_join_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->loss_join(s, c->t, vocab_cols(c), vocab_cols(c) + c->pad, vocab_lo(c), c->parts, p[0], p[1], c->flags & GRAD,
                 LOSS_SCALE, p[2], p[3]);
    return OK;
}

/* The terms of a softmax are summed in short runs, and the runs in float64. */
static int64_t loss_terms(const struct kcase *c)
{
    return 64;
}

/* ---- attention ---- */

static struct kern_attention_join join_of(const struct kcase *c)
{
    int64_t width = c->heads * c->head_dim;
    return (struct kern_attention_join){.batch = c->t / c->seq,
                                        .seq = c->seq,
                                        .heads = c->heads,
                                        .head_dim = c->head_dim,
                                        .o_stride = width + c->pad,
                                        .o2_stride = width + 2 * c->pad};
}

static void attention_join_shape(const struct kcase *c, struct case_operand *o)
{
    struct kern_attention_join a = join_of(c);
    o[0] = operand_rows(operand_acc(0), c->t, a.heads * a.head_dim, a.o_stride);
    o[1] = operand_wide(operand_acc(c->t * c->heads));
    o[2] = operand_rows(operand_in(0), c->t, a.heads * a.head_dim, a.o2_stride);
    o[3] = operand_wide(operand_in(c->t * c->heads));
}

static err_t attention_join_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention_join a = join_of(c);
    a.o = p[0];
    a.lse = p[1];
    a.o2 = p[2];
    a.lse2 = p[3];
    k->attention_join(s, &a);
    return OK;
}

/* c->seq tokens are in the cache already; c->k is the window, c->limit the softcap. With ADD_TO the scale is given. */
static struct kern_attention_cached cached_of(const struct kcase *c)
{
    int64_t q = c->heads * c->head_dim + c->pad, kv = c->kv_heads * c->head_dim + 2 * c->pad;
    return (struct kern_attention_cached){.n = c->t,
                                          .pos0 = c->seq,
                                          .heads = c->heads,
                                          .kv_heads = c->kv_heads,
                                          .head_dim = c->head_dim,
                                          .q_stride = q,
                                          .k_stride = kv,
                                          .v_stride = kv + c->pad,
                                          .o_stride = q + c->pad,
                                          .window = c->k,
                                          .scale = c->flags & ADD_TO ? 0.3 : 0,
                                          .softcap = c->limit};
}

static void attention_cached_shape(const struct kcase *c, struct case_operand *o)
{
    struct kern_attention_cached a = cached_of(c);
    o[0] = operand_rows(operand_in(0), a.n, a.heads * a.head_dim, a.q_stride);
    o[1] = operand_rows(operand_in(0), a.pos0 + a.n, a.kv_heads * a.head_dim, a.k_stride);
    o[2] = operand_rows(operand_in(0), a.pos0 + a.n, a.kv_heads * a.head_dim, a.v_stride);
    o[3] = operand_rows(operand_out(0), a.n, a.heads * a.head_dim, a.o_stride);
}

static err_t attention_cached_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_attention_cached a = cached_of(c);
    a.q = p[0];
    a.k = p[1];
    a.v = p[2];
    a.o = p[3];
    return k->attention_cached(s, &a);
}

static int64_t attention_cached_terms(const struct kcase *c)
{
    return c->seq + c->t + c->head_dim;
}

static int64_t gate_terms(const struct kcase *c)
{
    return GATE_TERMS;
}

/* ---- rows and columns ---- */

/* Rows below `vocab` of a matrix of `cols` columns, of which the case has n columns from `lo` on. */
static void dropout_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, IDS, c->t);
    o[1] = operand_in(c->t * c->n);
    o[2] = operand_out(c->t * c->n);
}

static err_t dropout_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_dropout d = {.t = c->t,
                             .n = c->n,
                             .cols = c->cols,
                             .col0 = c->lo,
                             .rate = 0.3,
                             .seed = 0x123456789abcdef0u,
                             .step = 12345,
                             .site = 67,
                             .rows = p[0],
                             .x = p[1],
                             .y = p[2]};
    k->dropout(s, &d);
    return OK;
}

/* Rows below `vocab`, positions modulo m. */
static err_t positions_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->positions(s, c->t, c->n, c->m, p[0], p[1], p[2]);
    return OK;
}

static void copy_cols_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_rows(operand_in(0), c->m, c->n, c->n + c->pad);
    o[1] = operand_rows(operand_out(0), c->m, c->n, c->n + 2 * c->pad);
}

static err_t copy_cols_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->copy_cols(s, c->m, c->n, p[0], c->n + c->pad, p[1], c->n + 2 * c->pad);
    return OK;
}

/* m rows from row k on, n columns from column lo on, of a matrix with `cols` columns. */
static void normal_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_rows(operand_wide(operand_out(0)), c->m, c->n, c->n + c->pad);
}

static err_t normal_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_normal a = {.rows = c->m,
                            .n = c->n,
                            .stride = c->n + c->pad,
                            .cols = c->cols,
                            .first = (uint64_t)c->k * (uint64_t)c->cols + (uint64_t)c->lo,
                            .seed = 0x123456789abcdef0u,
                            .stream = 0xfedcba9876543210u,
                            .mean = c->flags & BIAS ? 1 : 0,
                            .std = c->limit,
                            .y = p[0]};
    k->normal(s, &a);
    return OK;
}

static int64_t exact(const struct kcase *c)
{
    return 0;
}

const struct op_desc ops_part[] = {
    {"loss_part", loss_part_shape, loss_part_call, .terms = loss_terms},
    {"loss_join", loss_join_shape, loss_join_call, .terms = loss_terms},
    {"attention_join", attention_join_shape, attention_join_call, .terms = gate_terms},
    {"attention_cached", attention_cached_shape, attention_cached_call, .terms = attention_cached_terms},
    {"dropout", dropout_shape, dropout_call, .terms = NULL, .aliases = {{2, 1}}},
    {"positions", dropout_shape, positions_call, .terms = gate_terms, .aliases = {{2, 1}}},
    {"normal", normal_shape, normal_call, .terms = exact, .anywhere = true},
    {"copy_cols", copy_cols_shape, copy_cols_call, .terms = exact, .anywhere = true},
};
const int n_ops_part = sizeof(ops_part) / sizeof(ops_part[0]);
