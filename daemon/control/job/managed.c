/* A job whose workers are dt-worker. They open a command stream, train in steps, and save through the dtd-io of their
 * node. Commands to them are in commands.c. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- phases ---- */

static bool ios_attend(const struct job *j)
{
    for (int i = 0; i < j->n_ios; i++)
        if (!j->ios[i].p.attend)
            return false;
    return true;
}

static void name_missing_processes(const struct job *j, char *ret, size_t size)
{
    int n = job_workers_name(j, job_worker_is_missing, ret, size);
    if (!ios_attend(j))
        snprintf(ret + strlen(ret), size - strlen(ret), "%sdtd-io", n ? " and " : "");
}

static bool managed_gather(struct job *j)
{
    j->kind->need(j, true);
    if (j->stopping)
        return true;
    if (ios_attend(j) && job_none(j, job_worker_is_missing)) {
        job_committer(j)->scan = SCAN_DUE;
        job_move(j, PHASE_SCANNING, "all processes are connected");
        return true;
    }
    if (!job_past_deadline(j))
        return false;
    char who[256];
    name_missing_processes(j, who, sizeof(who));
    for (int k = 0; k < j->n_workers; k++)
        if (job_worker_is_missing(&j->workers[k]))
            job_process_kill(j, &j->workers[k].p, SIGKILL);
    for (int i = 0; i < j->n_ios; i++)
        if (!j->ios[i].p.attend)
            job_process_kill(j, &j->ios[i].p, SIGKILL);
    job_epoch_lost(j, 0, false, "%s did not connect within %d s", who, JOB_GATHER_MS / 1000);
    return true;
}

static bool managed_load(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (job_none(j, job_worker_is_not_ready)) {
        job_move(j, PHASE_STEPPING, "all workers are ready");
        return true;
    }
    if (!job_past_deadline(j))
        return false;
    char who[256];
    job_workers_name(j, job_worker_is_not_ready, who, sizeof(who));
    for (int k = 0; k < j->n_workers; k++)
        if (job_worker_is_not_ready(&j->workers[k]))
            job_process_kill(j, &j->workers[k].p, SIGKILL);
    job_epoch_lost(j, 0, false, "%s did not become ready within %d s", who, JOB_LOAD_MS / 1000);
    return true;
}

static void managed_watch(struct job *j)
{
    job_look_for_room(j, "the next checkpoint");
    if (!j->stopping && !j->moving)
        job_hang_tick(j);
}

static bool managed_adopted(struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.state != PROCESS_LIVE)
            return false;
    return true;
}

/* Workers react to END and QUIT at once, so the deadline of the phase and the end of the time of grace are enough. */
static int64_t managed_grace_ms(const struct job *j)
{
    return j->phase.state == PHASE_QUITTING ? job_quit_ms(j) : -1;
}

/* The incidents and the checkpoints show how the workers ended. */
static void managed_stopped(struct job *j)
{
}

/* ---- processes ---- */

static void need_io(struct job *j, struct job_io *io)
{
    if (job_process_is_due(&io->p) && clock_mono_ms() >= io->retry_ms) {
        io->scan = SCAN_DUE;
        io->epoch = 0;
        io->quit_sent = false;
        job_process_start(j, &io->p);
    }
    job_process_watch_silence(j, &io->p);
}

static void managed_need(struct job *j, bool workers)
{
    for (int i = 0; i < j->n_ios; i++)
        need_io(j, &j->ios[i]);
    for (int k = 0; k < j->n_workers && !j->stopping; k++) {
        struct job_worker *w = &j->workers[k];
        if (!workers)
            job_process_watch_silence(j, &w->p);
        else if (job_process_is_due(&w->p) && !job_worker_start(j, w))
            return;
    }
}

/* A worker gets all its parameters with START. */
static err_t managed_complete_spawn(struct job *j, const struct job_process *p, struct process_spawn *x,
                                    char ***ret_env)
{
    *ret_env = NULL;
    return OK;
}

/* A worker reports itself when it is ready or done. */
static void managed_changed(struct job *j, struct job_worker *w)
{
}

/* The exit of the node's dtd-io releases the job there. */
static void managed_left(struct job *j, struct job_io *io)
{
}

static const char *managed_worker_state(const struct job *j, const struct job_worker *w)
{
    switch (w->p.state) {
    case PROCESS_ABSENT:
        return "absent";
    case PROCESS_ENDED:
        return "ended";
    case PROCESS_ASKED:
    case PROCESS_LIVE:
        break;
    }
    if (!w->p.attend)
        return w->p.attended ? "silent" : "starting";
    if (w->done)
        return "done";
    if (!w->epoch || w->epoch != j->epoch)
        return "idle";
    return w->ready ? "running" : "loading";
}

const struct job_kind job_kind_managed = {
    .saves = true,
    .kills_again = true,
    .done = "all steps done",
    .gather = managed_gather,
    .load = managed_load,
    .watch = managed_watch,
    .adopted = managed_adopted,
    .grace_ms = managed_grace_ms,
    .need = managed_need,
    .complete_spawn = managed_complete_spawn,
    .changed = managed_changed,
    .stopped = managed_stopped,
    .left = managed_left,
    .command = job_commands,
    .worker_state = managed_worker_state,
};
