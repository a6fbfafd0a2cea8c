/* The time of a collective: the faster of the algorithms that NCCL has for it, with the shares of bandwidth and the
 * steps that its tuner counts (src/graph/tuning.cc of NCCL 2.30).
 *
 * The least time inside a node and the shape of the curve above it are those of the machine file, measured, not the
 * tuner's own: on A100, H200 and B200 the tuner's times of 1 to 64 MiB are 20 to 65 % too short, since it only has to
 * order algorithms (tests/plan-corpus/collectives.csv). Its protocols LL and LL128 are in that measured curve; between
 * nodes they count as the tuner has them. */
#include "common/plan/search/step_time.h"

#include <math.h>

struct group {
    int64_t n, inside, nodes;
    double sharing; /* groups of a node, which share its adapters */
    double in_pod;  /* nodes of the group behind the same switches */
    bool crosses;   /* from one pod to another */
};

static struct group group_of(const struct machine *m, int64_t n, int64_t stride)
{
    const int64_t per_node = m->device.per_node, fit = per_node / stride, room = fit > 1 ? fit : 1;
    struct group g = {.n = n, .inside = n < room ? n : room};
    g.nodes = (n + g.inside - 1) / g.inside;
    g.sharing = fmin((double)per_node / (double)g.inside, (double)per_node);
    const double pod = (double)m->network.pod, apart = fmax(1, (double)stride / (double)per_node);
    g.crosses = pod > 0 && (double)g.nodes * apart > pod;
    g.in_pod = g.crosses ? fmax(1, floor(pod / apart)) : (double)g.nodes;
    return g;
}

/* Bytes inside a node: a ring, or for a reduction of enough ranks the switch, to which each rank sends the buffer once.
 */
static double link_bytes_seconds(const struct machine *m, enum plan_collective op, double bytes, const struct group *g)
{
    const double n = (double)g->n, inside = (double)g->inside, rounds = op == PLAN_REDUCE ? 2 : 1;
    const double sent = op == PLAN_ALL_TO_ALL ? (inside - 1) / n : g->nodes > 1 ? 1 : (n - 1) / n;
    if (op == PLAN_REDUCE && g->nodes == 1 && m->link.switch_gb > 0 && g->n >= m->link.switch_ranks)
        return bytes / (m->link.switch_gb * 1e9);
    return rounds * sent * bytes / (m->link.bandwidth_gb * 1e9);
}

/* The least time inside a node and the ramp above it; a group of a part of the node has that part of the least time. */
static double link_least_seconds(const struct machine *m, double bytes, const struct group *g)
{
    const double n = (double)g->n, per_node = (double)m->device.per_node;
    const double others = (double)(g->inside - 1) / (per_node > 1 ? per_node - 1 : 1);
    return (m->link.latency_us * others + m->link.ramp_us * sqrt(bytes * 1e-6) * (n - 1) / n) * 1e-6;
}

/* What NCCL may use between nodes, with the tuner's shares of a ring's bandwidth and its times of a step, as parts of
 * that of a message with the protocol Simple (14 us). LL sends flags with the data, so that its steps are short and
 * half of the bytes are data; LL128 does so with 8 of 128 bytes. */
struct way {
    enum { RING, TREE } shape;
    double share, step, most_gb; /* most_gb: what the protocol reaches at all; 0: any rate */
};

static const struct way ways[] = {
    {RING, 1, 1, 0},
    {RING, 0.92, 4 / 14.0, 0},
    {RING, 0.5, 2.7 / 14, 20},
    {TREE, 0.92, 1, 0},
    {TREE, 0.92 * 120 / 128, 8.5 / 14, 0},
    {TREE, 0.92 / 3.8, 5 / 14.0, 20},
};

/* PAT (parallel aggregated trees) has 0.75 of the bandwidth, divides the time of a step by 3.5 and adds 2.8 us for each
 * rank. */
#define PAT_SHARE 0.75
#define PAT_STEPS 3.5
#define PAT_RANK_SECONDS 2.8e-6

/* How much slower the switches between pods are for this group than its adapters. A ring or a tree leaves a pod once,
 * with the traffic of one node, while the other nodes of the group in the pod need nothing beyond it. Of an all-to-all
 * each node's traffic to other pods leaves. */
static double pod_slowdown(const struct machine *m, enum plan_collective op, const struct group *g)
{
    if (!g->crosses)
        return 1;
    double leaves = op == PLAN_ALL_TO_ALL ? 1 - g->in_pod / (double)g->nodes : 1 / g->in_pod;
    return fmax(1, m->network.oversubscription * leaves);
}

static double way_seconds(const struct way *w, enum plan_collective op, double bytes, double rate, double step,
                          const struct group *g)
{
    const double nodes = (double)g->nodes, part = ((double)g->n - 1) / (double)g->n;
    const double rounds = op == PLAN_REDUCE ? 2 : 1;
    double reached = w->share * rate;
    if (w->most_gb > 0)
        reached = fmin(reached, w->most_gb * 1e9);
    if (w->shape == TREE) /* a tree reduces and sends back all bytes; there is none for gathers */
        return op == PLAN_REDUCE ? 2 * bytes / reached + 2 * log2(nodes) * w->step * step : INFINITY;
    return rounds * (part * bytes / reached + (nodes - 1) * w->step * step);
}

/* Between nodes: the fastest way. The steps of a ring grow with the number of nodes, those of a tree with its
 * logarithm; a gather with one rank a node may use PAT. */
static double network_seconds(const struct machine *m, enum plan_collective op, double bytes, const struct group *g)
{
    const double nodes = (double)g->nodes, n = (double)g->n, inside = (double)g->inside;
    const double step = m->network.latency_us * 1e-6;
    double rate = m->network.bandwidth_gb * 1e9 * m->network.share / g->sharing, best = INFINITY;
    if (g->nodes < 2)
        return 0;
    rate /= pod_slowdown(m, op, g);
    if (op == PLAN_ALL_TO_ALL)
        return inside * (n - inside) / n * bytes / rate + log2(nodes) * step;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        best = fmin(best, way_seconds(&ways[i], op, bytes, rate, step, g));
    if (op == PLAN_GATHER && g->inside == 1)
        best = fmin(best, bytes / (PAT_SHARE * rate) + log2(nodes) * step / PAT_STEPS + n * PAT_RANK_SECONDS);
    return best;
}

/* A reduction or gather works on pieces, so that its parts inside nodes and between them run at the same time; of those
 * inside, what takes longer remains. (4 GiB over 4 nodes of 8 B200: 10 ms inside, 16 between at wire rate, 22 measured,
 * stas00/ml-engineering.) */
struct plan_seconds plan_collective_parts(const struct machine *m, enum plan_collective op, double bytes, int64_t n,
                                          int64_t stride)
{
    if (n < 2)
        return (struct plan_seconds){0, 0};
    const struct group g = group_of(m, n, stride);
    const double network = network_seconds(m, op, bytes, &g);
    if (g.inside < 2)
        return (struct plan_seconds){0, network};
    double link = link_bytes_seconds(m, op, bytes, &g);
    if (op != PLAN_ALL_TO_ALL)
        link = fmax(0, link - network);
    return (struct plan_seconds){link + link_least_seconds(m, bytes, &g), network};
}

double plan_collective_time(const struct machine *m, enum plan_collective op, double bytes, int64_t n, int64_t stride)
{
    struct plan_seconds t = plan_collective_parts(m, op, bytes, n, stride);
    return t.link + t.network;
}
