/* Collectives over groups of ranks: one interface, one folder of algorithms per transport: shm (the memory of one
 * node), hier (several nodes: shm within each, between them "stream", TCP under TLS, or "ucx", a module for trusted
 * fabrics), nccl (GPUs, a module), staged (device memory through a transport of the host).
 *
 * A comm is all ranks of one epoch. Every rank calls the same collectives on a group in the same order. A collective is
 * queued on the stream that it is given and may return before it is done; on host memory it is done when it returns,
 * and the stream may be NULL. It either completes on all ranks or ends after comm_abort: a killed rank hangs nobody. On
 * the host this call then fails; on a device it or the next dev_stream_sync fails, or what was queued ends without its
 * result (NCCL), so whoever waits for a stream looks afterwards at the flag that is set before comm_abort
 * (link_cancel). Every later call is ERR_CANCELED.
 *
 * Calls of a rank come one at a time, of whatever thread: what one has done happens before the next, and that is the
 * callers' business (worker/step/comm_thread.h). On host memory no backend keeps anything of the thread that calls.
 * Only comm_abort may come at any time. */
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

/* A place where the ranks of an epoch leave words for each other: dtd's store (worker/link), or a test's. */
struct comm_store {
    void *arg;
    /* Keys are 1 to 128 bytes of text, written once; values at most 4096 bytes. */
    err_t (*put)(void *arg, const char *key, const void *value, size_t bytes, struct why *why);
    /* Waits until somebody has put it, at most timeout_ms (ERR_TIMEOUT); `ret` has room for *ret_bytes, which becomes
     * the value's size. ERR_CANCELED when the epoch has ended. */
    err_t (*get)(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why);
};

struct comm_config {
    const char *backend; /* "shm", "stream", "ucx", "nccl", "staged"; stream and ucx are shm where there is one node */
    int fd;              /* all but nccl: the memfd that all ranks of the node inherited; not closed */
    struct dev *dev;     /* nccl, staged: whose memory the collectives work on; used until comm_close */
    /* nccl, stream, ucx: how ranks find each other; used during comm_open and comm_group_new. */
    const struct comm_store *store;
    int rank, world;
    uint64_t epoch;            /* ranks of another epoch are refused: ERR_STALE */
    size_t shared_bytes;       /* shm: bytes that every rank wants in the segment for itself: gradients */
    int64_t timeout_ms;        /* for all ranks to arrive */
    const _Atomic int *cancel; /* comm_open gives up with ERR_CANCELED once it is not 0; NULL: never */
    /* stream, ucx; used during comm_open: */
    const int *node_of; /* the node of every rank, numbered alike everywhere; NULL: all are on one */
    const void *secret; /* of the epoch, at least 16 bytes: who does not have it is refused */
    size_t secret_bytes;
    const char *address; /* of this node, a number or a name: where other nodes' ranks connect to */
};

/* Collective: all ranks of the epoch must come. */
NODISCARD err_t comm_open(const struct comm_config *config, struct comm **ret, struct why *why);
void comm_close(struct comm *c); /* NULL is legal */
/* Marks the epoch dead for all ranks: whoever waits returns ERR_CANCELED. Any thread, idempotent. */
void comm_abort(struct comm *c);
/* This rank's shared_bytes, 4096-aligned, zero at open; collectives on buffers inside need no copy. NULL for a backend
 * that works on device memory: any of it will do. */
void *comm_shared(struct comm *c);

/* Collective over the whole comm: all ranks create the same groups in the same order. */
NODISCARD err_t comm_group_new(struct comm *c, const int *ranks, int n, struct comm_group **ret);
void comm_group_free(struct comm_group *g);

/* `root` of broadcast and the order of `counts` are indices into the group's ranks.
 *
 * Sums run in a fixed order (rank 0, 1, ..) on the host, so that every rank gets the same bits, and whatever the call,
 * an element's sum has the bits that comm_all_reduce gives it. The order does not know of nodes: the same ranks get the
 * same bits on any number of them. They take F32, F64, I32 and I64, and BF16 where the
 * backend can (nccl; else ERR_UNSUPPORTED); what only moves takes any dtype.
 *
 * Buffers lie anywhere, each rank's where it likes: in comm_shared (members read them there, no copy) or in private
 * memory (copied through the segment in blocks). Members may mix the two. */
NODISCARD err_t comm_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                                enum reduce_op op);
/* dst[i's part] = src of rank i; `counts` elements per rank (uneven is normal), dst packed. */
NODISCARD err_t comm_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                                const int64_t *counts, enum dtype dtype);
/* dst = rank's part of the reduction of all src; counts as above. */
NODISCARD err_t comm_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                                    const int64_t *counts, enum dtype dtype, enum reduce_op op);
NODISCARD err_t comm_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);

/* A tensor of which every member owns a part (its piece), and computes with the whole (local). `counts`: the elements
 * of each member's part, all known to all; zeros are normal. Member i's part of the local tensor begins at element
 * local + counts[0] + .. + counts[i-1], and in member i's pieces at element `piece` of its own list of parts. */
struct comm_part {
    int64_t local, piece;
    const int64_t *counts;
};
/* All parts of a unit in one collective. Lists are alike on all members in length and counts; `local` and `piece` are
 * each member's own. Parts overlap neither in the pieces nor in the local tensors. */
/* Every member's pieces into everybody's local tensors, the own ones too; a piece that lies at its place in them
 * already is not copied. Else pieces and local do not overlap. */
