/* dtctl plan --search and its relatives, as a user calls them: what they print, the file that they write, and what they
 * refuse. Whether the numbers are right is the subject of tests/common/plan/test_planner*.c. */
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char job[] =
    "name: j\n"
    "model: {arch: llama, dim: 1024, layers: 16, heads: 16, kv_heads: 8, ffn: 2816, vocab: 32000}\n"
    "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: words}\n"
    "train: {steps: 3, seq: 1024, global_batch: 64, micro_batch: 1, dtype: bfloat16}\n"
    "run: {device: cuda}\n";

static const char automatic[] =
    "name: j\n"
    "model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}\n"
    "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: bytes}\n"
    "train: {steps: 3, seq: 32, global_batch: 8}\n"
    "parallel: auto\n";

static json_t *output_json(const struct run_result *r)
{
    json_error_t error;
    json_t *value = json_loads(r->out, 0, &error);
    if (!value)
        fail_msg("%s: %s", error.text, r->out);
    return value;
}

TEST(the_search_says_how_far_steps_were_from_forecasts)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --search --machine h100 --nodes 2 --top 1");
    expect_text(r.out, "nine of ten steps took 0.90 to 1.28 of theirs");
    run_expect(&r, 0, "dtctl plan job.yaml --search --machine laptop --nodes 1 --top 1 --set run.device=cpu");
    expect_text(r.out, "nine of ten steps took 0.47 to 1.25 of theirs");
}

/* The parts sum to the step (recomputation is in the computation), which is in its interval. */
static void expect_whole_step(json_t *row)
{
    const double step = json_number_value(json_object_get(row, "step_s"));
    const json_t *interval = json_object_get(row, "step_interval_s");
    const char *name;
    json_t *part;
    double sum = 0;
    json_object_foreach(json_object_get(row, "parts"), name, part) sum +=
        strcmp(name, "recompute") == 0 ? 0 : json_number_value(part);
    assert_true(fabs(sum / step - 1) < 1e-9);
    assert_true(fabs(json_number_value(json_array_get(interval, 0)) / step - 0.90) < 1e-9);
    assert_true(fabs(json_number_value(json_array_get(interval, 1)) / step - 1.28) < 1e-9);
}

static double number_of(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

static void expect_near(double value, double right)
{
    if (!(fabs(value - right) <= 1e-3 * fabs(right)))
        fail_msg("%.17g instead of %.17g", value, right);
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
        expect_whole_step(row);
        assert_non_null(strstr(json_string_value(json_object_get(row, "reason")), i < 3 ? "fast" : "slower than 1"));
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
    expect_text(r.out, "When to use which, for this job");
    expect_text(r.out, "EP         not possible: the model has no experts");
    /* 6.74e9 parameters x 12 bytes of a master copy and two moments, less the copy: 8 bytes are 50.2 GiB, and an eighth
     * of them 6.3 GiB. */
    run_expect(&r, 0, "dtctl plan --memory 7b --machine a100");
    expect_text(r.out, "ZeRO 1     divides the optimizer state from 50.2 GiB to 6.3 GiB");
    expect_text(r.out, "DDP        each worker holds all 113.0 GiB"); /* 18 bytes */
    expect_text(r.out, "not the 113.0 GiB of state");
    expect_text(r.out, "Take ZeRO 1: it is the simplest that fits");
    run_expect(&r, 0, "dtctl plan --memory 8x7b --machine h100");
    expect_text(r.out, "Take EP: no other one fits"); /* 46.7e9 parameters: only their experts can be divided by 8 */
    run_expect(&r, 0, "dtctl plan --memory 405b --machine h100");
    expect_text(r.out, "None fits: take more --nodes");
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
        /* In the same time the smaller one is the better one, so times differ. */
        assert_true(1.0005 * json_number_value(json_object_get(a, "step_s")) <
                    json_number_value(json_object_get(b, "step_s")));
        assert_true(json_number_value(json_object_get(json_object_get(a, "bytes"), "total")) >
                    json_number_value(json_object_get(json_object_get(b, "bytes"), "total")));
    }
    json_decref(value);
    run_expect(&r, 2, "dtctl plan job.yaml --pareto");
    expect_text(r.err, "--pareto needs --search");
}

/* ---- pictures ---- */

/* Returns the picture, and the report as JSON. */
static char *picture_of(const char *options, json_t **ret)
{
    static char text[1 << 16];
    struct run_result r;
    char line[300];
    snprintf(line, sizeof(line), "dtctl plan job.yaml %s --picture picture.svg -o json", options);
    run_expect(&r, 0, line);
    *ret = output_json(&r);
    run_expect(&r, 0, "cat picture.svg");
    snprintf(text, sizeof(text), "%s", r.out);
    expect_text(text, "prefers-color-scheme:dark");
    expect_text(text, "</svg>");
    return text;
}

