/* Checks that replicas are still identical.
 *
 * Each rank hashes its piece of every parameter and gathers the hashes of all ranks. The placement alone determines
 * which ranks must have equal hashes, so every rank reaches the same result and reports the same sentence. The check
 * does not depend on the collectives of a layout: it detects their errors as well as a flipped bit.
 *
 * All memory is allocated before the first step: two tables in device memory, where a comm may need them, and for a
 * device whose memory the host cannot access also their mirror and a chunk for hashing. */
#include "worker/step/run.h"

#include "common/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)4 << 20) /* a multiple of 32 */

struct engine_verify {
    struct comm_group *everyone;
    int n;           /* parameters */
    int *tensor;     /* index of each in graph.tensors */
    int64_t *counts; /* n for every rank, as the all-gather takes it */
    void *device;    /* mine[n], all[world][n] */
    uint64_t *host;  /* the same tables in host memory */
    uint8_t *chunk;  /* NULL if the host can access the device's memory */
    size_t bytes;    /* size of the tables */
    int *twin;       /* [n][world]: the first rank with the same part of the parameter; -1: the rank holds none of it */
};

static bool mirrored(const struct engine *e)
{
    return !e->config.dev->ops->host_memory;
}

/* ---- life ---- */

/* Whether two ranks that hold a part of t hold the same part. */
static bool same_box(const struct engine *e, const int a[AXIS_COUNT], const int b[AXIS_COUNT], int t)
{
    const struct sharding *p = &e->train.sharding;
    return sharding_same_box(p, e->config.graph, t, a, b) && (p->param[t].pieces == 1 || a[AXIS_FSDP] == b[AXIS_FSDP]);
}

/* Finds the twin of every rank for one parameter. A twin is always the first rank of its kind. */
static void find_twins(const struct engine *e, int t, int *ret)
{
    const struct program *p = &e->train;
    for (int b = 0; b < e->config.world; b++) {
        int at[AXIS_COUNT], other[AXIS_COUNT];
        mesh_coords(&p->mesh, b, at);
        ret[b] = sharding_uses(&p->sharding, at[AXIS_PP], t) ? b : -1;
        for (int a = 0; ret[b] == b && a < b; a++) {
            mesh_coords(&p->mesh, a, other);
            if (ret[a] == a && same_box(e, other, at, t))
                ret[b] = a;
        }
    }
}

static err_t list_params(const struct engine *e, struct engine_verify *v)
{
    const struct graph *g = e->config.graph;
    const size_t world = (size_t)e->config.world;
    v->tensor = calloc((size_t)g->n_tensors + 1, sizeof(*v->tensor));
    v->counts = calloc(world, sizeof(*v->counts));
    v->twin = calloc((size_t)g->n_tensors * world + 1, sizeof(*v->twin));
    if (!v->tensor || !v->counts || !v->twin)
        return ERR_NOMEM;
    for (int t = 0; t < g->n_tensors; t++)
        if (graph_is_stored(&g->tensors[t])) {
            find_twins(e, t, v->twin + (size_t)v->n * world);
            v->tensor[v->n++] = t;
        }
    for (size_t r = 0; r < world; r++)
        v->counts[r] = v->n;
    v->bytes = (world + 1) * (size_t)v->n * sizeof(uint64_t);
    return OK;
}

static err_t make_tables(const struct engine *e, struct engine_verify *v, struct why *why)
{
    void *pinned = NULL;
    err_t err = dev_alloc(e->config.dev, v->bytes, "hashes of the parameters", &v->device, why);
    v->host = v->device;
    if (err || !mirrored(e))
        return err;
    err = dev_host_alloc(e->config.dev, CHUNK + v->bytes, "hashes of the parameters", &pinned, why);
    v->chunk = pinned;
    v->host = err ? NULL : (uint64_t *)(void *)(v->chunk + CHUNK);
    return err;
}

static err_t make_group(const struct engine *e, struct engine_verify *v)
{
    int *ranks = calloc((size_t)e->config.world, sizeof(*ranks));
    for (int i = 0; ranks && i < e->config.world; i++)
        ranks[i] = i;
    err_t err = ranks ? comm_group_new(e->comm, ranks, e->config.world, &v->everyone) : ERR_NOMEM;
    free(ranks);
    return err;
}

err_t verify_init(struct engine *e, struct why *why)
{
    if (!e->has_train || e->config.world < 2 || !e->config.job->train.verify_every)
        return OK;
    struct engine_verify *v = e->verify =
        calloc(1, sizeof(*v)); /* engine_fini frees it, also when only part of it exists */
    err_t err = v ? list_params(e, v) : ERR_NOMEM;
    err = err ? err : make_group(e, v);
    if (err)
        return why_set(why, err, "cannot prepare the comparison of replicas: %s", err_text(err));
    return make_tables(e, v, why);
}

