/* The backward rule of every operator of the graph, emitted in reverse order of the forward.
 *
 * c->grad[t] names the buffer with the gradient of activation t from the moment its first consumer has written it until
 * its producer has read it. Several tensors may share one buffer: what flows into a residual sum is the gradient of
 * both its parts. A buffer may be overwritten only by its last user, so every in-place choice asks users() first; that
 * lets one buffer carry the residual stream's gradient from the head to the embedding.
 *
 * Gradients of weights come before gradients of inputs, so that the saved input is free when the gradient is made, and
 * a unit's reduce may start as early as it can. The pass emitted here is the first of a step: a weight's first product
 * writes, which saves zeroing all gradients; what can only be added to is zeroed just before its first use.
 * compile.c makes the pass of the later microbatches from it: no zeroing, and every product of a weight adds. */
#include "common/plan/compile.h"

#include <assert.h>

static int users(const struct compiler *c, int buffer)
{
    int n = 0;
    for (int t = 0; t < c->g->n_tensors; t++)
        n += c->grad[t] == buffer;
    return n;
}

/* Takes the gradient of t from the table: its producer, the last to need it, is being emitted. */
static int take(struct compiler *c, int t)
{
    int buffer = c->grad[t];
    assert(c->err || buffer >= 0);
    c->grad[t] = -1;
    return buffer;
}

static void elementwise(struct compiler *c, struct op *op, int t)
{
    op->m = dim_tokens(1);
    op->n = dim_one(compile_cols(c, t));
}

/* `buffer` holds one consumer's share of t's gradient: the first becomes the gradient, others are added to it. */
static void deliver(struct compiler *c, int t, int buffer)
{
    if (c->grad[t] < 0) {
        c->grad[t] = buffer;
        return;
    }
    int sum = users(c, c->grad[t]) == 1 ? c->grad[t] : compile_work(c, t, ".grad");
    struct op *op = compile_op(c, OP_ADD, -1);
    elementwise(c, op, t);
    op_arg(op, 0, c->grad[t]);
    op_arg(op, 1, buffer);
    op_arg(op, 2, sum);
    c->grad[t] = sum;
}

/* The gradient buffer of parameter t for a kernel that only adds; -1 when t is absent. */
static int param_grad_added(struct compiler *c, int t, int node)
{
    if (t < 0)
        return -1;
    int buffer = c->p->grad_buffer[t];
    if (!c->grad_started[t]) {
        const struct graph_tensor *g = &c->g->tensors[t];
        struct op *op = compile_op(c, OP_ZERO, node);
        op->m = g->dim[0];
        op->n = dim_one(g->ndim > 1 ? g->dim[1].factor : 1);
        op_arg(op, 0, buffer);
    }
    c->grad_started[t] = true;
    return buffer;
}

static void embed(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int table = param_grad_added(c, n->in[1], i), pos = param_grad_added(c, n->in[2], i);
    int dy = take(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, dy);
    op_arg(op, 2, table);
    op_arg(op, 3, pos);
}

/* dW[out, in] = dy^T x, or with trans_w dW[in, out] = x^T dy; the sums over the tokens of dy are the bias's gradient.
 */
static void linear_weight(struct compiler *c, int i, int dy, int db)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t in = compile_cols(c, n->in[0]), out = compile_cols(c, n->out[0]);
    int x = compile_value(c, n->in[0]);
    bool acc = c->grad_started[n->in[1]];
    struct op *op = compile_op(c, OP_GEMM, i);
    op->flags = OPF_TRANS_A | (acc ? OPF_ACC : 0);
    op->m = dim_one(n->trans_w ? in : out);
    op->n = dim_one(n->trans_w ? out : in);
    op->k = dim_tokens(1);
    op->lda = n->trans_w ? in : out;
    op->ldb = op->ldc = n->trans_w ? out : in;
    op_arg(op, 0, n->trans_w ? x : dy);
    op_arg(op, 1, n->trans_w ? dy : x);
    op_arg(op, 3, c->p->grad_buffer[n->in[1]]);
    op_arg(op, n->trans_w ? 6 : 5, db);
    c->grad_started[n->in[1]] = true;
}

/* dx = dy W, added where another consumer of x has been there already, unless that gradient is dy itself (x and y were
 * added). Where x is a GELU's and nobody else's, the
 * product goes on through it: its result is the gradient of what the GELU read. */
static void linear_input(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t in = compile_cols(c, n->in[0]), out = compile_cols(c, n->out[0]);
    int gelu = compile_gelu_before(c, i), x = gelu >= 0 ? c->g->nodes[gelu].in[0] : n->in[0];
    int dx = gelu >= 0 ? -1 : c->grad[x];
    bool acc = dx >= 0 && dx != dy && users(c, dx) == 1;
    if (!acc)
        dx = compile_work(c, x, ".grad");
    struct op *op = compile_op(c, OP_GEMM, i);
    op->flags = (n->trans_w ? OPF_TRANS_B : 0) | (acc ? OPF_ACC : 0) | (gelu >= 0 ? OPF_GELU_GRAD : 0);
    op->m = dim_tokens(1);
    op->n = dim_one(in);
    op->k = dim_one(out);
    op->lda = out;
    op->ldb = n->trans_w ? out : in;
    op->ldc = in;
    op_arg(op, 0, dy);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 3, dx);
    op_arg(op, 4, gelu >= 0 ? compile_value(c, x) : -1);
    if (!acc)
        deliver(c, x, dx);
}

static void linear(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = take(c, n->out[0]), db = param_grad_added(c, n->in[2], i);
    (void)kind;
    linear_weight(c, i, dy, db);
    linear_input(c, i, dy);
}

