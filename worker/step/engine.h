/* The engine: one rank of one epoch, as tensors and the programs that run over them.
 *
 * Life: engine_init compiles and checks, the owner opens a comm with engine_shared_bytes, engine_start allocates
 * everything there will be (nothing is allocated in a step), then either engine_fill_state or a load gives the
 * parameters, then steps. Lives in its owner's memory, on the compute thread; only `cancel` and the comm's abort are
 * touched by another thread. */
#ifndef DTD_WORKER_STEP_ENGINE_H
#define DTD_WORKER_STEP_ENGINE_H

#include "common/conf/job.h"
#include "common/plan/program.h"
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
    const struct job_spec *job;
    const struct graph *graph;
    int rank, world;
    bool eval;                 /* compile the evaluation program too */
    int threads;               /* of the kernels; 0: one */
    bool generate;             /* only the generation program: no comm, no optimizer */
    const _Atomic int *cancel; /* looked at between actions; NULL: never */
};

/* Time spent in each kind of op, when somebody wants to know. */
struct engine_profile {
    int64_t ns[OP_KIND_COUNT], calls[OP_KIND_COUNT];
};

struct engine {
    struct engine_config config;
    struct program train, eval; /* of a generator, `eval` is the generation program and `train` is empty */
    bool has_train, has_eval;
    const struct kern_ops *kernels;
    struct kern_stream *stream;
    struct comm *comm;
    struct comm_group **train_groups, **eval_groups;
    void *space[SPACE_COUNT];
    size_t space_bytes[SPACE_COUNT];
    int64_t step;                   /* last finished update of the job; flips after the whole update */
    int64_t position;               /* samples consumed so far: the global sample index of the next step's first */
    struct engine_profile *profile; /* the owner's; NULL: not measured */
    int64_t updates;                /* updates that the optimizer's moments have seen */
};

struct engine_result {
    double loss, grad_norm, lr;
};

NODISCARD err_t engine_init(struct engine *e, const struct engine_config *config, struct why *why);
/* What comm_open must be given. */
size_t engine_shared_bytes(const struct engine *e);
/* Takes the comm for use, not for closing; NULL for a generator. */
NODISCARD err_t engine_start(struct engine *e, struct comm *comm, struct why *why);
void engine_fini(struct engine *e); /* legal on a zeroed one; before comm_close */

/* Parameters by their distributions, moments zero, step 0. */
void engine_fill_state(struct engine *e);
/* One update. The feed is asked for samples position .. position + global_batch - 1, of which this rank takes its
 * microbatches. ERR_CANCELED when the epoch has ended. ERR_INVALID when loss or norm is not a number: then nothing was
 * updated and the step number stands. */
NODISCARD err_t engine_step(struct engine *e, const struct engine_feed *feed, struct engine_result *ret,
                            struct why *why);
/* Mean loss over samples first .. end-1 of the feed, the same number on all ranks. */
NODISCARD err_t engine_eval(struct engine *e, const struct engine_feed *feed, int64_t first, int64_t end, double *ret,
                            struct why *why);
/* Generation: next-token logits after ids[0 .. n), n <= seq; points into the engine's memory, vocab elements of
 * program.dtype. */
NODISCARD err_t engine_logits(struct engine *e, const int32_t *ids, int64_t n, const void **ret, struct why *why);

/* The address of a buffer's first instance. */
void *engine_buffer(const struct engine *e, const struct program *p, int buffer);

#endif
