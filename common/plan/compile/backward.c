/* The backward rule of every operator of the graph, emitted in reverse order of the forward.
 *
 * c->grad[t] names the buffer with the gradient of activation t from the moment its first consumer has written it until
 * its producer has read it. Several tensors may share one buffer: what flows into a residual sum is the gradient of
 * both its parts. A buffer may be overwritten only by its last user, so every in-place choice asks may_overwrite()
 * first; that lets one buffer carry the residual stream's gradient from the head to the embedding.
 *
 * Gradients of weights come before gradients of inputs, so that the saved input is free when the gradient is made, and
 * a unit's reduce may start as early as it can; where a product gives its input a share of a sum, they come behind it,
 * while the sum travels. The pass emitted here is the first of a step: a weight's first product writes, which saves
 * zeroing all gradients; what can only be added to is zeroed just before its first use.
 * compile.c makes the pass of the later microbatches from it: no zeroing, and every product of a weight adds.
 *
 * A backward in halves: the first keeps every product's dy for the second (weight_dy is one more user, so nobody writes
 * over it); norms and tables have no second half. Own tokens of x and dy are gathered anew in each half, which keeps
 * one part of them from forward to backward instead of all.
 *
 * Tensor parallelism. What a product with a weight cut by its output gives its x is a share of a sum on all tokens.
 * Shares of all consumers are added here first (c->shares) and summed over the group once, when x's producer takes its
 * gradient; what other consumers gave is whole, and added behind that. A parameter's gradient is whole, or a share over
 * tp (c->tp_shares, which once.c sums) when its rank saw only some tokens, or when ranks with other query heads hold
 * the same key-value heads:
 *
 *   operator, weight cut    parameter       x         dy        gradient without sp   with sp
 *   linear by output        weight, bias    all       columns   whole (of the part)   whole: x is gathered
 *     shared kv heads       weight, bias    all       columns   share                 share: of some query heads
 *   linear by input         weight          columns   all       whole (of the part)   whole: dy is gathered
 *                           bias            -         all       whole, replicated     whole, replicated
 *   linear, not cut         weight, bias    own       own       whole, replicated     share: of own tokens
 *   norm                    weight, bias    own       own       whole, replicated     share: of own tokens
 *   embed, by vocabulary    table           ids       all       whole (of the part)   whole: dy is gathered
 *                           positions       -         all       whole, replicated     whole, replicated
 *
 * A tied table is cut alike in both of its roles, so its two gradients meet in one buffer. Replicated means computed
 * by all from equal operands: equal bits, summed by nobody. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>

static int users(const struct compiler *c, int buffer)
{
    int n = 0;
    for (int t = 0; t < c->g->n_tensors; t++)
        n += c->grad[t] == buffer;
    for (int i = 0; i < c->g->n_nodes; i++)
        n += c->weight_dy[i] == buffer;
    return n;
}

/* `buffer`, a gradient in the table, is wanted by nobody else. */
static bool may_overwrite(const struct compiler *c, int buffer)
{
    return buffer >= 0 && users(c, buffer) == 1 && !tp_is_share(c, buffer);
}

/* A value of the forward, made again where it was given up. */
static int forward_value(struct compiler *c, int t)
{
    if (t >= 0 && c->producer[t] >= 0 && recompute_discarded(c, t))
        recompute_emit(c, compile_producer(c, t));
    return compile_value(c, t);
}

static void elementwise(struct compiler *c, struct op *op, int t)
{
    op->m = tp_rows(c, t);
    op->n = dim_one(tp_cols(c, t));
}

/* `buffer` holds one consumer's part of t's gradient: the first becomes the gradient, others are added to it. */
static void add_gradient(struct compiler *c, int t, int buffer)
{
    if (c->grad[t] < 0) {
        c->grad[t] = buffer;
        return;
    }
    int sum = may_overwrite(c, c->grad[t]) ? c->grad[t] : compile_work_buffer(c, t, ".grad");
    struct op *op = compile_op(c, OP_ADD, -1);
    elementwise(c, op, t);
    op_arg(op, 0, c->grad[t]);
    op_arg(op, 1, buffer);
    op_arg(op, 2, sum);
    c->grad[t] = sum;
}

