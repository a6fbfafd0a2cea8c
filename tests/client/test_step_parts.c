/* The forecast of a step beside its measurement. Samples are written by hand, and so are the expected parts and
 * sentences. */
#include "client/step_parts.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

static const struct job_forecast forecast = {.source = "here: measured 2026-11-27",
                                             .workers = 2,
                                             .compute_s = 0.40,
                                             .recompute_s = 0.10, /* in compute_s already */
                                             .tp_s = 0.02,
                                             .pp_s = 0.01,
                                             .bubble_s = 0.03,
                                             .params_s = 0.01,
                                             .update_s = 0.03};

static void assert_near(double expected, double is)
{
    if (!(fabs(expected - is) <= 1e-9))
        fail_msg("expected %.12g, is %.12g", expected, is);
}

/* Two ranks that do as forecast. */
static struct usage_sample sample_as_forecast(void)
{
    struct usage_sample s;
    assert_int_equal(OK, usage_sample_init(&s, 2));
    for (int r = 0; r < 2; r++) {
        struct usage u = usage_none;
        u.step_s = 0.50;
        u.compute_s = 0.43;
        u.update_s = 0.03;
        u.tp_s = 0.02;
        u.pp_s = 0.04;
        u.params_s = 0.01;
        u.comm_s = 0.07;
        u.data_s = u.save_s = 0;
        u.cpu = 1;
        u.planned_flop = 1e9;
        usage_set_rank(&s, r, &u);
    }
    return s;
}

static void assert_texts(const struct usage_sample *s, const char *line, const char *cause)
{
    struct step_compare c;
    char text[STEP_TEXT];
    step_compare(&forecast, s, &c);
    assert_string_equal(line, step_line(&c, text));
    assert_string_equal(cause, step_cause(&c, text));
}

TEST(each_part_has_its_measurement)
{
    struct usage_sample s = sample_as_forecast();
    struct step_compare c;
    step_compare(&forecast, &s, &c);
    assert_near(0.5, c.forecast_s);
    assert_near(0.5, c.measured_s);
    const double expected[STEP_PART_COUNT] = {
        [STEP_COMPUTE] = 0.4, [STEP_TP] = 0.02, [STEP_PP] = 0.04, [STEP_PARAMS] = 0.01, [STEP_UPDATE] = 0.03};
    for (int i = 0; i < STEP_PART_COUNT; i++) {
        assert_near(expected[i], c.forecast[i]);
        if (expected[i] > 0 || i == STEP_REST)
            assert_near(expected[i], c.measured[i]);
        assert_int_equal(expected[i] > 0, step_part_shown(&c, (enum step_part)i));
    }
    assert_texts(&s, "step 0.5 s, forecast 0.5 s (+0 %)", "");
    usage_sample_fini(&s);
}

TEST(without_a_measurement_there_is_a_forecast)
{
    assert_texts(NULL, "forecast 0.5 s", "");
    assert_true(step_has_forecast(&forecast));
    assert_false(step_has_forecast(&(struct job_forecast){.source = ""}));
}

static void lengthen(struct usage_sample *s, enum usage_field field, double by)
{
    for (int r = 0; r < s->ranks; r++) {
        *usage_at(s, field, r) += by;
        *usage_at(s, USAGE_step_s, r) += by;
    }
}

TEST(slow_products_are_named)
{
    struct usage_sample s = sample_as_forecast();
    lengthen(&s, USAGE_compute_s, 0.1);
    assert_texts(&s, "step 0.6 s, forecast 0.5 s (+20 %): most of it in computing, +0.1 s",
                 "Its operations take 1.2 times as long as with the measured rates of products and memory.");
    usage_sample_fini(&s);
}

TEST(a_busy_node_is_named_before_slow_products)
{
    struct usage_sample s = sample_as_forecast();
    lengthen(&s, USAGE_compute_s, 0.1);
    *usage_at(&s, USAGE_cpu, 0) = *usage_at(&s, USAGE_cpu, 1) = 0.53; /* 0.318 s of a core in 0.53 s of computing */
    assert_texts(&s, "step 0.6 s, forecast 0.5 s (+20 %): most of it in computing, +0.1 s",
                 "A worker had only 0.6 of a core while it computed: other programs use this node's processors.");
    usage_sample_fini(&s);
}

TEST(slow_links_are_named)
{
    struct usage_sample s = sample_as_forecast();
    lengthen(&s, USAGE_params_s, 0.04);
    assert_texts(&s, "step 0.54 s, forecast 0.5 s (+8 %): most of it in parameter gathers, +0.04 s",
                 "Links take 5 times as long as with the measured rates.");
    usage_sample_fini(&s);
}

TEST(a_slow_rank_is_named)
{
    struct usage_sample s = sample_as_forecast();
    *usage_at(&s, USAGE_step_s, 0) = 0.79;
    *usage_at(&s, USAGE_step_s, 1) = 0.8;
    *usage_at(&s, USAGE_compute_s, 1) = 0.73; /* rank 0 waits for it */
    *usage_at(&s, USAGE_tp_s, 0) = 0.31;
    *usage_at(&s, USAGE_comm_s, 0) = 0.36;
    assert_texts(&s, "step 0.795 s, forecast 0.5 s (+59 %): most of it in computing, +0.15 s",
                 "Rank 1 computes 1.70 times as long as the others with the same work.");
    usage_sample_fini(&s);
}

