/* All-gather and reduce-scatter: a half holds one cell, and behind it a cell of every member. In a round each member's
 * part moves on by a cell; parts differ in length, so that some members have nothing left in the last rounds. */
#include "worker/comm/staged/staged.h"

#include <assert.h>

#define MAX_MEMBERS 256
#define CELL_ALIGN 64

/* A cell is as large as lets `members` + 1 of them fit. */
static struct staged_call call_of(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                                  const int64_t *counts, enum dtype dtype)
{
    struct staged_call c = staged_call_of(g, s, dtype);
    assert(g->n <= MAX_MEMBERS);
    c.src = src;
    c.dst = dst;
    c.counts = counts;
    c.cell = STAGED_HALF / (g->n + 1) / CELL_ALIGN * CELL_ALIGN / c.size;
    return c;
}

static int64_t cell_bytes(const struct staged_call *c)
{
    return (c->cell * c->size + CELL_ALIGN - 1) / CELL_ALIGN * CELL_ALIGN;
}

static void round_counts(const struct staged_call *c, int64_t i, int64_t *ret)
{
    for (int k = 0; k < c->group->n; k++)
        ret[k] = staged_part(c, c->counts[k], i);
}

/* Copies round `i` between every member's part of `packed` on the device and the cells, one behind another. */
static err_t copy_parts(const struct staged_call *c, int64_t i, const uint8_t *packed, uint8_t *cells, bool to_device)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->group->n; k++) {
        size_t bytes = (size_t)(staged_part(c, c->counts[k], i) * c->size);
        uint8_t *part = (uint8_t *)packed + i * c->cell * c->size;
        if (bytes > 0)
            err = to_device ? dev_copy(c->stream, part, cells, bytes) : dev_copy(c->stream, cells, part, bytes);
        packed += c->counts[k] * c->size;
        cells += bytes;
    }
    return err;
}

static size_t mine(const struct staged_call *c, int64_t i)
{
    return (size_t)(staged_part(c, c->counts[c->group->me], i) * c->size);
}

static err_t fetch_mine(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return dev_copy(c->stream, half, c->src + (mine(c, i) ? i * c->cell * c->size : 0), mine(c, i));
}

static err_t gather(const struct staged_call *c, int64_t i, uint8_t *half)
{
    int64_t counts[MAX_MEMBERS];
    round_counts(c, i, counts);
    return comm_all_gather(c->inner, NULL, half, half + cell_bytes(c), counts, c->dtype);
}

static err_t put_parts(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_parts(c, i, c->dst, half + cell_bytes(c), true);
}

err_t staged_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                        enum dtype dtype)
{
    static const struct staged_steps steps = {fetch_mine, gather, put_parts};
    const struct staged_call c = call_of(g, s, src, dst, counts, dtype);
    if (g->n == 1)
        return src == dst ? OK : dev_copy(s, dst, src, (size_t)(counts[0] * c.size));
    return staged_run(&c, &steps, staged_rounds(&c));
}

static err_t fetch_parts(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_parts(c, i, c->src, half + cell_bytes(c), false);
}

static err_t scatter(const struct staged_call *c, int64_t i, uint8_t *half)
{
    int64_t counts[MAX_MEMBERS];
    round_counts(c, i, counts);
    return comm_reduce_scatter(c->inner, NULL, half + cell_bytes(c), half, counts, c->dtype, c->op);
}

static err_t put_mine(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return dev_copy(c->stream, c->dst + (mine(c, i) ? i * c->cell * c->size : 0), half, mine(c, i));
}

err_t staged_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                            const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    static const struct staged_steps steps = {fetch_parts, scatter, put_mine};
    struct staged_call c = call_of(g, s, src, dst, counts, dtype);
    c.op = op;
    if (g->n == 1)
        return src == dst ? OK : dev_copy(s, dst, src, (size_t)(counts[0] * c.size));
    return staged_run(&c, &steps, staged_rounds(&c));
}
