/* The memory that a job needs, before anything is allocated. Plans are exact, so the forecast is a sum: every space and
 * the arena of every worker on the node. In this version all workers of a job are on one node.
 *
 * On a GPU the spaces are in the GPU's memory; the node then holds only what is saved and what the host fills or reads.
 * Only a worker that has opened the GPU can ask for its size, so the worker calls plan_fits_device then, before it
 * allocates. */
#include "common/plan/estimate/memory.h"

#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void plan_memory(const struct program *p, enum device device, struct plan_memory *ret)
{
    struct plan_memory m = {.arena_bytes = p->arena_bytes, .kept_bytes = p->kept_bytes};
    int64_t spaces = 0;
    for (int s = 0; s < SPACE_COUNT; s++) {
        m.bytes[s] = plan_space_reserved(p->space_bytes[s]);
        spaces += m.bytes[s];
    }
    m.device_bytes = device == DEVICE_CPU ? 0 : spaces;
    m.host_bytes = p->arena_bytes + (device == DEVICE_CPU ? spaces : m.bytes[SPACE_HOST]);
    m.total_bytes = m.device_bytes + m.host_bytes;
    *ret = m;
}

/* ---- a whole job ---- */

/* Bytes of all workers on the node together (host), and of the worker that needs most. */
struct need {
    int64_t host, largest[SPACE_COUNT], arena;
};

/* Kinds of ranks with equal spaces. Two ranks' spaces can differ by their stages; by the sizes of their parts under
 * tensor parallelism, and because the first tp rank counts the loss; by the lengths of their segments of the sequence;
 * and by the numbers of microbatches that they and their groups of fsdp and of expert parallelism have. They do not
 * differ by fsdp shard, because pieces have room of one size on all ranks. One rank of each kind is compiled. Only the
 * arena, which follows from boxes, is computed for each rank. */
struct kinds {
    struct pipeline_order order;
    struct mesh mesh; /* the mesh of `order` */
    const struct job_spec *job;
    const struct graph *g;
    struct why *why;
    struct sharding_choice choice;
    int *tp, *cp, *data;    /* by coordinate: the first coordinate of the same kind; data: by dp * fsdp size + fsdp */
    struct sharding *parts; /* by part_at: the sharding of the first rank with these parts of tensors, with no
                               parameter marked as held */
    int n_parts;
    int *held, *held_from;      /* parameters of pipeline rank i: held[held_from[i] .. held_from[i + 1]) */
    struct plan_memory *memory; /* by rank, set for the first of a kind; total_bytes 0: not computed yet */
    enum dtype wide;
};

static int data_ranks(const struct mesh *m)
{
    return m->size[AXIS_DP] * m->size[AXIS_FSDP];
}

static int64_t part_len(const struct kinds *k, int part)
{
    int64_t lo, hi;
    layout_split(k->job->train.seq, 2 * k->mesh.size[AXIS_CP], part, &lo, &hi);
    return hi - lo;
}

static int64_t own_seq(const struct kinds *k, int cp)
{
    return part_len(k, cp) + part_len(k, 2 * k->mesh.size[AXIS_CP] - 1 - cp);
}

static bool tp_alike(const struct kinds *k, int a, int b)
{
    const int n = k->mesh.size[AXIS_TP];
    if ((a == 0) != (b == 0) || k->choice.ep.axes)
        return false;
    for (int t = 0; t < k->g->n_tensors; t++) {
        const struct graph_tensor *x = &k->g->tensors[t];
        int64_t extent = x->cut.segments ? x->dim[x->cut.dim].factor : 0;
        if (sharding_cut_extent(&x->cut, extent, n, a) != sharding_cut_extent(&x->cut, extent, n, b))
            return false;
    }
    for (int64_t c = 0; c < k->mesh.size[AXIS_CP]; c++) { /* numbers of own tokens */
        int64_t lo[2], hi[2], tokens = k->job->train.micro_batch * own_seq(k, (int)c);
        layout_split(tokens, n, a, &lo[0], &hi[0]);
        layout_split(tokens, n, b, &lo[1], &hi[1]);
        if (hi[0] - lo[0] != hi[1] - lo[1])
            return false;
    }
    return true;
}

static bool cp_alike(const struct kinds *k, int a, int b)
{
    const int last = 2 * k->mesh.size[AXIS_CP] - 1;
    return !(k->choice.ep.axes >> AXIS_CP & 1) && part_len(k, a) == part_len(k, b) &&
           part_len(k, last - a) == part_len(k, last - b);
}