static double width_of(const char **at)
{
    double width = 0;
    *at = strstr(*at, "<rect ");
    if (!*at || sscanf(strstr(*at, "width="), "width=\"%lf", &width) != 1)
        fail_msg("no bar");
    *at += 6;
    return width;
}

/* The bars of ZeRO 1 have the proportions of its bytes. */
TEST(the_picture_of_strategies_has_their_bytes)
{
    static const char *const kinds[] = {"params", "grads", "optimizer"};
    run_write("job.yaml", job);
    json_t *value;
    const char *at = strstr(picture_of("--strategies --machine a100", &value), ">ZeRO 1<");
    const json_t *bytes = json_object_get(json_array_get(value, 1), "bytes");
    assert_non_null(at);
    double first = 0;
    for (size_t i = 0; i < 3; i++) {
        const double width = width_of(&at), right = number_of(bytes, kinds[i]);
        first = i ? first : width / right;
        if (fabs(width / right / first - 1) > 0.05)
            fail_msg("%s: a bar of %g for %g bytes", kinds[i], width, right);
    }
    json_decref(value);
}

/* Each point has its place between the axis of 0 and the limit. */
TEST(the_picture_of_pareto_has_a_point_for_each_row)
{
    run_write("job.yaml", job);
    json_t *value;
    char *svg = picture_of("--search --pareto --machine h100 --top 4", &value);
    const json_t *best = json_object_get(value, "best");
    double limit;
    const char *at = strstr(svg, "class=\"ibs\"");
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, "points="), "points=\"%lf", &limit), 1);
    const char *dot = svg;
    for (size_t i = 0; i < json_array_size(best); i++) {
        double x = 0;
        dot = strstr(dot, "<rect class=\"i1\"");
        assert_non_null(dot);
        assert_int_equal(sscanf(dot, "<rect class=\"i1\" x=\"%lf", &x), 1);
        const double share = (x + 3.5 - 56) / (limit - 56); /* the axis begins at 56 */
        expect_near(1 + share, 1 + number_of(json_array_get(best, i), "exact_bytes") / number_of(value, "memory"));
        dot++;
    }
    assert_null(strstr(dot, "<rect class=\"i1\""));
    json_decref(value);
}

TEST(the_picture_of_nodes_has_the_efficiency)
{
    run_write("job.yaml", job);
    json_t *rows;
    char *svg = picture_of("--nodes 1:8 --machine h100", &rows), text[32];
    const double first = number_of(json_array_get(rows, 0), "tokens_per_s");
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i);
        snprintf(text, sizeof(text), ">%.0f<", 100 * number_of(row, "tokens_per_s") / number_of(row, "nodes") / first);
        expect_text(svg, text);
    }
    json_decref(rows);
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
    expect_text(r.out, "As dtd restarts: 2 s detection + 5 s start");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 4 --days 30 --spares 1 -o json");
    value = output_json(&r);
    /* 4 nodes, 3.8 failures in 1000 node-days, of which 0.8 take a node for a day: a = 0.01216 are in repair. With one
     * spare, both are in repair for a^2 / 2 / (1 + a + a^2 / 2) of the time. */
    assert_true(fabs(json_number_value(json_object_get(value, "waiting_for_all_nodes")) - 7.3036e-5) < 1e-8);
    assert_true(json_number_value(json_object_get(value, "spares")) == 1);
    assert_true(json_number_value(json_object_get(json_object_get(value, "dtd_from_memory"), "goodput")) >
                json_number_value(json_object_get(value, "goodput")));
    json_decref(value);
}

/* The parts of a step sum to it, and the same seed gives the same one. */
TEST(a_step_is_simulated_at_the_level_of_operations)
{
    struct run_result r;
    static const char *const lines[] = {
        "dtctl plan job.yaml --machine h100 --nodes 4 --operations --steps 3 --seed 4 -o json",
        "dtctl plan job.yaml --machine h100 --nodes 4 --operations --steps 3 --seed 5 -o json"};
    double seconds[3] = {0};
    run_write("job.yaml", job);
    for (int i = 0; i < 3; i++) {
        run_expect(&r, 0, lines[i == 2]);
        json_t *value = output_json(&r), *step = json_object_get(value, "step"), *part;
        const char *key;
        double sum = 0;
        seconds[i] = json_number_value(json_object_get(step, "seconds"));
        json_object_foreach(json_object_get(step, "parts"), key, part) sum += json_number_value(part);
        assert_true(fabs(sum - seconds[i]) < 1e-9 * sum && json_integer_value(json_object_get(step, "steps")) == 3);
        assert_null(json_object_get(value, "goodput"));
        json_decref(value);
    }
    assert_true(seconds[0] == seconds[1] && seconds[0] != seconds[2]);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 4 --operations");
    expect_text(r.out, "Where the time of a rank goes");
    expect_text(r.out, "operations of all ranks");
    run_expect(&r, 0,
               "dtctl plan job.yaml --machine h100 --operations --own --set parallel.workers=16 --set parallel.tp=2 "
               "--set parallel.pp=2 --set parallel.fsdp=4");
    expect_text(r.out, "16 workers");
    expect_text(r.out, "tp 2, pp 2");
    expect_text(r.out, "fsdp 4");
}