static void emit_weight_gradient(struct compiler *c, int i);

/* Everybody has given: the shares of the group become one sum. While it is under way the weights' gradients of who gave
 * them are computed. */
static void sum_shares(struct compiler *c, int t)
{
    int share = c->shares[t], sum;
    c->shares[t] = -1;
    if (share < 0)
        return;
    sum = tp_sum_shares(c, t, share, ".grad");
    for (int i = c->g->n_nodes - 1; i >= 0 && c->half == PASS_WHOLE; i--)
        if (c->g->nodes[i].op == GO_LINEAR && c->g->nodes[i].in[0] == t)
            emit_weight_gradient(c, i);
    add_gradient(c, t, sum);
}

/* Takes the gradient of t from the table: its producer, the last to need it, is being emitted. */
int compile_take_grad(struct compiler *c, int t)
{
    sum_shares(c, t);
    int buffer = c->grad[t];
    assert(c->err || buffer >= 0);
    c->grad[t] = -1;
    return buffer;
}

/* ---- gradients of parameters ---- */

/* What has been put into t's gradient is of own tokens, or of some of the query heads that use a key-value head. */
static void mark_shares(struct compiler *c, int t, bool own_tokens)
{
    bool shared = c->g->tensors[t].cut.segments && c->p->sharding.param[t].tp_boxes < c->p->mesh.size[AXIS_TP];
    c->tp_shares[t] |= (own_tokens && !MUTANT(NORM_SHARES_UNMARKED)) || (shared && !MUTANT(KV_SHARES_UNMARKED));
}

/* The gradient buffer of parameter t for a kernel that only adds; -1 when t is absent. */
static int param_grad_added(struct compiler *c, int t, int node, bool own_tokens)
{
    if (t < 0)
        return -1;
    int buffer = c->p->grad_buffer[t];
    mark_shares(c, t, own_tokens);
    if (!c->grad_started[t]) {
        struct op *op = compile_op(c, OP_ZERO, node);
        op->m = tp_local_dim(c, t, 0);
        op->n = dim_one(tp_cols(c, t));
        op_arg(op, 0, buffer);
    }
    c->grad_started[t] = true;
    return buffer;
}

