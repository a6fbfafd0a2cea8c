/* Measures where the time of a step goes.
 *
 * CPU ops are complete when they return, so the clock is read before and after each op, after its waits. If ops run on
 * two threads, each thread records its own times; after the step they are summed in program order. On other devices
 * every op is enclosed by two timed events on its own stream; the events are created before the first measured step and
 * read after the step. The time between them includes time in which the device waited for the compute thread. */
#include "worker/step/run.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <time.h>

struct op_span {
    struct dev_event *from, *to;
    int64_t from_ns, to_ns; /* used instead of events where ops are complete when they return */
    const struct op *op;
    int action; /* index in program.actions */
    int64_t step;
};

struct engine_timer {
    bool by_clock;
    struct dev_event *begin; /* start of the step, recorded on the compute stream while nothing is queued */
    int64_t begin_ns;        /* the clock when `begin` was recorded */
    struct op_span *spans;
    int n, cap;
};

static int ops_run(const struct program *p)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].n_ops;
    return n;
}

int engine_record_room(const struct engine *e)
{
    return ops_run(&e->train) * (e->train.validate ? 2 : 1); /* slots that run ahead, and a second update */
}

static err_t make_timer(struct engine *e, struct engine_timer *t)
{
    int eval = e->has_eval ? ops_run(&e->eval) : 0, train = e->has_train ? engine_record_room(e) : 0;
    t->cap = eval > train ? eval : train;
    t->spans = calloc((size_t)t->cap + 1, sizeof(*t->spans));
    t->by_clock = e->config.dev->ops->host_memory;
    if (!t->spans || t->by_clock)
        return t->spans ? OK : ERR_NOMEM;
    err_t err = dev_event_new(e->config.dev, true, &t->begin);
    for (int i = 0; !err && i < t->cap; i++) {
        err = dev_event_new(e->config.dev, true, &t->spans[i].from);
        err = err ? err : dev_event_new(e->config.dev, true, &t->spans[i].to);
    }
    return err;
}

err_t engine_profile_start(struct engine *e, struct engine_profile *profile, struct why *why)
{
    err_t err = OK;
    if (!e->timer && (!e->config.dev->ops->host_memory || e->comm_thread)) {
        e->timer = calloc(1, sizeof(*e->timer));
        err = e->timer ? make_timer(e, e->timer) : ERR_NOMEM;
    }
    if (err) {
        profile_free(e);
        return why_set(why, err, "cannot allocate a profile: %s", err_text(err));
    }
    e->profile = profile;
    return OK;
}

int engine_trace_room(const struct engine *e)
{
    return ops_run(&e->train);
}

void engine_profile_stop(struct engine *e)
{
    e->profile = NULL;
    profile_free(e);
}

void profile_free(struct engine *e)
{
    struct engine_timer *t = e->timer;
    dev_event_free(e->config.dev, t ? t->begin : NULL);
    for (int i = 0; t && t->spans && i < t->cap; i++) {
        dev_event_free(e->config.dev, t->spans[i].from);
        dev_event_free(e->config.dev, t->spans[i].to);
    }
    free(t ? t->spans : NULL);
    free(t);
    e->timer = NULL;
}

static bool has_waits(const struct op *op)
{
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= 0)
            return true;
    return false;
}

static void trace_add(struct engine_trace *t, const struct action *a, int action, const struct op *op, int64_t from,
                      int64_t to)
{
    struct forecast_box *boxes = t->boxes;
    const int n = t->n;
    const double start = (double)(from - t->origin_ns) * 1e-9, end = (double)(to - t->origin_ns) * 1e-9;
    if (n > 0 && boxes[n - 1].action == action && boxes[n - 1].stream == op->stream && !has_waits(op))
        boxes[n - 1].end = end;
    else if (n < t->cap)
        boxes[t->n++] = (struct forecast_box){action, a->kind, op->stream, a->chunk, a->micro, start, end};
}

static void record_add(struct engine_record *rec, const struct run *r, int action, const struct op *op, int64_t step,
                       int64_t from, int64_t to)
{
    if (rec->n == rec->cap) {
        rec->lost++;
        return;
    }
    const int call = rec->first_call[action] + (int)(op - &r->program->ops[r->program->actions[action].first_op]);
    rec->events[rec->n++] =
        (struct recorded_event){from - rec->origin_ns, to - rec->origin_ns, call, (int32_t)(step - rec->first)};
}

