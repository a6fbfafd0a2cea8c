/* The hierarchical backend: ranks on several nodes. The ranks of one node communicate over shm, in an inner comm; ranks
 * of different nodes communicate over a wire (worker/comm/wire). The backend has two names, stream and ucx, one for
 * each wire. A comm whose ranks are all on one node is a plain shm comm, and a group whose members are all on one node
 * uses shm alone.
 *
 * Sums keep rank order, whichever node each rank is on: a partial sum visits the runs (consecutive ranks on the same
 * node) one after another, each run adds its members, and the result is sent back (relay.c). If the ranks of a node are
 * consecutive, this moves as many bytes as a ring. The bits are those that a single node would compute, so a job may
 * restart on other nodes and produces the same results. The elements are cut into pieces, which are distributed over
 * the ranks of a node and pass through the nodes as a pipeline.
 *
 * Every rank has a stage in its node's segment, after its shared bytes: for private buffers, and for data that arrives
 * from other nodes. A rank enters a barrier of its node only when all its sends and receives are complete; otherwise
 * the barrier could wait for data from a rank that waits in the barrier. */
#ifndef DTD_WORKER_COMM_HIER_INTERNAL_H
#define DTD_WORKER_COMM_HIER_INTERNAL_H

#include "worker/comm/shm/shm.h"
#include "worker/comm/wire/wire.h"

#define HIER_STAGE ((int64_t)4 << 20)   /* bytes of each rank's stage */
#define HIER_SCRATCH ((int64_t)4 << 20) /* bytes of each rank's private scratch memory */
#define HIER_PIECE ((int64_t)256 << 10) /* largest piece, in bytes */
#define HIER_MAX_WORLD 4096

/* A message in flight, to or from a rank of this node or (`remote`) of another; see p2p.c. */
struct hier_post {
    bool active, remote, send; /* send: only valid if remote */
    struct wire_op op;
};

struct hier_comm {
    struct comm base;
    struct shm_comm *shm; /* of this node */
    struct comm_wire *wire;
    int *node_of, *local_of; /* for every rank: its node, and its rank in that node's inner comm */
    int node;
    uint8_t *scratch;
    int64_t *numbers; /* scratch memory: three numbers per rank */
    void *tree[2];    /* buffers of tree.c, enlarged as needed */
    size_t tree_bytes[2];
    struct hier_post posts[COMM_SLOTS];
    int n_remote, n_local; /* posts in flight */
    bool reported;         /* a call has returned the reason of the epoch's end: later calls return ERR_CANCELED */
};

/* The members (indices) of a group that are on one node, in ascending order. */
struct hier_node {
    int n;
    const int *members;
};
/* Consecutive members of the group that share a node: members first .. first + n - 1. */
struct hier_run {
    int node, first, n; /* node: index in the group's nodes */
};

/* A step of a piece on this rank; `with` is a node or, for STEP_SUM, a run. */
enum hier_step_kind {
    STEP_RECV_SUM, /* receive the partial sum from a node */
    STEP_SUM,      /* add the members of a run */
    STEP_SEND_SUM, /* send the partial sum to a node */
    STEP_FINISH,   /* turn the sum into the result */
    STEP_RECV,     /* receive the result from a node */
    STEP_DELIVER,  /* write the result to the members on this node */
    STEP_SEND,     /* send the result to a node */
};
struct hier_step {
    enum hier_step_kind kind;
    int with;
};
struct hier_route {
    int n;
    struct hier_step *step;
};

struct hier_group {
    struct comm_group base;
    struct comm_group *inner; /* the members on this node; NULL if there are none */
    bool one_node;            /* all members are on this node */
    int n_nodes, here;        /* here: this node's index; -1 if it has no member */
    struct hier_node *nodes;
    int *members;            /* of all nodes, node after node */
    int *node_at, *local_at; /* for each member: its node's index, its place among the node's members */
    int n_runs;
    struct hier_run *runs;
    struct hier_route all_reduce, *scatter, *broadcast; /* scatter: by the owner's node; broadcast: by the root's */
    struct hier_step *steps;
    int *cell_at, max_cells; /* gather.c: a remote member's cell in its receiver's stage; the largest number per rank */
    struct wire_op *ops;     /* 4 per member, and 4 */
    const void **src;        /* scratch memory: one pointer per member, and two */
};

