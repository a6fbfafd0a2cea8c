/* The order in which slots can be computed is the same for all replicas, so it is found once: the slots sorted by their
 * start in a play without noise. Every replica then goes once through this list. A slot that `peers` ranks share takes
 * as long as the slowest of them: each draws its own duration.
 *
 * Draws are the quantiles of the normal distribution in a table, read at random places: two nanoseconds instead of
 * twenty, and the table's tails end at 3.5 standard deviations, which no slot of a real step exceeds for long. */
#include "common/plan/search/simulate.h"

#include "common/plan/search/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUANTILES 4096

struct step_item {
    int rank, slot;
    int before; /* index in the list of the rank's slot before; -1: none */
    int source; /* of the slot whose value this one reads; -1: none */
    double start, base, delay;
};

struct stepper {
    const struct plan_step *step;
    struct step_item *items;
    double *end;  /* by item */
    float *speed; /* by rank of the pipeline and peer: the duration of this device relative to the mean */
    int n;
    float quantile[QUANTILES];
    uint64_t state;
};

static float draw_normal(struct stepper *k)
{
    return k->quantile[draw_bits(&k->state) >> 52];
}

/* The inverse of the normal distribution function by bisection; it is computed QUANTILES times. */
static double quantile_of(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;
        if (0.5 * erfc(-mid / sqrt(2)) < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void fill_quantiles(struct stepper *k)
{
    double squares = 0;
    for (int i = 0; i < QUANTILES; i++)
        k->quantile[i] = (float)quantile_of((i + 0.5) / QUANTILES);
    for (int i = 0; i < QUANTILES; i++)
        squares += (double)k->quantile[i] * (double)k->quantile[i];
    const float scale = (float)sqrt(QUANTILES / squares); /* the variance of the table is 1 */
    for (int i = 0; i < QUANTILES; i++)
        k->quantile[i] *= scale;
}

/* ---- the list ---- */

static int by_start(const void *a, const void *b)
{
    const struct step_item *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return x->slot - y->slot;
}

/* Where the value of (stage, microbatch) is computed, as an index of the list; forwards and gradients apart. */
static size_t value_at(const struct schedule *s, const struct schedule_work *w)
{
    size_t stage = (size_t)schedule_stage(s, w->rank, w->chunk), list = w->kind == SLOT_FORWARD ? 0 : 1;
    return (list * (size_t)(s->ranks * s->chunks) + stage) * (size_t)s->micros + (size_t)w->micro;
}

static void link_items(struct stepper *k, int *last, int *made)
{
    const struct schedule *s = k->step->schedule;
    for (int i = 0; i < k->n; i++) {
        struct step_item *it = &k->items[i];
        const struct slot *slot = &s->rows[it->rank].slots[it->slot];
        struct schedule_work from, self = {it->rank, slot->kind, slot->chunk, slot->micro};
        bool reads = schedule_source(s, it->rank, slot, &from);
        it->before = last[it->rank];
        it->source = reads ? made[value_at(s, &from)] : -1;
        it->delay = reads && from.rank != it->rank ? k->step->cost.latency : 0;
        it->base = k->step->cost.seconds[slot->kind] * (slot->micro == s->micros - 1 ? k->step->cost.last_scale : 1);
        last[it->rank] = i;
        if (slot->kind != SLOT_WEIGHT)
            made[value_at(s, &self)] = i;
    }
}

static err_t list_items(struct stepper *k, struct why *why)
{
    const struct schedule *s = k->step->schedule;
    struct schedule_times times = {0};
    struct schedule_cost ones = {.seconds = {1, 1, 1, 1}, .latency = 0, .last_scale = 1};
    const size_t values = 2 * (size_t)(s->ranks * s->chunks) * (size_t)s->micros;
    int *last = malloc((size_t)s->ranks * sizeof(*last)), *made = malloc(values * sizeof(*made));
    err_t err = last && made ? schedule_simulate(s, &ones, &times, why) : ERR_NOMEM;
    for (int r = 0; !err && r < s->ranks; r++)
        k->n += s->rows[r].n;
    k->items = err ? NULL : calloc((size_t)k->n + 1, sizeof(*k->items));
    k->end = err ? NULL : calloc((size_t)k->n + 1, sizeof(*k->end));
    if (!err && (!k->items || !k->end))
        err = ERR_NOMEM;
    if (!err) {
        memset(last, -1, (size_t)s->ranks * sizeof(*last));
        memset(made, -1, values * sizeof(*made));
        for (int r = 0, n = 0; r < s->ranks; r++)
            for (int i = 0; i < s->rows[r].n; i++)
                k->items[n++] = (struct step_item){.rank = r, .slot = i, .start = times.ranks[r].spans[i].start};
        qsort(k->items, (size_t)k->n, sizeof(*k->items), by_start);
        link_items(k, last, made);
    }
    schedule_times_fini(&times);
    free(last);
    free(made);
    return err;
}

/* ---- play ---- */

/* The slowest of the slot's ranks, relative to the mean. */
static double slowest_peer(struct stepper *k, const struct plan_noise *noise, int rank)
{
    const int64_t peers = k->step->peers;
    const float *speed = &k->speed[rank * peers], jitter = (float)noise->jitter;
    float most = 0;
    for (int64_t i = 0; i < peers; i++) {
        float one = speed[i] + jitter * draw_normal(k);
        most = one > most ? one : most;
    }
    return (double)most;
}

static double play(struct stepper *k, const struct plan_noise *noise)
{
    double latest = 0;
    for (int i = 0; i < k->n; i++) {
        const struct step_item *it = &k->items[i];
        double start = it->before >= 0 ? k->end[it->before] : 0;
        if (it->source >= 0 && k->end[it->source] + it->delay > start)
            start = k->end[it->source] + it->delay;
        k->end[i] = start + it->base * (noise ? slowest_peer(k, noise, it->rank) : 1);
        latest = k->end[i] > latest ? k->end[i] : latest;
    }
    return latest;
}

static void draw_devices(struct stepper *k, const struct plan_noise *noise)
{
    for (int64_t i = 0; i < k->step->schedule->ranks * k->step->peers; i++)
        k->speed[i] = 1 + (float)noise->spread * draw_normal(k);
}

static void play_all(struct stepper *k, const struct plan_noise *noise, struct plan_step_result *r)
{
    r->fastest = INFINITY;
    for (int64_t i = 0; i < k->step->replicas; i++) {
        draw_devices(k, noise);
        double t = play(k, noise);
        r->fastest = t < r->fastest ? t : r->fastest;
        r->slowest = t > r->slowest ? t : r->slowest;
        r->mean += t / (double)k->step->replicas;
    }
    r->seconds = r->slowest + k->step->end_s;
    r->slots = k->n * k->step->replicas * k->step->peers;
}

err_t plan_simulate(const struct plan_step *step, const struct plan_noise *noise, struct plan_step_result *ret,
                    struct why *why)
{
    struct stepper *k = calloc(1, sizeof(*k));
    struct plan_step_result r = {0};
    if (!k)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    k->step = step;
    k->state = draw_start(noise->seed);
    k->speed = malloc((size_t)step->schedule->ranks * (size_t)step->peers * sizeof(*k->speed));
    err_t err = k->speed ? list_items(k, why) : ERR_NOMEM;
    if (!err) {
        fill_quantiles(k);
        r.quiet = play(k, NULL) + step->end_s;
        play_all(k, noise, &r);
        *ret = r;
    }
    free(k->items);
    free(k->end);
    free(k->speed);
    free(k);
    return err;
}
