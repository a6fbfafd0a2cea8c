/* dtctl plan FILE --machine NAME, and --forecast: the job's own layout. Whether it fits, how long a step takes and
 * between which times, where it goes, and how long the run takes. Nothing is searched, but for one row of comparison.
 * With --nodes it also takes more nodes, as scripts with DistributedDataParallel do: every worker keeps its share of
 * the batch, so that the global batch grows and the same samples take fewer steps.
 *
 * A step is forecast in one of two ways. Where the machine has measured times of operations, and the job is small
 * enough to be compiled here, its programs are forecast operation by operation, as dtctl plan FILE does. Else it is the
 * closed form of the search, from rates. The table names the way of each row. */
#include "client/planner/money.h"

#include "client/json.h"
#include "client/spec.h"
#include "common/plan/search/interval.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Of a step's products, one in three belongs to the forward pass, which is all that an evaluation does. */
#define FORWARD 3

/* A step, forecast in either way. */
struct own_step {
    double seconds, low, high;
    double compute, comm, bubble, wait; /* sum to `seconds` */
    double eval;                        /* seconds of a batch of as many samples in an evaluation */
    bool programs;                      /* forecast operation by operation; else in closed form */
    double measured;                    /* part of the operations' time that was measured; 0: none */
    char interval_source[320], formulas[128];
};

/* Seconds of a run. */
struct own_run {
    double workers, nodes, steps;
    struct own_step step;
    double start, compute, comm, bubble, wait, eval, all;
};

#define MAX_ROWS 24 /* numbers of nodes are doubled, and there are at most 10^6 */

struct own_report {
    struct planning p;
    const struct planner_args *args;
    const struct job_spec *job;
    struct machine whole; /* before the workers share its cores; borrows from p.machine */
    struct planned_memory memory;
    struct plan_found found; /* the own layout in closed form */
    struct own_run rows[MAX_ROWS];
    int n;
};

/* ---- a step ---- */

static void closed_form(const struct machine *m, const struct plan_time *t, struct own_step *ret)
{
    const struct plan_interval in = plan_forecast_interval(m, t->seconds);
    *ret = (struct own_step){.seconds = t->seconds,
                             .low = in.low,
                             .high = in.high,
                             .compute = t->compute + t->update,
                             .comm = planning_comm(t),
                             .bubble = t->bubble,
                             .wait = t->wait,
                             .eval = (t->compute - t->recompute) / FORWARD};
    snprintf(ret->interval_source, sizeof(ret->interval_source), "nine of ten steps, %s",
             m->error.source[0] ? m->error.source : PLANNER_ERROR_SOURCE);
}

/* Exposed communication is a part of the time in which a rank does not compute; what is left of that is the bubble. The
 * closed form knows which part of the computation an evaluation repeats. */
static void take_programs(const struct spec_facts *f, struct own_step *ret)
{
    const double seconds = f->forecast.seconds, idle = f->forecast.bubble;
    const double part = f->forecast.exposed < idle ? f->forecast.exposed : idle;
    const double compute = seconds * (1 - idle);
    ret->eval *= compute / ret->compute;
    ret->seconds = seconds;
    ret->low = f->low_s;
    ret->high = f->high_s;
    ret->compute = compute;
    ret->comm = seconds * part;
    ret->bubble = seconds * (idle - part);
    ret->wait = 0;
    ret->programs = true;
    ret->measured = f->measured;
    snprintf(ret->interval_source, sizeof(ret->interval_source), "%s", f->interval_source);
    snprintf(ret->formulas, sizeof(ret->formulas), "%s", f->formulas);
}

/* Replaces the closed form where the machine was calibrated. */
static err_t forecast_programs(const struct own_report *o, const struct plan_layout *l, double ratio,
                               struct own_step *ret, struct why *why)
{
    struct job_spec job = *o->job; /* borrows all strings */
    struct spec_facts facts = {0};
    if (!o->whole.times[0] && !(o->whole.error.program_less > 0) && !(o->whole.error.program_more > 0))
        return OK;
    plan_layout_apply(l, &job);
    job.train.global_batch = (int64_t)llround((double)job.train.global_batch * ratio);
    err_t err = spec_plan_model(&job, o->args->machine, &facts, why);
    if (!err && facts.forecast.n)
        take_programs(&facts, ret);
    else if (!err)
        snprintf(ret->formulas, sizeof(ret->formulas), "the plan is too large to compile here");
    spec_facts_fini(&facts);
    return err;
}

/* ---- a run ---- */

