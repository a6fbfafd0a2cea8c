/* NCCL's functions with the vendor's prototypes: exactly those that worker/comm/nccl uses.
 *
 * Communicators are non-blocking and really asynchronous: joining, splitting and finalising are in progress until all
 * ranks have joined. A collective, too, sometimes reports that it is in progress and is queued on its stream only by a
 * later poll, as NCCL's own thread would do. A call on a communicator that is in progress ends the process. Two ranks
 * on one device of one host are rejected, unless NCCL_HOSTID names two hosts. */
#include "tests/cuda_host/nccl_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* A collective that a later poll queues on its stream. */
struct nccl_launch {
    struct nccl_launch *next;
    cudaStream_t stream;
    struct nccl_call call;
    const void *from;
    void *to;
    struct nccl_batch *batch; /* used instead of a collective */
};

/* The vendor's header declares these two without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static __thread int group_depth;
static __thread ncclResult_t group_code;
static __thread struct ncclComm *group_comms[NCCL_MAX_SPLITS]; /* communicators with sends and receives in this group */
static __thread int n_group_comms;

const char *ncclGetErrorString(ncclResult_t code)
{
    static const char *const text[] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error",
        [ncclSystemError] = "unhandled system error",
        [ncclInternalError] = "internal error",
        [ncclInvalidArgument] = "invalid argument",
        [ncclInvalidUsage] = "invalid usage",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
    };
    return (size_t)code < sizeof(text) / sizeof(text[0]) ? text[code] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->error : "";
}

ncclResult_t ncclGetVersion(int *ret)
{
    *ret = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *ret)
{
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ncclSystemError;
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->internal, sizeof(ret->internal), "/dtd-cuda-host-%d-%016llx%016llx", (int)getpid(),
             (unsigned long long)random[0], (unsigned long long)random[1]);
    return ncclSuccess;
}

/* ---- communicators ---- */

static struct ncclComm *comm_new(void)
{
    struct ncclComm *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->refs = 1;
    c->launch_tail = &c->launches;
    c->polls = (int)(cuda_host_random() % 3);
    cudaGetDevice(&c->device);
    host_counts.live_comms++;
    return c;
}

void nccl_comm_release(struct ncclComm *c)
{
    if (--c->refs)
        return;
    nccl_segment_leave(c);
    free(c);
}

static void check_config(const ncclConfig_t *config)
{
    if (!config || config->blocking != 0 || config->magic != 0xcafebeef)
        cuda_host_fail("the stand-in supports only non-blocking communicators");
}

static void check_ready(const struct ncclComm *c, const char *call)
{
    if (!c || c->gone)
        cuda_host_fail("%s on an invalid communicator", call);
    if (c->state != STATE_READY && c->state != STATE_BROKEN)
        cuda_host_fail("%s on a communicator that is in progress (state %d)", call, c->state);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    check_config(config);
    if (n < 1 || n > NCCL_MAX_RANKS || rank < 0 || rank >= n)
        return ncclInvalidArgument;
    host_lock();
    struct ncclComm *c = comm_new();
    memcpy(c->name, id.internal, sizeof(c->name) - 1);
    c->rank = rank;
    c->n = n;
    c->state = nccl_segment_join(c) ? STATE_JOINING : STATE_BROKEN;
    *ret = c;
    host_unlock();
    return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *ret, ncclConfig_t *config)
{
    check_config(config);
    host_lock();
    check_ready(c, "ncclCommSplit");
    struct nccl_seat *me = &c->segment->seat[c->rank];
    if (c->n_splits == NCCL_MAX_SPLITS)
        cuda_host_fail("more than %d splits", NCCL_MAX_SPLITS);
    *ret = NULL;
    c->child = NULL;
    c->color = color;
    if (color != NCCL_SPLIT_NOCOLOR) {
        struct ncclComm *child = comm_new();
        child->device = c->device;
        child->state = STATE_JOINING;
        child->rank = key; /* until the split is complete */
        *ret = c->child = child;
    }
    me->split[c->n_splits].color = color;
    me->split[c->n_splits].key = key;
    atomic_store(&me->splits, ++c->n_splits);
    c->state = STATE_SPLITTING;
    c->polls = (int)(cuda_host_random() % 3);
    host_unlock();
    return ncclInProgress;
}

/* Completes the split once all ranks have called it: the child's ranks are those of its color, ordered by key and old
 * rank. */
