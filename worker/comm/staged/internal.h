/* The staged backend: collectives on device memory, run on the host in the shared segment. It needs only copies between
 * device and host, so it works on any device and with any number of workers per device. Its results can also be
 * compared with NCCL's.
 *
 * Each rank has two halves of pinned memory in the segment of an inner comm. A collective runs in rounds that alternate
 * between the halves: while the ranks combine one half on the host, the next round is copied from the device into the
 * other. The calling thread waits for a round's data, but not for the copies back, which are queued on the stream. */
#ifndef DTD_WORKER_COMM_STAGED_INTERNAL_H
#define DTD_WORKER_COMM_STAGED_INTERNAL_H

#include "worker/comm/backend.h"

#include <assert.h>

/* Bytes of a half: large enough for the full bandwidth of the bus, small enough that rounds overlap. */
#define STAGED_HALF ((int64_t)2 << 20)

#define STAGED_CELL ((int64_t)128 << 10) /* bytes of the buffer of a message in flight */
#define STAGED_MAX_WORLD 256

/* A message in flight; `moving`: the chunk at `at` is posted in the inner comm, in the slot with the same number. */
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
    int active[COMM_SLOTS], n_active;         /* slots that are not done, in the order of posting */
    uint32_t pass, busy[2][STAGED_MAX_WORLD]; /* [send][rank] == pass: an earlier message has more chunks to post */
};

struct staged_comm {
    struct comm base;
    struct comm *inner;
    struct dev *dev;
    uint8_t *half[2];
    bool pinned;
    struct dev_event *arrived[2]; /* the data of the round is in the half */
    struct dev_event *left;       /* the last collective's copies out of both halves are done */
    struct dev_event *copied;     /* the copy of a message's chunk is done */
    uint8_t *cells;               /* STAGED_CELL for each slot */
    struct staged_posts posts;
};

struct staged_group {
    struct comm_group base;
    struct comm_group *inner;
};

struct staged_unit;

/* A collective in rounds. `cell`: elements of each member in a round (or of the buffer, if there is only one). */
struct staged_call {
    struct staged_comm *comm;
    struct comm_group *group, *inner;
    struct kern_stream *stream;
    const uint8_t *src;
    uint8_t *dst;
    const int64_t *recv_counts;     /* all-to-all: elements received; `counts` are those sent */
    const int64_t *counts;          /* elements of each member; NULL: `n` elements in one buffer */
    int64_t n, cell, size;          /* size: bytes of an element */
    const struct staged_unit *unit; /* parts.c: addresses of the members' elements */
    enum dtype dtype;
    enum reduce_op op;
    bool add; /* add the result to this rank's pieces */
    int root;
};

/* Sets the members that all collectives have in common; each collective sets buffers, counts and cell. */
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

/* The steps of a collective in round `i` on its half: queue the copies in, combine on the host, queue the copies out.
 */
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
/* Number of elements in round `i`, of `count`. */
static inline int64_t staged_part(const struct staged_call *c, int64_t count, int64_t i)
{
    int64_t left = count - i * c->cell;
    return left < 0 ? 0 : left < c->cell ? left : c->cell;
}
/* Number of rounds for the largest count. */
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
