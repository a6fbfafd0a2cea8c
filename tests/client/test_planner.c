/* dtctl plan --search and its relatives, as a user calls them: what they print, the file that they write, and what they
 * refuse. Whether the numbers are right is the subject of tests/common/plan/test_planner*.c. */
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char job[] =
    "name: j\n"
    "model: {arch: llama, dim: 1024, layers: 16, heads: 16, kv_heads: 8, ffn: 2816, vocab: 32000}\n"
    "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: words}\n"
    "train: {steps: 3, seq: 1024, global_batch: 64, micro_batch: 1, dtype: bfloat16}\n"
    "run: {device: cuda}\n";

static json_t *output_json(const struct run_result *r)
{
    json_error_t error;
    json_t *value = json_loads(r->out, 0, &error);
    if (!value)
        fail_msg("%s: %s", error.text, r->out);
    return value;
}

TEST(the_search_prints_layouts_that_plan_accepts)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --search --machine h100 --nodes 2 --top 4 --write best.yaml -o json");
    json_t *value = output_json(&r), *best = json_object_get(value, "best");
    assert_int_equal(json_array_size(best), 4);
    assert_int_equal(json_integer_value(json_object_get(value, "workers")), 16);
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_array_get(best, i);
        assert_true(json_number_value(json_object_get(row, "exact_bytes")) > 0);
        assert_true(json_number_value(json_object_get(row, "mfu")) < 1);
    }
    json_decref(value);
    /* The file plans to the same memory. */
    run_expect(&r, 0, "dtctl plan best.yaml");
    expect_text(r.out, "16 workers");
    run_expect(&r, 2, "dtctl plan job.yaml --search --machine h100 --write best.yaml");
    expect_text(r.err, "--write best.yaml: File exists");
}

TEST(strategies_and_sizes_are_compared)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --strategies --machine a100");
    expect_text(r.out, "ZeRO 3");
    expect_text(r.out, "When to use which");
    run_expect(&r, 0, "dtctl plan --memory 8b --machine h100");
    expect_text(r.out, "8.0G parameters");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 1:8 -o json");
    json_t *rows = output_json(&r);
    assert_int_equal(json_array_size(rows), 4);
    json_decref(rows);
}

TEST(the_pareto_rows_trade_time_for_memory)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --search --pareto --machine h100 -o json");
    json_t *value = output_json(&r), *best = json_object_get(value, "best");
    assert_true(json_array_size(best) > 3);
    for (size_t i = 1; i < json_array_size(best); i++) {
        json_t *a = json_array_get(best, i - 1), *b = json_array_get(best, i);
        assert_true(json_number_value(json_object_get(a, "step_s")) <= json_number_value(json_object_get(b, "step_s")));
        assert_true(json_number_value(json_object_get(json_object_get(a, "bytes"), "total")) >
                    json_number_value(json_object_get(json_object_get(b, "bytes"), "total")));
    }
    json_decref(value);
    run_expect(&r, 2, "dtctl plan job.yaml --pareto");
    expect_text(r.err, "--write and --pareto need --search");
}

TEST(a_run_of_weeks_is_simulated)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 4 --days 30 -o json");
    json_t *value = output_json(&r), *step = json_object_get(value, "step");
    assert_true(json_number_value(json_object_get(value, "goodput")) > 0.9);
    /* 4 nodes, 3.8 failures in 1000 node-days, 30 days: 0.456 */
    double failures = json_number_value(json_object_get(value, "failures"));
    assert_true(failures > 0.44 && failures < 0.457);
    assert_true(json_number_value(json_object_get(step, "seconds")) >
                json_number_value(json_object_get(step, "quiet")));
    json_decref(value);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 4 --days 30");
    expect_text(r.out, "Goodput");
}

TEST(a_model_that_fits_nowhere_says_what_is_missing)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl plan --memory 405b --machine h100");
    expect_text(r.out, " no ");
    run_write("big.yaml",
              "name: j\nmodel: {arch: llama, dim: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, "
              "vocab: 128256}\ndata: {train: [x], tokenizer: words}\ntrain: {steps: 3, seq: 8192, global_batch: "
              "64, micro_batch: 1, dtype: bfloat16}\nrun: {device: cuda}\n");
    run_write("x", "x");
    run_expect(&r, 2, "dtctl plan big.yaml --search --machine h100 --nodes 2");
    expect_text(r.err, "does not fit");
    expect_text(r.err, "GiB more");
    expect_text(r.err, "take more nodes");
}