/* ---- money ---- */

/* No failures, so that a run takes its steps and no more; 3 units of money and 500 W for each device. */
static void write_priced_machine(void)
{
    run_write("priced.yaml",
              "name: priced\ndevice: {per_node: 8, units: 132, memory_gib: 80, bandwidth_gb: 3350, bf16_tflops: 989, "
              "f32_tflops: 67}\nlink: {bandwidth_gb: 360}\nnetwork: {bandwidth_gb: 400}\n"
              "cost: {failures: 0, price: 3, watts: 500}\n"
              "storage: {copy_gb: 1000000}\n");
}

/* 200 tokens more than 1000 steps of 64 x 1024 need one step more. */
TEST(the_bill_is_that_of_all_devices)
{
    struct run_result r;
    run_write("job.yaml", job);
    write_priced_machine();
    run_expect(&r, 0, "dtctl plan job.yaml --machine ./priced.yaml --goal cost --nodes 1:8 --tokens 65536200 -o json");
    json_t *rows = output_json(&r);
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i), *run = json_object_get(row, "run");
        const double devices = 8 * number_of(row, "nodes"), hours = 1001 * number_of(row, "step_s") / 3600;
        assert_true(number_of(run, "steps") == 1001);
        expect_near(number_of(run, "seconds"), hours * 3600);
        expect_near(number_of(run, "price"), devices * hours * 3);
        expect_near(number_of(run, "kwh"), devices * hours * 0.5);
        expect_near(number_of(run, "tokens_per_price"), 65536200 / (devices * hours * 3));
    }
    json_decref(rows);
    /* --price replaces that of the file, and the file's run is 3 steps of 64 x 1024. */
    run_expect(&r, 0, "dtctl plan job.yaml --machine ./priced.yaml --search --top 1 --price 30 -o json");
    rows = output_json(&r);
    const json_t *row = json_array_get(json_object_get(rows, "best"), 0), *run = json_object_get(row, "run");
    expect_near(number_of(run, "price"), 8 * 3 * number_of(row, "step_s") / 3600 * 30);
    json_decref(rows);
}

/* The prices of 1, 2, 4 and 8 nodes. */
static void find_prices(double ret_price[4], double ret_seconds[4])
{
    struct run_result r;
    run_expect(&r, 0, "dtctl plan job.yaml --machine ./priced.yaml --goal cost --nodes 1:8 --tokens 10G -o json");
    json_t *rows = output_json(&r);
    for (size_t i = 0; i < 4; i++) {
        const json_t *run = json_object_get(json_array_get(rows, i), "run");
        ret_price[i] = number_of(run, "price");
        ret_seconds[i] = number_of(run, "seconds");
        assert_true(i == 0 || ret_price[i] > ret_price[i - 1]); /* what the budgets below rely on */
    }
    json_decref(rows);
}

/* The number of nodes, of those in the report, that finishes first for this money. Between two powers of two there are
 * others. */
static int fastest_for(double money)
{
    struct run_result r;
    char line[200];
    int nodes = 0;
    double least = INFINITY;
    snprintf(line, sizeof(line),
             "dtctl plan job.yaml --machine ./priced.yaml --nodes 1:8 --tokens 10G --budget %.4f -o json", money);
    run_expect(&r, 0, line);
    json_t *rows = output_json(&r);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *run = json_object_get(row, "run");
        const bool paid = number_of(run, "price") <= money;
        assert_int_equal(paid, json_is_true(json_object_get(row, "within_budget")));
        if (paid && number_of(run, "seconds") < least) {
            least = number_of(run, "seconds");
            nodes = (int)number_of(row, "nodes");
        }
    }
    json_decref(rows);
    return nodes;
}

static void expect_budget(double money, double seconds, int code, const char *message)
{
    struct run_result r;
    char line[200];
    int n = snprintf(line, sizeof(line),
                     "dtctl plan job.yaml --machine ./priced.yaml --nodes 1:8 --tokens 10G "
                     "--budget %.4f",
                     money);
    if (seconds > 0)
        snprintf(line + n, sizeof(line) - (size_t)n, ":%.9f", seconds / 86400);
    run_shell(&r, line);
    assert_int_equal(r.code, code);
    expect_text(code ? r.err : r.out, message);
}

