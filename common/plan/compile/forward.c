/* The forward rule of every operator of the graph: its ops and their buffers.
 *
 * Where the kernel allows input and output to share memory and the input is not read again, both use one buffer: the
 * residual sum overwrites the branch that was added.
 *
 * Tensor parallelism: operands have their local sizes (tensor_parallel.c).
 *
 *   weight cut by output features    needs all tokens of x       y: some columns, all tokens
 *   weight cut by input features     x: some columns             y: a share, which is summed at once
 *   table cut by rows                                            y: a share, which is summed at once
 *
 * Only TP rank 0 adds a bias or positions to a share. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdio.h>

int compile_set_value(struct compiler *c, int t, int buffer)
{
    c->full[t] = -1; /* it was gathered from the previous value */
    return c->act[t] = buffer;
}

int compile_new_value(struct compiler *c, int t)
{
    return t < 0 ? -1 : compile_set_value(c, t, compile_work_buffer(c, t, ""));
}

/* Whether the op that reads t may overwrite t's buffer. */
static bool may_overwrite(const struct compiler *c, int t)
{
    return compile_may_overwrite(c, t) && !tp_is_share(c, c->act[t]);
}

/* An operand that only TP rank 0 adds to a sum over the TP group; absent on all others. */
static int on_first_rank(const struct compiler *c, int buffer)
{
    return c->p->sharding.coord[AXIS_TP] == 0 ? buffer : -1;
}

static void embed_segment(struct compiler *c, int i, enum op_kind kind, int s, int y, bool share)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t cols = tp_cols(c, n->out[0]);
    int pos = compile_value(c, n->in[2]);
    struct op *op = compile_op(c, kind, i);
    cp_set_segment(c, op, s);
    tp_set_vocab(c, op, n->in[1]);
    op->n = dim_one(cols);
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, share && !MUTANT(POSITIONS_BY_ALL) ? on_first_rank(c, pos) : pos);
    op_arg(op, 3, y);
    op->arg[0].offset = cp_segment_offset(c, s, 1);
    op->arg[3].offset = cp_segment_offset(c, s, cols);
}

static void embed(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool share = c->p->mesh.size[AXIS_TP] > 1 && c->g->tensors[n->in[1]].cut.segments;
    assert(share || !c->own); /* every model cuts its table by the vocabulary */
    int y = share ? tp_new_share(c, n->out[0], "") : compile_new_value(c, n->out[0]);
    for (int s = 0; s < c->p->n_segments; s++)
        if (c->p->segments[s].len > 0)
            embed_segment(c, i, kind, s, y, share);
    if (share)
        compile_set_value(c, n->out[0], tp_sum_shares(c, n->out[0], y, ""));
}

struct op *compile_product(struct compiler *c, int i, int x, int y, int aux)
{
    const struct graph_node *n = &c->g->nodes[i];
    enum linear_cut cut = tp_linear_cut(c, i);
    int64_t in = tp_cols(c, n->in[0]), out = tp_cols(c, n->out[0]);
    int bias = compile_value(c, n->in[2]);
    struct op *op = compile_op(c, OP_GEMM, i);
    op->flags = (n->trans_w ? 0 : OPF_TRANS_B) | (aux >= 0 ? OPF_GELU : 0);
    op->m = cut == LINEAR_WHOLE || compile_of_runs(c, n->out[0]) ? tp_rows(c, n->out[0]) : dim_tokens(1);
    op->n = dim_one(out);
    op->k = dim_one(in);
    op->lda = in;
    op->ldb = n->trans_w ? out : in;
    op->ldc = pitch_of(c, n->out[0]);
    op_arg(op, 0, x);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, cut == LINEAR_BY_IN && !MUTANT(BIAS_BY_ALL) ? on_first_rank(c, bias) : bias);
    op_arg(op, 3, y);
    op_arg(op, 4, aux); /* without a backward no op reads it, and its bytes are free after this op */
    return op;
}

