/* A reduce-scatter in progress on this rank; used by scatter.c and scatter_nodes.c. */
#ifndef DTD_WORKER_COMM_SHM_SCATTER_H
#define DTD_WORKER_COMM_SHM_SCATTER_H

#include "worker/comm/shm/shm.h"

struct shm_scatter_call {
    struct comm_group *g;
    const uint8_t *local;
    uint8_t *pieces;
    const struct comm_part *parts;
    int n;
    int64_t size, cell; /* bytes of an element; elements of a cell */
    enum dtype dtype;
    enum reduce_op op;
    bool add, shared; /* shared: whether this rank's tensors are */
};

/* Number of elements before member i's part k; for i == g->n, of all parts. */
static inline int64_t shm_scatter_before(const struct shm_scatter_call *c, int k, int i)
{
    int64_t at = 0;
    for (int j = 0; j < i; j++)
        at += c->parts[k].counts[j];
    return at;
}

/* The number of elements of the longest stream of a member. */
int64_t shm_scatter_longest(const struct shm_scatter_call *c);
/* Reduces everything over the group's NUMA nodes (nodes.h); the tensors of all members are shared. */
err_t shm_scatter_nodes(const struct shm_scatter_call *c);

#endif