TEST(a_budget_buys_the_fastest_run_that_it_pays_for)
{
    struct run_result r;
    double price[4], seconds[4], least;
    char text[200];
    run_write("job.yaml", job);
    write_priced_machine();
    find_prices(price, seconds);
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "Fastest within the budget: %d node%s,", fastest_for(price[i] + 0.01),
                 fastest_for(price[i] + 0.01) == 1 ? "" : "s");
        expect_budget(price[i] + 0.01, 0, 0, text);
    }
    assert_int_equal(fastest_for(price[0] + 0.01), 1);
    assert_true(fastest_for(price[3] + 0.01) > 2);
    expect_budget(price[0] / 2, 0, 2, "the cheapest run, on 1 node,");
    expect_budget(0.503 * price[0], 0, 2, "pays for 50 % of it: write --tokens 5.0G instead of 10.0G");
    snprintf(text, sizeof(text), "%.2f is missing", price[0] / 4);
    expect_budget(price[0] * 3 / 4, 0, 2, text);
    least = fmin(fmin(seconds[0], seconds[1]), fmin(seconds[2], seconds[3]));
    expect_budget(1e6, least - 60, 2, "which is 1m 00s too long");
    expect_budget(price[0] + 0.01, least + 1, 2, "the fastest one for the money, on 1 node,");
    expect_budget(price[0] + 0.01, least + 1, 2, "no run is within both");
    /* The choice can be submitted. */
    snprintf(text, sizeof(text), "dtctl plan job.yaml --machine ./priced.yaml --nodes 1:8 --tokens 10G --budget %.2f",
             price[1] + 0.01);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), " --write best.yaml");
    run_expect(&r, 0, text);
    run_expect(&r, 0, "dtctl plan best.yaml");
    snprintf(text, sizeof(text), "%d workers", 8 * fastest_for(price[1] + 0.01));
    expect_text(r.out, text);
    run_expect(&r, 0, "dtctl plan job.yaml --machine ./priced.yaml --nodes 2:8 --goal cost --write cheap.yaml");
    run_expect(&r, 0, "dtctl plan cheap.yaml");
    expect_text(r.out, "16 workers");
}

TEST(a_goal_of_money_needs_a_price_and_a_length)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 2, "dtctl plan job.yaml --machine h100 --goal cost");
    expect_text(r.err, "--goal cost: h100 has no price: set cost.price in its machine file");
    expect_text(r.err, "--price");
    run_expect(&r, 2, "dtctl plan job.yaml --machine h100 --search --budget 10");
    expect_text(r.err, "--budget: h100 has no price");
    /* 6.74e9 parameters x 20 */
    run_expect(&r, 2, "dtctl plan --memory 7b --machine h100 --price 2 --goal tokens-per-dollar");
    expect_text(r.err, "no number of steps: write --tokens, such as 135G");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --price 2 --goal cost");
    expect_text(r.out, "Cheapest: 1 node,");
    expect_text(r.out, "TOK/$");
}

TEST(a_run_that_fits_on_no_nodes_is_refused_in_every_form)
{
    static const char *const forms[] = {"", "-o json", "--write best.yaml", "-o json --write best.yaml",
                                        "--picture x.svg"};
    struct run_result r;
    char line[200];
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        snprintf(line, sizeof(line),
                 "dtctl plan --memory 405b --machine h100 --price 2 --tokens 1T --nodes 1:2 --goal "
                 "cost %s",
                 forms[i]);
        run_expect(&r, 2, line);
        expect_text(r.err, "no layout fits on these numbers of nodes: --search shows what is missing");
    }
}

/* 4 nodes x 8 devices x 30 days x 24 h x 2 = 46080; 5000 pay for 3.3 days. */
TEST(a_budget_pays_for_some_days)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 4 --days 30 --price 2 --budget 46080");
    expect_text(r.out, "Price      46080 at 2.00 per device and hour");
    expect_text(r.out, "30.0 MWh at 1300 W"); /* 32 x 720 h x 1.3 kW = 29952 kWh */
    run_expect(&r, 2, "dtctl plan job.yaml --machine h100 --nodes 4 --days 30 --price 2 --budget 5000");
    expect_text(r.err, "30 days cost 46080, which is 41080 more; the budget pays for 3.3 days");
}

/* ---- reasons ---- */

/* "3   1.1 ms (5.9 %) faster than 4: ..", or "3   as fast as 4" */
static bool has_reason(const char *out, int row)
{
    char number[16], than[16], as[16];
    snprintf(number, sizeof(number), "\n%-4d", row);
    snprintf(than, sizeof(than), " than %d: ", row + 1);
    snprintf(as, sizeof(as), "as fast as %d\n", row + 1);
    const char *at = strstr(out, number);
    return at && (strstr(at, than) || strstr(at, as));
}

TEST(every_row_says_why_it_is_better_or_worse)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 2 --search");
    for (int i = 1; i < 10; i++)
        if (!has_reason(r.out, i))
            fail_msg("row %d has no reason: %s", i, r.out);
    expect_text(r.out, " slower than 1: ");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 2 --search --pareto --top 4");
    expect_text(r.out, " memory: ");
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
    /* The state alone is 16 bytes for each of 406e9 parameters: 6.0 TiB, more than 9 nodes of 8 x 76.4 GiB hold. */
    expect_text(r.err, "it fits on 14 nodes (--nodes 14)");
    run_expect(&r, 0, "dtctl plan big.yaml --search --machine h100 --nodes 14 --top 1");
    run_expect(&r, 2, "dtctl plan big.yaml --search --machine h100 --nodes 9");
    /* 70.6e9 parameters x 16 bytes = 1052 GiB: 8 x 76.4 GiB are too few, 8 x 174 GiB of a B200 are enough. */
    run_expect(&r, 2, "dtctl plan --memory 70b --search --machine a100 --nodes 1");
    expect_text(r.err, "on 1 node of b200");
}

