/* Opening, closing and aborting.
 *
 *   nccl_open: allocates a stream and a number for reductions that the host waits for; rendezvous; creates the root
 *              communicator, non-blocking and polled
 *   nccl_close: finalizes the root, which waits for queued work, and destroys it
 *   nccl_abort: aborts every communicator of the comm in one NCCL group, so that none waits on the device for kernels
 *               of another that is not aborted yet; the root is first, because an unfinished split is part of it
 *
 * If finalizing takes longer than FINALIZE_MS (a peer may have exited meanwhile), the communicator is aborted. */
#include "worker/comm/nccl/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define FINALIZE_MS 10000
#define NUMBER_BYTES 256

/* ---- opening ---- */

static err_t check_config(const struct comm_config *config, struct why *why)
{
    if (!config->dev || config->dev->ops->host_memory)
        return why_set(why, ERR_INVALID, "backend nccl works on GPU memory: it needs a job with run.device: cuda");
    if (!config->store)
        return why_set(why, ERR_INVALID, "backend nccl needs a rendezvous store");
    return OK;
}

static err_t open_root(struct nccl_comm *n, const struct comm_config *config, const ncclUniqueId *id, struct why *why)
{
    char what[64];
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    snprintf(what, sizeof(what), "creating NCCL's communicator of %d ranks", n->base.world);
    const struct nccl_wait wait = {&n->root, config->cancel, config->timeout_ms, what};
    pthread_mutex_lock(&n->mu);
    ncclResult_t code = ncclCommInitRankConfig(&n->root, n->base.world, *id, n->base.rank, &c);
    err_t err = nccl_why(why, code, NULL, what, __FILE__, __LINE__);
    if (!err)
        err = nccl_wait(n, &wait, why);
    pthread_mutex_unlock(&n->mu);
    return err;
}

static err_t open_host_number(struct nccl_comm *n, struct why *why)
{
    const struct dev_ops *ops = n->dev->ops;
    void *device = NULL, *host = NULL;
    err_t err = ops->stream_new(n->dev, 0, true, &n->stream, why);
    if (!err)
        err = ops->event_new(n->dev, false, &n->queued);
    if (!err)
        err = ops->event_new(n->dev, false, &n->scratch_free);
    if (!err)
        err = ops->alloc(n->dev, NUMBER_BYTES, "a number that ranks agree on", &device, why);
    n->device_number = device;
    if (!err)
        err = ops->host_alloc(n->dev, NUMBER_BYTES, "a number that ranks agree on", &host, why);
    n->host_number = host;
    return err;
}

static void close_host_number(struct nccl_comm *n)
{
    const struct dev_ops *ops = n->dev->ops;
    if (n->stream)
        (void)ops->stream_sync(n->stream, NULL); /* after this nothing uses the two numbers */
    if (n->host_number)
        ops->host_free(n->dev, n->host_number, NUMBER_BYTES);
    if (n->device_number)
        ops->free(n->dev, n->device_number, NUMBER_BYTES);
    nccl_free_scratch(n);
    if (n->scratch_free)
        ops->event_free(n->scratch_free);
    if (n->queued)
        ops->event_free(n->queued);
    if (n->stream)
        ops->stream_free(n->stream);
}

static const struct comm_backend backend;

err_t nccl_open(const struct comm_config *config, struct comm **ret, struct why *why)
{
    ncclUniqueId id;
    err_t err = check_config(config, why);
    if (err)
        return err;
    struct nccl_comm *n = calloc(1, sizeof(*n));
    if (!n)
        return why_set(why, ERR_NOMEM, "out of memory");
    n->base = (struct comm){.backend = &backend, .rank = config->rank, .world = config->world};
    n->dev = config->dev;
    n->store = config->store;
    n->timeout_ms = config->timeout_ms;
    pthread_mutex_init(&n->mu, NULL);
    /* NCCL uses the thread's current device; creating a stream makes n->dev the current device. */
    err = open_host_number(n, why);
    if (!err)
        err = nccl_rendezvous(n, &id, why);
    if (!err)
        err = open_root(n, config, &id, why);
    n->store = NULL;
    if (err) {
        nccl_abort(&n->base);
        nccl_close(&n->base);
        return err;
    }
    *ret = &n->base;
    return OK;
}

/* ---- abort and close ---- */

/* Error codes are ignored, because nothing can be done about them. */
static void abort_all(struct nccl_comm *n)
{
    (void)ncclGroupStart();
    (void)ncclCommAbort(n->root);
    n->root = NULL;
    for (struct nccl_group *g = n->groups; g; g = g->next) {
        if (g->comm)
            (void)ncclCommAbort(g->comm);
        g->comm = NULL;
    }
    (void)ncclGroupEnd();
}

void nccl_abort(struct comm *c)
{
    struct nccl_comm *n = (struct nccl_comm *)c;
    if (atomic_exchange(&n->dead, true))
        return;
    pthread_mutex_lock(&n->mu);
    if (n->root) /* created before all other communicators and destroyed after them */
        abort_all(n);
    pthread_mutex_unlock(&n->mu);
}

void nccl_comm_end(struct nccl_comm *n, ncclComm_t *comm)
{
    struct why why;
    if (nccl_enter(n))
        return;
    if (*comm) {
        const struct nccl_wait wait = {comm, NULL, FINALIZE_MS, "ncclCommFinalize"};
        ncclResult_t code = ncclCommFinalize(*comm);
        err_t err = nccl_why(&why, code, *comm, "ncclCommFinalize", __FILE__, __LINE__);
        if (!err)
            err = nccl_wait(n, &wait, &why);
        if (*comm) /* NULL if nccl_abort ran during the poll */
            (void)(err ? ncclCommAbort(*comm) : ncclCommDestroy(*comm));
        *comm = NULL;
    }
    nccl_leave(n);
}

void nccl_close(struct comm *c)
{
    struct nccl_comm *n = (struct nccl_comm *)c;
    nccl_comm_end(n, &n->root);
    close_host_number(n);
    pthread_mutex_destroy(&n->mu);
    free(n);
}

/* ---- the module ---- */

static void *no_shared(struct comm *c)
{
    return NULL; /* all device memory is equally suitable */
}

static const struct comm_backend backend = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .abort = nccl_abort,
    .shared = no_shared,
    .group_new = nccl_group_new,
    .group_free = nccl_group_free,
    .all_reduce = nccl_all_reduce,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .unit_gather = nccl_unit_gather,
    .unit_scatter = nccl_unit_scatter,
    .broadcast = nccl_broadcast,
    .barrier = nccl_barrier,
    .agree = nccl_agree,
    .tree_reduce = nccl_tree_reduce,
    .all_to_all = nccl_all_to_all,
    .send_post = nccl_send_post,
    .recv_post = nccl_recv_post,
    .push = nccl_push,
    .wait = nccl_message_wait,
    .copy = nccl_copy,
};

extern const struct comm_module dtd_nccl_module;
__attribute__((visibility("default"))) const struct comm_module dtd_nccl_module = {COMM_MODULE_ABI, &backend};
