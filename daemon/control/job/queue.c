#include "daemon/control/job/queue.h"

#include <stdlib.h>
#include <string.h>

/* ---- the order ---- */

/* The waiting jobs of one user. */
struct queue_line {
    uint32_t uid;
    int64_t slots;   /* of running jobs, and of jobs that are sorted already */
    uint64_t oldest; /* decides between users with equally many slots */
    int at, end;     /* the rest of his jobs in the sorted input */
};

static int compare_in_line(const void *a, const void *b)
{
    const struct queue_job *x = a, *y = b;
    if (x->uid != y->uid)
        return x->uid < y->uid ? -1 : 1;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int64_t queue_slots_of(const struct queue_user *users, int n, uint32_t uid)
{
    for (int i = 0; i < n; i++)
        if (users[i].uid == uid)
            return users[i].slots;
    return 0;
}

/* `jobs` are sorted by compare_in_line. Returns the number of lines. */
static int make_lines(const struct queue_job *jobs, int n, const struct queue_user *users, int n_users,
                      struct queue_line *lines)
{
    int n_lines = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || jobs[i].uid != jobs[i - 1].uid)
            lines[n_lines++] = (struct queue_line){.uid = jobs[i].uid,
                                                   .slots = queue_slots_of(users, n_users, jobs[i].uid),
                                                   .oldest = UINT64_MAX,
                                                   .at = i};
        struct queue_line *l = &lines[n_lines - 1];
        l->end = i + 1;
        l->oldest = jobs[i].id < l->oldest ? jobs[i].id : l->oldest;
    }
    return n_lines;
}

static bool is_before(const struct queue_line *a, const struct queue_line *b)
{
    return a->slots != b->slots ? a->slots < b->slots : a->oldest < b->oldest;
}

