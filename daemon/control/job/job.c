/* See internal.h for the two state machines. job_tick calls the step function of the current phase until none changes
 * the phase; callbacks only store events and call the tick. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_MS 120000
#define END_MS 10000
#define REJOIN_MS 20000
#define DRAIN_CANCEL_MS 10000
#define DRAIN_LEAVE_MS 12000 /* shorter than the supervisor's own limit for a shutdown */
#define DRAIN_SAVE_MS 120000
#define QUIT_MS 6000

/* ---- the tables ---- */

#define LIVE_TO (FSM_TO(JOB_STOPPING))

static const struct fsm_state job_states[] = {
    [JOB_PENDING] = {"pending", FSM_TO(JOB_STARTING) | LIVE_TO},
    [JOB_STARTING] = {"starting", FSM_TO(JOB_RUNNING) | FSM_TO(JOB_RECOVERING) | LIVE_TO},
    [JOB_RUNNING] = {"running", FSM_TO(JOB_RECOVERING) | LIVE_TO},
    [JOB_RECOVERING] = {"recovering", FSM_TO(JOB_RUNNING) | LIVE_TO},
    [JOB_STOPPING] = {"stopping", FSM_TO(JOB_DONE) | FSM_TO(JOB_FAILED) | FSM_TO(JOB_CANCELED)},
    [JOB_DONE] = {"done", 0},
    [JOB_FAILED] = {"failed", 0},
    [JOB_CANCELED] = {"canceled", 0},
};

#define LEAVE_TO (FSM_TO(PHASE_ENDING) | FSM_TO(PHASE_QUITTING))

static const struct fsm_state job_phases[] = {
    [PHASE_WAITING] = {"waiting", FSM_TO(PHASE_GATHERING) | FSM_TO(PHASE_REJOINING) | LEAVE_TO},
    [PHASE_GATHERING] = {"gathering", FSM_TO(PHASE_SCANNING) | LEAVE_TO},
    [PHASE_SCANNING] = {"scanning", FSM_TO(PHASE_COMMITTING) | LEAVE_TO},
    [PHASE_COMMITTING] = {"committing", FSM_TO(PHASE_LOADING) | LEAVE_TO},
    [PHASE_LOADING] = {"loading", FSM_TO(PHASE_STEPPING) | LEAVE_TO},
    [PHASE_STEPPING] = {"stepping", FSM_TO(PHASE_DRAINING) | LEAVE_TO},
    [PHASE_ENDING] = {"ending", FSM_TO(PHASE_GATHERING) | FSM_TO(PHASE_WAITING) | FSM_TO(PHASE_QUITTING)},
    [PHASE_REJOINING] = {"rejoining", FSM_TO(PHASE_STEPPING) | FSM_TO(PHASE_DRAINING) | LEAVE_TO},
    [PHASE_DRAINING] = {"draining", FSM_TO(PHASE_QUITTING)},
    [PHASE_QUITTING] = {"quitting", FSM_TO(PHASE_RECORDING) | FSM_TO(PHASE_OVER)},
    [PHASE_RECORDING] = {"recording", FSM_TO(PHASE_OVER)},
    [PHASE_OVER] = {"over", 0},
};

static enum job_state state_of_end(enum state_end end)
{
    return end == END_DONE ? JOB_DONE : end == END_CANCELED ? JOB_CANCELED : JOB_FAILED;
}

/* ---- life ---- */

static err_t job_fill(struct job *j, const struct state_job *s)
{
    char path[PATH_MAX];
    struct why why = {""};
    j->yaml = strdup(s->spec);
    if (!j->yaml)
        return ERR_NOMEM;
    err_t err = job_parse("job", s->spec, strlen(s->spec), NULL, 0, &j->spec, &why);
    if (err) {
        log_error("job's spec id=%" PRIu64 " why=%s", s->id, why.text);
        return err;
    }
    j->kind = job_is_command(&j->spec) ? &job_kind_command : &job_kind_managed;
    j->max_workers = j->n_workers = (int)j->spec.parallel.workers;
    j->workers = calloc((size_t)j->max_workers, sizeof(*j->workers));
    if (!j->workers)
        return ERR_NOMEM;
    for (int k = 0; k < j->max_workers; k++)
        j->workers[k].device = -1;
    snprintf(path, sizeof(path), "%s/metrics/%" PRIu64 ".jsonl", j->jobs->dir, j->id);
    return metrics_init(&j->metrics, path);
}