void engine_record_host(struct engine_record *r, enum recorded_host_kind kind, int64_t step, int64_t from_ns)
{
    if (r->n_hosts < r->cap_hosts)
        r->hosts[r->n_hosts++] = (struct recorded_host){from_ns - r->origin_ns, clock_mono_ns() - r->origin_ns, kind,
                                                        (int32_t)(step - r->first)};
}

static struct engine_record *record_of(const struct engine *e)
{
    return e->profile ? e->profile->record : NULL;
}

int64_t profile_data_begin(const struct engine *e)
{
    return record_of(e) ? clock_mono_ns() : 0;
}

void profile_data_end(const struct engine *e, int64_t step, int64_t begin)
{
    if (record_of(e))
        engine_record_host(record_of(e), HOST_DATA, step, begin);
}

static void add_times(const struct run *r, int action, const struct op *op, int64_t step, int64_t from, int64_t to)
{
    struct engine_profile *p = r->engine->profile;
    const struct action *a = &r->program->actions[action];
    if (p->record && r->program != &r->engine->train)
        return;
    p->ns[op->kind] += to - from;
    p->calls[op->kind]++;
    p->action_ns[a->kind] += to - from;
    if (engine_op_communicates(op->kind))
        p->part_ns[traffic_part_of(r->program, a->kind, op)] += to - from;
    else if (a->kind == ACT_NORM || a->kind == ACT_UPDATE)
        p->update_ns += to - from;
    if (p->trace)
        trace_add(p->trace, a, action, op, from, to);
    if (p->record)
        record_add(p->record, r, action, op, step, from, to);
}

static int action_of(const struct run *r)
{
    return (int)(r->action - r->program->actions);
}

static int64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static err_t time_by_clock(const struct run *r, const struct op *op, run_op_fn fn)
{
    int64_t (*now)(void) = r->engine->profile->processor_time ? processor_ns : clock_mono_ns;
    int64_t start = now();
    err_t err = fn(r, op);
    add_times(r, action_of(r), op, r->step, start, now());
    return err;
}

err_t profile_begin(struct engine *e)
{
    struct engine_timer *t = e->timer;
    if (!t)
        return OK;
    t->n = 0;
    t->begin_ns = clock_mono_ns();
    if (t->by_clock)
        return OK;
    return dev_event_record(e->config.dev, t->begin, e->stream[STREAM_COMPUTE]);
}

struct op_span *profile_span(const struct run *r, const struct op *op)
{
    struct engine_timer *t = r->engine->timer;
    if (!t)
        return NULL;
    struct op_span *s = &t->spans[t->n++];
    s->op = op;
    s->action = action_of(r);
    s->step = r->step;
    return s;
}

static err_t note_clock(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *s)
{
    s->from_ns = clock_mono_ns();
    err_t err = fn(r, op);
    s->to_ns = clock_mono_ns();
    return err;
}

err_t profile_op(const struct run *r, const struct op *op, run_op_fn fn, struct op_span *s)
{
    struct engine *e = r->engine;
    if (!s)
        return time_by_clock(r, op, fn);
    if (e->timer->by_clock)
        return note_clock(r, op, fn, s);
    err_t err = dev_event_record(e->config.dev, s->from, run_stream(r, op));
    err = err ? err : fn(r, op);
    return err ? err : dev_event_record(e->config.dev, s->to, run_stream(r, op));
}

/* The time of an event in nanoseconds of the monotonic clock. */
static int64_t event_time_ns(const struct engine *e, const struct dev_event *event)
{
    return e->timer->begin_ns + (int64_t)(dev_event_ms(e->config.dev, e->timer->begin, event) * 1e6);
}

void profile_collect(const struct run *r)
{
    const struct engine *e = r->engine;
    struct engine_timer *t = e->timer;
    for (int i = 0; t && i < t->n; i++) {
        const struct op_span *s = &t->spans[i];
        int64_t from = t->by_clock ? s->from_ns : event_time_ns(e, s->from),
                to = t->by_clock ? s->to_ns : event_time_ns(e, s->to);
        add_times(r, s->action, s->op, s->step, from, to);
    }
}
