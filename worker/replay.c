/* Members of a group call its collectives in the same order, so the k-th call of one rank belongs to the k-th call of
 * the others. Groups are equal if their axes and ranks are; a program may number them in another way than its peer. */
#include "worker/replay.h"

#include "common/plan/compile/compile.h"

#include <stdlib.h>
#include <string.h>

err_t replay_init(struct replay *r, const struct job_spec *job, const struct graph *g, struct why *why)
{
    *r = (struct replay){.world = (int)job->parallel.workers};
    if (job->parallel.workers > REPLAY_RANKS) {
        r->world = 0;
        return why_set(why, ERR_LIMIT, "a replayed job has at most %d workers", REPLAY_RANKS);
    }
    err_t err = plan_compile_all(job, g, MODE_TRAIN, r->world, r->programs, why);
    for (int i = 0; !err && i < r->world; i++) {
        err = recorded_program(&r->programs[i], &r->calls[i], &r->first_call[i]);
        r->seconds[i] = err ? NULL : calloc((size_t)r->calls[i].n_calls + 1, sizeof(double));
        err = err ? err : r->seconds[i] ? OK : ERR_NOMEM;
    }
    return err;
}

void replay_fini(struct replay *r)
{
    for (int i = 0; i < r->world; i++) {
        recorded_fini(&r->calls[i]);
        program_fini(&r->programs[i]);
        free(r->first_call[i]);
        free(r->seconds[i]);
    }
    *r = (struct replay){0};
}

const struct op *replay_op(const struct replay *r, int rank, int call)
{
    const int action = r->calls[rank].calls[call].action;
    const struct program *p = &r->programs[rank];
    return &p->ops[p->actions[action].first_op + call - r->first_call[rank][action]];
}

/* ---- collectives ---- */

static bool is_collective(const struct op *op)
{
    return op->group >= 0 && op->kind != OP_SEND && op->kind != OP_RECV;
}

/* The first group of the program that is equal to this one; -1: none. */
static int group_find(const struct program *p, const struct group *g)
{
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].n == g->n && p->groups[i].axes == g->axes &&
            memcmp(p->groups[i].ranks, g->ranks, (size_t)g->n * sizeof(*g->ranks)) == 0)
            return i;
    return -1;
}

/* A call of a rank: the k-th collective of its group (as group_find numbers it); group -1: it is none. */
struct replay_call {
    int group, k;
};

static err_t number_calls(const struct replay *r, int rank, struct replay_call **ret)
{
    const struct program *p = &r->programs[rank];
    const int n = r->calls[rank].n_calls;
    struct replay_call *list = calloc((size_t)n + 1, sizeof(*list));
    int *count = calloc((size_t)p->n_groups + 1, sizeof(*count));
    for (int c = 0; list && count && c < n; c++) {
        const struct op *op = replay_op(r, rank, c);
        list[c].group = is_collective(op) ? group_find(p, &p->groups[op->group]) : -1;
        list[c].k = list[c].group >= 0 ? count[list[c].group]++ : 0;
    }
    free(count);
    if (list && count) {
        *ret = list;
        return OK;
    }
    free(list);
    return ERR_NOMEM;
}

/* The call of another rank that is the same collective; -1: that rank has none. */
static int same_call(const struct replay *r, struct replay_call *const lists[], int rank, int call, int other)
{
    const struct replay_call *own = &lists[rank][call];
    const int group = group_find(&r->programs[other], &r->programs[rank].groups[own->group]);
    for (int i = 0; group >= 0 && i < r->calls[other].n_calls; i++)
        if (lists[other][i].group == group && lists[other][i].k == own->k)
            return i;
    return -1;
}

/* ---- one time for each call ---- */

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static const float *times_of(const struct replay_times *t, int rank, int call)
{
    return t->at[rank] + (size_t)call * t->stride;
}

static double collective_seconds(const struct replay *r, struct replay_call *const lists[],
                                 const struct replay_times *t, int rank, int call, float *room)
{
    const struct group *g = &r->programs[rank].groups[lists[rank][call].group];
    memcpy(room, times_of(t, rank, call), (size_t)t->steps * sizeof(*room));
    for (int i = 0; i < g->n; i++) {
        const int other = g->ranks[i], at = other == rank ? -1 : same_call(r, lists, rank, call, other);
        for (int s = 0; at >= 0 && s < t->steps; s++) {
            const float took = times_of(t, other, at)[s];
            room[s] = took < room[s] ? took : room[s];
        }
    }
    qsort(room, (size_t)t->steps, sizeof(*room), by_value);
    return room[t->steps / 4];
}

static double median_seconds(const struct replay_times *t, int rank, int call, float *room)
{
    memcpy(room, times_of(t, rank, call), (size_t)t->steps * sizeof(*room));
    qsort(room, (size_t)t->steps, sizeof(*room), by_value);
    return room[t->steps / 2];
}

static void reduce_rank(struct replay *r, struct replay_call *const lists[], const struct replay_times *t, int rank,
                        float *room)
{
    for (int c = 0; c < r->calls[rank].n_calls; c++)
        r->seconds[rank][c] = lists[rank][c].group >= 0 ? collective_seconds(r, lists, t, rank, c, room)
                                                        : median_seconds(t, rank, c, room);
}

err_t replay_reduce(struct replay *r, const struct replay_times *times, struct why *why)
{
    struct replay_call *lists[REPLAY_RANKS] = {NULL};
    float *room = calloc((size_t)times->steps + 1, sizeof(*room));
    err_t err = room ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < r->world; i++)
        err = (size_t)r->calls[i].n_calls > times->calls
                  ? why_set(why, ERR_LIMIT, "rank %d calls %d operations in a step; at most %zu are recorded", i,
                            r->calls[i].n_calls, times->calls)
                  : number_calls(r, i, &lists[i]);
    for (int i = 0; !err && i < r->world; i++)
        reduce_rank(r, lists, times, i, room);
    for (int i = 0; i < r->world; i++)
        free(lists[i]);
    free(room);
    return err;
}

/* ---- the step ---- */

/* Messages, and what passes them on, take the time of the rates. */
static double replayed(void *arg, int rank, int action, const struct op *op)
{
    const struct replay *r = arg;
    const struct program *p = &r->programs[rank];
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_PUSH || op->kind == OP_WAIT)
        return -1;
    return r->seconds[rank][r->first_call[rank][action] + (int)(op - &p->ops[p->actions[action].first_op])];
}

err_t replay_step(struct replay *r, const struct plan_rates *rates, double *ret, struct why *why)
{
    struct plan_rates with = *rates;
    struct forecast f;
    with.seconds = replayed;
    with.arg = r;
    err_t err = plan_forecast(r->programs, r->world, &with, &f, why);
    if (err)
        return err;
    *ret = f.seconds;
    forecast_fini(&f);
    return OK;
}
