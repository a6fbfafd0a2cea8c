/* Between two failures, which are exponential with mean M, the job works in periods of an interval t and a stall w. A
 * failure costs the restart r, the time since the last complete checkpoint, and the part of a period that was begun:
 *
 *   progress per failure  N t,  N = 1 / (e^((t + w) / M) - 1) complete periods, whose checkpoint is also complete
 *   time per failure      M + r
 *
 * Failures during a restart restart it: r becomes M (e^(r / M) - 1). A checkpoint is complete only `save` after its
 * stall, so a failure within this time loses one interval more. */
#include "common/plan/search/goodput.h"

#include "common/plan/search/draw.h"

#include <math.h>

#define MAX_RATE 1e-12 /* below it, nothing fails */

static double failure_rate(const struct plan_run *run)
{
    return run->nodes * run->node_failures;
}

/* Shares of a cycle from one failure to the next. */
static void shares(const struct plan_run *run, double interval, struct plan_goodput *g)
{
    const double rate = failure_rate(run), period = interval + run->stall;
    if (rate < MAX_RATE) {
        g->share = interval / period;
        g->stalled = run->stall / period;
        g->lost = g->restarting = 0;
        return;
    }
    const double mean = 1 / rate, restart = mean * expm1(run->restart / mean);
    const double periods = 1 / expm1(period / mean);
    const double lasting = periods * exp(-run->save / mean); /* of those whose save was complete before the failure */
    const double cycle = mean + restart;
    g->share = lasting * interval / cycle;
    g->stalled = lasting * run->stall / cycle;
    g->restarting = restart / cycle;
    g->lost = 1 - g->share - g->stalled - g->restarting;
}

/* The share has one maximum, near Young's sqrt(2 w M): golden-section search around it. */
static double best_interval(const struct plan_run *run)
{
    const double rate = failure_rate(run), golden = 0.6180339887498949;
    if (rate < MAX_RATE)
        return run->length;
    const double young = sqrt(2 * fmax(run->stall, 1e-3) / rate);
    double low = fmax(young / 50, run->save - run->stall), high = fmax(low, fmin(young * 20, fmax(run->length, young)));
    struct plan_goodput a, b;
    for (int i = 0; i < 80; i++) {
        double x = high - golden * (high - low), y = low + golden * (high - low);
        shares(run, x, &a);
        shares(run, y, &b);
        if (a.share > b.share)
            high = y;
        else
            low = x;
    }
    return (low + high) / 2;
}

void plan_goodput(const struct plan_run *run, struct plan_goodput *ret)
{
    struct plan_goodput g = {0};
    const double rate = failure_rate(run);
    g.interval = run->interval > 0 ? fmax(run->interval, run->save - run->stall) : best_interval(run);
    g.mean_time = rate < MAX_RATE ? INFINITY : 1 / rate;
    shares(run, g.interval, &g);
    g.failures = rate < MAX_RATE ? 0 : run->length * (1 - g.restarting) * rate;
    *ret = g;
}

/* ---- simulation ---- */

static double draw_exponential(uint64_t *state, double mean)
{
    double u = (double)(draw_bits(state) >> 11) * 0x1p-53;
    return -mean * log1p(-u);
}

/* One run, which ends at its length in the middle of whatever happens then. */
static void simulate_one(const struct plan_run *run, double interval, uint64_t *state, struct plan_goodput *sum)
{
    const double mean = failure_rate(run) < MAX_RATE ? INFINITY : 1 / failure_rate(run), period = interval + run->stall;
    double now = 0;
    while (now < run->length) {
        double up = isinf(mean) ? run->length : draw_exponential(state, mean), left = run->length - now;
        if (up >= left) { /* the run ends first, with a last checkpoint */
            double periods = floor(left / period), rest = left - periods * period;
            sum->share += periods * interval + fmin(rest, interval);
            sum->stalled += periods * run->stall + fmax(0, rest - interval);
            return;
        }
        double periods = floor(up / period), since = up - periods * period;
        if (since < run->save && periods > 0)
            periods--; /* the newest was not complete yet */
        sum->share += periods * interval;
        sum->stalled += periods * run->stall;
        sum->lost += up - periods * period;
        sum->failures++;
        now += up;
        double down = run->restart;
        for (double next; (next = draw_exponential(state, mean)) < run->restart && now + down < run->length;)
            down += next; /* it failed again while it restarted */
        sum->restarting += fmin(down, run->length - now);
        now += down;
    }
}

void plan_goodput_simulate(const struct plan_run *run, int runs, uint64_t seed, struct plan_goodput *ret)
{
    struct plan_goodput sum = {0}, quiet;
    uint64_t state = draw_start(seed);
    plan_goodput(run, &quiet);
    for (int i = 0; i < runs; i++)
        simulate_one(run, quiet.interval, &state, &sum);
    const double all = run->length * runs;
    *ret = (struct plan_goodput){.interval = quiet.interval,
                                 .failures = sum.failures / runs,
                                 .mean_time = quiet.mean_time,
                                 .share = sum.share / all,
                                 .stalled = sum.stalled / all,
                                 .lost = sum.lost / all,
                                 .restarting = sum.restarting / all};
}
