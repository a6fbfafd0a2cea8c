/* The engine: one rank of one epoch, as tensors on a device and the programs that run over them.
 *
 * Life: engine_init compiles and checks, the owner opens a comm with engine_shared_bytes, engine_start allocates
 * everything there will be (nothing is allocated in a step), then either engine_fill_state or a load gives the
 * parameters, then steps. Lives in its owner's memory, on the compute thread; only `cancel` and the comm's abort are
 * touched by another thread, and by the communication thread what the ops of a program name that run on it. Between
 * two calls of this header that thread does nothing.
 *
 * A step only queues work on the device's streams. The thread waits in two places: before it fills a copy of a batch
 * whose last use is not over (engine's ring), and once at the end of the program, for each stream that the program
 * uses, when loss and norm have come back. On a device whose memory is the host's the streams are the thread itself,
 * and what they wait for is done: but for the communication stream, which may be a thread (comm_thread.h). */
#ifndef DTD_WORKER_STEP_ENGINE_H
#define DTD_WORKER_STEP_ENGINE_H

#include "common/conf/job.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/program.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/comm/comm.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a batch comes from: sample `index` of the order that the owner has in mind. */
struct engine_feed {
    /* ids[seq], targets[seq]; an error ends the step */
    err_t (*sample)(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets);
    void *arg;
};

struct engine_config {
    struct dev *dev; /* the owner's; open until engine_fini */
    const struct job_spec *job;
    const struct graph *graph;
    int rank, world;
    bool eval;                 /* compile the evaluation program too */
    int threads;               /* of a CPU's kernels; 0: one */
    bool comm_thread;          /* collectives run beside the computation, where the device alone would not let them */
    bool generate;             /* only the generation program: no comm, no optimizer */
    const _Atomic int *cancel; /* looked at between actions; NULL: never */
};

/* Time spent in each kind of op and of action, when somebody wants to know: by the clock on a CPU, between timed events
 * on a device that runs beside the thread. Where streams overlap sums may be more than the step; what one waits for
 * another is in none. */
struct engine_profile {
    int64_t ns[OP_KIND_COUNT], calls[OP_KIND_COUNT];
    int64_t action_ns[ACT_COUNT];
    struct engine_trace *trace; /* the owner's; NULL: nobody asks what was when */
};

/* What was when: ops of one action that follow one another on a stream are one box; an op that waits for another
 * stream begins a new one, and so does one behind an op of another stream. What finds no room is left out. */
struct engine_trace {
    struct forecast_box *boxes;
    int n, cap;
    int64_t origin_ns; /* the moment from which boxes count, by clock_mono_ns */
};

#define ENGINE_RANGE_NAME 24
/* What a program needs beside memory. */
struct engine_rig {
    struct comm_group **groups;
    bool *borrowed;            /* by group: the training program's */
    int64_t *counts;           /* scratch of ops that call the comm: elements by member of a group */
    struct comm_part **units;  /* by unit: program.units for the comm */
    uint8_t *reads;            /* by chunk: a set of enum batch_part that its actions read */
    struct dev_event **events; /* the program's */
    int n_events;
    uint64_t *tickets; /* by event: of the op that recorded it last, where that was queued to the communication
                        * thread; 0: it is over */
    char (*ranges)[ENGINE_RANGE_NAME]; /* by action: "forward 3" */
    bool uses[STREAM_COUNT];
    enum op_stream loss_stream, clip_stream; /* where the last writer of each runs */
};

/* What the host fills for a microbatch. */
enum batch_part { BATCH_IDS, BATCH_TARGETS, BATCH_ROWS, BATCH_PARTS };

/* Where the host has what it fills and reads, on a device whose memory it does not see: a mirror of SPACE_HOST, and
 * copies of a batch that take turns. All of it is one pinned allocation. */
#define ENGINE_RING 3
struct engine_host {
    void *pinned;
    size_t bytes;
    struct {
        int32_t *part[BATCH_PARTS];
        struct dev_event *copied; /* the device has its own */
    } ring[ENGINE_RING];
    int turn;
    void *row;       /* of logits, for a generator */
    int32_t *sample; /* ids and targets of one whole sample; the processor's */
};

/* Messages that have been posted and not been waited for. */
struct engine_posts {
    struct {
        struct comm_group *group;
        struct comm_post post;
        const void *at; /* where it lies */
    } list[COMM_POSTS];
    int n;
};

