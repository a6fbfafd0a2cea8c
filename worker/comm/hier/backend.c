/* The function tables of the hierarchical backend, open and close. The ranks of each node join over shm first; then
 * ranks of different nodes connect. */
#include "common/base/module.h"
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void hier_close(struct comm *c)
{
    struct hier_comm *h = (struct hier_comm *)c;
    if (h->wire)
        h->wire->ops->close(h->wire);
    if (h->shm)
        shm_close_comm(&h->shm->base);
    free(h->scratch);
    free(h->numbers);
    free(h->node_of);
    free(h->tree[0]);
    free(h->tree[1]);
    free(h);
}

static void *hier_shared(struct comm *c)
{
    const struct shm_comm *s = ((struct hier_comm *)c)->shm;
    return s->shared[s->base.rank];
}

static err_t allocate(struct hier_comm *h, const struct comm_config *config, struct why *why)
{
    const size_t world = (size_t)config->world;
    h->scratch = aligned_alloc(64, (size_t)HIER_SCRATCH);
    h->numbers = calloc(world * 3, sizeof(*h->numbers));
    h->node_of = calloc(world * 2, sizeof(*h->node_of));
    if (!h->scratch || !h->numbers || !h->node_of)
        return why_set(why, ERR_NOMEM, "out of memory");
    h->local_of = h->node_of + world;
    memcpy(h->node_of, config->node_of, world * sizeof(*h->node_of));
    h->node = h->node_of[config->rank];
    return OK;
}

/* Returns the number of ranks on this node; sets the place of every rank in its node. */
static int count_local(struct hier_comm *h, int world)
{
    int n = 0;
    for (int r = 0; r < world; r++) {
        h->local_of[r] = 0;
        for (int i = 0; i < r; i++)
            h->local_of[r] += h->node_of[i] == h->node_of[r];
        n += h->node_of[r] == h->node;
    }
    return n;
}

static err_t join_node(struct hier_comm *h, const struct comm_config *config, struct why *why)
{
    struct comm_config inner = *config;
    struct comm *c;
    inner.backend = comm_backend_shm.name;
    inner.world = count_local(h, config->world);
    inner.rank = h->local_of[config->rank];
    inner.node_of = NULL;
    inner.shared_bytes = (config->shared_bytes + SHM_PAGE - 1) / SHM_PAGE * SHM_PAGE + (size_t)HIER_STAGE;
    err_t err = comm_backend_shm.open(&inner, &c, why);
    if (!err)
        h->shm = (struct shm_comm *)c;
    return err ? why_prefix(why, err, "within this node (ranks are numbered within the node)") : OK;
}

/* UCX reads its environment and installs signal handlers when it is loaded. Variables that are already set are
 * overwritten: settings that a user made for other programs must not affect this one. */
static void prepare_ucx(void)
{
    static const char *const settings[][2] = {{"UCX_HANDLE_ERRORS", "none"},
                                              {"UCX_DEBUG_SIGNO", "0"},
                                              {"UCX_WARN_UNUSED_ENV_VARS", "n"},
                                              {"UCX_TCP_CM_REUSEADDR", "y"},
                                              {"UCX_LOG_LEVEL", "fatal"}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        setenv(settings[i][0], settings[i][1], 1);
}

static err_t find_wire(const char *name, const struct wire_ops **ret, struct why *why)
{
    void *symbol;
    if (strcmp(name, wire_stream.name) == 0) {
        *ret = &wire_stream;
        return OK;
    }
    prepare_ucx();
    err_t err = module_load("dtd-ucx.so", "dtd_ucx_module", &symbol, why);
    if (err)
        return why_prefix(why, err,
                          "run.comm ucx needs libucx0 and a dtd that was built with libucx-dev; stream needs "
                          "neither");
    const struct wire_module *module = symbol;
    if (module->abi != WIRE_MODULE_ABI)
        return why_set(why, ERR_UNSUPPORTED,
                       "dtd-ucx.so has interface %d, this program needs %d: install both from one build of dtd",
                       module->abi, WIRE_MODULE_ABI);
    *ret = module->ops;
    return OK;
}

static err_t connect_nodes(struct hier_comm *h, const struct comm_config *config, struct why *why)
{
    const struct wire_config wire = {.rank = config->rank,
                                     .world = config->world,
                                     .node_of = config->node_of,
                                     .epoch = config->epoch,
                                     .secret = config->secret,
                                     .secret_bytes = config->secret_bytes,
                                     .address = config->address,
                                     .ports = config->ports,
                                     .store = config->store,
                                     .timeout_ms = config->timeout_ms,
                                     .cancel = config->cancel};
    const struct wire_ops *ops = NULL;
    if (!config->store)
        return why_set(why, ERR_INVALID, "ranks on several nodes need a rendezvous store");
    err_t err = find_wire(config->backend, &ops, why);
    if (err)
        return err;
    assert(ops);
    err = ops->open(&wire, &h->wire, why);
    if (err)
        return err;
    snprintf(h->base.note, sizeof(h->base.note), "rank %d of node %d over %s: %s", config->rank, h->node, ops->name,
             h->wire->note);
    return OK;
}

static bool is_one_node(const struct comm_config *config)
{
    for (int r = 1; config->node_of && r < config->world; r++)
        if (config->node_of[r] != config->node_of[0])
            return false;
    return true;
}

static err_t hier_open(const struct comm_config *config, struct comm **ret, struct why *why)
{
    if (is_one_node(config))
        return comm_backend_shm.open(config, ret, why);
    if (config->world > HIER_MAX_WORLD)
        return why_set(why, ERR_LIMIT, "%d workers; at most %d", config->world, HIER_MAX_WORLD);
    struct hier_comm *h = calloc(1, sizeof(*h));
    if (!h)
        return why_set(why, ERR_NOMEM, "out of memory");
    h->base = (struct comm){.backend = strcmp(config->backend, "ucx") == 0 ? &comm_backend_ucx : &comm_backend_stream,
                            .rank = config->rank,
                            .world = config->world};
    err_t err = allocate(h, config, why);
    err = err ? err : join_node(h, config, why);
    err = err ? err : connect_nodes(h, config, why);
    if (err) {
        if (h->shm)
            shm_abort(&h->shm->base); /* this rank has joined: the others must not wait for it */
        hier_close(&h->base);
        return err;
    }
    h->shm->watch_arg = h;
    h->shm->watch = hier_watch;
    *ret = &h->base;
    return OK;
}

#define ROW(its_name)                                                                                                 \
    {                                                                                                                 \
        .name = its_name, .open = hier_open, .close = hier_close, .abort = hier_abort, .shared = hier_shared,         \
        .group_new = hier_group_new, .group_free = hier_group_free, .all_reduce = hier_all_reduce,                    \
        .all_gather = hier_all_gather, .reduce_scatter = hier_reduce_scatter, .unit_gather = hier_unit_gather,        \
        .unit_scatter = hier_unit_scatter, .broadcast = hier_broadcast, .barrier = hier_barrier, .agree = hier_agree, \
        .tree_reduce = hier_tree_reduce, .all_to_all = hier_all_to_all, .send_post = hier_send_post,                  \
        .recv_post = hier_recv_post, .push = hier_push, .wait = hier_wait, .move = hier_move, .copy = hier_copy       \
    }

const struct comm_backend comm_backend_stream = ROW("stream"), comm_backend_ucx = ROW("ucx");
