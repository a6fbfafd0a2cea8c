/* A job's processes: their start, the exits and lists that their nodes report, and their command streams. Which command
 * a process gets is decided in commands.c. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A dtd-io that cannot start is retried with growing delays. After 5 failures, 2 s in all, the cause is permanent, for
 * example a missing library. */
#define IO_RETRY_MS 200
#define IO_MAX_FAILURES 5
#define SLOT_MS 100 /* until a start is tried again where a killed process has not exited: that takes milliseconds */

/* ---- finding processes ---- */

struct job_process *job_process_find(struct job *j, const struct node_view *a, int slot)
{
    for (int i = 0; slot == CHANNEL_SLOT_IO && i < j->n_ios; i++)
        if (j->ios[i].p.node == a)
            return &j->ios[i].p;
    for (int k = 0; slot >= 0 && k < j->n_workers; k++)
        if (j->workers[k].p.node == a && j->workers[k].p.slot == slot)
            return &j->workers[k].p;
    return NULL;
}

static bool is_io(const struct job_process *p)
{
    return p->slot == CHANNEL_SLOT_IO;
}

int job_process_rank(const struct job *j, const struct job_process *p)
{
    return is_io(p) ? -1 : (int)((const struct job_worker *)p - j->workers);
}

struct job_io *job_committer(const struct job *j)
{
    return j->n_ios ? &j->ios[0] : NULL;
}

static struct job_io *io_on(struct job_io *ios, int n, const struct node_view *a)
{
    for (int i = 0; i < n; i++)
        if (ios[i].p.node == a)
            return &ios[i];
    return NULL;
}

static void end_io(struct job *j, struct job_io *io)
{
    job_process_kill(j, &io->p, SIGKILL);
    j->kind->left(j, io);
}

err_t job_ios_assign(struct job *j)
{
    struct job_io *ios = calloc((size_t)j->n_workers, sizeof(*ios));
    int n = 0;
    if (!ios)
        return ERR_NOMEM;
    for (int k = 0; k < j->n_workers; k++) {
        struct node_view *a = j->workers[k].p.node;
        if (!a || io_on(ios, n, a))
            continue;
        const struct job_io *old = io_on(j->ios, j->n_ios, a);
        ios[n] = old ? *old : (struct job_io){.p = {.node = a, .slot = CHANNEL_SLOT_IO}};
        ios[n++].scan = SCAN_DUE;
    }
    for (int i = 0; i < j->n_ios; i++)
        if (!io_on(ios, n, j->ios[i].p.node))
            end_io(j, &j->ios[i]);
    free(j->ios);
    j->ios = ios;
    j->n_ios = n;
    return OK;
}

bool job_process_running(const struct job_process *p)
{
    return p->state == PROCESS_ASKED || p->state == PROCESS_LIVE;
}

bool job_workers_gone(const struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        if (job_process_running(&j->workers[k].p))
            return false;
    return true;
}

bool job_ios_gone(const struct job *j)
{
    for (int i = 0; i < j->n_ios; i++)
        if (job_process_running(&j->ios[i].p))
            return false;
    return true;
}

int job_workers_name(const struct job *j, bool (*pick)(const struct job_worker *w), char *ret, size_t size)
{
    int n = 0;
    size_t at = 0;
    ret[0] = '\0';
    for (int k = 0; k < j->n_workers; k++) {
        if (!pick(&j->workers[k]))
            continue;
        int w = at < size ? snprintf(ret + at, size - at, n++ ? ", %d" : "worker rank %d", k) : 0;
        at += (size_t)w;
    }
    return n;
}

static void signal_slot(const struct job *j, const struct job_process *p, int sig)
{
    if (node_view_kill(p->node, j->jobs, j->id, p->slot, sig))
        log_error("process not killed job=%" PRIu64 " node=%s slot=%d", j->id, p->node->name, p->slot);
}

void job_process_kill(struct job *j, struct job_process *p, int sig)
{
    if (!job_process_running(p))
        return;
    p->killed = true;
    p->signal = sig;
    if (sig == SIGKILL && !j->killed_ms)
        j->killed_ms = clock_mono_ms();
    signal_slot(j, p, sig);
}

