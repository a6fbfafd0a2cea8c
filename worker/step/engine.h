/* The engine of one rank in one epoch: the rank's tensors on a device, and the programs that run on them.
 *
 * Life cycle: engine_init compiles and checks the programs. The owner then opens a comm with engine_shared_bytes, and
 * engine_start allocates all memory, because no step may allocate. Parameters come from engine_fill_state or from a
 * checkpoint; then steps can run. The engine lives in its owner's memory and belongs to the compute thread. Other
 * threads use only `cancel` and the abort of the comm. The communication thread uses the buffers of the ops that run on
 * it, and is idle between two calls of this header.
 *
 * A step only queues work on the device's streams. The compute thread waits in three places: before it overwrites a
 * copy of a batch that the device still uses (engine_host.ring); with expert parallelism, in every layer and
 * microbatch, for the numbers of rows that ranks will exchange; and at the end of the program, once for each stream
 * that the program uses, after loss and norm have been copied to the host. With post-validation it also waits after
 * each part of a step (ahead.c). On a device whose memory is host memory the streams are the compute thread itself, so
 * waits return at once; the exception is the communication stream, which may be a thread (comm_thread.h). */
#ifndef DTD_WORKER_STEP_ENGINE_H
#define DTD_WORKER_STEP_ENGINE_H

#include "common/conf/job.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/recorded.h"
#include "common/plan/estimate/traffic_part.h"
#include "common/plan/program.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/comm/comm.h"

#include <stdbool.h>
#include <stdint.h>

/* The source of a batch. The owner defines the order of samples; `index` counts in that order. */
struct engine_feed {
    /* ids[seq], targets[seq]; an error ends the step. A target of -1 does not count in the loss */
    err_t (*sample)(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets);
    void *arg;
    /* How many targets of the sample count in the loss; NULL: all of every sample. Every rank asks for every sample of
     * the global batch, because the mean is over the targets of all ranks, and each must know their number before the
     * first backward. */
    err_t (*count)(void *arg, int64_t index, int64_t *ret);
    /* begins[seq]: the first place of the sample that attention sees from each place; NULL: 0 for all. Called only if
     * the model's attention does not read across documents. */
    err_t (*begins)(void *arg, int64_t index, int32_t *ret);
};

struct engine_config {
    struct dev *dev; /* owned by the caller; stays open until engine_fini */
    const struct job_spec *job;
    const struct graph *graph;
    int rank, world;
    bool eval;                 /* also compile the evaluation program */
    int threads;               /* threads of CPU kernels; 0: one */
    bool comm_thread;          /* run collectives on a thread of their own where the device cannot overlap them */
    bool generate;             /* compile only the generation program, without comm and optimizer */
    bool decode;               /* with `generate`: compile the program that has a cache of keys and values instead. It
                                * has room for train.micro_batch sequences of train.seq tokens, and processes at most
                                * train.global_batch tokens at a time */
    const _Atomic int *cancel; /* read between actions; NULL: the engine cannot be canceled */
};

/* Time per kind of op and per kind of action, measured while a profile is attached. CPU ops are timed by the clock; ops
 * of a device that runs asynchronously are timed by pairs of events. Streams overlap, so the sums may exceed the
 * duration of the step. Time in which one stream waits for another is not counted. */
struct engine_profile {
    int64_t ns[OP_KIND_COUNT], calls[OP_KIND_COUNT];
    int64_t action_ns[ACT_COUNT];
    int64_t part_ns[TRAFFIC_COUNT]; /* of ops that communicate, by purpose */
    int64_t update_ns;              /* of other ops in the norm of gradients and the optimizer */
    struct engine_trace *trace;     /* owned by the caller; NULL: record no times of single ops */
    struct engine_record *record;   /* the same, for every op of several steps */
    bool processor_time;            /* times are the processor time of the compute thread, if it runs all ops itself */
};

/* The timeline of a step. Consecutive ops of one action on one stream form one box; an op that waits for another stream
 * starts a new box, and so does one that follows an op of another stream. Boxes beyond `cap` are dropped. */
struct engine_trace {
    struct forecast_box *boxes;
    int n, cap;
    int64_t origin_ns; /* time zero of the boxes */
};

/* Every op of some steps, in memory that the caller has allocated. Ops beyond `cap` are counted only. Evaluations run
 * another program and are left out, of the sums too. */
struct engine_record {
    struct recorded_event *events;
    int n, cap;
    int64_t lost;
    struct recorded_host *hosts; /* reads of the batch, and what the caller adds */
    int n_hosts, cap_hosts;
    int64_t origin_ns, first; /* time zero; number of the first step */
    const int *first_call;    /* by action: see recorded_program */
};

