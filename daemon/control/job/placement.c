/* See placement.h. A size is tried with the largest group first, and a smaller size only when no group helps: more
 * workers are worth more than neighbours. */
#include "daemon/control/job/placement.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAMED 8

/* ---- room on a node ---- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int capped(const struct placement_want *w, int workers)
{
    return w->per_node == 0 ? workers : workers >= w->per_node ? w->per_node : 0;
}

/* Now; nobody is moved for anybody. */
static int room(const struct placement_node *n, const struct placement_want *w)
{
    if (n->out)
        return 0;
    int workers = least(n->slots - n->used, PLACEMENT_MAX_WORKERS);
    if (w->per_gpu)
        workers = n->gpus < 0 ? 0 : least(workers, (n->gpus - n->busy) * w->per_gpu);
    return workers > 0 ? capped(w, workers) : 0;
}

/* Were it empty, and there. */
static int whole(const struct placement_node *n, const struct placement_want *w)
{
    int workers = least(n->slots, PLACEMENT_MAX_WORKERS);
    if (w->per_gpu && n->gpus >= 0)
        workers = least(workers, n->gpus * w->per_gpu);
    return capped(w, workers);
}

/* ---- one size, one group ---- */

static int blocks(const struct placement_node *n, const struct placement_want *w, int group)
{
    return room(n, w) / group * group;
}

/* The better of two nodes for what is still to be placed: one that takes all of it, and of those the one that the job
 * is on, then the fullest; else one that the job is on, then the emptiest, so that the job has few nodes. */
static bool better(const struct placement_node *a, int room_a, const struct placement_node *b, int room_b, int left)
{
    bool all_a = room_a >= left, all_b = room_b >= left;
    if (all_a != all_b)
        return all_a;
    if ((a->mine > 0) != (b->mine > 0))
        return a->mine > 0;
    return all_a ? room_a < room_b : room_a > room_b;
}

/* How many of the `workers` each node gets; false when they do not fit in whole groups. */
static bool share_out(const struct placement_node *nodes, int n, const struct placement_want *w, int workers, int group,
                      int *ret_count)
{
    int left = workers;
    memset(ret_count, 0, (size_t)n * sizeof(*ret_count));
    while (left > 0) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            int r = ret_count[i] ? 0 : blocks(&nodes[i], w, group);
            if (r > 0 && (best < 0 || better(&nodes[i], r, &nodes[best], blocks(&nodes[best], w, group), left)))
                best = i;
        }
        if (best < 0)
            return false;
        ret_count[best] = least(blocks(&nodes[best], w, group), left);
        left -= ret_count[best];
    }
    return true;
}

static bool fits(const struct placement_node *nodes, int n, const struct placement_want *w, int workers, int *count)
{
    if (w->per_node)
        return workers % w->per_node == 0 && share_out(nodes, n, w, workers, w->per_node, count);
    for (int g = 0; g < PLACEMENT_GROUPS; g++)
        if (w->group[g] > 1 && workers % w->group[g] == 0 && share_out(nodes, n, w, workers, w->group[g], count))
            return true;
    return share_out(nodes, n, w, workers, 1, count);
}

/* ---- the answer ---- */

enum placement_answer placement_find(const struct placement_node *nodes, int n, const struct placement_want *w,
                                     int *ret_node, int *ret_workers)
{
    int count[PLACEMENT_MAX_NODES];
    n = least(n, PLACEMENT_MAX_NODES);
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
        all += whole(&nodes[i], w);
    int workers = w->max;
    while (workers > all)
        workers -= w->unit;
    return workers > 0 ? workers : 0;
}

/* ---- words ---- */

static void say_node(const struct placement_node *n, const struct placement_want *w, char *ret, size_t size)
{
    int all = w->per_gpu ? n->gpus : n->slots, have = w->per_gpu ? n->gpus - n->busy : n->slots - n->used;
    if (n->out)
        snprintf(ret, size, "%s %s", n->name, n->out);
    else if (all < 0)
        snprintf(ret, size, "%s does not know its GPUs yet", n->name);
    else if (have > 0)
        snprintf(ret, size, "%s has %d of %d free", n->name, have, all);
    else
        snprintf(ret, size, "%s has none of %d free", n->name, all);
    size_t at = strlen(ret);
    if (!n->out && w->per_gpu && n->sick && *n->sick)
        snprintf(ret + at, size - at, " (%s)", n->sick);
}

/* "8 slots", "2 GPUs on one node" */
static const char *say_need(const struct placement_want *w, char *ret, size_t size)
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
    size_t at = (size_t)snprintf(ret, size, "take %s, and", say_need(w, need, sizeof(need)));
    for (int i = 0; i < n && i < MAX_NAMED && at < size; i++)
        at += (size_t)snprintf(ret + at, size - at, "%s %s has %d", i ? "," : "", nodes[i].name,
                               w->per_gpu ? nodes[i].gpus : nodes[i].slots);
    if (n > MAX_NAMED && at < size)
        snprintf(ret + at, size - at, " and there are %d more nodes", n - MAX_NAMED);
}

/* GPUs are what is said to lack for a job that wants them, unless slots are what lacks. */
static bool slots_lack(const struct placement_node *nodes, int n, const struct placement_want *w)
{
    struct placement_want cpu = *w;
    int count[PLACEMENT_MAX_NODES];
    cpu.per_gpu = 0;
    return !fits(nodes, n, &cpu, w->min, count);
}

void placement_lack(const struct placement_node *nodes, int n, const struct placement_want *w, char *ret, size_t size)
{
    struct placement_want say = *w;
    n = least(n, PLACEMENT_MAX_NODES);
    char need[64];
    if (!w->per_gpu || slots_lack(nodes, n, w))
        say.per_gpu = 0;
    size_t at = (size_t)snprintf(ret, size, "%s:", say_need(&say, need, sizeof(need)));
    for (int i = 0; i < n && i < MAX_NAMED && at < size; i++) {
        char text[600];
        say_node(&nodes[i], &say, text, sizeof(text));
        at += (size_t)snprintf(ret + at, size - at, "%s %s", i ? "," : "", text);
    }
    if (n > MAX_NAMED && at < size)
        snprintf(ret + at, size - at, " and %d more nodes", n - MAX_NAMED);
    if (n == 0 && at < size)
        snprintf(ret + at, size - at, " there is no node");
}
