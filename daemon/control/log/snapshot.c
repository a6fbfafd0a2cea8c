/* libraft 0.22.1 calls snapshot and snapshot_async of the state machine one after the other on the loop. So libraft
 * gets an empty snapshot, and its call of snapshot_put is held back until the pool has made the bytes. A received
 * snapshot is held back in the same way until it has been read, so that restoring it is an exchange of pointers.
 * libraft takes the delay for a slow disk: it takes and receives no other snapshot meanwhile, and goes on with its
 * entries.
 *
 * libraft frees its log when its io has been closed, and the callbacks of a snapshot use it. So the end of closing is
 * reported when no work is left.
 *
 * The content is {u64 length, data, zeros to a multiple of 8} and the sum of sum.h; libraft sums only entries itself.
 */
#include "daemon/control/log/snapshot.h"

#include "common/base/log.h"
#include "daemon/control/log/internal.h"
#include "daemon/control/log/sum.h"

#include <endian.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A log that has grown by so much is large whatever the state is: libraft keeps its entries in memory, and a restart
 * reads them. */
#define LOG_LARGE_BYTES (4u << 20)
#define LOG_MAX_BYTES (64u << 20)
/* The same for a log of many small records. A record takes some 10 us to apply at a restart. */
#define THRESHOLDS_MAX 16
/* Entries that are kept from before a snapshot may have this size together; a follower that needs more of them gets the
 * snapshot. */
#define TRAILING_BYTES (16u << 20)
/* What a MiB adds to LOG_INSTALL_MS and LOG_CATCH_UP_MS: a network of 100 Mbit/s that is busy with other things carries
 * 4 MiB a second. If the connection breaks, libraft does not wait for this. */
#define INSTALL_MIB_MS 250
#define NO_MEMORY_US 100000 /* until the bytes are made again; longer than a peak of other work lasts */

static struct log *log_of(struct raft_io *io)
{
    return (struct log *)((char *)io - offsetof(struct log, io));
}

/* ---- when ---- */

static uint64_t entries_since(const struct log *log)
{
    raft_index last = log->raft.last_applied, taken = log->raft.trail.snapshot.index;
    return last > taken ? last - taken : 0;
}

bool log_snapshot_is_due(struct log *log)
{
    const struct log_snapshots *s = &log->snapshots;
    uint64_t n = entries_since(log), threshold = log->config.snapshot_threshold;
    bool is_long = n >= threshold || s->log_bytes >= LOG_LARGE_BYTES;
    bool is_worth_it = s->log_bytes >= s->state_bytes / log->config.snapshot_part;
    return (is_long && is_worth_it) || s->log_bytes >= LOG_MAX_BYTES || n >= THRESHOLDS_MAX * threshold;
}

/* At least 1: libraft takes 0 for a snapshot that replaces the log. */
static unsigned trailing_entries(const struct log *log)
{
    uint64_t n = entries_since(log), average = n ? log->snapshots.log_bytes / n + 1 : 1;
    uint64_t most = TRAILING_BYTES / average;
    return most < 1 ? 1 : most < log->config.snapshot_trailing ? (unsigned)most : log->config.snapshot_trailing;
}

static void set_size(struct log *log, size_t bytes)
{
    unsigned ms = (unsigned)(bytes >> 20) * INSTALL_MIB_MS;
    log->snapshots.state_bytes = bytes;
    raft_set_install_snapshot_timeout(&log->raft, LOG_INSTALL_MS + ms);
    raft_set_max_catch_up_round_duration(&log->raft, LOG_CATCH_UP_MS + ms);
}

/* ---- the content ---- */

/* Snapshots of versions without sums end with the content. */
static err_t unwrap_snapshot(const struct raft_buffer *buf, const void **ret, size_t *ret_len)
{
    size_t bytes;
    err_t err = log_sum_check(buf->base, buf->len, &bytes);
    struct raft_buffer content = {.base = buf->base, .len = bytes};
    if (err == ERR_CORRUPT || log_unwrap(&content, ret, ret_len))
        return ERR_CORRUPT;
    return (sizeof(uint64_t) + *ret_len + 7) / 8 * 8 == bytes ? OK : ERR_CORRUPT;
}