static void run_of_step(const struct own_report *o, double ratio, struct own_run *r)
{
    const struct job_train *t = &o->job->train;
    const struct own_step *s = &r->step;
    const double evals = t->eval_every ? floor((double)t->steps / (double)t->eval_every) : 0;
    r->steps = ceil((double)t->steps / ratio);
    r->start = o->p.machine.cost.start_s;
    r->compute = r->steps * s->compute;
    r->comm = r->steps * s->comm;
    r->bubble = r->steps * s->bubble;
    r->wait = r->steps * s->wait;
    r->eval = evals * (double)t->eval_batches / ratio * s->eval;
    r->all = r->start + r->compute + r->comm + r->bubble + r->wait + r->eval;
}

/* The machine as so many workers see it. On processors they share the cores and the memory of their nodes. */
static void share_machine(const struct own_report *o, int64_t workers, struct machine *ret, int64_t *ret_nodes)
{
    const int64_t per_node = o->whole.device.per_node, nodes = (workers + per_node - 1) / per_node;
    const struct plan_place place = {.workers = workers, .nodes = nodes, .per_node = (workers + nodes - 1) / nodes};
    *ret = o->whole;
    *ret_nodes = nodes;
    if (o->whole.device.one_thread)
        plan_machine_share(o->job, &place, ret);
}

