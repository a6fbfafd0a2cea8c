/* Where the time of a step goes. A CPU's ops are over when they return, so the clock is looked at around each.
 * Elsewhere every op is put between two timed events on its own stream, behind its waits; they are made before the
 * first measured step and read once the step is over. What lies between them includes the time in which the device
 * waited for the thread. */
#include "worker/step/run.h"

#include "common/base/clock.h"

#include <stdlib.h>

struct span {
    struct dev_event *from, *to;
    enum op_kind kind;
    enum action_kind action;
};

struct engine_timer {
    struct span *spans;
    int n, cap;
};

static int ops_run(const struct program *p)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].n_ops;
    return n;
}

static err_t make_timer(struct engine *e, struct engine_timer *t)
{
    int eval = e->has_eval ? ops_run(&e->eval) : 0, train = e->has_train ? ops_run(&e->train) : 0;
    t->cap = eval > train ? eval : train;
    t->spans = calloc((size_t)t->cap + 1, sizeof(*t->spans));
    err_t err = t->spans ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < t->cap; i++) {
        err = dev_event_new(e->config.dev, true, &t->spans[i].from);
        err = err ? err : dev_event_new(e->config.dev, true, &t->spans[i].to);
    }
    return err;
}

err_t engine_profile_start(struct engine *e, struct engine_profile *profile, struct why *why)
{
    e->profile = profile;
    if (e->config.dev->ops->host_memory || e->timer)
        return OK;
    e->timer = calloc(1, sizeof(*e->timer));
    err_t err = e->timer ? make_timer(e, e->timer) : ERR_NOMEM; /* freed by engine_fini, whole or not */
    return err ? why_set(why, err, "cannot make the events of a profile: %s", err_text(err)) : OK;
}

void profile_free(struct engine *e)
{
    struct engine_timer *t = e->timer;
    for (int i = 0; t && t->spans && i < t->cap; i++) {
        dev_event_free(e->config.dev, t->spans[i].from);
        dev_event_free(e->config.dev, t->spans[i].to);
    }
    free(t ? t->spans : NULL);
    free(t);
}

static void add(struct engine_profile *p, enum op_kind kind, enum action_kind action, int64_t ns)
{
    p->ns[kind] += ns;
    p->calls[kind]++;
    p->action_ns[action] += ns;
}

static err_t time_by_clock(const struct run *r, const struct op *op, run_op_fn fn)
{
    int64_t start = clock_mono_ns();
    err_t err = fn(r, op);
    add(r->engine->profile, op->kind, r->action->kind, clock_mono_ns() - start);
    return err;
}

err_t profile_op(const struct run *r, const struct op *op, run_op_fn fn)
{
    struct engine *e = r->engine;
    if (!e->timer)
        return time_by_clock(r, op, fn);
    struct span *s = &e->timer->spans[e->timer->n++];
    s->kind = op->kind;
    s->action = r->action->kind;
    err_t err = dev_event_record(e->config.dev, s->from, run_stream(r, op));
    err = err ? err : fn(r, op);
    return err ? err : dev_event_record(e->config.dev, s->to, run_stream(r, op));
}

void profile_collect(struct engine *e)
{
    struct engine_timer *t = e->timer;
    for (int i = 0; t && i < t->n; i++)
        add(e->profile, t->spans[i].kind, t->spans[i].action,
            (int64_t)(dev_event_ms(e->config.dev, t->spans[i].from, t->spans[i].to) * 1e6));
    if (t)
        t->n = 0;
}
