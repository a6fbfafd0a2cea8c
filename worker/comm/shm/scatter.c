/* Reduce-scatter of one tensor or of all tensors of a unit: each rank reduces its own parts, and reads them directly
 * from members' buffers that lie in the segment.
 *
 * A member with a private buffer provides its data in rounds. In a round its window holds one cell for each member,
 * with the next elements of that member's stream (that member's parts, one after another). Every rank then reduces one
 * cell's worth of its own stream, from shared and private buffers alike. If no buffer is private there is a single
 * round over everything. The destination may be the rank's own part of the source, because no other rank reads it. */
#include "worker/comm/shm/scatter.h"

#include "worker/comm/shm/nodes.h"

#include <assert.h>
#include <string.h>

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void publish(struct shm_scatter_call *c)
{
    struct shm_range ranges[SHM_PARTS];
    for (int k = 0; k < c->n; k++)
        ranges[k] = (struct shm_range){c->local + c->parts[k].local * c->size,
                                       (size_t)(shm_scatter_before(c, k, c->g->n) * c->size)};
    c->shared = shm_publish_ranges(c->g, ranges, c->n);
}

/* Copies elements [begin, begin + c->cell) of member j's stream into the cell of that member. */
static void write_cell(const struct shm_scatter_call *c, int j, int64_t begin, uint8_t *cell)
{
    int64_t at = 0; /* offset of the part in the stream */
    for (int k = 0; k < c->n && at < begin + c->cell; k++) {
        int64_t count = c->parts[k].counts[j], lo = max_of(at, begin), hi = min_of(at + count, begin + c->cell);
        const uint8_t *part = c->local + (c->parts[k].local + shm_scatter_before(c, k, j)) * c->size;
        if (lo < hi)
            shm_pass(shm_of(c->g), cell + (lo - begin) * c->size, part + (lo - at) * c->size,
                     (size_t)((hi - lo) * c->size));
        at += count;
    }
}

static void write_cells(const struct shm_scatter_call *c, int64_t round)
{
    uint8_t *window = shm_window(c->g, c->g->me)->in[round & 1];
    for (int j = 0; j < c->g->n && !c->shared; j++)
        if (j != c->g->me)
            write_cell(c, j, round * c->cell, window + j * c->cell * c->size);
}

/* Address of member i's summands for this rank's part k, from element `skip` on; `done` elements of the round's cell
 * lie before them. */
static const uint8_t *summand(const struct shm_scatter_call *c, int i, int k, int64_t skip, int64_t round, int64_t done)
{
    const struct comm_group *g = c->g;
    int64_t from = shm_scatter_before(c, k, g->me) + skip;
    if (i == g->me)
        return c->local + (c->parts[k].local + from) * c->size;
    const uint8_t *peer = shm_peer_range(g, i, k);
    if (peer)
        return peer + from * c->size;
    return shm_window(g, i)->in[round & 1] + (g->me * c->cell + done) * c->size;
}

/* Reduces elements [begin, end) of this rank's stream. */
static void reduce_range(const struct shm_scatter_call *c, int64_t begin, int64_t end, int64_t round)
{
    const void *src[SHM_MAX_WORLD];
    int64_t at = 0;
    for (int k = 0; k < c->n && at < end; k++) {
        int64_t count = c->parts[k].counts[c->g->me], lo = max_of(at, begin), hi = min_of(at + count, end);
        for (int i = 0; i < c->g->n && lo < hi; i++) {
            src[i] = summand(c, i, k, lo - at, round, lo - begin);
            shm_count_border(c->g, i, (hi - lo) * c->size);
        }
        if (lo < hi)
            shm_reduce(c->pieces + (c->parts[k].piece + lo - at) * c->size, src, c->g->n, hi - lo, c->dtype, c->op,
                       c->add);
        at += count;
    }
}

int64_t shm_scatter_longest(const struct shm_scatter_call *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->g->n; i++) {
        int64_t count = 0;
        for (int k = 0; k < c->n; k++)
            count += c->parts[k].counts[i];
        most = max_of(most, count);
    }
    return most;
}

static err_t scatter_parts(struct shm_scatter_call *c)
{
    publish(c);
    write_cells(c, 0);
    err_t err = shm_barrier(c->g);
    if (err)
        return err;
    const int64_t longest = shm_scatter_longest(c);
    const bool all_shared = shm_all_shared(c->g);
    if (all_shared && shm_nodes_pay(c->g, longest * ((struct shm_group *)c->g)->n_nodes, c->dtype))
        return shm_scatter_nodes(c);
    if (all_shared) {
        reduce_range(c, 0, longest, 0);
        return shm_barrier(c->g);
    }
    reduce_range(c, 0, c->cell, 0);
    for (int64_t round = 1; !err && round * c->cell < longest; round++) {
        write_cells(c, round);
        err = shm_barrier(c->g);
        if (!err)
            reduce_range(c, round * c->cell, (round + 1) * c->cell, round);
    }
    return err ? err : shm_barrier(c->g);
}

static err_t scatter_all(struct shm_scatter_call c, int n)
{
    const struct comm_part *parts = c.parts;
    err_t err = n ? OK : shm_barrier(c.g);
    c.size = (int64_t)dtype_bytes(c.dtype);
    assert(c.size > 0);
    c.cell = (int64_t)SHM_BLOCK / c.size / c.g->n;
    for (int at = 0; !err && at < n; at += SHM_PARTS) {
        c.parts = parts + at;
        c.n = (int)min_of(n - at, SHM_PARTS);
        err = scatter_parts(&c);
    }
    return err;
}

err_t shm_unit_scatter(struct comm_group *g, struct kern_stream *stream, const void *local, void *pieces,
                       const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    (void)stream;
    return scatter_all(
        (struct shm_scatter_call){
            .g = g, .local = local, .pieces = pieces, .parts = parts, .dtype = dtype, .op = REDUCE_SUM, .add = add},
        n);
}

err_t shm_reduce_scatter(struct comm_group *g, struct kern_stream *stream, const void *src, void *dst,
                         const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    const struct comm_part part = {0, 0, counts};
    (void)stream;
    return scatter_all(
        (struct shm_scatter_call){.g = g, .local = src, .pieces = dst, .parts = &part, .dtype = dtype, .op = op}, 1);
}
