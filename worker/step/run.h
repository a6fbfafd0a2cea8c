/* Running a program: actions in order, each op by the function that its kind's row names. Compute thread. */
#ifndef DTD_WORKER_STEP_RUN_H
#define DTD_WORKER_STEP_RUN_H

#include "worker/step/engine.h"

/* What an op sees beside itself. */
struct run {
    struct engine *engine;
    const struct program *program;
    struct comm_group **groups;
    const struct action *action;
    int64_t samples; /* of the action's microbatch; program.max_samples where there is none */
    double lr;
    int64_t update; /* 1 for the first of the moments' life */
};

typedef err_t (*run_op_fn)(const struct run *r, const struct op *op);

/* The address of an operand; NULL when it is absent. */
void *run_arg(const struct run *r, const struct op *op, int index);
/* Instance `slot` of an operand's buffer. */
void *run_arg_slot(const struct run *r, const struct op *op, int index, int64_t slot);
static inline int64_t run_dim(const struct run *r, struct graph_dim d)
{
    return program_dim(r->program, d, r->samples);
}

/* Called before the first op of an action; ERR_* ends the run. */
typedef err_t (*run_before_fn)(void *arg, const struct action *a);
NODISCARD err_t run_program(struct run *r, run_before_fn before, void *arg);

extern const run_op_fn run_kernel_ops[OP_KIND_COUNT], run_step_ops[OP_KIND_COUNT];

#endif
