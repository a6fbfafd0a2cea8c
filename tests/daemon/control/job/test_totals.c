/* Totals of a job: arithmetic of a few steps, a failure and two saves. */
#include "daemon/control/job/totals.h"
#include "tests/lib/test.h"

#include <math.h>

static void step(struct job_totals *t, int64_t number, double step_s, double loss, int64_t now_ms)
{
    struct metric m = metric_none;
    m.step = number;
    m.step_s = step_s;
    m.tokens_per_s = 100;
    m.loss = loss;
    m.workers = 4;
    job_totals_step(t, &m, now_ms);
}

static double near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

TEST(steps_and_repeated_steps)
{
    static struct job_totals t;
    for (int64_t i = 1; i <= 5; i++)
        step(&t, i, 2, i == 4 ? NAN : 1, 0);
    step(&t, 3, 1, INFINITY, 0); /* resumed from step 2 */
    step(&t, 4, 1, 1, 0);
    step(&t, 5, 1, 1, 0);
    step(&t, 6, 0.3, 1, 0);
    assert_int_equal(9, t.t.steps);
    assert_int_equal(3, t.t.recomputed_steps);
    assert_int_equal(2, t.t.not_finite_steps);
    assert_true(near(100 * (10 + 3 + 0.3), t.t.tokens) && near(300, t.t.recomputed_tokens));
    assert_true(near(4 * 10.3, t.t.productive_s) && near(4 * 3, t.t.recompute_s));
    const struct totals_histogram *h = &t.t.duration[TOTALS_STEP];
    assert_true(near(13.3, h->sum));
    for (int i = 0; i <= totals_bounds[TOTALS_STEP].n; i++) { /* (1, 2.5], (0.5, 1], (0.25, 0.5] */
        const double s = i < totals_bounds[TOTALS_STEP].n ? totals_bounds[TOTALS_STEP].s[i] : INFINITY;
        assert_int_equal(s == 2.5 ? 5 : s == 1 ? 3 : s == 0.5 ? 1 : 0, h->n[i]);
    }
    step(&t, 7, 1e6, 1, 0);
    assert_int_equal(1, h->n[totals_bounds[TOTALS_STEP].n]);
}

TEST(saves)
{
    static struct job_totals t;
    for (int64_t i = 1; i <= 300; i++)
        step(&t, i, 1, 1, 1000 * i);
    job_totals_saved(&t, 290, 1000, 292250);
    job_totals_saved(&t, 10, 500, 301000); /* too long ago: its duration is unknown */
    assert_int_equal(2, t.t.checkpoints);
    assert_true(t.t.checkpoint_bytes == 1500);
    const struct totals_histogram *h = &t.t.duration[TOTALS_SAVE];
    assert_true(near(2.25, h->sum));
    assert_int_equal(1, h->n[4]); /* up to 2.5 s */
}

TEST(recoveries_and_seconds)
{
    static struct job_totals t;
    job_totals_recovered(&t, false, 2000, 4); /* the first start */
    job_totals_recovered(&t, true, 500, 3);
    assert_true(near(9.5, t.t.restart_s) && near(0.5, t.t.duration[TOTALS_RECOVERY].sum));
    assert_int_equal(1, t.t.duration[TOTALS_RECOVERY].n[2]);
    job_totals_tick(&t, 0, 1000);
    job_totals_tick(&t, 4, 2000);
    job_totals_tick(&t, 4, 3500);
    job_totals_tick(&t, 2, 4000);
    job_totals_tick(&t, 0, 9000);
    job_totals_tick(&t, 2, 10000);
    assert_true(near(4 * 1.5 + 2 * 0.5, t.t.allocated_s));
}