void verify_fini(struct engine *e)
{
    struct engine_verify *v = e->verify;
    if (!v)
        return;
    comm_group_free(v->everyone);
    if (v->device)
        dev_free(e->config.dev, v->device, v->bytes);
    dev_host_free(e->config.dev, v->chunk, CHUNK + v->bytes);
    free(v->tensor);
    free(v->counts);
    free(v->twin);
    free(v);
}

/* ---- hashing ---- */

static err_t hash_device(const struct engine *e, struct hash *h, const uint8_t *data, size_t bytes, struct why *why)
{
    struct kern_stream *s = e->stream[STREAM_COMPUTE];
    err_t err = OK;
    for (size_t at = 0; !err && at < bytes; at += CHUNK) {
        size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
        err = dev_copy(s, e->verify->chunk, data + at, n);
        err = err ? err : dev_stream_sync(s, why);
        if (!err)
            hash_add(h, e->verify->chunk, n);
    }
    return err;
}

/* Hashes this rank's piece of tensor t, which is contiguous. */
static err_t hash_piece(const struct engine *e, int t, uint64_t *ret, struct why *why)
{
    const struct sharding_param *q = &e->train.sharding.param[t];
    const int buffer = e->train.param_buffer[t];
    struct hash h;
    err_t err = OK;
    hash_init(&h);
    if (q->held && q->lo < q->hi && buffer >= 0) {
        size_t bytes = (size_t)((q->hi - q->lo) * q->cols) * dtype_bytes(e->train.buffers[buffer].dtype);
        const uint8_t *data = engine_buffer(e, &e->train, buffer);
        if (mirrored(e))
            err = hash_device(e, &h, data, bytes, why);
        else
            hash_add(&h, data, bytes);
    }
    *ret = hash_end(&h);
    return err;
}

static err_t gather_hashes(const struct engine *e, struct why *why)
{
    struct engine_verify *v = e->verify;
    struct kern_stream *s = e->stream[STREAM_COMPUTE];
    uint8_t *all = (uint8_t *)v->device + (size_t)v->n * sizeof(uint64_t);
    err_t err = OK;
    for (int i = 0; !err && i < v->n; i++)
        err = hash_piece(e, v->tensor[i], &v->host[i], why);
    if (!err && mirrored(e))
        err = dev_copy(s, v->device, v->host, (size_t)v->n * sizeof(uint64_t));
    err = err ? err : comm_all_gather(v->everyone, s, v->device, all, v->counts, DT_I64);
    if (!err && mirrored(e))
        err = dev_copy(s, v->host, v->device, v->bytes);
    return err ? err : dev_stream_sync(s, why);
}

/* ---- comparing ---- */

static uint64_t hash_of(const struct engine *e, int rank, int param)
{
    return e->verify->host[(rank + 1) * e->verify->n + param];
}

/* The first rank whose replica of a parameter differs from its twin's; -1: none. */
static int find_odd(const struct engine *e, int param)
{
    const int *twin = e->verify->twin + (size_t)param * (size_t)e->config.world;
    for (int r = 0; r < e->config.world; r++)
        if (twin[r] >= 0 && hash_of(e, r, param) != hash_of(e, twin[r], param))
            return r;
    return -1;
}

/* " 0 2": the ranks that hold the same part as `like` and have the same hash. */
static void name_ranks(const struct engine *e, int param, int like, char *ret, size_t size)
{
    const int *twin = e->verify->twin + (size_t)param * (size_t)e->config.world;
    size_t at = 0;
    ret[0] = '\0';
    for (int r = 0; r < e->config.world && at + 12 < size; r++)
        if (twin[r] == twin[like] && hash_of(e, r, param) == hash_of(e, like, param))
            at += (size_t)snprintf(ret + at, size - at, " %d", r);
}

static err_t describe_difference(const struct engine *e, int param, int others, struct why *why)
{
    const int b = find_odd(e, param), a = e->verify->twin[param * e->config.world + b];
    char first[160], second[160], more[48] = "";
    name_ranks(e, param, a, first, sizeof(first));
    name_ranks(e, param, b, second, sizeof(second));
    if (others)
        snprintf(more, sizeof(more), ", and %d other tensors differ", others);
    return why_set(why, ERR_CORRUPT,
                   "after step %" PRId64 " the replicas of %s differ: %016" PRIx64 " on rank%s, %016" PRIx64
                   " on rank%s%s. The memory, a link or a kernel on one of these nodes is faulty: check "
                   "them, then resume from an earlier checkpoint",
                   e->step, e->config.graph->tensors[e->verify->tensor[param]].name, hash_of(e, a, param), first,
                   hash_of(e, b, param), second, more);
}

err_t engine_verify(struct engine *e, struct why *why)
{
    const struct engine_verify *v = e->verify;
    int differ = 0, first = -1;
    if (!v)
        return OK;
    err_t err = gather_hashes(e, why);
    if (err)
        return why_prefix(why, err, "replicas cannot be compared");
    for (int i = 0; i < v->n; i++)
        if (find_odd(e, i) >= 0 && differ++ == 0)
            first = i;
    return differ ? describe_difference(e, first, differ - 1, why) : OK;
}
