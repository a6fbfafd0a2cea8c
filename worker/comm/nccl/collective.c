/* Collectives on one buffer, and reductions of a number that the host waits for. */
#include "worker/comm/nccl/internal.h"

err_t nccl_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op)
{
    if (g->n == 1 || n == 0)
        return OK;
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    ncclResult_t code = ncclAllReduce(x, x, (size_t)n, nccl_type(dtype), nccl_op(op), *nccl_comm_of(g), nccl_native(s));
    return nccl_queued(g, s, code, "ncclAllReduce", __LINE__);
}

err_t nccl_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root)
{
    if (g->n == 1 || bytes == 0)
        return OK;
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    ncclResult_t code = ncclBroadcast(x, x, (size_t)bytes, ncclUint8, root, *nccl_comm_of(g), nccl_native(s));
    return nccl_queued(g, s, code, "ncclBroadcast", __LINE__);
}

/* ---- numbers that the host waits for ---- */

/* Runs on the comm's own stream, after the collectives that were queued before, so that every rank's device runs its
 * collectives in the same order. */
static err_t reduce_number(struct comm_group *g, enum reduce_op op)
{
    struct nccl_comm *n = nccl_of(g);
    const struct dev_ops *ops = n->dev->ops;
    err_t err = ops->event_wait(n->queued, n->stream);
    if (!err)
        err = ops->copy(n->stream, n->device_number, n->host_number, sizeof(int64_t));
    if (!err)
        err = nccl_all_reduce(g, n->stream, n->device_number, 1, DT_I64, op);
    if (!err)
        err = ops->copy(n->stream, n->host_number, n->device_number, sizeof(int64_t));
    err_t sync = ops->stream_sync(n->stream, n->base.why.text[0] ? NULL : &n->base.why);
    if (atomic_load(&n->dead)) /* the queued work has ended without a result */
        return nccl_canceled(n);
    return err ? err : sync;
}

err_t nccl_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    struct nccl_comm *n = nccl_of(g);
    if (atomic_load(&n->dead))
        return nccl_canceled(n);
    if (g->n == 1)
        return OK;
    *n->host_number = *x;
    err_t err = reduce_number(g, op);
    if (!err)
        *x = *n->host_number;
    return err;
}

err_t nccl_barrier(struct comm_group *g)
{
    int64_t nothing = 0;
    return nccl_agree(g, &nothing, REDUCE_SUM);
}

err_t nccl_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                       int64_t n, enum dtype dtype)
{
    struct nccl_comm *nc = nccl_of(g);
    (void)mine, (void)n_mine, (void)n_leaves, (void)out, (void)n, (void)dtype;
    return why_set(nc->base.why.text[0] ? NULL : &nc->base.why, ERR_UNSUPPORTED,
                   "canonical sums need host memory: train.numerics canonical needs run.device cpu");
}
