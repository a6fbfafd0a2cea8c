/* Gathers and scatters of one tensor or of all tensors of a unit: all parts are calls of one NCCL group, which becomes
 * one launch. If all members have the same count, the part is one ncclAllGather or ncclReduceScatter. Otherwise it is
 * one call per member: a broadcast from each (gather) or a reduction to each (scatter). Empty parts need no call,
 * because all ranks have the same counts.
 *
 * NCCL overwrites its destination. A scatter that adds therefore writes the sums to scratch memory, and a kernel on the
 * same stream adds them to the pieces. The scratch memory grows to the size that the largest unit needs, and is kept.
 */
#include "worker/comm/nccl/internal.h"

#include "kernels/kernels.h"

#define SCRATCH_WHAT "sums of gradients before they are added to the pieces"
#define SCRATCH_ALIGN 64 /* alignment of a piece in the scratch memory, in bytes */

struct nccl_unit_call {
    struct comm_group *g;
    struct kern_stream *s;
    const uint8_t *from;
    uint8_t *to;
    const struct comm_part *parts;
    int n;
    size_t size;
    enum dtype dtype;
    enum reduce_op op;
    uint8_t *scratch; /* NULL: sums are written to the pieces directly */
};

static int64_t part_total(const struct nccl_unit_call *c, const struct comm_part *p)
{
    int64_t sum = 0;
    for (int i = 0; i < c->g->n; i++)
        sum += p->counts[i];
    return sum;
}

static int64_t unit_total(const struct nccl_unit_call *c)
{
    int64_t sum = 0;
    for (int k = 0; k < c->n; k++)
        sum += part_total(c, &c->parts[k]);
    return sum;
}

static bool is_even(const struct nccl_unit_call *c, const struct comm_part *p)
{
    for (int i = 1; i < c->g->n; i++)
        if (p->counts[i] != p->counts[0])
            return false;
    return true;
}

typedef ncclResult_t part_fn(const struct nccl_unit_call *c, const struct comm_part *p, int k);

static err_t run_parts(const struct nccl_unit_call *c, part_fn *part, const char *name)
{
    err_t err = nccl_enter(nccl_of(c->g));
    if (err)
        return err;
    ncclResult_t code = ncclGroupStart();
    for (int k = 0; k < c->n && nccl_in_order(code); k++)
        if (part_total(c, &c->parts[k]) > 0)
            code = part(c, &c->parts[k], k);
    return nccl_queued(c->g, c->s, nccl_group_end(code), name, __LINE__);
}

/* ---- gather ---- */

static ncclResult_t gather_part(const struct nccl_unit_call *c, const struct comm_part *p, int k)
{
    const uint8_t *piece = c->from + (size_t)p->piece * c->size;
    uint8_t *at = c->to + (size_t)p->local * c->size;
    ncclComm_t comm = *nccl_comm_of(c->g);
    ncclResult_t code = ncclSuccess;
    (void)k;
    if (is_even(c, p))
        return ncclAllGather(piece, at, (size_t)p->counts[0] * c->size, ncclUint8, comm, nccl_native(c->s));
    for (int i = 0; i < c->g->n && nccl_in_order(code); i++) {
        size_t bytes = (size_t)p->counts[i] * c->size;
        if (bytes)
            code = ncclBroadcast(i == c->g->me ? piece : at, at, bytes, ncclUint8, i, comm, nccl_native(c->s));
        at += bytes;
    }
    return code;
}

/* Copies between the pieces and the local tensors in a group of one. */
static err_t copy_alone(const struct nccl_unit_call *c, bool gather)
{
    err_t err = OK;
    for (int k = 0; !err && k < c->n; k++) {
        const struct comm_part *p = &c->parts[k];
        int64_t from = gather ? p->piece : p->local, to = gather ? p->local : p->piece;
        err = nccl_copy_alone(c->s, c->to + (size_t)to * c->size, c->from + (size_t)from * c->size,
                              p->counts[0] * (int64_t)c->size);
    }
    return err;
}

err_t nccl_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype)
{
    const struct nccl_unit_call c = {
        .g = g, .s = s, .from = pieces, .to = local, .parts = parts, .n = n, .size = dtype_bytes(dtype)};
    if (g->n == 1)
        return copy_alone(&c, true);
    return unit_total(&c) ? run_parts(&c, gather_part, "ncclAllGather of a unit") : OK;
}

err_t nccl_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype)
{
    const struct comm_part part = {0, 0, counts};
    return nccl_unit_gather(g, s, src, dst, &part, 1, dtype);
}

/* ---- scatter ---- */

static size_t scratch_at(const struct nccl_unit_call *c, int part)
{
    size_t at = 0;
    for (int k = 0; k < part; k++) {
        size_t bytes = (size_t)c->parts[k].counts[c->g->me] * c->size;
        at += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    }
    return at;
}

