/* Plumbing of the NCCL backend: what its files share. Private to worker/comm/nccl.
 *
 * All communicators are non-blocking: a call that NCCL answers with ncclInProgress is polled, so that no thread sits
 * inside NCCL while a peer is missing. Every call on a communicator is made under `mu` and looks at `dead` first:
 * nccl_abort, from any thread, sets it, takes the mutex between two polls of whoever waits, and aborts all
 * communicators at once. The module never logs. */
#ifndef DTD_WORKER_COMM_NCCL_INTERNAL_H
#define DTD_WORKER_COMM_NCCL_INTERNAL_H

#include "worker/comm/backend.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A message that is posted; `pending`: the device does not have it yet. */
struct nccl_post {
    uint8_t *buffer;
    int64_t bytes;
    struct kern_stream *stream;
    int peer; /* rank */
    bool send, pending;
    uint64_t serial;
};

struct nccl_comm {
    struct comm base; /* first */
    struct dev *dev;
    const struct comm_store *store;
    int64_t timeout_ms;
    pthread_mutex_t mu;
    atomic_bool dead;          /* aborted: every call is ERR_CANCELED from now on */
    ncclComm_t root;           /* all ranks; NULL once it is destroyed or aborted */
    struct nccl_group *groups; /* those with a communicator of their own */

    /* For what the host waits for: its own stream, behind the collectives that were queued before (`queued`). */
    struct kern_stream *stream;
    struct dev_event *queued;
    int64_t *device_word, *host_word; /* 8 bytes each; host_word is pinned */

    /* Of scatters that add (unit.c); on the device. */
    void *scratch;
    size_t scratch_bytes;
    struct dev_event *scratch_free;

    struct nccl_post post[COMM_SLOTS];
    uint64_t posted;
};

struct nccl_group {
    struct comm_group base; /* first */
    struct nccl_group *next;
    bool own;        /* split; else the root serves */
    ncclComm_t comm; /* of the split; NULL when this rank is no member, and after an abort */
};

static inline struct nccl_comm *nccl_of(const struct comm_group *g)
{
    return (struct nccl_comm *)g->comm;
}

/* ---- connect.c: how ranks find each other, before and while the first communicator is made ---- */

/* All ranks say that they are here, and on which GPU; where two share one, NCCL is told to take every process for a
 * host of its own and to use the loopback, and the comm's note says so. Then everybody has rank 0's id. */
err_t nccl_meet(struct nccl_comm *n, ncclUniqueId *ret, struct why *why);

/* ---- wait.c: calls and their ends ---- */

/* Converts NCCL's code; the sentence has the call, its place and NCCL's own words. `comm` may be NULL. */
err_t nccl_why(struct why *why, ncclResult_t code, ncclComm_t comm, const char *call, const char *file, int line);
/* The same into the comm, for calls that have no sentence of their own: the first one stays. */
err_t nccl_failed(struct nccl_comm *n, ncclResult_t code, ncclComm_t comm, const char *call, const char *file,
                  int line);
err_t nccl_canceled(struct nccl_comm *n);
/* Locks and checks for the abort: on ERR_CANCELED the mutex is not held. */
err_t nccl_enter(struct nccl_comm *n);
void nccl_leave(struct nccl_comm *n);
/* Under mu: polls until *comm is no longer in progress, with the mutex released in between. ERR_CANCELED when it was
 * aborted meanwhile, or when *cancel (may be NULL) is set; ERR_TIMEOUT after timeout_ms (0: never). */
struct nccl_wait {
    ncclComm_t *comm;
    const _Atomic int *cancel;
    int64_t timeout_ms;
    const char *what; /* "NCCL's communicator of 4 ranks" */
};
err_t nccl_wait(struct nccl_comm *n, const struct nccl_wait *w, struct why *why);

/* Lets a communicator end well, if all others let theirs too, else aborts it; NULL afterwards. */
void nccl_comm_end(struct nccl_comm *n, ncclComm_t *comm);

/* ---- call.c: what calls on streams have in common ---- */

ncclDataType_t nccl_type(enum dtype dtype);
ncclRedOp_t nccl_op(enum reduce_op op);
ncclComm_t *nccl_comm_of(struct comm_group *g);
cudaStream_t nccl_native(struct kern_stream *s);
/* After the call, under mu, which it releases: waits until all of it is queued and marks the place for those that wait
 * on the host. */
err_t nccl_queued_on(struct nccl_comm *n, ncclComm_t *comm, struct kern_stream *s, ncclResult_t code, const char *call,
                     int line);
err_t nccl_queued(struct comm_group *g, struct kern_stream *s, ncclResult_t code, const char *call, int line);
/* Whether the next call of a group may be made. */
bool nccl_going(ncclResult_t code);
/* Ends the group in any case; the first failure of its calls, else of its end. */
ncclResult_t nccl_group_end(ncclResult_t code);
/* A group of one: what others have to do with NCCL is a copy at most. */
err_t nccl_alone(struct kern_stream *s, void *dst, const void *src, int64_t bytes);

/* Waits until nothing uses it. */
void nccl_drop_scratch(struct nccl_comm *n);

/* ---- the rows of the table ---- */

err_t nccl_open(const struct comm_config *config, struct comm **ret, struct why *why);
void nccl_close(struct comm *c);
void nccl_abort(struct comm *c);
err_t nccl_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
void nccl_group_free(struct comm_group *g);
err_t nccl_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op);
err_t nccl_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype);
err_t nccl_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op);
err_t nccl_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype);
err_t nccl_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add);
err_t nccl_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                      void *dst, const int64_t *recv_counts, enum dtype dtype);
err_t nccl_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot);
err_t nccl_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot);
err_t nccl_push(struct comm *c);
err_t nccl_message_wait(struct comm_group *g, int slot);
err_t nccl_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes);
err_t nccl_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);
err_t nccl_barrier(struct comm_group *g);
err_t nccl_agree(struct comm_group *g, int64_t *x, enum reduce_op op);
err_t nccl_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                       int64_t n, enum dtype dtype);

#endif