/* 808 is 8 x 101: no axis but data parallelism has 101 ranks, so a batch needs 101 samples at least; 3 x 2^6 are 192.
 */
TEST(a_number_of_workers_without_a_layout_has_near_ones)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 2, "dtctl plan job.yaml --machine h100 --nodes 101 --search --set train.global_batch=3");
    expect_text(r.err, "no layout has 808 workers");
    expect_text(r.err, "there is one on 96 nodes or with train.global_batch=192");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 96 --search --top 1 --set train.global_batch=3");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --nodes 101 --search --top 1 --set train.global_batch=192");
}

/* ---- the job's own layout ---- */

static const char seven[] = "name: seven\n"
                            "model: {arch: llama, dim: 4096, layers: 32, heads: 32, ffn: 11008, vocab: 32000}\n"
                            "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: words}\n"
                            "train: {steps: 3, seq: 4096, global_batch: 256, micro_batch: 2, dtype: bfloat16}\n"
                            "parallel: {workers: 8, fsdp: 8, zero: 1}\n"
                            "run: {device: cuda}\n";

/* Applies every proposal ("with KEY=VALUE and KEY=VALUE") of a sentence to the job. Returns their number. */
static int expect_proposals(const char *sentence, const char *file, const char *machine)
{
    struct run_result r;
    int n = 0;
    for (const char *p = strstr(sentence, "it fits"); p && (p = strstr(p, "with ")); n++) {
        char line[600];
        int len = snprintf(line, sizeof(line), "dtctl plan %s --machine %s", file, machine);
        do {
            p += 5; /* behind "with " and " and " */
            const int word = (int)strcspn(p, " ,\n");
            len += snprintf(line + len, sizeof(line) - (size_t)len, " --set %.*s", word, p);
            p += word;
        } while (strncmp(p, " and ", 5) == 0);
        run_expect(&r, 0, line);
    }
    return n;
}

TEST(a_layout_that_does_not_fit_has_near_ones_that_do)
{
    struct run_result r;
    double needs, more, has, again;
    run_write("seven.yaml", seven);
    run_expect(&r, 2, "dtctl plan seven.yaml --machine a100");
    assert_int_equal(sscanf(strstr(r.err, "needs "), "needs %lf GiB on each worker, %lf GiB more than a100 has (%lf",
                            &needs, &more, &has),
                     3);
    assert_true(fabs(needs - has - more) < 0.11);
    /* 6.74e9 parameters: 12 bytes of state divided by 8, 4 of gradients and 2 in bfloat16: 47 GiB; 32 layers keep some
     * 34 bytes x 8192 tokens x 4096 columns of activations: 34 GiB. */
    assert_true(needs > 75 && needs < 95);
    expect_text(r.err, "with train.micro_batch=1");
    expect_text(r.err, "with parallel.zero=2");
    assert_true(expect_proposals(r.err, "seven.yaml", "a100") >= 3);
    /* Full recomputation repeats the forward third, all but the head. */
    run_expect(&r, 2, "dtctl plan seven.yaml --machine a100 --set train.micro_batch=16 --set parallel.zero=3");
    assert_int_equal(sscanf(strstr(r.err, "recompute=full"), "recompute=full (%lf %% more", &again), 1);
    assert_true(again > 29 && again < 34);
}

/* 254e6 parameters x 18 bytes are 4.3 GiB, and this GPU has 1.9 GiB for them; one of eight holds an eighth. */
TEST(one_worker_that_is_too_small_gets_more)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_write("small.yaml",
              "name: small\nnodes: 1\ndevice: {per_node: 8, memory_gib: 4, bandwidth_gb: 200, bf16_tflops: "
              "20, f32_tflops: 10}\nlink: {bandwidth_gb: 10}\n");
    run_expect(&r, 2, "dtctl plan job.yaml --machine ./small.yaml");
    expect_text(r.err, "GiB more than small has (1.9 GiB)");
    expect_text(r.err, "it fits with parallel.workers=");
    assert_int_equal(expect_proposals(r.err, "job.yaml", "./small.yaml"), 1);
}

TEST(a_layout_that_fits_is_compared_with_the_best)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --set parallel.workers=16 --set parallel.tp=4");
    expect_text(r.out, "job j fits on h100: 16 workers on 2 nodes");
    expect_text(r.out, "tp 4, dp 4, microbatch 1");
    expect_text(r.out, "% faster; --search shows why");
    run_expect(&r, 2, "dtctl plan job.yaml --machine laptop --set run.device=cpu --set parallel.workers=8");
    expect_text(r.err, "8 workers are 2 nodes, but laptop has 1: write at most 4");
}

