/* The shm backend: all ranks of a node over one memory segment (a memfd that outlives epochs).
 *
 * The segment: a head with one control block per recent epoch, then a window per rank (for private buffers of
 * collectives, in blocks), then a lane for each ordered pair of ranks (for messages) and the lanes' boxes, then every
 * rank's shared bytes. Pages that nobody uses are never there, so boxes of pairs that do not talk cost nothing. Control
 * blocks of 16 consecutive epochs are different memory, so that a rank that still waits in an ended epoch cannot
 * disturb the next one; control lets an epoch start only after the survivors have left the last. */
#ifndef DTD_WORKER_COMM_SHM_SHM_H
#define DTD_WORKER_COMM_SHM_SHM_H

#include "worker/comm/backend.h"

#include <stdatomic.h>
#include <stdbool.h>

#define SHM_MAX_WORLD 256
#define SHM_MAX_GROUPS 1024
#define SHM_EPOCHS 16
#define SHM_BLOCK ((size_t)128 << 10) /* measured best for private buffers: in and out stay in the second cache */
#define SHM_PAGE 4096
#define SHM_PARTS 512 /* of a unit at once; more go one list after another */
#define SHM_PRIVATE UINT64_MAX

/* A barrier's two words. `gen`: bit 0 says that the epoch is dead, the rest counts. Only the last to arrive changes it.
 */
struct shm_barrier {
    _Alignas(64) _Atomic uint32_t gen;
    _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
};

/* What a rank sleeps on while it waits for messages. Bit 0 of `rung` is set when the epoch dies, the rest counts. */
struct shm_bell {
    _Alignas(64) _Atomic uint32_t rung;
    _Atomic uint32_t asleep; /* its rank is about to sleep, or does */
};

/* Messages from one rank to another: a ring of chunks. A chunk lies in the slot's box, or is a whole message in the
 * sender's shared bytes. */
#define SHM_SLOTS 4
struct shm_chunk {
    uint64_t at, bytes; /* from the start of the segment */
    uint64_t total;     /* of the message */
};
struct shm_lane {
    _Alignas(64) _Atomic uint32_t filled; /* chunks so far; only the sender changes it */
    struct shm_chunk chunk[SHM_SLOTS];
    _Alignas(64) _Atomic uint32_t taken; /* only the receiver changes it */
};

struct shm_member {
    uint32_t joined;
    uint64_t shared_bytes;
};

struct shm_ctl {
    uint64_t epoch;
    uint32_t world;
    _Atomic uint32_t joined; /* how many; a futex; SHM_DEAD set when the epoch died */
    struct shm_member member[SHM_MAX_WORLD];
    struct shm_barrier barrier[SHM_MAX_GROUPS];
    struct shm_bell bell[SHM_MAX_WORLD];
};
#define SHM_DEAD 0x80000000u

struct shm_head {
    uint64_t magic;
    uint64_t latest; /* newest epoch that anybody opened; written last, under the file lock */
    _Alignas(SHM_PAGE) struct shm_ctl ctl[SHM_EPOCHS];
};
#define SHM_MAGIC 0x3330306d68735444u /* "DTshm003" */

/* Two of each, used in turn: block b+2 is written only after everybody has read block b. `said`: where the rank's
 * buffers lie, from the start of the segment. */
struct shm_window {
    _Alignas(SHM_PAGE) uint8_t in[2][SHM_BLOCK];
    uint8_t out[2][SHM_BLOCK];
    uint64_t said[SHM_PARTS];
};

/* A message under way. `through`: all its chunks are in slots, or out of them; a send from shared bytes is done only
 * when its chunk is taken. */
struct shm_post {
    uint8_t *buffer;
    size_t bytes, at;
    int peer; /* rank */
    bool send, shared, through, done;
    uint32_t last; /* `taken` once the last chunk is */
};

struct shm_posts {
    struct shm_post post[COMM_SLOTS];
    int active[COMM_SLOTS], n_active;      /* not done, in the order of posting */
    uint32_t pass, busy[2][SHM_MAX_WORLD]; /* [send][peer] == pass: an earlier message is still on its way in there */
};

struct shm_comm {
    struct comm base;
    int fd, n_groups, spins;
    struct shm_head *head;
    size_t map_bytes;
    struct shm_ctl *ctl;
    struct shm_window *windows;
    struct shm_lane *lanes; /* [from * world + to] */
    uint8_t *boxes;         /* SHM_SLOTS of box_bytes for each lane */
    size_t box_bytes;
    uint8_t *shared[SHM_MAX_WORLD]; /* of every rank */
    size_t shared_bytes;            /* of this one, rounded up to pages */
    struct comm_group *all;
    void *tree_stack; /* scratch of shm_tree_reduce, made by the first */
    void *tree_nodes;
    size_t tree_cap;
    struct shm_posts posts;
    void (*watch)(void *arg); /* of a backend on top: called now and then by who waits for long; may kill the epoch */
    void *watch_arg;
};
#define SHM_WATCH_MS 50