static err_t own_row(struct own_report *o, const struct plan_layout *l, double ratio, struct why *why)
{
    const int64_t workers = plan_layout_workers(l);
    struct own_run *r = &o->rows[o->n];
    struct plan_shape shape = o->p.shape;
    struct plan_time time;
    struct machine m;
    int64_t nodes;
    share_machine(o, workers, &m, &nodes);
    shape.global_batch *= ratio;
    plan_step_time(&shape, l, &m, &o->p.search.overlap, &time);
    closed_form(&m, &time, &r->step);
    err_t err = forecast_programs(o, l, ratio, &r->step, why);
    r->workers = (double)workers;
    r->nodes = (double)nodes;
    run_of_step(o, ratio, r);
    o->n += !err;
    return err;
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

/* ---- the table ---- */

enum {
    OWN_WORKERS,
    OWN_NODES,
    OWN_STEP,
    OWN_INTERVAL,
    OWN_COMPUTE,
    OWN_COMM,
    OWN_BUBBLE,
    OWN_STEPS,
    OWN_RUN,
    OWN_SPEED_UP, /* from here on, rows are compared with the first one */
    OWN_LOST,
    OWN_BY_START,
    OWN_BY_COMM,
    OWN_BY_BUBBLE,
    OWN_BY_WAIT
};
/* The last column of both tables names the source of the times. */
#define OWN_SHARED                                                                                                \
    [OWN_WORKERS] = {"WORKERS", true, 0}, [OWN_NODES] = {"NODES", true, 0}, [OWN_STEP] = {"STEP", true, 0},       \
    [OWN_INTERVAL] = {"INTERVAL", true, 1}, [OWN_COMPUTE] = {"COMPUTE", true, 2}, [OWN_COMM] = {"COMM", true, 2}, \
    [OWN_BUBBLE] = {"BUBBLE", true, 4}, [OWN_STEPS] = {"STEPS", true, 3}, [OWN_RUN] = {"RUN", true, 0}
static const struct out_column alone_columns[] = {OWN_SHARED, {"FROM", false, 0}};
static const struct out_column grown_columns[] = {OWN_SHARED,
                                                  [OWN_SPEED_UP] = {"SPEED-UP", true, 0},
                                                  [OWN_LOST] = {"LOST", true, 0},
                                                  [OWN_BY_START] = {"BY START", true, 5},
                                                  [OWN_BY_COMM] = {"BY COMM", true, 5},
                                                  [OWN_BY_BUBBLE] = {"BY BUBBLE", true, 5},
                                                  [OWN_BY_WAIT] = {"BY WAIT", true, 5},
                                                  {"FROM", false, 0}};
#define N_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* One unit for all times of a step in the table, so that rows compare. */
static double step_unit(const struct own_report *o, const char **ret_name)
{
    *ret_name = o->rows[0].step.seconds < 1 ? "ms" : "s";
    return o->rows[0].step.seconds < 1 ? 1e3 : 1;
}

#define SHORT_RUN_S 600.0
#define NOTHING_S 0.05 /* of the unit: rounding, which would read as -0.0 */

/* "92.0 min", in the unit of the first row so that rows compare. */
static void put_time(struct out_table *t, int row, int column, const struct own_report *o, double seconds)
{
    const bool is_short = o->rows[0].all < SHORT_RUN_S;
    const double value = is_short ? seconds : seconds / 60;
    out_table_set(t, row, column, "%.1f %s", fabs(value) < NOTHING_S ? 0.0 : value, is_short ? "s" : "min");
}

static void put_step(struct out_table *t, int row, const struct own_report *o, const struct own_step *s)
{
    const char *name;
    const double unit = step_unit(o, &name);
    out_table_set(t, row, OWN_STEP, "%.4g %s", unit * s->seconds, name);
    if (s->high > 0)
        out_table_set(t, row, OWN_INTERVAL, "%.3g to %.3g", unit * s->low, unit * s->high);
    if (s->measured > 0)
        out_table_set(t, row, t->n_columns - 1, "%.0f %% measured", 100 * s->measured);
    else
        out_table_set(t, row, t->n_columns - 1, "rates");
    out_table_set(t, row, OWN_COMPUTE, "%.3g", unit * s->compute);
    out_table_set(t, row, OWN_COMM, "%.3g", unit * s->comm);
    out_table_set(t, row, OWN_BUBBLE, "%.3g", unit * s->bubble);
}

static void put_loss(struct out_table *t, int row, const struct own_report *o, const struct own_run *r)
{
    const struct own_run *first = &o->rows[0];
    const struct own_loss lost = own_lost(r, first);
    out_table_set(t, row, OWN_SPEED_UP, "%.2f", first->all / r->all);
    put_time(t, row, OWN_LOST, o, lost.all);
    put_time(t, row, OWN_BY_START, o, lost.start);
    put_time(t, row, OWN_BY_COMM, o, lost.comm);
    put_time(t, row, OWN_BY_BUBBLE, o, lost.bubble);
    put_time(t, row, OWN_BY_WAIT, o, lost.wait);
}

static void print_table(const struct own_report *o)
{
    struct out_table t;
    if (o->n > 1)
        out_table_init(&t, grown_columns, N_OF(grown_columns));
    else
        out_table_init(&t, alone_columns, N_OF(alone_columns));
    for (int i = 0; i < o->n; i++) {
        const struct own_run *r = &o->rows[i];
        const int row = out_table_row(&t);
        out_table_set(&t, row, OWN_WORKERS, "%.0f", r->workers);
        out_table_set(&t, row, OWN_NODES, "%.0f", r->nodes);
        put_step(&t, row, o, &r->step);
        out_table_set(&t, row, OWN_STEPS, "%.0f", r->steps);
        put_time(&t, row, OWN_RUN, o, r->all);
        if (o->n > 1)
            put_loss(&t, row, o, r);
    }
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
}

/* ---- text around it ---- */

/* The own layout with the step of the first row, for the bill. */
static void bill_of(const struct own_report *o, struct planner_bill *ret)
{
    struct plan_found found = o->found;
    found.time.seconds = o->rows[0].step.seconds;
    planner_bill_of(&o->p, &found, ret);
}

static void print_memory(FILE *f, const struct own_report *o)
{
    const struct plan_bytes *b = &o->found.bytes;
    char a[6][OUT_NUMBER];
    fprintf(f, "  Memory     %s%s of %s per worker; about %s parameters, %s gradients, %s optimizer, %s activations\n",
            o->memory.exact ? "" : "~", out_bytes((int64_t)o->memory.bytes, a[0]),
            out_bytes((int64_t)o->p.search.memory, a[1]), out_bytes((int64_t)b->params, a[2]),
            out_bytes((int64_t)b->grads, a[3]), out_bytes((int64_t)b->optimizer, a[4]),
            out_bytes((int64_t)(b->activations + b->buffers), a[5]));
}

static void print_speed(FILE *f, const struct own_report *o)
{
    const struct plan_time *t = &o->found.time;
    struct plan_time with = *t;
    char a[OUT_NUMBER];
    with.seconds = o->rows[0].step.seconds;
    fprintf(f, "  Speed      %s tokens/s, MFU %.1f %%", out_count(planning_tokens_per_s(&o->p, &with), a),
            100 * planning_mfu(&o->p, &with));
    if (t->recompute > 0)
        fprintf(f, "; %.1f %% of the step is computed again", 100 * t->recompute / t->seconds);
    fputc('\n', f);
}

static void print_run(FILE *f, const struct own_report *o)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    struct planner_bill bill;
    bill_of(o, &bill);
    fprintf(f, "  Run        %s tokens in %s with failures and checkpoints", out_count(bill.tokens, a),
            out_duration(bill.seconds, b));
    if (bill.kwh > 0)
        fprintf(f, ", %s", planner_energy_text(bill.kwh, c));
    if (bill.price > 0)
        fprintf(f, ", %s at %s per device and hour", planner_price_text(bill.price, a),
                planner_price_text(o->p.price, b));
    fputc('\n', f);
}