/* --machine alone and --forecast are one report, with the interval of the machine file. */
TEST(the_own_layout_has_one_report)
{
    static struct run_result r, same;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --set parallel.workers=8");
    run_expect(&same, 0, "dtctl plan job.yaml --forecast --machine h100 --set parallel.workers=8");
    assert_string_equal(r.out, same.out);
    expect_text(r.out, "INTERVAL");
    expect_text(r.out,
                "Interval   nine of ten steps, as published steps of other machines were from their forecasts\n");
    expect_text(r.out, "Times      from rates, in closed form\n");
    assert_null(strstr(r.out, "SPEED-UP")); /* there is nothing to compare */
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100 --set parallel.workers=8 -o json");
    json_t *report = output_json(&r), *row = json_array_get(json_object_get(report, "rows"), 0);
    assert_int_equal(1, json_array_size(json_object_get(report, "rows")));
    const json_t *interval = json_object_get(row, "step_interval_s");
    expect_near(json_number_value(json_array_get(interval, 0)), 0.90 * number_of(row, "step_s"));
    expect_near(json_number_value(json_array_get(interval, 1)), 1.28 * number_of(row, "step_s"));
    assert_true(number_of(row, "measured") == 0);
    json_decref(report);
    run_expect(&r, 2, "dtctl plan job.yaml --machine h100 --set parallel.auto=true");
    expect_text(r.err, "parallel.auto: the job has no layout of its own. --search shows");
}

/* A worker of two has half of the cores and of the memory: so the same batch takes as long, and one alone needs twice
 * the memory of a core. */
TEST(workers_on_processors_share_their_node)
{
    static struct run_result r;
    static const char machine[] =
        "name: m\nsource: a test\nnodes: 1\ndevice: {per_node: 2, memory_gib: %g, bandwidth_gb: 1000, bf16_tflops: "
        "0.1, f32_tflops: 0.1, product: 1, launch_us: 0, call_us: 0, one_thread: true}\nlink: {bandwidth_gb: 100000, "
        "latency_us: 0}\nnetwork: {bandwidth_gb: 0}\nnoise: {spread: 0}\n";
    double seconds[2];
    char text[600];
    run_write("job.yaml", automatic);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), machine, 0.01);
        run_write("m.yaml", text);
        run_expect(&r, 0,
                   i ? "dtctl plan job.yaml --set parallel.auto=false --set parallel.workers=2 --machine ./m.yaml "
                       "-o json"
                     : "dtctl plan job.yaml --set parallel.auto=false --set parallel.workers=1 --machine ./m.yaml "
                       "-o json");
        json_t *report = output_json(&r);
        seconds[i] = number_of(json_array_get(json_object_get(report, "rows"), 0), "step_s");
        expect_near(number_of(report, "memory"), 0.9 * 0.01 * (1 << 30) * (i ? 1 : 2));
        json_decref(report);
    }
    assert_true(fabs(seconds[1] / seconds[0] - 1) < 0.05);
}

/* A checkpoint of 1,000 x 10^6 bytes a second: after a failure it is read, which the restart of a job contains. */
TEST(a_restart_reads_the_checkpoint_from_storage)
{
    static const char start[] =
        "name: m\nnodes: 4\ndevice: {per_node: 8, memory_gib: 80, bandwidth_gb: 3350, bf16_tflops: 989, f32_tflops: "
        "494}\nlink: {bandwidth_gb: 362}\nrecovery: {detect_s: 2, epoch_s: 5}\n";
    static const struct {
        const char *keys;
        double read_gb, restart_s; /* restart_s 0: as dtd restarts */
    } rows[] = {{"storage: {bandwidth_gb: 1}\n", 1, 180},
                {"storage: {bandwidth_gb: 1, read_gb: 4}\n", 4, 180},
                {"storage: {bandwidth_gb: 1, read_gb: 0.5}\ncost: {restart_s: 0}\n", 0.5, 0}};
    static struct run_result r;
    double lost = 0;
    char text[600];
    run_write("job.yaml", job);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", start, rows[i].keys);
        run_write("m.yaml", text);
        run_expect(&r, 0, "dtctl plan job.yaml --machine ./m.yaml --nodes 4 --days 10 --steps 1 -o json");
        json_t *report = output_json(&r), *dtd = json_object_get(report, "dtd_from_storage");
        /* Parameters in float32 and two moments: the bytes that a save writes, at 1 GB/s. */
        const double bytes = 1e9 * number_of(report, "save_s"), load = bytes / (rows[i].read_gb * 1e9);
        expect_near(number_of(dtd, "load_s"), load);
        expect_near(number_of(dtd, "restart_s"), 7 + load);
        lost = number_of(report, "failures") * (rows[i].restart_s > 0 ? rows[i].restart_s : 7 + load) / (10 * 86400.0);
        if (!(fabs(number_of(report, "restarting") / lost - 1) < 0.05))
            fail_msg("%g of the run in restarts instead of %g", number_of(report, "restarting"), lost);
        json_decref(report);
    }
}

