/* Collectives and messages over groups of ranks: one interface, and one folder of algorithms per transport:
 *
 *   shm     shared memory within one node
 *   hier    several nodes: shm within each node; between nodes "stream" (TCP with TLS) or "ucx" (a module, for trusted
 *           fabrics)
 *   nccl    GPUs; a module
 *   staged  device memory, copied through a host transport
 *
 * A comm consists of all ranks of one epoch. Every rank calls the same collectives on a group in the same order. A
 * collective is queued on the given stream and may return before it is done. On host memory it is done when it returns,
 * and the stream may be NULL.
 *
 * A collective either completes on all ranks or ends after comm_abort, so a killed rank blocks no other rank for ever.
 * After comm_abort a call on host memory fails. On a device the call or the next dev_stream_sync fails, or the queued
 * work ends without its result (NCCL); so after waiting for a stream, the caller must check the flag that is set before
 * comm_abort (link_cancel). Every later call returns ERR_CANCELED.
 *
 * A rank makes one call at a time, from any thread. The callers guarantee that each call happens before the next
 * (worker/step/comm_thread.h). On host memory no backend keeps state in the calling thread. Only comm_abort may be
 * called at any time. */
#ifndef DTD_WORKER_COMM_COMM_H
#define DTD_WORKER_COMM_COMM_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/mesh/mesh.h" /* enum reduce_op */
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct comm_group;

/* The rendezvous: a key-value store through which the ranks of an epoch find each other. worker/link implements it over
 * dtd-control; tests bring their own. */
struct comm_store {
    void *arg;
    /* Writes a value. A key is 1 to 128 bytes of text and is written once; a value has at most 4096 bytes. */
    err_t (*put)(void *arg, const char *key, const void *value, size_t bytes, struct why *why);
    /* Waits until a rank has put the key, at most timeout_ms (ERR_TIMEOUT). `ret` has room for *ret_bytes bytes, which
     * is set to the value's size. ERR_CANCELED when the epoch has ended. */
    err_t (*get)(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why);
};

struct comm_config {
    const char *backend; /* "shm", "stream", "ucx", "nccl", "staged"; on one node, stream and ucx use shm alone */
    int fd;              /* all but nccl: the memfd that all ranks of the node inherited; not closed */
    struct dev *dev;     /* nccl, staged: the device whose memory the collectives work on; used until comm_close */
    /* nccl, stream, ucx: the rendezvous; used during comm_open and comm_group_new. */
    const struct comm_store *store;
    int rank, world;
    int numa_node;             /* shm: in which all cores and the memory of this rank are; -1: in several, or unknown */
    uint64_t epoch;            /* ranks of another epoch are refused: ERR_STALE */
    size_t shared_bytes;       /* shm: bytes that this rank needs in the segment, for gradients */
    int64_t timeout_ms;        /* limit for all ranks to join */
    const _Atomic int *cancel; /* comm_open fails with ERR_CANCELED once it is not 0; NULL: never */
    /* stream, ucx; used during comm_open: */
    const int *node_of; /* node number of every rank, the same numbers on all ranks; NULL: all ranks are on one node */
    const void *secret; /* the epoch's secret, at least 16 bytes; a peer without it is refused */
    size_t secret_bytes;
    const char *address; /* of this node, an IP address or a name: ranks of other nodes connect to it */
    const char *ports;   /* on which this rank listens (common/base/ports.h); NULL: any */
};

/* Collective: returns when all ranks of the epoch have called it. */
NODISCARD err_t comm_open(const struct comm_config *config, struct comm **ret, struct why *why);
void comm_close(struct comm *c); /* NULL is legal */
/* Marks the epoch dead for all ranks: calls that wait return ERR_CANCELED. Any thread, idempotent. */
void comm_abort(struct comm *c);
/* This rank's shared_bytes, 4096-aligned, zero at open; collectives on buffers inside need no copy. NULL for a backend
 * that works on device memory, where all memory is equally suitable. */
void *comm_shared(struct comm *c);

/* Collective over the whole comm: all ranks create the same groups in the same order. */
NODISCARD err_t comm_group_new(struct comm *c, const int *ranks, int n, struct comm_group **ret);
void comm_group_free(struct comm_group *g);

