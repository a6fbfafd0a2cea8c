/* A job's processes: what is asked of the supervisor, what it says of their ends, who attends, and what each is told.
 * Commands are chosen from the phase and from what the process is known to have heard on its present connection, so
 * that a reconnect, of theirs or of a new control, needs no path of its own. */
#include "daemon/control/job.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/node.h"
#include "daemon/control/rpc_adapters.h"
#include "daemon/control/rpc_server.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define IO_RETRY_MS 200
#define IO_MAX_FAILURES 5
#define IO_LINES_MS 1000
#define IO_LINES_KEEP (64u << 10)
#define IO_LINES_MAX (1u << 20)

struct job_process *job_process(struct job *j, int slot)
{
    if (slot == CHANNEL_SLOT_IO)
        return &j->io.p;
    return slot >= 0 && slot < j->n_workers ? &j->workers[slot].p : NULL;
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

void job_process_kill(struct job *j, int slot, int sig)
{
    struct job_process *p = job_process(j, slot);
    if (!job_process_running(p))
        return;
    p->killed = true;
    if (sup_kill(&j->node->sup, j->id, slot, sig))
        log_error("not killed job=%" PRIu64 " slot=%d", j->id, slot);
}

/* ---- starting ---- */

static void start(struct job *j, int slot)
{
    bool io = slot == CHANNEL_SLOT_IO;
    struct job_process *p = io ? &j->io.p : &j->workers[slot].p;
    *p = (struct job_process){.state = PROCESS_ASKED, .silent_since_ms = clock_mono_ms()};
    struct sup_spawn x = {.job = j->id,
                          .slot = slot,
                          .slots = j->n_workers,
                          .device = io ? -1 : j->workers[slot].device,
                          .token = p->token,
                          .cpus = io ? NULL : j->workers[slot].cpus,
                          .env = j->spec.run.env,
                          .n_env = io ? 0 : j->spec.run.n_env};
    err_t err = getrandom(p->token, sizeof(p->token), 0) == sizeof(p->token) ? OK : ERR_IO;
    if (!err)
        err = sup_spawn(&j->node->sup, &x);
    if (err) {
        p->state = PROCESS_ABSENT;
        job_stop(j, END_FAILED, false, "its processes cannot be asked for: %s", err_text(err));
    }
    j->dirty = true;
}

static bool to_be_started(const struct job_process *p)
{
    return p->state == PROCESS_ABSENT || p->state == PROCESS_ENDED;
}

/* Alive for the supervisor, silent for us: workers give up by themselves after run.orphan_seconds, so one that is
 * silent for longer is stuck. */
static void watch_silence(struct job *j, int slot)
{
    struct job_process *p = job_process(j, slot);
    int64_t limit = (j->spec.run.orphan_seconds + 10) * 1000;
    if (p->state != PROCESS_LIVE || p->attend || clock_mono_ms() - p->silent_since_ms < limit)
        return;
    log_warn("killed, it is silent job=%" PRIu64 " slot=%d pid=%d", j->id, slot, p->pid);
    p->silent_since_ms = clock_mono_ms();
    job_process_kill(j, slot, SIGKILL);
}

/* A job that a new control has found may have lost workers whose GPUs nobody knows any more. */
static bool have_gpus(struct job *j)
{
    if (job_take_gpus(j))
        return true;
    if (j->node->gpus.known)
        job_epoch_fatal(j, "needs %d GPUs, of this node's %d are %d free%s%s", job_gpus(&j->spec),
                        gpus_count(&j->node->gpus), gpus_free(&j->node->gpus), gpus_count(&j->node->gpus) ? "" : ": ",
                        j->node->gpus.missing);
    return false;
}

void job_processes_need(struct job *j, bool workers)
{
    if (to_be_started(&j->io.p) && clock_mono_ms() >= j->io.retry_ms) {
        j->io.scan = SCAN_DUE;
        j->io.epoch = 0;
        j->io.told_quit = false;
        start(j, CHANNEL_SLOT_IO);
    }
    watch_silence(j, CHANNEL_SLOT_IO);
    for (int k = 0; k < j->n_workers && !j->stopping; k++) {
        struct job_worker *w = &j->workers[k];
        if (workers && to_be_started(&w->p)) {
            if (!have_gpus(j))
                return;
            w->epoch = 0;
            w->ready = w->done = false;
            w->idle = true;
            w->told = TOLD_NOTHING;
            start(j, k);
        } else if (!workers) {
            watch_silence(j, k);
        }
    }
}

/* ---- the supervisor's word ---- */

void job_process_obituary(const struct job *j, int slot, char *ret, size_t size)
{
    const struct job_process *p = slot == CHANNEL_SLOT_IO ? &j->io.p : &j->workers[slot].p;
    char who[64];
    snprintf(who, sizeof(who), slot == CHANNEL_SLOT_IO ? "dtd-io" : "worker rank %d", slot);
    if (p->spawn_error)
        snprintf(ret, size, "%s could not be started: %s", who, strerror(p->spawn_error));
    else if (p->exit_signal)
        snprintf(ret, size, "%s (pid %d) was killed by %ssignal %d (%s)", who, p->pid, p->killed ? "dtd with " : "",
                 p->exit_signal, strsignal(p->exit_signal));
    else
        snprintf(ret, size, "%s (pid %d) ended with exit status %d", who, p->pid, p->exit_status);
}

static double detect_ms(const struct job_process *p)
{
    return (double)(clock_mono_ns() - p->exit_ns) / 1e6;
}

static void worker_ended(struct job *j, int slot)
{
    char text[256];
    struct job_worker *w = &j->workers[slot];
    job_process_obituary(j, slot, text, sizeof(text));
    if (j->phase.state == PHASE_WAITING || (w->done && j->phase.state == PHASE_STEPPING) ||
        j->phase.state >= PHASE_QUITTING)
        return; /* job_adopt looks at it; or nobody needs it any more */
    if (j->phase.state == PHASE_DRAINING)
        job_move(j, PHASE_QUITTING, text);
    else
        job_epoch_lost(j, detect_ms(&w->p), !w->p.killed, "%s", text);
}

/* No epoch ends: workers connect to the next io and repeat what they had not seen committed. */
static void io_ended(struct job *j)
{
    char text[256];
    struct job_io *io = &j->io;
    io->scan = SCAN_DUE;
    io->epoch = 0;
    io->failures = io->p.attended ? 0 : io->failures + 1;
    io->retry_ms = clock_mono_ms() + io->failures * IO_RETRY_MS;
    if (j->phase.state == PHASE_WAITING || j->phase.state >= PHASE_QUITTING)
        return;
    job_process_obituary(j, CHANNEL_SLOT_IO, text, sizeof(text));
    log_warn("io ended job=%" PRIu64 " failures=%d: %s", j->id, io->failures, text);
    if (io->failures >= IO_MAX_FAILURES) {
        job_epoch_fatal(j, "%s, %d times before it could be asked anything; see %s/jobs/%" PRIu64 "/io.log", text,
                        io->failures, j->node->dir, j->id);
    } else if (!j->incident.open) {
        job_incident_open(j, text, detect_ms(&io->p), true);
        job_incident_decided(j, "dtd-io is started again, epoch %" PRIu64 " goes on", j->epoch);
        j->incident.open = false;
    }
}

static void child_ended(struct job *j, struct job_process *p, const struct channel_msg *m)
{
    p->state = PROCESS_ENDED;
    p->has_exit = true;
    p->exit_status = m->exit_status;
    p->exit_signal = m->exit_signal;
    p->spawn_error = m->state == CHANNEL_REFUSED ? m->error : 0;
    p->exit_ns = m->when_ns;
    p->attend = NULL;
    p->peer = NULL;
    j->dirty = true;
    if (m->slot == CHANNEL_SLOT_IO)
        io_ended(j);
    else
        worker_ended(j, m->slot);
}

void job_process_child(struct job *j, const struct channel_msg *m)
{
    struct job_process *p = job_process(j, m->slot);
    if (!p)
        return;
    bool ours = memcmp(p->token, m->token, sizeof(p->token)) == 0;
    /* The list of a supervisor that knows more than we do; a running child wins over the end of its predecessor. */
    bool adopt = p->state == PROCESS_ABSENT || (p->state == PROCESS_ENDED && m->state == CHANNEL_RUNNING);
    if (!ours && !adopt) {
        log_info("word of an earlier child job=%" PRIu64 " slot=%d pid=%d", j->id, m->slot, m->pid);
        return;
    }
    if (!ours)
        *p = (struct job_process){.silent_since_ms = clock_mono_ms()};
    if (!ours && m->slot != CHANNEL_SLOT_IO)
        j->workers[m->slot].device = m->gpu - 1;
    memcpy(p->token, m->token, sizeof(p->token));
    p->pid = m->pid;
    if (m->state == CHANNEL_RUNNING) {
        p->state = PROCESS_LIVE;
        j->dirty = true;
    } else {
        child_ended(j, p, m);
    }
}

/* ---- connections ---- */

static bool token_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned d = 0;
    for (int i = 0; i < CHANNEL_TOKEN_BYTES; i++)
        d |= (unsigned)(a[i] ^ b[i]);
    return d == 0;
}

