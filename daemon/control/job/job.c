/* See internal.h for the two state machines. job_tick calls the step function of the current phase until none changes
 * the phase; callbacks only store events and call the tick. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/state/spec.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Deadlines of the phases. */
#define SCAN_MS 120000        /* a shared file system may take a minute to list and check a folder of many steps */
#define END_MS 10000          /* a worker notices END within the current op; one that does not is killed */
#define REJOIN_MS 20000       /* workers reconnect within seconds, also if their own node's control restarts too */
#define DRAIN_CANCEL_MS 10000 /* nothing is saved: only the current step has to end */
#define DRAIN_LEAVE_MS 12000  /* shorter than the supervisor's own limit for a shutdown */
#define QUIT_MS 6000          /* processes have nothing left to do and only exit */

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

/* ---- creation ---- */

static err_t job_fill(struct job *j, const struct state_job *s)
{
    char path[PATH_MAX];
    struct why why = {""};
    j->yaml = spec_ref(s->spec);
    j->yaml_bytes = strlen(j->yaml);
    err_t err = job_parse("job", s->spec, j->yaml_bytes, NULL, 0, &j->spec, &why);
    if (err) {
        log_error("the spec of a job in the log is invalid id=%" PRIu64 " why=%s", s->id, why.text);
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
    err = metrics_init(&j->metrics, path);
    j->totals.top_step = j->metrics.has_last ? j->metrics.last.step : 0;
    snprintf(path, sizeof(path), "%s/metrics/%" PRIu64 ".usage.jsonl", j->jobs->dir, j->id);
    return err ? err : usage_file_init(&j->usage, path, j->jobs->parses, j->uid);
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
    j->grace_ms = JOB_GRACE_OF_FILE;
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
    if (!over && !j->epoch)
        job_incident_start(j);
    job_cancel(j, &(struct job_cancel){.desired = s->desired, .grace_ms = JOB_GRACE_OF_FILE});
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
    usage_windows_fini(&j->usage_windows);
    stragglers_fini(&j->stragglers);
    usage_sample_fini(&j->usage_newest);
    usage_file_fini(&j->usage);
    buf_fini(&j->io_usage);
    job_fini(&j->spec);
    job_layout_fini(j);
    free(j->resume_path);
    free((char *)j->incident.fields.log);
    free((char *)j->incident.fields.error);
    free(j->workers);
    free(j->ios);
    spec_unref(j->yaml);
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

/* ---- transitions ---- */

void job_show(struct job *j, enum job_state state, const char *why)
{
    if (j->state.state == (int)state)
        return;
    fsm_move(&j->state, state, why);
    j->dirty = true;
}

void job_deadline(struct job *j, int64_t ms)
{
    j->deadline_ms = ms < 0 ? 0 : clock_mono_ms() + ms;
}

/* The state that the user sees during each phase, and the deadline of the phase; -1: none. */
static const struct {
    int show; /* -1: unchanged; after the first epoch JOB_RECOVERING replaces JOB_PENDING and JOB_STARTING */
    int64_t deadline_ms;
} phases[] = {
    [PHASE_WAITING] = {JOB_PENDING, -1},
    [PHASE_GATHERING] = {JOB_STARTING, JOB_GATHER_MS},
    [PHASE_SCANNING] = {JOB_STARTING, SCAN_MS},
    [PHASE_COMMITTING] = {-1, -1},
    [PHASE_LOADING] = {-1, JOB_LOAD_MS},
    [PHASE_STEPPING] = {JOB_RUNNING, -1},
    [PHASE_ENDING] = {JOB_RECOVERING, END_MS},
    [PHASE_REJOINING] = {-1, REJOIN_MS},
    [PHASE_DRAINING] = {JOB_STOPPING, DRAIN_CANCEL_MS},
    [PHASE_QUITTING] = {JOB_STOPPING, QUIT_MS},
    [PHASE_RECORDING] = {JOB_STOPPING, -1},
    [PHASE_OVER] = {-1, -1},
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
    if (to == PHASE_GATHERING) {
        j->attempt_ms = clock_mono_ms();
        j->signaled_ms = j->killed_ms = 0;
    }
    j->moving = false;
    job_incident_phase(j, to);
    bool ends = to == PHASE_ENDING || to == PHASE_QUITTING;
    int64_t grace = ends ? j->kind->grace_ms(j) : -1;
    job_deadline(j, grace >= 0 ? grace : phases[to].deadline_ms);
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

static void begin_stop(struct job *j, enum state_end end, bool save)
{
    j->stopping = true;
    j->outcome = end;
    j->save_at_stop = save;
    j->dirty = true;
}

static void set_stop_reason(struct job *j, const char *fmt, va_list ap)
{
    vsnprintf(j->reason, sizeof(j->reason), fmt, ap);
    j->reason_len = (int)strlen(j->reason);
    j->dirty = true;
}

/* The job stops in another way than requested. */
static void __attribute__((format(printf, 2, 3))) correct_reason(struct job *j, const char *fmt, ...)
{
    va_list ap;
    if (!j->save_at_stop || j->outcome != END_CANCELED)
        return;
    va_start(ap, fmt);
    set_stop_reason(j, fmt, ap);
    va_end(ap);
}

void job_stop(struct job *j, enum state_end end, bool save, const char *fmt, ...)
{
    va_list ap;
    if (j->stopping || job_over(j))
        return;
    va_start(ap, fmt);
    set_stop_reason(j, fmt, ap);
    va_end(ap);
    log_info("job stops id=%" PRIu64 " reason=%s", j->id, j->reason);
    begin_stop(j, end, save);
}

void job_reason_how(struct job *j, const char *fmt, ...)
{
    va_list ap;
    char *at = j->reason + j->reason_len;
    size_t size = sizeof(j->reason) - (size_t)j->reason_len;
    va_start(ap, fmt);
    vsnprintf(at, size, fmt, ap);
    va_end(ap);
    j->dirty = true;
}

int64_t job_grace_ms(const struct job *j)
{
    return j->grace_ms >= 0 ? j->grace_ms : j->spec.run.grace_seconds * 1000;
}

bool job_ends_late(const struct job *j)
{
    return !j->kind->saves && j->outcome == END_CANCELED;
}

static int64_t shorter(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t job_quit_ms(const struct job *j)
{
    bool is_stopped = j->outcome != END_DONE; /* the time of grace is for jobs that are stopped */
    return is_stopped ? shorter(job_grace_ms(j) / 4, QUIT_MS) : QUIT_MS;
}

/* How long DRAINING may take: what QUITTING leaves of the time of grace. */
static int64_t drain_ms(const struct job *j)
{
    int64_t ms = job_grace_ms(j) - job_quit_ms(j);
    if (j->leaving)
        return shorter(ms, DRAIN_LEAVE_MS);
    return j->save_at_stop || j->grace_ms >= 0 ? ms : shorter(ms, DRAIN_CANCEL_MS);
}

int64_t job_grace_left_ms(const struct job *j)
{
    bool drains = j->phase.state == PHASE_DRAINING;
    if (!(drains || j->phase.state == PHASE_QUITTING) || j->killed_ms || !j->deadline_ms)
        return 0;
    int64_t ms = j->deadline_ms - clock_mono_ms();
    return (ms > 0 ? ms : 0) + (drains ? job_quit_ms(j) : 0);
}

/* The job is stopping already: its workers have this time from now. */
static void set_grace(struct job *j, int64_t grace_ms)
{
    j->grace_ms = grace_ms;
    log_info("time of grace id=%" PRIu64 " grace_ms=%" PRId64, j->id, grace_ms);
    if (j->phase.state != PHASE_DRAINING && j->phase.state != PHASE_QUITTING)
        return;
    job_deadline(j, j->phase.state == PHASE_DRAINING ? drain_ms(j) : grace_ms);
    if (grace_ms)
        job_reason_how(j, "; workers that still run %" PRId64 " s after the last cancel are killed", grace_ms / 1000);
    else
        job_reason_how(j, "; another cancel ended the time of grace");
}

void job_cancel(struct job *j, const struct job_cancel *request)
{
    bool save = request->desired == DESIRED_SAVED && j->kind->saves, again = j->canceled && !request->repeated;
    int64_t grace_ms = request->grace_ms;
    if (request->desired == DESIRED_RUN || job_over(j))
        return;
    if (grace_ms < 0 && again && request->desired != DESIRED_SAVED)
        grace_ms = 0;
    j->canceled = true;
    if (j->stopping && grace_ms >= 0)
        set_grace(j, grace_ms);
    if (j->stopping)
        return;
    j->grace_ms = grace_ms;
    job_stop(j, END_CANCELED, save, "canceled%s",
             save                              ? ", with a checkpoint saved first"
             : j->kind->saves && grace_ms == 0 ? " at once"
                                               : "");
}

void job_leave(struct job *j)
{
    if (j->stopping || job_over(j) || j->phase.state == PHASE_WAITING)
        return;
    j->leaving = true;
    begin_stop(j, END_NONE, true);
}

/* ---- the tick of each phase: returns true if the job has entered another phase, or is to stop ---- */

static bool is_attending(const struct job_process *p)
{
    return p->attend != NULL;
}

static bool is_not_done(const struct job_worker *w)
{
    return !w->done;
}

static bool tick_waiting(struct job *j)
{
    const struct job *o = job_ahead_of(j);
    if (j->jobs->stopping && !j->jobs->leaving)
        return false;
    if (o && !job_may_overtake(j, o)) {
        job_set_reason_behind(j, o);
        return false;
    }
    if (!job_workers_gone(j) || !job_ios_gone(j)) { /* a lost node is back, and these processes use its slots */
        job_set_reason(j, "waits until its earlier processes on a node that was lost have exited");
        return false;
    }
    if (!job_allocate(j))
        return j->stopping;
    j->reason[0] = '\0';
    job_move(j, PHASE_GATHERING, "slots are allocated");
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
    if ((!j->kind->saves || job_committer(j)->scan == SCAN_DONE) && !job_layout_ready(j))
        return j->stopping;
    if (!j->kind->saves || job_committer(j)->scan == SCAN_DONE) {
        job_move(j, PHASE_COMMITTING,
                 j->kind->saves ? "the checkpoint folder is listed" : "a command has no checkpoints");
        job_epoch_propose(j);
        return true;
    }
    if (job_past_deadline(j)) {
        job_process_kill(j, &job_committer(j)->p, SIGKILL);
        job_epoch_lost(j, 0, false, "dtd-io did not list the checkpoint folder within %d s; see checkpoint.dir",
                       SCAN_MS / 1000);
        return true;
    }
    return false;
}

/* While the log accepts no records, no epoch starts; the reason names the cause. */
static void set_reason_log_full(struct job *j)
{
    const struct jobs *jobs = j->jobs;
    if (!jobs->outbox.err || j->reason[0])
        return; /* the present reason is more specific */
    const char *warning = log_warning(jobs->replica->log);
    snprintf(j->reason, sizeof(j->reason), "waits for the log: %s%s%s", warning ? warning : err_text(jobs->outbox.err),
             jobs->outbox.err == ERR_NOSPACE ? "; free some space in " : "",
             jobs->outbox.err == ERR_NOSPACE ? jobs->dir : "");
    j->dirty = true;
}

static bool tick_committing(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (!j->epoch_committed) {
        set_reason_log_full(j);
        return false;
    }
    j->reason[0] = '\0';
    job_move(j, PHASE_LOADING, "the epoch is committed");
    return true;
}

static bool tick_loading(struct job *j)
{
    return j->kind->load(j);
}

/* By the cluster's clock, so a leader's wrong date changes nothing. The log of an older version has only the date of
 * the start. It counts once, when this leader first asks; from then on the monotonic clock does. */
int64_t job_ran_ms(struct job *j)
{
    int64_t now = clock_mono_ms();
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    if (!s || !s->started_ms)
        return 0;
    if (s->started_clock_ms)
        return state_clock_ms(j->jobs->replica->clock) - s->started_clock_ms;
    if (!j->is_timed) {
        int64_t ran = clock_wall_ms() - s->started_ms;
        j->started_mono_ms = now - (ran > 0 ? ran : 0);
        j->is_timed = true;
    }
    return now - j->started_mono_ms;
}

static void check_time_limit(struct job *j)
{
    char resume[80] = "";
    int64_t limit = j->spec.run.max_seconds * 1000;
    if (!limit || job_ran_ms(j) < limit)
        return;
    if (j->kind->saves)
        snprintf(resume, sizeof(resume), " at step %" PRId64 "; continue with `dtctl resume %" PRIu64 "`", job_step(j),
                 j->id);
    job_stop(j, END_FAILED, j->kind->saves, "run.max_seconds (%" PRId64 ") reached%s", j->spec.run.max_seconds, resume);
}

static bool is_on_unavailable_node(const struct job_worker *w)
{
    return node_unavailable_reason(w->p.node) != NULL;
}

/* A worker has stopped before the last step, because the job moves to other nodes. A previous leader may have sent
 * STOP. */
static bool stopped_early(const struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].done_step >= 0 && j->workers[k].done_step < j->spec.train.steps)
            return true;
    return false;
}

/* If a node is drained or shuts down, the workers save, and the job continues on other nodes. A node that is away or
 * lost is handled by job_node_lost. */
static void check_unavailable_nodes(struct job *j)
{
    for (int k = 0; k < j->n_workers && !j->moving; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (a->state != NODE_UP || !node_unavailable_reason(a))
            continue;
        log_info("job moves away from a node job=%" PRIu64 " node=%s why=\"%s\"", j->id, a->name,
                 node_unavailable_reason(a));
        j->moving = true;
        job_deadline(j, a->leaving ? shorter(job_grace_ms(j), DRAIN_LEAVE_MS) : job_grace_ms(j));
    }
}

static void move_elsewhere(struct job *j)
{
    char seen[400] = "its workers were stopped to move the job to other nodes";
    for (int k = 0; k < j->n_workers; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (node_unavailable_reason(a))
            snprintf(seen, sizeof(seen), "node %.200s %.150s", a->name, node_unavailable_reason(a));
    }
    job_epoch_resize(j, seen);
}

/* The worker has not started the epoch, or has left it. It cannot enter the epoch again: keys of its first time are
 * still in the rendezvous, and on several nodes only the leader that started the epoch has the secret of its
 * connections. */
static bool is_outside_epoch(const struct job_worker *w)
{
    return is_attending(&w->p) && !w->epoch;
}

static bool tick_stepping(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    check_unavailable_nodes(j);
    bool all_done = job_none(j, is_not_done);
    if ((all_done && stopped_early(j)) || (j->moving && !all_done && (!j->kind->saves || job_past_deadline(j)))) {
        move_elsewhere(j);
        return true;
    }
    if (all_done) {
        job_stop(j, END_DONE, false, "%s", j->kind->done);
        job_move(j, PHASE_QUITTING, "all workers are done");
        return true;
    }
    if (!job_none(j, is_outside_epoch)) {
        job_epoch_again(j, "the previous leader had ended the epoch at a worker");
        return true;
    }
    check_time_limit(j);
    j->kind->watch(j);
    return j->stopping || j->phase.state != PHASE_STEPPING;
}

static bool has_not_rejoined(const struct job_worker *w)
{
    return job_worker_is_missing(w) || w->p.state != PROCESS_LIVE;
}

static bool tick_rejoining(struct job *j)
{
    j->kind->need(j, false);
    if (j->stopping)
        return true;
    if (!job_none(j, is_outside_epoch)) {
        job_epoch_again(j,
                        "the epoch had not started at every worker, or had ended at one, when a new leader took over");
        return true;
    }
    if (job_none(j, has_not_rejoined) && job_none(j, job_worker_is_not_ready)) {
        job_move(j, PHASE_STEPPING, "all workers have reconnected");
        return true;
    }
    if (!job_past_deadline(j))
        return false;
    char who[256];
    job_workers_name(j, job_worker_is_not_ready, who, sizeof(who));
    job_epoch_lost(j, 0, false, "%s did not reconnect within %d s after a new dtd-control took over", who,
                   REJOIN_MS / 1000);
    return true;
}

/* A worker has left the epoch when it has exited, or is idle and has a command stream. If it was killed, by this dtd or
 * by its node because of its GPU, it must have exited. */
static bool is_in_epoch(const struct job_worker *w)
{
    return job_process_running(&w->p) && (w->p.killed || !w->idle || !is_attending(&w->p) || job_worker_is_sick(w));
}

/* Ends all processes and frees the slots; then the job waits in the queue like any other. */
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
    job_move(j, PHASE_WAITING, "no slots for the next epoch");
    return true;
}

/* If all its nodes are available and its GPUs healthy, the next epoch keeps the slots, so that surviving workers keep
 * their processes and memory. */
static bool allocate_next_epoch(struct job *j)
{
    if (job_none(j, is_on_unavailable_node) && job_none(j, job_worker_is_sick) && !j->resize) {
        job_move(j, PHASE_GATHERING, "all workers have left the epoch");
        return true;
    }
    if (job_allocate(j)) {
        j->resize = false;
        j->reason[0] = '\0';
        job_move(j, PHASE_GATHERING, "other slots are allocated");
        return true;
    }
    if (j->layout.pending)
        return false;
    j->resize = false;
    j->clearing = true;
    return tick_clearing(j);
}

static bool tick_ending(struct job *j)
{
    if (j->clearing)
        return tick_clearing(j);
    if (job_none(j, is_in_epoch)) {
        j->kind->stopped(j);
        return !job_epoch_backs_off(j) && allocate_next_epoch(j);
    }
    if (job_past_deadline(j)) {
        char who[256];
        job_workers_name(j, is_in_epoch, who, sizeof(who));
        log_warn("killed, did not leave the epoch in time job=%" PRIu64 " who=%s", j->id, who);
        for (int k = 0; k < j->n_workers; k++)
            if (is_in_epoch(&j->workers[k]))
                job_process_kill(j, &j->workers[k].p, SIGKILL);
        job_deadline(j, END_MS);
    }
    return false;
}

static bool tick_draining(struct job *j)
{
    j->kind->need(j, false); /* a save needs dtd-io */
    if (!job_none(j, is_not_done) && !job_past_deadline(j))
        return false;
    bool late = job_past_deadline(j);
    if (late)
        correct_reason(j, "canceled; %s, so no checkpoint of their last step was saved",
                       j->grace_ms ? "the time of grace was over before the workers had saved"
                                   : "a second cancel ended the workers at once");
    else
        job_reason_how(j, "%s", "");
    job_move(j, PHASE_QUITTING, late ? "workers did not finish their step in time" : "all workers finished their step");
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

/* QUIT is sent only after the end is committed: a new leader then finds either workers that repeat that they are done,
 * or a job that has ended. Workers exit before dtd-io, which still has to write their data. */
static bool tick_quitting(struct job *j)
{
    bool late = job_past_deadline(j);
    if (!job_ends_late(j))
        propose_end(j);
    for (int k = 0; late && k < j->n_workers; k++)
        job_process_kill(j, &j->workers[k].p, SIGKILL);
    for (int i = 0; late && i < j->n_ios; i++)
        if (job_workers_gone(j) || !is_attending(&j->ios[i].p))
            job_process_kill(j, &j->ios[i].p, SIGKILL);
    if (late)
        job_deadline(j, QUIT_MS);
    if (!job_workers_gone(j) || !job_ios_gone(j))
        return false;
    j->kind->stopped(j);
    job_release(j);
    metrics_release(&j->metrics);
    job_usage_history_failed(j, "the job ended before they were read");
    usage_file_close_window(&j->usage, NULL);
    job_move(j, j->leaving ? PHASE_OVER : PHASE_RECORDING, "its processes have ended");
    return true;
}

static bool tick_recording(struct job *j)
{
    propose_end(j);
    if (!j->end_logged || j->incidents_due) { /* clients stop to watch when it is over, and must see all incidents */
        set_reason_log_full(j);
        return false;
    }
    job_show(j, state_of_end(j->outcome), j->reason);
    job_move(j, PHASE_OVER, "its end is committed");
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

/* Moves a job that is to stop to DRAINING if its workers are in steps, else to QUITTING. */
static bool turn_to_stop(struct job *j)
{
    if (!j->stopping || j->phase.state >= PHASE_DRAINING)
        return false;
    bool steps = (j->phase.state == PHASE_STEPPING || j->phase.state == PHASE_REJOINING) && j->kind->saves;
    bool drain = steps && drain_ms(j) > 0;
    if (!steps)
        correct_reason(j, "canceled; no step was running, so no checkpoint was saved");
    job_move(j, drain ? PHASE_DRAINING : PHASE_QUITTING, j->leaving ? "this dtd shuts down" : j->reason);
    if (drain)
        job_deadline(j, drain_ms(j));
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