void compile_product_buffers(struct compiler *c, int i, int *ret_y, int *ret_aux)
{
    int gelu = compile_gelu_after(c, i), made = compile_new_value(c, c->g->nodes[i].out[0]);
    *ret_y = gelu >= 0 ? compile_new_value(c, c->g->nodes[gelu].out[0]) : made;
    *ret_aux = gelu >= 0 ? made : -1;
}

/* Decoding: the last row of each run of x, which is an input of node i. */
static int last_rows(struct compiler *c, int i, int t, int x)
{
    struct buffer b = {.tensor = -1, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = (struct graph_dim){SYM_RUNS, 1};
    b.dim[1] = dim_one(tp_cols(c, t));
    snprintf(b.name, sizeof(b.name), "%s.last", c->g->tensors[t].name);
    int y = compile_buffer(c, &b);
    struct op *op = compile_op(c, OP_LAST_ROWS, i);
    op->m = b.dim[0];
    op->n = b.dim[1];
    op->lda = pitch_of(c, t);
    op_arg(op, 0, x);
    op_arg(op, 1, y);
    return y;
}

static void linear(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    enum linear_cut cut = tp_linear_cut(c, i);
    int x, y, aux = -1;
    (void)kind;
    if (async_tp_overlaps_gather(c, i)) {
        async_tp_emit_gather(c, i);
        return;
    }
    if (async_tp_overlaps_sum(c, i)) {
        compile_set_value(c, n->out[0], async_tp_emit_sum(c, i));
        return;
    }
    x = cut == LINEAR_BY_OUT ? tp_all_tokens(c, n->in[0]) : compile_value(c, n->in[0]);
    if (i == c->head)
        x = last_rows(c, i, n->in[0], x);
    if (cut == LINEAR_BY_IN)
        y = tp_new_share(c, n->out[0], "");
    else
        compile_product_buffers(c, i, &y, &aux);
    compile_product(c, i, x, y, aux);
    if (cut == LINEAR_BY_IN)
        compile_set_value(c, n->out[0], tp_sum_shares(c, n->out[0], y, ""));
}

static int sum_of(const struct graph_node *n)
{
    return n->op == GO_LAYERNORM ? n->out[3] : n->op == GO_RMSNORM ? n->out[2] : -1;
}

/* `per_token` f64 for each token of this rank. */
static int stats_buffer(struct compiler *c, const char *name, int64_t per_token)
{
    struct buffer b = {.tensor = -1, .dtype = DT_F64, .ndim = 1, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = dim_tokens(per_token);
    snprintf(b.name, sizeof(b.name), "%s", name);
    return compile_buffer(c, &b);
}

/* Columns that several ranks have count once in a sum over the ranks: the others give zero. */
int compile_row_dots(struct compiler *c, int i, int x, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    const bool counted = dy >= 0 || tp_counts(c, n->in[0]) || MUTANT(SQUARES_BY_ALL);
    char name[GRAPH_NAME_MAX + 16];
    snprintf(name, sizeof(name), "%s.%s", c->g->tensors[n->out[0]].name, dy >= 0 ? "dots" : "squares");
    int sums = stats_buffer(c, name, 1);
    struct op *op = compile_op(c, counted ? OP_ROW_DOTS : OP_ZERO, i);
    op->m = dim_tokens(1);
    op->n = dim_one(counted ? tp_cols(c, n->in[0]) : 1);
    if (counted) {
        op->flags = n->plus_one && dy >= 0 ? OPF_PLUS_ONE : 0;
        op_arg(op, 0, x);
        op_arg(op, 1, dy >= 0 ? dy : x);
        op_arg(op, 2, dy >= 0 ? compile_value(c, n->in[2]) : -1);
    }
    op_arg(op, counted ? 3 : 0, sums);
    if (MUTANT(SQUARES_NOT_SUMMED))
        return sums;
    op = compile_collective(c, OP_ALL_REDUCE, i, 1u << AXIS_TP);
    op->m = dim_tokens(1);
    op->n = dim_one(1);
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, sums);
    return sums;
}

/* A norm of all columns of a token, of which other ranks have some. */
static void norm_of_parts(struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int x = compile_value(c, n->in[0]), sums = compile_row_dots(c, i, x, -1),
              args[] = {x, compile_value(c, n->in[2]), sums, compile_new_value(c, n->out[0]),
                        compile_new_value(c, n->out[1])};
    struct op *op = compile_op(c, OP_RMSNORM_PART, i);
    tp_set_norm(c, op, i);
    op->k = c->g->tensors[n->in[0]].dim[1];
    op->flags = n->plus_one ? OPF_PLUS_ONE : 0;
    op->eps = n->eps;
    for (int k = 0; k < 5; k++)
        op_arg(op, k, args[k]);
}

/* Operands: x, [res], w, (b,) [r], y, (mean,) rstd. `res` and `sum` are tensors; -1: the norm adds nothing to x. */
static void norm_of(struct compiler *c, int i, enum op_kind kind, int x, int res, int sum)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool layer = kind == OP_LAYERNORM;
    int y = compile_new_value(c, n->out[0]), stat = compile_new_value(c, n->out[1]),
        rstd = layer ? compile_new_value(c, n->out[2]) : -1, r = -1;
    int w = compile_value(c, n->in[2]), b = layer ? compile_value(c, n->in[3]) : -1, add = compile_value(c, res);
    if (sum >= 0)
        r = may_overwrite(c, res) ? compile_set_value(c, sum, add) : compile_new_value(c, sum);
    const int rms_args[] = {x, add, w, r, y, stat};
    const int layer_args[] = {x, add, w, b, r, y, stat, rstd};
    struct op *op = compile_op(c, kind, i);
    tp_set_norm(c, op, i);
    op->flags = n->plus_one ? OPF_PLUS_ONE : 0;
    op->eps = n->eps;
    for (int k = 0; k < (layer ? 8 : 6); k++)
        op_arg(op, k, layer ? layer_args[k] : rms_args[k]);
}