static ncclResult_t scatter_part(const struct nccl_unit_call *c, const struct comm_part *p, int k)
{
    const uint8_t *at = c->from + (size_t)p->local * c->size;
    uint8_t *piece = c->scratch ? c->scratch + scratch_at(c, k) : c->to + (size_t)p->piece * c->size;
    ncclComm_t comm = *nccl_comm_of(c->g);
    ncclResult_t code = ncclSuccess;
    if (is_even(c, p))
        return ncclReduceScatter(at, piece, (size_t)p->counts[0], nccl_type(c->dtype), nccl_op(c->op), comm,
                                 nccl_native(c->s));
    for (int i = 0; i < c->g->n && nccl_in_order(code); i++) {
        if (p->counts[i])
            code = ncclReduce(at, i == c->g->me ? piece : NULL, (size_t)p->counts[i], nccl_type(c->dtype),
                              nccl_op(c->op), i, comm, nccl_native(c->s));
        at += (size_t)p->counts[i] * c->size;
    }
    return code;
}

/* Makes the stream wait for the last use of the scratch memory, which may have been on another stream. */
static err_t reserve_scratch(struct nccl_unit_call *c)
{
    struct nccl_comm *n = nccl_of(c->g);
    const struct dev_ops *ops = n->dev->ops;
    struct why *why = n->base.why.text[0] ? NULL : &n->base.why;
    size_t bytes = scratch_at(c, c->n) + SCRATCH_ALIGN;
    err_t err = OK;
    if (bytes > n->scratch_bytes) {
        nccl_free_scratch(n);
        err = ops->alloc(n->dev, bytes, SCRATCH_WHAT, &n->scratch, why);
        n->scratch_bytes = err ? 0 : bytes;
    }
    c->scratch = n->scratch;
    return err ? err : ops->event_wait(n->scratch_free, c->s);
}

void nccl_free_scratch(struct nccl_comm *n)
{
    const struct dev_ops *ops = n->dev->ops;
    if (!n->scratch)
        return;
    (void)ops->event_sync(n->scratch_free, NULL); /* an error is ignored: a failed stream no longer uses the memory */
    ops->free(n->dev, n->scratch, n->scratch_bytes);
    n->scratch = NULL;
    n->scratch_bytes = 0;
}

/* The add kernel has no alignment requirement: pieces may begin at any element. */
static void add_to_pieces(const struct nccl_unit_call *c, const struct kern_ops *kernels)
{
    for (int k = 0; k < c->n; k++) {
        const struct comm_part *p = &c->parts[k];
        uint8_t *piece = c->to + (size_t)p->piece * c->size;
        const uint8_t *sum = c->scratch ? c->scratch + scratch_at(c, k) : c->from + (size_t)p->local * c->size;
        if (p->counts[c->g->me] > 0)
            kernels->add(c->s, p->counts[c->g->me], piece, sum, piece);
    }
}

static err_t scatter_add(struct nccl_unit_call *c)
{
    struct nccl_comm *n = nccl_of(c->g);
    const struct kern_ops *kernels = n->dev->ops->kernels(c->dtype);
    if (!kernels)
        return why_set(n->base.why.text[0] ? NULL : &n->base.why, ERR_UNSUPPORTED,
                       "the device has no kernel that adds to pieces of this data type");
    err_t err = c->g->n > 1 ? reserve_scratch(c) : OK;
    if (!err && c->g->n > 1 && unit_total(c))
        err = run_parts(c, scatter_part, "ncclReduceScatter of a unit");
    if (err)
        return err;
    add_to_pieces(c, kernels);
    return n->dev->ops->event_record(n->scratch_free, c->s);
}

static err_t scatter_parts(const struct nccl_unit_call *c)
{
    if (c->g->n == 1)
        return copy_alone(c, false);
    return unit_total(c) ? run_parts(c, scatter_part, "ncclReduceScatter of a unit") : OK;
}

err_t nccl_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    struct nccl_unit_call c = {.g = g,
                               .s = s,
                               .from = local,
                               .to = pieces,
                               .parts = parts,
                               .n = n,
                               .size = dtype_bytes(dtype),
                               .dtype = dtype,
                               .op = REDUCE_SUM};
    return add ? scatter_add(&c) : scatter_parts(&c);
}

err_t nccl_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    const struct comm_part part = {0, 0, counts};
    const struct nccl_unit_call c = {.g = g,
                                     .s = s,
                                     .from = src,
                                     .to = dst,
                                     .parts = &part,
                                     .n = 1,
                                     .size = dtype_bytes(dtype),
                                     .dtype = dtype,
                                     .op = op};
    return scatter_parts(&c);
}
