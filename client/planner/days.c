/* What a layout reaches over weeks: the step of the slowest of all ranks, failures, and checkpoints as often as is
 * best. */
#include "client/planner/money.h"

#include "common/plan/search/goodput.h"
#include "common/plan/search/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define DAY_S 86400.0
#define RUNS 50   /* simulated runs */
#define FEW 0.001 /* share of a run that a job may wait for nodes */

struct days {
    const struct planning *p;
    const struct planner_args *a;
    const struct plan_found *best;
    struct planned_step step;
    struct plan_run run;
    struct plan_goodput exact, drawn, waiting; /* waiting: if the job needed all its nodes */
    int64_t enough;                            /* spares for that one */
    struct dtd_recovery {
        double load_s, restart_s;
        struct plan_goodput goodput;
    } storage, memory;  /* as dtd restarts, from either */
    double state_bytes; /* of the whole job */
};

/* How the run would be if dtd restarted the job, and loading took so long. */
static struct dtd_recovery recover_in(const struct days *d, double load_s)
{
    struct plan_run run = d->run;
    struct dtd_recovery r = {.load_s = load_s};
    run.restart = r.restart_s = d->p->machine.recovery.detect_s + d->p->machine.recovery.epoch_s + load_s;
    plan_goodput(&run, &r.goodput);
    return r;
}

/* The job waits when it lacks a node; and with how many spares it hardly waits. */
static void wait_for_nodes(struct days *d)
{
    struct plan_run run = d->run;
    run.waits = true;
    plan_goodput(&run, &d->waiting);
    d->enough = plan_goodput_spares(&run, FEW);
}

static err_t simulate_run(struct days *d)
{
    const struct plan_layout *l = &d->best->layout;
    const double replicas =
        (double)(l->dp * (l->zero ? 1 : l->fsdp) * l->cp); /* each copies a part of the same state */
    d->state_bytes = planning_state_bytes(d->p);
    planning_run(d->p, l, (double)d->a->days * DAY_S, &d->run);
    if (d->a->spares >= 0)
        d->run.spares = d->a->spares;
    plan_goodput(&d->run, &d->exact);
    d->storage = recover_in(d, d->run.save);
    d->memory = recover_in(d, d->run.stall * replicas);
    wait_for_nodes(d);
    return plan_goodput_simulate(&d->run, RUNS, d->a->seed ? (uint64_t)d->a->seed : 1, &d->drawn);
}

/* Devices are paid and need power for the whole time, whatever they do. */
static double device_hours(const struct days *d)
{
    return d->run.length / 3600 * (double)d->p->search.workers;
}

static double steps_done(const struct days *d)
{
    return d->exact.share * d->run.length / d->step.all.seconds;
}

static double tokens_done(const struct days *d)
{
    return steps_done(d) * d->p->shape.global_batch * d->p->shape.seq;
}

static void print_money(const struct days *d)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    const struct machine *m = &d->p->machine;
    const double price = device_hours(d) * d->p->price, kwh = device_hours(d) * m->cost.watts / 1000;
    if (kwh > 0)
        printf("  Energy     %s at %.0f W per device\n", planner_energy_text(kwh, a), m->cost.watts);
    if (price > 0)
        printf("  Price      %s at %.2f per device and hour: %.3g for 1M tokens, %s tokens/$\n",
               planner_price_text(price, a), d->p->price, price / tokens_done(d) * 1e6,
               out_count(tokens_done(d) / price, b));
}

/* A budget pays for the days, or for a part of them. */
static err_t check_budget(const struct days *d, const struct planner_args *a, struct why *why)
{
    char text[4][OUT_NUMBER];
    const double price = device_hours(d) * d->p->price, budget = a->money.budget;
    if (!budget || price <= budget)
        return OK;
    return why_set(why, ERR_INVALID,
                   "--budget %s: %" PRId64 " days cost %s, which is %s more; the budget pays for %.1f days, in which "
                   "the job trains %s tokens",
                   planner_price_text(budget, text[0]), a->days, planner_price_text(price, text[1]),
                   planner_price_text(price - budget, text[2]), (double)a->days * budget / price,
                   out_count(tokens_done(d) * budget / price, text[3]));
}

static void print_recovery(const struct days *d)
{
    const struct machine *m = &d->p->machine;
    printf("  Restarts   %.0f s each. As dtd restarts: %.3g s detection + %.3g s start + %.3g s loading from storage, "
           "goodput %.1f %%;\n             loading from the memory of nodes %.2g s, %.1f %%\n",
           d->run.restart, m->recovery.detect_s, m->recovery.epoch_s, d->storage.load_s, 100 * d->storage.goodput.share,
           d->memory.load_s, 100 * d->memory.goodput.share);
}

static void print_spares(const struct days *d)
{
    const double rate = d->run.nodes * d->run.node_failures;
    printf("  Spares     %" PRId64
           " nodes; %.1f are in repair in the mean. dtd goes on with fewer; a job that needs all its "
           "nodes\n             waits %.1f %% of the time, and less than %.1f %% with %" PRId64 " spares\n",
           d->run.spares, rate * d->run.taken * d->run.repair, 100 * d->waiting.missing, 100 * FEW, d->enough);
}

