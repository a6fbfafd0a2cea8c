/* Running a program: actions in order, each op by the function that its kind's row names, on the stream that it names.
 * Compute thread; ops that call the comm may run on another (comm_thread.h). */
#ifndef DTD_WORKER_STEP_RUN_H
#define DTD_WORKER_STEP_RUN_H

#include "worker/step/engine.h"

/* What an op sees beside itself. */
struct run {
    struct engine *engine;
    const struct program *program;
    const struct engine_rig *rig;
    const struct action *action;
    int64_t samples; /* of the action's microbatch; program.max_samples where there is none */
    double lr;
    int64_t update;      /* 1 for the first of the moments' life */
    int64_t *axis_bytes; /* ENGINE_AXIS_SETS numbers, which run_program adds to; NULL: nobody asks */
};

typedef err_t (*run_op_fn)(const struct run *r, const struct op *op);

struct span; /* profile.c: where the times of an op are written down */
/* The op itself, measured where somebody measures: on the compute thread, or on the communication thread. */
NODISCARD err_t run_op_now(const struct run *r, const struct op *op, run_op_fn fn, struct span *span);

/* The address of an operand; NULL when it is absent. */
void *run_arg(const struct run *r, const struct op *op, int index);
/* Instance `slot` of an operand's buffer. */
void *run_arg_slot(const struct run *r, const struct op *op, int index, int64_t slot);
/* Which instance of a buffer an action means. */
int64_t run_slot(const struct buffer *b, const struct action *a);
static inline int64_t run_dim(const struct run *r, struct graph_dim d)
{
    return program_dim(r->program, d, r->samples);
}
static inline struct kern_stream *run_stream(const struct run *r, const struct op *op)
{
    return r->engine->stream[op->stream];
}
/* What of an op is common to all kinds: its waits before it, its record behind it. */
NODISCARD err_t run_waits(const struct run *r, const struct op *op);
NODISCARD err_t run_record(const struct run *r, const struct op *op);

/* Called before the first op of an action; ERR_* ends the run. */
typedef err_t (*run_before_fn)(void *arg, const struct action *a);
/* All actions but the snapshot, then the scalars to the host, then waits for the streams. ERR_CANCELED when the epoch
 * has ended meanwhile. */
NODISCARD err_t run_program(struct run *r, run_before_fn before, void *arg, struct why *why);

/* The buffer of a part of the batch, -1 where the program has none. */
static inline int batch_buffer(const struct program *p, enum batch_part part)
{
    return part == BATCH_IDS ? p->ids_buffer : part == BATCH_TARGETS ? p->targets_buffer : p->rows_buffer;
}

NODISCARD err_t rig_init(struct engine *e, const struct program *p, struct engine_rig *ret, struct why *why);
void rig_fini(struct engine *e, const struct program *p, struct engine_rig *rig);

/* ---- host.c ---- */

NODISCARD err_t host_init(struct engine *e, struct why *why);
void host_fini(struct engine *e);
/* Where the parts of the action's microbatch are to be written that its chunk reads, NULL for others; waits until the
 * device has let go of that place. */
struct host_batch {
    int32_t *part[BATCH_PARTS];
};
NODISCARD err_t host_batch(struct engine *e, const struct program *p, const struct engine_rig *rig,
                           const struct action *a, struct host_batch *ret, struct why *why);
/* They are written: `n` tokens of each go to the device on the compute stream. */
NODISCARD err_t host_batch_written(struct engine *e, const struct program *p, const struct action *a,
                                   const struct host_batch *b, int64_t n);
/* Queues the scalars' way back, each behind its last writer. */
NODISCARD err_t host_fetch(struct engine *e, const struct program *p, const struct engine_rig *rig);

/* ---- verify.c ---- */

/* Nothing where there is nothing to compare. */
NODISCARD err_t verify_init(struct engine *e, struct why *why);
void verify_fini(struct engine *e);

/* ---- profile.c ---- */

void profile_free(struct engine *e);
/* Before the first action. */
NODISCARD err_t profile_begin(struct engine *e);
/* Room for the op's times, taken in the order of the program; NULL: none is needed. */
struct span *profile_span(const struct run *r, const struct op *op);
/* While there is a profile. Two threads may be in it, each with a span of its own. */
NODISCARD err_t profile_op(const struct run *r, const struct op *op, run_op_fn fn, struct span *span);
/* After the streams were waited for. */
void profile_collect(const struct run *r);

extern const run_op_fn run_kernel_ops[OP_KIND_COUNT], run_step_ops[OP_KIND_COUNT], run_comm_ops[OP_KIND_COUNT];

#endif