struct shm_group {
    struct comm_group base;
    struct shm_barrier *barrier;
};

static inline struct shm_comm *shm_of(const struct comm_group *g)
{
    return (struct shm_comm *)g->comm;
}
static inline struct shm_window *shm_window(const struct comm_group *g, int index)
{
    return &shm_of(g)->windows[g->ranks[index]];
}
/* Whether [x, x + bytes) lies in this rank's shared bytes; what is empty does. */
bool shm_is_shared(const struct comm_group *g, const void *x, size_t bytes);
/* Writes down where this rank's n <= SHM_PARTS ranges lie, for whoever looks behind the next barrier. False when not
 * all lie in shared bytes: then all are private. */
struct shm_range {
    const void *x;
    size_t bytes;
};
bool shm_say(const struct comm_group *g, const struct shm_range *ranges, int n);
/* Where member `index` has its range k; NULL when it is private. */
uint8_t *shm_said(const struct comm_group *g, int index, int k);
bool shm_all_shared(const struct comm_group *g);
/* [lo, hi) of n elements for member `index`, cut at multiples of 64 elements. */
void shm_slice(const struct comm_group *g, int64_t n, int index, int64_t *ret_lo, int64_t *ret_hi);

err_t shm_open_comm(const struct comm_config *config, struct comm **ret, struct why *why);
void shm_close_comm(struct comm *c);
void shm_abort(struct comm *c);
void shm_ctl_kill(struct shm_ctl *ctl);
err_t shm_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
void shm_group_free(struct comm_group *g);
err_t shm_barrier(struct comm_group *g);
/* Sleeps until *word != seen, somebody wakes it, or `timeout_ms` passed. Spurious returns are legal. */
void shm_futex_wait(_Atomic uint32_t *word, uint32_t seen, int timeout_ms);
void shm_futex_wake(_Atomic uint32_t *word);
/* A moment's wait for what other ranks do: a pause, or after s->spins turns the processor for somebody else. False when
 * it is time to sleep. */
bool shm_idle(const struct shm_comm *s, int turn);
/* Sleeps like shm_futex_wait, and lets the backend on top look after its own. */
void shm_sleep(const struct shm_comm *s, _Atomic uint32_t *word, uint32_t seen);
/* The first that shm_ctl_kill sets, so that who has heard of the end anywhere hears of it here. */
static inline bool shm_is_dead(const struct shm_comm *s)
{
    return atomic_load(&s->ctl->joined) & SHM_DEAD;
}

/* dst = src of members 0, 1, .. combined in that order, n elements; AVG divides by the number of sources. dst may be
 * any of the sources. With `add` dst = dst + that, and dst is none of them. Only elementwise, so that any cut of the
 * range gives the same bits. */
void shm_reduce(void *dst, const void *const *src, int n_src, int64_t n, enum dtype dtype, enum reduce_op op, bool add);
/* What AVG does last. */
void shm_divide(void *x, int64_t n, enum dtype dtype, int by);

/* Host memory only, done on return: the stream is not used. */
err_t shm_all_reduce(struct comm_group *g, struct kern_stream *stream, void *x, int64_t n, enum dtype dtype,
                     enum reduce_op op);
err_t shm_all_gather(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                     const int64_t *counts, enum dtype dtype);
err_t shm_reduce_scatter(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                         const int64_t *counts, enum dtype dtype, enum reduce_op op);
err_t shm_unit_gather(struct comm_group *g, struct kern_stream *stream, const void *pieces, void *local,
                      const struct comm_part *parts, int n, enum dtype dtype);
err_t shm_unit_scatter(struct comm_group *g, struct kern_stream *stream, const void *local, void *pieces,
                       const struct comm_part *parts, int n, enum dtype dtype, bool add);
err_t shm_broadcast(struct comm_group *g, struct kern_stream *stream, void *x, int64_t bytes, int root);
err_t shm_all_to_all(struct comm_group *g, struct kern_stream *stream, const void *src, const int64_t *send_counts,
                     void *dst, const int64_t *recv_counts, enum dtype dtype);
err_t shm_send_post(struct comm_group *g, struct kern_stream *stream, const void *src, int64_t bytes, int to, int slot);
err_t shm_recv_post(struct comm_group *g, struct kern_stream *stream, void *dst, int64_t bytes, int from, int slot);
err_t shm_push(struct comm *c);
/* No send of this rank is left that needs it to go on. */
bool shm_pushed(const struct shm_comm *s);
err_t shm_wait(struct comm_group *g, int slot);
err_t shm_move(struct comm_group *g, int slot, bool *ret_done);
err_t shm_copy(struct comm_group *g, struct kern_stream *stream, void *dst, const void *src, int64_t bytes);
err_t shm_agree(struct comm_group *g, int64_t *x, enum reduce_op op);
err_t shm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                      int64_t n, enum dtype dtype);

#endif
