/* The log over libraft (>= 0.22). This file holds the states around libraft:
 *
 *   starting -> bootstrapping -> opening -> ready -> draining -> stopping -> full -> opening ...
 *       \____________________________/|        (out of space) |          (polls for space)
 *                                      \-> dead               \-> broken
 *   ready -> hung -> ready or stopping         log_close, from any state -> ending
 *
 *   bootstrapping  The first files are created in a folder of their own, which is renamed when it is complete.
 *                  A kill in the middle of raft_bootstrap would leave a log that can neither be bootstrapped
 *                  nor elect a leader.
 *
 *   opening        libraft has loaded its files. An only voter leads at once; a barrier of the new term commits
 *                  the entries of older terms, then the log is ready. With several voters the log is ready at
 *                  once, and this voter follows until it is elected.
 *
 *   ready          On a full disk the log goes on: libraft has two prepared segments and retries until it gets the
 *                  next one. Before they are used up the reserve is removed, which is space for more segments. It is
 *                  created again when there is enough space.
 *
 *   draining       The disk is full, and libraft has no segment left. No proposals are taken; those under way have
 *                  DRAIN_MS to end. Then libraft is closed, which gives back the space of its segments. The remaining
 *                  proposals are canceled.
 *
 *   full           libraft is closed and the reserve is removed. The machine keeps its state in memory, so the
 *                  node still answers requests. When the log is read again, entries up to `applied` are not
 *                  applied a second time.
 *
 *   hung           An append waits, and nothing reports why: the disk does not answer. Nothing is proposed, and
 *                  libraft gets no messages and no ticks, so other voters elect a leader. When the append ends, the
 *                  log is ready again.
 *
 *   broken         The disk has failed (faults.c). libraft is closed and not opened again: what it would read back
 *                  may come from the kernel's memory and not from the disk. A restart of the process on a sound disk
 *                  checks all files (guard.c).
 *
 * The leader can change at any time; observe_raft runs after each turn of the loop and reports changes to the owner. An
 * only voter stays the leader while its disk is full, because no other voter can lead. One of several voters hands the
 * leadership over before it closes. The callbacks and the setup of libraft are in raft.c, the configuration in
 * members.c. */
#include "daemon/control/log/internal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define DEFAULT_SEGMENT_BYTES (4u << 20) /* more than the largest record */
#define DEFAULT_RESERVE_BYTES (8u << 20) /* two segments */
#define SNAPSHOT_THRESHOLD 1024
#define SNAPSHOT_TRAILING 128
/* A large state is written again only when the log has grown by this part of it: the disk then gets 5 bytes for each
 * byte of a record, and the entries in memory are a fifth of what the state takes. */
#define SNAPSHOT_PART 4
#define TICK_MS 1000
#define FULL_TICK_MS 100 /* short, because the other voters lack this one until the log is open again */
#define OPENING_TICK_MS 5
#define OPENING_SLOW_MS 10000
#define DRAIN_MS 2000
#define HAND_OVER_MS 500 /* for a transfer of the leadership away from a failed disk; an election takes as long */
/* An append takes milliseconds, and some seconds on a busy disk. Together with the ticks these times are below 5 s. */
#define PROBE_MS 1000
#define HUNG_MS 4000
#define SNAPSHOT_PROBE_MS 10000 /* a large snapshot takes seconds, and no call waits for it */
#define FORMER_LEADER_MS 2000   /* several elections */
#define WATCH_TICK_MS 250       /* while an append is under way */
/* For so long libraft may refuse appends, or an append may wait, before the disk counts as full: libraft counts its
 * prepared segments and reports no space for a moment while it prepares the next one. The same time is left to this
 * node's watch of the workers' logs (local/log_watch.h), which makes space within a second. */
#define REFUSED_MS 3000
#define LOW_TICK_MS 100      /* while the disk is low: within this time libraft may need the reserve */
#define WAITING_TICK_MS 10   /* while proposals wait for libraft's next segment */
#define ENTRY_HEAD_BYTES 64  /* at most so many bytes of a segment hold a record's header */
#define TICK_OVERDUE_MS 5000 /* five ticks of an open log */