static void norm(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (tp_norm_is_cut(c, i)) {
        norm_of_parts(c, i);
        return;
    }
    norm_of(c, i, kind, compile_value(c, n->in[0]), n->in[1], sum_of(n));
}

static void rope(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    for (int s = 0; s < c->p->n_segments; s++) {
        if (c->p->segments[s].len == 0)
            continue;
        struct op *op = compile_op(c, kind, i);
        cp_set_segment(c, op, s);
        op->heads = tp_heads(c, n->in[0], n->heads);
        op->head_dim = n->head_dim;
        op->lda = pitch_of(c, n->in[0]);
        op_arg(op, 0, compile_value(c, n->in[0]));
        op->arg[0].col = tp_col(c, n->in[0], n->in_col[0]);
        op->arg[0].offset = cp_segment_offset(c, s, op->lda);
    }
}

/* Operands: q, k, v, the caches of k and v, o. */
static void attention_cached(struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (!n->causal) {
        c->err =
            why_set(c->why, ERR_UNSUPPORTED,
                    "model.causal is false: a token sees the tokens after it, so the model cannot continue a text");
        return;
    }
    const int o = compile_new_value(c, n->out[0]), k = compile_cache(c, i, 1, "keys"),
              v = compile_cache(c, i, 2, "values");
    struct op *op = cp_attention_op(c, OP_ATTENTION_CACHE, i);
    op->m = dim_tokens(1);
    op->seq = c->p->seq;
    op->seq_kv = c->p->sequences;
    for (int j = 0; j < 3; j++) {
        op_arg(op, j, compile_value(c, n->in[j]));
        op->arg[j].col = tp_col(c, n->in[j], n->in_col[j]);
    }
    op_arg(op, 3, k);
    op_arg(op, 4, v);
    op_arg(op, 5, o);
}

