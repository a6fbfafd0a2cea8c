/* Reduce-scatter, of one tensor or of all of a unit. What a member is to have is a stream, its parts one behind
 * another; a piece of it is summed on its way through the nodes (relay.c), on the owner's node by the owner, and sent
 * to it from where the sum ends.
 *
 * A member whose tensors are private puts a block of every other member's stream into its stage, for its node to read,
 * round by round. The ranks of other nodes need not know of rounds: pieces are the same everywhere. */
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <string.h>

struct call {
    struct hier_relay relay;
    const uint8_t *local;
    uint8_t *pieces;
    const struct comm_part *parts;
    int n;
    enum dtype dtype;
    enum reduce_op op;
    bool add, shared;
    int64_t *totals;
    int64_t longest, block; /* elements: of the streams; of a stream in a stage */
    int64_t begin, end;     /* of the streams, this round */
    int64_t next, next_who; /* piece, owner */
};

static const struct call *call_of(const struct hier_relay *r)
{
    return (const struct call *)r;
}

static int64_t before(const struct comm_part *p, int member)
{
    int64_t at = 0;
    for (int i = 0; i < member; i++)
        at += p->counts[i];
    return at;
}

/* ---- elements of a stream ---- */

/* Part k's share of elements [begin, end) of the owner's stream, the part beginning at `at` in it: false for none. */
static bool fragment(const struct call *c, int owner, int k, int64_t at, int64_t begin, int64_t end, int64_t *lo,
                     int64_t *hi)
{
    *lo = hier_max(at, begin);
    *hi = hier_min(at + c->parts[k].counts[owner], end);
    return *lo < *hi;
}

/* What this rank has for the owner from `begin` on, into its stage. */
static void stage_stream(const struct call *c, int owner, uint8_t *to)
{
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < c->end; at += c->parts[k].counts[owner], k++) {
        const uint8_t *part = c->local + (c->parts[k].local + before(&c->parts[k], owner)) * c->relay.size;
        if (fragment(c, owner, k, at, c->begin, c->end, &lo, &hi))
            memcpy(to + (lo - c->begin) * c->relay.size, part + (lo - at) * c->relay.size,
                   (size_t)((hi - lo) * c->relay.size));
    }
}

static void stage_all(const struct call *c)
{
    const struct hier_group *g = c->relay.g;
    uint8_t *stage = hier_stage(g, g->inner->me);
    for (int i = 0; i < g->base.n && !c->shared; i++)
        if (i != g->base.me)
            stage_stream(c, i, stage + i * c->block * c->relay.size);
}

/* Where the member, of this node, has elements of the owner's part k, from `skip` of it and `at` of its stream on. */
static const uint8_t *summand(const struct call *c, int member, int owner, int k, int64_t skip, int64_t at)
{
    const struct hier_group *g = c->relay.g;
    const int64_t size = c->relay.size, from = before(&c->parts[k], owner) + skip;
    if (member == g->base.me)
        return c->local + (c->parts[k].local + from) * size;
    const uint8_t *said = shm_said(g->inner, g->local_at[member], k);
    if (said)
        return said + from * size;
    return hier_stage(g, g->local_at[member]) + (owner * c->block + at - c->begin) * size;
}

/* ---- pieces ---- */

static bool is_mine(const struct hier_group *g, int owner)
{
    return g->local_at[owner] % g->inner->n == g->inner->me;
}

/* Piece by piece, in each the owners in their order. */
static bool next_piece(struct hier_relay *r, struct hier_item *ret)
{
    struct call *c = (struct call *)r;
    const struct hier_group *g = r->g;
    for (; c->next * r->piece < c->end; c->next++, c->next_who = 0)
        while (c->next_who < g->base.n) {
            const int owner = (int)c->next_who++;
            const int64_t at = c->next * r->piece, m = hier_min(r->piece, hier_min(c->end, c->totals[owner]) - at);
            if (m <= 0 || !is_mine(g, owner))
                continue;
            *ret = (struct hier_item){at, m, g->local_at[owner], owner, &g->scatter[g->node_at[owner]]};
            return true;
        }
    return false;
}

static void sum(const struct hier_relay *r, const struct hier_item *item, const struct hier_run *run, uint8_t *acc,
                bool first)
{
    const struct call *c = call_of(r);
    const void **src = r->g->src;
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < item->at + item->m; at += c->parts[k].counts[item->who], k++) {
        int n = 0;
        if (!fragment(c, item->who, k, at, item->at, item->at + item->m, &lo, &hi))
            continue;
        uint8_t *to = acc + (lo - item->at) * r->size;
        if (!first)
            src[n++] = to;
        for (int i = run->first; i < run->first + run->n; i++)
            src[n++] = summand(c, i, item->who, k, lo - at, lo);
        shm_reduce(to, src, n, hi - lo, c->dtype, c->op == REDUCE_AVG ? REDUCE_SUM : c->op, false);
    }
}