enum {
    L_STARTING,
    L_BOOTSTRAPPING,
    L_OPENING,
    L_READY,
    L_DRAINING,
    L_STOPPING,
    L_FULL,
    L_HUNG,
    L_BROKEN,
    L_DEAD,
    L_ENDING
};
static const struct fsm_state states[] = {
    [L_STARTING] = {"starting",
                    FSM_TO(L_BOOTSTRAPPING) | FSM_TO(L_OPENING) | FSM_TO(L_FULL) | FSM_TO(L_DEAD) | FSM_TO(L_ENDING)},
    [L_BOOTSTRAPPING] = {"bootstrapping", FSM_TO(L_OPENING) | FSM_TO(L_FULL) | FSM_TO(L_DEAD) | FSM_TO(L_ENDING)},
    [L_OPENING] = {"opening",
                   FSM_TO(L_READY) | FSM_TO(L_STOPPING) | FSM_TO(L_FULL) | FSM_TO(L_DEAD) | FSM_TO(L_ENDING)},
    [L_READY] = {"ready", FSM_TO(L_DRAINING) | FSM_TO(L_STOPPING) | FSM_TO(L_HUNG) | FSM_TO(L_ENDING)},
    [L_DRAINING] = {"draining", FSM_TO(L_STOPPING) | FSM_TO(L_ENDING)},
    [L_STOPPING] = {"stopping", FSM_TO(L_FULL) | FSM_TO(L_BROKEN) | FSM_TO(L_DEAD) | FSM_TO(L_ENDING)},
    [L_FULL] = {"full", FSM_TO(L_STARTING) | FSM_TO(L_ENDING)},
    [L_HUNG] = {"hung", FSM_TO(L_READY) | FSM_TO(L_STOPPING) | FSM_TO(L_ENDING)},
    [L_BROKEN] = {"broken", FSM_TO(L_ENDING)},
    [L_DEAD] = {"dead", FSM_TO(L_ENDING)},
    [L_ENDING] = {"ending", 0},
};

static void tick(uv_timer_t *timer);

/* ---- states, warnings ---- */

static void move(struct log *log, int to, const char *why)
{
    fsm_move(&log->fsm, to, why);
    log->state_since_ms = clock_mono_ms();
}

static void schedule_tick(struct log *log, uint64_t ms)
{
    uv_timer_start(&log->timer, tick, ms, 0);
}

static void set_warning(struct log *log, const char *text)
{
    if (strcmp(log->warning, text) == 0)
        return;
    snprintf(log->warning, sizeof(log->warning), "%.*s", (int)sizeof(log->warning) - 1, text);
    if (text[0])
        log_warn("replicated log dir=%s warning=\"%s\"", log->dir, text);
    if (log->config.on_warning)
        log->config.on_warning(log->config.owner, log_warning(log));
}

