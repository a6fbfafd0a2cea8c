/* A step with post-validation (parallel.post_validation), on a rank that finishes before others.
 *
 *      the rest of step n | update, assumed | first slots of n + 1 | losses, norm of n | the rest of step n + 1
 *                                                                          |
 *                                                       wrong: restore, update; the slots run again in step n + 1
 *
 * The sums of losses and norm are where all ranks meet, so a rank that comes to them later wins time for other work. It
 * updates as if the norm did not clip, which is the usual case, and runs the forwards for which the last rank would
 * have to be waited for. The clip factor, once complete, has the same bits on all ranks, so all of them find together
 * that it is not the assumed one. Then each puts parameters and moments back and updates with the factor that is right.
 * Its slots that ran ahead are discarded: no message is in flight between these slots and others (schedule_ahead), they
 * have changed nothing but activations, and the next step runs them again, with all their messages.
 *
 * engine_step returns after the validation, so nothing outside ever sees an assumed update. Each part of the step waits
 * for all streams: the events of a program order one part after another in the order of its actions only. */
#include "worker/step/run.h"

#include <string.h>

static const double assumed = 1; /* the clip factor of a norm within the limit */

/* An update reads the factor from the buffer that the clip will write. */
static err_t assume(const struct engine *e)
{
    void *factor = engine_buffer(e, &e->train, e->train.clip_buffer);
    return dev_copy(e->stream[STREAM_COMPUTE], factor, &assumed, sizeof(assumed));
}

static bool holds(const struct engine *e)
{
    const double *factor = engine_host_buffer(e, &e->train, e->train.clip_buffer);
    return *factor == assumed; /* false for NaN */
}

err_t ahead_discard(struct engine *e)
{
    err_t err = OK;
    for (int i = 0; e->ahead.begun && i < e->posts.n && !err; i++)
        err = comm_wait(e->posts.list[i].group, e->posts.list[i].post);
    e->posts.n = e->ahead.begun ? 0 : e->posts.n;
    e->ahead.begun = false;
    return err;
}

/* Every post of these slots is complete, or will be without other ranks: they have all passed the norm. */
static err_t repeat_update(struct run *r, const struct run_host *host, struct why *why)
{
    const struct program *p = r->program;
    const int update = program_find(p, ACT_UPDATE, p->validate), restore = program_find(p, ACT_RESTORE, update);
    r->engine->ahead.repeated++;
    err_t err = run_part(r, restore, restore + 1, host, why);
    err = err ? err : run_part(r, update, update + 1, host, why);
    if (err)
        return err;
    err = ahead_discard(r->engine);
    return err ? why_set(why, err, "the messages of a discarded step cannot be completed: %s", err_text(err)) : OK;
}

static err_t run_next(struct run *next, const struct run_host *host, struct why *why)
{
    run_count_bytes(next, -1);
    err_t err = run_part(next, 0, next->program->n_ahead, host, why);
    run_count_bytes(next, 1);
    next->engine->ahead.begun = !err;
    next->engine->ahead.updates++;
    return err;
}

/* Bytes of slots that ran ahead belong to the step whose slots they are. */
static void move_bytes(int64_t *to, const int64_t *from, int sign)
{
    for (int i = 0; i < ENGINE_AXIS_SETS; i++)
        to[i] += sign * from[i];
}

static err_t run_parts(struct run *r, struct run *next, const struct run_host *host, const struct run_host *next_host,
                       struct why *why)
{
    struct engine *e = r->engine;
    const struct program *p = r->program;
    const int first = e->ahead.begun ? p->n_ahead : 0, update = program_find(p, ACT_UPDATE, p->validate);
    e->ahead.begun = false;
    if (!next)
        return run_part(r, first, update + 1, host, why);
    err_t err = run_part(r, first, p->validate, host, why);
    err = err ? err : assume(e);
    err = err ? err : run_part(r, update, update + 1, host, why);
    err = err ? err : run_next(next, next_host, why);
    return err ? err : run_part(r, p->validate, update, host, why);
}

err_t ahead_step(struct run *r, struct run *next, const struct run_host *host, const struct run_host *next_host,
                 struct why *why)
{
    struct engine *e = r->engine;
    int64_t ahead[ENGINE_AXIS_SETS] = {0};
    move_bytes(r->axis_bytes, e->ahead.axis_bytes, 1);
    if (next)
        next->axis_bytes = ahead;
    err_t err = run_start(r, !e->ahead.begun);
    err = err ? err : run_parts(r, next, host, next_host, why);
    err = err ? err : run_fetch(r, why);
    if (!err && next && !holds(e))
        err = repeat_update(r, host, why);
    if (err)
        return err;
    run_end(r);
    move_bytes(r->axis_bytes, ahead, -1);
    memcpy(e->ahead.axis_bytes, ahead, sizeof(ahead));
    return OK;
}