/* ---- starting ---- */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Number of arenas on a node: for the largest number of workers that the job may ever have there, because arenas
 * outlive epochs. */
static int slots_on(const struct job *j, const struct node_view *a)
{
    return min_int(min_int(j->max_workers, a->slots), CHANNEL_MAX_SLOTS);
}

static int workers_on(const struct job *j, const struct node_view *a)
{
    int n = 0;
    for (int k = 0; k < j->n_workers; k++)
        n += j->workers[k].p.node == a;
    return n;
}

/* The GPUs that the job has there: run.workers_per_gpu of its workers share one. */
static int gpus_on(const struct job *j, const struct node_view *a)
{
    int per_gpu = (int)j->spec.run.workers_per_gpu;
    return job_gpus(&j->spec) ? (workers_on(j, a) + per_gpu - 1) / per_gpu : 0;
}

static uint64_t gpu_set_on(const struct job *j, const struct node_view *a)
{
    uint64_t ret = 0;
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.node == a && j->workers[k].device >= 0 && j->workers[k].device < GPUS_MAX)
            ret |= UINT64_C(1) << j->workers[k].device;
    return ret;
}

void job_process_start(struct job *j, struct job_process *p)
{
    bool io = is_io(p);
    char **env;
    *p = (struct job_process){.node = p->node,
                              .slot = p->slot,
                              .incarnation = p->node->incarnation,
                              .state = PROCESS_ASKED,
                              .silent_since_ms = clock_mono_ms()};
    struct process_spawn x = {.job = j->id,
                              .slot = p->slot,
                              .slots = slots_on(j, p->node),
                              .workers = workers_on(j, p->node),
                              .device = io ? -1 : ((struct job_worker *)p)->device,
                              .threads = (int)j->spec.run.threads,
                              .uid = j->uid,
                              .log_bytes = j->spec.run.log_bytes,
                              .gpus = gpus_on(j, p->node),
                              .gpu_set = gpu_set_on(j, p->node),
                              .memory_bytes = j->spec.run.memory,
                              .cores = j->spec.run.cores,
                              .token = p->token,
                              .env = j->spec.run.env,
                              .n_env = io ? 0 : j->spec.run.n_env,
                              .workdir = io ? NULL : j->spec.run.workdir};
    err_t err = getrandom(p->token, sizeof(p->token), 0) == sizeof(p->token) ? OK : ERR_IO;
    if (!err)
        err = j->kind->complete_spawn(j, p, &x, &env);
    if (!err) {
        err = node_view_spawn(p->node, j->jobs, &x);
        job_command_env_free(env, env ? x.n_env : 0);
    }
    if (err)
        p->state = PROCESS_ABSENT;
    if (err && err != ERR_CLOSED) /* repeated while its node cannot be reached, until the node is lost */
        job_stop(j, END_FAILED, false, "its processes cannot be started: %s", err_text(err));
    j->dirty = true;
}

bool job_process_is_due(const struct job_process *p)
{
    return (p->state == PROCESS_ABSENT || p->state == PROCESS_ENDED) && clock_mono_ms() >= p->due_ms;
}

/* Without a connection a worker exits by itself after run.orphan_seconds. One that still runs after that hangs. */
void job_process_watch_silence(struct job *j, struct job_process *p)
{
    int64_t limit = (j->spec.run.orphan_seconds + 10) * 1000;
    if (p->state != PROCESS_LIVE || p->attend || clock_mono_ms() - p->silent_since_ms < limit)
        return;
    log_warn("killed, it has no connection job=%" PRIu64 " node=%s slot=%d pid=%d", j->id, p->node->name, p->slot,
             p->pid);
    p->silent_since_ms = clock_mono_ms();
    job_process_kill(j, p, SIGKILL);
}

/* After a change of the leader the GPU of a worker that has exited is not recorded anywhere; or it is unhealthy by now.
 */
