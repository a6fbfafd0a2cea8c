/* The stand-in for NCCL: what its files share.
 *
 * The ranks of a communicator, threads or processes, meet in a piece of POSIX shared memory that is named after the
 * unique id, and every collective goes through it piece by piece: each rank writes what it contributes, waits until all
 * have, takes what it wants, and may write the next piece when all have taken. A collective is an item of its stream
 * (queue.h) that never blocks: it goes as far as the others are and is tried again. */
#ifndef DTD_TESTS_CUDA_HOST_NCCL_INNER_H
#define DTD_TESTS_CUDA_HOST_NCCL_INNER_H

#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <nccl.h>
#include <stdatomic.h>

#define NCCL_MAX_RANKS 64
#define NCCL_MAX_SPLITS 256
#define NCCL_MAX_MESSAGES 256
#define NCCL_PIECE_BYTES ((size_t)64 << 10) /* of one rank */
#define NCCL_LANE_BYTES ((size_t)4 << 10)

enum nccl_kind { KIND_ALL_REDUCE, KIND_ALL_GATHER, KIND_REDUCE_SCATTER, KIND_BROADCAST, KIND_REDUCE, KIND_COUNT };

/* What all ranks of a communicator must agree on. */
struct nccl_call {
    enum nccl_kind kind;
    size_t count; /* elements: of the result, of a part for a gather and a scatter */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};

/* One rank's place in the segment. A split is said when `splits` counts it. */
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
    _Atomic uint64_t written, taken; /* pieces so far */
};

/* From one rank to another: a chunk lies there while `written` is ahead of `taken`. */
struct nccl_lane {
    _Alignas(64) _Atomic uint64_t written, taken;
    size_t total; /* of the message */
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
    char name[128]; /* of the segment */
    int rank, n, device;
    struct nccl_segment *segment; /* NULL: the split's members are not known yet */
    enum nccl_state state;
    int polls;          /* how often it still says that it is in progress */
    int refs;           /* the program's, and one for each item */
    bool gone, aborted; /* the program has let it go; without results */
    int n_splits;
    int color;
    struct ncclComm *parent, *child; /* while they split */
    uint64_t pieces;                 /* of this rank, so far */
    int queued;                      /* items that are not done */
    struct nccl_launch *launches, **launch_tail;
    struct nccl_batch *batch;     /* of the NCCL group under way */
    uint64_t p2p_given, p2p_over; /* batches so far */
    char error[256];
};

/* ---- nccl_segment.c ---- */

/* Maps and takes the seat. */
bool nccl_segment_join(struct ncclComm *c);
void nccl_segment_leave(struct ncclComm *c);
bool nccl_segment_all_here(const struct ncclComm *c);
/* Two ranks on one device of one host: writes the sentence. */
bool nccl_segment_duplicate(struct ncclComm *c);

/* ---- nccl_work.c ---- */

/* Gives the collective to the stream. The lock is held. */
void nccl_work_submit(struct ncclComm *c, cudaStream_t stream, const struct nccl_call *call, const void *from,
                      void *to);
void nccl_comm_release(struct ncclComm *c);
size_t nccl_type_bytes(ncclDataType_t type);

/* ---- nccl_p2p.c ---- */

/* Gives the batch, which becomes its own, to the stream. The lock is held. */
void nccl_p2p_submit(struct ncclComm *c, cudaStream_t stream, struct nccl_batch *batch);

#endif
