/* Bytes between ranks. The formulas are those of comm_group_bytes (worker/comm/comm.h): the bytes that a call has to
 * move, whatever its algorithm. */
#include "common/plan/estimate/forecast.h"

static int index_in(const struct group *g, int rank)
{
    for (int i = 0; i < g->n; i++)
        if (g->ranks[i] == rank)
            return i;
    return 0;
}

/* Elements of n that member `me` sums. */
static int64_t slice(const struct group *g, int me, int64_t n)
{
    return n * (me + 1) / g->n - n * me / g->n;
}

static int64_t of_unit(const struct program *p, const struct op *op, const struct group *g, int me)
{
    const struct fsdp_unit *u = &p->units[op->unit];
    int64_t own = 0, others = 0;
    for (int i = 0; i < u->n; i++)
        for (int k = 0; k < g->n; k++)
            *(k == me ? &own : &others) += u->parts[i].counts[k];
    return op->kind == OP_UNIT_GATHER ? others : (g->n - 1) * own;
}

static int64_t of_tokens(const struct op *op, const struct group *g, int me, int64_t tokens, int64_t cols)
{
    int64_t lo, hi;
    layout_split(tokens, g->n, me, &lo, &hi);
    return (op->kind == OP_OWN_GATHER ? tokens - (hi - lo) : (g->n - 1) * (hi - lo)) * cols;
}

static int64_t of_tree(const struct program *p, const struct group *g, int me, int64_t n)
{
    struct sumtree_node nodes[SUMTREE_MAX_NODES];
    int mine = p->first_micro < p->end_micro ? sumtree_nodes(p->n_micros, p->first_micro, p->end_micro, nodes) : 0;
    return (mine + 1) * (n - slice(g, me, n));
}

static int64_t elements(const struct program *p, const struct op *op, int64_t samples)
{
    const struct group *g = &p->groups[op->group];
    int me = index_in(g, p->rank);
    int64_t m = program_dim(p, op->m, samples), n = program_dim(p, op->n, samples);
    switch (op->kind) {
    case OP_ALL_REDUCE:
        return (g->n - 2) * slice(g, me, m) + m;
    case OP_GATHER:
        return (g->n - 1) * m;
    case OP_OWN_GATHER:
    case OP_OWN_SCATTER:
        return of_tokens(op, g, me, m, n);
    case OP_UNIT_GATHER:
    case OP_UNIT_SCATTER:
        return of_unit(p, op, g, me);
    case OP_GATHER_TOKENS: /* if all members have a microbatch of as many samples */
        return (program_group_tokens(p, samples) - m) * n;
    case OP_EXCHANGE: /* if all experts have equally many rows, which the first round then computes */
        return op->round > 1 ? 0
                             : (op->flags & OPF_INVERSE ? program_dim(p, op->k, samples) : m) * n / g->n * (g->n - 1);
    case OP_BORROW: /* if each rank borrows one expert */
    case OP_GIVE_BACK:
        return n;
    case OP_SHIFT:
        return program_dim(p, op->k, samples);
    case OP_RECV:
        return m;
    case OP_TREE_REDUCE:
        return of_tree(p, g, me, m);
    default:
        return 0;
    }
}

int64_t plan_op_wire(const struct program *p, const struct op *op, int64_t samples)
{
    if (op->group < 0 || op->arg[0].buffer < 0)
        return 0;
    return elements(p, op, samples) * (int64_t)dtype_bytes(p->buffers[op->arg[0].buffer].dtype);
}
