/* Conversion of NCCL's error codes, and waiting for calls that return while they are in progress.
 *
 * Polling is frequent at first (a collective on an idle device is queued within microseconds) and then slows down to
 * one poll per millisecond (a rank may join seconds later). */
#include "worker/comm/nccl/internal.h"

#include "common/base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

#define SPINS 200
#define NAP_MAX_US 1000

static const struct {
    ncclResult_t code;
    err_t err;
} codes[] = {
    {ncclUnhandledCudaError, ERR_IO},   {ncclSystemError, ERR_IO},       {ncclInternalError, ERR_INTERNAL},
    {ncclInvalidArgument, ERR_INVALID}, {ncclInvalidUsage, ERR_INVALID}, {ncclRemoteError, ERR_CLOSED},
};

static err_t convert(ncclResult_t code)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].code == code)
            return codes[i].err;
    return code == ncclSuccess || code == ncclInProgress ? OK : ERR_IO;
}

err_t nccl_why(struct why *why, ncclResult_t code, ncclComm_t comm, const char *call, const char *file, int line)
{
    err_t err = convert(code);
    if (err == OK)
        return OK;
    const char *more = ncclGetLastError(comm);
    return why_set(why, err, "%s at %s:%d: %s%s%s", call, file, line, ncclGetErrorString(code),
                   more && *more ? ": " : "", more ? more : "");
}

err_t nccl_failed(struct nccl_comm *n, ncclResult_t code, ncclComm_t comm, const char *call, const char *file, int line)
{
    return nccl_why(n->base.why.text[0] ? NULL : &n->base.why, code, comm, call, file, line);
}

err_t nccl_canceled(struct nccl_comm *n)
{
    return n->base.why.text[0] ? ERR_CANCELED
                               : why_set(&n->base.why, ERR_CANCELED, "the epoch's communicators were aborted");
}

err_t nccl_enter(struct nccl_comm *n)
{
    pthread_mutex_lock(&n->mu);
    if (!atomic_load(&n->dead))
        return OK;
    pthread_mutex_unlock(&n->mu);
    return nccl_canceled(n);
}

void nccl_leave(struct nccl_comm *n)
{
    pthread_mutex_unlock(&n->mu);
}

static void nap(int turn)
{
    if (turn < SPINS) {
        sched_yield();
        return;
    }
    long us = turn - SPINS + 10 < NAP_MAX_US ? turn - SPINS + 10 : NAP_MAX_US;
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

err_t nccl_wait(struct nccl_comm *n, const struct nccl_wait *w, struct why *why)
{
    int64_t begin = clock_mono_ms();
    for (int turn = 0;; turn++) {
        ncclResult_t state;
        ncclResult_t code = ncclCommGetAsyncError(*w->comm, &state);
        code = code == ncclSuccess ? state : code;
        if (code != ncclInProgress)
            return nccl_why(why, code, *w->comm, w->what, __FILE__, __LINE__);
        if (w->timeout_ms && clock_mono_ms() - begin >= w->timeout_ms)
            return why_set(why, ERR_TIMEOUT, "%s: not done within %lld ms, although all ranks have joined", w->what,
                           (long long)w->timeout_ms);
        pthread_mutex_unlock(&n->mu);
        nap(turn);
        pthread_mutex_lock(&n->mu);
        if (atomic_load(&n->dead) || (w->cancel && atomic_load(w->cancel)))
            return why_set(why, ERR_CANCELED, "%s: the epoch has ended", w->what);
    }
}
