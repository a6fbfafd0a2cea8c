/* What a layout reaches over weeks: the step of the slowest of all ranks, failures, and checkpoints as often as is
 * best. */
#include "client/planner/money.h"

#include "common/base/clock.h"
#include "common/plan/search/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define DAY_S 86400.0
#define RUNS 50 /* simulated runs */

struct days {
    const struct planning *p;
    const struct plan_found *best;
    struct plan_step_result step;
    struct plan_run run;
    struct plan_goodput exact, drawn;
    double state_bytes; /* of the whole job */
    double seconds;     /* that the simulation of a step took */
};

/* Half of the backward pass makes gradients of inputs. Repeated operations belong to the backward pass. */
static struct schedule_cost slot_costs(const struct planning *p, const struct plan_found *f)
{
    const struct plan_time *t = &f->time;
    const double slots =
        plan_layout_micros(&p->shape, &f->layout) * (double)(f->layout.chunks > 1 ? f->layout.chunks : 1);
    const double forward = (t->compute - t->recompute + t->tp + t->cp + t->ep) / 3 / slots,
                 again = t->recompute / slots;
    return (struct schedule_cost){.seconds = {[SLOT_FORWARD] = forward,
                                              [SLOT_BACKWARD] = 2 * forward + again,
                                              [SLOT_INPUT] = forward + again,
                                              [SLOT_WEIGHT] = forward},
                                  .latency = t->pp / (2 * slots),
                                  .last_scale = 1};
}

static err_t simulate_step(struct days *d, struct why *why)
{
    const struct plan_layout *l = &d->best->layout;
    const struct machine *m = &d->p->machine;
    const int64_t began = clock_mono_ns();
    struct schedule s;
    err_t err = schedule_build((enum schedule_kind)l->schedule, (int)l->pp, (int)(l->chunks > 1 ? l->chunks : 1),
                               (int)plan_layout_micros(&d->p->shape, l), &s, why);
    if (err)
        return err;
    struct plan_step step = {.schedule = &s,
                             .cost = slot_costs(d->p, d->best),
                             .replicas = l->dp * l->fsdp,
                             .peers = l->tp * l->cp,
                             .end_s = d->best->time.params + d->best->time.grads + d->best->time.update};
    err = plan_simulate(&step, &(struct plan_noise){m->noise.spread, m->noise.jitter, 1}, &d->step, why);
    schedule_fini(&s);
    d->seconds = (double)(clock_mono_ns() - began) * 1e-9;
    return err;
}

static void simulate_run(struct days *d, int64_t days)
{
    d->state_bytes = planning_state_bytes(d->p);
    planning_run(d->p, &d->best->layout, (double)days * DAY_S, &d->run);
    plan_goodput(&d->run, &d->exact);
    plan_goodput_simulate(&d->run, RUNS, 1, &d->drawn);
}

/* Devices are paid and need power for the whole time, whatever they do. */
static double device_hours(const struct days *d)
{
    return d->run.length / 3600 * (double)d->p->search.workers;
}

static double steps_done(const struct days *d)
{
    return d->exact.share * d->run.length / d->step.seconds;
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

static void print_text(const struct days *d, const struct job_spec *job, int64_t days)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER], text[256];
    const struct plan_step_result *r = &d->step;
    const struct machine *m = &d->p->machine;
    printf("job %s on %s: %" PRId64 " workers, %" PRId64 " days\n", job->name, m->name, d->p->search.workers, days);
    printf("  Layout     %s\n", planner_layout_text(&d->best->layout, text, sizeof(text)));
    printf("  Step       %.4g s if all ranks were equal; %.4g s (%+.1f %%) with devices that differ by %.1f %% and "
           "jitter by "
           "%.1f %%\n",
           r->quiet, r->seconds, 100 * (r->seconds / r->quiet - 1), 100 * m->noise.spread, 100 * m->noise.jitter);
    printf("             %s slots of all ranks in %.2f s\n", out_count((double)r->slots, a), d->seconds);
    printf("  Failures   one in %s, %.0f in all\n", out_duration(d->exact.mean_time, a), d->exact.failures);
    printf("  Checkpoint %s; stalls the job for %.2g s, is complete after %s; best every %s\n",
           out_bytes((int64_t)d->state_bytes, a), d->run.stall, out_duration(d->run.save, b),
           out_duration(d->exact.interval, c));
    printf("  Goodput    %.1f %% (simulated %.1f %%); stalls %.1f %%, repeated %.1f %%, restarts %.1f %%\n",
           100 * d->exact.share, 100 * d->drawn.share, 100 * d->exact.stalled, 100 * d->exact.lost,
           100 * d->exact.restarting);
    printf("  Progress   %s steps, %s tokens\n", out_count(steps_done(d), a), out_count(tokens_done(d), b));
    print_money(d);
    printf("  Rates      %s\n", m->source);
}

static err_t print_json(struct global *g, const struct days *d)
{
    const struct plan_step_result *r = &d->step;
    json_t *step = json_pack("{s:f,s:f,s:f,s:f,s:f,s:I}", "seconds", r->seconds, "quiet", r->quiet, "fastest",
                             r->fastest, "mean", r->mean, "slowest", r->slowest, "slots", (json_int_t)r->slots);
    return out_json(json_pack("{s:o,s:o,s:f,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "best",
                              planning_found_json(d->p, d->best), "step", step, "days", d->run.length / DAY_S,
                              "mean_time_s", out_json_real(d->exact.mean_time), "failures", d->exact.failures,
                              "interval_s", d->exact.interval, "stall_s", d->run.stall, "save_s", d->run.save,
                              "goodput", d->exact.share, "stalled", d->exact.stalled, "lost", d->exact.lost,
                              "restarting", d->exact.restarting, "tokens", tokens_done(d), "price",
                              device_hours(d) * d->p->price, "kwh", device_hours(d) * d->p->machine.cost.watts / 1000),
                    g->format == OUT_JSONL);
}

err_t planner_days(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct plan_results results = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    struct days d = {.p = &p};
    err = plan_search(&p.search, &results);
    if (!err && !results.n_fit)
        err = why_set(why, ERR_INVALID, "no layout fits on %" PRId64 " workers; --search says what is missing",
                      p.search.workers);
    if (!err) {
        d.best = results.fit;
        err = simulate_step(&d, why);
    }
    if (!err) {
        simulate_run(&d, a->days);
        if (g->format != OUT_TEXT)
            err = print_json(g, &d);
        else
            print_text(&d, job, a->days);
    }
    err = err ? err : check_budget(&d, a, why);
    plan_results_fini(&results);
    planning_fini(&p);
    return err;
}
