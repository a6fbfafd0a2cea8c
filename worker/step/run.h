/* Runs a program: actions in order, each op by the function in the table row of its kind, on the stream that the op
 * names. Compute thread; ops that call the comm may run on the communication thread (comm_thread.h). */
#ifndef DTD_WORKER_STEP_RUN_H
#define DTD_WORKER_STEP_RUN_H

#include "worker/step/engine.h"

/* The context of an op. */
struct run {
    struct engine *engine;
    const struct program *program;
    const struct program_bindings *bindings;
    const struct action *action;
    int64_t samples;               /* samples in the action's microbatch; program.max_samples if the action has none */
    const struct engine_run *runs; /* decoding: the runs of tokens, */
    int n_runs;                    /* their number, else 0, */
    int64_t tokens;                /* and that of their tokens */
    double lr;
    double loss_scale;   /* 1 / (targets of the global batch that count in the loss); 0: there are none */
    int64_t step;        /* number of the step, from 1 */
    int64_t update;      /* number of the update since the moments were zero, from 1 */
    int64_t *axis_bytes; /* ENGINE_AXIS_SETS numbers that run_program adds to; NULL: not counted */
};

typedef err_t (*run_op_fn)(const struct run *r, const struct op *op);

struct op_span; /* profile.c: the times of one op */
/* Runs the op, and measures it while a profile is attached. Compute thread or communication thread. */
NODISCARD err_t run_op_now(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *span);

/* The address of an operand; NULL when it is absent. */
void *run_arg(const struct run *r, const struct op *op, int index);
/* The address of an operand in instance `slot` of its buffer. */
void *run_arg_slot(const struct run *r, const struct op *op, int index, int64_t slot);
/* The index of the buffer instance that an action uses. */
int64_t run_slot(const struct buffer *b, const struct action *a);
static inline int64_t run_dim(const struct run *r, struct graph_dim d)
{
    return d.sym == SYM_RUNS ? d.factor * r->n_runs : program_dim(r->program, d, r->samples);
}
/* The first dimension of an op: of rows that arrived for experts, how many there are in this microbatch. */
int64_t run_rows(const struct run *r, const struct op *op);
static inline struct kern_stream *run_stream(const struct run *r, const struct op *op)
{
    return r->engine->stream[op->stream];
}
/* The kernels for elements of the wide type, such as gradients. */
static inline const struct kern_ops *run_wide_kernels(const struct run *r)
{
    const struct kern_ops *k = r->engine->kernels;
    return k->wide == k->dtype ? k : dev_kernels(r->engine->config.dev, k->wide);
}
/* Every op waits for its events before it runs and records its own event afterwards. */
NODISCARD err_t run_waits(const struct run *r, const struct op *op);
NODISCARD err_t run_record(const struct run *r, const struct op *op);

/* Whether the epoch has ended. */
bool run_canceled(const struct run *r);

/* What the host does before the first op of an action; an error ends the run. */
struct run_host {
    err_t (*before)(void *arg, const struct action *a);
    void *arg;
};
/* Runs all actions that every step runs, copies the scalars to the host and waits for the streams. ERR_CANCELED when
 * the epoch has ended in the meantime. */
NODISCARD err_t run_program(struct run *r, const struct run_host *host, struct why *why);

/* The same in parts: run_start, any number of run_part, run_fetch, run_end. `fresh`: no message of an earlier run is in
 * flight. A part is actions [first, end); it waits for the streams. */
NODISCARD err_t run_start(struct run *r, bool fresh);
NODISCARD err_t run_part(struct run *r, int first, int end, const struct run_host *host, struct why *why);
NODISCARD err_t run_fetch(struct run *r, struct why *why);
void run_end(const struct run *r);
/* Adds `sign` times the bytes that the groups have received so far, by the axes of size above 1 that a group spans. */
void run_count_bytes(const struct run *r, int sign);

/* The buffer of a part of the batch; -1: the program does not read that part. */
static inline int batch_buffer(const struct program *p, enum batch_part part)
{
    const int buffers[BATCH_PARTS] = {p->ids_buffer, p->targets_buffer, p->rows_buffer, p->begin_buffer};
    return buffers[part];
}

NODISCARD err_t program_bindings_init(struct engine *e, const struct program *p, struct program_bindings *ret,
                                      struct why *why);
void program_bindings_fini(struct engine *e, const struct program *p, struct program_bindings *bindings);

/* ---- host.c ---- */

NODISCARD err_t host_init(struct engine *e, struct why *why);
void host_fini(struct engine *e);
/* Where to write each part of the action's microbatch that its chunk reads; NULL for other parts. host_batch waits
 * until the device has finished with that memory. */
struct host_batch {
    int32_t *part[BATCH_PARTS];
};
NODISCARD err_t host_batch(struct engine *e, const struct program *p, const struct program_bindings *bindings,
                           const struct action *a, struct host_batch *ret, struct why *why);
/* Call after writing them: queues the copy of `n` tokens of each part to the device on the compute stream. */
NODISCARD err_t host_batch_written(struct engine *e, const struct program *p, const struct action *a,
                                   const struct host_batch *b, int64_t n);
/* Queues the copies of the scalars to the host, each after its last writer. */
NODISCARD err_t host_fetch(struct engine *e, const struct program *p, const struct program_bindings *bindings);

/* ---- ahead.c ---- */

/* Runs a step of a program with program.validate, in place of run_program. `next` runs the first slots of the next
 * step, with `next_host`; NULL: none. */
NODISCARD err_t ahead_step(struct run *r, struct run *next, const struct run_host *host,
                           const struct run_host *next_host, struct why *why);
/* Forgets slots that ran ahead, if there are any. All ranks do it between the same two steps. */
NODISCARD err_t ahead_discard(struct engine *e);

/* ---- verify.c ---- */

/* Does nothing if there are no replicas to compare. */
NODISCARD err_t verify_init(struct engine *e, struct why *why);
void verify_fini(struct engine *e);

/* ---- profile.c ---- */

void profile_free(struct engine *e);
/* Call before the first action. */
NODISCARD err_t profile_begin(struct engine *e);
/* Reserves a span for the op's times; call in program order. NULL: no span is needed. */
struct op_span *profile_span(const struct run *r, const struct op *op);
/* Runs and measures the op; requires a profile. Two threads may call it at once, each with its own span. */
NODISCARD err_t profile_op(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *span);
/* Call after waiting for the streams. */
void profile_collect(const struct run *r);
/* Around the reading of a batch; without a record they do nothing. */
int64_t profile_data_begin(const struct engine *e);
void profile_data_end(const struct engine *e, int64_t step, int64_t begin);

/* Ops between the ranks of expert parallelism, for the table of ops that call the comm. */
NODISCARD err_t run_exchange(const struct run *r, const struct op *op);
NODISCARD err_t run_gather_tokens(const struct run *r, const struct op *op);
NODISCARD err_t run_borrow(const struct run *r, const struct op *op);
NODISCARD err_t run_give_back(const struct run *r, const struct op *op);

extern const run_op_fn run_kernel_ops[OP_KIND_COUNT], run_expert_ops[OP_KIND_COUNT], run_step_ops[OP_KIND_COUNT],
    run_comm_ops[OP_KIND_COUNT];

#endif
