/* Whether the job's own layout fits, before the machine is rented. That follows from its programs, as the memory of
 * --search does. */
#include "client/planner/nearest.h"

#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"

#include <inttypes.h>
#include <stdio.h>

struct fit {
    const struct planning *p;
    const struct job_spec *job;
    const struct graph *graph;
};

/* The exact memory, or the estimate where the layout is too large to compile. */
static err_t layout_bytes(const struct fit *o, const struct plan_layout *l, double *ret, bool *ret_exact,
                          struct why *why)
{
    struct plan_bytes bytes;
    *ret_exact = plan_layout_workers(l) / l->dp <= PLAN_COMPILED_WORKERS;
    if (*ret_exact)
        return planner_exact(o->job, o->graph, l, ret, why);
    plan_step_bytes(&o->p->shape, l, &bytes);
    *ret = bytes.total;
    return OK;
}

/* By how much an estimate may be too high: it is within a tenth of the largest worker, and workers differ. */
#define UNSURE 1.3

/* The estimate comes first, because a compilation takes longer. */
static bool layout_fits(void *arg, const struct plan_layout *l)
{
    const struct fit *o = arg;
    struct plan_bytes bytes;
    struct why ignored = {0};
    double exact;
    bool is_exact;
    plan_step_bytes(&o->p->shape, l, &bytes);
    return bytes.total < UNSURE * o->p->search.memory && !layout_bytes(o, l, &exact, &is_exact, &ignored) &&
           exact <= o->p->search.memory;
}

static err_t complain(const struct fit *o, const struct plan_layout *own, double bytes, struct why *why)
{
    char nearest[600], layout[256], a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    planner_nearest_text(o->p, own, layout_fits, (void *)o, nearest, sizeof(nearest));
    return why_set(why, ERR_INVALID, "the layout of job %s needs %s on each worker, %s more than %s has (%s): %s; %s",
                   o->job->name, out_bytes((int64_t)bytes, a), out_bytes((int64_t)(bytes - o->p->search.memory), b),
                   o->p->machine.name, out_bytes((int64_t)o->p->search.memory, c),
                   planner_layout_text(own, layout, sizeof(layout)),
                   nearest[0] ? nearest : "no layout near it fits: --search looks at all");
}

err_t planner_fit(const struct planning *p, const struct job_spec *job, const struct plan_layout *own,
                  struct planned_memory *ret, struct why *why)
{
    struct graph graph = {0};
    const struct fit o = {p, job, &graph};
    err_t err = graph_build(&job->model, job->train.seq, &graph, why);
    err = err ? err : layout_bytes(&o, own, &ret->bytes, &ret->exact, why);
    if (!err && ret->bytes > p->search.memory)
        err = complain(&o, own, ret->bytes, why);
    graph_fini(&graph);
    return err;
}

/* ---- jobs that are submitted here ---- */

struct here {
    const struct planning *p;
    const struct job_spec *job;
    int64_t node_bytes;
};

/* The estimate first, since a job may have many workers, and each proposal compiles a rank of each kind. */
static bool here_fits(void *arg, const struct plan_layout *l)
{
    const struct here *h = arg;
    struct job_spec other = *h->job; /* borrows all strings */
    struct plan_bytes bytes;
    struct why ignored = {0};
    plan_step_bytes(&h->p->shape, l, &bytes);
    if (bytes.total * (double)plan_layout_workers(l) > UNSURE * (double)h->node_bytes)
        return false;
    plan_layout_apply(l, &other);
    return !planner_rules_check(&other, &ignored) && !plan_fits(&other, h->node_bytes, &ignored);
}

void planner_nearest_here(const struct job_spec *job, int64_t node_bytes, struct why *why)
{
    const struct planner_args none = {0};
    struct planning p;
    struct plan_layout own;
    struct why ignored = {0};
    char nearest[400], sentence[sizeof(why->text)];
    if (job->run.device != DEVICE_CPU || !job->model.vocab || planning_init(&p, &none, job, &ignored))
        return;
    struct here here = {&p, job, node_bytes};
    plan_layout_of(job, &own);
    planner_nearest_text(&p, &own, here_fits, &here, nearest, sizeof(nearest));
    planning_fini(&p);
    if (!nearest[0])
        return;
    snprintf(sentence, sizeof(sentence), "%s", why->text);
    (void)!why_set(why, ERR_INVALID, "%s; %s", sentence, nearest);
}
