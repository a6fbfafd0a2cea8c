/* What a job needs, before anything is allocated. The plan is exact, so the forecast is the plan's own sum: every space
 * and the arena of every worker on the node. In this version all workers of a job are on one node. */
#include "common/plan/program.h"

#include <stdlib.h>

void plan_memory(const struct program *p, struct plan_memory *ret)
{
    struct plan_memory m = {.arena_bytes = p->arena_bytes, .total_bytes = p->arena_bytes};
    for (int s = 0; s < SPACE_COUNT; s++) {
        m.bytes[s] = p->space_bytes[s];
        m.total_bytes += p->space_bytes[s];
    }
    *ret = m;
}

struct need {
    int64_t total, largest[SPACE_COUNT], arena;
};

static err_t need_of_rank(const struct job_spec *job, const struct graph *g, int rank, struct need *need,
                          struct why *why)
{
    struct program p;
    struct plan_memory m;
    err_t e = plan_compile(job, g, MODE_TRAIN, rank, &p, why);
    if (e)
        return e;
    plan_memory(&p, &m);
    program_fini(&p);
    need->arena = m.arena_bytes > need->arena ? m.arena_bytes : need->arena;
    for (int s = 0; s < SPACE_COUNT; s++)
        need->largest[s] = m.bytes[s] > need->largest[s] ? m.bytes[s] : need->largest[s];
    if (__builtin_add_overflow(need->total, m.total_bytes, &need->total))
        return why_set(why, ERR_INVALID, "the job needs more than 2^63 bytes");
    return OK;
}

static double gib(int64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

/* What to change is what the largest part depends on. */
static err_t refuse(const struct job_spec *job, const struct need *n, int64_t node_bytes, struct why *why)
{
    int64_t work = n->largest[SPACE_WORK];
    int64_t states = n->largest[SPACE_PARAM] + n->largest[SPACE_OPT] + n->largest[SPACE_GRAD] + n->arena;
    const char *change = job->parallel.workers > 1 ? "lower parallel.workers, or model.dim or model.layers"
                                                   : "lower model.dim or model.layers";
    if (work > states)
        change = job->train.micro_batch > 1 ? "lower train.micro_batch or train.seq" : "lower train.seq";
    else if (job->train.numerics == NUMERICS_CANONICAL && n->largest[SPACE_GRAD] > n->largest[SPACE_OPT])
        change = "raise train.micro_batch, which makes the tree of gradients smaller, or set train.numerics to fast";
    return why_set(
        why, ERR_INVALID,
        "the job needs %.2f GiB on the node, which has %.2f GiB: %lld workers with up to %.2f GiB parameters, "
        "%.2f optimizer state, %.2f gradients, %.2f activations and %.2f to hold a save; %s",
        gib(n->total), gib(node_bytes), (long long)job->parallel.workers, gib(n->largest[SPACE_PARAM]),
        gib(n->largest[SPACE_OPT]), gib(n->largest[SPACE_GRAD]), gib(work), gib(n->arena), change);
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
    if (!e && need.total > node_bytes)
        e = refuse(job, &need, node_bytes, why);
    return e;
}
