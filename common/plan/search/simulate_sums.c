/* The reductions of gradients at the end of a step. A layer's begins when the last of the ranks that hold this part of
 * the model has its gradients, and after that of the layer before. Those of different parts of the model can share
 * links (operations.h); then they are flows, and three ends distinguish what a rank waits for: that of its own chain if
 * no rank came later, that of the chain if it had the links for itself, and the true one.
 *
 * Many chains of a stage that begin almost at the same time are bundled, because a flow costs more than a rank. */
#include "common/plan/search/simulate_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUNDLES 16

static const struct plan_sums *sums_of(const struct stepper *k)
{
    return &k->ops->sums;
}

static bool has_sums(const struct stepper *k)
{
    return sums_of(k)->layers > 0;
}

static int64_t parts_of_stage(const struct stepper *k)
{
    return sums_of(k)->inner * sums_of(k)->pipes;
}

err_t plan_sums_init(struct stepper *k)
{
    if (!has_sums(k))
        return OK;
    const int64_t parts = parts_of_stage(k), ranks = k->step->schedule->ranks;
    k->sums.bundles = (int)(parts < BUNDLES ? parts : BUNDLES);
    const size_t chains = (size_t)ranks * (size_t)k->sums.bundles, all = chains * (size_t)sums_of(k)->layers;
    k->sums.ready = malloc(all * sizeof(*k->sums.ready));
    k->sums.alone = malloc(chains * sizeof(*k->sums.alone));
    k->sums.shared = malloc(chains * sizeof(*k->sums.shared));
    k->sums.last = malloc(chains * sizeof(*k->sums.last));
    k->sums.flows = malloc(all * sizeof(*k->sums.flows));
    k->sums.capacities = malloc(((size_t)sums_of(k)->links + 1) * sizeof(*k->sums.capacities));
    bool made = k->sums.ready && k->sums.alone && k->sums.shared && k->sums.last && k->sums.flows && k->sums.capacities;
    return made ? OK : ERR_NOMEM;
}

void plan_sums_fini(struct stepper *k)
{
    free(k->sums.ready);
    free(k->sums.alone);
    free(k->sums.shared);
    free(k->sums.last);
    free(k->sums.flows);
    free(k->sums.capacities);
    memset(&k->sums, 0, sizeof(k->sums));
}

static double alone_seconds(const struct plan_sums *s)
{
    return s->delay + s->work / s->most;
}

/* The bundle of a lane of the unit, which begins with a pipeline that is a multiple of `pipes`. */
static int bundle_of(const struct stepper *k, int64_t lane)
{
    const struct plan_sums *s = sums_of(k);
    const int64_t peer = lane % k->step->peers, pipe = lane / k->step->peers % s->pipes;
    const int64_t part = peer % s->inner + s->inner * pipe;
    return (int)(part * k->sums.bundles / parts_of_stage(k));
}

void plan_sums_begin(struct stepper *k)
{
    const int64_t ranks = k->step->schedule->ranks;
    for (int64_t i = 0; has_sums(k) && i < ranks * k->sums.bundles * sums_of(k)->layers; i++)
        k->sums.ready[i] = -1;
    memset(k->solo, 0, (size_t)(ranks * k->replicas * k->step->peers) * sizeof(*k->solo));
}

void plan_sums_ready(struct stepper *k, const struct plan_op *op, int rank, int64_t at)
{
    const struct plan_sums *s = sums_of(k);
    double *ready = k->sums.ready + (int64_t)rank * k->sums.bundles * s->layers + op->number,
           *grads = k->parts[PLAN_GRADS] + at;
    const double *queued = k->queues + rank * 2 * k->lanes; /* with zero 2, reduce-scatters come first */
    for (int64_t i = 0; i < k->lanes; i++) {
        const double now = fmax(k->time[i], queued[i]), mine = fmax(k->time[i], queued[k->lanes + i]);
        double *one = ready + (int64_t)bundle_of(k, i) * s->layers, *solo = &k->solo[at + i];
        *one = fmax(*one, now);
        *solo = (s->exposed ? *solo : fmax(*solo, mine)) + alone_seconds(s);
        k->time[i] += op->tax;
        grads[i] += op->tax;
    }
}

void plan_sums_queued(struct stepper *k, int rank, int64_t at)
{
    const double *queued = k->queues + rank * 2 * k->lanes;
    for (int64_t i = 0; i < k->lanes; i++) {
        double *end = &k->ends[at + i];
        const double more = fmax(0, queued[i] - *end), mine = fmax(0, queued[k->lanes + i] - *end);
        k->parts[PLAN_GRADS][at + i] += mine;
        k->parts[PLAN_WAIT_PARAMS][at + i] += more - mine;
        *end += more;
        if (has_sums(k))
            k->solo[at + i] = sums_of(k)->exposed ? *end + k->solo[at + i] : fmax(*end, k->solo[at + i]);
    }
}