err_t job_new(struct jobs *jobs, const struct state_job *s, struct job **ret)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return ERR_NOMEM;
    j->jobs = jobs;
    j->id = s->id;
    j->uid = s->uid;
    j->unread_step = -1;
    j->submitted_ms = s->submitted_ms;
    j->epoch = s->epoch.epoch;
    j->resume_step = s->epoch.resume_step;
    j->restarts = s->epoch.restarts;
    rendezvous_init(&j->rendezvous);
    j->outcome = s->end;
    bool over = s->end != END_NONE;
    j->state = (struct fsm){"job", s->id, job_states, over ? (int)state_of_end(s->end) : JOB_PENDING};
    j->phase = (struct fsm){"phase", s->id, job_phases, over ? PHASE_OVER : PHASE_WAITING};
    snprintf(j->reason, sizeof(j->reason), "%s", s->reason ? s->reason : "");
    err_t err = job_fill(j, s);
    if (err) {
        job_free(j);
        return err;
    }
    job_cancel(j, s->desired);
    *ret = j;
    return OK;
}

void job_free(struct job *j)
{
    assert(!j->watches);
    rendezvous_clear(&j->rendezvous, ERR_CLOSED);
    job_scan_forget(j);
    metrics_fini(&j->metrics);
    buf_fini(&j->io_lines);
    job_fini(&j->spec);
    free(j->resume_path);
    free((char *)j->incident.fields.log);
    free(j->workers);
    free(j->ios);
    free(j->yaml);
    free(j);
}

bool job_over(const struct job *j)
{
    return j->phase.state == PHASE_OVER;
}

int64_t job_step(const struct job *j)
{
    if (j->metrics.has_last && j->metrics.last.epoch >= j->epoch)
        return j->metrics.last.step;
    return job_over(j) && j->metrics.has_last ? j->metrics.last.step : j->resume_step;
}

/* ---- moving ---- */

void job_show(struct job *j, enum job_state state, const char *why)
{
    if (j->state.state == (int)state)
        return;
    fsm_move(&j->state, state, why);
    j->dirty = true;
}

void job_deadline(struct job *j, int64_t ms)
{
    j->deadline_ms = ms ? clock_mono_ms() + ms : 0;
}

/* What a phase shows, and how long it may take. */
static const struct {
    int show; /* -1: as it was; JOB_PENDING and JOB_STARTING become recovering after the first epoch */
    int64_t deadline_ms;
} phases[] = {
    [PHASE_WAITING] = {JOB_PENDING, 0},
    [PHASE_GATHERING] = {JOB_STARTING, JOB_GATHER_MS},
    [PHASE_SCANNING] = {JOB_STARTING, SCAN_MS},
    [PHASE_COMMITTING] = {-1, 0},
    [PHASE_LOADING] = {-1, JOB_LOAD_MS},
    [PHASE_STEPPING] = {JOB_RUNNING, 0},
    [PHASE_ENDING] = {JOB_RECOVERING, END_MS},
    [PHASE_REJOINING] = {-1, REJOIN_MS},
    [PHASE_DRAINING] = {JOB_STOPPING, DRAIN_CANCEL_MS},
    [PHASE_QUITTING] = {JOB_STOPPING, QUIT_MS},
    [PHASE_RECORDING] = {JOB_STOPPING, 0},
    [PHASE_OVER] = {-1, 0},
};

bool job_in_epoch(const struct job *j)
{
    return j->phase.state == PHASE_LOADING || j->phase.state == PHASE_STEPPING || j->phase.state == PHASE_REJOINING ||
           j->phase.state == PHASE_DRAINING;
}

