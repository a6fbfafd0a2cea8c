/* Setup of libraft, its callbacks (apply, snapshot, restore of the machine) and its errors.
 *
 * An entry is {u64 length, record, zeros to a multiple of 8}, because libraft writes multiples of 8 and keeps no
 * length. libraft does not pass the index of the entry that it applies; entries come in order, so it is the one after
 * the last. Workarounds for defects of libraft are in libraft_fixes.c. */
#include "daemon/control/log/internal.h"

#include "common/base/log.h"

#include <endian.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DISK_RETRY_MS 50 /* a full disk may have space for moments only, while logs of workers grow and are cut */
#define CONNECT_RETRY_MS 100
#define HEARTBEATS_PER_ELECTION 6 /* a heartbeat every 50 ms */

err_t log_err_from_raft(int status)
{
    static const struct {
        int status;
        err_t err;
    } table[] = {
        {0, OK},
        {RAFT_NOMEM, ERR_NOMEM},
        {RAFT_NOSPACE, ERR_NOSPACE},
        {RAFT_CORRUPT, ERR_CORRUPT},
        {RAFT_MALFORMED, ERR_CORRUPT},
        {RAFT_NOTLEADER, ERR_AGAIN},
        {RAFT_BUSY, ERR_AGAIN},
        {RAFT_TOOBIG, ERR_LIMIT},
        {RAFT_CANTCHANGE, ERR_BUSY},
        {RAFT_DUPLICATEID, ERR_EXISTS},
        {RAFT_DUPLICATEADDRESS, ERR_EXISTS},
        {RAFT_BADID, ERR_NOTFOUND},
        {RAFT_NOTFOUND, ERR_NOTFOUND},
        {RAFT_BADROLE, ERR_INVALID},
        {RAFT_NOCONNECTION, ERR_TIMEOUT}, /* a new voter did not catch up */
        {RAFT_LEADERSHIPLOST, ERR_CANCELED},
        {RAFT_SHUTDOWN, ERR_CANCELED},
        {RAFT_CANCELED, ERR_CANCELED},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].status == status)
            return table[i].err;
    return ERR_IO;
}

/* ---- callbacks of libraft ---- */

err_t log_unwrap(const struct raft_buffer *buf, const void **ret, size_t *ret_len)
{
    uint64_t n;
    if (buf->len < sizeof(n))
        return ERR_CORRUPT;
    memcpy(&n, buf->base, sizeof(n));
    n = le64toh(n);
    if (n > buf->len - sizeof(n))
        return ERR_CORRUPT;
    *ret = (char *)buf->base + sizeof(n);
    *ret_len = n;
    return OK;
}

err_t log_wrap(const void *data, size_t len, struct raft_buffer *ret)
{
    ret->len = (sizeof(uint64_t) + len + 7) / 8 * 8;
    ret->base = raft_calloc(1, ret->len);
    if (!ret->base)
        return ERR_NOMEM;
    uint64_t n = htole64(len);
    memcpy(ret->base, &n, sizeof(n));
    memcpy((char *)ret->base + sizeof(n), data, len);
    return OK;
}

static struct log_proposal *proposal_at(struct log *log, uint64_t index)
{
    struct log_proposal *p;
    TAILQ_FOREACH(p, &log->proposals, link)
    {
        if (p->req.index >= index)
            break;
    }
    return p && p->req.index == index ? p : NULL;
}

static int machine_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
    struct log *log = fsm->data;
    uint64_t index = raft_last_applied(&log->raft) + 1;
    char unused[LOG_RESULT_BYTES] __attribute__((aligned(16))) = {0};
    const void *record;
    size_t len;
    *result = NULL;
    log->snapshots.log_bytes += buf->len;
    if (index <= log->applied)
        return 0; /* applied before the log was reopened */
    struct log_proposal *p = proposal_at(log, index);
    err_t err = log_unwrap(buf, &record, &len);
    if (!err)
        err = log->config.machine.apply(log->config.machine.arg, record, len, index, p ? p->result : unused);
    if (err) {
        log_error("a committed record cannot be applied index=%" PRIu64 " why=\"%s\" dir=%s%s", index, err_text(err),
                  log->dir, err == ERR_UNSUPPORTED ? " remedy=\"a newer dtd wrote it: install that version\"" : "");
        abort();
    }
    log->applied = index;
    return 0;
}

static int machine_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    struct log *log = fsm->data;
    /* In a reopened log our state may be of a later index than libraft's, which the snapshot would carry. */
    if (raft_last_applied(&log->raft) < log->applied || !libraft_fixes_may_snapshot(&log->raft) ||
        !log_snapshot_is_due(log))
        return RAFT_BUSY;
    err_t err = log_snapshot_freeze(log);
    if (err) {
        log_warn("no snapshot of the log is taken why=\"%s\"", err_text(err));
        return RAFT_NOMEM;
    }
    *bufs = NULL; /* snapshot.c passes the bytes on when it has them */
    *n_bufs = 0;
    return 0;
}

