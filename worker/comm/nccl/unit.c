/* Gathers and scatters, of one tensor or of all of a unit: all parts in one NCCL group, which becomes one launch. A
 * part of which all members have as much takes NCCL's own call; an uneven one is a call for each member: a gather is a
 * broadcast from each, a scatter a reduction to each. What has no elements is no call: all ranks know the counts.
 *
 * NCCL writes sums, it does not add them to what is there. A scatter that adds goes to scratch memory, and a kernel
 * adds that to the pieces on the same stream. The scratch grows to what the largest unit needs and stays. */
#include "worker/comm/nccl/internal.h"

#include "kernels/kernels.h"

#define SCRATCH_WHAT "sums of gradients on their way to the pieces"
#define SCRATCH_ALIGN 64 /* bytes: where a piece begins in the scratch */

struct call {
    struct comm_group *g;
    struct kern_stream *s;
    const uint8_t *from;
    uint8_t *to;
    const struct comm_part *parts;
    int n;
    size_t size;
    enum dtype dtype;
    enum reduce_op op;
    uint8_t *scratch; /* NULL: the pieces take the sums themselves */
};

static int64_t part_total(const struct call *c, const struct comm_part *p)
{
    int64_t sum = 0;
    for (int i = 0; i < c->g->n; i++)
        sum += p->counts[i];
    return sum;
}

static int64_t unit_total(const struct call *c)
{
    int64_t sum = 0;
    for (int k = 0; k < c->n; k++)
        sum += part_total(c, &c->parts[k]);
    return sum;
}

static bool is_even(const struct call *c, const struct comm_part *p)
{
    for (int i = 1; i < c->g->n; i++)
        if (p->counts[i] != p->counts[0])
            return false;
    return true;
}

typedef ncclResult_t part_fn(const struct call *c, const struct comm_part *p, int k);

static err_t run(const struct call *c, part_fn *part, const char *name)
{
    err_t err = nccl_enter(nccl_of(c->g));
    if (err)
        return err;
    ncclResult_t code = ncclGroupStart();
    for (int k = 0; k < c->n && nccl_going(code); k++)
        if (part_total(c, &c->parts[k]) > 0)
            code = part(c, &c->parts[k], k);
    return nccl_queued(c->g, c->s, nccl_group_end(code), name, __LINE__);
}

/* ---- gather ---- */

static ncclResult_t gather_part(const struct call *c, const struct comm_part *p, int k)
{
    const uint8_t *piece = c->from + (size_t)p->piece * c->size;
    uint8_t *at = c->to + (size_t)p->local * c->size;
    ncclComm_t comm = *nccl_comm_of(c->g);
    ncclResult_t code = ncclSuccess;
    (void)k;
    if (is_even(c, p))
        return ncclAllGather(piece, at, (size_t)p->counts[0] * c->size, ncclUint8, comm, nccl_native(c->s));
    for (int i = 0; i < c->g->n && nccl_going(code); i++) {
        size_t bytes = (size_t)p->counts[i] * c->size;
        if (bytes)
            code = ncclBroadcast(i == c->g->me ? piece : at, at, bytes, ncclUint8, i, comm, nccl_native(c->s));
        at += bytes;
    }
    return code;
}

/* Between the pieces and the local tensors, which are the same in a group of one. */
static err_t copy_alone(const struct call *c, bool gather)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->n; k++) {
        const struct comm_part *p = &c->parts[k];
        int64_t from = gather ? p->piece : p->local, to = gather ? p->local : p->piece;
        err = nccl_alone(c->s, c->to + (size_t)to * c->size, c->from + (size_t)from * c->size,
                         p->counts[0] * (int64_t)c->size);
    }
    return err;
}

err_t nccl_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype)
{
    const struct call c = {
        .g = g, .s = s, .from = pieces, .to = local, .parts = parts, .n = n, .size = dtype_bytes(dtype)};
    if (g->n == 1)
        return copy_alone(&c, true);
    return unit_total(&c) ? run(&c, gather_part, "ncclAllGather of a unit") : OK;
}

err_t nccl_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype)
{
    const struct comm_part part = {0, 0, counts};
    return nccl_unit_gather(g, s, src, dst, &part, 1, dtype);
}

/* ---- scatter ---- */

static size_t scratch_at(const struct call *c, int part)
{
    size_t at = 0;
    for (int k = 0; k < part; k++) {
        size_t bytes = (size_t)c->parts[k].counts[c->g->me] * c->size;
        at += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    }
    return at;
}

