/* The staged backend: collectives on a device's memory through the shared segment of the node's host. It needs nothing
 * but copies, so it serves any device, any number of workers on one of them, and as the second opinion on NCCL.
 *
 * Each rank has two halves of pinned memory in the segment of an inner shm comm. A collective runs in rounds that take
 * turns with the halves: while the ranks combine one on the host, the next is copied from the device into the other.
 * The calling thread waits for a round's data; the copies back are left to the stream. */
#ifndef DTD_WORKER_COMM_STAGED_INTERNAL_H
#define DTD_WORKER_COMM_STAGED_INTERNAL_H

#include "worker/comm/backend.h"

#include <assert.h>

#define STAGED_HALF ((int64_t)2 << 20) /* large enough for a bus's full rate, small enough to overlap */

#define STAGED_CELL ((int64_t)128 << 10) /* of a message under way */
#define STAGED_MAX_WORLD 256

/* A message under way; `moving`: the chunk at `at` is with the inner comm, in the slot of the same number. */
struct staged_post {
    uint8_t *buffer; /* on the device */
    int64_t bytes, at, chunk;
    struct kern_stream *stream;
    struct comm_group *group; /* of the inner comm */
    int peer;
    bool send, moving, done;
};

struct staged_posts {
    struct staged_post post[COMM_SLOTS];
    int active[COMM_SLOTS], n_active;         /* not done, in the order of posting */
    uint32_t pass, busy[2][STAGED_MAX_WORLD]; /* [send][rank] == pass: an earlier message has more to give there */
};

struct staged_comm {
    struct comm base;
    struct comm *inner;
    struct dev *dev;
    uint8_t *half[2];
    bool pinned;
    struct dev_event *arrived[2]; /* the round's bytes are in its half */
    struct dev_event *left;       /* the last collective's have left both */
    struct dev_event *copied;     /* of messages */
    uint8_t *cells;               /* STAGED_CELL for each slot */
    struct staged_posts posts;
};

struct staged_group {
    struct comm_group base;
    struct comm_group *inner;
};

struct staged_unit;

/* A collective in rounds. `cell`: elements of one member (or of all, where there is one buffer) in a round. */
struct staged_call {
    struct staged_comm *comm;
    struct comm_group *group, *inner;
    struct kern_stream *stream;
    const uint8_t *src;
    uint8_t *dst;
    const int64_t *recv_counts;     /* all-to-all: what comes in, `counts` is what goes out */
    const int64_t *counts;          /* elements of each member; NULL: `n` elements in one buffer */
    int64_t n, cell, size;          /* size: bytes of an element */
    const struct staged_unit *unit; /* parts.c: where the members' elements lie */
    enum dtype dtype;
    enum reduce_op op;
    bool add; /* to what the own pieces hold */
    int root;
};

/* What all calls fill alike; buffers, counts and the cell are each collective's. */
static inline struct staged_call staged_call_of(struct comm_group *g, struct kern_stream *s, enum dtype dtype)
{
    const int64_t size = (int64_t)dtype_bytes(dtype);
    assert(size > 0);
    return (struct staged_call){.comm = (struct staged_comm *)g->comm,
                                .group = g,
                                .inner = ((const struct staged_group *)g)->inner,
                                .stream = s,
                                .size = size,
                                .dtype = dtype};
}

/* What a collective does in round `i` with its half: queue the copies in, combine on the host, queue the copies out. */
struct staged_steps {
    err_t (*fetch)(const struct staged_call *c, int64_t i, uint8_t *half);
    err_t (*combine)(const struct staged_call *c, int64_t i, uint8_t *half);
    err_t (*put)(const struct staged_call *c, int64_t i, uint8_t *half);
};
NODISCARD err_t staged_run(const struct staged_call *c, const struct staged_steps *steps, int64_t rounds);

static inline struct staged_comm *staged_of(const struct comm_group *g)
{
    return (struct staged_comm *)g->comm;
}
static inline struct comm_group *staged_inner(const struct comm_group *g)
{
    return ((const struct staged_group *)g)->inner;
}
/* How many of `count` elements fall into round `i`. */
static inline int64_t staged_part(const struct staged_call *c, int64_t count, int64_t i)
{
    int64_t left = count - i * c->cell;
    return left < 0 ? 0 : left < c->cell ? left : c->cell;
}
/* Rounds until the largest count is done. */
int64_t staged_rounds(const struct staged_call *c);

err_t staged_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                        enum reduce_op op);
err_t staged_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                        enum dtype dtype);
err_t staged_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                            const int64_t *counts, enum dtype dtype, enum reduce_op op);
err_t staged_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                         const struct comm_part *parts, int n, enum dtype dtype);
err_t staged_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                          const struct comm_part *parts, int n, enum dtype dtype, bool add);
err_t staged_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root);
err_t staged_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                        void *dst, const int64_t *recv_counts, enum dtype dtype);
err_t staged_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int slot);
err_t staged_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int slot);
err_t staged_push(struct comm *c);
err_t staged_wait(struct comm_group *g, int slot);
err_t staged_copy(struct comm_group *g, struct kern_stream *s, void *dst, const void *src, int64_t bytes);

#endif