static void attention(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (c->p->mode == MODE_DECODE) {
        attention_cached(c, i);
        return;
    }
    int o = compile_new_value(c, n->out[0]), lse = compile_new_value(c, n->out[1]);
    if (c->p->n_segments > 1) {
        cp_emit_attention(c, i);
        return;
    }
    struct op *op = cp_attention_op(c, kind, i);
    for (int k = 0; k < 3; k++) {
        op_arg(op, k, compile_value(c, n->in[k]));
        op->arg[k].col = tp_col(c, n->in[k], n->in_col[k]);
    }
    op_arg(op, 3, o);
    op_arg(op, 4, lse);
}

static void unary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op->rate = n->factor;
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, y);
}

static void scale(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool taken = may_overwrite(c, n->in[0]);
    int x = compile_value(c, n->in[0]),
        y = taken ? compile_set_value(c, n->out[0], x) : compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op->rate = n->factor;
    op_arg(op, 0, x);
    op_arg(op, 1, y);
}

static bool gelu_is_made(const struct compiler *c, int i)
{
    int maker = c->producer[c->g->nodes[i].in[0]];
    return maker >= 0 && c->g->nodes[maker].op == GO_LINEAR && compile_gelu_after(c, maker) == i;
}

static void gelu(struct compiler *c, int i, enum op_kind kind)
{
    if (!gelu_is_made(c, i))
        unary(c, i, kind);
}

static void binary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool in_place = kind == OP_ADD && may_overwrite(c, n->in[0]);
    int a = compile_value(c, n->in[0]), b = compile_value(c, n->in[1]);
    int y = in_place ? compile_set_value(c, n->out[0], a) : compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op_arg(op, 0, a);
    op_arg(op, 1, b);
    op_arg(op, 2, y);
}

/* ---- the loss ---- */

static struct op *loss_op(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->lda = MUTANT(ROWS_TAKEN_FOR_DENSE) ? tp_cols(c, n->in[0]) : pitch_of(c, n->in[0]);
    op->n = dim_one(MUTANT(COLUMNS_BETWEEN_ROWS) ? op->lda : tp_cols(c, n->in[0]));
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    return op;
}

/* Cross entropy with logits cut by columns. The ranks gather three numbers per token: the largest logit, the sum of exp
 * and the target's logit. Loss and gradient of a column need nothing else. One rank of the group counts the loss. */
static void loss_of_parts(struct compiler *c, int i)
{
    int logits = c->g->nodes[i].in[0],
        loss = MUTANT(LOSS_BY_ALL) ? c->p->loss_buffer : on_first_rank(c, c->p->loss_buffer),
        parts = c->p->mesh.size[AXIS_TP];
    bool train = c->p->mode == MODE_TRAIN;
    int mine = stats_buffer(c, "loss.stats", 3), all = stats_buffer(c, "loss.stats.all", 3 * (int64_t)parts);
    struct op *op = loss_op(c, i, OP_LOSS_PART);
    tp_set_vocab(c, op, logits);
    op_arg(op, 2, mine);
    op = compile_collective(c, OP_GATHER, i, 1u << AXIS_TP);
    op->m = dim_tokens(3);
    op_arg(op, 0, mine);
    op_arg(op, 1, all);
    if (!train && loss < 0)
        return;
    op = loss_op(c, i, OP_LOSS_JOIN);
    tp_set_vocab(c, op, logits);
    op->flags = train ? OPF_GRAD : 0;
    op->k = dim_one(parts);
    op_arg(op, 2, all);
    op_arg(op, 3, loss);
}

/* Generation reads the logits of one sample as a dense matrix [seq, vocabulary], of the last tokens of runs as [runs,
 * vocabulary]. Each rank of tp and cp copies its part
 * into a zeroed matrix, and an all-reduce adds them, which is exact because all other addends are zero. */
