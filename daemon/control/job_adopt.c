/* A control that has just started knows the log and, from the supervisor's list, which processes live. A job whose
 * workers all live goes on in its epoch; any other goes on in a new one; a job without an epoch goes on being started.
 */
#include "daemon/control/job.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/node.h"

#include <inttypes.h>
#include <stdio.h>

static int count(const struct job *j, enum process_state state)
{
    int n = 0;
    for (int k = 0; k < j->n_workers; k++)
        n += j->workers[k].p.state == state;
    return n;
}

/* The first worker whose end is known tells best what happened. */
static void lost(struct job *j)
{
    char text[256];
    for (int k = 0; k < j->n_workers; k++) {
        const struct job_process *p = &j->workers[k].p;
        if (p->state != PROCESS_ENDED)
            continue;
        job_process_obituary(j, k, text, sizeof(text));
        job_epoch_lost(j, (double)(clock_mono_ns() - p->exit_ns) / 1e6, true, "%s", text);
        return;
    }
    job_epoch_lost(j, 0, true, "not all workers were there when dtd-control was started again");
}

/* The whole dtd was stopped or killed; that is not the job's failure and counts as no restart. */
static void begin_again(struct job *j)
{
    j->state.state = JOB_RECOVERING;
    job_incident_open(j, "dtd ended, and the job's processes with it", 0, true);
    job_incident_decided(j, "new epoch %" PRIu64, j->epoch + 1);
    job_move(j, PHASE_GATHERING, "dtd was started again");
}

void job_adopt(struct job *j)
{
    int live = count(j, PROCESS_LIVE), ended = count(j, PROCESS_ENDED);
    bool any = live || ended || j->io.p.state != PROCESS_ABSENT;
    if (!any && j->epoch == 0)
        return;                          /* it waits, as anybody */
    j->node->slots.used += j->n_workers; /* it had its place already */
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].device >= 0)
            gpus_adopt(&j->node->gpus, j->id, j->workers[k].device);
    job_place(j);
    log_info("adopted job=%" PRIu64 " epoch=%" PRIu64 " live=%d ended=%d", j->id, j->epoch, live, ended);
    if (j->stopping) /* canceled: the first tick turns to that */
        return;
    if (j->epoch == 0) {
        job_move(j, PHASE_GATHERING, "its start goes on");
        return;
    }
    job_epoch_find_resume(j);
    if (!live && !ended) {
        begin_again(j);
        return;
    }
    j->state.state = JOB_RUNNING;
    job_move(j, PHASE_REJOINING, "a new control");
    if (live < j->n_workers)
        lost(j);
}
