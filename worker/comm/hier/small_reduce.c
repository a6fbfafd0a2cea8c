/* Reductions of small buffers, comm_agree, and barriers, which are reductions of no elements. They need one exchange
 * between the nodes; the relay would need a way there and back.
 *
 *   each rank writes x to its window | barrier | the first rank of each node exchanges its node's values with the other
 *   nodes' first ranks | barrier | each rank reduces all values, in rank order | barrier */
#include "worker/comm/hier/internal.h"

#include <string.h>

/* The exchange between the first ranks of the nodes. Scratch memory holds the values of this node, then those of each
 * other node. */
static err_t exchange(struct hier_group *g, int64_t bytes)
{
    struct hier_comm *h = hier_of(&g->base);
    uint8_t *mine = h->scratch, *at = mine;
    int n = 0;
    for (int j = 0; j < g->inner->n; j++, at += bytes)
        memcpy(at, shm_window(g->inner, j)->in[0], (size_t)bytes);
    for (int y = 0; y < g->n_nodes; y++) {
        if (y == g->here)
            continue;
        hier_recv(g, g->nodes[y].members[0], at, g->nodes[y].n * bytes, &g->ops[n++]);
        hier_send(g, g->nodes[y].members[0], mine, g->inner->n * bytes, &g->ops[n++]);
        at += g->nodes[y].n * bytes;
    }
    return hier_wait_ops(h, g->ops, n);
}

/* Copies the values to the stage, in the order of the members. */
static void publish(const struct hier_group *g, int64_t bytes)
{
    const uint8_t *at = hier_of(&g->base)->scratch;
    uint8_t *stage = hier_stage(g, 0);
    for (int turn = -1; turn < g->n_nodes; turn++) { /* this node comes first */
        const int y = turn < 0 ? g->here : turn;
        for (int j = 0; j < g->nodes[y].n && turn != g->here; j++, at += bytes)
            memcpy(stage + g->nodes[y].members[j] * bytes, at, (size_t)bytes);
    }
}

err_t hier_reduce_small(struct hier_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    if (bytes > 0)
        memcpy(shm_window(g->inner, g->inner->me)->in[0], x, (size_t)bytes);
    err_t err = shm_barrier(g->inner);
    if (!err && g->inner->me == 0) {
        err = exchange(g, bytes);
        if (!err)
            publish(g, bytes);
    }
    err = err ? err : shm_barrier(g->inner);
    if (err || n == 0)
        return err;
    for (int i = 0; i < g->base.n; i++)
        g->src[i] = hier_stage(g, 0) + i * bytes;
    shm_reduce(x, g->src, g->base.n, n, dtype, op, false);
    return shm_barrier(g->inner);
}

err_t hier_barrier(struct comm_group *group)
{
    struct hier_group *g = hier_group_of(group);
    return hier_result(group, g->one_node ? shm_barrier(g->inner) : hier_reduce_small(g, NULL, 0, DT_I64, REDUCE_SUM));
}

err_t hier_agree(struct comm_group *group, int64_t *x, enum reduce_op op)
{
    struct hier_group *g = hier_group_of(group);
    return hier_result(group, g->one_node ? shm_agree(g->inner, x, op) : hier_reduce_small(g, x, 1, DT_I64, op));
}