static ncclResult_t scatter_part(const struct call *c, const struct comm_part *p, int k)
{
    const uint8_t *at = c->from + (size_t)p->local * c->size;
    uint8_t *piece = c->scratch ? c->scratch + scratch_at(c, k) : c->to + (size_t)p->piece * c->size;
    ncclComm_t comm = *nccl_comm_of(c->g);
    ncclResult_t code = ncclSuccess;
    if (is_even(c, p))
        return ncclReduceScatter(at, piece, (size_t)p->counts[0], nccl_type(c->dtype), nccl_op(c->op), comm,
                                 nccl_native(c->s));
    for (int i = 0; i < c->g->n && nccl_going(code); i++) {
        if (p->counts[i])
            code = ncclReduce(at, i == c->g->me ? piece : NULL, (size_t)p->counts[i], nccl_type(c->dtype),
                              nccl_op(c->op), i, comm, nccl_native(c->s));
        at += (size_t)p->counts[i] * c->size;
    }
    return code;
}

/* Behind whoever used it last, on whatever stream. */
static err_t get_scratch(struct call *c)
{
    struct nccl_comm *n = nccl_of(c->g);
    const struct dev_ops *ops = n->dev->ops;
    struct why *why = n->base.why.text[0] ? NULL : &n->base.why;
    size_t bytes = scratch_at(c, c->n) + SCRATCH_ALIGN;
    err_t err = OK;
    if (bytes > n->scratch_bytes) {
        nccl_drop_scratch(n);
        err = ops->alloc(n->dev, bytes, SCRATCH_WHAT, &n->scratch, why);
        n->scratch_bytes = err ? 0 : bytes;
    }
    c->scratch = n->scratch;
    return err ? err : ops->event_wait(n->scratch_free, c->s);
}

void nccl_drop_scratch(struct nccl_comm *n)
{
    const struct dev_ops *ops = n->dev->ops;
    if (!n->scratch)
        return;
    (void)ops->event_sync(n->scratch_free, NULL); /* a stream that has failed uses it no more either */
    ops->free(n->dev, n->scratch, n->scratch_bytes);
    n->scratch = NULL;
    n->scratch_bytes = 0;
}

/* The kernel takes ranges that begin at any element. */
static void add_to_pieces(const struct call *c, const struct kern_ops *kernels)
{
    for (int k = 0; k < c->n; k++) {
        const struct comm_part *p = &c->parts[k];
        uint8_t *piece = c->to + (size_t)p->piece * c->size;
        const uint8_t *sum = c->scratch ? c->scratch + scratch_at(c, k) : c->from + (size_t)p->local * c->size;
        if (p->counts[c->g->me] > 0)
            kernels->add(c->s, p->counts[c->g->me], piece, sum, piece);
    }
}

static err_t scatter_add(struct call *c)
{
    struct nccl_comm *n = nccl_of(c->g);
    const struct kern_ops *kernels = n->dev->ops->kernels(c->dtype);
    if (!kernels)
        return why_set(n->base.why.text[0] ? NULL : &n->base.why, ERR_UNSUPPORTED,
                       "a scatter that adds needs the device's kernels for its type");
    err_t err = c->g->n > 1 ? get_scratch(c) : OK;
    if (!err && c->g->n > 1 && unit_total(c))
        err = run(c, scatter_part, "ncclReduceScatter of a unit");
    if (err)
        return err;
    add_to_pieces(c, kernels);
    return n->dev->ops->event_record(n->scratch_free, c->s);
}

static err_t scatter(const struct call *c)
{
    if (c->g->n == 1)
        return copy_alone(c, false);
    return unit_total(c) ? run(c, scatter_part, "ncclReduceScatter of a unit") : OK;
}

err_t nccl_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    struct call c = {.g = g,
                     .s = s,
                     .from = local,
                     .to = pieces,
                     .parts = parts,
                     .n = n,
                     .size = dtype_bytes(dtype),
                     .dtype = dtype,
                     .op = REDUCE_SUM};
    return add ? scatter_add(&c) : scatter(&c);
}

err_t nccl_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    const struct comm_part part = {0, 0, counts};
    const struct call c = {.g = g,
                           .s = s,
                           .from = src,
                           .to = dst,
                           .parts = &part,
                           .n = 1,
                           .size = dtype_bytes(dtype),
                           .dtype = dtype,
                           .op = op};
    return scatter(&c);
}
