/* The interpreter. It knows nothing of models: kinds of ops are rows of two tables (kernels, and what a step does
 * between them), actions are ranges of ops. On a CPU all streams are the calling thread, so program order satisfies
 * every wait. */
#include "worker/step/run.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <assert.h>
#include <stdatomic.h>

void *run_arg_slot(const struct run *r, const struct op *op, int index, int64_t slot)
{
    const struct operand *a = &op->arg[index];
    if (a->buffer < 0)
        return NULL;
    const struct buffer *b = &r->program->buffers[a->buffer];
    return (uint8_t *)r->engine->space[b->space] + b->offset + slot * b->slot_bytes +
           (run_dim(r, a->offset) + a->col) * (int64_t)dtype_bytes(b->dtype);
}

void *run_arg(const struct run *r, const struct op *op, int index)
{
    const struct operand *a = &op->arg[index];
    int64_t slot = 0;
    if (a->buffer >= 0 && r->program->buffers[a->buffer].slot_index == SLOT_ACTION)
        slot = r->action->slot;
    if (a->buffer >= 0 && r->program->buffers[a->buffer].slot_index == SLOT_MICRO && r->action->micro >= 0)
        slot = r->action->micro;
    return run_arg_slot(r, op, index, slot);
}

static err_t run_op(const struct run *r, const struct op *op)
{
    run_op_fn fn = run_kernel_ops[op->kind] ? run_kernel_ops[op->kind] : run_step_ops[op->kind];
    assert(fn);
    struct engine_profile *profile = r->engine->profile;
    if (!profile)
        return fn(r, op);
    int64_t start = clock_mono_ns();
    err_t err = fn(r, op);
    profile->ns[op->kind] += clock_mono_ns() - start;
    profile->calls[op->kind]++;
    return err;
}

static err_t run_action(struct run *r, const struct action *a)
{
    const struct program *p = r->program;
    r->action = a;
    r->samples = a->micro >= 0 && a->micro < p->n_micros ? p->micros[a->micro].samples : p->max_samples;
    for (int i = 0; i < a->n_ops; i++) {
        err_t err = run_op(r, &p->ops[a->first_op + i]);
        if (err) {
            if (err != ERR_CANCELED)
                log_error("op_failed action=%s micro=%d op=%s index=%d error=%s", action_name(a->kind), a->micro,
                          op_name(p->ops[a->first_op + i].kind), a->first_op + i, err_name(err));
            return err;
        }
    }
    return OK;
}

err_t run_program(struct run *r, run_before_fn before, void *arg)
{
    const _Atomic int *cancel = r->engine->config.cancel;
    for (int i = 0; i < r->program->n_actions; i++) {
        const struct action *a = &r->program->actions[i];
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            return ERR_CANCELED;
        err_t err = before(arg, a);
        if (!err)
            err = run_action(r, a);
        if (err)
            return err;
    }
    return kern_stream_sync(r->engine->stream);
}
