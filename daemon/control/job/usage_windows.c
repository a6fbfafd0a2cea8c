/* See usage_windows.h. */
#include "daemon/control/job/usage_windows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REPORTS_MAX 2 /* a rank that ends its window just before a step, and another one just after it */

void usage_windows_fini(struct usage_windows *w)
{
    free(w->parts);
    *w = (struct usage_windows){0};
}

static err_t window_begin(struct usage_windows *w, uint64_t epoch, int ranks)
{
    usage_windows_fini(w);
    if (ranks < 1 || ranks > USAGE_RANKS_MAX)
        return ERR_LIMIT;
    w->parts = calloc((size_t)ranks, sizeof(*w->parts));
    if (!w->parts)
        return ERR_NOMEM;
    w->epoch = epoch;
    w->ranks = ranks;
    return OK;
}

static void window_clear(struct usage_windows *w)
{
    memset(w->parts, 0, (size_t)w->ranks * sizeof(*w->parts));
    w->present = 0;
    w->step = 0;
}

static err_t window_end(struct usage_windows *w, struct usage_sample *ret)
{
    struct usage_sample s;
    err_t err = usage_sample_init(&s, w->ranks);
    if (err)
        return err;
    s.epoch = w->epoch;
    s.step = w->step;
    for (int r = 0; r < w->ranks; r++) {
        const struct usage_part *p = &w->parts[r];
        if (!p->reports)
            continue;
        usage_set_rank(&s, r, &p->usage);
        s.window_ms = p->ms > s.window_ms ? p->ms : s.window_ms;
    }
    window_clear(w);
    *ret = s;
    return OK;
}

static void part_add(struct usage_windows *w, int rank, const struct usage_report *report)
{
    struct usage_part *p = &w->parts[rank];
    const double steps = (double)report->steps, ms = (double)report->window_ms;
    p->usage = p->reports ? usage_join(&p->usage, p->steps, (double)p->ms, &report->usage, steps, ms) : report->usage;
    p->steps += steps;
    p->ms += report->window_ms;
    w->present += p->reports++ == 0;
    w->step = report->step > w->step ? report->step : w->step;
}

err_t usage_windows_add(struct usage_windows *w, uint64_t epoch, int ranks, int rank, const struct usage_report *report,
                        struct usage_sample *ret)
{
    err_t err = OK;
    *ret = (struct usage_sample){0};
    assert(rank >= 0 && rank < ranks);
    if (!w->parts || w->epoch != epoch || w->ranks != ranks)
        err = window_begin(w, epoch, ranks);
    if (!err && w->parts[rank].reports == REPORTS_MAX)
        err = window_end(w, ret);
    if (err)
        return err;
    part_add(w, rank, report);
    return w->present == w->ranks && !ret->ranks ? window_end(w, ret) : OK;
}
