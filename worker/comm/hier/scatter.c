/* Reduce-scatter of one tensor or of all tensors of a unit. A member's parts, one after another, form its stream. A
 * piece of a stream is summed on its way through the nodes (relay.c), on the owner's node by the owner itself, and is
 * sent to the owner from the node on which the sum ends.
 *
 * A member with private tensors copies a block of every other member's stream into its stage, round by round, where the
 * ranks of its node read it. Nodes may have different rounds, because all nodes use the same pieces. */
#include "worker/comm/hier/internal.h"

#include <assert.h>
#include <string.h>

struct hier_scatter_call {
    struct hier_relay relay;
    const uint8_t *local;
    uint8_t *pieces;
    const struct comm_part *parts;
    int n;
    enum dtype dtype;
    enum reduce_op op;
    bool add, shared;
    int64_t *totals;
    int64_t longest, block;   /* elements of the longest stream; elements of each stream in a stage */
    int64_t begin, end;       /* this round's elements of the streams */
    int64_t next, next_owner; /* number of the next piece; its owner */
};

static const struct hier_scatter_call *call_of(const struct hier_relay *r)
{
    return (const struct hier_scatter_call *)r;
}

static int64_t before(const struct comm_part *p, int member)
{
    int64_t at = 0;
    for (int i = 0; i < member; i++)
        at += p->counts[i];
    return at;
}

/* ---- elements of a stream ---- */

/* The intersection [*lo, *hi) of elements [begin, end) of the owner's stream with part k, which begins at element `at`
 * of the stream. Returns false if it is empty. */
static bool fragment(const struct hier_scatter_call *c, int owner, int k, int64_t at, int64_t begin, int64_t end,
                     int64_t *lo, int64_t *hi)
{
    *lo = hier_max(at, begin);
    *hi = hier_min(at + c->parts[k].counts[owner], end);
    return *lo < *hi;
}

/* Copies this round's elements of the owner's stream to `to`, in this rank's stage. */
static void stage_stream(const struct hier_scatter_call *c, int owner, uint8_t *to)
{
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < c->end; at += c->parts[k].counts[owner], k++) {
        const uint8_t *part = c->local + (c->parts[k].local + before(&c->parts[k], owner)) * c->relay.size;
        if (fragment(c, owner, k, at, c->begin, c->end, &lo, &hi))
            memcpy(to + (lo - c->begin) * c->relay.size, part + (lo - at) * c->relay.size,
                   (size_t)((hi - lo) * c->relay.size));
    }
}

static void stage_all(const struct hier_scatter_call *c)
{
    const struct hier_group *g = c->relay.g;
    uint8_t *stage = hier_stage(g, g->inner->me);
    for (int i = 0; i < g->base.n && !c->shared; i++)
        if (i != g->base.me)
            stage_stream(c, i, stage + i * c->block * c->relay.size);
}

/* Address of the summands of `member`, on this node, for the owner's part k, from element `skip` of the part on, which
 * is element `at` of the stream. */
static const uint8_t *summand(const struct hier_scatter_call *c, int member, int owner, int k, int64_t skip, int64_t at)
{
    const struct hier_group *g = c->relay.g;
    const int64_t size = c->relay.size, from = before(&c->parts[k], owner) + skip;
    if (member == g->base.me)
        return c->local + (c->parts[k].local + from) * size;
    const uint8_t *range = shm_peer_range(g->inner, g->local_at[member], k);
    if (range)
        return range + from * size;
    return hier_stage(g, g->local_at[member]) + (owner * c->block + at - c->begin) * size;
}

/* ---- pieces ---- */

static bool is_mine(const struct hier_group *g, int owner)
{
    return g->local_at[owner] % g->inner->n == g->inner->me;
}

/* Returns the pieces that this rank handles: piece by piece, and within a piece in the order of the owners. */
static bool next_piece(struct hier_relay *r, struct hier_item *ret)
{
    struct hier_scatter_call *c = (struct hier_scatter_call *)r;
    const struct hier_group *g = r->g;
    for (; c->next * r->piece < c->end; c->next++, c->next_owner = 0)
        while (c->next_owner < g->base.n) {
            const int owner = (int)c->next_owner++;
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
    const struct hier_scatter_call *c = call_of(r);
    const void **src = r->g->src;
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < item->at + item->m; at += c->parts[k].counts[item->owner], k++) {
        int n = 0;
        if (!fragment(c, item->owner, k, at, item->at, item->at + item->m, &lo, &hi))
            continue;
        for (int i = run->first; i < run->first + run->n; i++)
            src[n++] = summand(c, i, item->owner, k, lo - at, lo);
        shm_reduce_onto(acc + (lo - item->at) * r->sum_size, first, src, n, hi - lo, c->dtype,
                        c->op == REDUCE_AVG ? REDUCE_SUM : c->op);
    }
}

