/* All sums are of this leader: nothing is stored, since a scraper adds up over restarts (Prometheus' rate and
 * increase).
 */
#include "daemon/control/job/totals.h"

#include <math.h>

static double or_zero(double x)
{
    return isfinite(x) && x > 0 ? x : 0;
}

void job_totals_step(struct job_totals *t, const struct metric *row, int64_t now_ms)
{
    const bool repeated = row->step <= t->top_step;
    const double step_s = or_zero(row->step_s), tokens = or_zero(row->tokens_per_s) * step_s;
    t->t.steps++;
    t->t.recomputed_steps += repeated;
    t->t.not_finite_steps += !isfinite(row->loss);
    t->t.tokens += tokens;
    t->t.recomputed_tokens += repeated ? tokens : 0;
    *(repeated ? &t->t.recompute_s : &t->t.productive_s) += step_s * (double)row->workers;
    totals_count(&t->t, TOTALS_STEP, step_s);
    t->top_step = repeated ? t->top_step : row->step;
    t->kept[row->step % TOTALS_STEPS_KEPT].step = row->step;
    t->kept[row->step % TOTALS_STEPS_KEPT].ms = now_ms;
}

void job_totals_saved(struct job_totals *t, int64_t step, int64_t bytes, int64_t now_ms)
{
    t->t.checkpoints++;
    t->t.checkpoint_bytes += (double)bytes;
    if (step > 0 && t->kept[step % TOTALS_STEPS_KEPT].step == step)
        totals_count(&t->t, TOTALS_SAVE, (double)(now_ms - t->kept[step % TOTALS_STEPS_KEPT].ms) / 1e3);
}

void job_totals_recovered(struct job_totals *t, bool failed, double ms, int workers)
{
    t->t.restart_s += or_zero(ms) / 1e3 * workers;
    if (failed)
        totals_count(&t->t, TOTALS_RECOVERY, or_zero(ms) / 1e3);
}

void job_totals_tick(struct job_totals *t, int workers, int64_t now_ms)
{
    if (workers && t->tick_ms)
        t->t.allocated_s += (double)(now_ms - t->tick_ms) / 1e3 * workers;
    t->tick_ms = workers ? now_ms : 0;
}
