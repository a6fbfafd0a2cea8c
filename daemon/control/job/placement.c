/* Each number of workers is tried with the largest group first. A smaller number is tried only if the larger one fits
 * with no group: more workers are worth more than groups that stay on one node. */
#include "daemon/control/job/placement.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAMED 8 /* nodes named in a message, which has to fit into a job's reason */

/* ---- capacity of a node ---- */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int limit_per_node(const struct placement_want *w, int workers)
{
    return w->per_node == 0 ? workers : workers >= w->per_node ? w->per_node : 0;
}

/* Number of workers that fit now. Running jobs are not moved. */
static int free_workers(const struct placement_node *n, const struct placement_want *w)
{
    if (n->out)
        return 0;
    int workers = min_int(n->slots - n->used, PLACEMENT_MAX_WORKERS);
    if (w->per_gpu)
        workers = n->gpus < 0 ? 0 : min_int(workers, (n->gpus - n->busy) * w->per_gpu);
    return workers > 0 ? limit_per_node(w, workers) : 0;
}

/* Number of workers that would fit if the node were available and empty. */
static int capacity_workers(const struct placement_node *n, const struct placement_want *w)
{
    int workers = min_int(n->slots, PLACEMENT_MAX_WORKERS);
    if (w->per_gpu && n->gpus >= 0)
        workers = min_int(workers, n->gpus * w->per_gpu);
    return limit_per_node(w, workers);
}

/* ---- one number of workers, one group size ---- */

static int free_in_groups(const struct placement_node *n, const struct placement_want *w, int group)
{
    return free_workers(n, w) / group * group;
}

/* Whether node `a` is the better one for the `left` workers that have no node yet. A node that can take all of them is
 * better than one that cannot, and a node that the job already uses is better than another. Then the fuller one is
 * better if it can take all of them, else the emptier one, so that the job uses few nodes. */
static bool is_better_node(const struct placement_node *a, int free_a, const struct placement_node *b, int free_b,
                           int left)
{
    bool all_a = free_a >= left, all_b = free_b >= left;
    if (all_a != all_b)
        return all_a;
    if ((a->mine > 0) != (b->mine > 0))
        return a->mine > 0;
    return all_a ? free_a < free_b : free_a > free_b;
}

/* Sets how many of the `workers` each node gets; false if they do not fit in whole groups. */
static bool distribute(const struct placement_node *nodes, int n, const struct placement_want *w, int workers,
                       int group, int *ret_count)
{
    int left = workers;
    memset(ret_count, 0, (size_t)n * sizeof(*ret_count));
    while (left > 0) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            int r = ret_count[i] ? 0 : free_in_groups(&nodes[i], w, group);
            if (r > 0 &&
                (best < 0 || is_better_node(&nodes[i], r, &nodes[best], free_in_groups(&nodes[best], w, group), left)))
                best = i;
        }
        if (best < 0)
            return false;
        ret_count[best] = min_int(free_in_groups(&nodes[best], w, group), left);
        left -= ret_count[best];
    }
    return true;
}

static bool fits(const struct placement_node *nodes, int n, const struct placement_want *w, int workers, int *count)
{
    if (w->per_node)
        return workers % w->per_node == 0 && distribute(nodes, n, w, workers, w->per_node, count);
    for (int g = 0; g < PLACEMENT_GROUPS; g++)
        if (w->group[g] > 1 && workers % w->group[g] == 0 && distribute(nodes, n, w, workers, w->group[g], count))
            return true;
    return distribute(nodes, n, w, workers, 1, count);
}

/* ---- the search ---- */

enum placement_answer placement_find(const struct placement_node *nodes, int n, const struct placement_want *w,
                                     int *ret_node, int *ret_workers)
{
    int count[PLACEMENT_MAX_NODES];
    n = min_int(n, PLACEMENT_MAX_NODES);
    for (int workers = w->max; workers >= w->min && workers > 0; workers -= w->unit) {
        if (!fits(nodes, n, w, workers, count))
            continue;
        for (int i = 0, rank = 0; i < n; i++)
            for (int k = 0; k < count[i]; k++)
                ret_node[rank++] = i;
        *ret_workers = workers;
        return PLACEMENT_FITS;
    }
    return placement_most(nodes, n, w) >= w->min ? PLACEMENT_WAITS : PLACEMENT_NEVER;
}

