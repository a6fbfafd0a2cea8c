/* Declarations that the files of the NCCL backend share.
 *
 * All communicators are non-blocking: when NCCL returns ncclInProgress the backend polls, so no thread blocks inside
 * NCCL while a peer is missing. Every call on a communicator is made with `mu` held and checks `dead` first.
 * nccl_abort, called from any thread, sets `dead`, takes the mutex between two polls of a waiting call, and aborts all
 * communicators at once. The module never logs. */
#ifndef DTD_WORKER_COMM_NCCL_INTERNAL_H
#define DTD_WORKER_COMM_NCCL_INTERNAL_H

#include "worker/comm/backend.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A posted message; `pending`: it has not been submitted to the device. */
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
    atomic_bool dead;          /* aborted: every call returns ERR_CANCELED from now on */
    ncclComm_t root;           /* communicator of all ranks; NULL once it is destroyed or aborted */
    struct nccl_group *groups; /* groups with their own communicator */

    /* For reductions of a number that the host waits for. They run on their own stream, after the collectives that were
     * queued before them (`queued`). */
    struct kern_stream *stream;
    struct dev_event *queued;
    int64_t *device_number, *host_number; /* 8 bytes each; host_number is pinned */

    /* Device memory for scatters that add (unit.c). `scratch_free`: its last use is done. */
    void *scratch;
    size_t scratch_bytes;
    struct dev_event *scratch_free;

    struct nccl_post post[COMM_SLOTS];
    uint64_t posted;
};

struct nccl_group {
    struct comm_group base; /* first */
    struct nccl_group *next;
    bool own;        /* the group has a split communicator; otherwise it uses the root */
    ncclComm_t comm; /* the split communicator; NULL if this rank is not a member, and after an abort */
};

static inline struct nccl_comm *nccl_of(const struct comm_group *g)
{
    return (struct nccl_comm *)g->comm;
}

/* ---- connect.c: the rendezvous before the first communicator is created ---- */

/* Every rank publishes its GPU and host. If two ranks share a GPU, NCCL is configured to treat every process as a
 * separate host, and to use the loopback interface if all ranks are on one host; the comm's note describes this. Then
 * every rank gets the unique id from rank 0. */
err_t nccl_rendezvous(struct nccl_comm *n, ncclUniqueId *ret, struct why *why);

/* ---- wait.c: errors, and waiting for calls ---- */

/* Converts NCCL's error code; the message has the call, its source line and NCCL's message. `comm` may be NULL. */
err_t nccl_why(struct why *why, ncclResult_t code, ncclComm_t comm, const char *call, const char *file, int line);
/* The same, with the message stored in the comm, which keeps the first one. */
err_t nccl_failed(struct nccl_comm *n, ncclResult_t code, ncclComm_t comm, const char *call, const char *file,
                  int line);
err_t nccl_canceled(struct nccl_comm *n);
/* Takes the mutex and checks for an abort; on ERR_CANCELED the mutex is not held. */
err_t nccl_enter(struct nccl_comm *n);
void nccl_leave(struct nccl_comm *n);
/* Called with mu held: polls until *comm is no longer in progress, and releases the mutex between polls. ERR_CANCELED
 * when the comm was aborted meanwhile or *cancel (may be NULL) is set; ERR_TIMEOUT after timeout_ms (0: never). */
struct nccl_wait {
    ncclComm_t *comm;
    const _Atomic int *cancel;
    int64_t timeout_ms;
    const char *what; /* for messages: "creating NCCL's communicator of 4 ranks" */
};
err_t nccl_wait(struct nccl_comm *n, const struct nccl_wait *w, struct why *why);

/* Finalizes and destroys a communicator; aborts it if other ranks do not finalize theirs in time. *comm becomes NULL.
 */
void nccl_comm_end(struct nccl_comm *n, ncclComm_t *comm);

/* ---- call.c: common parts of calls on streams ---- */

ncclDataType_t nccl_type(enum dtype dtype);
ncclRedOp_t nccl_op(enum reduce_op op);
ncclComm_t *nccl_comm_of(struct comm_group *g);
cudaStream_t nccl_native(struct kern_stream *s);
/* Ends a call. Called with mu held, which it releases. Waits until NCCL has queued the call and records n->queued, for
 * calls that wait on the host. */
err_t nccl_queued_on(struct nccl_comm *n, ncclComm_t *comm, struct kern_stream *s, ncclResult_t code, const char *call,
                     int line);
err_t nccl_queued(struct comm_group *g, struct kern_stream *s, ncclResult_t code, const char *call, int line);
/* Whether the next call of an NCCL group may be made: `code` is success or in progress. */
bool nccl_in_order(ncclResult_t code);
/* Ends the NCCL group in any case; returns the first failed code: `code`, else that of the end. */
ncclResult_t nccl_group_end(ncclResult_t code);
/* A copy on the stream, in place of a collective in a group of one member. */
err_t nccl_copy_alone(struct kern_stream *s, void *dst, const void *src, int64_t bytes);

/* Frees the scratch memory after its last use. */
void nccl_free_scratch(struct nccl_comm *n);

/* ---- the function table ---- */

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