TEST(wrong_machines_and_options_are_refused)
{
    static const struct {
        const char *line, *message;
    } rows[] = {
        {"dtctl plan job.yaml --search --machine nowhere",
         "there is no such machine; write a file's path, or one of here, a100"},
        {"dtctl plan job.yaml --search", "run.device is cuda: name the machine with --machine"},
        {"dtctl plan job.yaml --search --machine ./zero.yaml", "zero.yaml:2: device.bandwidth_gb"},
        {"dtctl plan job.yaml --search --machine ./short.yaml", "short.yaml"},
        {"dtctl plan job.yaml --search --machine h100 --nodes 0", "--nodes 0: write a number of nodes"},
        {"dtctl plan job.yaml --search --machine h100 --nodes 8:2", "--nodes 8:2"},
        {"dtctl plan job.yaml --search --machine laptop --nodes 2", "laptop has 1 nodes"},
        {"dtctl plan job.yaml --machine h100", "need --search, --strategies, --forecast or --days"},
        {"dtctl plan job.yaml --search --machine h100 --goal speed", "write time or memory"},
        {"dtctl plan --memory 9b", "there is no such size; write one of 124m"},
        {"dtctl plan job.yaml --search --machine h100 --timeline x.svg", "show one layout"},
    };
    struct run_result r;
    run_write("job.yaml", job);
    run_write("zero.yaml",
              "name: m\ndevice: {per_node: 8, memory_gib: 80, bandwidth_gb: 0, bf16_tflops: 1, f32_tflops: 1}\n"
              "link: {bandwidth_gb: 100}\n");
    run_write("short.yaml", "name: m\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        run_shell(&r, rows[i].line);
        if (r.code == 0)
            fail_msg("%s: exit 0", rows[i].line);
        expect_text(r.err, rows[i].message);
    }
}

/* Runs that others measured: the page docs/use/course.md says within 10 %. */
TEST(the_runs_of_the_course_are_forecast)
{
    static const double measured_min[] = {92, 25, 14};
    struct run_result r;
    if (!getenv("DTD_SOURCE"))
        TEST_SKIP("DTD_SOURCE is not set: run this test by ctest");
    run_expect(&r, 0,
               "dtctl plan $DTD_SOURCE/deploy/examples/course-2025.yaml --forecast --machine jureca-course --nodes 1:2 "
               "-o json");
    json_t *rows = output_json(&r);
    assert_int_equal(3, json_array_size(rows));
    for (size_t i = 0; i < 3; i++) {
        const double min = json_number_value(json_object_get(json_array_get(rows, i), "run_s")) / 60;
        if (fabs(min / measured_min[i] - 1) > 0.1)
            fail_msg("forecast %g min, measured %g", min, measured_min[i]);
    }
    json_decref(rows);
}

/* Parts add up; the lost time is what the row has beyond its share of the first row. */
TEST(lost_time_is_divided)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0,
               "dtctl plan job.yaml --set parallel.workers=4 --set parallel.pp=2 --set train.steps=1000 --forecast "
               "--machine h100 --nodes 2:4 -o json");
    json_t *rows = output_json(&r);
    assert_int_equal(3, json_array_size(rows)); /* 4, 16 and 32 workers */
    const double first = json_number_value(json_object_get(json_array_get(rows, 0), "run_s"));
    for (size_t i = 0; i < 3; i++) {
        json_t *row = json_array_get(rows, i), *lost = json_object_get(row, "lost_s"), *v;
        const double run = json_number_value(json_object_get(row, "run_s")), ratio = i ? 1 << (i + 1) : 1;
        const char *name;
        double sum = 0;
        json_object_foreach(json_object_get(row, "parts_s"), name, v) sum += json_number_value(v);
        assert_true(fabs(sum / run - 1) < 1e-9);
        assert_int_equal((int)(4 * ratio), json_integer_value(json_object_get(row, "workers")));
        assert_int_equal((int)(1000 / ratio), json_integer_value(json_object_get(row, "steps")));
        assert_true(fabs(json_number_value(json_object_get(lost, "all")) - (run - first / ratio)) < 1e-6);
    }
    json_decref(rows);
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --forecast --machine h100");
    expect_text(r.out, "SPEED-UP");
    run_expect(&r, 2, "dtctl plan job.yaml --set parallel.workers=3 --forecast --machine h100 --nodes 1");
    expect_text(r.err, "--nodes 1: h100 has 8 devices on so many nodes, which is no multiple of the job's 3 workers");
}
