/* A profile of the next steps of a job (dtctl profile). It is not in the log: a new leader has none, and a caller that
 * repeats its request there starts another one.
 *
 * Each worker receives PROFILE once on its present connection; the ids ascend, so a worker that receives one twice, or
 * that has already begun it because another rank asked for it, ignores the second. The ranks agree on the first step
 * themselves, as they do for STOP. Each reports PROFILED after it has written its file, always before DONE. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_active(const struct job_profile *p)
{
    return p->id && !p->error[0] && p->written < p->workers;
}

/* Why no profile can start now. */
static err_t refuse(const struct job *j, struct why *why)
{
    const char *state = job_view_of(j).state;
    if (j->phase.state == PHASE_OVER || job_over(j))
        return why_set(why, ERR_INVALID, "job %" PRIu64 " is %s: only a running job has steps to profile", j->id,
                       state);
    if (!j->kind->saves)
        return why_set(why, ERR_INVALID,
                       "job %" PRIu64
                       " runs a command, whose steps dtd does not see; use the profiler of its framework, "
                       "such as torch.profiler",
                       j->id);
    if (j->phase.state != PHASE_STEPPING || j->stopping || j->moving)
        return why_set(why, ERR_INVALID, "job %" PRIu64 " is %s%s%s: profile it while it is running", j->id, state,
                       j->reason[0] ? ": " : "", j->reason);
    if (is_active(&j->profile))
        return why_set(why, ERR_EXISTS,
                       "job %" PRIu64
                       " is being profiled already: %d of its %d workers have written their %d steps; try "
                       "again when it is complete",
                       j->id, j->profile.written, j->profile.workers, j->profile.steps);
    return OK;
}

err_t job_profile_start(struct job *j, uint64_t request, int steps, struct why *why)
{
    struct job_profile *p = &j->profile;
    if (p->id && p->request == request)
        return OK;
    err_t err = refuse(j, why);
    if (err)
        return err;
    const uint64_t now = (uint64_t)clock_wall_ms();
    *p = (struct job_profile){.id = now > p->id ? now : p->id + 1,
                              .request = request,
                              .epoch = j->epoch,
                              .steps = steps,
                              .workers = j->n_workers};
    log_info("profile begins job=%" PRIu64 " id=%" PRIu64 " steps=%d", j->id, p->id, steps);
    jobs_tick(j->jobs);
    return OK;
}

struct job_profile_view job_profile_view_of(const struct job *j)
{
    const struct job_profile *p = &j->profile;
    return (struct job_profile_view){.id = p->id,
                                     .epoch = p->epoch,
                                     .steps = p->steps,
                                     .workers = p->workers,
                                     .written = p->written,
                                     .error = p->error,
                                     .done = !p->error[0] && p->written == p->workers};
}

static void fail_profile(struct job *j, const char *text)
{
    struct job_profile *p = &j->profile;
    if (p->error[0])
        return;
    snprintf(p->error, sizeof(p->error), "%s", text);
    log_warn("profile failed job=%" PRIu64 " id=%" PRIu64 " text=%s", j->id, p->id, text);
}

/* The epoch cannot complete the profile any more: it has ended, or all its workers have left it. */
static void check_epoch(struct job *j)
{
    char text[640];
    const bool draining = j->phase.state == PHASE_DRAINING;
    const bool steps = j->phase.state == PHASE_STEPPING || j->phase.state == PHASE_REJOINING || draining;
    if (j->profile.epoch == j->epoch && steps)
        return;
    if (j->incident.open && j->incident.seen[0])
        snprintf(text, sizeof(text), "epoch %" PRIu64 " ended during the profile: %s", j->profile.epoch,
                 j->incident.seen);
    else
        snprintf(text, sizeof(text),
                 "job %" PRIu64 " is %s: it ended before its next step, so nothing was left to profile", j->id,
                 job_view_of(j).state);
    fail_profile(j, text);
}

void job_profile_tick(struct job *j)
{
    const struct job_profile *p = &j->profile;
    if (is_active(p))
        check_epoch(j);
    for (int k = 0; is_active(p) && j->phase.state == PHASE_STEPPING && k < j->n_workers; k++) {
        struct job_worker *w = &j->workers[k];
        if (w->p.attend && w->epoch == p->epoch && w->profile_sent != p->id &&
            j->jobs->out->worker_profile(w->p.attend, p->epoch, p->id, p->steps) == OK)
            w->profile_sent = p->id;
    }
}

void job_profile_written(struct job *j, int rank, uint64_t id, const char *text)
{
    struct job_worker *w = &j->workers[rank];
    if (id != j->profile.id || w->profile_written == id)
        return;
    w->profile_written = id;
    if (text[0]) {
        char full[640];
        snprintf(full, sizeof(full), "worker rank %d: %s", rank, text);
        fail_profile(j, full);
        return;
    }
    j->profile.written++;
    if (j->profile.written == j->profile.workers)
        log_info("profile complete job=%" PRIu64 " id=%" PRIu64, j->id, id);
}
