/* Collectives against an oracle that every rank computes itself: the inputs of all ranks are functions of rank and
 * index, so no second channel is needed. All backends run the same cases; "staged" uses the CPU device. */
#ifndef DTD_TESTS_WORKER_COLLECTIVES_H
#define DTD_TESTS_WORKER_COLLECTIVES_H

#include "worker/comm/comm.h"

#include <stdbool.h>
#include <stdio.h>

/* The body of a rank; returns 0 when all checks passed. */
typedef int (*rank_fn)(struct comm *c, struct comm_group *all, int rank, int world);

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, rank, world, #condition); \
            return 1;                                                                                   \
        }                                                                                               \
    } while (0)

#define SHARED_BYTES ((size_t)4 << 20) /* of each rank, over shm */

extern const char *ranks_backend;        /* of the case; "shm" */
extern struct kern_stream *ranks_stream; /* of the rank; NULL for shm */
extern const int ranks_everybody[6];     /* 0, 1, .. */

int ranks_segment(void);
int ranks_run_one(int fd, uint64_t epoch, int rank, int world, rank_fn fn);
void ranks_run_forked(int fd, uint64_t epoch, int world, rank_fn fn);
void ranks_run_worlds(rank_fn fn); /* of 1 to 5 ranks */
/* Nodes with 2 and 2 ranks, with 2, 1 and 3, four with 1, and two nodes whose ranks are not consecutive; each node has
 * its own segment. Skips if the backend's module is not built. */
void ranks_run_nodes(const char *backend, rank_fn fn);
/* One machine of which the ranks appear to lie in these NUMA nodes; in nodes of two ranks, and of different numbers. */
void ranks_run_numa(const int *nodes, int world, rank_fn fn);
void ranks_run_numa_nodes(rank_fn fn);
void ranks_need_ucx(void); /* skips if its module is not built */
bool ranks_on_nodes(void); /* the case runs over several nodes, where a call takes longer */
/* Whether `err` is an error of a call that is running when the epoch ends; over nodes it may also be a lost peer. */
bool ranks_ended(err_t err);

double ranks_value(int rank, int64_t i, enum dtype dtype);
double ranks_get(const void *x, int64_t i, enum dtype dtype);
void ranks_fill(void *x, int64_t n, enum dtype dtype, int rank);
/* The reduction of the ranks' values, in the order of the ranks, rounded to the type after each step. */
double ranks_oracle(const int *ranks, int n, int64_t i, enum dtype dtype, enum reduce_op op);

int case_all_reduce(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op, int rank, int world);
int case_all_reduce_everything(struct comm *c, struct comm_group *all, int rank, int world);
int case_nan(struct comm *c, struct comm_group *all, int rank, int world);
int case_gather_everything(struct comm *c, struct comm_group *all, int rank, int world);
int case_scatter_everything(struct comm *c, struct comm_group *all, int rank, int world);
int case_broadcast_everything(struct comm *c, struct comm_group *all, int rank, int world);
/* Every group of two or more of five ranks. A rank uses the groups of which it is a member, between collectives of all
 * ranks. */
int case_groups(struct comm *c, struct comm_group *all, int rank, int world);
int case_agree(struct comm *c, struct comm_group *all, int rank, int world);
/* All combinations of private and shared buffers, at different offsets on each rank. */
int case_places(struct comm *c, struct comm_group *all, int rank, int world);
/* Checks comm_group_bytes. */
int case_bytes(struct comm *c, struct comm_group *all, int rank, int world);
/* On two nodes; see ranks_killed. */
void ranks_killed_on_nodes(const char *backend, rank_fn fn);
/* Four ranks run `fn`, in which the last rank is killed and another aborts: no rank hangs, and the next epoch can use
 * the segment. */
void ranks_killed(rank_fn fn);
int case_killed(struct comm *c, struct comm_group *all, int rank, int world); /* in an all-reduce */

#endif
