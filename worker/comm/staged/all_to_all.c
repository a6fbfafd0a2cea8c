/* All-to-all: the lower side of a half holds the outgoing data, a cell for each member, and the upper side the incoming
 * data. A rank does not have the counts of other ranks, so the ranks first agree on the number of rounds. */
#include "worker/comm/staged/internal.h"

#include <assert.h>

#define MAX_MEMBERS 256
#define SIDE (STAGED_HALF / 2)

/* Copies round `i` between the packed parts on the device and the cells, which lie one after another. */
static err_t copy_cells(const struct staged_call *c, const int64_t *counts, int64_t i, const uint8_t *packed,
                        uint8_t *cells, bool to_device)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->group->n; k++) {
        size_t bytes = (size_t)(staged_part(c, counts[k], i) * c->size);
        uint8_t *part = (uint8_t *)packed + i * c->cell * c->size;
        if (bytes > 0)
            err = to_device ? dev_copy(c->stream, part, cells, bytes) : dev_copy(c->stream, cells, part, bytes);
        packed += counts[k] * c->size;
        cells += bytes;
    }
    return err;
}

static err_t fetch_out(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_cells(c, c->counts, i, c->src, half, false);
}

static err_t put_in(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return copy_cells(c, c->recv_counts, i, c->dst, half + SIDE, true);
}

static err_t exchange(const struct staged_call *c, int64_t i, uint8_t *half)
{
    int64_t out[MAX_MEMBERS], in[MAX_MEMBERS];
    for (int k = 0; k < c->group->n; k++) {
        out[k] = staged_part(c, c->counts[k], i);
        in[k] = staged_part(c, c->recv_counts[k], i);
    }
    err_t err = comm_all_to_all(c->inner, NULL, half, out, half + SIDE, in, c->dtype);
    if (err == ERR_INVALID)
        why_set(c->comm->base.why.text[0] ? NULL : &c->comm->base.why, err, "%s", comm_why(c->comm->inner));
    return err;
}

err_t staged_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                        void *dst, const int64_t *recv_counts, enum dtype dtype)
{
    static const struct staged_steps steps = {fetch_out, exchange, put_in};
    struct staged_call c = staged_call_of(g, s, dtype);
    c.src = src;
    c.dst = dst;
    c.counts = send_counts;
    c.recv_counts = recv_counts;
    c.cell = SIDE / g->n / c.size;
    assert(g->n <= MAX_MEMBERS);
    if (g->n == 1)
        return send_counts[0] ? dev_copy(s, dst, src, (size_t)(send_counts[0] * c.size)) : OK;
    int64_t rounds = staged_rounds(&c);
    err_t err = comm_agree(c.inner, &rounds, REDUCE_MAX);
    return err ? err : staged_run(&c, &steps, rounds);
}