static bool has_usable_gpu(struct job *j, const struct job_worker *w)
{
    const struct node_view *a = w->p.node;
    if (job_take_gpus(j) && !job_worker_is_sick(w))
        return true;
    if (a->gpus->known && a->gpus->sick[0]) { /* gets other slots, or waits: then its reason names the unhealthy GPUs */
        j->resize = true;
        job_move(j, PHASE_ENDING, "a GPU of its node is unhealthy");
    } else if (a->gpus->known) {
        job_epoch_fatal(j, "needs %d GPUs, but node %s has only %d of %d free%s%s", job_gpus(&j->spec), a->name,
                        gpus_free(a->gpus), gpus_count(a->gpus), gpus_count(a->gpus) ? "" : ": ", a->gpus->missing);
    }
    return false;
}

bool job_worker_start(struct job *j, struct job_worker *w)
{
    if (!has_usable_gpu(j, w))
        return false;
    w->epoch = 0;
    w->ready = w->done = false;
    w->idle = true;
    w->command = COMMAND_NONE;
    job_process_start(j, &w->p);
    return true;
}

/* ---- reports of nodes ---- */

static void name_process(const struct job *j, const struct job_process *p, char *ret, size_t size)
{
    bool one = !j->jobs->nodes->next;
    char where[300];
    snprintf(where, sizeof(where), "%s%s", one ? "" : " on ", one ? "" : p->node->name);
    if (is_io(p))
        snprintf(ret, size, "dtd-io%s", where);
    else
        snprintf(ret, size, "worker rank %d%s", job_process_rank(j, p), where);
}

void job_process_describe_exit(const struct job *j, const struct job_process *p, char *ret, size_t size)
{
    char who[320];
    name_process(j, p, who, sizeof(who));
    const char *cause = p->cause_text, *colon = *cause ? ": " : "";
    if (p->spawn_error)
        snprintf(ret, size, "%s could not be started: %s", who, *cause ? cause : strerror(p->spawn_error));
    else if (!p->has_exit)
        snprintf(ret, size, "%s (pid %d) is gone%s", who, p->pid, p->lost ? " with its node" : "");
    else if (p->exit_signal)
        snprintf(ret, size, "%s (pid %d) was killed by %ssignal %d (%s)%s%s", who, p->pid, p->killed ? "dtd with " : "",
                 p->exit_signal, strsignal(p->exit_signal), colon, cause);
    else
        snprintf(ret, size, "%s (pid %d) ended with exit status %d%s%s", who, p->pid, p->exit_status, colon, cause);
}

static double detect_ms(const struct job_process *p)
{
    return (double)(clock_mono_ns() - p->exit_ns) / 1e6;
}

static void worker_ended(struct job *j, struct job_worker *w)
{
    char text[512];
    bool in_epoch = j->phase.state == PHASE_LOADING || j->phase.state == PHASE_STEPPING;
    job_process_describe_exit(j, &w->p, text, sizeof(text));
    j->kind->changed(j, w);
    if (j->phase.state == PHASE_WAITING || (w->done && in_epoch) || j->phase.state >= PHASE_QUITTING)
        return; /* job_adopt handles it, or it is not needed any more */
    if (j->phase.state == PHASE_DRAINING)
        job_move(j, PHASE_QUITTING, text);
    else if (w->p.spawn_error == EOPNOTSUPP) /* a restart there would be refused, too */
        job_epoch_fatal(j, "%s", text);
    else
        job_epoch_lost(j, detect_ms(&w->p), !w->p.killed || w->p.cause != CAUSE_UNKNOWN, "%s", text);
}

/* The epoch continues: workers connect to the new dtd-io and repeat the saves that were not acknowledged as committed.
 */
static void io_ended(struct job *j, struct job_io *io)
{
    char text[512];
    io->scan = SCAN_DUE;
    io->epoch = 0;
    io->failures = io->p.attended ? 0 : io->failures + 1;
    io->retry_ms = clock_mono_ms() + io->failures * IO_RETRY_MS;
    if (j->phase.state == PHASE_WAITING || j->phase.state >= PHASE_QUITTING || j->clearing)
        return;
    job_process_describe_exit(j, &io->p, text, sizeof(text));
    log_warn("dtd-io exited job=%" PRIu64 " failures=%d: %s", j->id, io->failures, text);
    if (io->failures >= IO_MAX_FAILURES) {
        job_epoch_fatal(j, "%s, %d times before it connected; see jobs/%" PRIu64 "/io.log in the state directory of %s",
                        text, io->failures, j->id, io->p.node->name);
    } else {
        char decided[96];
        snprintf(decided, sizeof(decided), "dtd-io is restarted, epoch %" PRIu64 " continues", j->epoch);
        job_incident_record(j, detect_ms(&io->p), text, decided);
    }
}