NODISCARD err_t comm_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                                 const struct comm_part *parts, int n, enum dtype dtype);
/* The sum of all members' local tensors, each member's own part of it into its pieces; with `add` added to what is
 * there (piece + sum). `local` is left as it is. */
NODISCARD err_t comm_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                                  const struct comm_part *parts, int n, enum dtype dtype, bool add);

/* src: what this rank has for each member, send_counts[i] elements for member i, packed in the order of the members.
 * dst: what the members have for this rank, recv_counts[i] elements from member i, packed alike. Uneven counts and
 * zeros are normal; recv_counts[i] is member i's send count for this rank: if not, ERR_INVALID there, and the comm is
 * dead for all. Any dtype. src and dst do not overlap. A src that lies as a whole in comm_shared, at any offset, is
 * read by its receivers without a copy in between. */
NODISCARD err_t comm_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src,
                                const int64_t *send_counts, void *dst, const int64_t *recv_counts, enum dtype dtype);
/* Returns when all ranks of the group have come, whatever the backend. */
NODISCARD err_t comm_barrier(struct comm_group *g);
/* One number of the host, reduced over the group (SUM, MIN, MAX) when the call returns, whatever the backend. */
NODISCARD err_t comm_agree(struct comm_group *g, int64_t *x, enum reduce_op op);

/* Messages from one member to another: no tags, in order for each pair and direction. What a rank sends to another, and
 * what that one receives from it, come in the same order and sizes on both, over all groups that have the two; if a
 * size differs, ERR_INVALID at the receiver, and the comm is dead for all. No bytes are a message too.
 *
 * A send is done when src may be written again. That may be before the receiver has come, or only when it has all:
 * nothing may count on either. A receive is done when dst holds the message. A src in comm_shared is read by the
 * receiver without a copy in between, and needs its sender no more. Buffers of messages under way do not overlap. */
NODISCARD err_t comm_send(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to);
NODISCARD err_t comm_recv(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from);
/* Both at once, for the step of a ring: all members may be in it together, even if nothing buffers. `to` and `from` may
 * be one member; both may be this rank itself: a copy of send_bytes = recv_bytes. */
NODISCARD err_t comm_sendrecv(struct comm_group *g, struct kern_stream *s, const void *src, int64_t send_bytes, int to,
                              void *dst, int64_t recv_bytes, int from);

/* The same in two halves: a schedule posts a receive early, or a send and goes on, and waits later. At most COMM_POSTS
 * of a comm are under way at once (ERR_LIMIT: wait for some). Each is waited for exactly once, in any order, in the
 * group that it was posted in; its buffer is the comm's until then. After comm_wait the message is done in the sense
 * above, for what is queued on the post's stream later.
 *
 * A backend may move messages all the time, on a thread or a device; it is only certain to while their rank is inside
 * one of the calls of this section. So between post and wait a rank must not enter a collective whose other members
 * still wait for the message.
 *
 * comm_push gives away what was posted: afterwards no send needs its rank to go on, while receives still do. A send
 * out of comm_shared to a rank of the node is pushed at once; of others a push may last until their receivers, too, are
 * in a call of this section and have posted the receive.
 *
 * On nccl a push, or a wait, gives the device all that its rank has posted and not given yet, as one, and what is
 * queued on the stream later is behind all of it: a receive whose sender needs what this rank does only later is posted
 * behind that. nccl does not compare lengths. */
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
 * [mid, hi), mid = lo + the largest power of two below hi - lo. Each rank holds finished nodes of it (disjoint,
 * together all leaves); after the call `out` holds the root on every rank, the same bits for every way of dealing the
 * leaves and of placing the ranks on nodes. shm, stream and ucx have it. Node buffers lie anywhere in their holder's
 * comm_shared, `out` anywhere at all; `out` may be one of them, but must not overlap one otherwise. ERR_INVALID on all
 * ranks when the nodes do not make up the tree. */
struct comm_tree_node {
    int64_t lo, hi;
    size_t offset; /* of its n elements in the holder's comm_shared */
};
NODISCARD err_t comm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves,
                                 void *out, int64_t n, enum dtype dtype);

/* The sentence of the first call that failed; "" when none did, or when its code says all. */
const char *comm_why(const struct comm *c);
/* What a person may want to know of how the comm was made, for the log; "" for nothing. */
const char *comm_note(const struct comm *c);

/* Payload bytes that the collectives and messages of this group have brought to this rank from its peers, whatever the
 * backend and its algorithm. With N members, n bytes and this rank's slice of them (bytes [n i/N, n (i+1)/N) in whole
 * elements for member i):
 *
 *   all_reduce        (N-1) slice, to sum it, and n - slice, the sums of others: 2 n (N-1)/N where N divides n
 *   all_gather,
 *   unit_gather       all parts of others: n (N-1)/N where the parts are even
 *   reduce_scatter,
 *   unit_scatter      (N-1) times the own part: n (N-1)/N where the parts are even
 *   broadcast         n, and nothing at the root
 *   all_to_all        what comes from others
 *   messages          n at the receiver, when it has waited for them; nothing at the sender, and for one to oneself
 *   tree_reduce       n - slice for each node that this rank holds (others have it from here), and n - slice
 *
 * Barriers and agreed numbers count nothing, nor does a call that fails. */
int64_t comm_group_bytes(const struct comm_group *g);
/* Of all groups, those that are gone too. */
int64_t comm_bytes_moved(const struct comm *c);

#endif