/* dx is the gradient of the sum x + res, so of each of them, with what flows past the norm in it (d_res). It takes
 * d_res's place unless another tensor's producer still needs that, or it is dy too (y and the sum were added). */
static void norm(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool layer = kind == OP_LAYERNORM_GRAD;
    int x = n->in[0], res = n->in[1], r = layer ? n->out[3] : n->out[2], sum = r >= 0 ? r : x;
    int dw = param_grad_added(c, n->in[2], i), db = layer ? param_grad_added(c, n->in[3], i) : -1;
    int dy = take(c, n->out[0]), d_res = c->grad[sum];
    int dx = d_res >= 0 && d_res != dy && users(c, d_res) == 1 ? d_res : compile_work(c, sum, ".grad");
    int w = compile_value(c, n->in[2]), stat = compile_value(c, n->out[1]), in = compile_value(c, sum);
    int rstd = layer ? compile_value(c, n->out[2]) : -1;
    const int rms_args[] = {in, w, stat, dy, d_res, dx, dw};
    const int layer_args[] = {in, w, stat, rstd, dy, d_res, dx, dw, db};
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, x);
    op->eps = n->eps;
    for (int k = 0; k < (layer ? 9 : 7); k++)
        op_arg(op, k, layer ? layer_args[k] : rms_args[k]);
    c->grad[sum] = -1;
    deliver(c, x, dx);
    if (res >= 0)
        deliver(c, res, dx);
}

static void rope(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = n->in[0];
    assert(c->err || users(c, c->grad[x]) == 1);
    struct op *op = compile_op(c, kind, i);
    op->flags = OPF_INVERSE;
    op->m = dim_tokens(1);
    op->heads = n->heads;
    op->head_dim = n->head_dim;
    op->lda = compile_cols(c, x);
    op->theta = n->theta;
    op_arg(op, 0, c->grad[x]);
    op->arg[0].col = n->in_col[0];
}

/* Together d_q, d_k and d_v cover their buffers, one each or column ranges of one, so "=" is right. */
static void attention(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int d_o = take(c, n->out[0]), d_in[3];
    for (int k = 0; k < 3; k++) {
        bool again = k > 0 && n->in[k] == n->in[k - 1];
        d_in[k] = again ? d_in[k - 1] : compile_work(c, n->in[k], ".grad");
    }
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
        op_arg(op, 6 + k, d_in[k]);
        op->arg[k].col = op->arg[6 + k].col = n->in_col[k];
    }
    op_arg(op, 3, compile_value(c, n->out[0]));
    op_arg(op, 4, compile_value(c, n->out[1]));
    op_arg(op, 5, d_o);
    for (int k = 0; k < 3; k++)
        if (k == 0 || n->in[k] != n->in[k - 1])
            deliver(c, n->in[k], d_in[k]);
}

/* The gradients of gate and up take over the buffers of their values, which nobody else wants. */
static void swiglu(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = take(c, n->out[0]), d_in[2];
    for (int k = 0; k < 2; k++)
        d_in[k] = compile_can_take(c, n->in[k]) ? c->act[n->in[k]] : compile_work(c, n->in[k], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, dy);
    op_arg(op, 3, d_in[0]);
    op_arg(op, 4, d_in[1]);
    deliver(c, n->in[0], d_in[0]);
    deliver(c, n->in[1], d_in[1]);
}

static void unary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool last = users(c, c->grad[n->out[0]]) == 1;
    int dy = take(c, n->out[0]), dx = last ? dy : compile_work(c, n->in[0], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, dy);
    op_arg(op, 2, dx);
    deliver(c, n->in[0], dx);
}

static void gelu(struct compiler *c, int i, enum op_kind kind)
{
    int y = c->g->nodes[i].out[0];
    int user = c->reader[y];
    bool passed = user >= 0 && c->g->nodes[user].op == GO_LINEAR && compile_gelu_before(c, user) == i;
    if (!passed)
        unary(c, i, kind);
}

/* No op: both inputs have the sum's gradient. */
static void add(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = take(c, n->out[0]);
    (void)kind;
    deliver(c, n->in[0], dy);
    deliver(c, n->in[1], dy);
}

/* No op: the forward's cross entropy has left the gradient in place of the logits. */
static void loss(struct compiler *c, int i, enum op_kind kind)
{
    (void)kind;
    assert(c->err || c->grad[c->g->nodes[i].in[0]] >= 0);
}

static const struct {
    void (*emit)(struct compiler *c, int node, enum op_kind kind);
    enum op_kind kind;
} rules[GO_COUNT] = {
    [GO_EMBED] = {embed, OP_EMBED_GRAD},
    [GO_LINEAR] = {linear, OP_GEMM},
    [GO_RMSNORM] = {norm, OP_RMSNORM_GRAD},
    [GO_LAYERNORM] = {norm, OP_LAYERNORM_GRAD},
    [GO_ROPE] = {rope, OP_ROPE},
    [GO_ATTENTION] = {attention, OP_ATTENTION_GRAD},
    [GO_SWIGLU] = {swiglu, OP_SWIGLU_GRAD},
    [GO_GELU] = {gelu, OP_GELU_GRAD},
    [GO_RELU] = {unary, OP_RELU_GRAD},
    [GO_ADD] = {add, OP_ADD},
    [GO_LOSS] = {loss, OP_CROSS_ENTROPY},
};

void compile_backward(struct compiler *c, struct place_stage nodes, enum pass_half half)
{
    (void)half;
    for (int t = 0; t < c->g->n_tensors; t++)
        c->grad_started[t] = false;
    c->grad[c->g->logits] = c->act[c->g->logits];
    for (int i = nodes.end_node - 1; i >= nodes.first_node && !c->err; i--)
        rules[c->g->nodes[i].op].emit(c, i, rules[c->g->nodes[i].op].kind);
}