/* The fewest layers with which two workers that hold everything need more than this node has: then two that share it
 * need little more than half of that. */
TEST(submit_names_the_nearest_layouts_that_fit)
{
    struct run_result r = {.code = 0};
    char text[500];
    for (int layers = 1; r.code == 0 && layers < 5000; layers += 1 + layers / 5) {
        snprintf(text, sizeof(text),
                 "name: j\nmodel: {arch: llama, dim: 2048, layers: %d, heads: 16, ffn: 8192, vocab: 2000}\ndata: "
                 "{train: [/usr/share/common-licenses/GPL-3], tokenizer: words}\ntrain: {steps: 3, seq: 64, "
                 "global_batch: 4, micro_batch: 1}\nparallel: {workers: 2}\n",
                 layers);
        run_write("cpu.yaml", text);
        run_shell(&r, "dtctl submit --dry-run cpu.yaml");
    }
    assert_int_equal(r.code, 2);
    expect_text(r.err, "GiB on the node, which has");
    expect_text(r.err, "it fits with parallel.tp=2");
}

TEST(machine_files_with_absurd_numbers_are_refused)
{
    static const struct {
        const char *memory, *bandwidth, *flops, *message;
    } rows[] = {
        {"80", "3350", "1e9", "m.yaml:5: device.bf16_tflops: expected a number from 1e-06 to 100000, found \"1e9\""},
        {"80", "3350", "1e9", "1e12 operations per second."},
        {"80", "3350", "0", "m.yaml:5: device.bf16_tflops: expected a number from"},
        {"80", "-1", "989", "m.yaml:4: device.bandwidth_gb: expected a number from"},
        {"80", ".nan", "989", "m.yaml:4: device.bandwidth_gb"},
        {"80", "3.35", "989", "m.yaml:5: device.bf16_tflops: 989 x 1e12 operations a second are 295224 for each byte"},
        {"1", "3350", "989", "m.yaml:3: device.memory_gib: 1 GiB hold no more than the context"},
    };
    struct run_result r;
    char text[400];
    run_write("job.yaml", job);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text),
                 "name: m\ndevice:\n  memory_gib: %s\n  bandwidth_gb: %s\n  bf16_tflops: %s\n  f32_tflops: 67\n  "
                 "per_node: 8\nlink: {bandwidth_gb: 300}\n",
                 rows[i].memory, rows[i].bandwidth, rows[i].flops);
        run_write("m.yaml", text);
        run_expect(&r, 2, "dtctl plan job.yaml --search --machine ./m.yaml");
        expect_text(r.err, rows[i].message);
    }
}

/* Each of the keys that --calibrate writes, with zero and absurd numbers. */
TEST(measured_keys_with_absurd_numbers_are_refused)
{
    static const char text[] =
        "name: m\nnodes: 1\ndevice: {per_node: 2, memory_gib: 4, bandwidth_gb: 10, bf16_tflops: 0.1, "
        "f32_tflops: 0.1, one_thread: true}\nlink: {bandwidth_gb: 5}\n%s\n";
    static const struct {
        const char *line, *message;
    } rows[] = {
        {"storage: {read_gb: 0}", "m.yaml:5: storage.read_gb: expected a number from 0.001 to 1000000, found \"0\""},
        {"storage: {read_gb: -3}", "m.yaml:5: storage.read_gb: expected a number from 0.001"},
        {"storage: {read_gb: .inf}", "m.yaml:5: storage.read_gb"},
        {"storage: {read_gb: fast}", "m.yaml:5: storage.read_gb"},
        {"storage: {read_gb: 1500}",
         "m.yaml:5: storage.read_gb: 1500 x 1e9 bytes a second are more than the memory of the "
         "node takes (20): write the rate in 1e9 bytes per second"},
        {"error: {program_less: 1}", "m.yaml:5: error.program_less: expected a number from 0 to 0.99, found \"1\""},
        {"error: {program_more: 1000}", "m.yaml:5: error.program_more: expected a number from 0 to 100"},
        {"error: {program_more: .nan}", "m.yaml:5: error.program_more"},
        {"error: {source: [a]}", "m.yaml:5: error.source: expected a string"},
        {"cost: {restart_s: -1}", "m.yaml:5: cost.restart_s: expected a number from 0"},
    };
    static struct run_result r;
    char machine[600];
    run_write("job.yaml", job);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(machine, sizeof(machine), text, rows[i].line);
        run_write("m.yaml", machine);
        run_expect(&r, 2, "dtctl plan job.yaml --set run.device=cpu --machine ./m.yaml");
        expect_text(r.err, rows[i].message);
    }
}

