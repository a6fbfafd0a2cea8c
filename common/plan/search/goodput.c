/* Between two failures, which are exponential with mean M, the job works in periods of an interval t and a stall w. A
 * failure costs the restart r, the time since the last complete checkpoint, and the part of a period that was begun:
 *
 *   progress per failure  N t,  N = 1 / (e^((t + w) / M) - 1) complete periods, whose checkpoint is also complete
 *   time per failure      M + r
 *
 * Failures during a restart restart it: r becomes M (e^(r / M) - 1). A checkpoint is complete only `save` after its
 * stall, so a failure within this time loses one interval more.
 *
 * A node that failed may have to be repaired. Repairs begin at the rate of failures and each takes its own time, so
 * that the number of nodes in repair is that of customers of a queue with as many servers as needed: Poisson with the
 * mean a = rate x time of a repair. If the job waits when it lacks a node, nothing fails meanwhile, and this queue
 * loses customers: Erlang's loss formula is the share of the time in which it is full. */
#include "common/plan/search/goodput.h"

#include "common/plan/search/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- nodes in repair ---- */

static double mean_in_repair(const struct plan_run *run)
{
    return failure_rate(run) * run->taken * run->repair;
}

/* The share of the time in which all of n servers are busy. */
static double erlang_loss(double load, int64_t n)
{
    double loss = 1;
    for (int64_t k = 1; k <= n; k++)
        loss = load * loss / ((double)k + load * loss);
    return loss;
}

/* E[max(0, k - spares)] of a Poisson number: its mean without the part below. */
static double mean_above(double mean, int64_t spares)
{
    double p = exp(-mean), rest = mean - (double)spares;
    for (int64_t k = 0; k < spares; k++) {
        rest += (double)(spares - k) * p;
        p *= mean / (double)(k + 1);
    }
    return fmax(0, rest);
}

static double missing_share(const struct plan_run *run, int64_t spares)
{
    const double mean = mean_in_repair(run);
    if (mean <= 0)
        return 0;
    return run->waits ? erlang_loss(mean, spares + 1) : fmin(1, mean_above(mean, spares) / run->nodes);
}

