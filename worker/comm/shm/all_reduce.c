/* All-reduce: every rank reduces its slice of all members' buffers and writes the result to all members, so each byte
 * moves between cores once in each direction. Shared buffers are read and written in place. If any buffer is private,
 * the collective runs block by block: a rank with a private buffer copies each block into its window, and reads the
 * slices that other ranks reduced from their windows. If no buffer is private, the whole buffer is one block.
 *
 *     reduce slice of block b | write block b+1 | barrier | read the others' slices of b | reduce ...
 *
 * A window has two halves for each direction. A rank writes a half again only after a barrier that every rank reached
 * after it had read the half. Small buffers are published as a whole and reduced by every rank, which saves a barrier.
 * All ranks add in rank order, element by element, so all get the same bits. */
#include "worker/comm/shm/nodes.h"

#include <assert.h>
#include <string.h>

#define SMALL_BYTES 4096
#define PIECE_BYTES                                                                                  \
    ((int64_t)32 << 10) /* a piece is still in the first-level cache when it is copied to the others \
                         */

struct shm_all_reduce_call {
    struct comm_group *g;
    uint8_t *x;
    int64_t n, size;
    enum dtype dtype;
    enum reduce_op op;
    bool shared;   /* whether this rank's buffer is */
    int n_private; /* number of members with a private buffer */
    int64_t block; /* elements */
};

/* A block: elements [at, at + m) of the buffer, in half `turn` of the windows. */
struct shm_all_reduce_block {
    int64_t at, m;
    int turn;
};

static struct shm_all_reduce_block block_at(const struct shm_all_reduce_call *c, int64_t at)
{
    int64_t left = c->n - at;
    return (struct shm_all_reduce_block){at, left < c->block ? left : c->block, (int)(at / c->block & 1)};
}

/* Two ranks and one block. With private buffers each rank then reduces the whole block: it reads the same number of
 * bytes as by slices, and needs one barrier less. */
static bool is_pair(const struct shm_all_reduce_call *c)
{
    return c->g->n == 2 && c->n <= c->block;
}

/* Copies the block into the window, except the rank's own slice, which no other rank reads. */
static void write_block(const struct shm_all_reduce_call *c, struct shm_all_reduce_block b)
{
    uint8_t *window = shm_window(c->g, c->g->me)->in[b.turn];
    const uint8_t *x = c->x + b.at * c->size;
    int64_t lo, hi;
    if (c->shared || b.m <= 0)
        return;
    shm_slice(c->g, b.m, c->g->me, &lo, &hi);
    if (is_pair(c)) /* the other rank may reduce the whole block */
        lo = hi = b.m;
    shm_pass(shm_of(c->g), window, x, (size_t)(lo * c->size));
    shm_pass(shm_of(c->g), window + hi * c->size, x + hi * c->size, (size_t)((b.m - hi) * c->size));
}

/* Address of member i's block. */
static const uint8_t *summand(const struct shm_all_reduce_call *c, struct shm_all_reduce_block b, int i)
{
    const uint8_t *peer = shm_peer_range(c->g, i, 0);
    if (i == c->g->me)
        return c->x + b.at * c->size;
    return peer ? peer + b.at * c->size : shm_window(c->g, i)->in[b.turn];
}

static void write_results(const struct shm_all_reduce_call *c, struct shm_all_reduce_block b, int64_t at,
                          const uint8_t *sum, int64_t m)
{
    size_t bytes = (size_t)(m * c->size);
    for (int step = 1; step < c->g->n; step++) {
        const int i = (c->g->me + step) % c->g->n;
        uint8_t *peer = shm_peer_range(c->g, i, 0);
        if (!peer)
            continue;
        memcpy(peer + (b.at + at) * c->size, sum, bytes);
        shm_count_border(c->g, i, m * c->size);
    }
    if (c->n_private > !c->shared)
        shm_pass(shm_of(c->g), shm_window(c->g, c->g->me)->out[b.turn] + at * c->size, sum, bytes);
}