err_t job_process_hello(struct job *j, int slot, const uint8_t *token, size_t token_bytes, struct peer *peer,
                        uint64_t epoch)
{
    struct job_process *p = job_process(j, slot);
    if (!p || !job_process_running(p) || token_bytes != CHANNEL_TOKEN_BYTES || !token_equal(token, p->token))
        return ERR_DENIED;
    if (p->peer && p->peer != peer) { /* it knows better than we do that the old connection is of no use */
        struct peer *old = p->peer;
        job_process_lost(j, slot, old);
        rpc_server_drop(old);
    }
    p->peer = peer;
    if (slot != CHANNEL_SLOT_IO)
        j->workers[slot].epoch = epoch;
    return OK;
}

void job_process_attended(struct job *j, int slot, struct rpc_call *call)
{
    struct job_process *p = job_process(j, slot);
    p->attend = call;
    p->attended = true;
    j->dirty = true;
    log_info("attends job=%" PRIu64 " slot=%d pid=%d", j->id, slot, p->pid);
    if (slot == CHANNEL_SLOT_IO) {
        j->io.failures = 0;
        j->io.scan = SCAN_DUE;
        j->io.epoch = 0;
        j->io_said = 0;
        j->keep_due = true;
        return;
    }
    struct job_worker *w = &j->workers[slot];
    w->told = TOLD_NOTHING;
    w->idle = w->epoch == 0;
    w->ready = w->epoch && w->epoch == j->epoch;
}

