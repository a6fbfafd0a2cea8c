/* Steps of many ranks with noise, and runs with failures: against closed forms, and against each other. */
#include "common/plan/search/goodput.h"
#include "common/plan/search/simulate.h"
#include "tests/lib/test.h"

#include <math.h>

static void schedule_make(enum schedule_kind kind, int ranks, int chunks, int micros, struct schedule *ret)
{
    struct why why = {0};
    if (schedule_build(kind, ranks, chunks, micros, ret, &why))
        fail_msg("%s", why.text);
}

static const struct schedule_cost cost = {.seconds = {1, 2, 1, 1}, .latency = 0.01, .last_scale = 1};

/* Without noise the list gives the times of schedule_simulate, which visits slots in another way. */
TEST(a_quiet_step_is_that_of_the_schedule)
{
    const struct {
        enum schedule_kind kind;
        int chunks;
    } rows[] = {{SCHEDULE_GPIPE, 1}, {SCHEDULE_1F1B, 1}, {SCHEDULE_INTERLEAVED, 2}, {SCHEDULE_ZB_H1, 1},
                {SCHEDULE_ZB_H2, 1}, {SCHEDULE_ZB_V, 2}, {SCHEDULE_DUALPIPE_V, 2}};
    const struct plan_noise none = {.seed = 1};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int micros = 4; micros <= 12; micros += 4) {
            struct schedule s;
            struct schedule_times times = {0};
            struct plan_step_result r;
            struct why why = {0};
            schedule_make(rows[i].kind, 4, rows[i].chunks, micros, &s);
            assert_ok(schedule_simulate(&s, &cost, &times, &why));
            struct plan_step step = {.schedule = &s, .cost = cost, .replicas = 3, .peers = 2, .end_s = 0.5};
            assert_ok(plan_simulate(&step, &none, &r, &why));
            assert_true(fabs(r.quiet - 0.5 - times.makespan) < 1e-9);
            assert_true(fabs(r.seconds - r.quiet) < 1e-5 * r.quiet); /* durations are floats */
            assert_true(fabs(r.fastest - r.slowest) < 1e-9);
            schedule_times_fini(&times);
            schedule_fini(&s);
        }
}

/* One slot a step: the step is as long as the slowest of n normal durations. The expected maximum of 1,024 is 3.24
 * standard deviations above the mean, of 64 2.34 (tables of order statistics). */
TEST(the_slowest_of_many_is_that_of_order_statistics)
{
    const struct {
        int64_t replicas, peers;
        double sigmas;
    } rows[] = {{1024, 1, 3.24}, {1, 1024, 3.24}, {64, 1, 2.34}, {8, 8, 2.34}};
    struct schedule s;
    struct why why = {0};
    schedule_make(SCHEDULE_GPIPE, 1, 1, 1, &s);
    const struct schedule_cost one = {.seconds = {1, 0, 0, 0}, .last_scale = 1};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double sum = 0;
        for (uint64_t seed = 1; seed <= 200; seed++) {
            struct plan_step_result r;
            struct plan_step step = {.schedule = &s, .cost = one, .replicas = rows[i].replicas, .peers = rows[i].peers};
            assert_ok(plan_simulate(&step, &(struct plan_noise){.jitter = 0.01, .seed = seed}, &r, &why));
            assert_true(r.fastest <= r.mean && r.mean <= r.slowest && r.seconds == r.slowest);
            sum += (r.seconds - 1) / 0.01;
        }
        assert_true(fabs(sum / 200 - rows[i].sigmas) < 0.06);
    }
    schedule_fini(&s);
}

/* 100,352 ranks: 784 replicas of 16 stages of 8. Every rank's slots are counted. */
TEST(a_step_of_a_hundred_thousand_ranks)
{
    struct schedule s;
    struct plan_step_result r, again;
    struct why why = {0};
    schedule_make(SCHEDULE_1F1B, 16, 1, 64, &s);
    struct plan_step step = {.schedule = &s, .cost = cost, .replicas = 784, .peers = 8, .end_s = 1};
    const struct plan_noise noise = {.spread = 0.01, .jitter = 0.01, .seed = 7};
    assert_ok(plan_simulate(&step, &noise, &r, &why));
    assert_true(r.slots == 784ll * 8 * 16 * 64 * 2);
    assert_true(r.seconds > r.quiet && r.seconds < 1.1 * r.quiet);
    assert_ok(plan_simulate(&step, &noise, &again, &why));
    assert_true(again.seconds == r.seconds); /* the same seed, the same step */
    schedule_fini(&s);
}

/* ---- runs ---- */

#define DAY 86400.0

/* 16,384 GPUs in nodes of 8 at 3.79 failures in 1,000 node-days: one in 3.1 hours. */
static const struct plan_run large = {
    .length = 54 * DAY, .nodes = 2048, .node_failures = 3.79 / (1000 * DAY), .restart = 180, .stall = 20, .save = 60};

TEST(parts_of_a_run_sum_to_one)
{
    for (double stall = 0.5; stall < 100; stall *= 3)
        for (double interval = 0; interval < 5000; interval = interval * 4 + 60) {
            struct plan_run run = large;
            struct plan_goodput g;
            run.stall = stall;
            run.interval = interval;
            plan_goodput(&run, &g);
            assert_true(fabs(g.share + g.stalled + g.lost + g.restarting - 1) < 1e-12);
            assert_true(g.share > 0 && g.lost >= 0 && g.stalled >= 0 && g.restarting >= 0);
        }
}

TEST(without_failures_only_saves_cost)
{
    struct plan_run run = large;
    struct plan_goodput g;
    run.node_failures = 0;
    run.interval = 980;
    plan_goodput(&run, &g);
    assert_true(fabs(g.share - 0.98) < 1e-12 && g.failures == 0);
    plan_goodput_simulate(&run, 20, 1, &g);
    assert_true(fabs(g.share - 0.98) < 0.001 && g.failures == 0);
}

/* The best interval is near Young's, and no other one is better. The share that Kokolis et al. 2024 give for these
 * numbers, (1 - N f (r + t / 2)) / (1 + w / t), is 0.926. */
TEST(the_best_interval_is_the_best)
{
    struct plan_run run = large;
    struct plan_goodput best, other;
    run.save = 0;
    plan_goodput(&run, &best);
    const double young = sqrt(2 * run.stall * best.mean_time);
    assert_true(best.interval > 0.8 * young && best.interval < 1.2 * young);
    assert_true(fabs(best.share - 0.926) < 0.005);
    for (double factor = 0.5; factor < 2.1; factor *= 1.1) {
        run.interval = best.interval * factor;
        plan_goodput(&run, &other);
        assert_true(other.share <= best.share + 1e-9);
    }
}

TEST(the_closed_form_equals_the_simulation)
{
    const double nodes[] = {16, 128, 2048, 12544}, restarts[] = {10, 180, 900};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++) {
            struct plan_run run = large;
            struct plan_goodput exact, drawn;
            run.nodes = nodes[i];
            run.restart = restarts[k];
            plan_goodput(&run, &exact);
            plan_goodput_simulate(&run, 40, 11 + i, &drawn);
            if (fabs(exact.share - drawn.share) > 0.01)
                fail_msg("%.0f nodes, restart %.0f s: %.4f, drawn %.4f", nodes[i], restarts[k], exact.share,
                         drawn.share);
            assert_true(fabs(drawn.share + drawn.stalled + drawn.lost + drawn.restarting - 1) < 0.01);
        }
}