static void reduce_slice(const struct shm_all_reduce_call *c, struct shm_all_reduce_block b)
{
    const int64_t piece = PIECE_BYTES / c->size;
    const uint8_t *base[SHM_MAX_WORLD];
    const void *src[SHM_MAX_WORLD];
    int64_t lo, hi;
    shm_slice(c->g, b.m, c->g->me, &lo, &hi);
    for (int i = 0; i < c->g->n; i++)
        base[i] = summand(c, b, i);
    for (int64_t at = lo; at < hi; at += piece) {
        int64_t m = hi - at < piece ? hi - at : piece;
        uint8_t *mine = c->x + (b.at + at) * c->size;
        for (int i = 0; i < c->g->n; i++) {
            src[i] = base[i] + at * c->size;
            shm_count_border(c->g, i, m * c->size);
        }
        shm_reduce(mine, src, c->g->n, m, c->dtype, c->op, false);
        write_results(c, b, at, mine, m);
    }
}

static void read_results(const struct shm_all_reduce_call *c, struct shm_all_reduce_block b)
{
    for (int step = 1; step < c->g->n && !c->shared; step++) {
        int i = (c->g->me + step) % c->g->n;
        int64_t lo, hi;
        shm_slice(c->g, b.m, i, &lo, &hi);
        memcpy(c->x + (b.at + lo) * c->size, shm_window(c->g, i)->out[b.turn] + lo * c->size,
               (size_t)((hi - lo) * c->size));
    }
}

static err_t reduce_pair(const struct shm_all_reduce_call *c)
{
    const void *src[2];
    for (int i = 0; i < 2; i++)
        src[i] = i == c->g->me ? c->x : shm_window(c->g, i)->in[0];
    shm_reduce(c->x, src, 2, c->n, c->dtype, c->op, false);
    return shm_barrier(c->g);
}

static err_t reduce_blocks(struct shm_all_reduce_call *c)
{
    c->shared = shm_publish_ranges(c->g, &(struct shm_range){c->x, (size_t)(c->n * c->size)}, 1);
    c->block = (int64_t)SHM_BLOCK / c->size;
    write_block(c, block_at(c, 0));
    err_t err = shm_barrier(c->g);
    for (int i = 0; !err && i < c->g->n; i++)
        c->n_private += !shm_peer_range(c->g, i, 0);
    if (!err && c->n_private == 2 && is_pair(c))
        return reduce_pair(c);
    if (!err && c->n_private == 0 && shm_nodes_pay(c->g, c->n / ((struct shm_group *)c->g)->per_node, c->dtype))
        return shm_nodes_all_reduce(c->g, c->x, c->n, c->dtype, c->op);
    if (c->n_private == 0)
        c->block = c->n;
    for (int64_t at = 0; !err && at < c->n; at += c->block) {
        const struct shm_all_reduce_block b = block_at(c, at);
        reduce_slice(c, b);
        write_block(c, block_at(c, at + c->block));
        err = shm_barrier(c->g);
        if (!err)
            read_results(c, b);
    }
    if (err || c->n_private == 0)
        return err;
    return shm_barrier(c->g); /* the next collective, of any group, may now write the windows */
}

static err_t reduce_small(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const void *src[SHM_MAX_WORLD];
    for (int i = 0; i < g->n; i++)
        src[i] = i == g->me ? x : shm_window(g, i)->in[0];
    shm_pass(shm_of(g), shm_window(g, g->me)->in[0], x, (size_t)n * dtype_bytes(dtype));
    err_t err = shm_barrier(g);
    if (err)
        return err;
    shm_reduce(x, src, g->n, n, dtype, op, false);
    return shm_barrier(g);
}

err_t shm_all_reduce(struct comm_group *g, struct kern_stream *stream, void *x, int64_t n, enum dtype dtype,
                     enum reduce_op op)
{
    struct shm_all_reduce_call c = {
        .g = g, .x = x, .n = n, .size = (int64_t)dtype_bytes(dtype), .dtype = dtype, .op = op};
    (void)stream;
    assert(c.size > 0);
    if (g->n == 1 || n == 0)
        return shm_barrier(g);
    return n * c.size <= SMALL_BYTES ? reduce_small(g, x, n, dtype, op) : reduce_blocks(&c);
}

err_t shm_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    return shm_all_reduce(g, NULL, x, 1, DT_I64, op);
}
