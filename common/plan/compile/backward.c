/* The backward rule of every operator of the graph, emitted in reverse order of the forward.
 *
 * c->grad[t] is the buffer with the gradient of activation t, from the op of its first consumer until the op of its
 * producer. Several tensors may share one buffer: the gradient of a residual sum is the gradient of both addends.
 * compile_grad_compile_grad_may_overwrite() therefore guards every in-place choice. With it one buffer carries the
 * gradient of the residual stream from the head to the embedding.
 *
 * Gradients of weights come before gradients of inputs, which frees the saved input early and lets a unit's reduce
 * start early. Where a linear gives its input a share of a sum over tp, they come after it, while the sum is in flight.
 * The list emitted here is that of the first microbatch: the first matmul of a weight writes, so matrices need no
 * zeroing, and gradients that kernels can only add to are zeroed just before. stages.c derives the list of later
 * microbatches.
 *
 * A split backward keeps every linear's dy for its second half in weight_dy, which counts as a user of the buffer.
 * Norms and tables have no second half.
 *
 * The table in docs/internals/tensor-parallel.md lists the operands that tensor parallelism gathers, and the gradients
 * that are shares of a sum over tp (c->tp_shares). */
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

bool compile_grad_may_overwrite(const struct compiler *c, int buffer)
{
    return buffer >= 0 && users(c, buffer) == 1 && !tp_is_share(c, buffer);
}

int compile_forward_value(struct compiler *c, int t)
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

/* Adds one consumer's part of t's gradient, in `buffer`. The first part becomes the gradient. */
void compile_add_gradient(struct compiler *c, int t, int buffer)
{
    if (c->grad[t] < 0) {
        c->grad[t] = buffer;
        return;
    }
    int sum = compile_grad_may_overwrite(c, c->grad[t]) ? c->grad[t] : compile_work_buffer(c, t, ".grad");
    struct op *op = compile_op(c, OP_ADD, -1);
    elementwise(c, op, t);
    op_arg(op, 0, c->grad[t]);
    op_arg(op, 1, buffer);
    op_arg(op, 2, sum);
    c->grad[t] = sum;
}

static void emit_weight_gradient(struct compiler *c, int i);

/* All consumers have added to the share of t's gradient: sums it over the group. While the sum is in flight, the weight
 * gradients of these consumers are computed. */
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
    compile_add_gradient(c, t, sum);
}

/* Called when t's producer, the last user of the gradient, is emitted. */
int compile_take_grad(struct compiler *c, int t)
{
    sum_shares(c, t);
    int buffer = c->grad[t];
    assert(c->err || buffer >= 0);
    c->grad[t] = -1;
    return buffer;
}

/* ---- gradients of parameters ---- */

/* Marks t's gradient as a share over tp: it is a sum over some rows only (`some`: own tokens, or own heads), or over
 * some of the query heads that use a key-value head. */
void compile_mark_shares(struct compiler *c, int t, bool some)
{
    bool shared = c->g->tensors[t].cut.shared && c->p->sharding.param[t].boxes < c->p->mesh.size[AXIS_TP];
    c->tp_shares[t] |= (some && !MUTANT(NORM_SHARES_UNMARKED)) || (shared && !MUTANT(KV_SHARES_UNMARKED));
}

/* The gradient buffer of parameter t for a kernel that can only add, zeroed before its first use; -1 when t is absent.
 */