static void embed_segment(struct compiler *c, int i, enum op_kind kind, int s, const int args[4])
{
    const struct graph_node *n = &c->g->nodes[i];
    struct op *op = compile_op(c, kind, i);
    cp_set_segment(c, op, s);
    tp_set_vocab(c, op, n->in[1]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    for (int k = 0; k < 4; k++)
        op_arg(op, k, args[k]);
    op->arg[0].offset = cp_segment_offset(c, s, 1);
    op->arg[1].offset = cp_segment_offset(c, s, tp_cols(c, n->out[0]));
}

static void embed(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int table = param_grad_added(c, n->in[1], i, false), pos = param_grad_added(c, n->in[2], i, false);
    int dy = tp_gather_tokens(c, n->out[0], compile_take_grad(c, n->out[0]), ".grad.all");
    const int args[] = {compile_value(c, n->in[0]), dy, table, pos};
    for (int s = 0; s < c->p->n_segments; s++)
        if (c->p->segments[s].len > 0)
            embed_segment(c, i, kind, s, args);
}

/* ---- products ---- */

/* dW[out, in] = dy^T x, or with trans_w dW[in, out] = x^T dy; the sums over the tokens of dy are the bias's gradient.
 */
static void linear_weight(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    enum linear_cut cut = tp_linear_cut(c, i);
    bool own_tokens = cut == LINEAR_WHOLE && c->own, acc = c->grad_started[n->in[1]];
    int64_t in = tp_cols(c, n->in[0]), out = tp_cols(c, n->out[0]);
    int db = param_grad_added(c, n->in[2], i, own_tokens), x = forward_value(c, n->in[0]);
    x = cut == LINEAR_BY_OUT ? tp_all_tokens(c, n->in[0]) : x;
    struct op *op = compile_op(c, OP_GEMM, i);
    op->flags = OPF_TRANS_A | (acc ? OPF_ACC : 0);
    op->m = dim_one(n->trans_w ? in : out);
    op->n = dim_one(n->trans_w ? out : in);
    op->k = cut == LINEAR_WHOLE ? tp_rows(c, n->out[0]) : dim_tokens(1);
    op->lda = n->trans_w ? in : MUTANT(DENSE_ROWS_SUMMED) ? out : pitch_of(c, n->out[0]);
    op->ldb = op->ldc = n->trans_w ? out : in;
    op_arg(op, 0, n->trans_w ? x : dy);
    op_arg(op, 1, n->trans_w ? dy : x);
    op_arg(op, 3, c->p->grad_buffer[n->in[1]]);
    op_arg(op, n->trans_w ? 6 : 5, db);
    mark_shares(c, n->in[1], own_tokens);
    c->grad_started[n->in[1]] = true;
}

/* dx = dy W into `dx`, which is t's. Where x is a GELU's and nobody else's, the product goes on through it: its result
 * is the gradient of what the GELU read, t. */
static void linear_dx(struct compiler *c, int i, int dy, int t, int dx, bool acc)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t in = tp_cols(c, n->in[0]), out = tp_cols(c, n->out[0]);
    int aux = t == n->in[0] ? -1 : forward_value(c, t);
    struct op *op = compile_op(c, OP_GEMM, i);
    op->flags = (n->trans_w ? OPF_TRANS_B : 0) | (acc ? OPF_ACC : 0) | (aux >= 0 ? OPF_GELU_GRAD : 0);
    op->m = tp_linear_cut(c, i) == LINEAR_WHOLE ? tp_rows(c, n->out[0]) : dim_tokens(1);
    op->n = dim_one(in);
    op->k = dim_one(out);
    op->lda = pitch_of(c, n->out[0]);
    op->ldb = n->trans_w ? out : in;
    op->ldc = in;
    op_arg(op, 0, dy);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 3, dx);
    op_arg(op, 4, aux);
}

/* The gradient of t so far, in a buffer of its own. What is added to it then has the bits that it would have in place:
 * who else needs the old one (a split backward's other half, a message) changes no number. */
static int copy_gradient(struct compiler *c, int t)
{
    int from = c->grad[t], to = compile_work_buffer(c, t, ".grad");
    struct op *op = compile_op(c, OP_COPY, -1);
    elementwise(c, op, t);
    op_arg(op, 0, from);
    op_arg(op, 1, to);
    c->grad[t] = to;
    return to;
}

/* Added where another consumer of x has been there already, unless that gradient is dy itself (x and y were added). */
static void linear_input(struct compiler *c, int i, int dy)
{
    int gelu = compile_gelu_before(c, i), x = c->g->nodes[i].in[0], t = gelu >= 0 ? c->g->nodes[gelu].in[0] : x;
    int dx = c->grad[t];
    bool acc = gelu < 0 && dx >= 0 && dx != dy;
    if (!acc)
        dx = compile_work_buffer(c, t, ".grad");
    else if (!may_overwrite(c, dx))
        dx = copy_gradient(c, t);
    linear_dx(c, i, dy, t, dx, acc);
    if (!acc)
        add_gradient(c, t, dx);
}

/* This rank's share of x's gradient, on all tokens. */
static void linear_input_share(struct compiler *c, int i, int dy)
{
    int x = c->g->nodes[i].in[0];
    bool acc = c->shares[x] >= 0;
    if (acc && MUTANT(SHARE_OVERWRITTEN)) {
        linear_dx(c, i, dy, x, c->shares[x], false);
        return;
    }
    if (!acc)
        c->shares[x] = tp_new_share(c, x, ".grad");
    linear_dx(c, i, dy, x, c->shares[x], acc);
}

static int linear_dy(struct compiler *c, int i, int dy)
{
    bool gather = tp_linear_cut(c, i) == LINEAR_BY_IN;
    return gather ? tp_gather_tokens(c, c->g->nodes[i].out[0], dy, ".grad.all") : dy;
}