struct comm_thread;   /* comm_thread.h */
struct engine_timer;  /* profile.c */
struct engine_verify; /* verify.c */

struct engine {
    struct engine_config config;
    struct program train, eval; /* of a generator, `eval` is the generation program and `train` is empty */
    bool has_train, has_eval;
    struct engine_rig train_rig, eval_rig;
    const struct kern_ops *kernels;
    struct kern_stream *stream[STREAM_COUNT];
    struct comm *comm;
    struct comm_thread *comm_thread; /* NULL: there is none */
    void *memory;                    /* all spaces, but for those that lie in the comm's */
    size_t memory_bytes;
    void *space[SPACE_COUNT]; /* on the device */
    size_t space_bytes[SPACE_COUNT];
    struct engine_host host;
    int64_t step;                    /* last finished update of the job; flips after the whole update */
    int64_t position;                /* samples consumed so far: the global sample index of the next step's first */
    int64_t updates;                 /* updates that the optimizer's moments have seen */
    int64_t skipped, skipped_in_row; /* steps of this epoch that were not numbers (train.nan skip) */
    struct engine_posts posts;
    struct engine_verify *verify;   /* NULL: replicas are not compared */
    struct engine_profile *profile; /* the owner's; NULL: not measured */
    struct engine_timer *timer;
};

/* Payload that peers have brought to this rank (comm_group_bytes), by the axes that the groups span: a set of
 * 1 << axis, axes of size 1 left out. */
#define ENGINE_AXIS_SETS (1 << AXIS_COUNT)

struct engine_result {
    double loss, grad_norm, lr;
    int64_t axis_bytes[ENGINE_AXIS_SETS]; /* of this step */
    bool skipped;                         /* loss or norm is not a number: the step counts, and changed nothing */
};

NODISCARD err_t engine_init(struct engine *e, const struct engine_config *config, struct why *why);
/* What comm_open must be given. */
size_t engine_shared_bytes(const struct engine *e);
/* What engine_start will allocate on the device, what is shared included. */
size_t engine_device_bytes(const struct engine *e);
/* Takes the comm for use, not for closing; NULL for a generator. */
NODISCARD err_t engine_start(struct engine *e, struct comm *comm, struct why *why);
void engine_fini(struct engine *e); /* legal on a zeroed one; before comm_close */

/* Parameters by their distributions, moments zero, step 0. */
NODISCARD err_t engine_fill_state(struct engine *e, struct why *why);
NODISCARD err_t engine_zero_moments(struct engine *e, struct why *why);
/* One update. The feed is asked for samples position .. position + global_batch - 1, of which this rank takes its
 * microbatches. ERR_CANCELED when the epoch has ended, whatever failed because of it. ERR_INVALID when loss or norm is
 * not a number: then nothing was updated and the step number stands; with train.nan skip only once that has happened
 * train.nan_limit times in a row. ERR_CORRUPT when it was time to compare replicas (engine_verify) and some differ. */
NODISCARD err_t engine_step(struct engine *e, const struct engine_feed *feed, struct engine_result *ret,
                            struct why *why);
/* Every parameter of every rank has the bits of its replicas; collective, the same answer on all ranks. ERR_CORRUPT
 * names the first tensor that differs, and the ranks. OK where nothing was made for it: train.verify_every 0. */
NODISCARD err_t engine_verify(struct engine *e, struct why *why);
/* Mean loss over samples first .. end-1 of the feed, the same number on all ranks. */
NODISCARD err_t engine_eval(struct engine *e, const struct engine_feed *feed, int64_t first, int64_t end, double *ret,
                            struct why *why);
/* Generation: next-token logits after ids[0 .. n), n <= seq; points into the engine's memory of the host, vocab
 * elements of program.dtype. NULL on a rank that has none of them. */
NODISCARD err_t engine_logits(struct engine *e, const int32_t *ids, int64_t n, const void **ret, struct why *why);

/* Measures from now on; the owner's profile is added to after every step. */
NODISCARD err_t engine_profile_start(struct engine *e, struct engine_profile *profile, struct why *why);
void engine_profile_stop(struct engine *e); /* between two steps */
/* Boxes that a step has at most. */
int engine_trace_room(const struct engine *e);

/* The address of a buffer's first instance, on the device. */
void *engine_buffer(const struct engine *e, const struct program *p, int buffer);
/* The same of a buffer in SPACE_HOST as the host sees it after a step. */
void *engine_host_buffer(const struct engine *e, const struct program *p, int buffer);

#endif
