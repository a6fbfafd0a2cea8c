/* The data of a job for other folders (job.h). */
#include "daemon/control/job/internal.h"

/* While the log accepts no records, the job continues but nothing about it is recorded. If the job has no reason of its
 * own, that is the reason shown. */
static const char *reason_of(const struct job *j)
{
    const char *full = job_over(j) || !j->jobs->replica->log ? NULL : log_warning(j->jobs->replica->log);
    return j->reason[0] ? j->reason : full;
}

struct job_view job_view_of(const struct job *j)
{
    return (struct job_view){.id = j->id,
                             .uid = j->uid,
                             .submitted_ms = j->submitted_ms,
                             .spec = &j->spec,
                             .yaml = j->layout.shown ? j->layout.shown : j->yaml,
                             .layout_why = j->layout.why,
                             .state = fsm_name(&j->state),
                             .logged = state_job_find(j->jobs->replica->state, j->id),
                             .reason = reason_of(j),
                             .checkpoint_error = j->checkpoint_error,
                             .epoch = j->epoch,
                             .step = job_step(j),
                             .n_workers = j->n_workers,
                             .max_workers = j->max_workers,
                             .grace_left_ms = job_grace_left_ms(j),
                             .restarts = j->restarts,
                             .metrics = &j->metrics,
                             .metric_ms = j->metric_ms,
                             .totals = &j->totals.t};
}

struct job_rank_view job_rank_view_of(const struct job *j, int rank)
{
    const struct job_worker *w = &j->workers[rank];
    return (struct job_rank_view){.node = w->p.node ? w->p.node->name : NULL,
                                  .slot = w->p.slot,
                                  .state = j->kind->worker_state(j, w),
                                  .pid = w->p.pid,
                                  .has_exit = w->p.has_exit,
                                  .exit_status = w->p.exit_status,
                                  .exit_signal = w->p.exit_signal};
}

struct job *job_next(const struct job *j)
{
    return j->next;
}

bool job_curve_due(struct job *j)
{
    return metrics_curve_due(&j->metrics);
}

struct watch **job_watches(struct job *j)
{
    return &j->watches;
}

/* ---- the epoch's rendezvous ---- */

err_t job_rendezvous(struct job *j, struct job_process *p, uint64_t epoch, struct rendezvous **ret)
{
    if (epoch != j->epoch || !(job_in_epoch(j) || j->adopting))
        return ERR_STALE;
    j->workers[job_process_rank(j, p)].rendezvous_epoch = epoch;
    *ret = &j->rendezvous;
    return OK;
}

static bool has_not_used_rendezvous(const struct job_worker *w)
{
    return w->rendezvous_epoch != w->epoch || !w->epoch || !w->p.attend;
}

int job_rendezvous_missing(const struct job *j, char *ret, size_t size)
{
    return job_workers_name(j, has_not_used_rendezvous, ret, size);
}

struct rendezvous *job_rendezvous_of(struct job *j)
{
    return &j->rendezvous;
}