/* Puts length, padding and sum around the pieces. */
static err_t wrap_pieces(struct log_snapshot_put *p)
{
    size_t n = p->pieces.n, padding = (8 - p->pieces.bytes % 8) % 8;
    uint32_t crc;
    p->bufs = malloc((n + 2) * sizeof(*p->bufs));
    p->tail = calloc(1, padding + LOG_SUM_BYTES);
    if (!p->bufs || !p->tail)
        return ERR_NOMEM;
    p->length = htole64(p->pieces.bytes);
    p->bufs[0] = (struct raft_buffer){.base = &p->length, .len = sizeof(p->length)};
    crc = log_crc(0, &p->length, sizeof(p->length));
    for (size_t i = 0; i < n; i++) {
        p->bufs[i + 1] =
            (struct raft_buffer){.base = (void *)(uintptr_t)p->pieces.at[i].data, .len = p->pieces.at[i].len};
        crc = log_crc(crc, p->bufs[i + 1].base, p->bufs[i + 1].len);
    }
    log_sum_encode(log_crc(crc, p->tail, padding), p->tail + padding);
    p->bufs[n + 1] = (struct raft_buffer){.base = p->tail, .len = padding + LOG_SUM_BYTES};
    return OK;
}

static void forget_bytes(struct log_snapshot_put *p)
{
    pieces_fini(&p->pieces);
    free(p->bufs);
    free(p->tail);
    p->bufs = NULL;
    p->tail = NULL;
}

err_t log_snapshot_freeze(struct log *log)
{
    struct log_snapshots *s = &log->snapshots;
    err_t err = log->config.machine.freeze(log->config.machine.arg, &s->put.frozen);
    if (err)
        return err;
    raft_set_snapshot_trailing(&log->raft, trailing_entries(log));
    s->log_bytes = 0;
    return OK;
}

void log_snapshot_thaw(struct log *log)
{
    struct log_snapshot_put *p = &log->snapshots.put;
    forget_bytes(p);
    if (p->frozen)
        log->config.machine.thaw(p->frozen);
    p->frozen = NULL;
}

/* ---- the pool ---- */

/* Frees the state of a received snapshot that has not been restored. */
static void drop_fresh(struct log *log)
{
    struct log_snapshot_put *p = &log->snapshots.put;
    if (p->fresh)
        log->config.machine.drop(p->fresh);
    p->fresh = NULL;
}

static void report_closed(struct log *log)
{
    struct log_snapshots *s = &log->snapshots;
    if (!s->io_is_closed || s->n_works)
        return;
    drop_fresh(log);
    s->closed(&log->io);
}

static void io_closed(struct raft_io *io)
{
    struct log *log = log_of(io);
    log->snapshots.io_is_closed = true;
    report_closed(log);
}

static void close_io(struct raft_io *io, raft_io_close_cb cb)
{
    struct log_snapshots *s = &log_of(io)->snapshots;
    s->closed = cb;
    s->close(io, io_closed);
}

/* uv_queue_work fails only without a function. */
void log_snapshot_work_begin(struct log *log, uv_work_t *work, uv_work_cb run, uv_after_work_cb done)
{
    log->snapshots.n_works++;
    (void)uv_queue_work(log->config.loop, work, run, done);
}

void log_snapshot_work_end(struct log *log)
{
    log->snapshots.n_works--;
    report_closed(log);
}

/* ---- storing ---- */

static void run_write(uv_work_t *work)
{
    struct log_snapshot_put *p = work->data;
    if (p->err)
        usleep(NO_MEMORY_US);
    forget_bytes(p);
    p->err = p->log->config.machine.write(p->frozen, &p->pieces);
    if (!p->err)
        p->err = wrap_pieces(p);
}

/* A snapshot that cannot be read is reported by log_snapshot_restore. */
static void run_read(uv_work_t *work)
{
    struct log_snapshot_put *p = work->data;
    const void *data;
    size_t len;
    if (unwrap_snapshot(&p->libraft->bufs[0], &data, &len) || p->log->config.machine.read(data, len, &p->fresh))
        p->fresh = NULL;
}

static void finish_received(struct log_snapshot_put *p)
{
    if (p->is_stored && p->is_read)
        p->cb(p->req, p->status);
}

