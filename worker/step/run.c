/* The interpreter. It is independent of models: kinds of ops are rows of three tables (kernels, communication, and ops
 * between the kernels of a step); actions are ranges of ops.
 *
 * Everything is queued in the order of actions, so a wait for an event always refers to its latest record. The thread
 * checks nothing in between; an error on a stream is reported when the stream is waited for. A run that is cut short by
 * the end of the epoch may fail anywhere, or may succeed with meaningless numbers; a caller that finds `cancel` set
 * afterwards must ignore both.
 *
 * With a communication thread, the ops of its stream and all other ops that call the comm are queued to it. Everything
 * that they wait for is complete when they are queued, or is queued before them; ops that wait for their events wait
 * for tickets. The events cover everything that a program's ops access (common/plan/compile/events.c). Work that is not
 * an op happens after the run, when the communication thread is idle. */
#include "worker/step/run.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/plan/estimate/cost.h"
#include "worker/step/comm_thread.h"
#include "worker/step/fault.h"

#include <assert.h>
#include <stdatomic.h>

int64_t run_slot(const struct buffer *b, const struct action *a)
{
    if (b->slot_index == SLOT_ACTION)
        return a->slot;
    return b->slot_index == SLOT_MICRO && a->micro >= 0 ? a->micro : 0;
}

void *run_arg_slot(const struct run *r, const struct op *op, int index, int64_t slot)
{
    const struct op_operand *a = &op->arg[index];
    if (a->buffer < 0)
        return NULL;
    const struct buffer *b = &r->program->buffers[a->buffer];
    return (uint8_t *)r->engine->space[b->space] + b->offset + slot * b->slot_bytes +
           (run_dim(r, a->offset) + a->col) * (int64_t)dtype_bytes(b->dtype);
}

void *run_arg(const struct run *r, const struct op *op, int index)
{
    const struct op_operand *a = &op->arg[index];
    return a->buffer < 0 ? NULL : run_arg_slot(r, op, index, run_slot(&r->program->buffers[a->buffer], r->action));
}

err_t run_waits(const struct run *r, const struct op *op)
{
    err_t err = OK;
    for (int i = 0; !err && i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= 0)
            err = dev_event_wait(r->engine->config.dev, r->bindings->events[op->wait[i]], run_stream(r, op));
    return err;
}

err_t run_record(const struct run *r, const struct op *op)
{
    if (op->event < 0)
        return OK;
    return dev_event_record(r->engine->config.dev, r->bindings->events[op->event], run_stream(r, op));
}

static run_op_fn find_op(enum op_kind kind)
{
    run_op_fn fn = run_kernel_ops[kind] ? run_kernel_ops[kind] : run_step_ops[kind];
    fn = fn ? fn : run_expert_ops[kind];
    fn = fn ? fn : run_comm_ops[kind];
    assert(fn);
    return fn;
}

err_t run_op_now(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *span)
{
    fault_point(r, op, FAULT_BEFORE);
    err_t err = r->engine->profile ? profile_op(r, op, fn, span) : fn(r, op);
    fault_point(r, op, FAULT_AFTER);
    return err;
}

static struct op_span *span_of(const struct run *r, const struct op *op)
{
    return r->engine->profile ? profile_span(r, op) : NULL;
}

/* The last ticket that the op waits for, and what it communicates; tickets complete in order. */
static uint64_t ticket_of_waits(const struct run *r, const struct op *op, enum traffic_part *ret_part)
{
    uint64_t last = 0;
    for (int i = 0; i < OP_MAX_WAITS; i++) {
        uint64_t ticket = op->wait[i] >= 0 ? r->bindings->tickets[op->wait[i]] : 0;
        if (ticket > last) {
            last = ticket;
            *ret_part = (enum traffic_part)r->bindings->parts[op->wait[i]];
        }
    }
    return last;
}

static void spend_comm(const struct run *r, enum traffic_part part, int64_t since_ns)
{
    const int64_t ns = clock_mono_ns() - since_ns;
    r->engine->spent.comm_ns += ns;
    r->engine->spent.part_ns[part] += ns;
}

static enum traffic_part part_of(const struct run *r, const struct op *op)
{
    return traffic_part_of(r->program, r->action->kind, op);
}

/* Counts the time of communication, where it is complete when the op returns. Two readings of the clock cost some
 * 50 ns, the smallest communication some 10 us. */
