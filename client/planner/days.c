/* What a layout reaches over weeks: the step of the slowest of all ranks, failures, and checkpoints as often as is
 * best. */
#include "client/planner/internal.h"

#include "common/plan/search/goodput.h"
#include "common/plan/search/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define DAY_S 86400.0
#define RUNS 50 /* simulated runs */

struct days {
    const struct planning *p;
    const struct planner_args *a;
    const struct plan_found *best;
    struct planned_step step;
    struct plan_run run;
    struct plan_goodput exact, drawn;
    double state_bytes; /* of the whole job */
};

/* Each worker copies its own part of the state, once; replicas have the same. */
static void simulate_run(struct days *d, int64_t days)
{
    const struct machine *m = &d->p->machine;
    const struct plan_shape *s = &d->p->shape;
    const struct plan_layout *l = &d->best->layout;
    const double replicas = (double)(l->dp * (l->zero ? 1 : l->fsdp) * l->cp);
    d->state_bytes = plan_shape_params(s, NULL) * (s->keep_bytes + s->state_bytes);
    const double own = d->state_bytes * replicas / (double)d->p->search.workers;
    d->run = (struct plan_run){.length = (double)days * DAY_S,
                               .nodes = (double)d->p->nodes,
                               .node_failures = m->cost.failures / (1000 * DAY_S),
                               .restart = m->cost.restart_s,
                               .stall = own / replicas / (m->storage.copy_gb * 1e9),
                               .save = d->state_bytes / (m->storage.bandwidth_gb * 1e9)};
    plan_goodput(&d->run, &d->exact);
    plan_goodput_simulate(&d->run, RUNS, 1, &d->drawn);
}

static void print_money(const struct days *d)
{
    char a[OUT_NUMBER];
    const struct machine *m = &d->p->machine;
    const double hours = d->run.length / 3600 * (double)d->p->search.workers;
    if (m->cost.watts > 0)
        printf("  Energy     %s MWh at %.0f W per device\n", out_count(hours * m->cost.watts * 1e-6, a), m->cost.watts);
    if (m->cost.price > 0)
        printf("  Price      %s at %.2f per device and hour\n", out_count(hours * m->cost.price, a), m->cost.price);
}

static void print_run(const struct days *d)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    const struct machine *m = &d->p->machine;
    const double steps = d->exact.share * d->run.length / d->step.all.seconds;
    printf("  Failures   one in %s, %.0f in all\n", out_duration(d->exact.mean_time, a), d->exact.failures);
    printf("  Checkpoint %s; stalls the job for %.2g s, is complete after %s; best every %s\n",
           out_bytes((int64_t)d->state_bytes, a), d->run.stall, out_duration(d->run.save, b),
           out_duration(d->exact.interval, c));
    printf("  Goodput    %.1f %% (simulated %.1f %%); stalls %.1f %%, repeated %.1f %%, restarts %.1f %%\n",
           100 * d->exact.share, 100 * d->drawn.share, 100 * d->exact.stalled, 100 * d->exact.lost,
           100 * d->exact.restarting);
    printf("  Progress   %s steps, %s tokens\n", out_count(steps, a),
           out_count(steps * d->p->shape.global_batch * d->p->shape.seq, b));
    print_money(d);
    printf("  Rates      %s\n", m->source);
}

static void print_text(const struct days *d, const struct job_spec *job)
{
    char text[256];
    printf("job %s on %s: %" PRId64 " workers", job->name, d->p->machine.name, d->p->search.workers);
    if (d->a->days)
        printf(", %" PRId64 " days", d->a->days);
    printf("\n  Layout     %s\n", planner_layout_text(&d->best->layout, text, sizeof(text)));
    planner_step_print(d->p, d->a, d->best, &d->step);
    if (d->a->days)
        print_run(d);
}

static err_t print_json(struct global *g, const struct days *d)
{
    if (!d->a->days)
        return out_json(
            json_pack("{s:o,s:o}", "best", planning_found_json(d->p, d->best), "step", planner_step_json(&d->step)),
            g->format == OUT_JSONL);
    return out_json(json_pack("{s:o,s:o,s:f,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "best",
                              planning_found_json(d->p, d->best), "step", planner_step_json(&d->step), "days",
                              d->run.length / DAY_S, "mean_time_s", out_json_real(d->exact.mean_time), "failures",
                              d->exact.failures, "interval_s", d->exact.interval, "stall_s", d->run.stall, "save_s",
                              d->run.save, "goodput", d->exact.share, "stalled", d->exact.stalled, "lost",
                              d->exact.lost, "restarting", d->exact.restarting),
                    g->format == OUT_JSONL);
}

err_t planner_days(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct plan_results results = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    struct days d = {.p = &p, .a = a};
    err = plan_search(&p.search, &results);
    if (!err && !results.n_fit)
        err = why_set(why, ERR_INVALID, "no layout fits on %" PRId64 " workers; --search says what is missing",
                      p.search.workers);
    if (!err) {
        d.best = results.fit;
        err = planner_step_simulate(&p, a, d.best, &d.step, why);
    }
    if (!err) {
        if (a->days)
            simulate_run(&d, a->days);
        if (g->format != OUT_TEXT)
            err = print_json(g, &d);
        else
            print_text(&d, job);
    }
    plan_results_fini(&results);
    planning_fini(&p);
    return err;
}