/* A process that this leader did not know, and has killed, has not exited yet. That is no failure of the job. */
static void await_slot(struct job *j, struct job_process *p)
{
    log_info("an earlier process is still in the slot job=%" PRIu64 " node=%s slot=%d", j->id, p->node->name, p->slot);
    p->state = PROCESS_ABSENT;
    p->due_ms = clock_mono_ms() + SLOT_MS;
    if (!is_io(p))
        ((struct job_worker *)p)->epoch = 0; /* a command starts again in its epoch */
    signal_slot(j, p, SIGKILL);              /* the kill request may have been lost */
    j->dirty = true;
}

static void child_ended(struct job *j, struct job_process *p, const struct child *c)
{
    if (c->state == CHANNEL_REFUSED && c->error == EEXIST) {
        await_slot(j, p);
        return;
    }
    p->state = PROCESS_ENDED;
    p->has_exit = c->state != CHANNEL_REFUSED;
    p->exit_status = c->exit_status;
    p->exit_signal = c->exit_signal;
    /* This dtd has killed it, so an out-of-memory kill at the same time is not the cause. */
    bool unknown = p->killed && c->cause == CAUSE_OUT_OF_MEMORY;
    p->cause = unknown ? CAUSE_UNKNOWN : c->cause;
    snprintf(p->cause_text, sizeof(p->cause_text), "%s", unknown ? "" : c->cause_text);
    p->spawn_error = c->state == CHANNEL_REFUSED ? c->error : 0;
    p->exit_ns = c->when_ns;
    p->attend = NULL;
    j->dirty = true;
    if (is_io(p))
        io_ended(j, (struct job_io *)p);
    else
        worker_ended(j, (struct job_worker *)p);
    if (!p->killed || p->failed)
        job_incident_attach_log(j, c->log, !p->killed);
    if (!is_io(p))
        job_incident_attach_error(j, job_process_rank(j, p), c->recorded, c->recorded_ago_ms);
}

static void adopt_worker(struct job_worker *w, const struct child *c)
{
    w->device = c->device;
    if (c->epoch) /* else it is a dt-worker, whose Hello contains the epoch */
        w->epoch = c->epoch;
}

void job_process_child(struct job *j, struct job_process *p, const struct child *c)
{
    bool ours = memcmp(p->token, c->token, sizeof(p->token)) == 0;
    /* The node reports a process that is not recorded here; a running child replaces one that has ended. */
    bool adopt = p->state == PROCESS_ABSENT || (p->state == PROCESS_ENDED && child_runs(c));
    if (c->epoch && c->epoch != j->epoch && !child_runs(c)) /* the exit of a command of an earlier epoch */
        adopt = false;
    if (!ours && !adopt) {
        log_info("report about an earlier child ignored job=%" PRIu64 " node=%s slot=%d pid=%d", j->id, p->node->name,
                 c->slot, c->pid);
        return;
    }
    if (!ours)
        *p = (struct job_process){
            .node = p->node, .slot = p->slot, .incarnation = p->incarnation, .silent_since_ms = clock_mono_ms()};
    if (!ours && !is_io(p))
        adopt_worker((struct job_worker *)p, c);
    memcpy(p->token, c->token, sizeof(p->token));
    p->pid = c->pid;
    p->proc = c->proc;
    p->stranded = c->stranded;
    if (child_runs(c)) {
        p->state = c->state == CHANNEL_RUNNING ? PROCESS_LIVE : PROCESS_ASKED;
        j->dirty = true;
        if (!is_io(p))
            j->kind->changed(j, (struct job_worker *)p);
        if (!j->placed && !j->adopting) /* its node was lost when the job moved away, and is back */
            job_process_kill(j, p, SIGKILL);
        else if (p->killed && j->kind->kills_again)
            signal_slot(j, p, SIGKILL); /* the first kill request was lost with the connection */
        if (p->stranded && !j->adopting)
            job_command_stranded(j, p);
    } else if (p->state != PROCESS_ENDED || !ours) {
        child_ended(j, p, c);
    }
}