static void finish(const struct hier_relay *r, const struct hier_item *item, uint8_t *acc)
{
    if (call_of(r)->op == REDUCE_AVG)
        shm_divide(acc, item->m, call_of(r)->dtype, r->g->base.n);
}

/* At the owner. */
static void give(const struct hier_relay *r, const struct hier_item *item, const uint8_t *result)
{
    const struct call *c = call_of(r);
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < item->at + item->m; at += c->parts[k].counts[item->who], k++) {
        if (!fragment(c, item->who, k, at, item->at, item->at + item->m, &lo, &hi))
            continue;
        const void *from = result + (lo - item->at) * r->size;
        shm_reduce(c->pieces + (c->parts[k].piece + lo - at) * r->size, &from, 1, hi - lo, c->dtype, REDUCE_SUM,
                   c->add);
    }
}

/* ---- rounds ---- */

static void say(struct call *c)
{
    struct shm_range ranges[SHM_PARTS];
    for (int k = 0; k < c->n; k++)
        ranges[k] = (struct shm_range){c->local + c->parts[k].local * c->relay.size,
                                       (size_t)(before(&c->parts[k], c->relay.g->base.n) * c->relay.size)};
    c->shared = shm_say(c->relay.g->inner, ranges, c->n);
}

static err_t scatter(struct call *c)
{
    struct comm_group *inner = c->relay.g->inner;
    say(c);
    c->end = hier_min(c->block, c->longest);
    stage_all(c);
    err_t err = shm_barrier(inner);
    if (err)
        return err;
    const int64_t round = shm_all_shared(inner) ? c->longest : c->block;
    while (!err && c->begin < c->longest) {
        c->end = hier_min(c->begin + round, c->longest);
        c->next_who = 0;
        err = hier_relay(&c->relay);
        err = err ? err : shm_barrier(inner);
        c->begin = c->end;
        c->end = hier_min(c->begin + round, c->longest);
        if (err || c->begin == c->longest)
            break;
        stage_all(c);
        err = shm_barrier(inner);
    }
    return err;
}

static void set_up(struct call *c, const struct comm_part *parts, int n)
{
    const struct hier_group *g = c->relay.g;
    assert(c->relay.size > 0);
    const int64_t size = c->relay.size, most = HIER_STAGE / size / g->base.n;
    c->parts = parts;
    c->n = n;
    c->begin = c->next = c->next_who = c->longest = 0;
    c->totals = hier_of(&g->base)->numbers;
    for (int i = 0; i < g->base.n; i++) {
        c->totals[i] = 0;
        for (int k = 0; k < n; k++)
            c->totals[i] += parts[k].counts[i];
        c->longest = hier_max(c->longest, c->totals[i]);
    }
    c->relay.piece = hier_piece(g, c->longest, most, size);
    c->block = most / c->relay.piece * c->relay.piece;
}

static err_t scatter_all(struct comm_group *group, struct call *c, const struct comm_part *parts, int n)
{
    err_t err = n ? OK : hier_barrier(group);
    c->relay.g = hier_group_of(group);
    c->relay.size = (int64_t)dtype_bytes(c->dtype);
    c->relay.next = next_piece;
    c->relay.sum = sum;
    c->relay.finish = finish;
    c->relay.give = give;
    for (int at = 0; !err && at < n; at += SHM_PARTS) {
        set_up(c, parts + at, (int)hier_min(n - at, SHM_PARTS));
        err = scatter(c);
    }
    return hier_result(group, err);
}

err_t hier_unit_scatter(struct comm_group *group, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    struct hier_group *g = hier_group_of(group);
    struct call c = {.local = local, .pieces = pieces, .dtype = dtype, .op = REDUCE_SUM, .add = add};
    if (g->one_node)
        return hier_result(group, shm_unit_scatter(g->inner, s, local, pieces, parts, n, dtype, add));
    return scatter_all(group, &c, parts, n);
}

err_t hier_reduce_scatter(struct comm_group *group, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    struct hier_group *g = hier_group_of(group);
    const struct comm_part part = {0, 0, counts};
    struct call c = {.local = src, .pieces = dst, .dtype = dtype, .op = op};
    if (g->one_node)
        return hier_result(group, shm_reduce_scatter(g->inner, s, src, dst, counts, dtype, op));
    return scatter_all(group, &c, &part, 1);
}
