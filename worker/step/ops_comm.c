/* Ops that move or sum data between ranks. common/plan/program.h states the order of their operands and fields. The
 * sizes per member depend on the number of tokens in the microbatch, so each call computes them from the op. */
#include "worker/step/run.h"

#include "common/plan/sumtree.h"

#include <assert.h>

static struct comm_group *group_of(const struct run *r, const struct op *op)
{
    assert(op->group >= 0);
    return r->bindings->groups[op->group];
}

static enum dtype type_of(const struct run *r, const struct op *op)
{
    return r->program->buffers[op->arg[0].buffer].dtype;
}

static int64_t bytes_of(const struct run *r, const struct op *op, struct graph_dim n)
{
    return run_dim(r, n) * (int64_t)dtype_bytes(type_of(r, op));
}

static err_t op_all_reduce(const struct run *r, const struct op *op)
{
    return comm_all_reduce(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_dim(r, op->m), type_of(r, op),
                           op->reduce);
}

/* Per member, the elements of its own tokens. */
static const int64_t *own_counts(const struct run *r, const struct op *op)
{
    const int n = r->program->groups[op->group].n;
    const int64_t tokens = run_dim(r, op->m), cols = run_dim(r, op->n);
    for (int i = 0; i < n; i++) {
        int64_t lo, hi;
        layout_split(tokens, n, i, &lo, &hi);
        r->bindings->counts[i] = (hi - lo) * cols;
    }
    return r->bindings->counts;
}

static err_t op_own_gather(const struct run *r, const struct op *op)
{
    return comm_all_gather(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 1), own_counts(r, op),
                           type_of(r, op));
}

static err_t op_own_scatter(const struct run *r, const struct op *op)
{
    return comm_reduce_scatter(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 1),
                               own_counts(r, op), type_of(r, op), REDUCE_SUM);
}

static err_t op_gather(const struct run *r, const struct op *op)
{
    for (int i = 0; i < r->program->groups[op->group].n; i++)
        r->bindings->counts[i] = run_dim(r, op->m);
    return comm_all_gather(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 1),
                           r->bindings->counts, type_of(r, op));
}

static err_t op_unit_gather(const struct run *r, const struct op *op)
{
    return comm_unit_gather(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 1),
                            r->bindings->units[op->unit], r->program->units[op->unit].n, type_of(r, op));
}

static err_t op_unit_scatter(const struct run *r, const struct op *op)
{
    return comm_unit_scatter(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 1),
                             r->bindings->units[op->unit], r->program->units[op->unit].n, type_of(r, op),
                             op->flags & OPF_ACC);
}

/* ---- messages ---- */

static err_t op_post(const struct run *r, const struct op *op)
{
    struct engine_posts *posts = &r->engine->posts;
    struct comm_group *g = group_of(r, op);
    struct comm_post post;
    err_t err;
    if (posts->n == COMM_POSTS)
        return ERR_LIMIT;
    if (op->kind == OP_SEND)
        err = comm_send_post(g, run_stream(r, op), run_arg(r, op, 0), bytes_of(r, op, op->m), op->peer, &post);
    else
        err = comm_recv_post(g, run_stream(r, op), run_arg(r, op, 0), bytes_of(r, op, op->m), op->peer, &post);
    if (err)
        return err;
    posts->list[posts->n].group = g;
    posts->list[posts->n].at = run_arg(r, op, 0);
    posts->list[posts->n++].post = post;
    return OK;
}

static err_t op_push(const struct run *r, const struct op *op)
{
    (void)op;
    return comm_push(r->engine->comm);
}

/* At most one message per buffer is in flight. */
static err_t op_wait(const struct run *r, const struct op *op)
{
    struct engine_posts *posts = &r->engine->posts;
    const void *at = run_arg(r, op, 0);
    int i = 0;
    while (i < posts->n && posts->list[i].at != at)
        i++;
    assert(i < posts->n); /* plan_check */
    err_t err = comm_wait(posts->list[i].group, posts->list[i].post);
    posts->list[i] = posts->list[--posts->n];
    return err;
}

static err_t op_shift(const struct run *r, const struct op *op)
{
    return comm_sendrecv(group_of(r, op), run_stream(r, op), run_arg(r, op, 0), bytes_of(r, op, op->m), op->peer,
                         run_arg(r, op, 1), bytes_of(r, op, op->k), op->from);
}

/* ---- the canonical tree ---- */

/* A single rank has one node, the root. */
static err_t copy_root(const struct run *r, const struct op *op)
{
    const enum dtype dtype = r->program->buffers[op->arg[1].buffer].dtype;
    assert(r->program->first_micro == 0 && r->program->end_micro == r->program->n_micros);
    return dev_copy(run_stream(r, op), run_arg(r, op, 1), run_arg_slot(r, op, 0, 0),
                    (size_t)run_dim(r, op->m) * dtype_bytes(dtype));
}

static err_t op_tree_reduce(const struct run *r, const struct op *op)
{
    const struct program *p = r->program;
    struct sumtree_node nodes[SUMTREE_MAX_NODES];
    struct comm_tree_node mine[SUMTREE_MAX_NODES];
    uint8_t *shared = comm_shared(r->engine->comm);
    int n = sumtree_nodes(p->n_micros, p->first_micro, p->end_micro, nodes);
    if (op->group < 0)
        return copy_root(r, op);
    for (int i = 0; i < n; i++)
        mine[i] =
            (struct comm_tree_node){nodes[i].lo, nodes[i].hi, (size_t)((uint8_t *)run_arg_slot(r, op, 0, i) - shared)};
    return comm_tree_reduce(group_of(r, op), mine, n, p->n_micros, run_arg(r, op, 1), run_dim(r, op->m),
                            p->buffers[op->arg[1].buffer].dtype);
}

const run_op_fn run_comm_ops[OP_KIND_COUNT] = {
    [OP_ALL_REDUCE] = op_all_reduce,
    [OP_OWN_GATHER] = op_own_gather,
    [OP_OWN_SCATTER] = op_own_scatter,
    [OP_GATHER] = op_gather,
    [OP_UNIT_GATHER] = op_unit_gather,
    [OP_UNIT_SCATTER] = op_unit_scatter,
    [OP_SEND] = op_post,
    [OP_RECV] = op_post,
    [OP_PUSH] = op_push,
    [OP_WAIT] = op_wait,
    [OP_SHIFT] = op_shift,
    [OP_TREE_REDUCE] = op_tree_reduce,
    [OP_EXCHANGE] = run_exchange,
    [OP_BORROW] = run_borrow,
    [OP_GIVE_BACK] = run_give_back,
    [OP_GATHER_TOKENS] = run_gather_tokens,
};
