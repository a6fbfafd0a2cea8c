/* The shm backend: the ranks of a node communicate through one memory segment (a memfd that outlives epochs).
 *
 * The segment holds, in this order: a head with one control block per recent epoch; a window per rank, through which
 * collectives copy private buffers block by block; a lane for each ordered pair of ranks, for messages, and the boxes
 * of the lanes; the shared bytes of every rank. The kernel allocates a page when it is first touched, so the boxes of
 * pairs that exchange no messages cost nothing. The control blocks of 16 consecutive epochs are different memory, so a
 * rank that still waits in an ended epoch cannot disturb the next one. Control starts an epoch only after the survivors
 * have left the previous one. */
#ifndef DTD_WORKER_COMM_SHM_SHM_H
#define DTD_WORKER_COMM_SHM_SHM_H

#include "worker/comm/backend.h"

#include <stdatomic.h>
#include <stdbool.h>

#define SHM_MAX_WORLD 256
#define SHM_MAX_GROUPS 1024
#define SHM_EPOCHS 16
/* The fastest block size measured for private buffers: the input and output blocks stay in the second-level cache. */
#define SHM_BLOCK ((size_t)128 << 10)
#define SHM_PAGE 4096
#define SHM_PARTS 512          /* parts of a unit in one call; a longer list is processed in several calls */
#define SHM_PRIVATE UINT64_MAX /* in place of an offset: the buffer is private memory */

/* The state of a barrier. `gen`: bit 0 is set when the epoch is dead, the other bits count generations. Only the last
 * rank to arrive advances the generation. */
struct shm_barrier {
    _Alignas(64) _Atomic uint32_t gen;
    _Atomic uint32_t arrived;
    _Atomic uint32_t sleepers;
};

/* A rank sleeps on its bell while it waits for messages. Bit 0 of `rung` is set when the epoch is dead, the other bits
 * count wake-ups. */
struct shm_bell {
    _Alignas(64) _Atomic uint32_t rung;
    _Atomic uint32_t asleep; /* the rank sleeps or is about to */
};

/* The messages from one rank to another travel through a ring of chunks. A chunk lies in the box of its slot, or is a
 * whole message in the sender's shared bytes. */
#define SHM_SLOTS 4
struct shm_chunk {
    uint64_t at, bytes; /* from the start of the segment */
    uint64_t total;     /* of the message */
};
struct shm_lane {
    _Alignas(64) _Atomic uint32_t filled; /* chunks written since the epoch began; only the sender changes it */
    struct shm_chunk chunk[SHM_SLOTS];
    _Alignas(64) _Atomic uint32_t taken; /* chunks read; only the receiver changes it */
};

struct shm_member {
    uint32_t joined;
    int32_t numa_node; /* comm_config.numa_node */
    uint64_t shared_bytes;
};

struct shm_ctl {
    uint64_t epoch;
    uint32_t world;
    _Atomic uint32_t joined; /* number of ranks that joined; a futex; SHM_DEAD is set when the epoch is dead */
    struct shm_member member[SHM_MAX_WORLD];
    struct shm_barrier barrier[SHM_MAX_GROUPS];
    struct shm_bell bell[SHM_MAX_WORLD];
};
#define SHM_DEAD 0x80000000u

struct shm_head {
    uint64_t magic;
    uint64_t latest; /* newest epoch that any rank opened; written under the file lock */
    _Alignas(SHM_PAGE) struct shm_ctl ctl[SHM_EPOCHS];
};
#define SHM_MAGIC 0x3430306d68735444u /* "DTshm004" */

/* A window has two input and two output blocks, used in turn: its rank writes block b+2 only after all members have
 * read block b. `ranges`: offsets of the rank's buffers from the start of the segment, see shm_publish_ranges. */
struct shm_window {
    _Alignas(SHM_PAGE) uint8_t in[2][SHM_BLOCK];
    uint8_t out[2][SHM_BLOCK];
    uint64_t ranges[SHM_PARTS];
};

/* A message in flight. `through`: all its chunks have been written to slots (send) or read from them (receive). A send
 * from shared bytes is done only when the receiver has read its chunk. */
struct shm_post {
    uint8_t *buffer;
    size_t bytes, at;
    int peer; /* rank */
    bool send, shared, through, done;
    uint32_t last; /* value of the lane's `taken` once the last chunk has been read */
};

struct shm_posts {
    struct shm_post post[COMM_SLOTS];
    int active[COMM_SLOTS], n_active;      /* slots that are not done, in the order of posting */
    uint32_t pass, busy[2][SHM_MAX_WORLD]; /* [send][peer] == pass: an earlier message still occupies this lane */
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
    uint8_t *shared[SHM_MAX_WORLD]; /* shared bytes of every rank */
    size_t shared_bytes;            /* size of this rank's, rounded up to pages */
    struct comm_group *all;
    void *tree_stack; /* scratch memory of shm_tree_reduce, allocated by its first call */
    void *tree_nodes;
    size_t tree_cap;
    struct shm_posts posts;
    int64_t border_bytes; /* that sums on shared buffers moved between this rank and ranks of other NUMA nodes */
    /* Set by a backend that builds on shm (hier), else NULL: a rank that waits calls it every SHM_WATCH_MS. It may kill
     * the epoch. */
    void (*watch)(void *arg);
    void *watch_arg;
};
#define SHM_WATCH_MS 50 /* delay before ranks that wait in shm notice that a connection to another node failed */