/* A split backward's second half of product i; or, in a whole one, what waited for a sum to be under way. */
static void emit_weight_gradient(struct compiler *c, int i)
{
    int dy = c->weight_dy[i];
    if (dy < 0 || (MUTANT(WEIGHTS_FORGOTTEN) && i % 5 == 0))
        return;
    linear_weight(c, i, linear_dy(c, i, dy));
    c->weight_dy[i] = -1;
}

static void linear(struct compiler *c, int i, enum op_kind kind)
{
    bool by_out = tp_linear_cut(c, i) == LINEAR_BY_OUT;
    int x = c->g->nodes[i].in[0], dy = compile_take_grad(c, c->g->nodes[i].out[0]), all = linear_dy(c, i, dy);
    (void)kind;
    if (c->half == PASS_INPUTS || by_out) {
        (void)forward_value(c, x); /* for the weight's gradient: what it is made from is overwritten by then */
        c->weight_dy[i] = dy;
    } else {
        linear_weight(c, i, all);
    }
    if (c->half == PASS_WHOLE && by_out)
        tp_all_tokens(c, x); /* arrives while the input's gradient is computed */
    if (by_out)
        linear_input_share(c, i, all);
    else
        linear_input(c, i, all);
}

/* ---- all else ---- */

/* dx is the gradient of the sum x + res, so of each of them, with what flows past the norm in it (d_res). It takes
 * d_res's place unless another tensor's producer still needs that, or it is dy too (y and the sum were added). */
static void norm(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool layer = kind == OP_LAYERNORM_GRAD;
    int x = n->in[0], res = n->in[1], r = layer ? n->out[3] : n->out[2], sum = r >= 0 ? r : x;
    int stat = forward_value(c, n->out[1]), rstd = layer ? forward_value(c, n->out[2]) : -1, in = forward_value(c, sum);
    int dw = param_grad_added(c, n->in[2], i, c->own), db = layer ? param_grad_added(c, n->in[3], i, c->own) : -1;
    sum_shares(c, sum);
    int dy = compile_take_grad(c, n->out[0]), d_res = c->grad[sum];
    int dx = d_res != dy && may_overwrite(c, d_res) ? d_res : compile_work_buffer(c, sum, ".grad");
    int w = compile_value(c, n->in[2]);
    const int rms_args[] = {in, w, stat, dy, d_res, dx, dw};
    const int layer_args[] = {in, w, stat, rstd, dy, d_res, dx, dw, db};
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, x);
    op->eps = n->eps;
    for (int k = 0; k < (layer ? 9 : 7); k++)
        op_arg(op, k, layer ? layer_args[k] : rms_args[k]);
    c->grad[sum] = -1;
    add_gradient(c, x, dx);
    if (res >= 0)
        add_gradient(c, res, dx);
}

static void rope(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = n->in[0];
    assert(c->err || users(c, c->grad[x]) == 1);
    for (int s = 0; s < c->p->n_segments; s++) {
        if (c->p->segments[s].len == 0)
            continue;
        struct op *op = compile_op(c, kind, i);
        cp_set_segment(c, op, s);
        op->flags = OPF_INVERSE;
        op->heads = tp_heads(c, x, n->heads);
        op->head_dim = n->head_dim;
        op->lda = pitch_of(c, x);
        op->theta = n->theta;
        op_arg(op, 0, c->grad[x]);
        op->arg[0].col = tp_col(c, x, n->in_col[0]);
        op->arg[0].offset = cp_segment_offset(c, s, op->lda);
    }
}

static void attention_op(struct compiler *c, int i, enum op_kind kind, int d_o, const int d_in[3])
{
    const struct graph_node *n = &c->g->nodes[i];
    struct op *op = cp_attention_op(c, kind, i);
    for (int k = 0; k < 3; k++) {
        op_arg(op, k, compile_value(c, n->in[k]));
        op_arg(op, 6 + k, d_in[k]);
        op->arg[k].col = op->arg[6 + k].col = tp_col(c, n->in[k], n->in_col[k]);
    }
    op_arg(op, 3, compile_value(c, n->out[0]));
    op_arg(op, 4, compile_value(c, n->out[1]));
    op_arg(op, 5, d_o);
}