/* The best layout of as many workers, if it differs by more than the estimates do. */
static err_t print_best(FILE *f, const struct own_report *o)
{
    char text[256];
    struct plan_results r = {0};
    err_t err = plan_search(&o->p.search, &r);
    const double gain = !err && r.n_fit ? 1 - r.fit[0].time.seconds / o->found.time.seconds : 0;
    if (!err && gain > 0.05)
        fprintf(f, "  Best       %s is %.0f %% faster; --search shows why\n",
                planner_layout_text(&r.fit[0].layout, text, sizeof(text)), 100 * gain);
    else if (!err)
        fprintf(f, "  Best       no layout of these workers is more than 5 %% faster\n");
    plan_results_fini(&r);
    return err;
}

/* What the columns are, and where their numbers are from. */
static void print_sources(FILE *f, const struct own_report *o)
{
    const struct own_step *s = &o->rows[0].step;
    const char *unit;
    step_unit(o, &unit);
    fprintf(
        f, "  Columns    COMPUTE, COMM (not hidden) and BUBBLE are parts of a step, in %s; RUN is without failures%s\n",
        unit, o->n > 1 ? "; LOST is what a row takes beyond its share of the first one" : "");
    if (s->high > 0)
        fprintf(f, "  Interval   %s\n", s->interval_source);
    if (s->measured > 0)
        fprintf(f, "  Times      %.3g %% of the operations' time is from measured times%s%s\n", 100 * s->measured,
                s->formulas[0] ? ", the rest from rates: " : "", s->formulas);
    else
        fprintf(f, "  Times      from rates, %s%s%s\n", s->programs ? "operation by operation" : "in closed form",
                s->formulas[0] ? ": " : "", s->formulas);
    fprintf(f, "  Rates      %s\n", o->p.machine.source);
}

static err_t print_text(const struct own_report *o)
{
    char text[256];
    struct out_page page;
    const int64_t workers = o->p.search.workers;
    out_page_begin(&page);
    fprintf(page.f, "job %s fits on %s: %" PRId64 " worker%s on %" PRId64 " node%s\n", o->job->name, o->p.machine.name,
            workers, workers == 1 ? "" : "s", o->p.nodes, o->p.nodes == 1 ? "" : "s");
    fprintf(page.f, "  Layout     %s\n", planner_layout_text(&o->found.layout, text, sizeof(text)));
    print_memory(page.f, o);
    print_speed(page.f, o);
    print_run(page.f, o);
    err_t err = print_best(page.f, o);
    out_page_end(&page, stdout);
    if (err)
        return err;
    print_table(o);
    out_page_begin(&page);
    print_sources(page.f, o);
    out_page_end(&page, stdout);
    return OK;
}

/* ---- JSON ---- */

static json_t *row_json(const struct own_run *r, const struct own_run *first)
{
    const struct own_loss l = own_lost(r, first);
    const struct own_step *s = &r->step;
    json_t *parts = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "start", r->start, "compute", r->compute, "comm",
                              r->comm, "bubble", r->bubble, "wait", r->wait, "evaluation", r->eval);
    json_t *lost = json_pack("{s:f, s:f, s:f, s:f, s:f}", "all", l.all, "start", l.start, "comm", l.comm, "bubble",
                             l.bubble, "wait", l.wait);
    return json_pack("{s:I, s:I, s:f, s:[f,f], s:f, s:s, s:I, s:f, s:f, s:o, s:o}", "workers", (json_int_t)r->workers,
                     "nodes", (json_int_t)r->nodes, "step_s", s->seconds, "step_interval_s", s->low, s->high,
                     "measured", s->measured, "formulas", s->formulas, "steps", (json_int_t)r->steps, "run_s", r->all,
                     "speed_up", first->all / r->all, "parts_s", parts, "lost_s", lost);
}

