/* dtctl plan --forecast: how long the job takes in its own layout. Nothing is searched. With --nodes it also takes more
 * nodes, as scripts with DistributedDataParallel do: every worker keeps its share of the batch, so that the global
 * batch grows and the same samples take fewer steps. */
#include "client/planner/internal.h"

#include "client/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FORWARD \
    3 /* of a step's products, one in three belongs to the forward pass, which is all that an evaluation does */

/* Seconds of a run. */
struct own_run {
    double workers, nodes, steps;
    struct plan_time time;
    double start, compute, comm, bubble, wait, eval, all;
};

static void own_times(const struct planning *p, const struct job_spec *job, const struct plan_shape *shape,
                      const struct plan_layout *l, double ratio, struct own_run *ret)
{
    const struct job_train *t = &job->train;
    const double evals = t->eval_every ? floor((double)t->steps / (double)t->eval_every) : 0;
    struct own_run r = {.workers = (double)plan_layout_workers(l), .steps = ceil((double)t->steps / ratio)};
    plan_step_time(shape, l, &p->machine, &p->search.overlap, &r.time);
    r.nodes = ceil(r.workers / (double)p->machine.device.per_node);
    r.start = p->machine.cost.start_s;
    r.compute = r.steps * (r.time.compute + r.time.update);
    r.comm = r.steps * planning_comm(&r.time);
    r.bubble = r.steps * r.time.bubble;
    r.wait = r.steps * r.time.wait;
    r.eval = evals * (double)t->eval_batches / ratio * (r.time.compute - r.time.recompute) / FORWARD;
    r.all = r.start + r.compute + r.comm + r.bubble + r.wait + r.eval;
    *ret = r;
}

/* Time that `r` needs beyond its share of the first row's, where `ratio` times as many workers would divide all. */
struct own_loss {
    double all, start, comm, bubble, wait;
};

static struct own_loss own_lost(const struct own_run *r, const struct own_run *first)
{
    const double ratio = r->workers / first->workers;
    return (struct own_loss){.all = r->all - first->all / ratio,
                             .start = r->start - first->start / ratio,
                             .comm = r->comm - first->comm / ratio,
                             .bubble = r->bubble - first->bubble / ratio,
                             .wait = r->wait - first->wait / ratio};
}

static const struct out_column columns[] = {
    {"WORKERS", true, 0},  {"NODES", true, 0},   {"STEP ms", true, 0},   {"COMPUTE", true, 1},  {"COMM", true, 1},
    {"BUBBLE", true, 4},   {"STEPS", true, 2},   {"RUN", true, 0},       {"SPEED-UP", true, 0}, {"LOST", true, 0},
    {"BY START", true, 0}, {"BY COMM", true, 0}, {"BY BUBBLE", true, 3}, {"BY WAIT", true, 0}};

/* "92.0 min", in minutes so that rows compare. */
static void put_minutes(struct out_table *t, int row, int column, double seconds)
{
    out_table_set(t, row, column, "%.1f min", fabs(seconds) < 3 ? 0.0 : seconds / 60);
}

static void own_add(struct out_table *t, const struct own_run *r, const struct own_run *first)
{
    const struct own_loss lost = own_lost(r, first);
    const int row = out_table_row(t);
    out_table_set(t, row, 0, "%.0f", r->workers);
    out_table_set(t, row, 1, "%.0f", r->nodes);
    out_table_set(t, row, 2, "%.3g", 1e3 * r->time.seconds);
    out_table_set(t, row, 3, "%.3g", 1e3 * (r->time.compute + r->time.update));
    out_table_set(t, row, 4, "%.3g", 1e3 * planning_comm(&r->time));
    out_table_set(t, row, 5, "%.3g", 1e3 * r->time.bubble);
    out_table_set(t, row, 6, "%.0f", r->steps);
    put_minutes(t, row, 7, r->all);
    out_table_set(t, row, 8, "%.2f", first->all / r->all);
    put_minutes(t, row, 9, lost.all);
    put_minutes(t, row, 10, lost.start);
    put_minutes(t, row, 11, lost.comm);
    put_minutes(t, row, 12, lost.bubble);
    put_minutes(t, row, 13, lost.wait);
}

static json_t *own_json(const struct own_run *r, const struct own_run *first)
{
    const struct own_loss l = own_lost(r, first);
    json_t *parts = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "start", r->start, "compute", r->compute, "comm",
                              r->comm, "bubble", r->bubble, "wait", r->wait, "evaluation", r->eval);
    json_t *lost = json_pack("{s:f, s:f, s:f, s:f, s:f}", "all", l.all, "start", l.start, "comm", l.comm, "bubble",
                             l.bubble, "wait", l.wait);
    return json_pack("{s:I, s:I, s:f, s:I, s:f, s:f, s:o, s:o}", "workers", (json_int_t)r->workers, "nodes",
                     (json_int_t)r->nodes, "step_s", r->time.seconds, "steps", (json_int_t)r->steps, "run_s", r->all,
                     "speed_up", first->all / r->all, "parts_s", parts, "lost_s", lost);
}

/* The job's layout on `nodes` nodes. ERR_INVALID: they do not have a multiple of its workers. */
static err_t own_grow(const struct planning *p, const struct plan_layout *own, int64_t nodes, struct plan_layout *ret,
                      struct why *why)
{
    const int64_t workers = nodes * p->machine.device.per_node, had = plan_layout_workers(own);
    if (workers < had || workers % had)
        return why_set(why, ERR_INVALID,
                       "--nodes %" PRId64 ": %s has %" PRId64 " devices on so many nodes, which is no multiple of the "
                       "job's %" PRId64 " workers",
                       nodes, p->machine.name, workers, had);
    *ret = *own;
    ret->dp *= workers / had;
    return OK;
}

struct own_report {
    struct out_table table;
    json_t *list;
    struct own_run first;
};

static void own_row(struct own_report *report, const struct planning *p, const struct job_spec *job,
                    const struct plan_layout *l, double ratio)
{
    struct plan_shape shape = p->shape;
    struct own_run r;
    shape.global_batch *= ratio;
    own_times(p, job, &shape, l, ratio, &r);
    if (!report->first.workers)
        report->first = r;
    own_add(&report->table, &r, &report->first);
    json_array_append_new(report->list, own_json(&r, &report->first));
}

static err_t own_print(struct global *g, struct own_report *report, const struct planning *p)
{
    if (g->format != OUT_TEXT)
        return out_json(json_incref(report->list), g->format == OUT_JSONL);
    out_table_print(&report->table, stdout, -1);
    printf("Rates: %s\n", p->machine.source);
    return OK;
}

err_t planner_own(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct plan_layout own, more = {0};
    struct own_report report = {.list = json_array()};
    err_t err = planning_init(&p, a, job, why);
    if (err) {
        json_decref(report.list);
        return err;
    }
    plan_layout_of(job, &own);
    out_table_init(&report.table, columns, sizeof(columns) / sizeof(columns[0]));
    own_row(&report, &p, job, &own, 1);
    const int64_t last = a->nodes_to ? a->nodes_to : a->nodes_from;
    for (int64_t nodes = a->nodes_from; !err && nodes > 0 && nodes <= last; nodes *= 2) {
        err = own_grow(&p, &own, nodes, &more, why);
        if (!err && plan_layout_workers(&more) > plan_layout_workers(&own))
            own_row(&report, &p, job, &more, (double)plan_layout_workers(&more) / (double)plan_layout_workers(&own));
    }
    err = err ? err : own_print(g, &report, &p);
    json_decref(report.list);
    out_table_fini(&report.table);
    planning_fini(&p);
    return err;
}