static int64_t micros(const struct kinds *k, int data)
{
    const struct job_train *t = &k->job->train;
    int64_t lo, hi;
    layout_split((t->global_batch + t->micro_batch - 1) / t->micro_batch, data_ranks(&k->mesh), data, &lo, &hi);
    return hi - lo;
}

static bool data_alike(const struct kinds *k, int a, int b)
{
    const int fsdp = k->mesh.size[AXIS_FSDP], share = k->choice.ep.share[AXIS_FSDP];
    if (share > 1 && k->job->model.experts % k->job->parallel.ep) /* ranks have different numbers of experts */
        return false;
    return micros(k, a) == micros(k, b) && micros(k, a / fsdp * fsdp) == micros(k, b / fsdp * fsdp) &&
           (share <= 1 || micros(k, a / share * share) == micros(k, b / share * share));
}

typedef bool (*alike_fn)(const struct kinds *k, int a, int b);

/* Compares each rank with the first of each kind. There are few kinds, so this is fast. */
static int *kinds_of(const struct kinds *k, int n, alike_fn alike)
{
    int *kind = calloc((unsigned)n, sizeof(*kind));
    for (int i = 0; i < n && kind; i++) {
        int j = 0;
        while (j < i && (kind[j] != j || !alike(k, j, i)))
            j++;
        kind[i] = j;
    }
    return kind;
}

static int rank_at(const struct mesh *m, const int coord[AXIS_COUNT])
{
    int rank = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        rank = rank * m->size[a] + coord[a];
    return rank;
}

/* The parts of tensors that a rank holds follow from its tp coordinate, and with expert parallelism also from those of
 * the axes over which it is folded. */
static int part_at(const struct kinds *k, const int coord[AXIS_COUNT])
{
    int i = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        if (a == AXIS_TP || k->choice.ep.axes >> a & 1)
            i = i * k->mesh.size[a] + coord[a];
    return i;
}

static err_t shardings_of(struct kinds *k)
{
    err_t e = OK;
    k->n_parts = 1;
    for (int a = 0; a < AXIS_COUNT; a++)
        k->n_parts *= a == AXIS_TP || k->choice.ep.axes >> a & 1 ? k->mesh.size[a] : 1;
    k->parts = calloc((unsigned)k->n_parts, sizeof(*k->parts));
    for (int r = mesh_workers(&k->mesh) - 1; r >= 0 && k->parts && !e; r--) {
        int coord[AXIS_COUNT];
        bool first = true;
        mesh_coords(&k->mesh, r, coord);
        for (int a = 0; a < AXIS_COUNT; a++)
            first &= a == AXIS_TP || k->choice.ep.axes >> a & 1 || coord[a] == 0;
        if (first)
            e = sharding_init(&k->parts[part_at(k, coord)], k->g, &k->mesh, r, k->choice, k->why);
    }
    return k->parts ? e : ERR_NOMEM;
}

/* Lists the parameters of each pipeline rank. arena_of marks them in `parts` for one rank after another. */
static err_t held_of(struct kinds *k)
{
    const struct sharding *p = &k->parts[0];
    const int pp = k->mesh.size[AXIS_PP];
    k->held = calloc((size_t)p->n_uses + 1, sizeof(*k->held));
    k->held_from = calloc((size_t)pp + 2, sizeof(*k->held_from));
    if (!k->held || !k->held_from)
        return ERR_NOMEM;
    assert(p->use); /* sharding_init */
    for (int u = 1; u <= p->n_uses; u++)
        k->held_from[p->use[u].pp + 2]++;
    for (int r = 0; r < pp; r++)
        k->held_from[r + 2] += k->held_from[r + 1];
    for (int t = 0; t < k->g->n_tensors; t++)
        for (int u = p->param[t].use; u; u = p->use[u].next)
            k->held[k->held_from[p->use[u].pp + 1]++] = t;
    for (int i = 0; i < k->n_parts; i++)
        for (int t = 0; t < k->g->n_tensors; t++)
            k->parts[i].param[t].held = false;
    return OK;
}

static err_t kinds_init(struct kinds *k, const struct job_spec *job, const struct graph *g, struct why *why)
{
    *k = (struct kinds){.job = job, .g = g, .why = why};
    k->wide = job->train.numerics == NUMERICS_PROOF || job->train.dtype == DT_F64 ? DT_F64 : DT_F32;
    err_t e = pipeline_order_init(job, MODE_TRAIN, &k->order, why);
    k->mesh = k->order.mesh;
    k->choice = plan_sharding_choice(job, &k->order);
    e = e ? e : shardings_of(k);
    e = e ? e : held_of(k);
    if (e)
        return e;
    k->tp = kinds_of(k, k->mesh.size[AXIS_TP], tp_alike);
    k->cp = kinds_of(k, k->mesh.size[AXIS_CP], cp_alike);
    k->data = kinds_of(k, data_ranks(&k->mesh), data_alike);
    k->memory = calloc((size_t)mesh_workers(&k->mesh), sizeof(*k->memory));
    return k->tp && k->cp && k->data && k->memory ? OK : ERR_NOMEM;
}