int placement_most(const struct placement_node *nodes, int n, const struct placement_want *w)
{
    long all = 0;
    for (int i = 0; i < n; i++)
        all += capacity_workers(&nodes[i], w);
    int workers = w->max;
    while (workers > all)
        workers -= w->unit;
    return workers > 0 ? workers : 0;
}

/* ---- messages ---- */

static void describe_node(const struct placement_node *n, const struct placement_want *w, char *ret, size_t size)
{
    int all = w->per_gpu ? n->gpus : n->slots, have = w->per_gpu ? n->gpus - n->busy : n->slots - n->used;
    if (n->out)
        snprintf(ret, size, "%s %s", n->name, n->out);
    else if (all < 0)
        snprintf(ret, size, "%s has not reported its GPUs yet", n->name);
    else if (have > 0)
        snprintf(ret, size, "%s has %d of %d free", n->name, have, all);
    else
        snprintf(ret, size, "%s has none of %d free", n->name, all);
    size_t at = strlen(ret);
    if (!n->out && w->per_gpu && n->sick && *n->sick)
        snprintf(ret + at, size - at, " (%s)", n->sick);
}

/* "8 slots", "2 GPUs on one node" */
static const char *describe_need(const struct placement_want *w, char *ret, size_t size)
{
    int workers = w->per_node ? w->per_node : w->min;
    int need = w->per_gpu ? (workers + w->per_gpu - 1) / w->per_gpu : workers;
    snprintf(ret, size, "%d %s%s%s", need, w->per_gpu ? "GPU" : "slot", need == 1 ? "" : "s",
             w->per_node ? " on one node" : "");
    return ret;
}

void placement_all(const struct placement_node *nodes, int n, const struct placement_want *w, char *ret, size_t size)
{
    char need[64];
    size_t at = (size_t)snprintf(ret, size, "need %s, but", describe_need(w, need, sizeof(need)));
    for (int i = 0; i < n && i < MAX_NAMED && at < size; i++)
        at += (size_t)snprintf(ret + at, size - at, "%s %s has %d", i ? "," : "", nodes[i].name,
                               w->per_gpu ? nodes[i].gpus : nodes[i].slots);
    if (n > MAX_NAMED && at < size)
        snprintf(ret + at, size - at, ", and there are %d more nodes", n - MAX_NAMED);
}

/* Whether slots alone prevent the start: then the message names slots, else GPUs. */
static bool lacks_slots(const struct placement_node *nodes, int n, const struct placement_want *w)
{
    struct placement_want cpu = *w;
    int count[PLACEMENT_MAX_NODES];
    cpu.per_gpu = 0;
    return !fits(nodes, n, &cpu, w->min, count);
}

void placement_lack(const struct placement_node *nodes, int n, const struct placement_want *w, char *ret, size_t size)
{
    struct placement_want named = *w;
    n = min_int(n, PLACEMENT_MAX_NODES);
    char need[64];
    if (!w->per_gpu || lacks_slots(nodes, n, w))
        named.per_gpu = 0;
    size_t at = (size_t)snprintf(ret, size, "%s:", describe_need(&named, need, sizeof(need)));
    for (int i = 0; i < n && i < MAX_NAMED && at < size; i++) {
        char text[600];
        describe_node(&nodes[i], &named, text, sizeof(text));
        at += (size_t)snprintf(ret + at, size - at, "%s %s", i ? "," : "", text);
    }
    if (n > MAX_NAMED && at < size)
        snprintf(ret + at, size - at, ", and %d more nodes", n - MAX_NAMED);
    if (n == 0 && at < size)
        snprintf(ret + at, size - at, " there is no node");
}
