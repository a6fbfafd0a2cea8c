/* The forward rule of every operator of the graph: which op it becomes and which buffers it needs.
 *
 * Where a kernel allows an output to lie on an input, and the input's value is not wanted again, one buffer stands for
 * both: the residual sum takes over the buffer of the branch that was added. */
#include "common/plan/compile.h"

static int fresh(struct compiler *c, int t)
{
    if (t < 0)
        return -1;
    return c->act[t] = compile_work(c, t, "");
}

static void embed(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = fresh(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, n->out[0]));
    for (int k = 0; k < 3; k++)
        op_arg(op, k, compile_value(c, n->in[k]));
    op_arg(op, 3, y);
}

static void linear(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t in = compile_cols(c, n->in[0]), out = compile_cols(c, n->out[0]);
    int gelu = compile_gelu_behind(c, i), x = fresh(c, n->out[0]);
    int y = gelu >= 0 ? fresh(c, c->g->nodes[gelu].out[0]) : x;
    struct op *op = compile_op(c, kind, i);
    op->flags = (n->trans_w ? 0 : OPF_TRANS_B) | (gelu >= 0 ? OPF_GELU : 0);
    op->m = dim_tokens(1);
    op->n = dim_one(out);
    op->k = dim_one(in);
    op->lda = in;
    op->ldb = n->trans_w ? out : in;
    op->ldc = out;
    for (int k = 0; k < 3; k++)
        op_arg(op, k, compile_value(c, n->in[k]));
    op_arg(op, 3, y);
    op_arg(op, 4, gelu >= 0 ? x : -1); /* without a backward nobody reads it, and its bytes are free behind the op */
}

/* x, [res], w, (b,) [r], y, (mean,) rstd */
static void norm(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool layer = kind == OP_LAYERNORM;
    int r_out = layer ? n->out[3] : n->out[2], res = n->in[1];
    int y = fresh(c, n->out[0]), stat = fresh(c, n->out[1]), rstd = layer ? fresh(c, n->out[2]) : -1, r = -1;
    if (r_out >= 0)
        r = compile_can_take(c, res) ? (c->act[r_out] = c->act[res]) : fresh(c, r_out);
    const int rms_args[] = {compile_value(c, n->in[0]), compile_value(c, res), compile_value(c, n->in[2]), r, y, stat};
    const int layer_args[] = {compile_value(c, n->in[0]),
                              compile_value(c, res),
                              compile_value(c, n->in[2]),
                              compile_value(c, n->in[3]),
                              r,
                              y,
                              stat,
                              rstd};
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, n->in[0]));
    op->eps = n->eps;
    for (int k = 0; k < (layer ? 8 : 6); k++)
        op_arg(op, k, layer ? layer_args[k] : rms_args[k]);
}

static void rope(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->heads = n->heads;
    op->head_dim = n->head_dim;
    op->lda = compile_cols(c, n->in[0]);
    op->theta = n->theta;
    op_arg(op, 0, compile_value(c, n->in[0]));
    op->arg[0].col = n->in_col[0];
}

static void attention(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int o = fresh(c, n->out[0]), lse = fresh(c, n->out[1]);
    struct op *op = compile_op(c, kind, i);
    op->flags = n->causal ? OPF_CAUSAL : 0;
    op->m = (struct graph_dim){SYM_SAMPLES, 1};
    op->heads = n->heads;
    op->kv_heads = n->kv_heads;
    op->head_dim = n->head_dim;
    op->lda = compile_cols(c, n->in[0]);
    op->ldb = compile_cols(c, n->in[1]);
    op->ldc = compile_cols(c, n->out[0]);
    for (int k = 0; k < 3; k++) {
        op_arg(op, k, compile_value(c, n->in[k]));
        op->arg[k].col = n->in_col[k];
    }
    op_arg(op, 3, o);
    op_arg(op, 4, lse);
}

static void unary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = fresh(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, n->out[0]));
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, y);
}

static void gelu(struct compiler *c, int i, enum op_kind kind)
{
    int maker = c->producer[c->g->nodes[i].in[0]];
    bool made = maker >= 0 && c->g->nodes[maker].op == GO_LINEAR && compile_gelu_behind(c, maker) == i;
    if (!made)
        unary(c, i, kind);
}

static void binary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool in_place = kind == OP_ADD && compile_can_take(c, n->in[0]);
    int y = in_place ? (c->act[n->out[0]] = c->act[n->in[0]]) : fresh(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, n->out[0]));
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
}

static void loss(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool train = c->p->mode == MODE_TRAIN;
    if (c->p->mode == MODE_GENERATE)
        return;
    struct op *op = compile_op(c, kind, i);
    op->flags = train ? OPF_GRAD : 0;
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, n->in[0]));
    op->event = c->loss_event;
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, c->p->loss_buffer);
}

static const struct {
    void (*emit)(struct compiler *c, int node, enum op_kind kind);
    enum op_kind kind;
} rules[GO_COUNT] = {
    [GO_EMBED] = {embed, OP_EMBED},       [GO_LINEAR] = {linear, OP_GEMM},
    [GO_RMSNORM] = {norm, OP_RMSNORM},    [GO_LAYERNORM] = {norm, OP_LAYERNORM},
    [GO_ROPE] = {rope, OP_ROPE},          [GO_ATTENTION] = {attention, OP_ATTENTION},
    [GO_SWIGLU] = {binary, OP_SWIGLU},    [GO_GELU] = {gelu, OP_GELU},
    [GO_RELU] = {unary, OP_RELU},         [GO_ADD] = {binary, OP_ADD},
    [GO_LOSS] = {loss, OP_CROSS_ENTROPY},
};

void compile_forward(struct compiler *c, struct place_stage nodes)
{
    for (int i = nodes.first_node; i < nodes.end_node && !c->err; i++)
        rules[c->g->nodes[i].op].emit(c, i, rules[c->g->nodes[i].op].kind);
}
