/* What a program needs beside memory: groups of its ranks, its events, and the names of
 * its actions for a profiler. All of it is made before the first step. */
#include "worker/step/run.h"

#include <stdio.h>
#include <stdlib.h>

static err_t make_groups(struct engine *e, const struct program *p, struct engine_rig *r, struct why *why)
{
    r->groups = calloc((size_t)p->n_groups + 1, sizeof(struct comm_group *));
    if (!r->groups)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; e->comm && i < p->n_groups; i++) {
        err_t err = comm_group_new(e->comm, p->groups[i].ranks, p->groups[i].n, &r->groups[i]);
        if (err)
            return why_set(why, err, "cannot make communication group %d of %d: %s", i, p->n_groups, err_text(err));
    }
    return OK;
}

static err_t make_events(struct engine *e, const struct program *p, struct engine_rig *r, struct why *why)
{
    int n = p->n_events;
    r->events = calloc((size_t)n + 1, sizeof(struct dev_event *));
    if (!r->events)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (; r->n_events < n; r->n_events++) {
        err_t err = dev_event_new(e->config.dev, false, &r->events[r->n_events]);
        if (err)
            return why_set(why, err, "cannot make event %d of %d: %s", r->n_events, n, err_text(err));
    }
    return OK;
}

static err_t make_names(const struct program *p, struct engine_rig *r, struct why *why)
{
    r->ranges = calloc((size_t)p->n_actions + 1, sizeof(*r->ranges));
    if (!r->ranges)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        int number = a->micro >= 0 ? a->micro : a->unit;
        if (number >= 0)
            snprintf(r->ranges[i], sizeof(r->ranges[i]), "%s %d", action_name(a->kind), number);
        else
            snprintf(r->ranges[i], sizeof(r->ranges[i]), "%s", action_name(a->kind));
    }
    return OK;
}

static bool writes(const struct op *op, int buffer)
{
    const char *modes = op_operands(op->kind);
    for (int i = 0; buffer >= 0 && modes[i]; i++)
        if (op->arg[i].buffer == buffer && modes[i] != 'r')
            return true;
    return false;
}

static void find_streams(const struct program *p, struct engine_rig *r)
{
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; p->actions[i].kind != ACT_SNAPSHOT && k < p->actions[i].n_ops; k++) {
            const struct op *op = &p->ops[p->actions[i].first_op + k];
            r->uses[op->stream] = true;
            if (writes(op, p->loss_buffer))
                r->loss_stream = op->stream;
            if (writes(op, p->clip_buffer))
                r->clip_stream = op->stream;
        }
    r->uses[STREAM_COMPUTE] = true; /* batches are copied there */
}

err_t rig_init(struct engine *e, const struct program *p, struct engine_rig *ret, struct why *why)
{
    find_streams(p, ret);
    err_t err = make_groups(e, p, ret, why);
    err = err ? err : make_events(e, p, ret, why);
    return err ? err : make_names(p, ret, why);
}

void rig_fini(struct engine *e, const struct program *p, struct engine_rig *r)
{
    for (int i = 0; r->groups && i < p->n_groups; i++)
        comm_group_free(r->groups[i]);
    for (int i = 0; i < r->n_events; i++)
        dev_event_free(e->config.dev, r->events[i]);
    free(r->groups);
    free(r->events);
    free(r->ranges);
}