/* The first stage has most work; the second waits for it, which does not concern the slowest stage. */
TEST(the_longest_stage_counts)
{
    struct usage_sample s = sample_as_forecast();
    *usage_at(&s, USAGE_planned_flop, 1) = 5e8;
    *usage_at(&s, USAGE_compute_s, 1) = 0.2;
    *usage_at(&s, USAGE_pp_s, 1) = 0.27;
    assert_texts(&s, "step 0.5 s, forecast 0.5 s (+0 %)", "");
    usage_sample_fini(&s);
}

TEST(waits_between_steps_are_the_rest)
{
    struct usage_sample s = sample_as_forecast();
    lengthen(&s, USAGE_comm_s, 0.05);
    assert_texts(&s, "step 0.55 s, forecast 0.5 s (+10 %): most of it in waiting between steps, +0.05 s",
                 "The forecast has nothing of this kind.");
    usage_sample_fini(&s);
}

TEST(short_steps_are_in_milliseconds)
{
    const struct job_forecast small = {.source = "", .workers = 1, .compute_s = 0.004, .update_s = 0.0005};
    struct usage_sample s;
    struct step_compare c;
    struct usage u = usage_none;
    char text[STEP_TEXT];
    assert_int_equal(OK, usage_sample_init(&s, 1));
    u.step_s = u.compute_s = 0.0135;
    u.update_s = 0.0005;
    u.data_s = u.save_s = 0;
    usage_set_rank(&s, 0, &u);
    step_compare(&small, &s, &c);
    assert_string_equal("step 13.5 ms, forecast 4.5 ms (3 times): most of it in computing, +9 ms", step_line(&c, text));
    usage_sample_fini(&s);
}

TEST(a_job_that_is_faster_than_forecast)
{
    struct usage_sample s = sample_as_forecast();
    lengthen(&s, USAGE_compute_s, -0.1);
    assert_texts(&s, "step 0.4 s, forecast 0.5 s (-20 %): most of it in computing, -0.1 s",
                 "It is faster than with the measured rates.");
    usage_sample_fini(&s);
}

/* The first window of a job is left out, unless it is the only one; after a restart a new mean begins. */
TEST(windows_are_joined)
{
    struct step_windows w = {0};
    const double compute_s[] = {9, 1, 3, 5};
    for (int i = 0; i < 4; i++) {
        struct usage_sample s = sample_as_forecast();
        s.window_ms = 1000;
        s.epoch = 1;
        *usage_at(&s, USAGE_compute_s, 0) = compute_s[i];
        assert_int_equal(OK, step_windows_add(&w, &s));
        usage_sample_fini(&s);
        if (i == 0)
            assert_near(9, *usage_at(&w.mean, USAGE_compute_s, 0));
    }
    assert_near(3, *usage_at(&w.mean, USAGE_compute_s, 0)); /* of 1, 3 and 5 */
    struct usage_sample other = sample_as_forecast();
    other.epoch = 2;
    assert_int_equal(OK, step_windows_add(&w, &other));
    assert_near(0.43, *usage_at(&w.mean, USAGE_compute_s, 0));
    usage_sample_fini(&other);
    step_windows_fini(&w);
}

TEST(the_line_of_a_job_file)
{
    static const char file[] = "name: j\nmodel: {arch: llama, dim: 8, layers: 1, heads: 2}\n"
                               "data: {train: [/x], tokenizer: bytes}\ntrain: {steps: 3, seq: 8, global_batch: 8}\n";
    char text[STEP_TEXT], forecast_file[512];
    assert_string_equal("", step_line_of(file, NULL, text));
    assert_string_equal("", step_line_of("no: [yaml", NULL, text));
    snprintf(forecast_file, sizeof(forecast_file), "%sforecast: {workers: 1, compute_s: 0.25}\n", file);
    assert_string_equal("forecast 0.25 s", step_line_of(forecast_file, NULL, text));
}

TEST(json_has_parts_and_texts)
{
    struct usage_sample s = sample_as_forecast();
    struct step_compare c;
    lengthen(&s, USAGE_params_s, 0.04);
    step_compare(&forecast, &s, &c);
    json_t *j = step_json(&forecast, &c);
    assert_non_null(j);
    const json_t *part = json_array_get(json_object_get(j, "parts"), 3);
    assert_string_equal("params", json_string_value(json_object_get(part, "part")));
    assert_near(0.01, json_real_value(json_object_get(part, "forecast_s")));
    assert_near(0.05, json_real_value(json_object_get(part, "measured_s")));
    assert_string_equal("params", json_string_value(json_object_get(j, "largest")));
    assert_string_equal("here: measured 2026-11-27", json_string_value(json_object_get(j, "source")));
    assert_int_equal(5, json_array_size(json_object_get(j, "parts")));
    json_decref(j);
    usage_sample_fini(&s);
}