void job_move(struct job *j, enum job_phase to, const char *why)
{
    fsm_move(&j->phase, to, why);
    if (!job_in_epoch(j))
        rendezvous_clear(&j->rendezvous, ERR_STALE);
    if (to == PHASE_STEPPING)
        job_hang_begin(j);
    j->moving = false;
    job_incident_phase(j, to);
    bool ends = to == PHASE_ENDING || to == PHASE_QUITTING;
    int64_t grace = ends ? j->kind->grace_ms(j) : 0;
    job_deadline(j, grace ? grace : phases[to].deadline_ms);
    int show = phases[to].show;
    if ((show == JOB_STARTING || show == JOB_PENDING) && (j->epoch || j->restarts))
        show = JOB_RECOVERING;
    if (show >= 0)
        job_show(j, (enum job_state)show, why);
    j->dirty = true;
}

bool job_past_deadline(const struct job *j)
{
    return j->deadline_ms && clock_mono_ms() >= j->deadline_ms;
}

bool job_none(const struct job *j, bool (*pick)(const struct job_worker *w))
{
    for (int k = 0; k < j->n_workers; k++)
        if (pick(&j->workers[k]))
            return false;
    return true;
}

bool job_worker_is_missing(const struct job_worker *w)
{
    return !w->p.attend || w->p.killed;
}

bool job_worker_is_not_ready(const struct job_worker *w)
{
    return !w->ready;
}

/* ---- stopping ---- */

static void stop(struct job *j, enum state_end end, bool save)
{
    j->stopping = true;
    j->outcome = end;
    j->save_at_stop = save;
    j->dirty = true;
}

void job_stop(struct job *j, enum state_end end, bool save, const char *fmt, ...)
{
    va_list ap;
    if (j->stopping || job_over(j))
        return;
    va_start(ap, fmt);
    vsnprintf(j->reason, sizeof(j->reason), fmt, ap);
    va_end(ap);
    log_info("job stops id=%" PRIu64 " reason=%s", j->id, j->reason);
    stop(j, end, save);
}

void job_cancel(struct job *j, enum state_desired desired)
{
    if (desired == DESIRED_CANCELED)
        job_stop(j, END_CANCELED, false, "canceled");
    else if (desired == DESIRED_SAVED)
        job_stop(j, END_CANCELED, true, "told to save and stop");
}

void job_leave(struct job *j)
{
    if (j->stopping || job_over(j) || j->phase.state == PHASE_WAITING)
        return;
    j->leaving = true;
    stop(j, END_NONE, true);
}

/* ---- the phases' steps: each looks, and returns true when it has moved ---- */

static bool attending(const struct job_process *p)
{
    return p->attend != NULL;
}

static bool is_not_done(const struct job_worker *w)
{
    return !w->done;
}

/* Whether `o` is served before `j`: by priority, then first come. */
static bool before(const struct job *o, const struct job *j)
{
    int64_t a = o->spec.run.priority, b = j->spec.run.priority;
    return a != b ? a > b : o->id < j->id;
}

/* A waiting job is not overtaken, or large jobs would starve. One that could never fit may be overtaken. */
static const struct job *ahead(const struct job *j)
{
    for (const struct job *o = j->jobs->head; o; o = o->next)
        if (o != j && (o->adopting || (o->phase.state == PHASE_WAITING && !o->stopping && !o->never && before(o, j))))
            return o;
    return NULL;
}

static void say_reason(struct job *j, const char *text)
{
    if (strcmp(text, j->reason) == 0)
        return;
    snprintf(j->reason, sizeof(j->reason), "%s", text);
    j->dirty = true;
}

static void say_ahead(struct job *j, const struct job *o)
{
    char text[sizeof(j->reason)];
    if (o->adopting)
        snprintf(text, sizeof(text), "waits until it is known which jobs are still there");
    else
        snprintf(text, sizeof(text), "waits behind job %" PRIu64 " (%s), which %.600s", o->id, o->spec.name, o->reason);
    say_reason(j, text);
}

