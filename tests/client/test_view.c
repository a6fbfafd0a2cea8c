#include "client/view.h"
#include "tests/lib/test.h"

#include <math.h>

static struct metric metric(int64_t step, double step_s)
{
    return (struct metric){.step = step,
                           .loss = 2.5,
                           .tokens_per_s = 3400,
                           .step_s = step_s,
                           .valid_loss = NAN,
                           .test_loss = NAN,
                           .workers = 2,
                           .epoch = 1};
}

static void status(struct view *v, char *state, int64_t step)
{
    char job[] = "1", name[] = "first-job", none[] = "";
    const struct client_job j = {
        .job = job, .name = name, .state = state, .reason = none, .step = step, .steps = 300, .workers = 2};
    view_status(v, &j);
}

TEST(line_before_and_in_the_run)
{
    struct view v;
    char line[256], starting[] = "starting", running[] = "running";
    view_init(&v, "1");
    status(&v, starting, 0);
    view_line(&v, 0, line, sizeof(line));
    assert_string_equal(line, "job 1 first-job  starting  step 0/300  0%  2 workers");
    status(&v, running, 0);
    struct metric m = metric(120, 0.4);
    view_metric(&v, &m);
    view_line(&v, 0, line, sizeof(line));
    assert_string_equal(line, "job 1 first-job  step 120/300  40%  loss 2.5000  3.4k tok/s  ETA 1m 12s  2 workers");
    view_line(&v, 200, line, sizeof(line));
    assert_non_null(strstr(line, "[########------------] step 120/300"));
    static const int columns[] = {80, 60, 40, 34};
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        view_line(&v, columns[i], line, sizeof(line));
        assert_true(strlen(line) < (size_t)columns[i]);
        assert_non_null(strstr(line, "120/300"));
        assert_non_null(strstr(line, "  loss 2.5000"));
        assert_non_null(strstr(line, "  ETA 1m 12s"));
    }
    view_line(&v, 0, line, 20); /* cut, not overrun */
    assert_int_equal(strlen(line), 19);
}

TEST(eta_is_smoothed_and_starts_anew_with_an_epoch)
{
    struct view v;
    char running[] = "running", done[] = "done";
    view_init(&v, "1");
    assert_true(isnan(view_eta(&v)));
    status(&v, running, 0);
    struct metric m = metric(100, 1.0);
    view_metric(&v, &m);
    assert_true(fabs(view_eta(&v) - 200) < 1e-9);
    m = metric(101, 11.0); /* one slow step counts for a tenth */
    view_metric(&v, &m);
    assert_true(fabs(view_eta(&v) - 199 * 2.0) < 1e-9);
    m = metric(102, 0.5);
    m.epoch = 2;
    view_metric(&v, &m);
    assert_true(fabs(view_eta(&v) - 198 * 0.5) < 1e-9);
    status(&v, done, 300);
    assert_true(isnan(view_eta(&v)));
}

TEST(plain_lines_come_each_twentieth_and_each_ten_seconds)
{
    struct view v;
    char running[] = "running";
    int lines = 0;
    view_init(&v, "1");
    status(&v, running, 0);
    assert_false(view_line_due(&v, 0)); /* no metric has arrived */
    for (int64_t step = 1; step <= 300; step++) {
        struct metric m = metric(step, 0.001);
        view_metric(&v, &m);
        if (view_line_due(&v, step)) {
            view_line_printed(&v, step);
            lines++;
        }
        assert_false(view_line_due(&v, step));
    }
    assert_in_range(lines, 20, 22);
    assert_int_equal(v.printed_step, 300);
    /* With slow steps, a line is due by time. */
    view_init(&v, "1");
    status(&v, running, 0);
    struct metric m = metric(1, 4);
    view_metric(&v, &m);
    view_line_printed(&v, 1000);
    m = metric(2, 4);
    view_metric(&v, &m);
    assert_false(view_line_due(&v, 5000));
    assert_true(view_line_due(&v, 11000));
}
