/* All-gather and reduce-scatter of one tensor or of all tensors of a unit: a half holds one cell for this rank's data,
 * and after it a cell for every member. A member's parts, one after another, form its stream. Each round processes one
 * cell of each stream. Streams differ in length, so some members may have no data in the last rounds. */
#include "worker/comm/staged/internal.h"

#include <assert.h>

#define MAX_MEMBERS 256
#define CELL_ALIGN 64

/* The streams in device memory: this rank's stream lies in `pieces`, the streams of all members in `local`. */
struct staged_unit {
    const uint8_t *pieces, *local;
    const struct comm_part *parts;
    int n;
    int64_t totals[MAX_MEMBERS]; /* elements of each stream */
};

static void make_unit(const struct comm_group *g, struct staged_unit *u, const void *pieces, const void *local,
                      const struct comm_part *parts, int n)
{
    *u = (struct staged_unit){.pieces = pieces, .local = local, .parts = parts, .n = n};
    assert(g->n <= MAX_MEMBERS);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < g->n; i++)
            u->totals[i] += parts[k].counts[i];
}

/* The cells have the largest size at which (number of members + 1) of them fit into a half. */
static struct staged_call call_of(struct comm_group *g, struct kern_stream *s, const struct staged_unit *u,
                                  enum dtype dtype)
{
    struct staged_call c = staged_call_of(g, s, dtype);
    c.unit = u;
    c.counts = u->totals;
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

static int64_t before(const struct comm_part *p, int member)
{
    int64_t at = 0;
    for (int i = 0; i < member; i++)
        at += p->counts[i];
    return at;
}

enum side { PIECES, LOCAL };
enum direction { TO_HOST, TO_DEVICE };

static uint8_t *on_device(const struct staged_call *c, enum side side, int k, int member)
{
    const struct comm_part *p = &c->unit->parts[k];
    if (side == PIECES)
        return (uint8_t *)c->unit->pieces + p->piece * c->size;
    return (uint8_t *)c->unit->local + (p->local + before(p, member)) * c->size;
}

/* Copies round `i` of the member's stream between the device and its cell. */
static err_t copy_stream(const struct staged_call *c, int64_t i, enum side side, int member, uint8_t *cell,
                         enum direction direction)
{
    const int64_t begin = i * c->cell, end = begin + c->cell;
    int64_t at = 0; /* offset of the part in the stream */
    err_t err = OK;
    for (int k = 0; !err && k < c->unit->n && at < end; k++) {
        int64_t count = c->unit->parts[k].counts[member];
        int64_t lo = at > begin ? at : begin, hi = at + count < end ? at + count : end;
        if (lo < hi) {
            uint8_t *device = on_device(c, side, k, member) + (lo - at) * c->size,
                    *host = cell + (lo - begin) * c->size;
            size_t bytes = (size_t)((hi - lo) * c->size);
            err = direction == TO_HOST ? dev_copy(c->stream, host, device, bytes)
                                       : dev_copy(c->stream, device, host, bytes);
        }
        at += count;
    }
    return err;
}

/* The same for all members; their cells lie one after another. */
static err_t copy_streams(const struct staged_call *c, int64_t i, uint8_t *cells, enum direction direction)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->group->n; k++) {
        err = copy_stream(c, i, LOCAL, k, cells, direction);
        cells += staged_part(c, c->counts[k], i) * c->size;
    }
    return err;
}

/* ---- gather ---- */

static err_t fetch_mine(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_stream(c, i, PIECES, c->group->me, half, TO_HOST);
}

static err_t gather(const struct staged_call *c, int64_t i, uint8_t *half)
{
    int64_t counts[MAX_MEMBERS];
    round_counts(c, i, counts);
    return comm_all_gather(c->inner, NULL, half, half + cell_bytes(c), counts, c->dtype);
}

static err_t put_parts(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_streams(c, i, half + cell_bytes(c), TO_DEVICE);
}

/* Copies between the pieces and the local tensor in a group of one. */
static err_t copy_alone(const struct staged_call *c, enum side from)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->unit->n; k++) {
        uint8_t *a = on_device(c, from, k, 0), *b = on_device(c, from == PIECES ? LOCAL : PIECES, k, 0);
        int64_t bytes = c->unit->parts[k].counts[0] * c->size;
        err = a == b || bytes == 0 ? OK : dev_copy(c->stream, b, a, (size_t)bytes);
    }
    return err;
}

err_t staged_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                         const struct comm_part *parts, int n, enum dtype dtype)
{
    static const struct staged_steps steps = {fetch_mine, gather, put_parts};
    struct staged_unit u;
    make_unit(g, &u, pieces, local, parts, n);
    const struct staged_call c = call_of(g, s, &u, dtype);
    return g->n == 1 ? copy_alone(&c, PIECES) : staged_run(&c, &steps, staged_rounds(&c));
}

err_t staged_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                        enum dtype dtype)
{
    return staged_unit_gather(g, s, src, dst, &(const struct comm_part){0, 0, counts}, 1, dtype);
}

/* ---- scatter ---- */

static err_t fetch_parts(const struct staged_call *c, int64_t i, uint8_t *half)
{
    err_t err = c->add ? copy_stream(c, i, PIECES, c->group->me, half, TO_HOST) : OK;
    return err ? err : copy_streams(c, i, half + cell_bytes(c), TO_HOST);
}

static err_t scatter(const struct staged_call *c, int64_t i, uint8_t *half)
{
    int64_t counts[MAX_MEMBERS];
    const struct comm_part part = {0, 0, counts};
    round_counts(c, i, counts);
    if (c->add)
        return comm_unit_scatter(c->inner, NULL, half + cell_bytes(c), half, &part, 1, c->dtype, true);
    return comm_reduce_scatter(c->inner, NULL, half + cell_bytes(c), half, counts, c->dtype, c->op);
}

static err_t put_mine(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_stream(c, i, PIECES, c->group->me, half, TO_DEVICE);
}

static err_t scatter_unit(const struct staged_call *c)
{
    static const struct staged_steps steps = {fetch_parts, scatter, put_mine};
    if (c->group->n == 1 && !c->add)
        return copy_alone(c, LOCAL);
    return staged_run(c, &steps, staged_rounds(c));
}

err_t staged_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                          const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    struct staged_unit u;
    make_unit(g, &u, pieces, local, parts, n);
    struct staged_call c = call_of(g, s, &u, dtype);
    c.op = REDUCE_SUM;
    c.add = add;
    return scatter_unit(&c);
}

err_t staged_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                            const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    const struct comm_part part = {0, 0, counts};
    struct staged_unit u;
    make_unit(g, &u, dst, src, &part, 1);
    struct staged_call c = call_of(g, s, &u, dtype);
    c.op = op;
    return scatter_unit(&c);
}