/* Without a daemon: `dtctl plan` prints the layout for this node, and the search writes a job file with a fixed one. */
TEST(an_automatic_layout_is_shown_and_can_be_fixed)
{
    struct run_result r;
    run_write("job.yaml", automatic);
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --set parallel.tp=2");
    expect_text(r.out, "4 workers");
    expect_text(r.out, "Layout     auto: tp 2, ");
    expect_text(r.out, " s a step; next best tp 2, ");
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --set parallel.tp=2 --set parallel.min_workers=1");
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
        {"dtctl plan job.yaml --search --machine h100 --steps 3",
         "--steps, --seed and --own need --days or --operations"},
        {"dtctl plan job.yaml --machine h100 --days 3 --steps 0", "--steps 0: write a number from 1 to 10000"},
        {"dtctl plan job.yaml --machine h100 --days 3 --seed x", "--seed x: write a number from 1"},
        {"dtctl plan job.yaml --search --machine h100 --own", "--steps, --seed and --own need --days or --operations"},
        {"dtctl plan --memory 7b --machine h100 --operations --own", "--own needs a job file with a layout"},
        {"dtctl plan job.yaml --machine h100 --nodes 2 --operations --own --set parallel.workers=8",
         "--own: parallel.workers is 8, which are 1 nodes of h100 and not 2: write --set parallel.workers=16"},
        {"dtctl plan job.yaml --machine h100 --operations --own --set parallel.workers=2 --set parallel.pp=2 --set "
         "parallel.schedule=file --set parallel.schedule_csv=order.csv",
         "--own: schedules from a file (parallel.schedule_csv) are not simulated"},
        {"dtctl plan job.yaml --machine h100 --operations --spares 3", "--spares needs --days"},
        {"dtctl plan job.yaml --machine h100 --days 3 --spares few", "--spares few: write a number of nodes"},
        {"dtctl plan job.yaml --nodes 2", "need --search, --strategies, --forecast, --days or --operations"},
        {"dtctl plan job.yaml --search --machine h100 --goal speed", "write time, memory, cost or tokens-per-dollar"},
        {"dtctl plan job.yaml --strategies --machine h100 --budget 9", "leave --goal and --budget out"},
        {"dtctl plan job.yaml --search --machine h100 --picture x.svg", "--picture draws --search --pareto,"},
        {"dtctl plan job.yaml --search --pareto --machine h100 --picture no/x.svg", "--picture no/x.svg: No such file"},
        {"dtctl plan job.yaml --price 9", "--price and --tokens need --search"},
        {"dtctl plan job.yaml --budget much", "--budget much: write an amount of money"},
        {"dtctl plan job.yaml --budget 5:-1", "--budget 5:-1: write an amount of money"},
        {"dtctl plan job.yaml --search --price 0", "--price 0: write the price of a device for an hour"},
        {"dtctl plan job.yaml --search --tokens nan", "--tokens nan: write a number of tokens"},
        {"dtctl plan --memory 9b", "there is no such size; write one of 124m"},
        {"dtctl plan job.yaml --search --machine h100 --timeline x.svg", "show programs"},
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

/* Runs that others measured: docs/use/course.md promises errors within 10 %. */
TEST(the_runs_of_the_course_are_forecast)
{
    static const double measured_min[] = {92, 25, 14};
    struct run_result r;
    if (!getenv("DTD_SOURCE"))
        TEST_SKIP("DTD_SOURCE is not set: run this test by ctest");
    run_expect(&r, 0,
               "dtctl plan $DTD_SOURCE/deploy/examples/course-2025.yaml --forecast --machine jureca-course --nodes 1:2 "
               "-o json");
    json_t *report = output_json(&r), *rows = json_object_get(report, "rows");
    assert_int_equal(3, json_array_size(rows));
    for (size_t i = 0; i < 3; i++) {
        const double min = json_number_value(json_object_get(json_array_get(rows, i), "run_s")) / 60;
        if (fabs(min / measured_min[i] - 1) > 0.1)
            fail_msg("forecast %g min, measured %g", min, measured_min[i]);
    }
    json_decref(report);
}

/* Parts add up; the lost time is what the row has beyond its share of the first row. */
TEST(lost_time_is_divided)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0,
               "dtctl plan job.yaml --set parallel.workers=4 --set parallel.pp=2 --set train.steps=1000 --forecast "
               "--machine h100 --nodes 2:4 -o json");
    json_t *report = output_json(&r), *rows = json_object_get(report, "rows");
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
    json_decref(report);
    run_expect(&r, 0, "dtctl plan job.yaml --set parallel.workers=4 --forecast --machine h100 --nodes 1");
    expect_text(r.out, "SPEED-UP");
    run_expect(&r, 2, "dtctl plan job.yaml --set parallel.workers=3 --forecast --machine h100 --nodes 1");
    expect_text(r.err, "--nodes 1: h100 has 8 devices on so many nodes, which is no multiple of the job's 3 workers");
}