static int param_grad_added(struct compiler *c, int t, int node, bool some)
{
    if (t < 0)
        return -1;
    int buffer = c->p->grad_buffer[t];
    compile_mark_shares(c, t, some);
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

/* ---- linear ---- */

/* dW[out, in] = dy^T x, or with trans_w dW[in, out] = x^T dy. The bias gradient is the sum of dy over tokens, which the
 * same op computes. */
static void linear_weight(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    enum linear_cut cut = tp_linear_cut(c, i);
    bool own_tokens = cut == LINEAR_WHOLE && c->own, acc = c->grad_started[n->in[1]];
    int64_t in = tp_cols(c, n->in[0]), out = tp_cols(c, n->out[0]);
    int db = param_grad_added(c, n->in[2], i, own_tokens), x = compile_forward_value(c, n->in[0]);
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
    compile_mark_shares(c, n->in[1], own_tokens);
    c->grad_started[n->in[1]] = true;
}

/* dx = dy W, into buffer `dx`, the gradient of t. t is x, or, where the linear is the only reader of a GELU's output,
 * the input of the GELU: the op then applies the GELU's gradient too. */
static void linear_dx(struct compiler *c, int i, int dy, int t, int dx, bool acc)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t in = tp_cols(c, n->in[0]), out = tp_cols(c, n->out[0]);
    int aux = t == n->in[0] ? -1 : compile_forward_value(c, t);
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

/* Copies the gradient of t so far to a buffer of its own, to which the caller then adds. The sum has the same bits as
 * in place, so it does not matter whether the old buffer has another user (the second half of a split backward, or a
 * message). */
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

/* Adds to the gradient that another consumer of x has written, unless that gradient is dy itself (x + y). */
static void linear_input(struct compiler *c, int i, int dy)
{
    int gelu = compile_gelu_before(c, i), x = c->g->nodes[i].in[0], t = gelu >= 0 ? c->g->nodes[gelu].in[0] : x;
    int dx = c->grad[t];
    bool acc = gelu < 0 && dx >= 0 && dx != dy;
    if (!acc)
        dx = compile_work_buffer(c, t, ".grad");
    else if (!compile_grad_may_overwrite(c, dx))
        dx = copy_gradient(c, t);
    linear_dx(c, i, dy, t, dx, acc);
    if (!acc)
        compile_add_gradient(c, t, dx);
}

/* Adds to this rank's share of x's gradient, on all tokens. */
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

/* The weight gradient of linear i, which was postponed: to the second half of a split backward, or until a sum is in
 * flight. */
static void emit_weight_gradient(struct compiler *c, int i)
{
    int dy = c->weight_dy[i];
    if (dy < 0 || (MUTANT(WEIGHTS_FORGOTTEN) && i % 5 == 0))
        return;
    if (c->g->nodes[i].op == GO_EXPERTS)
        experts_weight_grad(c, i, dy);
    else
        linear_weight(c, i, linear_dy(c, i, dy));
    c->weight_dy[i] = -1;
}

static void linear(struct compiler *c, int i, enum op_kind kind)
{
    bool by_out = tp_linear_cut(c, i) == LINEAR_BY_OUT;
    int x = c->g->nodes[i].in[0], dy = compile_take_grad(c, c->g->nodes[i].out[0]), all = linear_dy(c, i, dy);
    (void)kind;
    if (c->half == PASS_INPUTS || by_out) {
        (void)compile_forward_value(c, x); /* recomputes x now: its inputs are overwritten before the weight gradient */
        c->weight_dy[i] = dy;
    } else {
        linear_weight(c, i, all);
    }
    if (c->half == PASS_WHOLE && by_out)
        tp_all_tokens(c, x); /* in flight while the input gradient is computed */
    if (by_out)
        linear_input_share(c, i, all);
    else
        linear_input(c, i, all);
}

/* ---- other operators ---- */

/* The gradient of x if other ranks have some of a row's columns. The term of the row's dot product is in the gradient
 * once, even where several ranks hold the columns and each has a share of dy. */
static void norm_of_parts(struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int x = n->in[0], rstd = compile_forward_value(c, n->out[1]), in = compile_forward_value(c, x),
              dw = param_grad_added(c, n->in[2], i, false), dy = compile_take_grad(c, n->out[0]),
              sums = compile_row_dots(c, i, in, dy);
    const bool counted = tp_counts(c, x) || MUTANT(DOTS_BY_ALL);
    const int args[] = {in, compile_value(c, n->in[2]),         rstd, counted ? sums : -1,
                        dy, compile_work_buffer(c, x, ".grad"), dw};
    struct op *op = compile_op(c, OP_RMSNORM_PART_GRAD, i);
    tp_set_norm(c, op, i);
    op->k = c->g->tensors[x].dim[1];
    op->flags = n->plus_one ? OPF_PLUS_ONE : 0;
    for (int k = 0; k < 7; k++)
        op_arg(op, k, args[k]);
    compile_add_gradient(c, x, args[5]);
}

/* dx is the gradient of the sum x + res, and so of both addends. It includes d_res, the gradient that bypasses the
 * norm. It overwrites d_res unless that buffer has another user, or is dy too (y and the sum were added). */
static void norm(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (tp_norm_is_cut(c, i)) {
        norm_of_parts(c, i);
        return;
    }
    bool layer = kind == OP_LAYERNORM_GRAD;
    int x = n->in[0], res = n->in[1], r = layer ? n->out[3] : n->out[2], sum = r >= 0 ? r : x;
    int stat = compile_forward_value(c, n->out[1]), rstd = layer ? compile_forward_value(c, n->out[2]) : -1,
        in = compile_forward_value(c, sum);
    bool some = n->heads ? tp_size(c) > 1 && !MUTANT(HEAD_NORM_UNMARKED) : c->own;
    int dw = param_grad_added(c, n->in[2], i, some), db = layer ? param_grad_added(c, n->in[3], i, some) : -1;
    sum_shares(c, sum);
    int dy = compile_take_grad(c, n->out[0]), d_res = c->grad[sum];
    int dx = d_res != dy && compile_grad_may_overwrite(c, d_res) ? d_res : compile_work_buffer(c, sum, ".grad");
    int w = compile_value(c, n->in[2]);
    const int rms_args[] = {in, w, stat, dy, d_res, dx, dw};
    const int layer_args[] = {in, w, stat, rstd, dy, d_res, dx, dw, db};
    struct op *op = compile_op(c, kind, i);
    tp_set_norm(c, op, i);
    op->flags = n->plus_one ? OPF_PLUS_ONE : 0;
    op->eps = n->eps;
    for (int k = 0; k < (layer ? 9 : 7); k++)
        op_arg(op, k, layer ? layer_args[k] : rms_args[k]);
    c->grad[sum] = -1;
    compile_add_gradient(c, x, dx);
    if (res >= 0)
        compile_add_gradient(c, res, dx);
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

/* d_q, d_k and d_v cover their buffers completely, one each or as column ranges of one, so the op may write them
 * without adding. */
static void attention(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int d_in[3];
    for (int k = 0; k < 3; k++)
        compile_forward_value(c, n->in[k]);
    for (int k = 0; k < 2; k++)
        compile_forward_value(c, n->out[k]);
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
            compile_add_gradient(c, n->in[k], d_in[k]);
}

/* The gradients of gate and up overwrite their values where these have no other reader. */
static void swiglu(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int a = compile_forward_value(c, n->in[0]), b = compile_forward_value(c, n->in[1]),
        dy = compile_take_grad(c, n->out[0]), d_in[2];
    for (int k = 0; k < 2; k++)
        d_in[k] = compile_may_overwrite(c, n->in[k]) ? c->act[n->in[k]] : compile_work_buffer(c, n->in[k], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op_arg(op, 0, a);
    op_arg(op, 1, b);
    op_arg(op, 2, dy);
    op_arg(op, 3, d_in[0]);
    op_arg(op, 4, d_in[1]);
    compile_add_gradient(c, n->in[0], d_in[0]);
    compile_add_gradient(c, n->in[1], d_in[1]);
}

static void unary(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_forward_value(c, n->in[0]);
    sum_shares(c, n->out[0]);
    bool last = compile_grad_may_overwrite(c, c->grad[n->out[0]]);
    int dy = compile_take_grad(c, n->out[0]), dx = last ? dy : compile_work_buffer(c, n->in[0], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op->rate = n->factor;
    op_arg(op, 0, x);
    op_arg(op, 1, dy);
    op_arg(op, 2, dx);
    compile_add_gradient(c, n->in[0], dx);
}

static void scale(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    sum_shares(c, n->out[0]);
    bool last = compile_grad_may_overwrite(c, c->grad[n->out[0]]);
    int dy = compile_take_grad(c, n->out[0]), dx = last ? dy : compile_work_buffer(c, n->in[0], ".grad");
    struct op *op = compile_op(c, kind, i);
    elementwise(c, op, n->out[0]);
    op->rate = n->factor;
    op_arg(op, 0, dy);
    op_arg(op, 1, dx);
    compile_add_gradient(c, n->in[0], dx);
}

static void gelu(struct compiler *c, int i, enum op_kind kind)
{
    int y = c->g->nodes[i].out[0];
    int user = c->reader[y];
    bool passed = user >= 0 && c->g->nodes[user].op == GO_LINEAR && compile_gelu_before(c, user) == i;
    if (!passed)
        unary(c, i, kind);
}

/* No op: both inputs get the gradient of the sum. */
static void add(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = compile_take_grad(c, n->out[0]);
    (void)kind;
    compile_add_gradient(c, n->in[0], dy);
    compile_add_gradient(c, n->in[1], dy);
}

/* No op: the positions do not depend on x. */
static void positions(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    (void)kind;
    compile_add_gradient(c, n->in[0], compile_take_grad(c, n->out[0]));
}

/* The op computes the same mask again, from the same counters. */
static void dropout(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (!compile_drops(c)) {
        positions(c, i, kind);
        return;
    }
    sum_shares(c, n->out[0]);
    bool last = compile_grad_may_overwrite(c, c->grad[n->out[0]]);
    int dy = compile_take_grad(c, n->out[0]), dx = last ? dy : compile_work_buffer(c, n->in[0], ".grad");
    compile_dropout(c, i, dy, dx);
    compile_add_gradient(c, n->in[0], dx);
}

/* No op: the forward's cross entropy has written the gradient over the logits. */
static void loss(struct compiler *c, int i, enum op_kind kind)
{
    int logits = c->g->nodes[i].in[0];
    (void)kind;
    c->grad[logits] = c->act[logits];
    assert(c->err || c->grad[logits] >= 0);
}

/* A choice has none. */
static void no_gradient(struct compiler *c, int i, enum op_kind kind)
{
    (void)c;
    (void)i;
    (void)kind;
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
    [GO_GEGLU] = {swiglu, OP_GEGLU_GRAD},
    [GO_GELU] = {gelu, OP_GELU_GRAD},
    [GO_GELU_ERF] = {unary, OP_GELU_ERF_GRAD},
    [GO_SCALE] = {scale, OP_SCALE},
    [GO_CAP] = {unary, OP_CAP_GRAD},
    [GO_RELU] = {unary, OP_RELU_GRAD},
    [GO_ADD] = {add, OP_ADD},
    [GO_LOSS] = {loss, OP_CROSS_ENTROPY},
    [GO_POSITIONS] = {positions, OP_POSITIONS},
    [GO_DROPOUT] = {dropout, OP_DROPOUT},
    [GO_ROUTE] = {experts_route_grad, OP_ROUTE_GRAD},
    [GO_DROP] = {no_gradient, OP_DROP},
    [GO_DISPATCH] = {experts_dispatch_grad, OP_ROWS_SUM},
    [GO_EXPERTS] = {experts_product_grad, OP_GROUPED_GEMM},
    [GO_COMBINE] = {experts_combine_grad, OP_ROWS_SUM_GRAD},
    [GO_GATE] = {experts_gate_grad, OP_GATE_GRAD},
};

void compile_node_backward(struct compiler *c, int i)
{
    if (!dispatch_waits(c, i))
        rules[c->g->nodes[i].op].emit(c, i, rules[c->g->nodes[i].op].kind);
}

void compile_backward(struct compiler *c, struct sharding_stage nodes, enum pass_half half)
{
    c->half = half;
    c->forward = (struct sharding_stage){0, 0};
    if (half != PASS_WEIGHTS)
        recompute_discard(c, nodes);
    for (int t = 0; t < c->g->n_tensors; t++) {
        c->grad_started[t] &= half == PASS_WEIGHTS; /* the half for inputs may have started gradients */
        c->grad_started[t] |= c->p->sharding.param[t].chunks && !zero_scatters(c) && !MUTANT(CHUNKS_OVERWRITE);
        c->full[t] = -1;
    }
    for (int i = nodes.end_node - 1; i >= nodes.first_node && !c->err; i--)
        if (half == PASS_WEIGHTS)
            emit_weight_gradient(c, i);
        else
            compile_node_backward(c, i);
}