struct shm_group {
    struct comm_group base;
    struct shm_barrier *barrier;
    int n_nodes, per_node; /* see nodes.h; n_nodes 1: the group is not divided into NUMA nodes */
};

static inline struct shm_comm *shm_of(const struct comm_group *g)
{
    return (struct shm_comm *)g->comm;
}
static inline struct shm_window *shm_window(const struct comm_group *g, int index)
{
    return &shm_of(g)->windows[g->ranks[index]];
}
/* Counts bytes that this rank reads from or writes to memory of member `index`, if that is in another NUMA node. */
void shm_count_border(const struct comm_group *g, int index, int64_t bytes);
/* Whether [x, x + bytes) lies in this rank's shared bytes; true for an empty range. */
bool shm_is_shared(const struct comm_group *g, const void *x, size_t bytes);
/* Publishes where this rank's n <= SHM_PARTS ranges lie; other members may read them after the next barrier. Returns
 * false if a range lies outside the shared bytes; all ranges are then published as private. */
struct shm_range {
    const void *x;
    size_t bytes;
};
bool shm_publish_ranges(const struct comm_group *g, const struct shm_range *ranges, int n);
/* Address of range k of member `index`; NULL when it is private. */
uint8_t *shm_peer_range(const struct comm_group *g, int index, int k);
/* Whether range 0 of every member is shared. */
bool shm_all_shared(const struct comm_group *g);
/* The slice [lo, hi) of n elements that belongs to member `index`; slices begin at multiples of 64 elements. */
void shm_slice(const struct comm_group *g, int64_t n, int index, int64_t *ret_lo, int64_t *ret_hi);

err_t shm_open_comm(const struct comm_config *config, struct comm **ret, struct why *why);
void shm_close_comm(struct comm *c);
void shm_abort(struct comm *c);
void shm_ctl_kill(struct shm_ctl *ctl);
err_t shm_group_new(struct comm *c, const int *ranks, int n, int me, struct comm_group **ret);
void shm_group_free(struct comm_group *g);
err_t shm_barrier(struct comm_group *g);
/* Sleeps until *word != seen, shm_futex_wake is called, or timeout_ms have passed. Spurious returns are legal. */
void shm_futex_wait(_Atomic uint32_t *word, uint32_t seen, int timeout_ms);
void shm_futex_wake(_Atomic uint32_t *word);
/* Waits for a moment in turn number `turn` of a polling loop: a pause instruction in the first s->spins turns, then
 * sched_yield. Returns false when the caller should sleep. */
bool shm_idle(const struct shm_comm *s, int turn);
/* Sleeps like shm_futex_wait, then calls s->watch if it is set. */
void shm_sleep(const struct shm_comm *s, _Atomic uint32_t *word, uint32_t seen);
/* shm_ctl_kill sets this flag first, so a rank that has seen any other sign of the end also sees this one. */
static inline bool shm_is_dead(const struct shm_comm *s)
{
    return atomic_load(&s->ctl->joined) & SHM_DEAD;
}

/* Copies to memory that another rank will read, and has read before. The caller's next barrier or atomic store
 * publishes the bytes. */
void shm_pass(const struct shm_comm *s, void *to, const void *from, size_t bytes);

/* dst = the sources 0, 1, .. combined in that order, n elements; AVG divides by the number of sources. dst may be one
 * of the sources. With `add` dst = dst + the result, and dst must not be a source. Every element is computed alone, so
 * the result has the same bits however the range is split. */
void shm_reduce(void *dst, const void *const *src, int n_src, int64_t n, enum dtype dtype, enum reduce_op op, bool add);
/* The same in parts, for sources on several nodes. A partial sum is of the type of shm_partial_type, so that bfloat16
 * is summed in float32 over all nodes. acc = (first ? nothing : acc, then) the sources; AVG adds like SUM. */
enum dtype shm_partial_type(enum dtype dtype);
void shm_reduce_onto(void *acc, bool first, const void *const *src, int n_src, int64_t n, enum dtype dtype,
                     enum reduce_op op);
/* Turns a partial sum into n elements of the dtype at the same address, divided by `by`: 1 unless the op is AVG. */
void shm_finish(void *acc, int64_t n, enum dtype dtype, int by);

/* Host memory only. Each call is complete on return; `stream` is not used. */
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
/* Whether every send of this rank can complete without further calls by this rank. */
bool shm_pushed(const struct shm_comm *s);
err_t shm_wait(struct comm_group *g, int slot);
err_t shm_move(struct comm_group *g, int slot, bool *ret_done);
err_t shm_copy(struct comm_group *g, struct kern_stream *stream, void *dst, const void *src, int64_t bytes);
err_t shm_agree(struct comm_group *g, int64_t *x, enum reduce_op op);
err_t shm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                      int64_t n, enum dtype dtype);

#endif
