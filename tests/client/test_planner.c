/* dtctl plan --search and its relatives, as a user calls them: what they print, the file that they write, and what they
 * refuse. Whether the numbers are right is the subject of tests/common/plan/test_planner*.c. */
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
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

static const char automatic[] =
    "name: j\n"
    "model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}\n"
    "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: bytes}\n"
    "train: {steps: 3, seq: 32, global_batch: 8}\n"
    "parallel: auto\n";

/* Without a daemon: `dtctl plan` prints the layout for this node, and the search writes a job file with a fixed one. */
TEST(an_automatic_layout_is_shown_and_can_be_fixed)
{
    struct run_result r;
    run_write("job.yaml", automatic);
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --set parallel.tp=2");
    expect_text(r.out, "4 workers");
    expect_text(r.out, "Layout     auto: tp 2, ");
    expect_text(r.out, " s a step; next best tp 2, ");
    /* 9 of the 9 cores cannot share 8 samples, or heads and layers of which there are 2. */
    run_write("nine.yaml", "name: m\ndevice: {per_node: 9, memory_gib: 1, bandwidth_gb: 10, bf16_tflops: 1, "
                           "f32_tflops: 1, one_thread: true}\nlink: {bandwidth_gb: 100}\n");
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.machine=./nine.yaml");
    expect_text(r.out, "8 workers");
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --set parallel.tp=2 -o json");
    json_t *value = output_json(&r), *layout = json_object_get(value, "layout");
    assert_int_equal(json_integer_value(json_object_get(layout, "tp")), 2);
    assert_non_null(strstr(json_string_value(json_object_get(value, "layout_why")), "tp 2, "));
    json_decref(value);
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.tp=2 --search --machine a100 --write best.yaml");
    run_expect(&r, 0, "dtctl plan best.yaml -o json");
    value = output_json(&r);
    assert_int_equal(json_integer_value(json_object_get(value, "workers")), 8);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(value, "layout"), "tp")), 2);
    assert_null(json_object_get(value, "layout_why"));
    json_decref(value);
}

TEST(an_automatic_layout_that_cannot_be_is_refused)
{
    static const struct {
        const char *set, *message;
    } rows[] = {
        {"--set parallel.machine=./tiny.yaml",
         "parallel.auto: the model does not fit into 0.0009 GiB per worker on 2 workers: the layout that needs least "
         "needs 0.00"},
        {"--set parallel.machine=nowhere", "parallel.machine: --machine nowhere: there is no such machine"},
        {"--set run.device=cuda", "parallel.machine: run.device is cuda: name the machine"},
        {"--set parallel.workers=9 --set parallel.tp=1 --set parallel.cp=1 --set parallel.pp=1",
         "parallel.auto: no layout has 9 workers and the keys of parallel.fixed"},
    };
    struct run_result r;
    char line[300];
    run_write("job.yaml", automatic);
    run_write("tiny.yaml", "name: m\ndevice: {per_node: 2, memory_gib: 0.001, bandwidth_gb: 10, bf16_tflops: 1, "
                           "f32_tflops: 1, one_thread: true}\nlink: {bandwidth_gb: 100}\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(line, sizeof(line), "dtctl plan job.yaml %s", rows[i].set);
        run_shell(&r, line);
        assert_int_equal(r.code, 2);
        expect_text(r.err, rows[i].message);
    }
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
        {"dtctl plan job.yaml --machine h100", "need --search, --strategies or --days"},
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