/* `root` of broadcast and the order of `counts` are indices into the group's ranks.
 *
 * On the host, sums run in a fixed order (rank 0, 1, ..), so every rank gets the same bits, and an element's sum has
 * the bits of comm_all_reduce whichever collective computes it. The order is independent of nodes: the same ranks get
 * the same bits on any number of nodes. Sums take F32, F64, I32, I64, and BF16, which is summed in float32 and rounded
 * once, also where nodes exchange partial sums. Collectives that only move data take any dtype.
 *
 * A buffer may lie in comm_shared (members read it in place, without a copy) or in private memory (copied through the
 * segment in blocks). The members of a group may mix the two. */
NODISCARD err_t comm_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                                enum reduce_op op);
/* dst[part i] = src of member i; `counts` elements per member (uneven counts are normal), dst packed. */
NODISCARD err_t comm_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                                const int64_t *counts, enum dtype dtype);
/* dst = this rank's part of the reduction of all src; counts as above. */
NODISCARD err_t comm_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                                    const int64_t *counts, enum dtype dtype, enum reduce_op op);
NODISCARD err_t comm_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);

/* A tensor of which every member owns a part (its piece) and which every member computes with as a whole (local).
 * `counts`: the number of elements of each member's part, the same array on all members; zeros are normal. Member i's
 * part of the local tensor begins at element local + counts[0] + .. + counts[i-1]; in member i's pieces it begins at
 * element `piece` of member i's own list of parts. */
struct comm_part {
    int64_t local, piece;
    const int64_t *counts;
};
/* The next two calls move all parts of a unit in one collective. The lists have the same length and counts on all
 * members; `local` and `piece` may differ. Parts overlap neither in the pieces nor in the local tensors. */
/* Copies every member's pieces into the local tensors of all members, its own included. A piece that already lies at
 * its place in the rank's local tensor is not copied; otherwise pieces and local must not overlap. */
NODISCARD err_t comm_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                                 const struct comm_part *parts, int n, enum dtype dtype);
/* Sums the local tensors of all members and writes each member's part of the sum into its pieces; with `add` the sum is
 * added to the pieces (piece + sum). `local` is not changed. */
NODISCARD err_t comm_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                                  const struct comm_part *parts, int n, enum dtype dtype, bool add);

/* src: this rank's data for each member, send_counts[i] elements for member i, packed in member order. dst: the
 * members' data for this rank, recv_counts[i] elements from member i, packed in member order. Uneven counts and zeros
 * are normal. recv_counts[i] must equal member i's send count for this rank; if not, this rank returns ERR_INVALID and
 * the comm is aborted for all ranks. Any dtype. src and dst do not overlap. If src lies entirely in comm_shared, at any
 * offset, its receivers read it without an intermediate copy. */
NODISCARD err_t comm_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src,
                                const int64_t *send_counts, void *dst, const int64_t *recv_counts, enum dtype dtype);
/* Returns when all ranks of the group have called it, with every backend. */
NODISCARD err_t comm_barrier(struct comm_group *g);
/* Reduces one number in host memory over the group (SUM, MIN, MAX); done on return, with every backend. */
NODISCARD err_t comm_agree(struct comm_group *g, int64_t *x, enum reduce_op op);

/* Messages from one member to another. They have no tags and stay in order for each pair and direction. The sends of
 * one rank to another and the receives of that rank must match in order and size, over all groups that contain the two.
 * If a size differs, the receiver returns ERR_INVALID and the comm is aborted for all ranks. A message may be empty.
 *
 * A send is done when src may be written again. That may be before the receiver has posted its receive, or only after
 * it has received everything; callers must rely on neither. A receive is done when dst holds the message. The receiver
 * reads a src in comm_shared without an intermediate copy and without further calls by the sender. Buffers of messages
 * in flight do not overlap. */
NODISCARD err_t comm_send(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to);
NODISCARD err_t comm_recv(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from);
/* Send and receive at once, for a step of a ring: all members may call it together, even if no backend buffers
 * anything. `to` and `from` may be the same member. Both may be this rank itself: then the call copies send_bytes =
 * recv_bytes bytes. */
