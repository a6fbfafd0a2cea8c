/* Balanced expert parallelism: every rank of the group computes equally many rows, whatever the router chose. A rank
 * with few rows of its own experts borrows experts of another rank and computes a part of their rows (exchange.h).
 *
 *   borrow      the matrices of borrowed experts, before each product that reads them
 *   product     rows of own experts with own matrices, rows of borrowed experts with the copies
 *   gradient    of own experts, added to those of earlier microbatches; of borrowed experts, for this microbatch alone
 *   give_back   adds the latter to the gradients of the ranks that have the experts: first their own, then those of
 *               others in the order of ranks
 *
 * Which experts are borrowed is known only when the rows are counted, but their number has a bound, so buffers have
 * room for it. They live for one product: all layers share their bytes. */
#include "common/plan/compile/internal.h"
#include "common/plan/exchange.h"
#include "common/plan/mutant.h"

#include <stdio.h>

int64_t borrow_slots(const struct compiler *c, int64_t experts)
{
    const struct sharding *s = &c->p->sharding;
    const struct graph_cut cut = {.experts = true};
    if (!c->p->balanced)
        return 0;
    return exchange_slots(sharding_parts(s, &cut), experts, sharding_part(s, &cut, s->coord));
}

/* Rows of an expert's matrix. */
static int64_t matrix_rows(const struct compiler *c, int i)
{
    return c->g->tensors[c->g->nodes[i].in[1]].dim[0].factor / c->g->nodes[i].router.experts;
}

static int matrices(struct compiler *c, int i, int64_t n, enum dtype dtype, const char *suffix)
{
    const struct graph_tensor *w = &c->g->tensors[c->g->nodes[i].in[1]];
    struct buffer b = {.tensor = -1, .dtype = dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = dim_one(n * matrix_rows(c, i));
    b.dim[1] = w->dim[1];
    snprintf(b.name, sizeof(b.name), "%.*s.%s", GRAPH_NAME_MAX - 1, w->name, suffix);
    return compile_buffer(c, &b);
}

static int offsets_of_all(struct compiler *c, int i)
{
    const int dispatch = c->producer[c->g->nodes[i].in[2]];
    return compile_forward_value(c, c->g->nodes[dispatch].out[4]);
}

/* An op on the matrices of product i, its own and borrowed ones. */
static struct op *borrow_op(struct compiler *c, enum op_kind kind, int i, int all)
{
    const struct graph_node *n = &c->g->nodes[i];
    struct op *op = compile_collective_experts(c, kind, i);
    op->m = dim_one(borrow_slots(c, n->router.experts));
    op->n = dim_one(matrix_rows(c, i) * tp_cols(c, n->in[1]));
    op->k = dim_one(c->p->sharding.param[n->in[1]].rows / matrix_rows(c, i));
    op_arg(op, 1, all);
    return op;
}

/* The parameter that product i multiplies with; with the mutant that of an earlier product of the same rows. */
static int borrowed_param(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    for (int k = 0; MUTANT(BORROWED_FROM_ANOTHER) && k < i; k++)
        if (c->g->nodes[k].op == GO_EXPERTS && c->g->nodes[k].in[0] == n->in[0])
            return c->g->nodes[k].in[1];
    return n->in[1];
}

int borrow_matrices(struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (!c->p->balanced)
        return -1;
    int all = offsets_of_all(c, i);
    int to = matrices(c, i, borrow_slots(c, n->router.experts), c->p->dtype, "borrowed");
    struct op *op = borrow_op(c, OP_BORROW, i, all);
    op_arg(op, 0, compile_value(c, borrowed_param(c, i)));
    op_arg(op, 2, to);
    return to;
}

int borrow_gradients(struct compiler *c, int i)
{
    if (!c->p->balanced)
        return -1;
    return matrices(c, i, borrow_slots(c, c->g->nodes[i].router.experts), c->p->wide, "borrowed.grad");
}

void borrow_give_back(struct compiler *c, int i, int gradients)
{
    if (gradients < 0 || MUTANT(NOT_GIVEN_BACK))
        return;
    int all = offsets_of_all(c, i), room = matrices(c, i, 1, c->p->wide, "given_back");
    struct op *op = borrow_op(c, OP_GIVE_BACK, i, all);
    op_arg(op, 0, gradients);
    op_arg(op, 2, room);
    op_arg(op, 3, c->p->grad_buffer[c->g->nodes[i].in[1]]);
}