static void whole_logits(struct compiler *c, int i)
{
    const unsigned axes = 1u << AXIS_TP | 1u << AXIS_CP;
    int t = c->g->nodes[i].in[0], x = compile_value(c, t);
    const struct graph_dim rows = c->p->mode == MODE_DECODE ? (struct graph_dim){SYM_RUNS, 1} : dim_one(c->p->seq);
    int64_t vocab = c->g->tensors[t].dim[1].factor;
    struct buffer b = {.tensor = -1, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    struct op part = {0}, *op;
    tp_set_vocab(c, &part, t);
    b.dim[0] = rows;
    b.dim[1] = dim_one(vocab);
    snprintf(b.name, sizeof(b.name), "logits.whole");
    int y = compile_set_value(c, t, compile_buffer(c, &b));
    op = compile_op(c, OP_ZERO, i);
    op->m = rows;
    op->n = dim_one(vocab);
    op_arg(op, 0, y);
    for (int s = 0; s < c->p->n_segments; s++) {
        const struct segment *seg = &c->p->segments[s];
        op = compile_op(c, OP_COPY_COLS, i);
        op->m = c->p->mode == MODE_DECODE ? rows : dim_one(seg->len);
        op->n = dim_one(tp_cols(c, t));
        op->lda = pitch_of(c, t);
        op->ldb = vocab;
        op_arg(op, 0, x);
        op_arg(op, 1, y);
        op->arg[0].offset = dim_one(seg->before * op->lda);
        op->arg[1].offset = dim_one(seg->pos0 * vocab + part.vocab_lo);
    }
    op = compile_collective(c, OP_ALL_REDUCE, i, axes);
    op->m = (struct graph_dim){rows.sym, rows.factor * vocab};
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, y);
}

static void loss(struct compiler *c, int i, enum op_kind kind)
{
    const struct mesh *mesh = &c->p->mesh;
    if (mode_generates(c->p->mode)) {
        if (mesh->size[AXIS_TP] > 1 || mesh->size[AXIS_CP] > 1)
            whole_logits(c, i);
        return;
    }
    if (mesh->size[AXIS_TP] > 1) {
        loss_of_parts(c, i);
        return;
    }
    struct op *op = loss_op(c, i, kind);
    op->flags = c->p->mode == MODE_TRAIN ? OPF_GRAD : 0;
    op_arg(op, 2, c->p->loss_buffer);
}

void compile_op_rows(struct compiler *c, struct op *op, int i, int t)
{
    op_arg(op, i, c->p->rows_buffer);
    if (tp_is_own(c, t) && !MUTANT(ROWS_OF_THE_FIRST))
        op->arg[i].offset = (struct graph_dim){SYM_OWN0, 1};
}

static void positions(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool taken = may_overwrite(c, n->in[0]);
    int x = compile_value(c, n->in[0]),
        y = taken ? compile_set_value(c, n->out[0], x) : compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op_arg(op, 0, x);
    compile_op_rows(c, op, 1, n->out[0]);
    op_arg(op, 2, y);
}

void compile_dropout(struct compiler *c, int i, int from, int to)
{
    const struct graph_node *n = &c->g->nodes[i];
    const struct graph_tensor *x = &c->g->tensors[n->in[0]];
    struct op *op = compile_op(c, OP_DROPOUT, i);
    int64_t lo = 0, hi;
    if (x->cut.segments && c->p->mesh.size[AXIS_TP] > 1)
        sharding_cut(&x->cut, c->p->mesh.size[AXIS_TP], c->p->sharding.coord[AXIS_TP], &lo, &hi);
    op->m = tp_rows(c, n->in[0]);
    op->n = dim_one(tp_cols(c, n->in[0]));
    op->k = x->dim[1];
    op->col0 = x->cut.segments && !MUTANT(COLUMNS_OF_THE_FIRST) ? lo * (x->dim[1].factor / x->cut.units) : 0;
    op->rate = c->job->train.dropout;
    op->site = n->site;
    op_arg(op, 0, from);
    compile_op_rows(c, op, 1, n->in[0]);
    op_arg(op, 2, to);
}

bool compile_drops(const struct compiler *c)
{
    return c->p->mode == MODE_TRAIN && c->job->train.dropout > 0;
}