/* Restores the heap of lines below `i`, the line that is served next at its top. */
static void sift_down(struct queue_line *heap, int n, int i)
{
    for (;;) {
        int best = i;
        for (int child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
            best = is_before(&heap[child], &heap[best]) ? child : best;
        if (best == i)
            return;
        struct queue_line swap = heap[i];
        heap[i] = heap[best];
        heap[best] = swap;
        i = best;
    }
}

static void take_turns(const struct queue_job *jobs, int n, struct queue_line *heap, int n_lines, struct queue_job *ret)
{
    for (int i = n_lines / 2; i >= 0; i--)
        sift_down(heap, n_lines, i);
    for (int i = 0; i < n; i++) {
        ret[i] = jobs[heap[0].at++];
        heap[0].slots += ret[i].workers;
        if (heap[0].at == heap[0].end)
            heap[0] = heap[--n_lines];
        sift_down(heap, n_lines, 0);
    }
}

err_t queue_sort(struct queue_job *jobs, int n, const struct queue_user *users, int n_users)
{
    if (n < 2)
        return OK;
    struct queue_job *sorted = malloc((size_t)n * sizeof(*sorted));
    struct queue_line *lines = malloc((size_t)n * sizeof(*lines));
    err_t err = sorted && lines ? OK : ERR_NOMEM;
    if (!err) {
        memcpy(sorted, jobs, (size_t)n * sizeof(*sorted));
        qsort(sorted, (size_t)n, sizeof(*sorted), compare_in_line);
        int n_lines = make_lines(sorted, n, users, n_users, lines);
        take_turns(sorted, n, lines, n_lines, jobs);
    }
    free(sorted);
    free(lines);
    return err;
}

/* ---- overtaking ---- */

struct queue_room {
    struct placement_node *nodes;
    int n;
    int *node; /* of each rank, when something is placed */
};

static bool fits(const struct queue_room *room, const struct placement_want *want, int *ret_workers)
{
    return placement_find(room->nodes, room->n, want, room->node, ret_workers) == PLACEMENT_FITS;
}

static int compare_ends(const void *a, const void *b)
{
    const struct queue_running *const *x = a, *const *y = b;
    return (*x)->ends_ms < (*y)->ends_ms ? -1 : (*x)->ends_ms > (*y)->ends_ms;
}

static void vacate(const struct queue_room *room, const struct queue_running *r)
{
    for (int i = 0; i < room->n; i++) {
        room->nodes[i].used -= r->workers[i];
        room->nodes[i].busy -= r->gpus[i];
    }
}

/* When the first job could start if none had overtaken it: earlier jobs end in the order of their limits until it fits.
 * INT64_MAX: unknown. Ends of later jobs do not count: they could be put off again and again by further ones. */
static int64_t time_of_room(const struct queue_room *room, const struct queue_running **by_end, int n_running,
                            const struct placement_want *want, int64_t now_ms)
{
    int workers, i;
    int64_t at = now_ms;
    for (i = 0; i < n_running; i++)
        if (by_end[i]->is_later)
            vacate(room, by_end[i]);
    bool fit = fits(room, want, &workers);
    for (i = 0; !fit && i < n_running && by_end[i]->ends_ms < INT64_MAX; i++) {
        if (by_end[i]->is_later)
            continue;
        at = by_end[i]->ends_ms;
        vacate(room, by_end[i]);
        fit = fits(room, want, &workers);
    }
    return fit ? at : INT64_MAX;
}

/* The room at that time. INT64_MAX: all earlier jobs have left, and all nodes are back. */
static void advance_to(const struct queue_room *room, int64_t at, const struct queue_running **by_end, int n_running)
{
    for (int i = 0; i < n_running; i++)
        if (at < INT64_MAX ? by_end[i]->ends_ms <= at : !by_end[i]->is_later)
            vacate(room, by_end[i]);
    for (int k = 0; k < room->n && at == INT64_MAX; k++)
        room->nodes[k].out = NULL;
}

/* The workers of `want` take the places that they would get now, whatever is free then. */
static void occupy(const struct queue_room *room, const int *node, int workers, const struct placement_want *want)
{
    for (int k = 0; k < workers; k++)
        room->nodes[node[k]].used++;
    for (int k = 0; want->per_gpu && k < workers;) {
        int at = node[k], here = 0;
        for (; k < workers && node[k] == at; k++)
            here++;
        room->nodes[at].busy += (here + want->per_gpu - 1) / want->per_gpu;
    }
}

static bool may_overtake(const struct queue_room *now, const struct queue_room *then,
                         const struct queue_running **by_end, int n_running, const struct queue_claim *first,
                         const struct queue_claim *later, int64_t now_ms)
{
    int workers, unused;
    if (!fits(now, &later->want, &workers))
        return false;
    int64_t at = time_of_room(then, by_end, n_running, &first->want, now_ms);
    if (later->limit_ms && at < INT64_MAX && now_ms + later->limit_ms <= at)
        return true;
    memcpy(then->nodes, now->nodes, (size_t)now->n * sizeof(*now->nodes));
    advance_to(then, at, by_end, n_running);
    occupy(then, now->node, workers, &later->want);
    return fits(then, &first->want, &unused);
}

static err_t make_room(const struct placement_node *nodes, int n, int ranks, struct queue_room *ret)
{
    *ret = (struct queue_room){
        .nodes = malloc(((size_t)n + 1) * sizeof(*nodes)), .n = n, .node = calloc((size_t)ranks + 1, sizeof(int))};
    if (!ret->nodes || !ret->node)
        return ERR_NOMEM;
    if (n)
        memcpy(ret->nodes, nodes, (size_t)n * sizeof(*nodes));
    return OK;
}

static void free_room(struct queue_room *room)
{
    free(room->nodes);
    free(room->node);
}

err_t queue_may_overtake(const struct placement_node *nodes, int n, const struct queue_running *running, int n_running,
                         const struct queue_claim *first, const struct queue_claim *later, int64_t now_ms, bool *ret)
{
    struct queue_room now = {0}, then = {0};
    const struct queue_running **by_end = malloc(((size_t)n_running + 1) * sizeof(const struct queue_running *));
    err_t err = by_end ? make_room(nodes, n, later->want.max, &now) : ERR_NOMEM;
    err = err ? err : make_room(nodes, n, first->want.max, &then);
    if (!err) {
        for (int i = 0; i < n_running; i++)
            by_end[i] = &running[i];
        qsort(by_end, (size_t)n_running, sizeof(const struct queue_running *), compare_ends);
        *ret = may_overtake(&now, &then, by_end, n_running, first, later, now_ms);
    }
    free_room(&now);
    free_room(&then);
    free(by_end);
    return err;
}
