/* The collectives on streams. Counts that are equal take NCCL's own call; uneven ones are one call per rank in an NCCL
 * group, which becomes one launch: a gather is a broadcast from each, a reduce-scatter a reduction to each. What has no
 * elements is no call: all ranks know the counts. */
#include "worker/comm/nccl/nccl.h"

#include <assert.h>

static ncclDataType_t type_of(enum dtype dtype)
{
    static const struct {
        enum dtype dtype;
        ncclDataType_t type;
    } types[] = {{DT_F32, ncclFloat32}, {DT_F64, ncclFloat64}, {DT_BF16, ncclBfloat16}, {DT_F16, ncclFloat16},
                 {DT_I64, ncclInt64},   {DT_I32, ncclInt32},   {DT_I8, ncclInt8},       {DT_U8, ncclUint8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].dtype == dtype)
            return types[i].type;
    assert(!"a type that can be summed");
    return ncclNumTypes;
}

static ncclRedOp_t op_of(enum reduce_op op)
{
    static const ncclRedOp_t ops[] = {
        [REDUCE_SUM] = ncclSum, [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax, [REDUCE_AVG] = ncclAvg};
    return ops[op];
}

static int64_t sum_of(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static bool all_equal(const int64_t *counts, int n)
{
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0])
            return false;
    return true;
}

static ncclComm_t *comm_of(struct comm_group *base)
{
    struct nccl_group *g = (struct nccl_group *)base;
    return g->own ? &g->comm : &nccl_of(base)->root;
}

static cudaStream_t native(struct kern_stream *s)
{
    return s->dev->ops->stream_native(s);
}

/* After the call, under mu, which it releases: waits until all of it is queued and marks the place for those that wait
 * on the host. */
static err_t queued(struct comm_group *g, struct kern_stream *s, ncclResult_t code, const char *call, int line)
{
    struct nccl_comm *n = nccl_of(g);
    const struct nccl_wait wait = {comm_of(g), NULL, 0, call};
    err_t err = nccl_failed(n, code, *wait.comm, call, __FILE__, line);
    if (!err && code == ncclInProgress)
        err = nccl_wait(n, &wait, n->base.why.text[0] ? NULL : &n->base.why);
    nccl_leave(n);
    return err ? err : n->dev->ops->event_record(n->queued, s);
}

/* A group of one: what others have to do with NCCL is a copy at most. */
static err_t alone(struct kern_stream *s, void *dst, const void *src, int64_t bytes)
{
    return dst == src || bytes == 0 ? OK : s->dev->ops->copy(s, dst, src, (size_t)bytes);
}

err_t nccl_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op)
{
    if (g->n == 1 || n == 0)
        return OK;
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    ncclResult_t code = ncclAllReduce(x, x, (size_t)n, type_of(dtype), op_of(op), *comm_of(g), native(s));
    return queued(g, s, code, "ncclAllReduce", __LINE__);
}

/* ---- gather ---- */

static ncclResult_t gather_uneven(struct comm_group *g, struct kern_stream *s, const uint8_t *src, uint8_t *dst,
                                  const int64_t *counts, size_t size)
{
    ncclResult_t code = ncclGroupStart(), end;
    for (int i = 0; i < g->n && (code == ncclSuccess || code == ncclInProgress); i++) {
        size_t bytes = (size_t)counts[i] * size;
        if (bytes)
            code = ncclBroadcast(i == g->me ? src : dst, dst, bytes, ncclUint8, i, *comm_of(g), native(s));
        dst += bytes;
    }
    end = ncclGroupEnd();
    return code == ncclSuccess || code == ncclInProgress ? end : code;
}

err_t nccl_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype)
{
    size_t size = dtype_bytes(dtype);
    int64_t total = sum_of(counts, g->n);
    if (g->n == 1 || total == 0)
        return alone(s, dst, src, total * (int64_t)size);
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    bool equal = all_equal(counts, g->n);
    ncclResult_t code = equal ? ncclAllGather(src, dst, (size_t)counts[0] * size, ncclUint8, *comm_of(g), native(s))
                              : gather_uneven(g, s, src, dst, counts, size);
    return queued(g, s, code, equal ? "ncclAllGather" : "ncclBroadcast of each rank's part", __LINE__);
}

/* ---- scatter ---- */

static ncclResult_t scatter_uneven(struct comm_group *g, struct kern_stream *s, const uint8_t *src, void *dst,
                                   const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    ncclResult_t code = ncclGroupStart(), end;
    for (int i = 0; i < g->n && (code == ncclSuccess || code == ncclInProgress); i++) {
        if (counts[i])
            code = ncclReduce(src, i == g->me ? dst : NULL, (size_t)counts[i], type_of(dtype), op_of(op), i,
                              *comm_of(g), native(s));
        src += (size_t)counts[i] * dtype_bytes(dtype);
    }
    end = ncclGroupEnd();
    return code == ncclSuccess || code == ncclInProgress ? end : code;
}

err_t nccl_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    int64_t total = sum_of(counts, g->n);
    if (g->n == 1 || total == 0)
        return alone(s, dst, src, total * (int64_t)dtype_bytes(dtype));
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    bool equal = all_equal(counts, g->n);
    ncclResult_t code =
        equal ? ncclReduceScatter(src, dst, (size_t)counts[0], type_of(dtype), op_of(op), *comm_of(g), native(s))
              : scatter_uneven(g, s, src, dst, counts, dtype, op);
    return queued(g, s, code, equal ? "ncclReduceScatter" : "ncclReduce to each rank", __LINE__);
}

err_t nccl_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root)
{
    if (g->n == 1 || bytes == 0)
        return OK;
    err_t err = nccl_enter(nccl_of(g));
    if (err)
        return err;
    ncclResult_t code = ncclBroadcast(x, x, (size_t)bytes, ncclUint8, root, *comm_of(g), native(s));
    return queued(g, s, code, "ncclBroadcast", __LINE__);
}

/* ---- what the host waits for ---- */

/* On the comm's own stream, behind the collectives that were queued before: on every rank the device sees one order. */
static err_t reduce_word(struct comm_group *g, enum reduce_op op)
{
    struct nccl_comm *n = nccl_of(g);
    const struct dev_ops *ops = n->dev->ops;
    err_t err = ops->event_wait(n->queued, n->stream);
    if (!err)
        err = ops->copy(n->stream, n->device_word, n->host_word, sizeof(int64_t));
    if (!err)
        err = nccl_all_reduce(g, n->stream, n->device_word, 1, DT_I64, op);
    if (!err)
        err = ops->copy(n->stream, n->host_word, n->device_word, sizeof(int64_t));
    err_t sync = ops->stream_sync(n->stream, n->base.why.text[0] ? NULL : &n->base.why);
    if (atomic_load(&n->dead)) /* what was under way has ended without a result */
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
    *n->host_word = *x;
    err_t err = reduce_word(g, op);
    if (!err)
        *x = *n->host_word;
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
                   "canonical sums are made in the memory of one host: train.numerics canonical needs run.device cpu");
}