/* Together d_q, d_k and d_v cover their buffers, one each or column ranges of one, so "=" is right. */
static void attention(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int d_in[3];
    for (int k = 0; k < 3; k++)
        forward_value(c, n->in[k]);
    for (int k = 0; k < 2; k++)
        forward_value(c, n->out[k]);
    int d_o = compile_take_grad(c, n->out[0]);
    for (int k = 0; k < 3; k++) {
        bool again = k > 0 && n->in[k] == n->in[k - 1];
        d_in[k] = again ? d_in[k - 1] : compile_work_buffer(c, n->in[k], ".grad");
    }
    if (c->p->n_segments > 1)
        cp_emit_attention_grad(c, i, d_o, d_in);
    else
        attention_op(c, i, kind, d_o, d_in);
    for (int k = 0; k < 3; k++)
        if (k == 0 || n->in[k] != n->in[k - 1])
            add_gradient(c, n->in[k], d_in[k]);
}

/* The gradients of gate and up take over the buffers of their values, which nobody else wants. */
static void swiglu(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int a = forward_value(c, n->in[0]), b = forward_value(c, n->in[1]), dy = compile_take_grad(c, n->out[0]), d_in[2];
    for (int k = 0; k < 2; k++)
        d_in[k] = compile_may_overwrite(c, n->in[k]) ? c->act[n->in[k]] : compile_work_buffer(c, n->in[k], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, a);
    op_arg(op, 1, b);
    op_arg(op, 2, dy);
    op_arg(op, 3, d_in[0]);
    op_arg(op, 4, d_in[1]);
    add_gradient(c, n->in[0], d_in[0]);
    add_gradient(c, n->in[1], d_in[1]);
}

static void unary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = forward_value(c, n->in[0]);
    sum_shares(c, n->out[0]);
    bool last = may_overwrite(c, c->grad[n->out[0]]);
    int dy = compile_take_grad(c, n->out[0]), dx = last ? dy : compile_work_buffer(c, n->in[0], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, x);
    op_arg(op, 1, dy);
    op_arg(op, 2, dx);
    add_gradient(c, n->in[0], dx);
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
    int dy = compile_take_grad(c, n->out[0]);
    (void)kind;
    add_gradient(c, n->in[0], dy);
    add_gradient(c, n->in[1], dy);
}

/* No op: what was added does not depend on x. */
static void positions(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    (void)kind;
    add_gradient(c, n->in[0], compile_take_grad(c, n->out[0]));
}

/* The same numbers decide again. */
static void dropout(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (!compile_drops(c)) {
        positions(c, i, kind);
        return;
    }
    sum_shares(c, n->out[0]);
    bool last = may_overwrite(c, c->grad[n->out[0]]);
    int dy = compile_take_grad(c, n->out[0]), dx = last ? dy : compile_work_buffer(c, n->in[0], ".grad");
    compile_dropout(c, i, dy, dx);
    add_gradient(c, n->in[0], dx);
}

/* No op: the forward's cross entropy has left the gradient in place of the logits. */
static void loss(struct compiler *c, int i, enum op_kind kind)
{
    int logits = c->g->nodes[i].in[0];
    (void)kind;
    c->grad[logits] = c->act[logits];
    assert(c->err || c->grad[logits] >= 0);
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
    [GO_POSITIONS] = {positions, OP_POSITIONS},
    [GO_DROPOUT] = {dropout, OP_DROPOUT},
};

void compile_backward(struct compiler *c, struct sharding_stage nodes, enum pass_half half)
{
    c->half = half;
    c->forward = (struct sharding_stage){0, 0};
    if (half != PASS_WEIGHTS)
        recompute_discard(c, nodes);
    for (int t = 0; t < c->g->n_tensors; t++) {
        c->grad_started[t] &= half == PASS_WEIGHTS; /* goes on where the half for inputs has been */
        c->full[t] = -1;
    }
    for (int i = nodes.end_node - 1; i >= nodes.first_node && !c->err; i--)
        if (half == PASS_WEIGHTS)
            emit_weight_gradient(c, i);
        else
            rules[c->g->nodes[i].op].emit(c, i, rules[c->g->nodes[i].op].kind);
}
