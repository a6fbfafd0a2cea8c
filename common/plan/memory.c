/* What a job needs, before anything is allocated. The plan is exact, so the forecast is the plan's own sum: every space
 * and the arena of every worker on the node. In this version all workers of a job are on one node.
 *
 * On a GPU the spaces are the device's. The node then only holds what is saved and what the host fills or reads. How
 * much a GPU has is known to who opens it, so a worker asks plan_fits_device when it does, before it allocates. */
#include "common/plan/program.h"

#include <stdlib.h>

void plan_memory(const struct program *p, enum device device, struct plan_memory *ret)
{
    struct plan_memory m = {.arena_bytes = p->arena_bytes};
    int64_t spaces = 0;
    for (int s = 0; s < SPACE_COUNT; s++) {
        m.bytes[s] = p->space_bytes[s];
        spaces += p->space_bytes[s];
    }
    m.device_bytes = device == DEVICE_CPU ? 0 : spaces;
    m.host_bytes = p->arena_bytes + (device == DEVICE_CPU ? spaces : p->space_bytes[SPACE_HOST]);
    m.total_bytes = m.device_bytes + m.host_bytes;
    *ret = m;
}

/* Of all workers on the node together; of the one that needs most. */
struct need {
    int64_t host, largest[SPACE_COUNT], arena;
};

static err_t need_of_rank(const struct job_spec *job, const struct graph *g, int rank, struct need *need,
                          struct why *why)
{
    struct program p;
    struct plan_memory m;
    err_t e = plan_compile(job, g, MODE_TRAIN, rank, &p, why);
    if (e)
        return e;
    plan_memory(&p, job->run.device, &m);
    program_fini(&p);
    need->arena = m.arena_bytes > need->arena ? m.arena_bytes : need->arena;
    for (int s = 0; s < SPACE_COUNT; s++)
        need->largest[s] = m.bytes[s] > need->largest[s] ? m.bytes[s] : need->largest[s];
    if (__builtin_add_overflow(need->host, m.host_bytes, &need->host))
        return why_set(why, ERR_INVALID, "the job needs more than 2^63 bytes");
    return OK;
}

static double gib(int64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

/* What to change is what the largest part depends on; or the batch, where half of the activations would be enough. */
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

static err_t refuse(const struct job_spec *job, const struct need *n, int64_t node_bytes, struct why *why)
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

err_t plan_fits(const struct job_spec *job, int64_t node_bytes, struct why *why)
{
    struct graph g;
    struct mesh mesh;
    struct need need = {0};
    err_t e = plan_mesh(job, &mesh, why);
    if (!e)
        e = graph_build(&job->model, job->train.seq, &g, why);
    if (e)
        return e;
    for (int r = 0; r < mesh_workers(&mesh) && !e; r++)
        e = need_of_rank(job, &g, r, &need, why);
    graph_fini(&g);
    if (!e && need.host > node_bytes)
        e = refuse(job, &need, node_bytes, why);
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