/* More spares never make more of the run missing, so half of the range can be left out at a time. */
int64_t plan_goodput_spares(const struct plan_run *run, double share)
{
    int64_t low = 0, high = (int64_t)run->nodes;
    while (low < high) {
        const int64_t mid = (low + high) / 2;
        if (missing_share(run, mid) > share)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void plan_goodput(const struct plan_run *run, struct plan_goodput *ret)
{
    struct plan_goodput g = {0};
    const double rate = failure_rate(run), missing = missing_share(run, run->spares), there = 1 - missing;
    g.interval = run->interval > 0 ? fmax(run->interval, run->save - run->stall) : best_interval(run);
    g.mean_time = rate < MAX_RATE ? INFINITY : 1 / rate;
    shares(run, g.interval, &g);
    g.failures = rate < MAX_RATE ? 0 : run->length * (run->waits ? there : 1) * (1 - g.restarting) * rate;
    g.missing = missing;
    g.share *= there;
    g.stalled *= there;
    g.lost *= there;
    g.restarting *= there;
    *ret = g;
}

/* ---- simulation ---- */

/* A run at the time `now`. Repairs are sorted: the last one ends first. */
struct run_player {
    const struct plan_run *run;
    double interval, mean; /* mean time between failures */
    uint64_t state;
    double now, absent; /* absent: seconds of nodes that the job lacked */
    double *repairs;
    int n_repairs, room;
    struct plan_goodput sum;
    err_t err;
};

static double draw_exponential(uint64_t *state, double mean)
{
    return -mean * log1p(-draw_share(state));
}

static void begin_repair(struct run_player *p)
{
    if (p->n_repairs == p->room) {
        const int room = 2 * p->room + 64;
        double *more = realloc(p->repairs, (size_t)room * sizeof(*more));
        if (!more) {
            p->err = ERR_NOMEM;
            return;
        }
        p->repairs = more;
        p->room = room;
    }
    const double end = p->now + draw_exponential(&p->state, p->run->repair);
    int at = p->n_repairs++;
    for (; at > 0 && p->repairs[at - 1] < end; at--)
        p->repairs[at] = p->repairs[at - 1];
    p->repairs[at] = end;
}

/* Nodes that the job lacks. */
static double lacking(const struct run_player *p)
{
    return fmax(0, p->n_repairs - (double)p->run->spares);
}

static void advance(struct run_player *p, double to)
{
    to = fmin(to, p->run->length);
    while (p->n_repairs > 0 && p->repairs[p->n_repairs - 1] <= to) {
        const double end = p->repairs[p->n_repairs - 1];
        p->absent += lacking(p) * (end - p->now);
        p->now = end;
        p->n_repairs--;
    }
    p->absent += lacking(p) * (to - p->now);
    p->now = to;
}

static void fail(struct run_player *p)
{
    const double taken = p->run->taken * (p->run->repair > 0 ? 1 : 0);
    if (taken > 0 && draw_share(&p->state) < taken)
        begin_repair(p);
    while (p->run->waits && lacking(p) > 0 && p->now < p->run->length) {
        const double from = p->now;
        advance(p, p->repairs[p->n_repairs - 1]);
        p->sum.missing += p->now - from;
    }
}

/* It may fail again while it restarts. */
static void restart(struct run_player *p)
{
    while (p->now < p->run->length) {
        const double next = draw_exponential(&p->state, p->mean), from = p->now;
        advance(p, p->now + fmin(next, p->run->restart));
        p->sum.restarting += p->now - from;
        if (next >= p->run->restart)
            return;
        fail(p);
    }
}

/* Works until the next failure, or until the run ends with a last checkpoint. */
static void work(struct run_player *p)
{
    const struct plan_run *run = p->run;
    const double up = isinf(p->mean) ? run->length : draw_exponential(&p->state, p->mean), left = run->length - p->now;
    const double period = p->interval + run->stall, span = fmin(up, left);
    double periods = floor(span / period);
    const double since = span - periods * period;
    advance(p, p->now + span);
    if (up < left && since < run->save && periods > 0)
        periods--; /* the newest was not complete yet */
    p->sum.share += periods * p->interval;
    p->sum.stalled += periods * run->stall;
    if (up >= left) {
        p->sum.share += fmin(since, p->interval);
        p->sum.stalled += fmax(0, since - p->interval);
        return;
    }
    p->sum.lost += span - periods * period;
    p->sum.failures++;
}

static void simulate_one(struct run_player *p)
{
    p->now = p->absent = p->n_repairs = 0;
    memset(&p->sum, 0, sizeof(p->sum));
    while (p->now < p->run->length && !p->err) {
        work(p);
        if (p->now < p->run->length) {
            fail(p);
            restart(p);
        }
    }
}

/* Adds the shares of a run. A job that goes on with fewer nodes loses their part of all its time. */
static void add_run(const struct run_player *p, int runs, struct plan_goodput *ret)
{
    const double missing = p->run->waits ? 0 : p->absent / (p->run->nodes * p->run->length);
    const double part = (1 - missing) / (p->run->length * runs);
    ret->share += part * p->sum.share;
    ret->stalled += part * p->sum.stalled;
    ret->lost += part * p->sum.lost;
    ret->restarting += part * p->sum.restarting;
    ret->missing += part * p->sum.missing + missing / runs;
    ret->failures += p->sum.failures / runs;
    ret->deviation += pow(part * runs * p->sum.share, 2) / runs;
}

err_t plan_goodput_simulate(const struct plan_run *run, int runs, uint64_t seed, struct plan_goodput *ret)
{
    struct plan_goodput quiet, all = {0};
    plan_goodput(run, &quiet);
    struct run_player p = {.run = run, .interval = quiet.interval, .mean = quiet.mean_time, .state = draw_start(seed)};
    for (int i = 0; i < runs && !p.err; i++) {
        simulate_one(&p);
        add_run(&p, runs, &all);
    }
    free(p.repairs);
    if (p.err)
        return p.err;
    all.interval = quiet.interval;
    all.mean_time = quiet.mean_time;
    all.deviation = sqrt(fmax(0, all.deviation - all.share * all.share));
    *ret = all;
    return OK;
}
