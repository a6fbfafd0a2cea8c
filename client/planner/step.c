/* Steps of one layout on all ranks: at the level of slots, or of operations (--operations). */
#include "client/planner/internal.h"

#include "common/base/clock.h"
#include "common/plan/search/operations.h"

#include <inttypes.h>
#include <stdio.h>

/* How many slots or operations of ranks are computed when no number of steps is given: about a second. */
#define SLOTS 50e6
#define OPERATIONS 500e6
#define MAX_STEPS 200

static int steps_of(const struct planner_args *a, const struct plan_step *step)
{
    if (a->steps)
        return (int)a->steps;
    const struct schedule *s = step->schedule;
    const double ranks = (double)(s->ranks * step->replicas * step->peers);
    double per_rank = 0;
    for (int i = 0; i < s->rows[0].n; i++)
        per_rank += a->operations ? plan_operations_slot(step->operations, 0, s->rows[0].slots[i].kind, false)->n : 1;
    const double most = (a->operations ? OPERATIONS : SLOTS) / (ranks * per_rank);
    return most < 1 ? 1 : most > MAX_STEPS ? MAX_STEPS : (int)most;
}

/* What the closed form adds at the end, beyond what the operations have. */
static double end_seconds(const struct plan_found *f, bool operations)
{
    const struct plan_time *t = &f->time;
    if (!operations)
        return t->params + t->grads + t->update;
    return t->update + (f->layout.zero == 3 ? 0 : t->params);
}

static struct plan_noise noise_of(const struct machine *m, const struct planner_args *a, double replaced)
{
    return (struct plan_noise){.spread = m->noise.spread,
                               .jitter = m->noise.jitter,
                               .operation = a->operations ? m->noise.operation : 0,
                               .stragglers = m->noise.stragglers,
                               .slowdown = m->noise.slowdown,
                               .replaced = replaced,
                               .seed = a->seed ? (uint64_t)a->seed : 1};
}

/* The same steps with average devices in the place of slow ones. */
static err_t simulate_all(const struct planning *p, const struct planner_args *a, const struct plan_step *step,
                          struct planned_step *ret, struct why *why)
{
    const double shares[PLANNER_WITHOUT] = {0.5 / (double)p->search.workers, PLANNER_SLOWEST};
    const int64_t began = clock_mono_ns();
    struct plan_noise noise = noise_of(&p->machine, a, 0);
    err_t err = plan_simulate(step, &noise, &ret->all, why);
    ret->sim_s = (double)(clock_mono_ns() - began) * 1e-9;
    for (int i = 0; !err && i < PLANNER_WITHOUT; i++) {
        noise = noise_of(&p->machine, a, shares[i]);
        err = plan_simulate(step, &noise, &ret->without[i], why);
    }
    return err;
}

err_t planner_step_simulate(const struct planning *p, const struct planner_args *a, const struct plan_found *f,
                            struct planned_step *ret, struct why *why)
{
    const struct plan_layout *l = &f->layout;
    struct plan_operations operations = {0};
    struct schedule s;
    err_t err = schedule_build((enum schedule_kind)l->schedule, (int)l->pp, (int)(l->chunks > 1 ? l->chunks : 1),
                               (int)plan_layout_micros(&p->shape, l), &s, why);
    if (err)
        return err;
    err = plan_operations_init(&p->shape, l, &p->machine, &p->search.overlap, &s, !a->operations, &operations);
    if (!err) {
        struct plan_step step = {.schedule = &s,
                                 .cost.last_scale = 1,
                                 .replicas = l->dp * l->fsdp,
                                 .peers = l->tp * l->cp,
                                 .end_s = end_seconds(f, a->operations),
                                 .operations = &operations};
        step.steps = ret->steps = steps_of(a, &step);
        err = simulate_all(p, a, &step, ret, why);
    }
    plan_operations_fini(&operations);
    schedule_fini(&s);
    return err;
}

/* ---- report ---- */

static void print_noise(const struct machine *m, bool operations)
{
    printf("devices that differ by %.1f %% and jitter by %.1f %%", 100 * m->noise.spread, 100 * m->noise.jitter);
    if (operations)
        printf(", operations by %.1f %%", 100 * m->noise.operation);
    if (m->noise.stragglers > 0)
        printf(", and %.3g %% of them slower by %.3g %%", 100 * m->noise.stragglers, 100 * m->noise.slowdown);
    printf("\n");
}

/* The differences sum to what noise costs, so that the table shows where it is lost. */
static void print_parts(const struct planned_step *s)
{
    const struct plan_step_result *r = &s->all;
    printf("  Where the time of a rank goes, in the mean     equal ranks      with noise  difference\n");
    for (int part = 0; part < PLAN_PARTS; part++) {
        const double quiet = r->quiet_parts[part], noisy = r->parts[part];
        if (noisy > 1e-4 * r->seconds || quiet > 1e-4 * r->quiet)
            printf("    %-38s %8.4f s %5.1f %%  %8.4f s %5.1f %%  %+6.2f %%\n", plan_part_name((enum plan_part)part),
                   quiet, 100 * quiet / r->quiet, noisy, 100 * noisy / r->seconds, 100 * (noisy - quiet) / r->quiet);
    }
}

void planner_step_print(const struct planning *p, const struct planner_args *a, const struct plan_found *f,
                        const struct planned_step *s)
{
    char text[OUT_NUMBER];
    const struct plan_step_result *r = &s->all, *one = &s->without[0], *some = &s->without[1];
    printf(
        "  Step       %.4g s if all ranks were equal (closed form %.4g s); %.4g s (%+.1f %%, closed form %.4g s) with\n"
        "             ",
        r->quiet, f->time.seconds - f->time.wait, r->seconds, 100 * (r->seconds / r->quiet - 1), f->time.seconds);
    print_noise(&p->machine, a->operations);
    if (s->steps > 1)
        printf("             half of %d steps within %.4g s, 99 %% within %.4g s\n", s->steps, r->p50, r->p99);
    printf("             %s %s of all ranks in %.2f s\n",
           out_count((double)(a->operations ? r->operations : r->slots) * s->steps, text),
           a->operations ? "operations" : "slots", s->sim_s);
    printf("  Slow ones  the slowest device costs %.2f %%; the slowest %g %% (%" PRId64 " devices) cost %.2f %%\n",
           100 * (1 - one->seconds / r->seconds), 100 * PLANNER_SLOWEST, some->replaced,
           100 * (1 - some->seconds / r->seconds));
    if (a->operations)
        print_parts(s);
}

static json_t *parts_json(const double *parts)
{
    json_t *value = json_object();
    for (int part = 0; value && part < PLAN_PARTS; part++)
        if (json_object_set_new(value, plan_part_key((enum plan_part)part), json_real(parts[part])))
            return NULL;
    return value;
}

json_t *planner_step_json(const struct planned_step *s)
{
    const struct plan_step_result *r = &s->all;
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:I,s:I,s:f,s:f,s:f,s:o,s:o}", "seconds", r->seconds,
                     "quiet", r->quiet, "p50", r->p50, "p99", r->p99, "longest", r->longest, "fastest", r->fastest,
                     "mean", r->mean, "slowest", r->slowest, "steps", s->steps, "slots", (json_int_t)r->slots,
                     "operations", (json_int_t)r->operations, "simulation_s", s->sim_s, "without_slowest_device",
                     s->without[0].seconds, "without_slowest_thousandth", s->without[1].seconds, "parts",
                     parts_json(r->parts), "quiet_parts", parts_json(r->quiet_parts));
}