/* The rows have the times of a step; the closed form's own would be a second answer. */
static err_t print_json(struct global *g, const struct own_report *o)
{
    static const char *const of_step[] = {"step_s", "step_interval_s", "tokens_per_s", "mfu"};
    struct planner_bill bill;
    json_t *value = planning_found_json(&o->p, &o->found), *rows = json_array();
    for (size_t i = 0; i < sizeof(of_step) / sizeof(of_step[0]); i++)
        json_object_del(value, of_step[i]);
    for (int i = 0; i < o->n; i++)
        json_array_append_new(rows, row_json(&o->rows[i], &o->rows[0]));
    bill_of(o, &bill);
    json_object_set_new(value, "machine", json_string(o->p.machine.name));
    json_object_set_new(value, "source", json_string(o->p.machine.source));
    json_object_set_new(value, "interval_source", json_string(o->rows[0].step.interval_source));
    json_object_set_new(value, "memory", out_json_real(o->p.search.memory));
    json_object_set_new(value, "run", planner_bill_json(&bill));
    json_object_set_new(value, "rows", rows);
    if (o->memory.exact)
        json_object_set_new(value, "exact_bytes", out_json_real(o->memory.bytes));
    return out_json(value, g->format == OUT_JSONL);
}

/* ---- all rows ---- */

/* The job's layout on `nodes` nodes. ERR_INVALID: they do not have a multiple of its workers. */
static err_t own_grow(const struct own_report *o, int64_t nodes, struct plan_layout *ret, struct why *why)
{
    const struct plan_layout *own = &o->found.layout;
    const int64_t workers = nodes * o->whole.device.per_node, had = plan_layout_workers(own);
    if (workers < had || workers % had)
        return why_set(why, ERR_INVALID,
                       "--nodes %" PRId64 ": %s has %" PRId64 " devices on so many nodes, which is no multiple of the "
                       "job's %" PRId64 " workers",
                       nodes, o->p.machine.name, workers, had);
    *ret = *own;
    ret->dp *= workers / had;
    return OK;
}

static err_t grow_rows(struct own_report *o, struct why *why)
{
    const struct planner_args *a = o->args;
    const double had = (double)plan_layout_workers(&o->found.layout);
    const int64_t last = a->nodes_to ? a->nodes_to : a->nodes_from;
    struct plan_layout more = {0};
    err_t err = OK;
    for (int64_t nodes = a->nodes_from; !err && nodes > 0 && nodes <= last && o->n < MAX_ROWS; nodes *= 2) {
        err = own_grow(o, nodes, &more, why);
        const double ratio = (double)plan_layout_workers(&more) / had;
        if (!err && ratio > 1)
            err = own_row(o, &more, ratio, why);
    }
    return err;
}

/* Sets what follows from the number of workers: nodes, and what each worker has of them. */
static err_t place_own(struct own_report *o, struct why *why)
{
    const int64_t workers = plan_layout_workers(&o->found.layout), per_node = o->whole.device.per_node;
    int64_t nodes;
    share_machine(o, workers, &o->p.machine, &nodes);
    if (o->whole.nodes && nodes > o->whole.nodes)
        return why_set(why, ERR_INVALID,
                       "parallel.workers: %" PRId64 " workers are %" PRId64 " nodes, but %s has %" PRId64
                       ": write at most %" PRId64,
                       workers, nodes, o->whole.name, o->whole.nodes, o->whole.nodes * per_node);
    planning_set_nodes(&o->p, nodes);
    o->p.search.workers = workers;
    o->p.search.memory = planner_memory(&o->p.machine);
    return OK;
}

static err_t report_make(struct own_report *o, struct why *why)
{
    err_t err = place_own(o, why);
    err = err ? err : planner_fit(&o->p, o->job, &o->found.layout, &o->memory, why);
    if (err)
        return err;
    plan_step_bytes(&o->p.shape, &o->found.layout, &o->found.bytes);
    plan_step_time(&o->p.shape, &o->found.layout, &o->p.machine, &o->p.search.overlap, &o->found.time);
    err = own_row(o, &o->found.layout, 1, why);
    return err ? err : grow_rows(o, why);
}

err_t planner_own(struct global *g, const struct planner_args *a, const struct job_spec *job, struct why *why)
{
    struct own_report o = {.args = a, .job = job};
    if (job->parallel.automatic)
        return why_set(why, ERR_INVALID,
                       "parallel.auto: the job has no layout of its own. --search shows the layouts for a machine, and "
                       "without options `dtctl plan` shows the choice for this node");
    err_t err = planning_init(&o.p, a, job, why);
    if (err)
        return err;
    o.whole = o.p.machine;
    plan_layout_of(job, &o.found.layout);
    err = report_make(&o, why);
    if (!err)
        err = g->format != OUT_TEXT ? print_json(g, &o) : print_text(&o);
    planning_fini(&o.p);
    return err;
}