#define ENGINE_RANGE_NAME 24
struct exchange; /* common/plan/exchange.h */
/* What a program needs besides memory. */
struct program_bindings {
    struct comm_group **groups;
    bool *borrowed;            /* by group: true if the group belongs to the training program */
    int64_t *counts;           /* scratch space of ops that call the comm: elements per member of a group, two lists */
    struct exchange *exchange; /* by stream; NULL: no expert parallelism */
    int64_t *arrived;          /* by layer, then by slot of an action: rows that arrived for this rank's experts */
    int slots;                 /* of actions */
    int32_t *offsets;          /* in the order of `arrived`: offsets_each offsets of the rows that ranks exchange,
                                  pinned; NULL if the host reads those of the device, or there are none */
    int64_t offsets_each;
    size_t offsets_bytes;
    struct comm_part **units;  /* by unit: program.units in the form that the comm takes */
    uint8_t *reads;            /* by chunk: set of enum batch_part that its actions read */
    struct dev_event **events; /* events of the program */
    int n_events;
    uint64_t *tickets; /* by event: ticket of the op that recorded it last, if that op was queued to the communication
                          thread; 0: the op is complete */
    uint8_t *parts;    /* by event: enum traffic_part of that op */
    char (*ranges)[ENGINE_RANGE_NAME]; /* by action: its name in a profiler, such as "forward 3" */
    bool uses[STREAM_COUNT];
    enum op_stream loss_stream, clip_stream; /* stream of the last op that writes loss and clip factor */
};

/* Inputs that the host fills for a microbatch. */
enum batch_part { BATCH_IDS, BATCH_TARGETS, BATCH_ROWS, BATCH_BEGIN, BATCH_PARTS };

/* Host side of a device whose memory the host cannot access: a mirror of SPACE_HOST and ENGINE_RING copies of a batch
 * that are used in turn. Everything is one pinned allocation. */
#define ENGINE_RING 3
struct engine_host {
    void *pinned;
    size_t bytes;
    struct {
        int32_t *part[BATCH_PARTS];
        struct dev_event *copied; /* the device has finished copying this entry */
    } ring[ENGINE_RING];
    int turn;
    void *row;       /* for generation: one row of logits; with a cache a row for each sequence */
    int32_t *sample; /* ids, targets and begins of one whole sample, in ordinary host memory */
};

/* Time of the compute thread in which it did not compute, on devices whose ops are complete when they return: in
 * communication or waiting for it, and reading samples. On other devices all but data_ns remains 0, because an op is
 * only queued; data_ns is then time in which the device may still compute what was queued before. */
struct engine_spent {
    int64_t comm_ns, data_ns;
    int64_t part_ns[TRAFFIC_COUNT]; /* of comm_ns, by purpose */
    int64_t update_ns;              /* in the norm of gradients and the optimizer, without communication */
};

/* Messages that were posted and that no op has waited for yet. */
struct engine_posts {
    struct {
        struct comm_group *group;
        struct comm_post post;
        const void *at; /* address of its buffer */
    } list[COMM_POSTS];
    int n;
};

/* Payload bytes that this rank received from peers (comm_group_bytes), indexed by the set of axes that the group spans:
 * bits 1 << axis, without axes of size 1. */
#define ENGINE_AXIS_SETS (1 << AXIS_COUNT)

struct comm_thread;   /* comm_thread.h */
struct engine_timer;  /* profile.c */
struct engine_verify; /* verify.c */

struct engine {
    struct engine_config config;
    struct program train, eval; /* in generation, `eval` is the generation program and `train` is empty */
    bool has_train, has_eval;
    struct program_bindings train_bindings, eval_bindings;
    const struct kern_ops *kernels;
    struct kern_stream *stream[STREAM_COUNT];
    struct comm *comm;
    struct comm_thread *comm_thread; /* NULL: collectives run on the compute thread or on the device */
    void *memory;                    /* all spaces except those in the comm's shared memory */
    size_t memory_bytes;
    void *space[SPACE_COUNT]; /* on the device */
    size_t space_bytes[SPACE_COUNT];
    bool moments_untouched; /* nothing was written there since dev_alloc, which returns zeros */
    struct engine_host host;
    int64_t step;     /* number of the last finished step of the job; changes only when the whole step has finished */
    int64_t position; /* samples consumed so far, which is the global index of the next step's first sample */
    int64_t updates;  /* updates that the optimizer's moments contain */
    int64_t skipped, skipped_in_row; /* steps of this epoch whose loss or norm was not a number (train.nan skip) */
    struct engine_posts posts;
    /* The owner sets this before engine_step, on all ranks alike, if its next call on the engine after this step,
     * except for a snapshot, is engine_step with the same feed. With post-validation, ranks then begin that step. */
    bool next_is_step;
    struct {
        bool begun;                           /* the next step's first slots have run */
        int64_t axis_bytes[ENGINE_AXIS_SETS]; /* which they received */
        int64_t updates,
            repeated; /* in this epoch: updates with an assumed clip factor; those whose factor was wrong */
    } ahead;
    struct routing *routing;        /* NULL: choices of routers are neither saved nor given */
    struct engine_verify *verify;   /* NULL: replicas are not compared */
    struct engine_profile *profile; /* owned by the caller; NULL: nothing is measured */
    struct engine_spent spent;      /* always measured; the owner sets it to 0 when it likes */
    struct engine_timer *timer;
};

