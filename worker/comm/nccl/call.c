/* Common parts of calls on streams: types, the choice of communicator, and waiting until NCCL has queued the call. */
#include "worker/comm/nccl/internal.h"

#include <assert.h>

ncclDataType_t nccl_type(enum dtype dtype)
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

ncclRedOp_t nccl_op(enum reduce_op op)
{
    static const ncclRedOp_t ops[] = {
        [REDUCE_SUM] = ncclSum, [REDUCE_MIN] = ncclMin, [REDUCE_MAX] = ncclMax, [REDUCE_AVG] = ncclAvg};
    return ops[op];
}

ncclComm_t *nccl_comm_of(struct comm_group *base)
{
    struct nccl_group *g = (struct nccl_group *)base;
    return g->own ? &g->comm : &nccl_of(base)->root;
}

cudaStream_t nccl_native(struct kern_stream *s)
{
    return s->dev->ops->stream_native(s);
}

err_t nccl_queued_on(struct nccl_comm *n, ncclComm_t *comm, struct kern_stream *s, ncclResult_t code, const char *call,
                     int line)
{
    const struct nccl_wait wait = {comm, NULL, 0, call};
    err_t err = nccl_failed(n, code, *wait.comm, call, __FILE__, line);
    if (!err && code == ncclInProgress)
        err = nccl_wait(n, &wait, n->base.why.text[0] ? NULL : &n->base.why);
    nccl_leave(n);
    return err ? err : n->dev->ops->event_record(n->queued, s);
}

err_t nccl_queued(struct comm_group *g, struct kern_stream *s, ncclResult_t code, const char *call, int line)
{
    return nccl_queued_on(nccl_of(g), nccl_comm_of(g), s, code, call, line);
}

bool nccl_in_order(ncclResult_t code)
{
    return code == ncclSuccess || code == ncclInProgress;
}

ncclResult_t nccl_group_end(ncclResult_t code)
{
    ncclResult_t end = ncclGroupEnd();
    return nccl_in_order(code) ? end : code;
}

err_t nccl_copy_alone(struct kern_stream *s, void *dst, const void *src, int64_t bytes)
{
    return dst == src || bytes == 0 ? OK : s->dev->ops->copy(s, dst, src, (size_t)bytes);
}
