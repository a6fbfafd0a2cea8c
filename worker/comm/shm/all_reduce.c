/* All-reduce: every rank reduces its slice of everybody's buffer and gives it to everybody, so that each byte crosses
 * between cores once in and once out. Members whose buffers are shared are read and written where these lie. For the
 * others all go block by block: who has a private buffer puts the block into its window, and takes the others' slices
 * of the result out of theirs. Where no buffer is private the whole is one block.
 *
 *     reduce slice of block b | put block b+1 in | barrier | take the others' slices of b | reduce ...
 *
 * A window has two halves for each direction: a half is written again behind a barrier that everybody reached after
 * reading it. What is tiny is published by everybody and reduced by everybody as a whole, which saves a barrier. All
 * add in the order of the ranks, element by element, so that all give the same bits. */
#include "worker/comm/shm/shm.h"

#include <assert.h>
#include <string.h>

#define TINY_BYTES 4096
#define PIECE_BYTES ((int64_t)32 << 10) /* the piece is still in the first cache when it is copied to the others */

struct call {
    struct comm_group *g;
    uint8_t *x;
    int64_t n, size;
    enum dtype dtype;
    enum reduce_op op;
    bool shared;   /* the own buffer is */
    int n_private; /* of all members */
    int64_t block; /* elements */
};

/* A block under way: elements [at, at + m) of the whole, in the windows' half `turn`. */
struct block {
    int64_t at, m;
    int turn;
};

static struct block block_at(const struct call *c, int64_t at)
{
    int64_t left = c->n - at;
    return (struct block){at, left < c->block ? left : c->block, (int)(at / c->block & 1)};
}

/* All but the own slice, which nobody else reads. */
static void put_in(const struct call *c, struct block b)
{
    uint8_t *window = shm_window(c->g, c->g->me)->in[b.turn];
    const uint8_t *x = c->x + b.at * c->size;
    int64_t lo, hi;
    if (c->shared || b.m <= 0)
        return;
    shm_slice(c->g, b.m, c->g->me, &lo, &hi);
    memcpy(window, x, (size_t)(lo * c->size));
    memcpy(window + hi * c->size, x + hi * c->size, (size_t)((b.m - hi) * c->size));
}

/* Where member i's block begins. */
static const uint8_t *summand(const struct call *c, struct block b, int i)
{
    const uint8_t *said = shm_said(c->g, i, 0);
    if (i == c->g->me)
        return c->x + b.at * c->size;
    return said ? said + b.at * c->size : shm_window(c->g, i)->in[b.turn];
}

static void give(const struct call *c, struct block b, int64_t at, const uint8_t *sum, int64_t m)
{
    size_t bytes = (size_t)(m * c->size);
    for (int step = 1; step < c->g->n; step++) {
        uint8_t *said = shm_said(c->g, (c->g->me + step) % c->g->n, 0);
        if (said)
            memcpy(said + (b.at + at) * c->size, sum, bytes);
    }
    if (c->n_private > !c->shared)
        memcpy(shm_window(c->g, c->g->me)->out[b.turn] + at * c->size, sum, bytes);
}

static void reduce_slice(const struct call *c, struct block b)
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
        for (int i = 0; i < c->g->n; i++)
            src[i] = base[i] + at * c->size;
        shm_reduce(mine, src, c->g->n, m, c->dtype, c->op, false);
        give(c, b, at, mine, m);
    }
}

static void take_out(const struct call *c, struct block b)
{
    for (int step = 1; step < c->g->n && !c->shared; step++) {
        int i = (c->g->me + step) % c->g->n;
        int64_t lo, hi;
        shm_slice(c->g, b.m, i, &lo, &hi);
        memcpy(c->x + (b.at + lo) * c->size, shm_window(c->g, i)->out[b.turn] + lo * c->size,
               (size_t)((hi - lo) * c->size));
    }
}

static err_t reduce_blocks(struct call *c)
{
    c->shared = shm_say(c->g, &(struct shm_range){c->x, (size_t)(c->n * c->size)}, 1);
    c->block = (int64_t)SHM_BLOCK / c->size;
    put_in(c, block_at(c, 0));
    err_t err = shm_barrier(c->g);
    for (int i = 0; !err && i < c->g->n; i++)
        c->n_private += !shm_said(c->g, i, 0);
    if (c->n_private == 0)
        c->block = c->n;
    for (int64_t at = 0; !err && at < c->n; at += c->block) {
        const struct block b = block_at(c, at);
        reduce_slice(c, b);
        put_in(c, block_at(c, at + c->block));
        err = shm_barrier(c->g);
        if (!err)
            take_out(c, b);
    }
    if (err || c->n_private == 0)
        return err;
    return shm_barrier(c->g); /* the windows are free for the next collective, of whichever group */
}

static err_t reduce_tiny(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op)
{
    const void *src[SHM_MAX_WORLD];
    for (int i = 0; i < g->n; i++)
        src[i] = shm_window(g, i)->in[0];
    memcpy(shm_window(g, g->me)->in[0], x, (size_t)n * dtype_bytes(dtype));
    err_t err = shm_barrier(g);
    if (err)
        return err;
    shm_reduce(x, src, g->n, n, dtype, op, false);
    return shm_barrier(g);
}

err_t shm_all_reduce(struct comm_group *g, struct kern_stream *stream, void *x, int64_t n, enum dtype dtype,
                     enum reduce_op op)
{
    struct call c = {.g = g, .x = x, .n = n, .size = (int64_t)dtype_bytes(dtype), .dtype = dtype, .op = op};
    (void)stream;
    assert(c.size > 0);
    if (g->n == 1 || n == 0)
        return shm_barrier(g);
    return n * c.size <= TINY_BYTES ? reduce_tiny(g, x, n, dtype, op) : reduce_blocks(&c);
}

err_t shm_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    return shm_all_reduce(g, NULL, x, 1, DT_I64, op);
}
