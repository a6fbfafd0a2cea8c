/* The forecast of the job's step, from the job file that the job runs with and the number of its workers now. */
#include "client/profile/profile.h"

#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"

#include <stdlib.h>
#include <string.h>

/* Ops of a step of all ranks; a second or two of one core. */
#define FORECAST_MAX_CALLS 1000000

static int64_t calls_of(const struct profile *p)
{
    int64_t n = 0;
    for (int k = 0; k < p->n; k++)
        n += p->rank[k].n_calls;
    return n;
}

static err_t forecast_programs(const struct job_spec *job, const struct graph *g, int n, struct forecast *ret,
                               struct why *why)
{
    const struct plan_rates rates = plan_rates_of(job);
    struct program *programs = calloc((size_t)n, sizeof(*programs));
    if (!programs)
        return why_set(why, ERR_NOMEM, "out of memory for the plans of %d workers", n);
    err_t err = plan_compile_all(job, g, MODE_TRAIN, n, programs, why);
    if (!err) {
        err = plan_forecast(programs, n, &rates, ret, why);
        for (int k = 0; k < n; k++)
            program_fini(&programs[k]);
    }
    free(programs);
    return err;
}

err_t profile_forecast(struct profile *p, const char *spec_yaml, struct why *why)
{
    struct job_spec job = {0};
    struct graph graph = {0};
    if (calls_of(p) > FORECAST_MAX_CALLS)
        return why_set(why, ERR_LIMIT, "the plan of %d workers is too large to be forecast in a few seconds", p->n);
    err_t err = job_parse("the job's spec", spec_yaml, strlen(spec_yaml), NULL, 0, &job, why);
    if (err)
        return err;
    job.parallel.workers = p->n;
    err = graph_build(&job.model, job.train.seq, &graph, why);
    err = err ? err : forecast_programs(&job, &graph, p->n, &p->forecast, why);
    graph_fini(&graph);
    job_fini(&job);
    return err;
}
