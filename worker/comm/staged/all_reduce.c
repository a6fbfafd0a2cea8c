/* All-reduce and broadcast: one buffer, in rounds of the size of a half. */
#include "worker/comm/staged/internal.h"

static uint8_t *place(const struct staged_call *c, int64_t i)
{
    return c->dst + i * c->cell * c->size;
}

static size_t bytes_of(const struct staged_call *c, int64_t i)
{
    return (size_t)(staged_part(c, c->n, i) * c->size);
}

static err_t fetch_all(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return dev_copy(c->stream, half, place(c, i), bytes_of(c, i));
}

static err_t put_all(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return dev_copy(c->stream, place(c, i), half, bytes_of(c, i));
}

static err_t reduce(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return comm_all_reduce(c->inner, NULL, half, staged_part(c, c->n, i), c->dtype, c->op);
}

err_t staged_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                        enum reduce_op op)
{
    static const struct staged_steps steps = {fetch_all, reduce, put_all};
    struct staged_call c = staged_call_of(g, s, dtype);
    c.dst = x;
    c.n = n;
    c.cell = STAGED_HALF / c.size;
    c.op = op;
    if (g->n == 1)
        return OK; /* for one member every operation, also the mean, returns its input */
    return staged_run(&c, &steps, staged_rounds(&c));
}

static err_t fetch_root(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return c->group->me == c->root ? fetch_all(c, i, half) : OK;
}

static err_t put_others(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return c->group->me == c->root ? OK : put_all(c, i, half);
}

static err_t broadcast(const struct staged_call *c, int64_t i, uint8_t *half)
{
    return comm_broadcast(c->inner, NULL, half, staged_part(c, c->n, i), c->root);
}

err_t staged_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root)
{
    static const struct staged_steps steps = {fetch_root, broadcast, put_others};
    struct staged_call c = staged_call_of(g, s, DT_U8);
    c.dst = x;
    c.n = bytes;
    c.cell = STAGED_HALF;
    c.root = root;
    if (g->n == 1)
        return OK;
    return staged_run(&c, &steps, staged_rounds(&c));
}