static void received_stored(struct raft_io_snapshot_put *store, int status)
{
    struct log_snapshot_put *p = store->data;
    p->is_stored = true;
    p->status = status;
    finish_received(p);
}

static void read_done(uv_work_t *work, int status)
{
    (void)status;
    struct log_snapshot_put *p = work->data;
    struct log *log = p->log;
    p->is_read = true;
    finish_received(p);
    log_snapshot_work_end(log);
}

/* libraft counts the entries of a received snapshot as its own already, so the disk must get it now. */
static int put_received(struct log_snapshot_put *p)
{
    p->bytes = p->libraft->bufs[0].base;
    p->store.data = p;
    int status = p->log->snapshots.snapshot_put(&p->log->io, 0, &p->store, p->libraft, received_stored);
    if (!status)
        log_snapshot_work_begin(p->log, &p->work, run_read, read_done);
    return status;
}

static void work_done(uv_work_t *work, int status);

/* Passes the snapshot on to the disk. */
static void store(struct log *log)
{
    struct log_snapshots *s = &log->snapshots;
    struct log_snapshot_put *p = &s->put;
    p->stored = *p->libraft;
    p->stored.bufs = p->bufs;
    p->stored.n_bufs = (unsigned)p->pieces.n + 2;
    set_size(log, p->pieces.bytes);
    int status = s->snapshot_put(&log->io, p->trailing, p->req, &p->stored, p->cb);
    if (!status)
        return;
    log_warn("a snapshot of the log is not stored yet why=\"%s\"", raft_strerror(status));
    p->err = log_err_from_raft(status);
    log_snapshot_work_begin(log, &p->work, run_write, work_done);
}

static void work_done(uv_work_t *work, int status)
{
    (void)status;
    struct log_snapshot_put *p = work->data;
    struct log *log = p->log;
    if (log->raft_is_closing) {
        p->cb(p->req, RAFT_CANCELED);
    } else if (p->err) {
        log_warn("the bytes of a snapshot are made again why=\"%s\"", err_text(p->err));
        log_snapshot_work_begin(log, work, run_write, work_done);
    } else {
        store(log);
    }
    log_snapshot_work_end(log);
}

static int put_snapshot(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    struct log *log = log_of(io);
    struct log_snapshot_put *p = &log->snapshots.put;
    void *frozen = p->frozen;
    if (log->raft_is_closing)
        return RAFT_CANCELED;
    drop_fresh(log);
    *p = (struct log_snapshot_put){.work = {.data = p},
                                   .log = log,
                                   .trailing = trailing,
                                   .req = req,
                                   .cb = cb,
                                   .libraft = snapshot,
                                   .frozen = frozen};
    if (!frozen)
        return put_received(p);
    log_snapshot_work_begin(log, &p->work, run_write, work_done);
    return 0;
}

/* ---- restoring ---- */

/* The state that a received snapshot makes, if it has been read; the caller takes it over. */
static void *take_fresh(struct log *log, const struct raft_buffer *buf)
{
    struct log_snapshot_put *p = &log->snapshots.put;
    void *fresh = p->bytes == buf->base ? p->fresh : NULL;
    if (fresh)
        p->fresh = NULL;
    return fresh;
}

err_t log_snapshot_restore(struct log *log, const struct raft_buffer *buf, bool is_old)
{
    const struct log_machine *machine = &log->config.machine;
    const void *data;
    size_t len;
    void *fresh = take_fresh(log, buf);
    err_t err = fresh ? OK : unwrap_snapshot(buf, &data, &len);
    if (!err && !fresh && !is_old)
        err = machine->read(data, len, &fresh);
    if (err)
        return err;
    log->snapshots.log_bytes = 0;
    set_size(log, buf->len);
    if (is_old && fresh)
        machine->drop(fresh);
    else if (fresh)
        machine->adopt(machine->arg, fresh);
    return OK;
}

void log_snapshot_install(struct log *log)
{
    struct raft_io *io = &log->io;
    log->snapshots = (struct log_snapshots){.snapshot_put = io->snapshot_put, .close = io->close};
    io->snapshot_put = put_snapshot;
    io->close = close_io;
}
