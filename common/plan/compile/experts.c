/* Mixtures of experts: the forward and backward rules of their operators.
 *
 *   route      logits -> ids, weights. Where the model has an auxiliary loss, also the numbers of its sets of tokens; a
 *              set may be spread over cp, and over tp with sequence parallelism, and is summed there at once, since the
 *              backward needs the counts of the whole set
 *   dispatch   a row for each choice of a token, sorted by expert. A rank has all experts, so its rows stay with it
 *   experts    a product for each expert, with its own rows
 *   combine    the weighted sum of a token's rows
 *
 * The number of rows is fixed (choices times tokens); only where an expert's rows begin is known at run time, from
 * `offsets`. All tensors between dispatch and combine are sharded as the tokens are, and the parameters are whole, so
 * with sequence parallelism their gradients are shares of a sum over tp. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

bool experts_count(const struct compiler *c)
{
    return c->p->mode == MODE_TRAIN && c->g->n_routers > 0;
}

/* ---- forward ---- */

static struct op *router_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, tokens);
    op->n = dim_one(r->experts);
    op->k = dim_one(r->k);
    return op;
}

/* Elements before the numbers of this router in the buffer of all. */
static int64_t totals_before(const struct compiler *c, int i)
{
    int64_t n = 0;
    for (int k = 0; k < i; k++)
        if (c->g->nodes[k].op == GO_ROUTE)
            n += 2 * c->g->nodes[k].router.experts + 2;
    return n;
}

/* The axes over which the tokens of a set are spread. */
static unsigned set_axes(const struct compiler *c)
{
    return 1u << AXIS_CP | (c->own && !MUTANT(SETS_OF_OWN_TOKENS) ? 1u << AXIS_TP : 0);
}

static void sum_sets(struct compiler *c, int i, int numbers)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (compile_group(c, set_axes(c)) < 0 || MUTANT(SETS_NOT_SUMMED))
        return;
    struct op *op = compile_collective(c, OP_ALL_REDUCE, i, set_axes(c));
    op->m = c->g->tensors[n->out[2]].dim[0];
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, numbers);
}

void experts_route(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool counts = experts_count(c), sets = counts && n->out[2] >= 0;
    int logits = compile_value(c, n->in[0]), ids = compile_new_value(c, n->out[0]),
        weights = compile_new_value(c, n->out[1]), numbers = sets ? compile_new_value(c, n->out[2]) : -1;
    struct op *op = router_op(c, i, kind, n->in[0]);
    op_arg(op, 0, logits);
    if (sets && n->router.scope == AUX_SAMPLE)
        compile_op_rows(c, op, 1, n->in[0]);
    if (MUTANT(SAMPLES_OF_THE_FIRST))
        op->arg[1].offset = dim_one(0);
    op_arg(op, 2, ids);
    op_arg(op, 3, weights);
    op_arg(op, 4, numbers);
    /* Ranks that have the same tokens count them once. */
    if (counts && (c->own || tp_index(c) == 0 || MUTANT(ROUTES_COUNTED_BY_ALL))) {
        op_arg(op, 5, c->p->totals_buffer);
        op->arg[5].offset = dim_one(totals_before(c, i));
        op_arg(op, 6, c->p->closeness_buffer);
        op->arg[6].offset = dim_one(n->router.index);
    }
    if (sets)
        sum_sets(c, i, numbers);
}

static struct op *rows_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    struct op *op = router_op(c, i, kind, tokens);
    op->n = dim_one(tp_cols(c, tokens));
    return op;
}

void experts_dispatch(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_value(c, n->in[0]), ids = compile_value(c, n->in[1]), out[4];
    for (int k = 0; k < 4; k++)
        out[k] = compile_new_value(c, n->out[k]);
    struct op *op = router_op(c, i, kind, n->in[0]);
    op_arg(op, 0, ids);
    for (int k = 1; k < 4; k++)
        op_arg(op, k, out[k]);
    op = rows_op(c, i, OP_ROWS_GATHER, n->in[0]);
    op_arg(op, 0, x);
    op_arg(op, 1, out[2]);
    op_arg(op, 2, out[0]);
}

static struct op *product_op(struct compiler *c, int i, int64_t n, int64_t k)
{
    const struct graph_node *node = &c->g->nodes[i];
    struct op *op = compile_op(c, OP_GROUPED_GEMM, i);
    op->m = tp_rows(c, node->out[0]);
    op->n = dim_one(n);
    op->k = dim_one(k);
    op->seq = node->router.experts;
    op_arg(op, 3, compile_value(c, node->in[2]));
    return op;
}

void experts_product(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_value(c, n->in[0]), y = compile_new_value(c, n->out[0]);
    (void)kind;
    struct op *op = product_op(c, i, tp_cols(c, n->out[0]), tp_cols(c, n->in[0]));
    op->flags = OPF_TRANS_B;
    op_arg(op, 0, x);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
}