static bool tick_waiting(struct job *j)
{
    const struct job *o = ahead(j);
    if (j->jobs->stopping && !j->jobs->leaving)
        return false;
    if (o) {
        say_ahead(j, o);
        return false;
    }
    if (!job_workers_gone(j) || !job_ios_gone(j)) { /* of a node that was lost, and is back: they are in our slots */
        say_reason(j, "waits for the end of its earlier processes, on a node that was lost");
        return false;
    }
    if (!job_allocate(j))
        return j->stopping;
    j->reason[0] = '\0';
    job_move(j, PHASE_GATHERING, "there is room");
    return true;
}

static bool tick_gathering(struct job *j)
{
    return j->kind->gather(j);
}

static bool tick_scanning(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (!j->kind->saves || job_committer(j)->scan == SCAN_DONE) {
        job_move(j, PHASE_COMMITTING, "folders are known");
        job_epoch_propose(j);
        return true;
    }
    if (job_past_deadline(j)) {
        job_process_kill(j, &job_committer(j)->p, SIGKILL);
        job_epoch_lost(j, 0, false, "dtd-io did not list the checkpoint folder within %d s", SCAN_MS / 1000);
        return true;
    }
    return false;
}

/* Nothing new starts while the log takes nothing; the reason says what it waits for. */
static void say_log_wait(struct job *j)
{
    const struct jobs *jobs = j->jobs;
    if (!jobs->outbox.err || j->reason[0])
        return; /* a reason of its own says more */
    const char *warning = log_warning(jobs->replica->log);
    snprintf(j->reason, sizeof(j->reason), "waits for the log: %s; free some space in %s",
             warning ? warning : err_text(jobs->outbox.err), jobs->dir);
    j->dirty = true;
}

static bool tick_committing(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (!j->epoch_committed) {
        say_log_wait(j);
        return false;
    }
    j->reason[0] = '\0';
    job_move(j, PHASE_LOADING, "the epoch is in the log");
    return true;
}

static bool tick_loading(struct job *j)
{
    return j->kind->load(j);
}

static void check_time_limit(struct job *j)
{
    char resume[80] = "";
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    int64_t limit = j->spec.run.max_seconds * 1000;
    if (!limit || !s || !s->started_ms || clock_wall_ms() - s->started_ms < limit)
        return;
    if (j->kind->saves)
        snprintf(resume, sizeof(resume), " at step %" PRId64 "; continue with `dtctl resume %" PRIu64 "`", job_step(j),
                 j->id);
    job_stop(j, END_FAILED, j->kind->saves, "run.max_seconds (%" PRId64 ") reached%s", j->spec.run.max_seconds, resume);
}

static bool is_to_leave(const struct job_worker *w)
{
    return node_unavailable_reason(w->p.node) != NULL;
}

/* Stopped to go elsewhere; the one that had told it to may have been another control. */
static bool stopped_early(const struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].done_step >= 0 && j->workers[k].done_step < j->spec.train.steps)
            return true;
    return false;
}

/* A node that is drained or goes down is left: the workers save, and the job goes on elsewhere. One that is away or
 * lost says nothing any more, and is left by the other way. */
static void look_for_leaving(struct job *j)
{
    for (int k = 0; k < j->n_workers && !j->moving; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (a->state != NODE_UP || !node_unavailable_reason(a))
            continue;
        log_info("job leaves a node job=%" PRIu64 " node=%s why=\"%s\"", j->id, a->name, node_unavailable_reason(a));
        j->moving = true;
        job_deadline(j, a->leaving ? DRAIN_LEAVE_MS : DRAIN_SAVE_MS);
    }
}

static void go_elsewhere(struct job *j)
{
    char seen[400] = "its workers had been stopped to go elsewhere";
    for (int k = 0; k < j->n_workers; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (node_unavailable_reason(a))
            snprintf(seen, sizeof(seen), "node %.200s %.150s", a->name, node_unavailable_reason(a));
    }
    job_epoch_resize(j, seen);
}

