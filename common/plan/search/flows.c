/* A flow waits until it is ready, waits for its delay, moves its bytes, and has ended. All flows that move are one
 * list, whose rates are shared anew at every event. There are some hundred flows and some links, so a list without a
 * heap is fast enough. */
#include "common/plan/search/flows.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING 1e-12 /* relative to a capacity, or to a flow's work */

enum { GROWS = -1, STOPS = -2 }; /* of a rate that is not known yet */

/* ---- rates ---- */

static double next_level(const struct flow *const *moving, int n, int n_links, const double *rates, const double *left,
                         const double *load)
{
    double level = INFINITY;
    for (int k = 0; k < n_links; k++)
        if (load[k] > 0)
            level = fmin(level, fmax(0, left[k]) / load[k]);
    for (int i = 0; i < n; i++)
        if (rates[i] == GROWS)
            level = fmin(level, moving[i]->most);
    return level;
}

static bool is_stopped(const struct flow *f, double level, const double *left, const double *load)
{
    if (f->most <= level)
        return true;
    for (int u = 0; u < f->n_uses; u++)
        if (f->uses[u].weight > 0 && left[f->uses[u].link] <= level * load[f->uses[u].link] * (1 + ROUNDING))
            return true;
    return false;
}

static void add_load(const struct flow *f, double rate, double *load)
{
    for (int u = 0; u < f->n_uses; u++)
        load[f->uses[u].link] += rate * f->uses[u].weight;
}

/* Each round stops at least one flow: the level is where the next one has to stop. */
void flows_share(const struct flow *const *moving, int n, const double *capacities, int n_links, double *ret_rates,
                 double *room)
{
    double *left = room, *load = room + n_links;
    memcpy(left, capacities, (size_t)n_links * sizeof(*left));
    for (int i = 0; i < n; i++)
        ret_rates[i] = GROWS;
    for (int growing = n; growing > 0;) {
        memset(load, 0, (size_t)n_links * sizeof(*load));
        for (int i = 0; i < n; i++)
            if (ret_rates[i] == GROWS)
                add_load(moving[i], 1, load);
        const double level = next_level(moving, n, n_links, ret_rates, left, load);
        for (int i = 0; i < n; i++)
            if (ret_rates[i] == GROWS && is_stopped(moving[i], level, left, load))
                ret_rates[i] = STOPS;
        for (int i = 0; i < n; i++)
            if (ret_rates[i] == STOPS) {
                ret_rates[i] = level;
                growing--;
                add_load(moving[i], -level, left);
            }
    }
}

/* ---- events ---- */

struct flow_player {
    struct flow *flows;
    const double *capacities;
    double *moves; /* by flow: when it begins to move; INFINITY: the flow before it has not ended */
    double *rests; /* of its work */
    int *places;   /* of those that move, in `flows` */
    const struct flow **moving;
    double *rates, *room;
    int n, n_links, n_moving, n_ended;
    double now;
};

static void end_flow(struct flow_player *p, int at)
{
    p->flows[at].end = p->now;
    p->n_ended++;
    for (int i = at + 1; i < p->n; i++)
        if (p->flows[i].after == at)
            p->moves[i] = fmax(p->now, p->flows[i].ready) + p->flows[i].delay;
}

/* Begins flows whose time has come, and ends those that have nothing to move. An end may begin another one. */
static void begin_flows(struct flow_player *p)
{
    for (int i = 0; i < p->n; i++) {
        if (p->moves[i] > p->now)
            continue;
        p->moves[i] = INFINITY;
        if (p->flows[i].work > 0) {
            p->places[p->n_moving] = i;
            p->moving[p->n_moving++] = &p->flows[i];
        } else {
            end_flow(p, i);
        }
    }
}

static double next_event(const struct flow_player *p)
{
    double next = INFINITY;
    for (int i = 0; i < p->n; i++)
        next = fmin(next, p->moves[i]);
    for (int i = 0; i < p->n_moving; i++)
        next = fmin(next, p->now + p->rests[p->places[i]] / p->rates[i]);
    return next;
}

static void move_to(struct flow_player *p, double next)
{
    const double span = next - p->now;
    int kept = 0;
    p->now = next;
    for (int i = 0; i < p->n_moving; i++) {
        const int at = p->places[i];
        p->rests[at] -= p->rates[i] * span;
        if (p->rests[at] > ROUNDING * p->flows[at].work) {
            p->places[kept] = at;
            p->moving[kept++] = &p->flows[at];
        } else {
            end_flow(p, at);
        }
    }
    p->n_moving = kept;
}

static void play_flows(struct flow_player *p)
{
    for (int i = 0; i < p->n; i++) {
        p->rests[i] = p->flows[i].work;
        p->moves[i] = p->flows[i].after < 0 ? p->flows[i].ready + p->flows[i].delay : INFINITY;
    }
    p->now = -INFINITY;
    while (p->n_ended < p->n) {
        flows_share(p->moving, p->n_moving, p->capacities, p->n_links, p->rates, p->room);
        move_to(p, next_event(p));
        begin_flows(p);
    }
}

err_t flows_simulate(struct flow *flows, int n, const double *capacities, int n_links)
{
    const size_t count = (size_t)n + 1;
    struct flow_player p = {.flows = flows, .n = n, .n_links = n_links, .capacities = capacities};
    p.moves = malloc(count * sizeof(*p.moves));
    p.rests = malloc(count * sizeof(*p.rests));
    p.places = malloc(count * sizeof(*p.places));
    p.moving = malloc(count * sizeof(*p.moving));
    p.rates = malloc(count * sizeof(*p.rates));
    p.room = malloc(2 * ((size_t)n_links + 1) * sizeof(*p.room));
    err_t err = p.moves && p.rests && p.places && p.moving && p.rates && p.room ? OK : ERR_NOMEM;
    if (!err)
        play_flows(&p);
    free(p.moves);
    free(p.rests);
    free(p.places);
    free(p.moving);
    free(p.rates);
    free(p.room);
    return err;
}
