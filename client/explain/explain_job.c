/* A job, compiled for all ranks and animated: what `dtctl explain` and the web page share. */
#include "client/explain/explain.h"

#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"

#include <stdlib.h>

/* A page of more ranks is neither readable nor small. */
#define EXPLAIN_MAX_RANKS 64
/* Transfers of a step; a page of more than about 10 MB is slow to open. */
#define EXPLAIN_MAX_MOVES 50000

void explain_job_fini(struct explain_job *e)
{
    explain_fini(&e->animation);
    for (int r = 0; r < e->n && e->programs; r++)
        program_fini(&e->programs[r]);
    free(e->programs);
    graph_fini(&e->graph);
}

err_t explain_job_compile(const struct job_spec *job, struct explain_job *e, struct why *why)
{
    struct mesh mesh;
    err_t err = plan_mesh(job, &mesh, why);
    if (err)
        return err;
    if (mesh_workers(&mesh) > EXPLAIN_MAX_RANKS)
        return why_set(
            why, ERR_LIMIT,
            "parallel.workers: %d workers do not fit on a page, which has room for %d. Explain a smaller job "
            "of the same layout: --set parallel.workers=N",
            mesh_workers(&mesh), EXPLAIN_MAX_RANKS);
    err = graph_build(&job->model, job->train.seq, &e->graph, why);
    if (err)
        return err;
    e->programs = calloc((size_t)mesh_workers(&mesh), sizeof(*e->programs));
    if (!e->programs)
        return why_set(why, ERR_NOMEM, "out of memory for the plans of %d workers", mesh_workers(&mesh));
    err = plan_compile_all(job, &e->graph, MODE_TRAIN, mesh_workers(&mesh), e->programs, why);
    e->n = err ? 0 : mesh_workers(&mesh);
    return err ? err : plan_check(&e->graph, e->programs, e->n, why);
}

err_t explain_job_animate(const struct job_spec *job, const struct forecast *measured, struct explain_job *e,
                          struct why *why)
{
    const struct plan_rates rates = plan_rates_of(job);
    err_t err = explain_init(e->programs, &e->graph, e->n, &rates, measured, &e->animation, why);
    if (!err && e->animation.n_moves > EXPLAIN_MAX_MOVES)
        return why_set(
            why, ERR_LIMIT,
            "a step of %d transfers does not fit on a page, which has room for %d; lower train.global_batch or "
            "model.layers",
            e->animation.n_moves, EXPLAIN_MAX_MOVES);
    return err;
}