static bool try_split(struct ncclComm *c)
{
    int at = c->n_splits - 1, n = 0, rank = 0;
    struct nccl_seat *seat = c->segment->seat;
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&seat[r].splits) < c->n_splits)
            return false;
    if (!c->child)
        return true;
    for (int r = 0; r < c->n; r++) {
        if (seat[r].split[at].color != c->color)
            continue;
        n++;
        int mine = seat[c->rank].split[at].key, his = seat[r].split[at].key;
        rank += his < mine || (his == mine && r < c->rank);
    }
    c->child->n = n;
    c->child->rank = rank;
    snprintf(c->child->name, sizeof(c->child->name), "%.80s.%d.%d", c->name, at, c->color);
    if (!nccl_segment_join(c->child))
        c->child->state = STATE_BROKEN;
    c->child = NULL;
    return true;
}

static bool try_join(struct ncclComm *c)
{
    if (!c->segment || !nccl_segment_all_here(c))
        return false;
    c->state = nccl_segment_duplicate(c) ? STATE_BROKEN : STATE_READY;
    return true;
}

static void launch_all(struct ncclComm *c)
{
    for (struct nccl_launch *l = c->launches, *next; l; l = next) {
        next = l->next;
        if (l->batch)
            nccl_p2p_submit(c, l->stream, l->batch);
        else
            nccl_work_submit(c, l->stream, &l->call, l->from, l->to);
        free(l);
    }
    c->launches = NULL;
    c->launch_tail = &c->launches;
}

static bool try_finalize(struct ncclComm *c)
{
    if (c->queued)
        return false;
    for (int r = 0; r < c->n; r++)
        if (!atomic_load(&c->segment->seat[r].finalized))
            return false;
    return true;
}

/* One step of the operation in progress. */
static void poll_comm(struct ncclComm *c)
{
    if (c->polls > 0) {
        c->polls--;
        return;
    }
    switch (c->state) {
    case STATE_JOINING:
        try_join(c);
        break;
    case STATE_SPLITTING:
        c->state = try_split(c) ? STATE_READY : STATE_SPLITTING;
        break;
    case STATE_LAUNCHING:
        launch_all(c);
        c->state = STATE_READY;
        break;
    case STATE_FINALIZING:
        c->state = try_finalize(c) ? STATE_FINALIZED : STATE_FINALIZING;
        break;
    default:
        break;
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
    if (!c)
        return ncclInvalidArgument;
    host_lock();
    if (c->gone)
        cuda_host_fail("ncclCommGetAsyncError on a communicator that was destroyed");
    poll_comm(c);
    host_run_some();
    *ret = c->state == STATE_BROKEN                                 ? ncclInvalidUsage
           : c->state == STATE_READY || c->state == STATE_FINALIZED ? ncclSuccess
                                                                    : ncclInProgress;
    host_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    host_lock();
    check_ready(c, "ncclCommFinalize");
    if (c->segment)
        atomic_store(&c->segment->seat[c->rank].finalized, 1);
    c->state = STATE_FINALIZING;
    host_unlock();
    return ncclInProgress;
}

static void let_go(struct ncclComm *c)
{
    for (struct nccl_launch *l = c->launches, *next; l; l = next) {
        next = l->next;
        free(l->batch);
        free(l);
    }
    c->launches = NULL;
    c->gone = true;
    host_counts.live_comms--;
    nccl_comm_release(c);
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    host_lock();
    if (!c || c->gone)
        cuda_host_fail("ncclCommDestroy of an invalid communicator");
    if (c->state != STATE_FINALIZED)
        cuda_host_fail("ncclCommDestroy of a communicator that was not finalised");
    let_go(c);
    host_unlock();
    return ncclSuccess;
}

/* Queued work ends without a result. Other ranks are not notified, as in NCCL. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    if (!c)
        return ncclSuccess;
    host_lock();
    if (c->gone)
        cuda_host_fail("ncclCommAbort of an invalid communicator");
    c->aborted = true;
    c->child = NULL;
    let_go(c);
    host_unlock();
    return ncclSuccess;
}

/* ---- groups and collectives ---- */

ncclResult_t ncclGroupStart(void)
{
    if (group_depth++ == 0)
        group_code = ncclSuccess;
    return ncclSuccess;
}

/* A communicator sometimes reports that it is in progress; a later poll launches the work. */
static bool launches_later(const struct ncclComm *c)
{
    return c->state == STATE_LAUNCHING || cuda_host_random() % 4 == 0;
}

static void launch_later(struct ncclComm *c, struct nccl_launch *l)
{
    *c->launch_tail = l;
    c->launch_tail = &l->next;
    c->polls = c->state == STATE_LAUNCHING ? c->polls : (int)(cuda_host_random() % 3);
    c->state = STATE_LAUNCHING;
}

/* Launches all sends and receives of the group as one item. */
static ncclResult_t launch_batch(struct ncclComm *c)
{
    struct nccl_batch *batch = c->batch;
    c->batch = NULL;
    if (!launches_later(c)) {
        nccl_p2p_submit(c, batch->stream, batch);
        return ncclSuccess;
    }
    struct nccl_launch *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    l->stream = batch->stream;
    l->batch = batch;
    launch_later(c, l);
    return ncclInProgress;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth-- < 1)
        cuda_host_fail("ncclGroupEnd without ncclGroupStart");
    if (group_depth)
        return ncclSuccess;
    host_lock();
    for (int i = 0; i < n_group_comms; i++) {
        ncclResult_t code = launch_batch(group_comms[i]);
        group_code = code ? code : group_code;
    }
    n_group_comms = 0;
    host_unlock();
    return group_code;
}