static void warn_disk_full(struct log *log)
{
    char text[sizeof(log->warning)], since[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(since, sizeof(since), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    snprintf(text, sizeof(text),
             "state directory full since %s: nothing new is recorded until %" PRIu64
             " MiB are free; running jobs go on",
             since, log_disk_reopen_mark(&log->disk) >> 20);
    set_warning(log, text);
}

/* A shortage of space, memory or descriptors ends by itself; a disk that has failed does not. */
static bool is_shortage(err_t err)
{
    return err == ERR_NOSPACE || err == ERR_NOMEM || err == ERR_LIMIT || err == ERR_AGAIN;
}

static bool is_broken(const struct log *log)
{
    return log->faults.err && !is_shortage(log->faults.err);
}

/* The error of a proposal while libraft is closed, or is about to be. */
static err_t refusal(const struct log *log)
{
    return is_broken(log) ? ERR_IO : log->refusal ? log->refusal : ERR_AGAIN;
}

static void warn_failed(struct log *log)
{
    char text[sizeof(log->warning)];
    if (log->faults.err == ERR_NOSPACE) {
        warn_disk_full(log);
        return;
    }
    snprintf(text, sizeof(text),
             is_broken(log) ? "the disk of the state directory has failed (%s): this node records nothing and does not "
                              "vote; running jobs go on. Replace the disk or remount it, then restart dtd here"
                            : "the replicated log is closed (%s) and is opened again when that has ended",
             log->faults.text);
    set_warning(log, text);
}

static void release_reserve(struct log *log, const char *why)
{
    if (log->has_reserve)
        log_warn("replicated log dir=%s: the disk is full, the reserve of %" PRIu64 " MiB is used %s", log->dir,
                 log->disk.reserve_bytes >> 20, why);
    log->has_reserve = false;
    log_disk_release(&log->disk);
}

/* Ends the proposals that libraft has not taken. */
static void end_waiting(struct log *log, err_t err)
{
    struct log_proposal *p;
    while ((p = TAILQ_FIRST(&log->waiting))) {
        TAILQ_REMOVE(&log->waiting, p, link);
        log->n_waiting--;
        p->cb(p->arg, err, 0, p->result);
        raft_free(p->buf.base);
        free(p);
    }
}

static void report_ready(struct log *log, err_t err, const char *why)
{
    if (log->was_ready)
        return;
    log->was_ready = true;
    log->config.on_ready(log->config.owner, err, why);
}

/* ---- libraft is closed ---- */

static void free_when_closed(struct log *log)
{
    void (*closed)(void *) = log->closed;
    void *owner = log->config.owner;
    assert(TAILQ_EMPTY(&log->proposals));
    if (--log->handles)
        return;
    free(log->dir);
    free(log->raft_dir);
    free(log);
    if (closed)
        closed(owner);
}

static void handle_closed(uv_handle_t *handle)
{
    free_when_closed(handle->data);
}

static void close_handles(struct log *log)
{
    log->handles = log->is_probing ? 3 : 2;
    uv_close((uv_handle_t *)&log->timer, handle_closed);
    uv_close((uv_handle_t *)&log->after_turn, handle_closed);
}

#define DAMAGE_REMEDY "; docs/operate/backup.md, \"A damaged log\", has the ways to continue"

/* Opening is tried again if the disk is full, or if the log was open before in this process. Any other failure of a
 * first start would repeat. */
static void open_failed(struct log *log, err_t err, const char *text)
{
    char why[sizeof(log->failure.text) + LOG_DIR_MAX + 100];
    snprintf(why, sizeof(why), "the replicated log in %s cannot be opened: %s (%s)%s", log->dir, text, err_text(err),
             err == ERR_CORRUPT || err == ERR_IO ? DAMAGE_REMEDY : "");
    bool is_full = log_disk_free(&log->disk) < log_disk_reopen_mark(&log->disk);
    if (!is_full && !log->was_ready) {
        move(log, L_DEAD, text);
        report_ready(log, err, why);
        return;
    }
    log->refusal = is_full ? ERR_NOSPACE : ERR_AGAIN;
    if (is_full)
        warn_disk_full(log);
    else
        set_warning(log, why);
    move(log, L_FULL, text);
    schedule_tick(log, TICK_MS);
}

static void finish_bootstrap(struct log *log)
{
    err_t err = log_disk_commit_new(&log->disk);
    if (err)
        open_failed(log, err, "the new folder cannot be renamed");
    else
        tick(&log->timer);
}

static void end_broken(struct log *log)
{
    warn_failed(log);
    if (log->was_ready) {
        move(log, L_BROKEN, log->faults.text);
        return;
    }
    move(log, L_DEAD, log->faults.text);
    report_ready(log, log->faults.err, log->warning);
}

void log_raft_closed(struct log *log)
{
    switch (log->fsm.state) {
    case L_BOOTSTRAPPING:
        finish_bootstrap(log);
        break;
    case L_STOPPING:
        if (is_broken(log)) {
            end_broken(log);
            break;
        }
        release_reserve(log, "until the log is opened again");
        move(log, L_FULL, "libraft is closed");
        schedule_tick(log, TICK_MS);
        break;
    case L_FULL:
    case L_BROKEN:
    case L_DEAD:
        break;
    default:
        assert(log->fsm.state == L_ENDING);
        close_handles(log);
    }
}

/* ---- starting ---- */

/* Creates the first files of a log whose only voter is this one; libraft is closed when they exist. */
static void bootstrap(struct log *log)
{
    struct raft_configuration conf;
    char address[LOG_ADDRESS_MAX];
    int status = log_raft_open(log, "log.new");
    if (status) {
        open_failed(log, log_err_from_raft(status), log_raft_failure(log));
        return;
    }
    raft_configuration_init(&conf);
    status = raft_configuration_add(&conf, log->config.id, log_address(log, log->config.id, address), RAFT_VOTER);
    if (!status)
        status = raft_bootstrap(&log->raft, &conf);
    raft_configuration_close(&conf);
    if (status)
        open_failed(log, log_err_from_raft(status), log->io.errmsg);
    else
        move(log, L_BOOTSTRAPPING, "a new log");
    log_raft_close(log);
}

/* Appends a configuration with this voter alone after all entries on our disk. */
static int append_recovery_configuration(struct log *log)
{
    struct raft_configuration conf;
    char address[LOG_ADDRESS_MAX];
    raft_configuration_init(&conf);
    int status = raft_configuration_add(&conf, log->config.id, log_address(log, log->config.id, address), RAFT_VOTER);
    if (!status)
        status = raft_recover(&log->raft, &conf);
    raft_configuration_close(&conf);
    log_warn("voters: new configuration with this node alone id=%" PRIu64 " status=%d", log->config.id, status);
    return status;
}

static void create_log(struct log *log)
{
    err_t err = log_disk_make_new(&log->disk);
    if (!err && !log->config.joins) {
        bootstrap(log);
        return;
    }
    if (!err)
        err = log_disk_commit_new(&log->disk);
    if (err)
        open_failed(log, err, "its folder cannot be made");
    else
        schedule_tick(log, 0);
}

static void note_opened(struct log *log)
{
    log->opened =
        (struct log_mark){.id = log->config.id, .term = log->raft.current_term, .stored = raft_last_index(&log->raft)};
    if (getrandom(&log->opened.process, sizeof(log->opened.process), 0) != sizeof(log->opened.process))
        log->opened.process = 0; /* not compared */
}

static void open_log(struct log *log)
{
    log->has_reserve = log_disk_reserve(&log->disk);
    if (log_disk_free(&log->disk) < 3 * log->disk.segment_bytes)
        release_reserve(log, "to open the log"); /* starting without the reserve is better than not starting */
    int status = log_raft_open(log, "log");
    if (status) {
        open_failed(log, log_err_from_raft(status), log_raft_failure(log));
        return;
    }
    if (log->config.recovers) {
        log->witness = (struct log_witness){.is_dirty = true}; /* the others will have other logs under these ids */
        status = append_recovery_configuration(log);
        log->config.recovers = false;
        if (status) {
            open_failed(log, log_err_from_raft(status), log->io.errmsg);
            log_raft_close(log);
            return;
        }
    }
    log->raft_is_loading = true;
    status = raft_start(&log->raft);
    log->raft_is_loading = false;
    if (status) {
        const char *text = log_raft_failure(log);
        open_failed(log, log_err_from_raft(status), text[0] ? text : raft_strerror(status));
        log_raft_close(log);
        return;
    }
    log->warned_slow = false;
    note_opened(log);
    move(log, L_OPENING, "loaded");
    schedule_tick(log, OPENING_TICK_MS);
}

/* ---- leadership ---- */

bool log_has_raft(const struct log *log)
{
    return log->raft_is_open && !log->raft_is_closing &&
           FSM_TO(log->fsm.state) & (FSM_TO(L_OPENING) | FSM_TO(L_READY) | FSM_TO(L_DRAINING));
}

static void become_ready(struct log *log, const char *why)
{
    move(log, L_READY, why);
    log->refusal = OK;
    schedule_tick(log, TICK_MS);
    set_warning(log, "");
    report_ready(log, OK, "");
}

static void barrier_passed(struct raft_barrier *req, int status)
{
    struct log *log = req->data;
    log->barrier_waits = false;
    if (!status && log_has_raft(log) && log->barrier_term == log->raft.current_term)
        log->led_term = log->barrier_term;
}

static bool is_leader(struct log *log)
{
    return raft_state(&log->raft) == RAFT_LEADER;
}

/* Proposes a barrier of our term after all entries of older terms. When it is committed, those are applied. */
static void propose_barrier(struct log *log)
{
    libraft_fixes_note_leader(&log->raft);
    if (log->led_term == log->raft.current_term || log->barrier_waits || log->fsm.state == L_DRAINING)
        return;
    log->barrier.data = log;
    log->barrier_term = log->raft.current_term;
    log->barrier_waits = raft_barrier(&log->raft, &log->barrier, barrier_passed) == 0;
}

static bool is_only_voter(const struct log *log)
{
    const struct raft_configuration *conf = &log->raft.configuration;
    unsigned others = 0, own = 0;
    for (unsigned i = 0; i < conf->n; i++)
        if (conf->servers[i].role == RAFT_VOTER)
            *(conf->servers[i].id == log->config.id ? &own : &others) += 1;
    return own && !others;
}

/* Reports a change of the leader to the owner. An only voter stays the leader while its log is closed on a full disk. A
 * voter that loses the leadership reports this only after its last proposal has ended. */
static void report_role(struct log *log)
{
    bool has_raft = log_has_raft(log), leads = log->leads && log->is_alone;
    uint64_t leader = leads ? log->config.id : 0;
    if (has_raft && (log->fsm.state != L_OPENING || !log->is_alone)) {
        const char *address;
        raft_id id = 0;
        leads = is_leader(log) && log->led_term == log->raft.current_term;
        raft_leader(&log->raft, &id, &address);
        leader = is_leader(log) && !leads ? 0 : id;
    }
    if ((leads == log->leads && leader == log->leader) || (log->leads && !leads && log->n_proposals))
        return;
    if (leads != log->leads) {
        log_info("replicated log %s id=%" PRIu64 " term=%" PRIu64,
                 leads ? "is led by this node" : "is no longer led by this node", log->config.id, log_term(log));
    }
    log->leads = leads;
    log->leader = leader;
    if (log->config.on_role && log->was_ready)
        log->config.on_role(log->config.owner);
}

static void observe_raft(struct log *log)
{
    if (log->fsm.state == L_ENDING)
        return;
    if (log_has_raft(log)) {
        if (!is_leader(log))
            end_waiting(log, ERR_CANCELED);
        if (log->applied < raft_last_applied(&log->raft))
            log->applied = raft_last_applied(&log->raft); /* barriers and configurations advance it, too */
        log->is_alone = is_only_voter(log);
        log_change_check(log);
        if (is_leader(log))
            propose_barrier(log);
        if (log->fsm.state == L_OPENING && (!log->is_alone || log->led_term == log->raft.current_term))
            become_ready(log, log->is_alone ? "leader" : "one of several");
    }
    report_role(log);
}

/* ---- a disk that fails ---- */

/* Proposals that libraft has not taken are not recorded. */
static void leave(struct log *log)
{
    bool hands_over = !log->is_alone && log->leads && log->fsm.state == L_READY && !log->faults.is_frozen;
    log->refusal = log->faults.err == ERR_NOSPACE ? ERR_NOSPACE : ERR_AGAIN;
    warn_failed(log);
    end_waiting(log, refusal(log));
    if (hands_over && log_transfer(log, 0, NULL, NULL) == OK) {
        move(log, L_DRAINING, log->faults.text);
        schedule_tick(log, 0);
        return;
    }
    move(log, L_STOPPING, log->faults.text);
    log_raft_close(log);
}

static void observe_faults(struct log *log)
{
    bool is_in_use = log->fsm.state == L_OPENING || log->fsm.state == L_READY || log->fsm.state == L_HUNG;
    if (!log->raft_is_open || log->raft_is_closing)
        return;
    log_faults_look(&log->io); /* also while the leadership is handed over after another failure */
    if (log->faults.err && is_in_use)
        leave(log);
}

static void probe_disk(uv_work_t *work)
{
    struct log *log = work->data;
    log->probed.err = log_disk_probe(&log->disk, &log->probed.why);
}

/* A probe that ends when nothing waits any more is of no interest. */
static void probe_done(uv_work_t *work, int status)
{
    struct log *log = work->data;
    log->is_probing = false;
    log->answer = log->probed;
    log->probe_due_ms = clock_mono_ms() + PROBE_MS;
    if (log->fsm.state == L_ENDING) {
        if (log->handles)
            free_when_closed(log);
    } else if (!status && log->answer.err && !is_shortage(log->answer.err) && log->raft_is_open &&
               (log_faults_append_since(&log->faults) || log_faults_snapshot_since(&log->faults))) {
        log_faults_note(&log->faults, log->answer.err, log->answer.why.text);
    }
}

static void probe(struct log *log)
{
    if (log->is_probing || clock_mono_ms() < log->probe_due_ms)
        return;
    log->probe.data = log;
    log->is_probing = uv_queue_work(log->config.loop, &log->probe, probe_disk, probe_done) == 0;
}

/* libraft still has the proposals, and may commit them when the disk answers. */
static void give_up_proposals(struct log *log)
{
    struct log_proposal *p;
    TAILQ_FOREACH(p, &log->proposals, link)
    {
        log_callback cb = p->cb;
        p->cb = NULL;
        if (!cb)
            continue;
        log->n_proposals--;
        cb(p->arg, ERR_CANCELED, 0, p->result);
    }
}

static void hang(struct log *log)
{
    char text[sizeof(log->warning)];
    snprintf(text, sizeof(text),
             "the disk of the state directory has not answered for %d s%s%.200s: nothing is recorded until it does; "
             "running jobs go on",
             HUNG_MS / 1000, log->answer.err ? ", " : "", log->answer.err ? log->answer.why.text : "");
    log->thawed_ms = 0;
    log_faults_freeze(&log->faults, true);
    move(log, L_HUNG, "an append waits");
    set_warning(log, text);
    end_waiting(log, ERR_TIMEOUT);
    give_up_proposals(log);
    schedule_tick(log, FULL_TICK_MS);
}

/* Returns whether an append is under way; asks the disk, and may move the log to `hung`. */
static bool watch_appends(struct log *log, bool is_low)
{
    int64_t now = clock_mono_ms(), since = log_faults_append_since(&log->faults), age = since ? now - since : 0;
    int64_t snapshot = log_faults_snapshot_since(&log->faults);
    if ((age > PROBE_MS || (snapshot && now - snapshot > SNAPSHOT_PROBE_MS)) && !is_low)
        probe(log);
    if (age > HUNG_MS && !is_low && log->fsm.state == L_READY)
        hang(log);
    return since != 0;
}

/* A former leader first finds out whether another voter leads now. */
static void tick_hung(struct log *log)
{
    int64_t now = clock_mono_ms();
    bool waits = log_faults_append_since(&log->faults) != 0;
    if (waits || !log->thawed_ms) {
        log->thawed_ms = waits ? 0 : now;
        log_faults_freeze(&log->faults, waits);
        schedule_tick(log, FULL_TICK_MS);
    } else if (!log->is_alone && is_leader(log) && now - log->thawed_ms < FORMER_LEADER_MS) {
        schedule_tick(log, FULL_TICK_MS);
    } else {
        become_ready(log, "the disk answers again");
    }
}

static void on_loop_turn(uv_check_t *check)
{
    observe_faults(check->data);
    observe_raft(check->data);
}

/* ---- ticks ---- */

static void tick_opening(struct log *log)
{
    int64_t age = clock_mono_ms() - log->state_since_ms;
    (void)watch_appends(log, log_disk_free(&log->disk) < log_disk_low_mark(&log->disk));
    if (age > DRAIN_MS && log_disk_free(&log->disk) < log_disk_low_mark(&log->disk)) {
        log->refusal = ERR_NOSPACE;
        warn_disk_full(log);
        move(log, L_STOPPING, "no space to open");
        log_raft_close(log);
        return;
    }
    if (age > OPENING_SLOW_MS && !log->warned_slow) {
        log->warned_slow = true;
        set_warning(log, "the replicated log has no leader yet");
    }
    schedule_tick(log, OPENING_TICK_MS); /* each turn of the loop runs observe_raft */
}

static void proposal_done(struct raft_apply *req, int status, void *result)
{
    (void)result;
    struct log_proposal *p = req->data;
    struct log *log = p->log;
    TAILQ_REMOVE(&log->proposals, p, link);
    if (p->cb) {
        log->n_proposals--;
        p->cb(p->arg, status ? ERR_CANCELED : OK, req->index, p->result);
    }
    free(p);
    if (!log->n_proposals)
        report_role(log); /* the report may have waited for this end */
}

/* RAFT_NOSPACE: libraft has not taken the proposal, which still belongs to the caller. After other errors it is freed.
 * With RAFT_NOTLEADER, libraft has not taken over the buffer. With others the owner of the buffer is unknown, and a
 * leak is better than freeing it twice. */
static int apply_proposal(struct log *log, struct log_proposal *p)
{
    TAILQ_INSERT_TAIL(&log->proposals, p, link);
    int status = raft_apply(&log->raft, &p->req, &p->buf, 1, proposal_done);
    log->n_proposals += !status;
    if (!status)
        return 0;
    TAILQ_REMOVE(&log->proposals, p, link);
    if (status == RAFT_NOTLEADER)
        raft_free(p->buf.base);
    if (status != RAFT_NOSPACE)
        free(p);
    return status;
}

static void retry_waiting(struct log *log)
{
    struct log_proposal *p;
    while ((p = TAILQ_FIRST(&log->waiting))) {
        const struct log_proposal first = *p;
        TAILQ_REMOVE(&log->waiting, p, link);
        int status = apply_proposal(log, p);
        if (status == RAFT_NOSPACE) {
            TAILQ_INSERT_HEAD(&log->waiting, p, link);
            return;
        }
        log->n_waiting--;
        if (status)
            first.cb(first.arg, ERR_CANCELED, 0, first.result);
    }
}

static void drain(struct log *log, const char *why)
{
    warn_disk_full(log);
    log->refusal = ERR_NOSPACE;
    end_waiting(log, ERR_NOSPACE);
    release_reserve(log, "for proposals under way");
    move(log, L_DRAINING, why);
    if (!log->is_alone && log->leads && log_transfer(log, 0, NULL, NULL))
        log_warn("the leadership cannot be handed over; the other voters elect a leader after a timeout");
    schedule_tick(log, 0);
}

/* Counts what is appended while the disk is low, and removes the reserve in time for libraft's next segment. An only
 * voter keeps the reserve until it has filled about one segment, because what fills the disk may fill the reserve's
 * space, too. One of several voters does not see what libraft appends for the leader, and removes it at once. */
static bool watch_space(struct log *log, size_t appended)
{
    bool is_low = log_disk_free(&log->disk) < log_disk_low_mark(&log->disk);
    if (!is_low && !log->low_since_ms)
        return false;
    if (!is_low) {
        log->low_since_ms = 0;
        log->low_bytes = 0;
        return false;
    }
    if (!log->low_since_ms) {
        log->low_since_ms = clock_mono_ms();
        schedule_tick(log, LOW_TICK_MS);
    }
    log->low_bytes += appended;
    if (log->has_reserve && (!log->is_alone || log->n_waiting || log->low_bytes > log->disk.segment_bytes)) {
        release_reserve(log, "for new segments");
        log->low_since_ms = 0; /* this may have freed enough */
        log->low_bytes = 0;
    }
    return true;
}

static void tick_ready(struct log *log)
{
    int64_t now = clock_mono_ms();
    retry_waiting(log);
    bool is_low = watch_space(log, 0);
    const struct log_proposal *oldest = TAILQ_FIRST(&log->proposals), *first = TAILQ_FIRST(&log->waiting);
    if (first && now - first->since_ms > REFUSED_MS)
        drain(log, "libraft refuses appends");
    else if (is_low && oldest && now - oldest->since_ms > REFUSED_MS)
        drain(log, "an append waits for space");
    else if (is_low && !log->is_alone && log->low_since_ms && now - log->low_since_ms > REFUSED_MS)
        drain(log, "the disk is full, other voters can lead");
    else if (watch_appends(log, is_low))
        schedule_tick(log, first ? WAITING_TICK_MS : is_low ? LOW_TICK_MS : WATCH_TICK_MS);
    else
        schedule_tick(log, first ? WAITING_TICK_MS : is_low ? LOW_TICK_MS : TICK_MS);
    if (log->fsm.state == L_READY && !is_low && !log->has_reserve)
        log->has_reserve = log_disk_reserve(&log->disk);
}

static void tick_draining(struct log *log)
{
    bool waits = log->faults.err ? log->change.is_under_way : log->n_proposals || log->change.is_under_way;
    if (waits && clock_mono_ms() - log->state_since_ms < (log->faults.err ? HAND_OVER_MS : DRAIN_MS)) {
        schedule_tick(log, OPENING_TICK_MS);
        return;
    }
    move(log, L_STOPPING, log->n_proposals ? "canceling the remaining proposals" : "drained");
    log_raft_close(log);
}

static void tick_full(struct log *log)
{
    if (log->raft_is_open || log_disk_free(&log->disk) < log_disk_reopen_mark(&log->disk)) {
        schedule_tick(log, FULL_TICK_MS);
        return;
    }
    move(log, L_STARTING, "there is space again");
    schedule_tick(log, 0);
}

static void tick_starting(struct log *log)
{
    err_t err = file_make_dirs(log->dir, 0700);
    if (err)
        open_failed(log, err, "its folder cannot be made");
    else if (log_disk_is_new(&log->disk))
        create_log(log);
    else
        open_log(log);
}

static void tick_nothing(struct log *log)
{
    (void)log;
}

static void tick(uv_timer_t *timer)
{
    static void (*const ticks[])(struct log * log) = {
        [L_STARTING] = tick_starting, [L_BOOTSTRAPPING] = open_log, [L_OPENING] = tick_opening, [L_READY] = tick_ready,
        [L_DRAINING] = tick_draining, [L_STOPPING] = tick_nothing,  [L_FULL] = tick_full,       [L_HUNG] = tick_hung,
        [L_BROKEN] = tick_nothing,    [L_DEAD] = tick_nothing,      [L_ENDING] = tick_nothing,
    };
    struct log *log = timer->data;
    log->ticked_ms = clock_mono_ms();
    if (log->fsm.state == L_READY)
        witness_save(&log->witness, log->dir);
    ticks[log->fsm.state](log);
}

/* ---- proposing ---- */

static err_t check_can_propose(struct log *log, size_t len)
{
    if (len > LOG_RECORD_MAX_BYTES || log->n_proposals + log->n_waiting >= LOG_MAX_PENDING)
        return ERR_LIMIT;
    if (log->fsm.state == L_READY)
        (void)watch_space(log, len + ENTRY_HEAD_BYTES);
    if (log->fsm.state != L_STARTING && !log->is_alone && !log->leads)
        return ERR_AGAIN;
    switch (log->fsm.state) {
    case L_READY:
        return OK;
    case L_DRAINING:
    case L_STOPPING:
    case L_FULL:
    case L_BROKEN:
        return refusal(log);
    case L_HUNG:
        return ERR_TIMEOUT;
    default:
        return refusal(log);
    }
}

err_t log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg)
{
    err_t err = check_can_propose(log, len);
    if (err)
        return err;
    struct log_proposal *p = calloc(1, sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    p->log = log;
    p->cb = cb;
    p->arg = arg;
    p->since_ms = clock_mono_ms();
    p->req.data = p;
    err = log_wrap(record, len, &p->buf);
    if (err) {
        free(p);
        return err;
    }
    int status = TAILQ_EMPTY(&log->waiting) ? apply_proposal(log, p) : RAFT_NOSPACE;
    if (status != RAFT_NOSPACE)
        return status ? log_err_from_raft(status) : OK;
    TAILQ_INSERT_TAIL(&log->waiting, p, link); /* keeps the order */
    if (log->n_waiting++ == 0)
        schedule_tick(log, WAITING_TICK_MS);
    return OK;
}

/* ---- start, close, queries ---- */

err_t log_start(const struct log_config *config, struct log **ret)
{
    if (strlen(config->dir) > LOG_DIR_MAX)
        return ERR_LIMIT;
    struct log *log = calloc(1, sizeof(*log));
    if (!log)
        return ERR_NOMEM;
    log->config = *config;
    log->dir = strdup(config->dir);
    log->raft_dir = malloc(PATH_MAX);
    if (!log->dir || !log->raft_dir) {
        free(log->dir);
        free(log->raft_dir);
        free(log);
        return ERR_NOMEM;
    }
    if (!config->id)
        log->config.id = LOG_FIRST_ID;
    if (!config->election_ms)
        log->config.election_ms = LOG_ELECTION_MS;
    log->is_alone = !config->joins; /* until libraft has loaded a configuration */
    log->fsm = (struct fsm){.kind = "log", .id = log->config.id, .states = states, .state = L_STARTING};
    log->disk.dir = log->dir;
    log->disk.segment_bytes = config->segment_bytes ? config->segment_bytes : DEFAULT_SEGMENT_BYTES;
    log->disk.reserve_bytes = config->reserve_bytes ? config->reserve_bytes : DEFAULT_RESERVE_BYTES;
    if (!log->config.snapshot_threshold)
        log->config.snapshot_threshold = SNAPSHOT_THRESHOLD;
    if (!log->config.snapshot_trailing)
        log->config.snapshot_trailing = SNAPSHOT_TRAILING;
    if (!log->config.snapshot_part)
        log->config.snapshot_part = SNAPSHOT_PART;
    TAILQ_INIT(&log->proposals);
    TAILQ_INIT(&log->waiting);
    witness_load(&log->witness, log->dir);
    uv_timer_init(config->loop, &log->timer);
    log->timer.data = log;
    uv_check_init(config->loop, &log->after_turn);
    log->after_turn.data = log;
    uv_check_start(&log->after_turn, on_loop_turn);
    uv_unref((uv_handle_t *)&log->after_turn);
    schedule_tick(log, 0);
    *ret = log;
    return OK;
}

void log_close(struct log *log, void (*cb)(void *owner))
{
    log->closed = cb;
    move(log, L_ENDING, "log_close");
    end_waiting(log, ERR_CANCELED);
    uv_timer_stop(&log->timer);
    if (log->raft_is_open)
        log_raft_close(log);
    else
        close_handles(log);
}

const char *log_state(const struct log *log)
{
    static const char *const names[] = {
        [RAFT_UNAVAILABLE] = "unavailable",
        [RAFT_FOLLOWER] = "follower",
        [RAFT_CANDIDATE] = "candidate",
        [RAFT_LEADER] = "leader",
    };
    return log->raft_is_open && !log->raft_is_closing ? names[raft_state((struct raft *)&log->raft)] : "unavailable";
}

uint64_t log_term(const struct log *log)
{
    return log->raft.current_term;
}

uint64_t log_index(const struct log *log)
{
    return log->applied;
}

bool log_ticks(const struct log *log)
{
    bool due = uv_is_active((const uv_handle_t *)&log->timer) && log->ticked_ms;
    return !due || clock_mono_ms() - log->ticked_ms < TICK_OVERDUE_MS;
}

bool log_leads(const struct log *log)
{
    return log->leads;
}

bool log_is_superseded(const struct log *log)
{
    int state = log->leads && log_has_raft(log) ? raft_state((struct raft *)&log->raft) : RAFT_LEADER;
    return state == RAFT_FOLLOWER || state == RAFT_CANDIDATE;
}

uint64_t log_leader(const struct log *log)
{
    return log->leader;
}

bool log_has_failed(const struct log *log)
{
    return is_broken(log);
}

const char *log_warning(const struct log *log)
{
    return log->warning[0] ? log->warning : NULL;
}