/* It has not begun the epoch, or has left it, and does not come to it again: it would meet what remains of its first
 * time there, and where there are several nodes the epoch's secret went with who began it. */
static bool is_outside(const struct job_worker *w)
{
    return attending(&w->p) && !w->epoch;
}

static bool tick_stepping(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    look_for_leaving(j);
    bool all_done = job_none(j, is_not_done);
    if ((all_done && stopped_early(j)) || (j->moving && !all_done && (!j->kind->saves || job_past_deadline(j)))) {
        go_elsewhere(j);
        return true;
    }
    if (all_done) {
        job_stop(j, END_DONE, false, "%s", j->kind->done);
        job_move(j, PHASE_QUITTING, "all are done");
        return true;
    }
    if (!job_none(j, is_outside)) {
        job_epoch_again(j, "a worker had been told to leave the epoch by who led before");
        return true;
    }
    check_time_limit(j);
    j->kind->watch(j);
    return j->stopping || j->phase.state != PHASE_STEPPING;
}

static bool is_rejoining(const struct job_worker *w)
{
    return job_worker_is_missing(w) || w->p.state != PROCESS_LIVE;
}

static bool tick_rejoining(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (!job_none(j, is_outside)) {
        job_epoch_again(j, "the epoch had not begun everywhere, or had been left, when another control came to lead");
        return true;
    }
    if (job_none(j, is_rejoining) && job_none(j, job_worker_is_not_ready)) {
        job_move(j, PHASE_STEPPING, "all came back");
        return true;
    }
    if (!job_past_deadline(j))
        return false;
    char who[256];
    job_workers_name(j, job_worker_is_not_ready, who, sizeof(who));
    job_epoch_lost(j, 0, false, "%s did not come back after dtd-control was started again", who);
    return true;
}

/* A worker that is gone, or idle and listening, has left the epoch; one that we have killed, or its node for the sake
 * of its GPU, has to be gone. */
static bool is_in_epoch(const struct job_worker *w)
{
    return job_process_running(&w->p) && (w->p.killed || !w->idle || !attending(&w->p) || job_worker_is_sick(w));
}

/* Its places are given up, and it stands in the queue like anybody. */
static bool tick_clearing(struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        if (!j->workers[k].p.killed)
            job_process_kill(j, &j->workers[k].p, SIGKILL);
    for (int i = 0; i < j->n_ios; i++)
        if (!j->ios[i].p.killed)
            job_process_kill(j, &j->ios[i].p, SIGKILL);
    if (!job_workers_gone(j) || !job_ios_gone(j))
        return false;
    job_release(j);
    j->clearing = false;
    job_move(j, PHASE_WAITING, "there is no room for the next epoch");
    return true;
}

/* Where all its nodes are there, and neither they nor GPUs of theirs are to be left, the next epoch begins in the same
 * places, and survivors are as warm as they were. */
static bool next_places(struct job *j)
{
    if (job_none(j, is_to_leave) && job_none(j, job_worker_is_sick) && !j->resize) {
        job_move(j, PHASE_GATHERING, "everybody has left the epoch");
        return true;
    }
    j->resize = false;
    if (job_allocate(j)) {
        j->reason[0] = '\0';
        job_move(j, PHASE_GATHERING, "there is room in other places");
        return true;
    }
    j->clearing = true;
    return tick_clearing(j);
}

static bool tick_ending(struct job *j)
{
    if (j->clearing)
        return tick_clearing(j);
    if (job_none(j, is_in_epoch))
        return next_places(j);
    if (job_past_deadline(j)) {
        char who[256];
        job_workers_name(j, is_in_epoch, who, sizeof(who));
        log_warn("killed, they did not leave the epoch job=%" PRIu64 " who=%s", j->id, who);
        for (int k = 0; k < j->n_workers; k++)
            if (is_in_epoch(&j->workers[k]))
                job_process_kill(j, &j->workers[k].p, SIGKILL);
        job_deadline(j, END_MS);
    }
    return false;
}