void experts_combine(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = compile_new_value(c, n->out[0]);
    struct op *op = rows_op(c, i, kind, n->out[0]);
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, MUTANT(WEIGHTS_LEFT_OUT) ? -1 : compile_value(c, n->in[1]));
    op_arg(op, 2, compile_value(c, n->in[2]));
    op_arg(op, 3, y);
}

void experts_gate(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
}

/* ---- backward ---- */

/* The gradient of a value whose buffer its only reader may overwrite. */
static int grad_in_place(struct compiler *c, int t)
{
    return compile_may_overwrite(c, t) ? c->act[t] : compile_work_buffer(c, t, ".grad");
}

void experts_gate_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_forward_value(c, n->in[0]), z = compile_forward_value(c, n->in[1]);
    int dy = compile_take_grad(c, n->out[0]), dx = compile_work_buffer(c, n->in[0], ".grad");
    const int args[] = {x, z, dy, dx, compile_work_buffer(c, n->in[1], ".grad")};
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    for (int k = 0; k < 5; k++)
        op_arg(op, k, args[k]);
    compile_add_gradient(c, n->in[0], dx);
    compile_add_gradient(c, n->in[1], args[4]);
}

void experts_combine_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int rows = compile_forward_value(c, n->in[0]), weights = compile_forward_value(c, n->in[1]);
    int place = compile_forward_value(c, n->in[2]), dy = compile_take_grad(c, n->out[0]);
    int d_rows = grad_in_place(c, n->in[0]), d_weights = compile_typed_buffer(c, n->in[1], ".grad", c->p->wide);
    const int args[] = {rows, weights, place, dy, d_rows, d_weights};
    struct op *op = rows_op(c, i, kind, n->out[0]);
    for (int k = 0; k < 6; k++)
        op_arg(op, k, args[k]);
    compile_add_gradient(c, n->in[0], d_rows);
    compile_add_gradient(c, n->in[1], d_weights);
}

/* dW of each expert = dy^T x over its rows. */
void experts_weight_grad(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t out = tp_cols(c, n->out[0]), in = tp_cols(c, n->in[0]);
    int x = compile_forward_value(c, n->in[0]);
    (void)compile_forward_value(c, n->in[2]);
    struct op *op = product_op(c, i, in, out);
    op->flags = OPF_TRANS_A | (c->grad_started[n->in[1]] ? OPF_ACC : 0);
    op_arg(op, 0, dy);
    op_arg(op, 1, x);
    op_arg(op, 2, c->p->grad_buffer[n->in[1]]);
    if (!MUTANT(EXPERTS_UNMARKED))
        compile_mark_shares(c, n->in[1], c->own);
    c->grad_started[n->in[1]] = true;
}

/* dx = dy W by expert, added to what another product has written. */
static void input_grad(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dx = c->grad[n->in[0]];
    bool acc = compile_grad_may_overwrite(c, dx) && dx != dy;
    if (!acc)
        dx = compile_work_buffer(c, n->in[0], ".grad");
    struct op *op = product_op(c, i, tp_cols(c, n->in[0]), tp_cols(c, n->out[0]));
    op->flags = acc ? OPF_ACC : 0;
    op_arg(op, 0, dy);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, dx);
    if (!acc)
        compile_add_gradient(c, n->in[0], dx);
}

void experts_product_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = compile_take_grad(c, n->out[0]);
    (void)kind;
    (void)compile_forward_value(c, n->in[0]);
    (void)compile_forward_value(c, n->in[2]);
    if (c->half == PASS_INPUTS)
        c->weight_dy[i] = dy;
    else
        experts_weight_grad(c, i, dy);
    input_grad(c, i, dy);
}

/* A token's gradient is the sum of those of its rows. */
void experts_dispatch_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int place = compile_forward_value(c, n->out[1]), d_rows = compile_take_grad(c, n->out[0]);
    int dx = compile_work_buffer(c, n->in[0], ".grad");
    struct op *op = rows_op(c, i, kind, n->in[0]);
    op_arg(op, 0, d_rows);
    op_arg(op, 1, MUTANT(WEIGHTS_TWICE) ? compile_value(c, c->g->nodes[i - 1].out[1]) : -1);
    op_arg(op, 2, place);
    op_arg(op, 3, dx);
    compile_add_gradient(c, n->in[0], dx);
}

void experts_route_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int logits = compile_forward_value(c, n->in[0]), d_weights = compile_take_grad(c, n->out[1]);
    int dx = compile_work_buffer(c, n->in[0], ".grad");
    const int args[] = {logits, compile_value(c, n->out[0]), compile_value(c, n->out[1]), d_weights};
    struct op *op = router_op(c, i, kind, n->in[0]);
    for (int k = 0; k < 4; k++)
        op_arg(op, k, args[k]);
    if (n->out[2] >= 0 && n->router.scope == AUX_SAMPLE)
        compile_op_rows(c, op, 4, n->in[0]);
    op_arg(op, 5, compile_value(c, n->out[2]));
    op_arg(op, 6, dx);
    compile_add_gradient(c, n->in[0], dx);
}
