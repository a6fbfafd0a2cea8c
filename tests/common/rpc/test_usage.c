/* Usage of ranks: windows are joined with the right weights, and lines are read back. Expected values are computed by
 * hand. */
#include "common/rpc/usage.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double expected, double is)
{
    if (!(fabs(expected - is) <= 1e-9 * fabs(expected)))
        fail_msg("expected %.12g, is %.12g", expected, is);
}

static struct usage_sample sample_of(int ranks, int64_t wall_ms, int64_t window_ms)
{
    struct usage_sample s;
    assert_ok(usage_sample_init(&s, ranks));
    s.wall_ms = wall_ms;
    s.window_ms = window_ms;
    s.step = wall_ms / 100;
    s.epoch = 1;
    for (int r = 0; r < ranks; r++)
        assert_ok(usage_sample_set_node(&s, r, r < ranks / 2 ? "a" : "b"));
    return s;
}

/* 20 steps of 0.1 s and 10 steps of 0.2 s are 30 steps in 4 s. */
TEST(steps_weigh_means_over_steps)
{
    struct usage_sample a = sample_of(2, 2000, 2000), b = sample_of(2, 4000, 2000);
    *usage_at(&a, USAGE_step_s, 0) = 0.1;
    *usage_at(&b, USAGE_step_s, 0) = 0.2;
    *usage_at(&a, USAGE_compute_s, 0) = 0.05;
    *usage_at(&b, USAGE_compute_s, 0) = 0.17;
    assert_true(usage_sample_fits(&a, &b));
    usage_sample_join(&a, &b);
    assert_near(4.0 / 30, *usage_at(&a, USAGE_step_s, 0));
    assert_near((20 * 0.05 + 10 * 0.17) / 30, *usage_at(&a, USAGE_compute_s, 0));
    assert_true(isnan(*usage_at(&a, USAGE_step_s, 1)));
    assert_int_equal(4000, a.window_ms);
    assert_int_equal(4000, a.wall_ms);
    assert_int_equal(40, a.step);
    usage_sample_fini(&a);
    usage_sample_fini(&b);
}

TEST(time_weighs_means_over_time_and_peaks_are_kept)
{
    struct usage_sample a = sample_of(1, 2000, 2000), b = sample_of(1, 8000, 6000);
    *usage_at(&a, USAGE_cpu, 0) = 1;
    *usage_at(&b, USAGE_cpu, 0) = 3;
    *usage_at(&a, USAGE_rss_bytes, 0) = 5e9;
    *usage_at(&b, USAGE_rss_bytes, 0) = 4e9;
    *usage_at(&b, USAGE_gpu_watts, 0) = 300; /* absent in the first window */
    usage_sample_join(&a, &b);
    assert_near(2.5, *usage_at(&a, USAGE_cpu, 0));
    assert_near(5e9, *usage_at(&a, USAGE_rss_bytes, 0));
    assert_near(300, *usage_at(&a, USAGE_gpu_watts, 0));
    usage_sample_fini(&a);
    usage_sample_fini(&b);
}

TEST(other_ranks_nodes_or_epochs_do_not_fit)
{
    struct usage_sample a = sample_of(2, 2000, 2000), b = sample_of(3, 4000, 2000), c = sample_of(2, 4000, 2000);
    assert_false(usage_sample_fits(&a, &b));
    c.epoch = 2;
    assert_false(usage_sample_fits(&a, &c));
    c.epoch = 1;
    assert_true(usage_sample_fits(&a, &c));
    assert_ok(usage_sample_set_node(&c, 1, "z"));
    assert_false(usage_sample_fits(&a, &c));
    usage_sample_fini(&a);
    usage_sample_fini(&b);
    usage_sample_fini(&c);
}

TEST(a_line_has_the_documented_form)
{
    struct usage_sample s = sample_of(3, 1, 2000);
    struct buf b = {0};
    s.step = 7;
    *usage_at(&s, USAGE_step_s, 0) = *usage_at(&s, USAGE_step_s, 1) = 0.1;
    *usage_at(&s, USAGE_step_s, 2) = 0.12;
    *usage_at(&s, USAGE_rss_bytes, 1) = 1234567890;
    assert_ok(usage_line_format(&s, &b));
    assert_ok(buf_append(&b, "", 1));
    assert_string_equal("{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\", \"b\", "
                        "\"b\"], \"step_s\": [0.1, 0.1, 0.12], \"rss_bytes\": [null, 1.23457e+09, null]}\n",
                        (char *)b.data);
    buf_fini(&b);
    usage_sample_fini(&s);
}

TEST(a_line_is_read_back)
{
    struct usage_sample s = sample_of(2, 123456789, 2000), back;
    struct buf b = {0};
    for (int f = 0; f < USAGE_COUNT; f++)
        *usage_at(&s, (enum usage_field)f, 1) = f + 0.5;
    assert_ok(usage_line_format(&s, &b));
    assert_ok(usage_line_parse((char *)b.data, b.len, &back));
    assert_true(usage_sample_fits(&s, &back));
    assert_int_equal(123456789, back.wall_ms);
    assert_int_equal(2000, back.window_ms);
    assert_int_equal(s.step, back.step);
    for (int f = 0; f < USAGE_COUNT; f++) {
        assert_true(isnan(*usage_at(&back, (enum usage_field)f, 0)));
        assert_near(f + 0.5, *usage_at(&back, (enum usage_field)f, 1));
    }
    buf_fini(&b);
    usage_sample_fini(&s);
    usage_sample_fini(&back);
}

TEST(other_lines_are_refused)
{
    static const char *const lines[] = {
        "",
        "[]",
        "{\"step\": 7}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": []}",
        "{\"wall_ms\": 1, \"window_ms\": 0, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 0, \"node\": [\"a\"]}",
        "{\"wall_ms\": 1, \"window_ms\": 9000000000000000000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"]}",
        "{\"wall_ms\": 9000000000000000000, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": -7, \"epoch\": 1, \"node\": [\"a\"]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\\\"b\"]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [7]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"], \"cpu\": [1, 2]}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"], \"cpu\": 1}",
        "{\"wall_ms\": 1, \"window_ms\": 2000, \"step\": 7, \"epoch\": 1, \"node\": [\"a\"]",
    };
    struct usage_sample s;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        assert_err(ERR_CORRUPT, usage_line_parse(lines[i], strlen(lines[i]), &s));
}

TEST(many_ranks_report_less_often)
{
    assert_int_equal(2000, usage_window_ms(1));
    assert_int_equal(2000, usage_window_ms(200));
    assert_int_equal(10240, usage_window_ms(1024));
}