static void kinds_fini(struct kinds *k)
{
    for (int i = 0; i < k->n_parts && k->parts; i++)
        sharding_fini(&k->parts[i]);
    free(k->parts);
    free(k->tp);
    free(k->cp);
    free(k->data);
    free(k->held);
    free(k->held_from);
    free(k->memory);
    pipeline_order_fini(&k->order);
}

/* The spaces of a rank: those of the first rank of its kind. */
static err_t spaces_of(const struct kinds *k, const int coord[AXIS_COUNT], struct plan_memory *ret)
{
    const int fsdp = k->mesh.size[AXIS_FSDP], data = k->data[coord[AXIS_DP] * fsdp + coord[AXIS_FSDP]];
    const int first[AXIS_COUNT] = {[AXIS_PP] = coord[AXIS_PP],
                                   [AXIS_DP] = data / fsdp,
                                   [AXIS_FSDP] = data % fsdp,
                                   [AXIS_CP] = k->cp[coord[AXIS_CP]],
                                   [AXIS_TP] = k->tp[coord[AXIS_TP]]};
    const int rank = rank_at(&k->mesh, first);
    struct plan_memory *m = &k->memory[rank];
    if (!m->total_bytes) {
        struct program p;
        err_t e = compile_sizes(k->job, k->g, &k->order, rank, &p, k->why);
        if (e)
            return e;
        plan_memory(&p, k->job->run.device, m);
        program_fini(&p);
    }
    *ret = *m;
    return OK;
}

/* The arena of a rank: a tensor's local part follows from part_at, whether the rank holds it from the stages,
 * and its piece from the fsdp coordinate. */
static err_t arena_of(const struct kinds *k, int rank, const int coord[AXIS_COUNT], int64_t *ret)
{
    struct program p = {.mesh = k->mesh, .rank = rank, .wide = k->wide, .sharding = k->parts[part_at(k, coord)]};
    struct sharding_param *param = p.sharding.param;
    const int first = k->held_from[coord[AXIS_PP]], end = k->held_from[coord[AXIS_PP] + 1];
    p.sharding.rank = rank;
    memcpy(p.sharding.coord, coord, sizeof(p.sharding.coord));
    for (int i = first; i < end; i++) {
        const int t = k->held[i];
        param[t].held = true;
        sharding_piece(&p.sharding, t, coord[AXIS_FSDP], &param[t].lo, &param[t].hi);
    }
    err_t e = plan_arena_bytes(&p, k->g, ret);
    for (int i = first; i < end; i++)
        param[k->held[i]].held = false;
    return e;
}

static err_t memory_of_rank(const struct kinds *k, int rank, struct plan_memory *ret)
{
    int coord[AXIS_COUNT];
    int64_t arena = 0;
    mesh_coords(&k->mesh, rank, coord);
    err_t e = spaces_of(k, coord, ret);
    e = e ? e : arena_of(k, rank, coord, &arena);
    ret->arena_bytes = arena;
    return e;
}

static err_t need_of_rank(const struct kinds *k, int rank, struct need *need)
{
    struct plan_memory m;
    err_t e = memory_of_rank(k, rank, &m);
    if (e)
        return e;
    const int64_t arena = m.arena_bytes;
    need->arena = arena > need->arena ? arena : need->arena;
    for (int s = 0; s < SPACE_COUNT; s++)
        need->largest[s] = m.bytes[s] > need->largest[s] ? m.bytes[s] : need->largest[s];
    if (__builtin_add_overflow(need->host, m.host_bytes + arena, &need->host))
        return why_set(k->why, ERR_INVALID, "the job needs more than 2^63 bytes; lower model.dim or model.layers");
    return OK;
}

/* ---- results ---- */

