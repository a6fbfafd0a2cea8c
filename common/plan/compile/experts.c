/* Mixtures of experts: the forward and backward rules of their operators.
 *
 *   route      logits -> ids, weights. Where the model has an auxiliary loss, also the numbers of its sets of tokens; a
 *              set may be spread over cp, and over tp with sequence parallelism, and is summed there at once, since the
 *              backward needs the counts of the whole set
 *   drop       ids -> ids, where experts have a capacity: -1 for the choices of a sample that are too many. All ranks
 *              that have tokens of the sample need all its choices, so each writes its own in a table, and the tables
 *              are summed
 *   dispatch   a row for each choice of a token that was not dropped, sorted by expert
 *   experts    a product for each expert, with its own rows
 *   combine    the weighted sum of a token's rows
 *
 * Without expert parallelism a rank has all experts, and its rows stay with it: choices times tokens. Only where an
 * expert's rows begin is known at run time, from `offsets`. The parameters are whole, so with sequence parallelism
 * their gradients are shares of a sum over tp.
 *
 * With expert parallelism a rank has some of the experts, and rows go to the ranks of their experts and come back
 * (dispatch.c). Each expert has the rows of all ranks of the group, so the gradients of experts are complete there. The
 * sum over a token's experts is made at home, in ascending order of the experts, whichever ranks computed them. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdio.h>

bool experts_count(const struct compiler *c)
{
    return c->p->mode == MODE_TRAIN && c->g->n_routers > 0;
}

/* ---- forward ---- */

struct op *experts_router_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, tokens);
    op->n = dim_one(r->experts);
    op->k = dim_one(r->k);
    return op;
}

int64_t experts_totals_before(const struct compiler *c, int i)
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

/* The value of the auxiliary loss, once for each set: the ranks of cp and tp have the same sums. */
static void add_aux_loss(struct compiler *c, int i, int numbers)
{
    const struct graph_node *n = &c->g->nodes[i];
    if ((tp_index(c) || c->p->sharding.coord[AXIS_CP]) && !MUTANT(AUX_BY_ALL))
        return;
    struct op *op = compile_op(c, OP_AUX_LOSS, i);
    op->m = (struct graph_dim){c->g->tensors[n->out[2]].dim[0].sym, 1};
    op->n = dim_one(n->router.experts);
    op->rate = n->router.aux;
    op_arg(op, 0, numbers);
    op_arg(op, 1, c->p->number_buffer[NUMBER_AUX]);
    op->arg[1].offset = dim_one(n->router.index);
}

void experts_route(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool counts = experts_count(c), sets = counts && n->out[2] >= 0;
    int logits = compile_value(c, n->in[0]), ids = compile_new_value(c, n->out[0]),
        weights = compile_new_value(c, n->out[1]), numbers = sets ? compile_new_value(c, n->out[2]) : -1;
    if (counts && MUTANT(COUNTS_OF_THE_LAST)) {
        struct op *zero = compile_op(c, OP_ZERO, -1);
        zero->m = dim_one(2 * n->router.experts + 2);
        op_arg(zero, 0, c->p->number_buffer[NUMBER_TOTALS]);
        zero->arg[0].offset = dim_one(experts_totals_before(c, i));
    }
    struct op *op = experts_router_op(c, i, kind, n->in[0]);
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
        op_arg(op, 5, c->p->number_buffer[NUMBER_TOTALS]);
        op->arg[5].offset = dim_one(experts_totals_before(c, i));
        op_arg(op, 6, c->p->number_buffer[NUMBER_CLOSENESS]);
        op->arg[6].offset = dim_one(n->router.index);
    }
    op_arg(op, 7, MUTANT(CHOSEN_WITHOUT_BIASES) ? -1 : compile_value(c, n->in[1]));
    if (sets) {
        sum_sets(c, i, numbers);
        add_aux_loss(c, i, numbers);
    }
}

/* ---- capacity ---- */

bool experts_have_limits(const struct compiler *c)
{
    return !mode_generates(c->p->mode);
}

static int choices_buffer(struct compiler *c, int i, struct graph_dim *ret_size)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    struct buffer b = {.tensor = -1, .dtype = DT_F64, .ndim = 1, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = (struct graph_dim){SYM_SAMPLES, (r->drop == DROP_PROBABILITY ? 2 : 1) * c->p->seq * r->k};
    snprintf(b.name, sizeof(b.name), "layer.%d.router.choices", c->g->nodes[i].layer);
    *ret_size = b.dim[0];
    return compile_buffer(c, &b);
}

static void sum_choices(struct compiler *c, int i, int table, struct graph_dim size)
{
    if (compile_group(c, set_axes(c)) < 0 || MUTANT(CHOICES_NOT_SUMMED))
        return;
    struct op *op = compile_collective(c, OP_ALL_REDUCE, i, set_axes(c));
    op->m = size;
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, table);
}