/* ---- chains ---- */

/* Nothing begins before the last operation of all ranks of a part. */
static void hold_back(struct stepper *k)
{
    const int64_t per_stage = k->replicas * k->step->peers;
    const int layers = sums_of(k)->layers;
    for (int rank = 0; rank < k->step->schedule->ranks; rank++)
        for (int64_t i = 0; i < per_stage; i++) {
            double *ready = k->sums.ready + ((int64_t)rank * k->sums.bundles + bundle_of(k, i)) * layers;
            for (int layer = 0; layer < layers; layer++)
                if (ready[layer] >= 0)
                    ready[layer] = fmax(ready[layer], k->ends[rank * per_stage + i]);
        }
}

static int by_ready(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Appends the flows of one chain. Returns when it ends if it has the links for itself. */
static double list_chain(struct stepper *k, int chain, int *n)
{
    const struct plan_sums *s = sums_of(k);
    double *ready = k->sums.ready + (int64_t)chain * s->layers, end = 0;
    int before = -1;
    qsort(ready, (size_t)s->layers, sizeof(*ready), by_ready);
    for (int layer = 0; layer < s->layers; layer++) {
        if (ready[layer] < 0)
            continue;
        end = fmax(end, ready[layer]) + alone_seconds(s);
        k->sums.flows[*n] = (struct flow){.ready = ready[layer],
                                          .after = before,
                                          .delay = s->delay,
                                          .work = s->work,
                                          .most = s->most,
                                          .uses = s->uses + chain / k->sums.bundles * s->n_uses,
                                          .n_uses = s->n_uses};
        before = (*n)++;
    }
    return end;
}

/* Several parts of a stage are one flow, which has their weight. */
static void play_flows(struct stepper *k, int n)
{
    const struct plan_sums *s = sums_of(k);
    const double parts = (double)parts_of_stage(k) / k->sums.bundles;
    for (int i = 0; i < s->links; i++)
        k->sums.capacities[i] = 1 / parts;
    k->err = flows_simulate(k->sums.flows, n, k->sums.capacities, s->links);
}

/* Ends of all chains, alone and with shared links. */
static void end_chains(struct stepper *k)
{
    const int chains = k->step->schedule->ranks * k->sums.bundles;
    int n = 0;
    if (sums_of(k)->exposed)
        hold_back(k);
    for (int chain = 0; chain < chains; chain++) {
        k->sums.alone[chain] = list_chain(k, chain, &n);
        k->sums.last[chain] = n - 1;
    }
    if (sums_of(k)->links > 0)
        play_flows(k, n);
    for (int chain = 0; chain < chains; chain++)
        k->sums.shared[chain] = sums_of(k)->links > 0 && k->sums.alone[chain] > 0
                                    ? k->sums.flows[k->sums.last[chain]].end
                                    : k->sums.alone[chain];
}

/* Links make a rank wait only after its own end. */
static void note_rank(struct stepper *k, int64_t at, double alone, double shared, double end)
{
    const double own = k->solo[at], links = fmax(own, shared) - fmax(own, alone);
    k->parts[PLAN_GRADS][at] += own - k->ends[at];
    k->parts[PLAN_WAIT_LINKS][at] += links;
    k->parts[PLAN_WAIT_REPLICAS][at] += end - own - links;
    k->parts[PLAN_UPDATE][at] += k->step->end_s;
}

double plan_sums_end(struct stepper *k)
{
    const int64_t per_stage = k->replicas * k->step->peers, n = k->step->schedule->ranks * per_stage;
    double end = 0;
    if (has_sums(k))
        end_chains(k);
    else
        memcpy(k->solo, k->ends, (size_t)n * sizeof(*k->solo));
    for (int64_t i = 0; i < n; i++)
        end = fmax(end, k->solo[i]);
    for (int chain = 0; has_sums(k) && chain < k->step->schedule->ranks * k->sums.bundles; chain++)
        end = fmax(end, k->sums.shared[chain]);
    for (int64_t i = 0; i < n; i++) {
        const int64_t chain = has_sums(k) ? i / per_stage * k->sums.bundles + bundle_of(k, i % per_stage) : 0;
        note_rank(k, i, has_sums(k) ? k->sums.alone[chain] : 0, has_sums(k) ? k->sums.shared[chain] : 0, end);
    }
    return end;
}
