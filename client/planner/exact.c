/* The memory of a layout from its programs, as `dtctl plan` prints it. Replicas of data parallelism are equal, so a job
 * with one of them, and its part of the batch, needs the same memory per worker and is compiled faster. */
#include "client/planner/internal.h"

#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"

#include <stdlib.h>

/* The rules over several keys are in the parser of job files. */
err_t planner_rules_check(const struct job_spec *job, struct why *why)
{
    struct buf text = {0};
    struct job_spec again = {0};
    err_t err = job_print(job, &text);
    err = err ? err : job_parse("the layout", (const char *)text.data, text.len, NULL, 0, &again, why);
    job_fini(&again);
    buf_fini(&text);
    return err;
}

err_t planner_exact(const struct job_spec *job, const struct graph *g, const struct plan_layout *l, double *ret_bytes,
                    struct why *why)
{
    struct job_spec one = *job; /* borrows all strings */
    struct plan_layout single = *l;
    single.dp = 1;
    plan_layout_apply(&single, &one);
    one.train.global_batch = (job->train.global_batch + l->dp - 1) / l->dp;
    err_t err = planner_rules_check(&one, why);
    if (err)
        return err;
    struct plan_memory *ranks = calloc((size_t)one.parallel.workers, sizeof(*ranks));
    err = ranks ? plan_memory_of_ranks(&one, g, ranks, why) : ERR_NOMEM;
    int64_t most = 0;
    for (int64_t i = 0; !err && i < one.parallel.workers; i++) {
        int64_t bytes = ranks[i].device_bytes ? ranks[i].device_bytes : ranks[i].host_bytes;
        most = bytes > most ? bytes : most;
    }
    free(ranks);
    if (!err)
        *ret_bytes = (double)most;
    return err;
}