/* Of the routers of a model with experts: the metrics expert_* (common/rpc/metric.h). */
struct engine_routers {
    int n; /* routers; 0: the model has none, and the other fields are 0 */
    double load, entropy, gap;
    double aux, z; /* losses, with their coefficients, of all layers */
    int64_t dropped;
    int64_t rounds; /* the most in which experts computed their rows; -1: they compute them at once */
};

struct engine_result {
    double loss, grad_norm, lr; /* loss: the mean over `targets`; 0 if there are none */
    int64_t targets;            /* of the global batch: those that count in the loss */
    struct engine_routers routers;
    int64_t axis_bytes[ENGINE_AXIS_SETS]; /* in this step */
    bool skipped;                         /* loss or norm was not a number: the step is counted but changed nothing */
};

NODISCARD err_t engine_init(struct engine *e, const struct engine_config *config, struct why *why);
/* The size of shared memory to pass to comm_open. */
size_t engine_shared_bytes(const struct engine *e);
/* What engine_start will allocate on the device, including shared memory. */
size_t engine_device_bytes(const struct engine *e);
/* Uses the comm but does not close it; NULL for generation. */
NODISCARD err_t engine_start(struct engine *e, struct comm *comm, struct why *why);
void engine_fini(struct engine *e); /* legal on a zeroed engine; must precede comm_close */

/* Draws the parameters from their distributions; moments and step become 0. Not for config.decode in bfloat16, whose
 * parameters are narrower than the numbers that are drawn. */
NODISCARD err_t engine_fill_state(struct engine *e, struct why *why);
NODISCARD err_t engine_zero_moments(struct engine *e, struct why *why);
/* One update. The feed is called for samples position .. position + global_batch - 1, of which this rank reads its own
 * microbatches. If no target of the batch counts, loss and gradient are 0, and the optimizer updates with that gradient
 * as with any other. Errors:
 *   ERR_CANCELED  the epoch has ended, whatever failed because of that
 *   ERR_INVALID   loss or norm is not a number; nothing was updated and the step number is unchanged. With train.nan
 *                 skip this is returned only after train.nan_limit such steps in a row
 *   ERR_CORRUPT   this step compares replicas (engine_verify) and some differ */
NODISCARD err_t engine_step(struct engine *e, const struct engine_feed *feed, struct engine_result *ret,
                            struct why *why);
/* Checks that all replicas of every parameter are bit-identical. Collective; all ranks get the same result. ERR_CORRUPT
 * names the first tensor that differs and the ranks that hold it. OK without a check when train.verify_every is 0. */
NODISCARD err_t engine_verify(struct engine *e, struct why *why);
/* Mean loss over the targets that count, of samples first .. end-1 of the feed; the same number on all ranks. NaN if
 * there are none. */
NODISCARD err_t engine_eval(struct engine *e, const struct engine_feed *feed, int64_t first, int64_t end, double *ret,
                            struct why *why);
/* Generation: the logits of the token after ids[0 .. n), n <= seq: vocab elements of program.dtype in host memory that
 * the engine owns. NULL on a rank that holds no logits. */
NODISCARD err_t engine_logits(struct engine *e, const int32_t *ids, int64_t n, const void **ret, struct why *why);

/* Generation with a cache (engine_config.decode). A run is ids[0 .. n) of a sequence, at positions first .. first + n -
 * 1. All runs of a call are of different sequences; together they have at most train.global_batch tokens. The tokens
 * before `first` of the same sequence must have been in earlier calls, and a call with a smaller `first` replaces those
 * from there on. */
struct engine_run {
    int64_t sequence, first, n;
    const int32_t *ids;
};
/* The logits of the tokens after n runs: row i, from element i * *ret_stride on, has the vocab elements of run i, in
 * host memory that the engine owns. NULL on a rank that holds no logits. */
NODISCARD err_t engine_decode(struct engine *e, const struct engine_run *runs, int n, const void **ret,
                              int64_t *ret_stride, struct why *why);

/* Starts measuring; the results of every later step are added to the caller's profile. */
NODISCARD err_t engine_profile_start(struct engine *e, struct engine_profile *profile, struct why *why);
void engine_profile_stop(struct engine *e); /* call between two steps */
/* Whether ops of this kind communicate, so that engine_profile.ns has the time of waiting for peers in them. */
bool engine_op_communicates(enum op_kind kind);
/* Floating-point operations of this rank in a step, by its program; ranks with the same number have the same work. */
double engine_planned_flop(const struct engine *e);
/* The largest number of boxes in a step's timeline. */
int engine_trace_room(const struct engine *e);
/* The largest number of ops that a step runs. */
int engine_record_room(const struct engine *e);
/* Adds work that is not an op, of step `step`, from `from_ns` of the monotonic clock until now. */
void engine_record_host(struct engine_record *r, enum recorded_host_kind kind, int64_t step, int64_t from_ns);

/* Device address of a buffer's first instance. */
void *engine_buffer(const struct engine *e, const struct program *p, int buffer);
/* Host address of a buffer in SPACE_HOST; its content is valid after a step. */
void *engine_host_buffer(const struct engine *e, const struct program *p, int buffer);

#endif