/* ---- nodes that reconnect or are lost ---- */

/* Its exit status will not be reported. */
static void mark_ended_unknown(struct job *j, struct job_process *p)
{
    p->state = PROCESS_ENDED;
    p->has_exit = false;
    p->exit_ns = clock_mono_ns();
    p->attend = NULL;
    j->dirty = true;
}

static struct job_process *next_process_on(struct job *j, const struct node_view *a, int *at)
{
    for (; *at < j->n_ios + j->n_workers; ++*at) {
        struct job_process *p = *at < j->n_ios ? &j->ios[*at].p : &j->workers[*at - j->n_ios].p;
        if (p->node == a && job_process_running(p)) {
            ++*at;
            return p;
        }
    }
    return NULL;
}

void job_node_listed(struct job *j, const struct node_view *a)
{
    struct job_process *p;
    for (int at = 0; (p = next_process_on(j, a, &at));) {
        if (p->incarnation == a->incarnation)
            continue;
        mark_ended_unknown(j, p);
        if (!j->adopting && is_io(p))
            io_ended(j, (struct job_io *)p);
        else if (!j->adopting)
            worker_ended(j, (struct job_worker *)p);
    }
}

void job_node_lost(struct job *j, const struct node_view *a, double silent_ms, const char *seen)
{
    struct job_process *p;
    bool any = false;
    for (int at = 0; (p = next_process_on(j, a, &at)); any = true) {
        mark_ended_unknown(j, p);
        p->killed = true;
        p->lost = true;
    }
    if (!any || j->phase.state == PHASE_WAITING || j->phase.state >= PHASE_QUITTING)
        return;
    if (j->phase.state == PHASE_DRAINING)
        job_move(j, PHASE_QUITTING, seen);
    else
        job_epoch_lost(j, silent_ms, true, "%s", seen);
}

/* ---- connections ---- */

err_t job_process_hello(struct job *j, struct job_process *p, uint64_t epoch)
{
    if (!job_process_running(p))
        return ERR_DENIED;
    if (p->attend) /* belongs to the previous connection */
        job_process_lost(j, p);
    if (!is_io(p))
        ((struct job_worker *)p)->epoch = epoch;
    return OK;
}

err_t job_process_attended(struct job *j, struct job_process *p, struct rpc_call *call)
{
    if (p->attend)
        return ERR_EXISTS;
    p->attend = call;
    p->attended = true;
    j->dirty = true;
    log_info("process connected job=%" PRIu64 " node=%s slot=%d pid=%d", j->id, p->node->name, p->slot, p->pid);
    if (is_io(p)) {
        struct job_io *io = (struct job_io *)p;
        io->failures = 0;
        io->scan = SCAN_DUE;
        io->epoch = 0;
        if (io == job_committer(j)) {
            j->io_sent = 0;
            j->history = j->history == HISTORY_ASKED ? HISTORY_DUE : j->history;
            j->usage_history = j->usage_history == HISTORY_ASKED ? HISTORY_DUE : j->usage_history;
        }
        j->retention_due = true;
        return OK;
    }
    struct job_worker *w = (struct job_worker *)p;
    w->command = COMMAND_NONE;
    w->profile_sent = 0;
    w->idle = w->epoch == 0;
    w->ready = w->epoch && w->epoch == j->epoch;
    return OK;
}

void job_process_lost(struct job *j, struct job_process *p)
{
    p->attend = NULL;
    p->silent_since_ms = clock_mono_ms();
    j->dirty = true;
}

void job_process_detached(struct job *j, const struct rpc_call *call)
{
    for (int i = 0; i < j->n_ios; i++)
        if (j->ios[i].p.attend == call)
            job_process_lost(j, &j->ios[i].p);
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.attend == call)
            job_process_lost(j, &j->workers[k].p);
}