static void add_message(struct ncclComm *c, cudaStream_t stream, const struct nccl_message *m)
{
    if (!c->batch) {
        c->batch = calloc(1, sizeof(*c->batch));
        if (!c->batch || n_group_comms == NCCL_MAX_SPLITS)
            abort();
        c->batch->stream = stream;
        group_comms[n_group_comms++] = c;
    }
    if (c->batch->stream != stream)
        cuda_host_fail("the stand-in supports only one stream for the sends and receives of a group");
    if (c->batch->n == NCCL_MAX_MESSAGES)
        cuda_host_fail("more than %d sends and receives in a group", NCCL_MAX_MESSAGES);
    c->batch->message[c->batch->n++] = *m;
}

static ncclResult_t message(ncclComm_t c, cudaStream_t stream, const struct nccl_message *m, const char *name)
{
    ncclResult_t code = ncclGroupStart();
    host_lock();
    if (!c || c->state != STATE_LAUNCHING || group_depth == 1)
        check_ready(c, name);
    if (c->state == STATE_BROKEN || m->peer < 0 || m->peer >= c->n || m->peer == c->rank || !m->bytes)
        code = ncclInvalidArgument; /* messages to the own rank or of 0 bytes: NCCL supports them, but our code never
                                       sends them */
    else
        add_message(c, stream, m);
    host_unlock();
    ncclResult_t end = ncclGroupEnd();
    return code ? code : end;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    const struct nccl_message m = {(uint8_t *)from, count * nccl_type_bytes(type), 0, peer, true, false};
    return message(comm, stream, &m, "ncclSend");
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    const struct nccl_message m = {to, count * nccl_type_bytes(type), 0, peer, false, false};
    return message(comm, stream, &m, "ncclRecv");
}

static ncclResult_t collective(ncclComm_t c, cudaStream_t stream, const struct nccl_call *call, const void *from,
                               void *to, const char *name)
{
    host_lock();
    if (!group_depth || !c || c->state != STATE_LAUNCHING)
        check_ready(c, name);
    if (c->state == STATE_BROKEN || call->type >= ncclNumTypes || call->root < 0 || call->root >= c->n) {
        host_unlock();
        return ncclInvalidArgument;
    }
    if (launches_later(c)) {
        struct nccl_launch *l = malloc(sizeof(*l));
        if (!l)
            abort();
        *l = (struct nccl_launch){NULL, stream, *call, from, to, NULL};
        launch_later(c, l);
    } else {
        nccl_work_submit(c, stream, call, from, to);
    }
    ncclResult_t code = c->state == STATE_LAUNCHING ? ncclInProgress : ncclSuccess;
    if (group_depth && code)
        group_code = code;
    host_unlock();
    return group_depth ? ncclSuccess : code;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, stream, &(struct nccl_call){KIND_ALL_REDUCE, count, type, op, 0}, from, to,
                      "ncclAllReduce");
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return collective(comm, stream, &(struct nccl_call){KIND_ALL_GATHER, count, type, ncclSum, 0}, from, to,
                      "ncclAllGather");
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, stream, &(struct nccl_call){KIND_REDUCE_SCATTER, count, type, op, 0}, from, to,
                      "ncclReduceScatter");
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return collective(comm, stream, &(struct nccl_call){KIND_BROADCAST, count, type, ncclSum, root}, from, to,
                      "ncclBroadcast");
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, stream, &(struct nccl_call){KIND_REDUCE, count, type, op, root}, from, to, "ncclReduce");
}