static bool tick_draining(struct job *j)
{
    j->kind->need(j, false); /* what is being saved needs io */
    if (!job_none(j, is_not_done) && !job_past_deadline(j))
        return false;
    job_move(j, PHASE_QUITTING,
             job_past_deadline(j) ? "they did not finish their step in time" : "all finished their step");
    return true;
}

static void end_logged(void *owner, uint64_t job, const struct state_result *result)
{
    struct jobs *jobs = owner;
    struct job *j = jobs_find(jobs, job);
    if (!j)
        return;
    j->end_logged = true;
    jobs_tick(jobs);
}

static void propose_end(struct job *j)
{
    const struct record r = {.kind = RECORD_ENDED,
                             .wall_ms = clock_wall_ms(),
                             .job = j->id,
                             .ended = {.end = j->outcome, .reason = j->reason}};
    if (!j->end_proposed && !j->leaving)
        j->end_proposed = outbox_add(&j->jobs->outbox, &r, end_logged) == OK;
}

/* The end is in the log before anybody is told to quit: a control that comes in between finds either workers that say
 * again that they are done, or a job that has ended. Workers go first, so that what they have given to io is written.
 */
static bool tick_quitting(struct job *j)
{
    bool late = job_past_deadline(j);
    propose_end(j);
    for (int k = 0; late && k < j->n_workers; k++)
        job_process_kill(j, &j->workers[k].p, SIGKILL);
    for (int i = 0; late && i < j->n_ios; i++)
        if (job_workers_gone(j) || !attending(&j->ios[i].p))
            job_process_kill(j, &j->ios[i].p, SIGKILL);
    if (late)
        job_deadline(j, QUIT_MS);
    if (!job_workers_gone(j) || !job_ios_gone(j))
        return false;
    job_release(j);
    metrics_release(&j->metrics);
    job_move(j, j->leaving ? PHASE_OVER : PHASE_RECORDING, "its processes have ended");
    return true;
}

static bool tick_recording(struct job *j)
{
    propose_end(j);
    if (!j->end_logged) {
        say_log_wait(j);
        return false;
    }
    job_show(j, state_of_end(j->outcome), j->reason);
    job_move(j, PHASE_OVER, "its end is in the log");
    return true;
}

static bool tick_over(struct job *j)
{
    return false;
}

/* ---- the tick ---- */

static bool (*const ticks[])(struct job *j) = {
    [PHASE_WAITING] = tick_waiting,       [PHASE_GATHERING] = tick_gathering, [PHASE_SCANNING] = tick_scanning,
    [PHASE_COMMITTING] = tick_committing, [PHASE_LOADING] = tick_loading,     [PHASE_STEPPING] = tick_stepping,
    [PHASE_ENDING] = tick_ending,         [PHASE_REJOINING] = tick_rejoining, [PHASE_DRAINING] = tick_draining,
    [PHASE_QUITTING] = tick_quitting,     [PHASE_RECORDING] = tick_recording, [PHASE_OVER] = tick_over,
};

/* A job that is to stop leaves its phase by the shortest legal way. */
static bool turn_to_stop(struct job *j)
{
    if (!j->stopping || j->phase.state >= PHASE_DRAINING)
        return false;
    bool drain = (j->phase.state == PHASE_STEPPING || j->phase.state == PHASE_REJOINING) && j->kind->saves;
    job_move(j, drain ? PHASE_DRAINING : PHASE_QUITTING, j->leaving ? "this dtd ends" : j->reason);
    if (drain && j->save_at_stop)
        job_deadline(j, j->leaving ? DRAIN_LEAVE_MS : DRAIN_SAVE_MS);
    return true;
}

void job_tick(struct job *j)
{
    if (j->adopting)
        return;
    while (turn_to_stop(j) || ticks[j->phase.state](j))
        ;
    j->kind->command(j);
    rendezvous_expire(&j->rendezvous, clock_mono_ms());
    if (j->retention_due)
        job_retention(j);
    if (j->dirty) {
        j->dirty = false;
        j->jobs->out->watch_changed(j);
    }
}
