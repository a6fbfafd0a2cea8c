/* The microbatches make up the global batch. Ranks that differ in dp or fsdp have consecutive ranges of microbatches;
 * ranks that agree in both have the same range. Each rank computes each chunk once forward and once backward on each of
 * its microbatches, and each loss is counted once. */
#include "common/plan/check/check.h"

#include <string.h>

static int forwards_of(const struct program *p, int micro, int chunk)
{
    int n = 0;
    for (int a = 0; a < p->n_actions; a++)
        n += p->actions[a].micro == micro && p->actions[a].chunk == chunk && p->actions[a].kind == ACT_FORWARD;
    return n;
}

/* Number of backwards, whole or split into inputs and then weights; -1: another mixture. */
static int backwards_of(const struct program *p, int micro, int chunk)
{
    int whole = 0, inputs = 0, weights = 0;
    bool ordered = true;
    for (int a = 0; a < p->n_actions; a++) {
        if (p->actions[a].micro != micro || p->actions[a].chunk != chunk)
            continue;
        whole += p->actions[a].kind == ACT_BACKWARD;
        inputs += p->actions[a].kind == ACT_INPUT;
        weights += p->actions[a].kind == ACT_WEIGHT;
        ordered &= weights <= inputs;
    }
    return ordered && inputs == weights ? whole + inputs : -1;
}

static err_t check_chunk(const struct program *p, int micro, int chunk, struct why *why)
{
    int forwards = forwards_of(p, micro, chunk), backwards = backwards_of(p, micro, chunk);
    int want = micro >= p->first_micro && micro < p->end_micro;
    if (forwards == want && backwards == (p->mode == MODE_TRAIN ? want : 0))
        return OK;
    return why_set(why, ERR_INVALID,
                   "rank %d: microbatch %d has %d forwards and %d backwards of chunk %d; the rank's "
                   "microbatches are %d to %d",
                   p->rank, micro, forwards, backwards, chunk, p->first_micro, p->end_micro - 1);
}

static err_t check_shares(const struct program *programs, int r, int *next, struct why *why)
{
    const struct program *p = &programs[r];
    int coord[AXIS_COUNT];
    mesh_coords(&p->mesh, r, coord);
    if (p->n_micros != programs->n_micros || p->loss_scale != programs->loss_scale ||
        memcmp(p->micros, programs->micros, (size_t)p->n_micros * sizeof(*p->micros)) != 0)
        return why_set(why, ERR_INVALID, "ranks 0 and %d have different microbatches in the global batch", r);
    if (mode_generates(p->mode))
        return OK;
    /* The first rank of a range of microbatches: the first stage, context part 0 and tensor part 0. */
    if (coord[AXIS_PP] == 0 && coord[AXIS_CP] == 0 && coord[AXIS_TP] == 0) {
        if (p->first_micro != *next)
            return why_set(why, ERR_INVALID, "rank %d begins with microbatch %d, but %d is next", r, p->first_micro,
                           *next);
        *next = p->end_micro;
    }
    coord[AXIS_PP] = coord[AXIS_CP] = coord[AXIS_TP] = 0;
    int first = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        first = first * p->mesh.size[a] + coord[a];
    if (p->first_micro != programs[first].first_micro || p->end_micro != programs[first].end_micro)
        return why_set(why, ERR_INVALID, "ranks %d and %d agree in dp and fsdp but have different microbatches", first,
                       r);
    return OK;
}

/* Checks that the loss of a microbatch is counted once for each part of the sequence. */
static err_t check_losses(const struct program *programs, const struct rank_facts *facts, int n, int micro,
                          struct why *why)
{
    int times = 0, parts = programs->mesh.size[AXIS_CP], last = -1;
    for (int r = 0; r < n; r++) {
        times += facts[r].losses[micro];
        last = facts[r].losses[micro] ? r : last;
    }
    if (times == parts)
        return OK;
    return why_set(why, ERR_INVALID,
                   "rank %d: the loss of microbatch %d is counted %d times over all ranks instead of %d",
                   last < 0 ? 0 : last, micro, times, parts);
}

err_t check_batch(const struct program *programs, const struct rank_facts *facts, int n, struct why *why)
{
    int next = 0;
    err_t e = OK;
    for (int r = 0; r < n && !e; r++) {
        int chunks = programs[r].sharding.chunks > 1 ? programs[r].sharding.chunks : 1;
        e = check_shares(programs, r, &next, why);
        for (int m = 0; m < programs[r].n_micros && !e && !mode_generates(programs->mode); m++)
            for (int chunk = 0; chunk < chunks && !e; chunk++)
                e = check_chunk(&programs[r], m, chunk, why);
    }
    if (!e && !mode_generates(programs->mode) && next != programs->n_micros)
        e = why_set(why, ERR_INVALID, "no rank has microbatches %d to %d", next, programs->n_micros - 1);
    for (int m = 0; m < programs->n_micros && !e && !mode_generates(programs->mode); m++)
        e = check_losses(programs, facts, n, m, why);
    return e;
}