static double gib(int64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

/* The advice for a job that does not fit: lower the size of the batch if activations are the largest part, or if half
 * of them would be enough. NULL: the model or the number of workers has to change. */
static const char *what_to_change(const struct job_spec *job, const int64_t bytes[SPACE_COUNT], int64_t arena,
                                  int64_t excess)
{
    int64_t states = bytes[SPACE_PARAM] + bytes[SPACE_OPT] + bytes[SPACE_GRAD] + arena;
    if (bytes[SPACE_WORK] > states || excess < bytes[SPACE_WORK] / 2)
        return job->train.micro_batch > 1 ? "lower train.micro_batch or train.seq" : "lower train.seq";
    if (job->train.numerics == NUMERICS_CANONICAL && bytes[SPACE_GRAD] > bytes[SPACE_OPT])
        return "raise train.micro_batch, which makes the tree of gradients smaller, or set train.numerics to fast";
    return NULL;
}

static err_t node_memory_fail(const struct job_spec *job, const struct need *n, int64_t node_bytes, struct why *why)
{
    long long workers = (long long)job->parallel.workers;
    const char *fewer =
        workers > 1 ? "lower parallel.workers, or model.dim or model.layers" : "lower model.dim or model.layers";
    if (job->run.device != DEVICE_CPU)
        return why_set(why, ERR_INVALID,
                       "the job needs %.2f GiB of the node's memory, which has %.2f GiB: %lld workers with up to %.2f "
                       "GiB to hold a save and %.2f for batches; %s",
                       gib(n->host), gib(node_bytes), workers, gib(n->arena), gib(n->largest[SPACE_HOST]), fewer);
    const char *change = what_to_change(job, n->largest, n->arena, INT64_MAX);
    return why_set(
        why, ERR_INVALID,
        "the job needs %.2f GiB on the node, which has %.2f GiB: %lld workers with up to %.2f GiB parameters, "
        "%.2f optimizer state, %.2f gradients, %.2f activations and %.2f to hold a save; %s",
        gib(n->host), gib(node_bytes), workers, gib(n->largest[SPACE_PARAM]), gib(n->largest[SPACE_OPT]),
        gib(n->largest[SPACE_GRAD]), gib(n->largest[SPACE_WORK]), gib(n->arena), change ? change : fewer);
}

static err_t need_of_job(const struct job_spec *job, const struct graph *g, struct need *need, struct why *why)
{
    struct kinds k;
    err_t e = kinds_init(&k, job, g, why);
    for (int r = 0; !e && r < mesh_workers(&k.mesh); r++)
        e = need_of_rank(&k, r, need);
    kinds_fini(&k);
    return e;
}

err_t plan_memory_of_ranks(const struct job_spec *job, const struct graph *g, struct plan_memory *ret, struct why *why)
{
    struct kinds k;
    err_t e = kinds_init(&k, job, g, why);
    for (int r = 0; !e && r < mesh_workers(&k.mesh); r++) {
        e = memory_of_rank(&k, r, &ret[r]);
        ret[r].host_bytes += ret[r].arena_bytes;
        ret[r].total_bytes += ret[r].arena_bytes;
    }
    kinds_fini(&k);
    return e;
}

err_t plan_fits(const struct job_spec *job, int64_t node_bytes, struct why *why)
{
    struct graph g;
    struct mesh mesh;
    struct need need = {0};
    err_t e = plan_mesh(job, &mesh, why);
    e = e ? e : graph_build(&job->model, job->train.seq, &g, why);
    if (e)
        return e;
    e = need_of_job(job, &g, &need, why);
    graph_fini(&g);
    if (!e && need.host > node_bytes)
        e = node_memory_fail(job, &need, node_bytes, why);
    return e;
}

err_t plan_fits_device(const struct job_spec *job, const struct program *p, int64_t gpu_bytes, struct why *why)
{
    struct plan_memory m;
    int64_t workers = job->parallel.workers, sharing = job->run.workers_per_gpu, all;
    char shared[64] = "";
    sharing = sharing > workers ? workers : sharing < 1 ? 1 : sharing;
    plan_memory(p, DEVICE_CUDA, &m);
    if (!__builtin_mul_overflow(m.device_bytes, sharing, &all) && all <= gpu_bytes)
        return OK;
    if (sharing > 1)
        snprintf(shared, sizeof(shared), " for the %lld workers that share it", (long long)sharing);
    const char *change = what_to_change(job, m.bytes, 0, m.device_bytes - gpu_bytes / sharing);
    if (!change)
        change =
            sharing > 1 ? "lower run.workers_per_gpu, or model.dim or model.layers" : "lower model.dim or model.layers";
    return why_set(why, ERR_INVALID,
                   "a worker needs %.2f GiB on the GPU, which has %.2f GiB%s: %.2f GiB parameters, %.2f optimizer "
                   "state, %.2f gradients and %.2f activations; %s",
                   gib(m.device_bytes), gib(gpu_bytes), shared, gib(m.bytes[SPACE_PARAM]), gib(m.bytes[SPACE_OPT]),
                   gib(m.bytes[SPACE_GRAD]), gib(m.bytes[SPACE_WORK]), change);
}
