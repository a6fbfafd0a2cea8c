/* The rules are ordered by urgency: ids of nodes that have left, a leader that is drained, too few good voters, too
 * many voters. A good voter is alive (up, or not away for long) and not drained. A voter that is not good is removed
 * only when there are enough good ones: until then it counts for a majority if it comes back. */
#include "daemon/control/cluster/voters.h"

#include <stddef.h>
#include <string.h>

int voters_wanted(int nodes)
{
    return nodes < 3 ? 1 : nodes < 17 ? 3 : 5;
}

static bool is_voter(const struct voters_node *x)
{
    return x->in_log && x->role == LOG_VOTER;
}

static bool is_alive(const struct voters_node *x)
{
    return x->self || x->up || x->away_ms < VOTERS_DEAD_MS;
}

static bool is_good(const struct voters_node *x)
{
    return x->listed && is_alive(x) && !x->drained;
}

/* The good voters, which are few: all nodes are compared with them, and not with each other. */
struct good_voters {
    const struct voters_node *at[LOG_MAX_MEMBERS];
    int n;
};

static struct good_voters good_voters_of(const struct voters_node *nodes, int n)
{
    struct good_voters ret = {.n = 0};
    for (int i = 0; i < n && ret.n < LOG_MAX_MEMBERS; i++)
        if (is_voter(&nodes[i]) && is_good(&nodes[i]))
            ret.at[ret.n++] = &nodes[i];
    return ret;
}

/* Number of good voters, other than x, in the failure domain of x. */
static int voters_in_domain(const struct good_voters *good, const struct voters_node *x)
{
    int found = 0;
    for (int i = 0; i < good->n; i++)
        found += good->at[i] != x && x->domain[0] && strcmp(good->at[i]->domain, x->domain) == 0;
    return found;
}

/* The best node to make a voter: up, not drained, in the domain with the fewest voters; of equals the oldest. */
static const struct voters_node *candidate(const struct voters_node *nodes, int n)
{
    const struct good_voters good = good_voters_of(nodes, n);
    const struct voters_node *best = NULL;
    for (int i = 0; i < n; i++) {
        const struct voters_node *x = &nodes[i];
        if (is_voter(x) || !x->up || !is_good(x))
            continue;
        int a = voters_in_domain(&good, x), b = best ? voters_in_domain(&good, best) : 0;
        if (!best || a < b || (a == b && x->id < best->id))
            best = x;
    }
    return best;
}

/* The voter with the lowest value is removed first. The leader has the highest, because it cannot remove itself; being
 * alive counts for more than not being drained, and that for more than the domain. */
static int keep_priority(const struct good_voters *good, const struct voters_node *x)
{
    return (is_alive(x) ? 4000 : 0) + (x->drained ? 0 : 2000) + (x->self ? 10000 : 0) - voters_in_domain(good, x);
}

static const struct voters_node *surplus(const struct voters_node *nodes, int n)
{
    const struct good_voters good = good_voters_of(nodes, n);
    const struct voters_node *worst = NULL;
    for (int i = 0; i < n; i++) {
        const struct voters_node *x = &nodes[i];
        if (!is_voter(x))
            continue;
        int a = keep_priority(&good, x), b = worst ? keep_priority(&good, worst) : 0;
        if (!worst || a < b || (a == b && x->id > worst->id))
            worst = x;
    }
    return worst;
}

static struct voters_change change(enum voters_step step, const struct voters_node *x)
{
    return (struct voters_change){step, x->id};
}

/* A good voter that could lead instead of the leader. */
static const struct voters_node *successor(const struct voters_node *nodes, int n)
{
    for (int i = 0; i < n; i++)
        if (is_voter(&nodes[i]) && is_good(&nodes[i]) && nodes[i].up && !nodes[i].self)
            return &nodes[i];
    return NULL;
}

bool voters_have_successor(const struct voters_node *nodes, int n)
{
    return successor(nodes, n) || candidate(nodes, n);
}

struct voters_change voters_next(const struct voters_node *nodes, int n)
{
    static const struct voters_change nothing = {VOTERS_NOTHING, 0};
    int listed = 0, voters = 0, good = 0;
    const struct voters_node *self = NULL;
    for (int i = 0; i < n; i++) {
        const struct voters_node *x = &nodes[i];
        if (!x->listed && x->in_log && !x->self)
            return change(VOTERS_REMOVE, x);
        listed += x->listed;
        voters += is_voter(x);
        good += is_voter(x) && is_good(x);
        self = x->self ? x : self;
    }
    const struct voters_node *next = candidate(nodes, n), *other = successor(nodes, n);
    int wanted = voters_wanted(listed);
    if (self && (!self->listed || self->drained) && other)
        return change(VOTERS_HAND_OVER, other);
    if (good < wanted && next)
        return change(next->in_log ? VOTERS_PROMOTE : VOTERS_ADD, next);
    if (voters > wanted) {
        const struct voters_node *x = surplus(nodes, n);
        return x->self ? nothing : change(VOTERS_REMOVE, x);
    }
    for (int i = 0; i < n; i++) /* added to the log, but no longer needed as a voter */
        if (nodes[i].in_log && !is_voter(&nodes[i]))
            return change(VOTERS_REMOVE, &nodes[i]);
    return nothing;
}