static err_t run_counted(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *span)
{
    if (!run_comm_ops[op->kind] || !r->engine->config.dev->ops->host_memory)
        return run_op_now(r, op, fn, span);
    const int64_t start = clock_mono_ns();
    err_t err = run_op_now(r, op, fn, span);
    spend_comm(r, part_of(r, op), start);
    return err;
}

/* The compute thread waits for the communication thread. */
static bool wait_beside(const struct run *r, uint64_t ticket, enum traffic_part part)
{
    if (!ticket)
        return comm_thread_wait(r->engine->comm_thread, ticket);
    const int64_t start = clock_mono_ns();
    bool ran = comm_thread_wait(r->engine->comm_thread, ticket);
    spend_comm(r, part, start);
    return ran;
}

/* ERR_CANCELED when an op that this one waits for has failed; finish_comm reports that failure. */
static err_t run_beside(const struct run *r, const struct op *op, run_op_fn fn)
{
    struct comm_thread *t = r->engine->comm_thread;
    enum traffic_part part = TRAFFIC_GRADS;
    uint64_t ticket = 0, awaited;
    err_t err = OK;
    if (op->stream == STREAM_COMM || run_comm_ops[op->kind]) {
        ticket = comm_thread_queue(t, r, op, fn, span_of(r, op));
        part = part_of(r, op);
    }
    awaited = ticket ? ticket : ticket_of_waits(r, op, &part);
    if (op->stream != STREAM_COMM && !wait_beside(r, awaited, part))
        return ERR_CANCELED;
    if (!ticket)
        err = run_op_now(r, op, fn, span_of(r, op));
    if (op->event >= 0)
        r->bindings->tickets[op->event] = ticket;
    if (op->event >= 0)
        r->bindings->parts[op->event] = (uint8_t)part;
    return err;
}

static err_t run_op(const struct run *r, const struct op *op)
{
    run_op_fn fn = find_op(op->kind);
    if (r->engine->comm_thread)
        return run_beside(r, op, fn);
    err_t err = run_waits(r, op);
    err = err ? err : run_counted(r, op, fn, span_of(r, op));
    return err ? err : run_record(r, op);
}

bool run_canceled(const struct run *r)
{
    const _Atomic int *cancel = r->engine->config.cancel;
    return cancel && atomic_load(cancel);
}

/* The comm's own description of an error is more precise than the error code. */
static const char *error_text(const struct run *r, const struct op *op, err_t err)
{
    const struct comm *comm = run_comm_ops[op->kind] ? r->engine->comm : NULL;
    return comm && comm_why(comm)[0] ? comm_why(comm) : err_text(err);
}

static err_t op_failed(const struct run *r, const struct op *op, err_t err, struct why *why)
{
    const struct action *a = r->action;
    if (err != ERR_CANCELED && !run_canceled(r))
        log_error("op_failed action=%s micro=%d op=%s index=%d error=%s", action_name(a->kind), a->micro,
                  op_name(op->kind), (int)(op - r->program->ops), err_name(err));
    return why_set(why, err, "%s in %s failed: %s", op_name(op->kind), action_name(a->kind), error_text(r, op, err));
}

static bool is_update(enum action_kind kind)
{
    return kind == ACT_NORM || kind == ACT_UPDATE;
}

static err_t run_ops(struct run *r, const struct action *a, struct why *why)
{
    const struct program *p = r->program;
    r->action = a;
    r->samples = a->micro >= 0 && a->micro < p->n_micros ? p->micros[a->micro].samples : p->max_samples;
    r->samples = r->n_runs ? r->tokens : r->samples;
    for (int i = 0; i < a->n_ops; i++) {
        const struct op *op = &p->ops[a->first_op + i];
        err_t err = run_op(r, op);
        if (err)
            return op_failed(r, op, err, why);
    }
    return OK;
}

/* Counts the time of the update, where ops are complete when they return. */
static err_t run_action(struct run *r, const struct action *a, struct why *why)
{
    struct engine *e = r->engine;
    if (!is_update(a->kind) || !e->config.dev->ops->host_memory)
        return run_ops(r, a, why);
    const int64_t start = clock_mono_ns(), comm_ns = e->spent.comm_ns;
    err_t err = run_ops(r, a, why);
    e->spent.update_ns += clock_mono_ns() - start - (e->spent.comm_ns - comm_ns);
    return err;
}