NODISCARD err_t comm_sendrecv(struct comm_group *g, struct kern_stream *s, const void *src, int64_t send_bytes, int to,
                              void *dst, int64_t recv_bytes, int from);

/* The same in two halves: a schedule posts a receive early, or posts a send and continues, and waits later. At most
 * COMM_POSTS posts of a comm are in flight at once (ERR_LIMIT: wait for some first). Each post is waited for exactly
 * once, in any order, in the group in which it was posted; until then the comm owns its buffer. After comm_wait the
 * message is done in the sense above, for work that is queued later on the post's stream.
 *
 * A backend may move messages at any time, on a thread or a device, but it is certain to move them only while their
 * rank is inside one of the calls of this section. So between post and wait a rank must not enter a collective whose
 * other members still wait for the message.
 *
 * After comm_push, no send needs further calls by its rank; receives still do. A send from comm_shared to a rank of the
 * same node is pushed at once. For other sends, a push may last until their receivers have posted the receive and are
 * also in a call of this section.
 *
 * On nccl, a push or a wait submits everything that its rank has posted since the last one to the device, as one
 * operation; work queued on the stream later runs after all of it. Therefore a receive whose sender depends on work
 * that this rank does later must be posted after that work. nccl does not compare sizes. */
#define COMM_POSTS 64
struct comm_post {
    int slot;
    uint32_t serial;
};
NODISCARD err_t comm_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to,
                               struct comm_post *ret);
NODISCARD err_t comm_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from,
                               struct comm_post *ret);
NODISCARD err_t comm_push(struct comm *c);
NODISCARD err_t comm_wait(struct comm_group *g, struct comm_post post);

/* Canonical sums. The leaves 0 .. n_leaves-1 are combined along one fixed binary tree: node [lo, hi) = [lo, mid) +
 * [mid, hi), mid = lo + the largest power of two below hi - lo. Each rank holds finished nodes of the tree; the nodes
 * of all ranks are disjoint and together cover all leaves. After the call `out` holds the root on every rank, with the
 * same bits for every distribution of the leaves over ranks and of the ranks over nodes of the cluster. Supported by
 * shm, stream and ucx. The elements of a tree node lie anywhere in their holder's comm_shared, `out` in any memory;
 * `out` may be the buffer of a tree node, but must not overlap one otherwise. ERR_INVALID on all ranks when the nodes
 * do not make up the tree. */
struct comm_tree_node {
    int64_t lo, hi;
    size_t offset; /* of the node's n elements in the holder's comm_shared */
};
NODISCARD err_t comm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                                 void *out, int64_t n, enum dtype dtype);

/* The error message of the first call that failed; "" when none failed, or when the error code is the whole message. */
const char *comm_why(const struct comm *c);
/* Details of how the comm was set up, for the log; "" when there are none. */
const char *comm_note(const struct comm *c);

/* Payload bytes that this rank has received from its peers in collectives and messages of this group. The count does
 * not depend on the backend or its algorithm. With N members, n bytes, and this rank's slice of them (bytes [n i/N,
 * n (i+1)/N) in whole elements for member i):
 *
 *   all_reduce        (N-1) slice, to sum it, and n - slice, the sums of others: 2 n (N-1)/N if N divides n
 *   all_gather,
 *   unit_gather       the parts of all other members: n (N-1)/N if the parts are even
 *   reduce_scatter,
 *   unit_scatter      (N-1) times this rank's part: n (N-1)/N if the parts are even
 *   broadcast         n; 0 at the root
 *   all_to_all        the bytes from other members
 *   messages          n at the receiver, counted by its comm_wait; 0 at the sender, and for a message to itself
 *   tree_reduce       n - slice for each tree node that this rank holds (others read it from here), and n - slice
 *
 * Barriers, comm_agree and calls that fail count nothing. */
int64_t comm_group_bytes(const struct comm_group *g);
/* The same over all groups of the comm, including freed ones. */
int64_t comm_bytes_moved(const struct comm *c);

#endif
