/* Collectives as items of streams. Sums are over the ranks in ascending order in the type's own precision (bfloat16: in
 * float, rounded once), so all ranks have the same bits. */
#include "tests/cuda_host/nccl_inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nccl_item {
    struct ncclComm *comm;
    struct nccl_call call;
    const uint8_t *from;
    uint8_t *to;
    size_t done;  /* finished elements of each part */
    bool written; /* whether the piece at `done` was written */
};

size_t nccl_type_bytes(ncclDataType_t type)
{
    static const size_t bytes[ncclNumTypes] = {
        [ncclInt8] = 1,   [ncclUint8] = 1,   [ncclInt32] = 4,   [ncclUint32] = 4,  [ncclInt64] = 8,
        [ncclUint64] = 8, [ncclFloat16] = 2, [ncclFloat32] = 4, [ncclFloat64] = 8, [ncclBfloat16] = 2};
    return bytes[type];
}

/* ---- reducing one element per rank ---- */

static double combine(double a, double b, ncclRedOp_t op)
{
    return op == ncclMin ? fmin(a, b) : op == ncclMax ? fmax(a, b) : op == ncclProd ? a * b : a + b;
}

#define REDUCER(name, type, add)                                                                         \
    static void name(uint8_t *to, const uint8_t *const *from, int n, size_t count, ncclRedOp_t op)       \
    {                                                                                                    \
        for (size_t i = 0; i < count; i++) {                                                             \
            type x, y;                                                                                   \
            memcpy(&x, from[0] + i * sizeof(type), sizeof(type));                                        \
            for (int r = 1; r < n; r++) {                                                                \
                memcpy(&y, from[r] + i * sizeof(type), sizeof(type));                                    \
                x = op == ncclMin ? (y < x ? y : x) : op == ncclMax ? (y > x ? y : x) : (type)(x add y); \
            }                                                                                            \
            if (op == ncclAvg)                                                                           \
                x = (type)(x / (type)n);                                                                 \
            memcpy(to + i * sizeof(type), &x, sizeof(type));                                             \
        }                                                                                                \
    }
REDUCER(reduce_f32, float, +)
REDUCER(reduce_f64, double, +)
REDUCER(reduce_i32, int32_t, +)
REDUCER(reduce_i64, int64_t, +)
REDUCER(reduce_u8, uint8_t, +)

static float from_bf16(const uint8_t *p)
{
    uint16_t half;
    float x;
    memcpy(&half, p, sizeof(half));
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void reduce_bf16(uint8_t *to, const uint8_t *const *from, int n, size_t count, ncclRedOp_t op)
{
    for (size_t i = 0; i < count; i++) {
        double x = (double)from_bf16(from[0] + 2 * i);
        for (int r = 1; r < n; r++)
            x = combine(x, (double)from_bf16(from[r] + 2 * i), op);
        float y = (float)(op == ncclAvg ? x / n : x);
        uint32_t bits;
        memcpy(&bits, &y, sizeof(bits));
        uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy(to + 2 * i, &half, sizeof(half));
    }
}

typedef void reducer(uint8_t *to, const uint8_t *const *from, int n, size_t count, ncclRedOp_t op);
static reducer *const reducers[ncclNumTypes] = {
    [ncclUint8] = reduce_u8,    [ncclInt32] = reduce_i32,   [ncclInt64] = reduce_i64,
    [ncclFloat32] = reduce_f32, [ncclFloat64] = reduce_f64, [ncclBfloat16] = reduce_bf16,
};

/* ---- a piece ---- */

static uint8_t *piece_of(const struct ncclComm *c, int rank)
{
    return c->segment->piece + (size_t)rank * NCCL_PIECE_BYTES;
}

/* The number of parts of `count` elements that a rank contributes. */
static int parts_from(const struct nccl_item *w)
{
    switch (w->call.kind) {
    case KIND_REDUCE_SCATTER:
        return w->comm->n;
    case KIND_BROADCAST:
        return w->comm->rank == w->call.root;
    default:
        return 1;
    }
}

static size_t piece_elements(const struct nccl_item *w)
{
    size_t parts = w->call.kind == KIND_REDUCE_SCATTER ? (size_t)w->comm->n : 1;
    size_t most = NCCL_PIECE_BYTES / parts / nccl_type_bytes(w->call.type), left = w->call.count - w->done;
    return left < most ? left : most;
}

static void write_piece(struct nccl_item *w)
{
    struct ncclComm *c = w->comm;
    struct nccl_seat *me = &c->segment->seat[c->rank];
    size_t size = nccl_type_bytes(w->call.type), n = piece_elements(w);
    for (int i = 0; i < parts_from(w); i++)
        memcpy(piece_of(c, c->rank) + (size_t)i * n * size, w->from + ((size_t)i * w->call.count + w->done) * size,
               n * size);
    me->call = w->call;
    atomic_store(&me->written, ++c->pieces);
    w->written = true;
}

static void reduce_piece(const struct nccl_item *w, size_t part)
{
    const struct ncclComm *c = w->comm;
    size_t size = nccl_type_bytes(w->call.type), n = piece_elements(w);
    const uint8_t *from[NCCL_MAX_RANKS];
    for (int r = 0; r < c->n; r++)
        from[r] = piece_of(c, r) + part * n * size;
    if (!reducers[w->call.type])
        cuda_host_fail("the stand-in does not reduce type %d", w->call.type);
    reducers[w->call.type](w->to + w->done * size, from, c->n, n, w->call.op);
}

static void take_piece(const struct nccl_item *w)
{
    const struct ncclComm *c = w->comm;
    size_t size = nccl_type_bytes(w->call.type), n = piece_elements(w);
    switch (w->call.kind) {
    case KIND_ALL_REDUCE:
        reduce_piece(w, 0);
        break;
    case KIND_REDUCE_SCATTER:
        reduce_piece(w, (size_t)c->rank);
        break;
    case KIND_REDUCE:
        if (c->rank == w->call.root)
            reduce_piece(w, 0);
        break;
    case KIND_BROADCAST:
        memcpy(w->to + w->done * size, piece_of(c, w->call.root), n * size);
        break;
    default:
        for (int r = 0; r < c->n; r++)
            memcpy(w->to + ((size_t)r * w->call.count + w->done) * size, piece_of(c, r), n * size);
    }
}

static const char *const kind_name[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                        "ncclReduce"};

static void check_same(const struct nccl_item *w)
{
    const struct nccl_seat *seat = w->comm->segment->seat;
    for (int r = 0; r < w->comm->n; r++) {
        const struct nccl_call *a = &w->call, *b = &seat[r].call;
        if (a->kind != b->kind || a->count != b->count || a->type != b->type || a->op != b->op || a->root != b->root)
            cuda_host_fail(
                "ranks call different collectives: rank %d %s of %zu of type %d, op %d, root %d, rank %d %s of "
                "%zu of type %d, op %d, root %d",
                w->comm->rank, kind_name[a->kind], a->count, a->type, a->op, a->root, r, kind_name[b->kind], b->count,
                b->type, b->op, b->root);
    }
}

static bool all_written(const struct ncclComm *c, uint64_t pieces)
{
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&c->segment->seat[r].written) < pieces)
            return false;
    return true;
}

