/* All-gather of one tensor or of all tensors of a unit. The members on one node gather their pieces over shm. In
 * addition each member sends its stream (its pieces, one after another) to one rank of each other node, cell by cell.
 * The cell arrives in one half of that rank's stage, and all ranks of the node copy it from there.
 *
 *   post round 0 | gather in the node | wait for 0 | barrier | post round 1 | copy 0 out | wait for 1 | barrier | ...
 *
 * A half is filled again only after the barrier that all ranks reached after copying it out. */
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <string.h>

struct hier_gather_call {
    struct hier_group *g;
    const uint8_t *pieces;
    uint8_t *local;
    const struct comm_part *parts;
    int n;
    enum dtype dtype;
    int64_t size, cell, rounds; /* bytes of an element; elements of a cell; number of rounds */
    int64_t *totals;            /* elements of each member's stream */
};

static int64_t before(const struct comm_part *p, int member)
{
    int64_t at = 0;
    for (int i = 0; i < member; i++)
        at += p->counts[i];
    return at;
}

/* ---- in the node ---- */

/* The members of a run have adjacent parts in the local tensor, as shm requires. */
static err_t gather_run(const struct hier_gather_call *c, struct kern_stream *s, const struct hier_run *run)
{
    enum { AT_ONCE = 64 };
    struct comm_part parts[AT_ONCE];
    int64_t counts[AT_ONCE][SHM_MAX_WORLD];
    struct comm_group *inner = c->g->inner;
    err_t err = OK;
    for (int k = 0; !err && k < c->n;) {
        int n = 0;
        for (; n < AT_ONCE && k < c->n; n++, k++) {
            const struct comm_part *p = &c->parts[k];
            memset(counts[n], 0, (size_t)inner->n * sizeof(counts[n][0]));
            for (int i = run->first; i < run->first + run->n; i++)
                counts[n][c->g->local_at[i]] = p->counts[i];
            parts[n] = (struct comm_part){p->local + before(p, run->first), p->piece, counts[n]};
        }
        err = shm_unit_gather(inner, s, c->pieces, c->local, parts, n, c->dtype);
    }
    return err;
}

static err_t gather_here(const struct hier_gather_call *c, struct kern_stream *s)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->g->n_runs; k++)
        if (c->g->runs[k].node == c->g->here)
            err = gather_run(c, s, &c->g->runs[k]);
    return err;
}

/* ---- between the nodes ---- */

static int64_t in_round(const struct hier_gather_call *c, int member, int64_t round)
{
    return hier_max(0, hier_min(c->totals[member] - round * c->cell, c->cell));
}

/* Returns elements [begin, begin + m) of this rank's stream: in place if they are contiguous, else copied to `room`. */
static uint8_t *own_part(const struct hier_gather_call *c, int64_t begin, int64_t m, uint8_t *room)
{
    int64_t at = 0, end = begin + m;
    for (int k = 0; k < c->n && at < end; k++) {
        const int64_t count = c->parts[k].counts[c->g->base.me], lo = hier_max(at, begin),
                      hi = hier_min(at + count, end);
        const uint8_t *from = c->pieces + (c->parts[k].piece + lo - at) * c->size;
        if (lo == begin && hi == end)
            return (uint8_t *)from;
        if (lo < hi)
            memcpy(room + (lo - begin) * c->size, from, (size_t)((hi - lo) * c->size));
        at += count;
    }
    return room;
}

static uint8_t *cell_of(const struct hier_gather_call *c, int member, int64_t round)
{
    const int receiver = c->g->local_at[member] % c->g->inner->n;
    return hier_stage(c->g, receiver) + (round & 1) * (HIER_STAGE / 2) + c->g->cell_at[member] * c->cell * c->size;
}

