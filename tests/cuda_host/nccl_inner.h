/* Shared by the files of the stand-in for NCCL.
 *
 * The ranks of a communicator, threads or processes, share a POSIX shared memory segment that is named after the unique
 * id. Every collective passes through it piece by piece: each rank writes its contribution, waits until all have
 * written, reads what it needs, and may write the next piece when all have read. A collective is an item of its stream
 * (queue.h) that never blocks: it proceeds as far as the other ranks allow and is tried again. */
#ifndef DTD_TESTS_CUDA_HOST_NCCL_INNER_H
#define DTD_TESTS_CUDA_HOST_NCCL_INNER_H

#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <nccl.h>
#include <stdatomic.h>

#define NCCL_MAX_RANKS 64
#define NCCL_MAX_SPLITS 256
#define NCCL_MAX_MESSAGES 256
#define NCCL_PIECE_BYTES ((size_t)64 << 10) /* piece of one rank */
#define NCCL_LANE_BYTES ((size_t)4 << 10)

enum nccl_kind { KIND_ALL_REDUCE, KIND_ALL_GATHER, KIND_REDUCE_SCATTER, KIND_BROADCAST, KIND_REDUCE, KIND_COUNT };

/* The arguments that must be equal on all ranks of a communicator. */
struct nccl_call {
    enum nccl_kind kind;
    size_t count; /* elements of the result; for a gather and a scatter, of a part */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};

/* One rank's part of the segment. The arguments of a split are valid once `splits` has counted it. */
struct nccl_seat {
    _Atomic int here;
    char host[128];
    int device;
    _Atomic int finalized;
    _Atomic int splits;
    struct {
        int color, key;
    } split[NCCL_MAX_SPLITS];
    struct nccl_call call;
    _Atomic uint64_t written, taken; /* number of pieces so far */
};

/* Channel from one rank to another: it holds a chunk while `written` is ahead of `taken`. */
struct nccl_lane {
    _Alignas(64) _Atomic uint64_t written, taken;
    size_t total; /* bytes of the message */
    uint8_t chunk[NCCL_LANE_BYTES];
};

struct nccl_segment {
    struct nccl_seat seat[NCCL_MAX_RANKS];
    _Alignas(64) uint8_t piece[]; /* NCCL_PIECE_BYTES for each rank, then a lane for each pair, from * n + to */
};

/* Sends and receives of one NCCL group on one stream. */
struct nccl_message {
    uint8_t *at;
    size_t bytes, done;
    int peer;
    bool send, over;
};
struct nccl_batch {
    cudaStream_t stream;
    int n;
    struct nccl_message message[NCCL_MAX_MESSAGES];
};

enum nccl_state {
    STATE_JOINING,
    STATE_READY,
    STATE_SPLITTING,
    STATE_LAUNCHING,
    STATE_FINALIZING,
    STATE_FINALIZED,
    STATE_BROKEN
};

struct ncclComm {
    char name[128]; /* name of the segment */
    int rank, n, device;
    struct nccl_segment *segment; /* NULL: the members of the split are not known yet */
    enum nccl_state state;
    int polls;          /* number of polls that still report progress */
    int refs;           /* references: one of the program, and one for each item */
    bool gone, aborted; /* gone: the program has freed it; aborted: it gives no results */
    int n_splits;
    int color;
    struct ncclComm *parent, *child; /* during a split */
    uint64_t pieces;                 /* pieces of this rank so far */
    int queued;                      /* number of items that are not done */
    struct nccl_launch *launches, **launch_tail;
    struct nccl_batch *batch;     /* the NCCL group in progress */
    uint64_t p2p_given, p2p_over; /* number of batches so far */
    char error[256];
};

/* ---- nccl_segment.c ---- */

/* Maps the segment and takes the rank's seat. */
bool nccl_segment_join(struct ncclComm *c);
void nccl_segment_leave(struct ncclComm *c);
bool nccl_segment_all_here(const struct ncclComm *c);
/* Whether two ranks share one device of one host; if so, writes the error sentence. */
bool nccl_segment_duplicate(struct ncclComm *c);

/* ---- nccl_work.c ---- */

/* Queues the collective on the stream. The caller holds the lock. */
void nccl_work_submit(struct ncclComm *c, cudaStream_t stream, const struct nccl_call *call, const void *from,
                      void *to);
void nccl_comm_release(struct ncclComm *c);
size_t nccl_type_bytes(ncclDataType_t type);

/* ---- nccl_p2p.c ---- */

/* Queues the batch, which it then owns, on the stream. The caller holds the lock. */
void nccl_p2p_submit(struct ncclComm *c, cudaStream_t stream, struct nccl_batch *batch);

#endif