/* Without dropout y is x, in the same buffer. */
static void dropout(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    (void)kind;
    if (!compile_drops(c)) {
        compile_set_value(c, n->out[0], compile_value(c, n->in[0]));
        return;
    }
    bool taken = may_overwrite(c, n->in[0]);
    int x = compile_value(c, n->in[0]),
        y = taken ? compile_set_value(c, n->out[0], x) : compile_new_value(c, n->out[0]);
    compile_dropout(c, i, x, y);
}

static const struct {
    void (*emit)(struct compiler *c, int node, enum op_kind kind);
    enum op_kind kind;
} rules[GO_COUNT] = {
    [GO_EMBED] = {embed, OP_EMBED},
    [GO_LINEAR] = {linear, OP_GEMM},
    [GO_RMSNORM] = {norm, OP_RMSNORM},
    [GO_LAYERNORM] = {norm, OP_LAYERNORM},
    [GO_ROPE] = {rope, OP_ROPE},
    [GO_ATTENTION] = {attention, OP_ATTENTION},
    [GO_SWIGLU] = {binary, OP_SWIGLU},
    [GO_GEGLU] = {binary, OP_GEGLU},
    [GO_GELU] = {gelu, OP_GELU},
    [GO_GELU_ERF] = {unary, OP_GELU_ERF},
    [GO_SCALE] = {scale, OP_SCALE},
    [GO_CAP] = {unary, OP_CAP},
    [GO_RELU] = {unary, OP_RELU},
    [GO_ADD] = {binary, OP_ADD},
    [GO_LOSS] = {loss, OP_CROSS_ENTROPY},
    [GO_POSITIONS] = {positions, OP_POSITIONS},
    [GO_DROPOUT] = {dropout, OP_DROPOUT},
    [GO_ROUTE] = {experts_route, OP_ROUTE},
    [GO_DROP] = {experts_drop, OP_DROP},
    [GO_DISPATCH] = {experts_dispatch, OP_ROUTE_SORT},
    [GO_EXPERTS] = {experts_product, OP_GROUPED_GEMM},
    [GO_COMBINE] = {experts_combine, OP_ROWS_SUM},
    [GO_GATE] = {experts_gate, OP_GATE},
};

void compile_node(struct compiler *c, int i)
{
    if (dispatch_waits(c, i))
        return;
    rules[c->g->nodes[i].op].emit(c, i, rules[c->g->nodes[i].op].kind);
}

void compile_forward(struct compiler *c, struct sharding_stage nodes)
{
    c->forward = nodes;
    for (int t = 0; t < c->g->n_tensors; t++)
        c->full[t] = -1;
    for (int i = nodes.first_node; i < nodes.end_node && !c->err; i++)
        compile_node(c, i);
}

/* ---- recomputation ---- */

int compile_producer(const struct compiler *c, int t)
{
    int i = c->producer[t];
    while (i >= 0 && c->g->nodes[i].op == GO_ROPE) { /* ropes of a tensor come after the node that makes it */
        do
            i--;
        while (i >= 0 && c->g->nodes[i].out[0] != t);
    }
    /* A fused GELU is recomputed by itself where its input still exists, else together with the matmul. */
    if (i >= 0 && c->g->nodes[i].op == GO_GELU && gelu_is_made(c, i) && recompute_discarded(c, c->g->nodes[i].in[0]))
        return c->producer[c->g->nodes[i].in[0]];
    return i;
}

void compile_node_again(struct compiler *c, int maker)
{
    const struct graph_node *n = &c->g->nodes[maker];
    int r = sum_of(n), t = n->out[0];
    if (r >= 0 && !recompute_discarded(c, r)) {
        norm_of(c, maker, rules[n->op].kind, compile_value(c, r), -1, -1);
        return;
    }
    if (n->op == GO_GELU)
        unary(c, maker, rules[n->op].kind);
    else
        compile_node(c, maker);
    for (int i = maker + 1; t >= 0 && i <= c->producer[t]; i++)
        if (c->g->nodes[i].op == GO_ROPE && c->g->nodes[i].out[0] == t)
            compile_node(c, i);
}