static err_t run_actions(struct run *r, int first, int end, const struct run_host *host, struct why *why)
{
    struct dev *dev = r->engine->config.dev;
    err_t err = OK;
    for (int i = first; !err && i < end; i++) {
        const struct action *a = &r->program->actions[i];
        if (run_canceled(r))
            return ERR_CANCELED;
        dev_range_begin(dev, r->bindings->ranges[i]);
        err = host->before(host->arg, a);
        err = err ? err : run_action(r, a, why);
        dev_range_end(dev);
    }
    return err;
}

/* Waits for the communication thread and returns the error of the run: that of the first op in program order that
 * failed. At the end of an epoch the comm is aborted first, because a collective could otherwise wait forever. */
static err_t finish_comm(const struct run *r, err_t err, struct why *why)
{
    const struct engine *e = r->engine;
    if (!e->comm_thread)
        return err;
    if (run_canceled(r))
        comm_abort(e->comm);
    const int64_t start = clock_mono_ns();
    struct comm_failure f = comm_thread_finish(e->comm_thread, err != OK);
    spend_comm(r, TRAFFIC_GRADS, start); /* the last communication of a step */
    if (!f.err || (f.err == ERR_CANCELED && err))
        return err;
    return op_failed(&f.run, f.op, f.err, why);
}

/* Does not wait for the copy stream, because a snapshot overlaps the next steps. */
static err_t wait_for_streams(const struct run *r, struct why *why)
{
    const struct engine *e = r->engine;
    err_t err = OK;
    for (int s = 0; !err && s < STREAM_COUNT; s++)
        if (r->bindings->uses[s] && (s == STREAM_COMPUTE || e->stream[s] != e->stream[STREAM_COMPUTE]))
            err = dev_stream_sync(e->stream[s], why);
    return err;
}

void run_count_bytes(const struct run *r, int sign)
{
    const struct program *p = r->program;
    for (int i = 0; r->axis_bytes && i < p->n_groups; i++) {
        unsigned axes = p->groups[i].axes;
        for (int a = 0; a < AXIS_COUNT; a++)
            if (p->mesh.size[a] == 1)
                axes &= ~(1u << a);
        if (r->bindings->groups[i])
            r->axis_bytes[axes] += sign * comm_group_bytes(r->bindings->groups[i]);
    }
}

static err_t unless_canceled(const struct run *r, err_t err, struct why *why)
{
    return run_canceled(r) || err == ERR_CANCELED ? why_set(why, ERR_CANCELED, "the epoch has ended") : err;
}

err_t run_start(struct run *r, bool fresh)
{
    if (fresh)
        r->engine->posts.n = 0;
    run_count_bytes(r, -1);
    return profile_begin(r->engine);
}

err_t run_part(struct run *r, int first, int end, const struct run_host *host, struct why *why)
{
    err_t err = run_actions(r, first, end, host, why);
    err = finish_comm(r, err, why);
    err = err ? err : wait_for_streams(r, why);
    return unless_canceled(r, err, why);
}

err_t run_fetch(struct run *r, struct why *why)
{
    err_t err = host_fetch(r->engine, r->program, r->bindings);
    return unless_canceled(r, err ? err : wait_for_streams(r, why), why);
}

void run_end(const struct run *r)
{
    run_count_bytes(r, 1);
    profile_collect(r);
}

/* Actions that only some steps run are the last ones. */
static int actions_of_step(const struct program *p)
{
    int n = p->n_actions;
    while (n > 0 && action_is_rare(p->actions[n - 1].kind))
        n--;
    return n;
}

bool engine_op_communicates(enum op_kind kind)
{
    return run_comm_ops[kind] != NULL;
}

double engine_planned_flop(const struct engine *e)
{
    const struct program *p = &e->train;
    double sum = 0;
    for (int i = 0; i < actions_of_step(p); i++) {
        const struct action *a = &p->actions[i];
        const int64_t samples = a->micro >= 0 && a->micro < p->n_micros ? p->micros[a->micro].samples : p->max_samples;
        for (int k = 0; k < a->n_ops; k++) {
            struct op_cost cost;
            plan_op_cost(p, &p->ops[a->first_op + k], samples, &cost);
            sum += cost.flops;
        }
    }
    return sum;
}

err_t run_program(struct run *r, const struct run_host *host, struct why *why)
{
    err_t err = run_start(r, true);
    err = err ? err : run_actions(r, 0, actions_of_step(r->program), host, why);
    err = finish_comm(r, err, why);
    err = unless_canceled(r, err, why);
    err = err ? err : run_fetch(r, why);
    if (!err)
        run_end(r);
    return err;
}
