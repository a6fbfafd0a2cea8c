/* Sums over the recorded steps, as `dtctl plan` defines them for a forecast: the bubble is the part of a step in which
 * the compute row is idle, and communication is exposed where it runs while nothing is computed. */
#include "client/profile/profile.h"

#include <math.h>
#include <stdlib.h>

struct span {
    int64_t from, to;
};

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Sorts the spans and joins those that touch. */
static int join(struct span *s, int n)
{
    int kept = 0;
    if (n)
        qsort(s, (size_t)n, sizeof(*s), by_begin);
    for (int i = 0; i < n; i++) {
        if (kept && s[i].from <= s[kept - 1].to)
            s[kept - 1].to = s[i].to > s[kept - 1].to ? s[i].to : s[kept - 1].to;
        else
            s[kept++] = s[i];
    }
    return kept;
}

static int64_t length(const struct span *s, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += s[i].to - s[i].from;
    return sum;
}

/* Of two joined lists: the time that both have. */
static int64_t common_time(const struct span *a, int na, const struct span *b, int nb)
{
    int64_t sum = 0;
    for (int i = 0, k = 0; i < na && k < nb;) {
        const int64_t from = a[i].from > b[k].from ? a[i].from : b[k].from;
        const int64_t to = a[i].to < b[k].to ? a[i].to : b[k].to;
        sum += to > from ? to - from : 0;
        if (a[i].to < b[k].to)
            i++;
        else
            k++;
    }
    return sum;
}

static int spans_of(const struct recorded *r, bool comm, struct span *ret)
{
    int n = 0;
    for (int i = 0; i < r->n_events; i++) {
        const struct recorded_call *c = &r->calls[r->events[i].call];
        if (call_is_comm(c) == comm && (comm || c->stream != STREAM_COPY))
            ret[n++] = (struct span){r->events[i].from, r->events[i].to};
    }
    return join(ret, n);
}

static double host_seconds(const struct recorded *r, enum recorded_host_kind a, enum recorded_host_kind b)
{
    int64_t sum = 0;
    for (int i = 0; i < r->n_hosts; i++)
        if (r->hosts[i].kind == a || r->hosts[i].kind == b)
            sum += r->hosts[i].to - r->hosts[i].from;
    return (double)sum * 1e-9;
}

static err_t sum_rank(const struct recorded *r, struct rank_summary *ret)
{
    struct span *compute = malloc(((size_t)r->n_events + 1) * sizeof(*compute));
    struct span *comm = malloc(((size_t)r->n_events + 1) * sizeof(*comm));
    int64_t steps = 0;
    if (!compute || !comm) {
        free(compute);
        free(comm);
        return ERR_NOMEM;
    }
    const int n_compute = spans_of(r, false, compute), n_comm = spans_of(r, true, comm);
    for (int i = 0; i < r->n_step; i++)
        steps += r->step[i].to - r->step[i].from;
    const double n = r->n_step ? r->n_step : 1, computed = (double)length(compute, n_compute) * 1e-9,
                 talked = (double)length(comm, n_comm) * 1e-9,
                 hidden = (double)common_time(compute, n_compute, comm, n_comm) * 1e-9;
    *ret = (struct rank_summary){.step_s = (double)steps * 1e-9 / n,
                                 .compute_s = computed / n,
                                 .comm_s = talked / n,
                                 .exposed_s = (talked - hidden) / n,
                                 .data_s = host_seconds(r, HOST_DATA, HOST_DATA) / n,
                                 .save_s = host_seconds(r, HOST_SAVE, HOST_POLL) / n,
                                 .bubble = steps ? 1 - computed / ((double)steps * 1e-9) : 0};
    free(compute);
    free(comm);
    return OK;
}

static void compare_rank(const struct profile *p, int rank, struct profile_difference *most)
{
    const struct recorded *r = &p->rank[rank];
    const struct forecast_rank *f = &p->forecast.ranks[rank];
    double measured[ACT_COUNT] = {0}, forecast[ACT_COUNT] = {0};
    for (int i = 0; i < r->n_events; i++) {
        const struct recorded_call *c = &r->calls[r->events[i].call];
        if (c->stream == STREAM_COMPUTE)
            measured[r->actions[c->action].kind] += (double)(r->events[i].to - r->events[i].from) * 1e-9;
    }
    for (int i = 0; i < f->n; i++)
        if (f->boxes[i].stream == STREAM_COMPUTE)
            forecast[f->boxes[i].kind] += f->boxes[i].end - f->boxes[i].start;
    for (int k = 0; k < ACT_COUNT; k++) {
        const double mean = measured[k] / (r->n_step ? r->n_step : 1);
        if (most->rank < 0 || fabs(mean - forecast[k]) > fabs(most->measured_s - most->forecast_s))
            *most = (struct profile_difference){rank, (enum action_kind)k, mean, forecast[k]};
    }
}

err_t profile_sum(const struct profile *p, struct rank_summary *ret, struct profile_difference *ret_most)
{
    struct profile_difference most = {.rank = -1};
    err_t err = OK;
    for (int k = 0; !err && k < p->n; k++) {
        err = sum_rank(&p->rank[k], &ret[k]);
        if (!err && p->forecast.n)
            compare_rank(p, k, &most);
    }
    if (!err)
        *ret_most = most;
    return err;
}
