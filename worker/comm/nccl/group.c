/* Groups: the group of all ranks uses the root communicator, a group of one needs none, and every other group has a
 * communicator that is split from the root. A split is a collective call of all ranks, members or not, and changes the
 * state of the root. If it fails, the whole comm is aborted; an epoch could not continue without the group anyway. */
#include "worker/comm/nccl/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static err_t split_root(struct nccl_comm *n, struct nccl_group *g)
{
    char what[64];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    bool member = g->base.me >= 0;
    config.blocking = 0;
    snprintf(what, sizeof(what), "creating NCCL's communicator of a group of %d ranks", g->base.n);
    const struct nccl_wait for_root = {&n->root, NULL, n->timeout_ms, what},
                           for_group = {&g->comm, NULL, n->timeout_ms, what};
    err_t err = nccl_enter(n);
    if (err)
        return err;
    g->next = n->groups;
    n->groups = g; /* from here on nccl_abort aborts it */
    ncclResult_t code =
        ncclCommSplit(n->root, member ? 0 : NCCL_SPLIT_NOCOLOR, member ? g->base.me : 0, &g->comm, &config);
    err = nccl_failed(n, code, n->root, what, __FILE__, __LINE__);
    if (!err)
        err = nccl_wait(n, &for_root, &n->base.why);
    if (!err && member)
        err = nccl_wait(n, &for_group, &n->base.why);
    nccl_leave(n);
    return err;
}

err_t nccl_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret)
{
    struct nccl_comm *nc = (struct nccl_comm *)c;
    struct nccl_group *g = calloc(1, sizeof(*g) + (size_t)n * sizeof(int));
    if (!g)
        return ERR_NOMEM;
    g->base = (struct comm_group){.comm = c, .n = n, .me = me, .ranks = (int *)(g + 1)};
    memcpy(g->base.ranks, ranks, (size_t)n * sizeof(int));
    g->own = n > 1 && n < c->world;
    err_t err = g->own ? split_root(nc, g) : OK;
    if (err) {
        nccl_abort(c);
        nccl_group_free(&g->base);
        return err;
    }
    *ret = &g->base;
    return OK;
}

void nccl_group_free(struct comm_group *base)
{
    struct nccl_group *g = (struct nccl_group *)base;
    struct nccl_comm *n = nccl_of(base);
    if (g->own)
        nccl_comm_end(n, &g->comm);
    pthread_mutex_lock(&n->mu);
    for (struct nccl_group **at = &n->groups; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    pthread_mutex_unlock(&n->mu);
    free(g);
}