static void finish(const struct hier_relay *r, const struct hier_item *item, uint8_t *acc)
{
    shm_finish(acc, item->m, call_of(r)->dtype, call_of(r)->op == REDUCE_AVG ? r->g->base.n : 1);
}

/* Called by the owner: writes the result to its pieces. */
static void deliver(const struct hier_relay *r, const struct hier_item *item, const uint8_t *result)
{
    const struct hier_scatter_call *c = call_of(r);
    int64_t at = 0, lo, hi;
    for (int k = 0; k < c->n && at < item->at + item->m; at += c->parts[k].counts[item->owner], k++) {
        if (!fragment(c, item->owner, k, at, item->at, item->at + item->m, &lo, &hi))
            continue;
        const void *from = result + (lo - item->at) * r->size;
        shm_reduce(c->pieces + (c->parts[k].piece + lo - at) * r->size, &from, 1, hi - lo, c->dtype, REDUCE_SUM,
                   c->add);
    }
}

/* ---- rounds ---- */

static void publish(struct hier_scatter_call *c)
{
    struct shm_range ranges[SHM_PARTS];
    for (int k = 0; k < c->n; k++)
        ranges[k] = (struct shm_range){c->local + c->parts[k].local * c->relay.size,
                                       (size_t)(before(&c->parts[k], c->relay.g->base.n) * c->relay.size)};
    c->shared = shm_publish_ranges(c->relay.g->inner, ranges, c->n);
}

static err_t scatter_parts(struct hier_scatter_call *c)
{
    struct comm_group *inner = c->relay.g->inner;
    publish(c);
    c->end = hier_min(c->block, c->longest);
    stage_all(c);
    err_t err = shm_barrier(inner);
    if (err)
        return err;
    const int64_t round = shm_all_shared(inner) ? c->longest : c->block;
    while (!err && c->begin < c->longest) {
        c->end = hier_min(c->begin + round, c->longest);
        c->next_owner = 0;
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

static void set_up(struct hier_scatter_call *c, const struct comm_part *parts, int n)
{
    const struct hier_group *g = c->relay.g;
    assert(c->relay.size > 0);
    const int64_t size = c->relay.size, most = HIER_STAGE / size / g->base.n;
    c->parts = parts;
    c->n = n;
    c->begin = c->next = c->next_owner = c->longest = 0;
    c->totals = hier_of(&g->base)->numbers;
    for (int i = 0; i < g->base.n; i++) {
        c->totals[i] = 0;
        for (int k = 0; k < n; k++)
            c->totals[i] += parts[k].counts[i];
        c->longest = hier_max(c->longest, c->totals[i]);
    }
    c->relay.piece = hier_piece(g, c->longest, most, c->relay.sum_size);
    c->block = most / c->relay.piece * c->relay.piece;
}

static err_t scatter_all(struct comm_group *group, struct hier_scatter_call *c, const struct comm_part *parts, int n)
{
    err_t err = n ? OK : hier_barrier(group);
    c->relay.g = hier_group_of(group);
    c->relay.size = (int64_t)dtype_bytes(c->dtype);
    c->relay.sum_size = (int64_t)dtype_bytes(shm_partial_type(c->dtype));
    c->relay.next = next_piece;
    c->relay.sum = sum;
    c->relay.finish = finish;
    c->relay.deliver = deliver;
    for (int at = 0; !err && at < n; at += SHM_PARTS) {
        set_up(c, parts + at, (int)hier_min(n - at, SHM_PARTS));
        err = scatter_parts(c);
    }
    return hier_result(group, err);
}

err_t hier_unit_scatter(struct comm_group *group, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    struct hier_group *g = hier_group_of(group);
    struct hier_scatter_call c = {.local = local, .pieces = pieces, .dtype = dtype, .op = REDUCE_SUM, .add = add};
    if (g->one_node)
        return hier_result(group, shm_unit_scatter(g->inner, s, local, pieces, parts, n, dtype, add));
    return scatter_all(group, &c, parts, n);
}

err_t hier_reduce_scatter(struct comm_group *group, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    struct hier_group *g = hier_group_of(group);
    const struct comm_part part = {0, 0, counts};
    struct hier_scatter_call c = {.local = src, .pieces = dst, .dtype = dtype, .op = op};
    if (g->one_node)
        return hier_result(group, shm_reduce_scatter(g->inner, s, src, dst, counts, dtype, op));
    return scatter_all(group, &c, &part, 1);
}