static inline struct hier_comm *hier_of(const struct comm_group *g)
{
    return (struct hier_comm *)g->comm;
}
static inline struct hier_group *hier_group_of(struct comm_group *g)
{
    return (struct hier_group *)g;
}
/* The member of a node that handles a channel. Pieces with the same channel are handled by the same members. */
static inline int hier_owner(const struct hier_group *g, int node, int channel)
{
    return g->nodes[node].members[channel % g->nodes[node].n];
}
static inline int64_t hier_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t hier_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* The stage of a member of the inner group. */
static inline uint8_t *hier_stage(const struct hier_group *g, int inner_index)
{
    const struct shm_comm *s = shm_of(g->inner);
    int rank = g->inner->ranks[inner_index] + 1;
    uint8_t *end = rank < s->base.world ? s->shared[rank] : (uint8_t *)s->head + s->map_bytes;
    return end - HIER_STAGE;
}
/* Address of that member's range k, published before the last barrier, or its stage if the range is private. */
static inline uint8_t *hier_visible(const struct hier_group *g, int inner_index, int k)
{
    uint8_t *range = shm_peer_range(g->inner, inner_index, k);
    return range ? range : hier_stage(g, inner_index);
}

/* ---- wait.c: progress of the wire, and the end of an epoch ---- */

/* Converts the error of a call for the caller: copies the inner comm's error message, and aborts the wire if the epoch
 * is dead on this node. */
err_t hier_outcome(struct hier_comm *h, err_t err);
err_t hier_result(struct comm_group *g, err_t err);
/* Makes progress on the wire. `moved`: whether the caller moved anything since the last turn. *turn counts the turns in
 * a row without progress: after some of them the function sleeps. */
err_t hier_turn(struct hier_comm *h, bool moved, int *turn);
/* Waits until all n ops are done and the wire is flushed. */
err_t hier_wait_ops(struct hier_comm *h, const struct wire_op *ops, int n);
void hier_abort(struct comm *c);
/* Aborts from within a call of the comm (comm.h); afterwards the wire no longer uses the caller's buffers. */
err_t hier_end(struct hier_comm *h);
/* The watch function of the inner comm, see struct shm_comm. */
void hier_watch(void *comm);
void hier_send(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op);
void hier_recv(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op);

/* ---- group.c ---- */

err_t hier_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
void hier_group_free(struct comm_group *g);

/* ---- relay.c ---- */

/* A piece: m elements from element `at` on; `owner`: the member that receives it (reduce-scatter only). */
struct hier_item {
    int64_t at, m;
    int channel, owner;
    const struct hier_route *route;
};
struct hier_relay {
    struct hier_group *g;
    int64_t size, sum_size; /* bytes of an element; of a partial sum (shm_partial_type) */
    int64_t piece;          /* most elements of a piece */
    /* The next of this rank's pieces, in the order that all ranks share; false when there are no more. */
    bool (*next)(struct hier_relay *r, struct hier_item *ret);
    /* acc = (first ? 0 : acc) + the members of the run */
    void (*sum)(const struct hier_relay *r, const struct hier_item *item, const struct hier_run *run, uint8_t *acc,
                bool first);
    /* Turns the partial sum into elements. */
    void (*finish)(const struct hier_relay *r, const struct hier_item *item, uint8_t *acc);
    /* Address at which the result lies or is received; NULL: in scratch memory. */
    uint8_t *(*place)(const struct hier_relay *r, const struct hier_item *item);
    void (*deliver)(const struct hier_relay *r, const struct hier_item *item, const uint8_t *result);
};
/* Size of a piece, in elements, for a buffer of n elements whose partial sums have `size` bytes: at most `most`, a
 * multiple of 64, the same on all ranks. */
int64_t hier_piece(const struct hier_group *g, int64_t n, int64_t most, int64_t size);
err_t hier_relay(struct hier_relay *r);

/* ---- the collectives ---- */

err_t hier_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op);
err_t hier_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);
err_t hier_barrier(struct comm_group *g);
err_t hier_agree(struct comm_group *g, int64_t *x, enum reduce_op op);
/* For small buffers: every rank gets every member's x and reduces all of them. */
err_t hier_reduce_small(struct hier_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op);
err_t hier_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype);
err_t hier_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype);
err_t hier_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op);
err_t hier_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add);
err_t hier_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                      void *dst, const int64_t *recv_counts, enum dtype dtype);
err_t hier_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot);
err_t hier_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot);
err_t hier_push(struct comm *c);
err_t hier_wait(struct comm_group *g, int slot);
err_t hier_move(struct comm_group *g, int slot, bool *ret_done);
err_t hier_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes);
err_t hier_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                       int64_t n, enum dtype dtype);

#endif
