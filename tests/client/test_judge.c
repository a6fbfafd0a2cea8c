/* The interval of a machine's forecasts, from steps that are held out. The oracle is the prediction interval of a
 * normal distribution, with Student's quantiles from a printed table. */
#include "client/planner/judge.h"

#include "client/spec.h"
#include "common/plan/search/search.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N 14

/* 95 % quantiles of Student's distribution with 4 and 13 degrees of freedom. */
#define T_4 2.1318
#define T_13 1.7709

static const char yaml[] =
    "name: j\nmodel: {arch: llama, dim: 64, layers: 2, heads: 2, kv_heads: 1, ffn: 128, vocab: 256}\n"
    "data: {train: [/nothing], tokenizer: words}\ntrain: {steps: 3, seq: 32, global_batch: 8, micro_batch: 1}\n"
    "parallel: {workers: 2}\nrun: {threads: 1}\ncheckpoint: {dir: /nowhere}\n";

static const char machine[] =
    "name: m\nsource: a test\nnodes: 1\ndevice: {per_node: 2, memory_gib: 4, bandwidth_gb: 10, bf16_tflops: 0.1, "
    "f32_tflops: 0.1, one_thread: true}\nlink: {bandwidth_gb: 5}\nnetwork: {bandwidth_gb: 0}\n";

/* Seconds of the step in closed form and op by op. */
static void forecasts(const struct machine *m, double *ret_closed, double *ret_program)
{
    struct job_spec job;
    struct plan_shape shape;
    struct plan_layout layout;
    struct plan_time time;
    struct spec_facts facts = {0};
    struct why why = {0};
    const struct plan_overlap overlap = planner_overlap(m);
    assert_int_equal(OK, job_parse("j", yaml, strlen(yaml), NULL, 0, &job, &why));
    plan_shape_of(&job, &shape);
    plan_layout_of(&job, &layout);
    plan_step_time(&shape, &layout, m, &overlap, &time);
    run_write("m.yaml", machine);
    if (spec_plan_model(&job, "./m.yaml", &facts, &why))
        fail_msg("%s", why.text);
    *ret_closed = time.seconds;
    *ret_program = facts.forecast.seconds;
    spec_facts_fini(&facts);
    job_fini(&job);
}

static struct planner_errors judged(const struct machine *m, const double *ratios, int n, double forecast, bool clock)
{
    struct planner_errors e;
    struct why why = {0};
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "job", yaml, clock ? "clock_s" : "replay_s",
                                              forecast * ratios[i], clock ? "replay_s" : "clock_s", 1e9));
    if (planner_judge(list, clock, m, &e, &why))
        fail_msg("%s", why.text);
    json_decref(list);
    return e;
}

static void expect_part(double value, double right)
{
    if (!(fabs(value - right) < 0.01 * right + 1e-4))
        fail_msg("%g instead of %g", value, right);
}

static void parse_machine(struct machine *ret)
{
    struct why why = {0};
    assert_int_equal(OK, machine_parse("m", machine, strlen(machine), NULL, 0, ret, &why));
    assert_int_equal(0, chdir(test_tmpdir()));
}

/* Seven steps take a tenth more, and seven a tenth less, on a logarithmic scale. */
TEST(the_interval_is_that_of_one_further_step)
{
    struct machine m;
    double closed, program, ratios[N];
    parse_machine(&m);
    forecasts(&m, &closed, &program);
    for (int i = 0; i < N; i++)
        ratios[i] = exp(i % 2 ? 0.1 : -0.1);
    const double half = T_13 * 0.1 * sqrt((double)N / (N - 1)) * sqrt(1 + 1.0 / N);
    for (int clock = 0; clock < 2; clock++) {
        const struct planner_errors e = judged(&m, ratios, N, closed, clock);
        expect_part(e.less, 1 - exp(-half));
        expect_part(e.more, exp(half) - 1);
        expect_part(1 + e.program_more, exp(half) * closed / program);
        assert_int_equal(N, e.layouts);
        assert_int_equal(clock, e.by_clock);
    }
    machine_fini(&m);
}

/* Steps that all take longer than their forecast: the interval is above it, but contains it. */
TEST(a_bias_moves_one_side_only)
{
    static const double ratios[] = {1.5, 1.5, 1.5, 1.5, 1.5};
    struct machine m;
    double closed, program;
    parse_machine(&m);
    forecasts(&m, &closed, &program);
    const struct planner_errors e = judged(&m, ratios, 5, closed, true);
    assert_true(e.less == 0);
    expect_part(e.more, 0.5);
    machine_fini(&m);
}

TEST(few_steps_make_a_wide_interval)
{
    static const double ratios[] = {0.8, 0.9, 1, 1.1, 1.2};
    struct machine m;
    double closed, program, mean = 0, squares = 0;
    parse_machine(&m);
    forecasts(&m, &closed, &program);
    for (int i = 0; i < 5; i++)
        mean += log(ratios[i]) / 5;
    for (int i = 0; i < 5; i++)
        squares += pow(log(ratios[i]) - mean, 2);
    const struct planner_errors e = judged(&m, ratios, 5, closed, true);
    expect_part(e.more, exp(mean + T_4 * sqrt(squares / 4 * 1.2)) - 1);
    machine_fini(&m);
}

TEST(too_few_steps_are_refused)
{
    struct planner_errors e;
    struct why why = {0};
    struct machine m;
    parse_machine(&m);
    json_t *list = json_pack("[{s:s, s:f, s:f}]", "job", yaml, "clock_s", 1.0, "replay_s", 1.0);
    assert_int_equal(ERR_INVALID, planner_judge(list, true, &m, &e, &why));
    assert_non_null(strstr(why.text, "held out 1 layouts instead of 3 to 64"));
    assert_int_equal(ERR_INVALID, planner_judge(NULL, true, &m, &e, &why));
    json_decref(list);
    machine_fini(&m);
}