static bool all_taken(const struct ncclComm *c, uint64_t pieces)
{
    for (int r = 0; r < c->n; r++)
        if (atomic_load(&c->segment->seat[r].taken) < pieces)
            return false;
    return true;
}

/* ---- an item ---- */

static void check_memory(const struct nccl_item *w)
{
    size_t bytes = w->call.count * nccl_type_bytes(w->call.type), n = (size_t)w->comm->n;
    bool root = w->comm->rank == w->call.root;
    size_t from = w->call.kind == KIND_REDUCE_SCATTER ? n * bytes : bytes;
    size_t to = w->call.kind == KIND_ALL_GATHER ? n * bytes : bytes;
    if (w->call.kind == KIND_BROADCAST && !root)
        from = 0;
    if (w->call.kind == KIND_REDUCE && !root)
        to = 0;
    if ((from && host_memory_of(w->from, from, kind_name[w->call.kind]) != HOST_DEVICE) ||
        (to && host_memory_of(w->to, to, kind_name[w->call.kind]) != HOST_DEVICE))
        cuda_host_fail("%s of memory that is not the device's", kind_name[w->call.kind]);
}

static bool run_item(void *arg)
{
    struct nccl_item *w = arg;
    struct ncclComm *c = w->comm;
    while (!c->aborted && !host_sticky && w->done < w->call.count) {
        if (!w->written) {
            if (!all_taken(c, c->pieces))
                return false;
            write_piece(w);
        }
        if (!all_written(c, c->pieces))
            return false;
        check_same(w);
        take_piece(w);
        w->done += piece_elements(w);
        w->written = false;
        atomic_store(&c->segment->seat[c->rank].taken, c->pieces);
    }
    return true;
}

static void drop_item(void *arg)
{
    struct nccl_item *w = arg;
    w->comm->queued--;
    nccl_comm_release(w->comm);
    free(w);
}

void nccl_work_submit(struct ncclComm *c, cudaStream_t stream, const struct nccl_call *call, const void *from, void *to)
{
    struct nccl_item *w = malloc(sizeof(*w));
    if (!w)
        abort();
    *w = (struct nccl_item){.comm = c, .call = *call, .from = from, .to = to};
    check_memory(w);
    c->refs++;
    c->queued++;
    host_counts.collectives++;
    host_submit(host_stream_of(stream, c->device), &(struct host_work){kind_name[call->kind], run_item, drop_item, w});
}