void job_process_lost(struct job *j, int slot, const struct peer *peer)
{
    struct job_process *p = job_process(j, slot);
    if (p->peer != peer)
        return;
    p->peer = NULL;
    p->attend = NULL;
    p->silent_since_ms = clock_mono_ms();
    j->dirty = true;
}

/* ---- commands ---- */

/* A full log keeps no processes: then the end is recorded when there is space again. */
static bool may_quit(const struct job *j)
{
    return j->end_logged || j->leaving || j->node->outbox.err;
}

static enum worker_told wanted(const struct job *j, const struct job_worker *w)
{
    switch ((enum job_phase)j->phase.state) {
    case PHASE_LOADING:
    case PHASE_STEPPING:
    case PHASE_REJOINING:
        return w->epoch != j->epoch ? TOLD_START : TOLD_NOTHING;
    case PHASE_ENDING:
        return w->idle || w->told == TOLD_END ? TOLD_NOTHING : TOLD_END;
    case PHASE_DRAINING:
        return w->done || w->told == TOLD_STOP ? TOLD_NOTHING : TOLD_STOP;
    case PHASE_QUITTING:
        return w->told == TOLD_QUIT || !may_quit(j) ? TOLD_NOTHING : TOLD_QUIT;
    default:
        return TOLD_NOTHING;
    }
}

static err_t say_start(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    const struct worker_start s = {.epoch = j->epoch,
                                   .rank = rank,
                                   .world = j->n_workers,
                                   .yaml = j->yaml,
                                   .resume_path = j->resume_path,
                                   .resume_step = j->resume_step};
    err_t err = rpc_worker_start(w->p.attend, &s);
    if (!err) {
        w->epoch = j->epoch;
        w->ready = w->done = w->idle = false;
    }
    return err;
}

static void command_worker(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    enum worker_told want = wanted(j, w);
    err_t err = OK;
    switch (want) {
    case TOLD_NOTHING:
        return;
    case TOLD_START:
        err = say_start(j, rank);
        break;
    case TOLD_END:
        err = rpc_worker_end(w->p.attend, w->epoch);
        break;
    case TOLD_STOP:
        err = rpc_worker_stop(w->p.attend, w->epoch, j->save_at_stop);
        break;
    case TOLD_QUIT:
        err = rpc_worker_quit(w->p.attend);
        break;
    }
    if (!err)
        w->told = want;
}

/* The last 64 KiB that were said are kept for an io that comes after this one. */
static void say_io_lines(struct job *j)
{
    struct buf *b = &j->io_lines;
    bool all = j->phase.state >= PHASE_QUITTING;
    if (b->len == j->io_said || (!all && clock_mono_ms() < j->io_lines_ms))
        return;
    if (rpc_io_metrics(j->io.p.attend, (const char *)b->data + j->io_said, b->len - j->io_said))
        return;
    j->io_lines_ms = clock_mono_ms() + IO_LINES_MS;
    j->io_said = b->len;
    if (b->len > 2 * IO_LINES_KEEP) {
        const uint8_t *from = memchr(b->data + b->len - IO_LINES_KEEP, '\n', IO_LINES_KEEP);
        size_t cut = (size_t)(from - b->data) + 1;
        memmove(b->data, b->data + cut, b->len - cut);
        b->len -= cut;
        j->io_said -= cut;
    }
}

static void command_io(struct job *j)
{
    struct job_io *io = &j->io;
    struct rpc_call *call = io->p.attend;
    enum job_phase phase = (enum job_phase)j->phase.state;
    bool in_epoch = job_in_epoch(j);
    if (!call)
        return;
    if (io->scan == SCAN_DUE && (phase == PHASE_SCANNING || in_epoch) && rpc_io_scan(call, j->yaml) == OK) {
        io->scan = SCAN_ASKED;
        job_scan_forget(j);
    }
    if (io->scan == SCAN_DONE && in_epoch && io->epoch != j->epoch &&
        rpc_io_epoch(call, j->epoch, job_io_step(j), j->yaml) == OK)
        io->epoch = j->epoch;
    if (io->epoch && io->epoch == j->epoch)
        say_io_lines(j);
    if (phase == PHASE_QUITTING && job_workers_gone(j) && may_quit(j) && !io->told_quit && rpc_io_quit(call) == OK)
        io->told_quit = true;
}

void job_commands(struct job *j)
{
    command_io(j);
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.attend)
            command_worker(j, k);
}
