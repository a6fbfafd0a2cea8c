/* The wall clock is set by days in both directions, while jobs run. Durations are measured by the monotonic clock, so
 * nothing ends early, hangs or is taken for lost. */
#include "common/base/clock.h"
#include "tests/daemon/programs/harness.h"

#include <signal.h>
#include <stdatomic.h>

#define DAY_S 86400

static struct dtd d;
static _Atomic int64_t *offset_s;

static void start_with_clock(void)
{
    offset_s = dtd_preload("clock_step", "DTD_TEST_CLOCK", sizeof(*offset_s));
    dtd_start(&d, "state");
    unsetenv("LD_PRELOAD");
}

static void expect_progress(const char *job)
{
    int64_t step = job_status(&d, job)->step;
    job_wait_step(&d, job, 1, (int)step + 20, 20000);
    assert_string_equal("running", job_status(&d, job)->state);
}

TEST(the_wall_clock_is_set_by_days)
{
    static const int64_t days[] = {1, 400, 0, -1, -400};
    char a[32], b[32], name[16];
    start_with_clock();
    job_submit(&d, spec_text("a", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", "max_seconds: 3600"), a);
    job_wait_step(&d, a, 1, 2, 20000);
    for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++) {
        *offset_s = days[i] * DAY_S;
        expect_progress(a);
        snprintf(name, sizeof(name), "b%zu", i);
        job_submit(&d, spec_text(name, 1, 3, "", "max_seconds: 600"), b);
        job_wait(&d, b, "done", 20000);
        int64_t shown_s = (job_status(&d, b)->submitted_ms - clock_wall_ms()) / 1000;
        assert_in_range(shown_s - days[i] * DAY_S + 60, 0, 60); /* the clock was set indeed */
    }
    assert_int_equal(0, dtd_down(&d));
}

/* dtd-control exits and starts again, and the wall clock differs by days. The job runs on, and its time is that of the
 * monotonic clock: neither is its limit reached early, nor does its time begin again. */
TEST(control_starts_again_after_the_clock_was_set)
{
    static const int64_t days[] = {2, -2, 400};
    char a[32], b[32];
    start_with_clock();
    job_submit(&d, spec_text("a", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", "max_seconds: 3600"), a);
    job_submit(&d, spec_text("b", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", "max_seconds: 15"), b);
    int64_t begin = clock_mono_ms();
    job_wait_step(&d, a, 1, 2, 20000);
    sleep_ms(2500); /* the clock's file is written once a second */
    for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++) {
        *offset_s = days[i] * DAY_S;
        kill(dtd_control_pid(&d), SIGKILL);
        expect_progress(a);
        assert_int_equal(1, job_status(&d, a)->epoch);
        sleep_ms(1000);
    }
    job_wait(&d, b, "failed", 30000);
    assert_non_null(strstr(job_status(&d, b)->reason, "run.max_seconds (15) reached"));
    assert_in_range(clock_mono_ms() - begin, 14500,
                    26000); /* a new count after a restart would end after 21 s and more */
    assert_string_equal("running", job_status(&d, a)->state);
    assert_int_equal(0, dtd_down(&d));
}

struct seen_windows {
    int n;
    int64_t last_ms;
    bool ascends;
};

static bool see_window(void *arg, const struct usage_sample *s)
{
    struct seen_windows *seen = arg;
    seen->ascends = seen->ascends && s->wall_ms > seen->last_ms;
    seen->last_ms = s->wall_ms;
    seen->n++;
    return true;
}

/* Clients ask for the windows after the last one that they have. */
TEST(usage_ascends_although_the_clock_goes_back)
{
    char a[32];
    struct why why = {""};
    struct seen_windows seen = {.ascends = true};
    const struct client_stream stream = {.usage = see_window, .arg = &seen};
    start_with_clock();
    job_submit(&d, spec_text("a", 1, 40, "DOUBLE_USAGE: \"1\", DOUBLE_STEP_MS: \"100\"", "restarts: 1"), a);
    job_wait_step(&d, a, 1, 5, 20000);
    *offset_s = -2 * DAY_S;
    kill(job_status(&d, a)->worker[0].pid, SIGKILL);
    job_wait(&d, a, "done", 30000);
    assert_ok(client_usage(dtd_client(&d), a, false, 0, &stream, &why));
    assert_int_equal(2, seen.n);
    assert_true(seen.ascends);
    assert_int_equal(0, dtd_down(&d));
}

/* A repeated request is found although the clock went back or on between the two. */
TEST(a_repeated_request_is_found_after_the_clock_was_set)
{
    char first[32], again[32];
    uint8_t id[16];
    struct why why = {""};
    start_with_clock();
    assert_ok(client_request_id(id));
    assert_ok(client_submit(dtd_client(&d), id, spec_text("a", 1, 3, "", ""), NULL, first, &why));
    *offset_s = -2 * DAY_S;
    assert_ok(client_submit(dtd_client(&d), id, spec_text("a", 1, 3, "", ""), NULL, again, &why));
    assert_string_equal(first, again);
    assert_int_equal(0, dtd_down(&d));
}