/* The table of all choices of the microbatch's samples. */
static int all_choices(struct compiler *c, int i, int ids)
{
    const struct graph_node *n = &c->g->nodes[i];
    struct graph_dim size;
    int table = choices_buffer(c, i, &size);
    struct op *op = experts_router_op(c, i, OP_CHOICES, n->in[0]);
    op_arg(op, 0, ids);
    op_arg(op, 1, n->router.drop == DROP_PROBABILITY && !MUTANT(DROPPED_BY_POSITION) ? compile_value(c, n->in[1]) : -1);
    compile_op_rows(c, op, 2, n->in[0]);
    op_arg(op, 3, table);
    sum_choices(c, i, table, size);
    return table;
}

void experts_drop(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int ids = compile_value(c, n->in[0]);
    if (!experts_have_limits(c)) {
        compile_set_value(c, n->out[0], ids);
        return;
    }
    int table = all_choices(c, i, ids), kept = compile_new_value(c, n->out[0]);
    struct op *op = experts_router_op(c, i, kind, n->in[0]);
    op_arg(op, 0, ids);
    compile_op_rows(c, op, 1, n->in[0]);
    if (MUTANT(TOKENS_OF_THE_FIRST_KEPT))
        op->arg[1].offset = dim_one(0);
    op_arg(op, 2, table);
    op_arg(op, 3, kept);
    if (experts_count(c) && (c->own || tp_index(c) == 0 || MUTANT(DROPS_COUNTED_BY_ALL))) {
        op_arg(op, 4, c->p->number_buffer[NUMBER_DROPPED]);
        op->arg[4].offset = dim_one(n->router.index);
    }
}

/* `more`: the matrices or gradients of borrowed experts, -1: none. */
static struct op *product_op(struct compiler *c, int i, int64_t n, int64_t k, int more)
{
    const struct graph_node *node = &c->g->nodes[i];
    struct op *op = compile_op(c, OP_GROUPED_GEMM, i);
    op->m = tp_rows(c, node->out[0]);
    op->n = dim_one(n);
    op->k = dim_one(k);
    op->seq = node->router.experts;
    if (c->p->sharding.ep.axes)
        op->seq = c->p->sharding.param[node->in[1]].rows / (c->g->tensors[node->in[1]].dim[0].factor / op->seq);
    if (more >= 0)
        op->seq_kv = borrow_slots(c, node->router.experts);
    op->seq += op->seq_kv;
    op_arg(op, 3, compile_value(c, node->in[2]));
    op_arg(op, 4, more);
    return op;
}

void experts_product(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_value(c, n->in[0]), y = compile_new_value(c, n->out[0]);
    (void)kind;
    int more = borrow_matrices(c, i);
    struct op *op = product_op(c, i, tp_cols(c, n->out[0]), tp_cols(c, n->in[0]), more);
    op->flags = OPF_TRANS_B;
    op_arg(op, 0, x);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
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

/* dW of each expert = dy^T x over its rows. */
void experts_weight_grad(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t out = tp_cols(c, n->out[0]), in = tp_cols(c, n->in[0]);
    int x = compile_forward_value(c, n->in[0]);
    (void)compile_forward_value(c, n->in[2]);
    int more = borrow_gradients(c, i);
    struct op *op = product_op(c, i, in, out, more);
    const bool adds = c->grad_started[n->in[1]] && !(c->round > 1 && MUTANT(ROUNDS_OVERWRITE));
    op->flags = OPF_TRANS_A | (adds ? OPF_ACC : 0);
    op_arg(op, 0, dy);
    op_arg(op, 1, x);
    op_arg(op, 2, c->p->grad_buffer[n->in[1]]);
    borrow_give_back(c, i, more);
    if (!MUTANT(EXPERTS_UNMARKED))
        compile_mark_shares(c, n->in[1],
                            (c->own || experts_divide_tokens(c)) && sharding_rest(&c->p->sharding, AXIS_TP) > 1);
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
    int more = borrow_matrices(c, i);
    struct op *op = product_op(c, i, tp_cols(c, n->in[0]), tp_cols(c, n->out[0]), more);
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

void experts_route_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int logits = compile_forward_value(c, n->in[0]), d_weights = compile_take_grad(c, n->out[1]);
    int dx = compile_work_buffer(c, n->in[0], ".grad");
    const int args[] = {logits, compile_value(c, n->out[0]), compile_value(c, n->out[1]), d_weights};
    struct op *op = experts_router_op(c, i, kind, n->in[0]);
    for (int k = 0; k < 4; k++)
        op_arg(op, k, args[k]);
    if (n->out[2] >= 0 && n->router.scope == AUX_SAMPLE)
        compile_op_rows(c, op, 4, n->in[0]);
    op_arg(op, 5, compile_value(c, n->in[2] >= 0 ? n->in[2] : n->out[2]));
    op_arg(op, 6, dx);
    compile_add_gradient(c, n->in[0], dx);
}
