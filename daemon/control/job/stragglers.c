/* See stragglers.h. */
#include "daemon/control/job/stragglers.h"

#include <stdlib.h>

#define SLOW 1.10      /* above what ranks of equal work differ by chance */
#define SLOW_ENDS 1.05 /* lower, so that a rank near the limit does not come and go */
#define WINDOWS 3      /* one slow step, or a window with it, is no pattern */
#define LEAST_MS 30000 /* on a node with too few cores, ranks differ by chance for some windows */

void stragglers_fini(struct stragglers *s)
{
    free(s->rank);
    *s = (struct stragglers){0};
}

static err_t epoch_begin(struct stragglers *s, const struct usage_sample *window)
{
    stragglers_fini(s);
    s->rank = calloc((size_t)window->ranks, sizeof(*s->rank));
    if (!s->rank)
        return ERR_NOMEM;
    s->epoch = window->epoch;
    s->ranks = window->ranks;
    return OK;
}

/* ---- medians ---- */

struct peer_time {
    double work, compute_s;
    int rank;
};

static int by_work_and_time(const void *a, const void *b)
{
    const struct peer_time *x = a, *y = b;
    if (x->work != y->work)
        return x->work < y->work ? -1 : 1;
    return x->compute_s < y->compute_s ? -1 : x->compute_s > y->compute_s;
}

/* Ranks that have a time, those of equal work one after another, ascending by time. */
static int sort_ranks(const struct usage_sample *w, struct peer_time *ret)
{
    int n = 0;
    for (int r = 0; r < w->ranks; r++) {
        const double compute_s = *usage_at(w, USAGE_compute_s, r), work = *usage_at(w, USAGE_planned_flop, r);
        if (isfinite(compute_s) && compute_s > 0)
            ret[n++] = (struct peer_time){isfinite(work) ? work : 0, compute_s, r};
    }
    qsort(ret, (size_t)n, sizeof(*ret), by_work_and_time);
    return n;
}

/* ---- ranks ---- */

/* True: it has become a straggler, or is none any more. The time of a GPU is measured in some steps only, and repeated
 * until the next one: the same number again is no news, so that one slow step stays one. */
static bool rank_add(struct straggler_rank *k, const struct usage_sample *w, double compute_s, double median)
{
    const bool was = k->named;
    const double ratio = compute_s / median;
    if (compute_s == k->compute_s)
        return false;
    if (ratio < SLOW_ENDS || (ratio <= SLOW && !k->named)) {
        *k = (struct straggler_rank){.compute_s = compute_s};
        return was;
    }
    if (k->windows++ == 0)
        k->since_ms = w->wall_ms - w->window_ms;
    k->ratio = ratio;
    k->compute_s = compute_s;
    k->named = was || (k->windows >= WINDOWS && w->wall_ms - k->since_ms >= LEAST_MS);
    return k->named != was;
}

err_t stragglers_add(struct stragglers *s, const struct usage_sample *window, bool *ret_changed)
{
    bool changed = false;
    if (!s->rank || s->epoch != window->epoch || s->ranks != window->ranks) {
        changed = stragglers_list(s, NULL, 0) > 0;
        err_t err = epoch_begin(s, window);
        if (err)
            return err;
    }
    struct peer_time *sorted = calloc((size_t)window->ranks, sizeof(*sorted));
    if (!sorted)
        return ERR_NOMEM;
    const int n = sort_ranks(window, sorted);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && sorted[end].work == sorted[first].work;)
            end++;
        const double median = sorted[first + (end - first - 1) / 2].compute_s;
        for (int i = first; i < end; i++)
            changed |= rank_add(&s->rank[sorted[i].rank], window, sorted[i].compute_s, median);
    }
    free(sorted);
    *ret_changed = changed;
    return OK;
}

int stragglers_list(const struct stragglers *s, struct straggler *ret, int max)
{
    int n = 0;
    for (int r = 0; s->rank && r < s->ranks; r++) {
        const struct straggler_rank *k = &s->rank[r];
        if (!k->named)
            continue;
        if (n < max)
            ret[n] = (struct straggler){r, k->ratio, k->since_ms};
        n++;
    }
    return n;
}