static void print_run(const struct days *d)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    const struct machine *m = &d->p->machine;
    printf("  Failures   one in %s, %.0f in all\n", out_duration(d->exact.mean_time, a), d->exact.failures);
    printf("  Checkpoint %s; stalls the job for %.2g s, is complete after %s; best every %s (checkpoint.every: %.0f)\n",
           out_bytes((int64_t)d->state_bytes, a), d->run.stall, out_duration(d->run.save, b),
           out_duration(d->exact.interval, c), fmax(1, round(d->exact.interval / d->step.all.seconds)));
    printf(
        "  Goodput    %.1f %% (simulated %.1f +- %.1f %%); stalls %.1f %%, repeated %.1f %%, restarts %.1f %%, missing "
        "nodes %.1f %%\n",
        100 * d->exact.share, 100 * d->drawn.share, 100 * d->drawn.deviation, 100 * d->exact.stalled,
        100 * d->exact.lost, 100 * d->exact.restarting, 100 * d->exact.missing);
    print_recovery(d);
    print_spares(d);
    printf("  Progress   %s steps, %s tokens\n", out_count(steps_done(d), a), out_count(tokens_done(d), b));
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

static json_t *recovery_json(const struct dtd_recovery *r)
{
    return json_pack("{s:f,s:f,s:f}", "load_s", r->load_s, "restart_s", r->restart_s, "goodput", r->goodput.share);
}

static err_t print_json(struct global *g, const struct days *d)
{
    if (!d->a->days)
        return out_json(
            json_pack("{s:o,s:o}", "best", planning_found_json(d->p, d->best), "step", planner_step_json(&d->step)),
            g->format == OUT_JSONL);
    json_t *value = json_pack("{s:o,s:o,s:f,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "best",
                              planning_found_json(d->p, d->best), "step", planner_step_json(&d->step), "days",
                              d->run.length / DAY_S, "mean_time_s", out_json_real(d->exact.mean_time), "failures",
                              d->exact.failures, "interval_s", d->exact.interval, "stall_s", d->run.stall, "save_s",
                              d->run.save, "goodput", d->exact.share, "stalled", d->exact.stalled, "lost",
                              d->exact.lost, "restarting", d->exact.restarting, "missing", d->exact.missing);
    json_t *more = json_pack("{s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:f,s:o,s:o}", "tokens", tokens_done(d), "price",
                             device_hours(d) * d->p->price, "kwh", device_hours(d) * d->p->machine.cost.watts / 1000,
                             "simulated_goodput", d->drawn.share, "simulated_deviation", d->drawn.deviation, "spares",
                             (json_int_t)d->run.spares, "enough_spares", (json_int_t)d->enough, "waiting_for_all_nodes",
                             d->waiting.missing, "dtd_from_storage", recovery_json(&d->storage), "dtd_from_memory",
                             recovery_json(&d->memory));
    json_object_update(value, more);
    json_decref(more);
    return out_json(value, g->format == OUT_JSONL);
}

static err_t best_layout(struct days *d, struct planning *p, struct plan_results *results, struct why *why)
{
    err_t err = plan_search(&p->search, results);
    if (!err && !results->n_fit)
        return why_set(why, ERR_INVALID, "no layout fits on %" PRId64 " workers; --search shows what is missing",
                       p->search.workers);
    d->best = results->fit;
    return err;
}

/* The workers of the job file determine the number of nodes. */
static err_t own_layout(struct days *d, struct planning *p, const struct plan_layout *own, struct plan_found *ret,
                        struct why *why)
{
    const int64_t workers = plan_layout_workers(own), per_node = p->machine.device.per_node;
    const int64_t nodes = (workers + per_node - 1) / per_node;
    if ((d->a->nodes_from && nodes != d->a->nodes_from) || (p->machine.nodes && nodes > p->machine.nodes))
        return why_set(why, ERR_INVALID,
                       "--own: parallel.workers is %" PRId64 ", which are %" PRId64 " nodes of %s and not %" PRId64
                       ": write --set parallel.workers=%" PRId64 ", or leave --own out",
                       workers, nodes, p->machine.name, p->nodes, p->nodes * per_node);
    if (own->pp > 1 && own->schedule == PIPE_FILE)
        return why_set(why, ERR_INVALID,
                       "--own: schedules from a file (parallel.schedule_csv) are not simulated; write "
                       "--set parallel.schedule=1f1b, or leave --own out");
    planning_set_nodes(p, nodes);
    p->search.workers = workers;
    ret->layout = *own;
    plan_step_bytes(&p->shape, own, &ret->bytes);
    plan_step_time(&p->shape, own, &p->machine, &p->search.overlap, &ret->time);
    d->best = ret;
    return OK;
}

static err_t simulate_all(struct days *d, struct global *g, const struct job_spec *job, struct why *why)
{
    err_t err = planner_step_simulate(d->p, d->a, d->best, &d->step, why);
    if (!err && d->a->days)
        err = simulate_run(d);
    if (!err && g->format != OUT_TEXT)
        err = print_json(g, d);
    else if (!err)
        print_text(d, job);
    return err || !d->a->days ? err : check_budget(d, d->a, why);
}

err_t planner_days(struct global *g, const struct planner_args *a, struct job_spec *job, const struct plan_layout *own,
                   struct why *why)
{
    struct planning p;
    struct plan_results results = {0};
    struct plan_found found = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    struct days d = {.p = &p, .a = a};
    err = a->own ? own_layout(&d, &p, own, &found, why) : best_layout(&d, &p, &results, why);
    err = err ? err : simulate_all(&d, g, job, why);
    plan_results_fini(&results);
    planning_fini(&p);
    return err;
}
