/* Collectives over groups of ranks: one interface, one folder of algorithms per transport. shm here; ucx, stream and
 * nccl fill the same table.
 *
 * A comm is all ranks of one epoch. Every rank calls the same collectives on a group in the same order. A collective
 * either completes on all ranks or returns ERR_CANCELED after comm_abort: a killed rank hangs nobody. Calls come from
 * one thread per rank, except comm_abort, which any thread may call. */
#ifndef DTD_WORKER_COMM_COMM_H
#define DTD_WORKER_COMM_COMM_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/plan/layout.h" /* enum reduce_op */

#include <stddef.h>
#include <stdint.h>

struct comm;
struct comm_group;

struct comm_config {
    const char *backend; /* "shm" */
    int fd;              /* shm: the memfd that all ranks of the node inherited; not closed */
    int rank, world;
    uint64_t epoch;            /* ranks of another epoch are refused: ERR_STALE */
    size_t shared_bytes;       /* bytes that every rank wants in the segment for itself: gradients */
    int64_t timeout_ms;        /* for all ranks to arrive */
    const _Atomic int *cancel; /* comm_open gives up with ERR_CANCELED once it is not 0; NULL: never */
};

/* Collective: all ranks of the epoch must come. */
NODISCARD err_t comm_open(const struct comm_config *config, struct comm **ret, struct why *why);
void comm_close(struct comm *c); /* NULL is legal */
/* Marks the epoch dead for all ranks: whoever waits returns ERR_CANCELED. Any thread, idempotent. */
void comm_abort(struct comm *c);
/* This rank's shared_bytes, 4096-aligned, zero at open. Collectives on buffers inside need no copy. */
void *comm_shared(struct comm *c);

/* Collective over the whole comm: all ranks create the same groups in the same order. */
NODISCARD err_t comm_group_new(struct comm *c, const int *ranks, int n, struct comm_group **ret);
void comm_group_free(struct comm_group *g);

/* `root` of broadcast and the order of `counts` are indices into the group's ranks.
 *
 * Sums run in a fixed order (rank 0, 1, ..), so that every rank gets the same bits. n: elements of dtype F32, F64, I32,
 * I64. Buffers may be private (copied through the segment in blocks) or inside comm_shared at the same offset on all
 * ranks (in place, no copy). */
NODISCARD err_t comm_all_reduce(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op);
/* dst[i's part] = src of rank i; `counts` elements per rank (uneven is normal), dst packed. */
NODISCARD err_t comm_all_gather(struct comm_group *g, const void *src, void *dst, const int64_t *counts,
                                enum dtype dtype);
/* dst = rank's part of the reduction of all src; counts as above. */
NODISCARD err_t comm_reduce_scatter(struct comm_group *g, const void *src, void *dst, const int64_t *counts,
                                    enum dtype dtype, enum reduce_op op);
NODISCARD err_t comm_broadcast(struct comm_group *g, void *x, int64_t bytes, int root);
NODISCARD err_t comm_barrier(struct comm_group *g);

/* Canonical sums. The leaves 0 .. n_leaves-1 are combined along one fixed binary tree: node [lo, hi) = [lo, mid) +
 * [mid, hi), mid = lo + the largest power of two below hi - lo. Each rank holds finished nodes of it (disjoint,
 * together all leaves); after the call `out` holds the root on every rank, the same bits for every way of dealing the
 * leaves. `out` lies in comm_shared at one offset on all ranks; node buffers anywhere in their holder's comm_shared;
 * `out` may be one of them, but must not overlap one otherwise. ERR_INVALID on all ranks when the nodes do not make up
 * the tree. */
struct comm_tree_node {
    int64_t lo, hi;
    size_t offset; /* of its n elements in the holder's comm_shared */
};
NODISCARD err_t comm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                                 void *out, int64_t n, enum dtype dtype);

/* Payload bytes that this rank has read from or written to peers' memory, for the accounts. */
int64_t comm_bytes_moved(const struct comm *c);

#endif
