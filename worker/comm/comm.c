/* The way from the interface to a backend. Arguments are promises of the plan, so what is wrong with them is an assert;
 * a group of which the caller is no member may be created (all ranks number groups alike) but not used. */
#include "worker/comm/comm.h"

#include "worker/comm/backend.h"

#include <assert.h>
#include <string.h>

static const struct comm_backend *const backends[] = {&comm_backend_shm};

err_t comm_open(const struct comm_config *config, struct comm **ret, struct why *why)
{
    if (config->world < 1 || config->rank < 0 || config->rank >= config->world)
        return why_set(why, ERR_INVALID, "rank %d of %d does not exist", config->rank, config->world);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (strcmp(backends[i]->name, config->backend) == 0)
            return backends[i]->open(config, ret, why);
    return why_set(why, ERR_UNSUPPORTED, "no communication backend \"%s\" in this build; there is: shm",
                   config->backend);
}

void comm_close(struct comm *c)
{
    if (c)
        c->backend->close(c);
}

void comm_abort(struct comm *c)
{
    c->backend->abort(c);
}

void *comm_shared(struct comm *c)
{
    return c->backend->shared(c);
}

int64_t comm_bytes_moved(const struct comm *c)
{
    return c->bytes_moved;
}

err_t comm_group_new(struct comm *c, const int *ranks, int n, struct comm_group **ret)
{
    int me = -1;
    for (int i = 0; i < n; i++) {
        assert(ranks[i] >= 0 && ranks[i] < c->world && (i == 0 || ranks[i] > ranks[i - 1]));
        if (ranks[i] == c->rank)
            me = i;
    }
    return c->backend->group_new(c, ranks, n, me, ret);
}

void comm_group_free(struct comm_group *g)
{
    if (g)
        g->comm->backend->group_free(g);
}

static bool dtype_sums(enum dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_F64 || dtype == DT_I32 || dtype == DT_I64;
}

err_t comm_all_reduce(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    assert(g->me >= 0 && n >= 0 && dtype_sums(dtype));
    return g->comm->backend->all_reduce(g, x, n, dtype, op);
}

err_t comm_all_gather(struct comm_group *g, const void *src, void *dst, const int64_t *counts, enum dtype dtype)
{
    assert(g->me >= 0);
    return g->comm->backend->all_gather(g, src, dst, counts, dtype);
}

err_t comm_reduce_scatter(struct comm_group *g, const void *src, void *dst, const int64_t *counts, enum dtype dtype,
                          enum reduce_op op)
{
    assert(g->me >= 0 && dtype_sums(dtype));
    return g->comm->backend->reduce_scatter(g, src, dst, counts, dtype, op);
}

err_t comm_broadcast(struct comm_group *g, void *x, int64_t bytes, int root)
{
    assert(g->me >= 0 && root >= 0 && root < g->n && bytes >= 0);
    return g->comm->backend->broadcast(g, x, bytes, root);
}

err_t comm_barrier(struct comm_group *g)
{
    assert(g->me >= 0);
    return g->comm->backend->barrier(g);
}

err_t comm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                       int64_t n, enum dtype dtype)
{
    assert(g->me >= 0 && n_leaves >= 1 && (dtype == DT_F32 || dtype == DT_F64));
    return g->comm->backend->tree_reduce(g, mine, n_mine, n_leaves, out, n, dtype);
}
