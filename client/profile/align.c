/* Every rank has measured, before and after the steps, between which bounds its clock is ahead of rank 0's
 * (worker/clocks.c). Ranks of one node read the same clock, so the bounds of all of them hold for each. Only where they
 * exclude each other do the processes of a node have different clocks, as in time namespaces; then each keeps its own.
 *
 * Clocks of two nodes also run at slightly different rates. If both measurements allow the same difference, it is taken
 * for all of the recording: what they differ by is then the error of the measurements. Otherwise the difference is
 * taken as growing evenly from one to the other. */
#include "client/profile/profile.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The bounds of all ranks on the node of rank `k`. */
static struct recorded_clock clock_of_node(const struct profile *p, int k, int which)
{
    struct recorded_clock ret = p->rank[k].clock[which];
    for (int i = 0; i < p->n; i++) {
        const struct recorded_clock *c = &p->rank[i].clock[which];
        if (p->rank[i].node != p->rank[k].node)
            continue;
        ret.lo = most(ret.lo, c->lo);
        ret.hi = least(ret.hi, c->hi);
    }
    if (ret.lo > ret.hi)
        return p->rank[k].clock[which];
    ret.best = ret.lo + (ret.hi - ret.lo) / 2;
    return ret;
}

static void find_best(struct recorded_clock *begin, struct recorded_clock *end)
{
    const int64_t lo = most(begin->lo, end->lo), hi = least(begin->hi, end->hi);
    if (lo <= hi)
        begin->best = end->best = lo + (hi - lo) / 2;
}

static int64_t error_of(const struct recorded_clock *c)
{
    return most(c->hi - c->best, c->best - c->lo);
}

/* A line through both measurements. */
struct rate {
    int64_t shift;   /* to add to a time of this rank */
    double drift_ns; /* to subtract per nanosecond */
};

static void shift(const struct rate *rate, int64_t *time)
{
    *time += rate->shift - (int64_t)((double)*time * rate->drift_ns);
}

static void shift_all(struct recorded *r, const struct rate *rate)
{
    for (int i = 0; i < r->n_events; i++) {
        shift(rate, &r->events[i].from);
        shift(rate, &r->events[i].to);
    }
    for (int i = 0; i < r->n_hosts; i++) {
        shift(rate, &r->hosts[i].from);
        shift(rate, &r->hosts[i].to);
    }
    for (int i = 0; i < r->n_step; i++) {
        shift(rate, &r->step[i].from);
        shift(rate, &r->step[i].to);
    }
}

static struct rate rate_of(const struct recorded *r, const struct recorded *first, const struct recorded_clock *begin,
                           const struct recorded_clock *end)
{
    const int64_t span = r->clock[1].at - r->clock[0].at;
    return (struct rate){.shift = r->clock[0].at - begin->best - first->clock[0].at,
                         .drift_ns = span > 0 ? (double)(end->best - begin->best) / (double)span : 0};
}

void profile_align(struct profile *p)
{
    for (int k = 0; k < p->n; k++) {
        struct recorded_clock begin = clock_of_node(p, k, 0), end = clock_of_node(p, k, 1);
        find_best(&begin, &end);
        const struct rate rate = rate_of(&p->rank[k], &p->rank[0], &begin, &end);
        p->error_ns[k] = most(error_of(&begin), error_of(&end));
        shift_all(&p->rank[k], &rate);
    }
}
