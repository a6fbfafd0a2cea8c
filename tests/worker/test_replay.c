/* Replayed steps of two small jobs, with times of operations that make the step's time arithmetic. */
#include "common/conf/job.h"
#include "common/plan/models/build.h"
#include "tests/lib/test.h"
#include "worker/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS 4096
#define STEPS 5
#define STRIDE 8

static float times[2][CALLS * STRIDE];

static void start(struct replay *r, const char *parallel)
{
    struct job_spec job;
    struct graph g = {0};
    struct why why = {0};
    char yaml[600];
    snprintf(
        yaml, sizeof(yaml),
        "name: j\nmodel: {arch: llama, dim: 64, layers: 2, heads: 2, ffn: 128, vocab: 256}\n"
        "data: {train: [/nothing], tokenizer: words}\ntrain: {steps: 3, seq: 32, global_batch: 4, micro_batch: 1}\n"
        "parallel: {%s}\ncheckpoint: {dir: /nowhere}\n",
        parallel);
    if (job_parse("j", yaml, strlen(yaml), NULL, 0, &job, &why) || graph_build(&job.model, job.train.seq, &g, &why) ||
        replay_init(r, &job, &g, &why))
        fail_msg("%s", why.text);
    graph_fini(&g);
    job_fini(&job);
    memset(times, 0, sizeof(times));
}

static struct replay_times all_times(void)
{
    return (struct replay_times){.at = {times[0], times[1]}, .calls = CALLS, .stride = STRIDE, .steps = STEPS};
}

/* On one thread, so that nothing runs beside anything. */
static double step_of(struct replay *r)
{
    static const struct plan_rates rates = {.flops = 1, .memory = 1, .link = 1e12, .one_thread = true};
    const struct replay_times t = all_times();
    struct why why = {0};
    double seconds = 0;
    if (replay_reduce(r, &t, &why) || replay_step(r, &rates, &seconds, &why))
        fail_msg("%s", why.text);
    return seconds;
}

static void set_step(int rank, int call, const float of[STEPS])
{
    memcpy(&times[rank][call * STRIDE], of, STEPS * sizeof(float));
}

static void expect_seconds(double value, double right)
{
    if (!(fabs(value - right) < 1e-5 * right))
        fail_msg("%.9g s instead of %.9g s", value, right);
}

static bool is_collective(const struct op *op)
{
    return op->group >= 0 && op->kind != OP_SEND && op->kind != OP_RECV;
}

/* Whether a step without a save runs the call. */
static bool is_run(const struct replay *r, int rank, int call)
{
    return r->programs[rank].actions[r->calls[rank].calls[call].action].kind != ACT_SNAPSHOT;
}

/* An operation that was held up in two of five steps has its usual time. */
TEST(operations_take_their_medians)
{
    static const float of[STEPS] = {9, 2e-3f, 1e-3f, 7, 1.5e-3f};
    struct replay r;
    int n = 0;
    start(&r, "workers: 1");
    assert_true(r.calls[0].n_calls > 20 && r.calls[0].n_calls < CALLS);
    for (int c = 0; c < r.calls[0].n_calls; c++) {
        set_step(0, c, of);
        n += is_run(&r, 0, c);
    }
    expect_seconds(step_of(&r), 2e-3 * n);
    replay_fini(&r);
}

/* Rank 0 computes for 1 ms where rank 1 computes for 3, and waits 5 ms in each collective, of which 1 ms is the
 * transfer: that is what rank 1 sees. */
TEST(a_collective_takes_what_its_last_member_takes)
{
    static const float quick[STEPS] = {1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-3f},
                       slow[STEPS] = {3e-3f, 3e-3f, 3e-3f, 3e-3f, 3e-3f},
                       waits[STEPS] = {5e-3f, 5e-3f, 5e-3f, 5e-3f, 5e-3f};
    struct replay r;
    int computed = 0, collectives = 0;
    start(&r, "workers: 2, tp: 2");
    for (int rank = 0; rank < 2; rank++)
        for (int c = 0; c < r.calls[rank].n_calls; c++) {
            const bool is = is_collective(replay_op(&r, rank, c));
            set_step(rank, c, rank == 0 ? (is ? waits : quick) : is ? quick : slow);
            computed += rank == 1 && !is && is_run(&r, rank, c);
            collectives += rank == 1 && is && is_run(&r, rank, c);
        }
    assert_true(collectives > 4);
    expect_seconds(step_of(&r), 3e-3 * computed + 1e-3 * collectives);
    replay_fini(&r);
}

/* The lower quartile of five steps is the second: in the others the members did not run at the same time. */
TEST(a_collective_that_was_disturbed_counts_little)
{
    static const float zero[STEPS] = {0}, of[STEPS] = {8e-3f, 4e-3f, 2e-3f, 6e-3f, 9e-3f};
    struct replay r;
    int collectives = 0;
    start(&r, "workers: 2, tp: 2");
    for (int rank = 0; rank < 2; rank++)
        for (int c = 0; c < r.calls[rank].n_calls; c++) {
            const bool is = is_collective(replay_op(&r, rank, c));
            set_step(rank, c, is ? of : zero);
            collectives += rank == 0 && is && is_run(&r, rank, c);
        }
    expect_seconds(step_of(&r), 4e-3 * collectives);
    replay_fini(&r);
}

TEST(what_was_not_recorded_is_an_error)
{
    struct replay r;
    struct why why = {0};
    struct replay_times t = all_times();
    start(&r, "workers: 1");
    t.calls = 10;
    assert_int_equal(ERR_LIMIT, replay_reduce(&r, &t, &why));
    assert_non_null(strstr(why.text, "at most 10 are recorded"));
    replay_fini(&r);
}
