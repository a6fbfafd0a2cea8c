/* The hierarchical backend: ranks on several nodes. The ranks of a node meet over shm, in an inner comm of theirs;
 * those of different nodes over a wire (worker/comm/wire). It has two names, stream and ucx, for the wire that it
 * takes; a comm whose ranks are all on one node is shm itself, and so is every group whose members are.
 *
 * Sums keep the order of the ranks, whatever node each is on: a partial sum visits the runs of neighbouring ranks of a
 * node one after another, each adds its members, and the result goes back (relay.c). Where the ranks of a node are
 * neighbours this moves as much as a ring would, and the bits are those that one node would make: a job may come back
 * on other nodes and go on as if nothing had happened. The elements are cut into pieces, which the ranks of a node
 * share out among themselves and which follow each other through the nodes.
 *
 * Every rank has a stage in the node's segment, behind its shared bytes: for buffers that are private, and for what
 * comes from other nodes. A rank enters a barrier of its node only when all that it had to send and receive is through,
 * so that no barrier waits for a wire of somebody who waits in it. */
#ifndef DTD_WORKER_COMM_HIER_INTERNAL_H
#define DTD_WORKER_COMM_HIER_INTERNAL_H

#include "worker/comm/shm/shm.h"
#include "worker/comm/wire/wire.h"

#define HIER_STAGE ((int64_t)4 << 20)   /* bytes, of each rank */
#define HIER_SCRATCH ((int64_t)4 << 20) /* bytes, private */
#define HIER_PIECE ((int64_t)256 << 10) /* bytes at most */
#define HIER_MAX_WORLD 4096

/* A message of an all-to-all of a rank with another node, or of the ranks' own; see p2p.c. */
struct hier_post {
    bool active, remote, send; /* send: of a remote one */
    struct wire_op op;
};

struct hier_comm {
    struct comm base;
    struct shm_comm *shm; /* of this node */
    struct wire *wire;
    int *node_of, *local_of; /* of every rank: its node, and its rank in that node's inner comm */
    int node;
    uint8_t *scratch;
    int64_t *numbers; /* scratch too: two of each rank */
    void *tree[2];    /* tree.c's, grown as needed */
    size_t tree_bytes[2];
    struct hier_post posts[COMM_SLOTS];
    int n_remote, n_local; /* posts under way */
    bool told;             /* a call has said how the epoch ended: later ones are ERR_CANCELED */
};

/* Of a group: the members (indices) on one node, in their order. */
struct hier_node {
    int n;
    const int *members;
};
/* Neighbours in the group that share a node: members first .. first + n - 1. */
struct hier_run {
    int node, first, n; /* node: index in the group's nodes */
};

/* What this rank does with a piece, in this order; `with` is a node or, for SUM, a run. */
enum hier_step_kind {
    STEP_RECV_SUM, /* the sum so far, from a node */
    STEP_SUM,      /* adds the members of a run */
    STEP_SEND_SUM,
    STEP_FINISH, /* the sum is the result */
    STEP_RECV,   /* the result */
    STEP_GIVE,   /* to the members here */
    STEP_SEND,
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
    struct comm_group *inner; /* the members on this node; NULL where there are none */
    bool one_node;            /* all members are here */
    int n_nodes, here;        /* here: this node's index; -1 where it has no member */
    struct hier_node *nodes;
    int *members;            /* all nodes', one behind another */
    int *node_at, *local_at; /* of each member: its node's index, its place among the node's members */
    int n_runs;
    struct hier_run *runs;
    struct hier_route all_reduce, *scatter, *broadcast; /* by the node of the owner; of the root */
    struct hier_step *steps;
    int *cell_at, max_cells; /* gather.c: a remote member's cell in its receiver's stage; the most of any rank */
    struct wire_op *ops;     /* 4 of each member */
    const void **src;        /* scratch: one of each member and two */
};

static inline struct hier_comm *hier_of(const struct comm_group *g)
{
    return (struct hier_comm *)g->comm;
}
static inline struct hier_group *hier_group_of(struct comm_group *g)
{
    return (struct hier_group *)g;
}
/* The member of a node that handles a channel. */
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
/* Where that member has its range k, said before the last barrier, or its stage. */
static inline uint8_t *hier_visible(const struct hier_group *g, int inner_index, int k)
{
    uint8_t *said = shm_said(g->inner, inner_index, k);
    return said ? said : hier_stage(g, inner_index);
}

/* ---- wait.c: moving the wire, and ends ---- */

/* How a call ended: takes over the inner comm's sentence, and ends the other nodes' part of an epoch that is dead here.
 */
err_t hier_outcome(struct hier_comm *h, err_t err);
err_t hier_result(struct comm_group *g, err_t err);
/* Moves the wire. `turn` counts the calls that found nothing to do: after some of them it waits. */
err_t hier_turn(struct hier_comm *h, bool moved, int *turn);
/* Until all n are done and have left. */
err_t hier_wait_ops(struct hier_comm *h, const struct wire_op *ops, int n);
void hier_abort(struct comm *c);
/* The same in the comm's turn (comm.h): behind it the wire touches nothing of the caller's any more. */
err_t hier_end(struct hier_comm *h);
/* What a long wait in the inner comm does. */
void hier_watch(void *comm);
void hier_send(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op);
void hier_recv(const struct hier_group *g, int member, void *data, int64_t bytes, struct wire_op *op);

/* ---- group.c ---- */

err_t hier_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
void hier_group_free(struct comm_group *g);

/* ---- relay.c ---- */

/* A piece: m elements; `at` and `who` as the collective means them. */
struct hier_item {
    int64_t at, m;
    int channel, who;
    const struct hier_route *route;
};
struct hier_relay {
    struct hier_group *g;
    int64_t size, piece; /* bytes of an element; elements of a piece, at most */
    /* The next of this rank's pieces in the order that all ranks share; false: no more. */
    bool (*next)(struct hier_relay *r, struct hier_item *ret);
    /* acc = (first ? nothing : acc) + the members of the run */
    void (*sum)(const struct hier_relay *r, const struct hier_item *item, const struct hier_run *run, uint8_t *acc,
                bool first);
    void (*finish)(const struct hier_relay *r, const struct hier_item *item, uint8_t *acc);
    /* Where the result is, or is to be received; NULL: in scratch. */
    uint8_t *(*place)(const struct hier_relay *r, const struct hier_item *item);
    void (*give)(const struct hier_relay *r, const struct hier_item *item, const uint8_t *result);
};
/* Elements of a piece for n elements, at most `most`: the same on all ranks; multiples of 64. */
int64_t hier_piece(const struct hier_group *g, int64_t n, int64_t most, int64_t size);
err_t hier_relay(struct hier_relay *r);

/* ---- the collectives ---- */

err_t hier_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op);
err_t hier_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);
err_t hier_barrier(struct comm_group *g);
err_t hier_agree(struct comm_group *g, int64_t *x, enum reduce_op op);
/* What is small: everybody has everybody's x, and reduces it. */
err_t hier_reduce_tiny(struct hier_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op);
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