/* Posts the round's messages, in its half of g->ops; returns their number. */
static int post_round(const struct hier_gather_call *c, int64_t round)
{
    struct hier_group *g = c->g;
    struct wire_op *ops = g->ops + (round & 1) * (2 * g->base.n);
    const int64_t m = in_round(c, g->base.me, round);
    uint8_t *room = hier_of(&g->base)->scratch + (round & 1) * (HIER_SCRATCH / 2);
    uint8_t *mine = m > 0 ? own_part(c, round * c->cell, m, room) : NULL;
    int n = 0;
    for (int i = 0; i < g->base.n; i++)
        if (g->node_at[i] != g->here && g->local_at[i] % g->inner->n == g->inner->me && in_round(c, i, round) > 0)
            hier_recv(g, i, cell_of(c, i, round), in_round(c, i, round) * c->size, &ops[n++]);
    for (int y = 0; y < g->n_nodes && m > 0; y++)
        if (y != g->here)
            hier_send(g, hier_owner(g, y, g->local_at[g->base.me]), mine, m * c->size, &ops[n++]);
    return n;
}

static void copy_cell(const struct hier_gather_call *c, int member, int64_t round)
{
    const int64_t begin = round * c->cell, end = begin + in_round(c, member, round);
    const uint8_t *cell = cell_of(c, member, round);
    int64_t at = 0;
    for (int k = 0; k < c->n && at < end; k++) {
        const int64_t count = c->parts[k].counts[member], lo = hier_max(at, begin), hi = hier_min(at + count, end);
        uint8_t *to = c->local + (c->parts[k].local + before(&c->parts[k], member) + lo - at) * c->size;
        if (lo < hi)
            memcpy(to, cell + (lo - begin) * c->size, (size_t)((hi - lo) * c->size));
        at += count;
    }
}

static void copy_cells(const struct hier_gather_call *c, int64_t round)
{
    for (int i = 0; i < c->g->base.n; i++)
        if (c->g->node_at[i] != c->g->here && in_round(c, i, round) > 0)
            copy_cell(c, i, round);
}

static err_t gather_parts(const struct hier_gather_call *c, struct kern_stream *s)
{
    struct hier_group *g = c->g;
    struct hier_comm *h = hier_of(&g->base);
    int turn = 0, posted = post_round(c, 0);
    err_t err = hier_turn(h, true, &turn);
    err = err ? err : gather_here(c, s);
    for (int64_t round = 0; !err && round < c->rounds; round++) {
        err = hier_wait_ops(h, g->ops + (round & 1) * (2 * g->base.n), posted);
        err = err ? err : shm_barrier(g->inner);
        if (!err && round + 1 < c->rounds) {
            posted = post_round(c, round + 1);
            err = hier_turn(h, true, &turn);
        }
        if (!err)
            copy_cells(c, round);
    }
    return err ? err : shm_barrier(g->inner);
}

static void set_up(struct hier_gather_call *c)
{
    int64_t most = 0;
    assert(c->size > 0);
    c->totals = hier_of(&c->g->base)->numbers;
    for (int i = 0; i < c->g->base.n; i++) {
        c->totals[i] = 0;
        for (int k = 0; k < c->n; k++)
            c->totals[i] += c->parts[k].counts[i];
        most = hier_max(most, c->totals[i]);
    }
    c->cell = HIER_STAGE / 2 / c->g->max_cells / 64 * 64 / c->size;
    c->rounds = (most + c->cell - 1) / c->cell;
}

err_t hier_unit_gather(struct comm_group *group, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype)
{
    struct hier_group *g = hier_group_of(group);
    struct hier_gather_call c = {.g = g, .pieces = pieces, .local = local, .parts = parts, .n = n, .dtype = dtype};
    c.size = (int64_t)dtype_bytes(dtype);
    if (g->one_node)
        return hier_result(group, shm_unit_gather(g->inner, s, pieces, local, parts, n, dtype));
    if (n == 0)
        return hier_barrier(group);
    set_up(&c);
    return hier_result(group, gather_parts(&c, s));
}

err_t hier_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype)
{
    return hier_unit_gather(g, s, src, dst, &(const struct comm_part){0, 0, counts}, 1, dtype);
}