static int machine_snapshot_over(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
    log_snapshot_thaw(fsm->data);
    *bufs = NULL;
    *n_bufs = 0;
    return 0;
}

static int machine_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
    struct log *log = fsm->data;
    /* In a reopened log the snapshot in our folder has been applied, unless the leader sent it just before the log was
     * closed. And the leader may send a snapshot that is older than our state, since not all entries that we had
     * applied were on our disk yet. An older snapshot is not restored: machine_apply skips the entries up to `applied`,
     * so those between the snapshot and our state would be lost. */
    uint64_t index = log->raft_is_loading ? log->snapshot : raft_commit_index(&log->raft);
    err_t err = log_snapshot_restore(log, buf, index <= log->applied);
    if (err) {
        why_set(&log->failure, err, "the snapshot of index %" PRIu64 " in %s/log cannot be restored: %s", index,
                log->dir, err_text(err));
        log_error("%s", log->failure.text);
        if (err == ERR_NOMEM)
            abort(); /* as in machine_apply: libraft would go on with memory that it has freed */
        return RAFT_CORRUPT;
    }
    raft_free(buf->base);
    return 0;
}

/* ---- opening and closing ---- */

const char *log_raft_failure(const struct log *log)
{
    return log->failure.text[0] ? log->failure.text : log->raft.errmsg;
}

/* A log that is being created has nothing to check yet. */
static int open_guard(struct log *log, const char *name)
{
    log->failure.text[0] = '\0';
    log->guard.fd = -1;
    if (strcmp(name, "log") != 0)
        return 0;
    err_t err = log_guard_open(&log->guard, log->dir, &log->failure);
    if (!err)
        return 0;
    return err == ERR_CORRUPT ? RAFT_CORRUPT : err == ERR_NOSPACE ? RAFT_NOSPACE : RAFT_IOERR;
}

int log_raft_open(struct log *log, const char *name)
{
    snprintf(log->raft_dir, PATH_MAX, "%s/%s", log->dir, name);
    log->snapshot = log_disk_snapshot(&log->disk);
    log_transport_init(&log->transport, log->config.loop, &log->config.peers);
    memset(&log->raft, 0, sizeof(log->raft));
    memset(&log->io, 0, sizeof(log->io));
    int status = open_guard(log, name);
    if (status)
        return status;
    status = raft_uv_init(&log->io, log->config.loop, log->raft_dir, &log->transport.raft);
    if (status) {
        log_guard_close(&log->guard);
        return status;
    }
    if (log->guard.fd >= 0)
        log_guard_install(&log->guard, &log->io);
    log_snapshot_file_install(&log->io);
    libraft_fixes_install(&log->io);
    log_snapshot_install(log);
    log_faults_install(&log->io);
    raft_uv_set_auto_recovery(&log->io, false);
    raft_uv_set_segment_size(&log->io, log->disk.segment_bytes);
    raft_uv_set_disk_retry(&log->io, DISK_RETRY_MS);
    raft_uv_set_connect_retry_delay(&log->io, CONNECT_RETRY_MS);
    log->raft_fsm = (struct raft_fsm){
        .version = 2,
        .data = log,
        .apply = machine_apply,
        .snapshot = machine_snapshot,
        .restore = machine_restore,
        .snapshot_finalize = machine_snapshot_over,
    };
    char address[LOG_ADDRESS_MAX];
    status = raft_init(&log->raft, &log->io, &log->raft_fsm, log->config.id, log_address(log, log->config.id, address));
    if (status) {
        log_warn("libraft cannot be opened dir=%s why=\"%s\"", log->raft_dir, log->raft.errmsg);
        raft_uv_close(&log->io);
        log_guard_close(&log->guard);
        return status;
    }
    log->raft.data = log;
    log->raft_is_open = true;
    /* libraft's own measure of free space is a 16-bit count; log.c watches the disk instead. */
    raft_set_capacity_threshold(&log->raft, 1);
    raft_set_election_timeout(&log->raft, log->config.election_ms);
    raft_set_heartbeat_timeout(&log->raft, log->config.election_ms / HEARTBEATS_PER_ELECTION);
    raft_set_install_snapshot_timeout(&log->raft, LOG_INSTALL_MS);
    raft_set_max_catch_up_round_duration(&log->raft, LOG_CATCH_UP_MS);
    raft_set_pre_vote(&log->raft, true);        /* a voter that returns from a partition does not force an election */
    raft_set_snapshot_threshold(&log->raft, 1); /* log_snapshot_is_due decides */
    raft_set_snapshot_trailing(&log->raft, log->config.snapshot_trailing);
    return 0;
}

static void handle_raft_closed(struct raft *raft)
{
    struct log *log = raft->data;
    raft_uv_close(&log->io);
    log_guard_close(&log->guard);
    log->raft_is_open = log->raft_is_closing = log->barrier_waits = false;
    log_raft_closed(log);
}

void log_raft_close(struct log *log)
{
    if (log->raft_is_closing)
        return;
    log->raft_is_closing = true;
    log->led_term = 0;
    raft_close(&log->raft, handle_raft_closed);
    log_change_end(log, ERR_CANCELED);
}
