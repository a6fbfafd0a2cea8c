/* How libraft 0.22.1 handles a failure, and what is done here:
 *
 * - append, the write fails: a timer retries with a pointer to another struct. The only trace is the text in
 *   raft_io.errmsg, so it is read after each turn of the loop, before the timer can run, and the timer is stopped.
 * - append or truncate returns an error: libraft's own index of the log is ahead of its entries from then on. It gets
 *   success instead, and no answer. Nothing was written then: libraft lacks memory or descriptors, and is opened again
 *   when it has been closed.
 * - a segment or a snapshot's file cannot be created: libraft retries for ever. The owner notices that an append waits,
 *   and asks the disk itself (log_disk_probe).
 * - a full segment cannot be closed: libraft ignores it. repair.c closes the segment when the log is opened the next
 *   time.
 * - entries cannot be removed: libraft ignores it, and after a restart they would be there again. The files are looked
 *   at when the entries that replace them are stored.
 * - term or vote cannot be stored: libraft has changed its own copy already, and would reply with it to the next
 *   message; and it frees the entries of the present message twice. So it gets success, and none of its messages is
 *   sent.
 * - a snapshot cannot be stored: libraft would never take another one. */
#include "daemon/control/log/faults.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/log/internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Request to the raft_io on behalf of a request of libraft: of the three, the one that has its pointer.
 * The callback gets only the former, so this holds both. */
struct log_store {
    TAILQ_ENTRY(log_store) link;
    struct log_faults *faults;
    int64_t since_ms;
    raft_index cut_from; /* the append replaces removed entries from this one on; 0: none */
    struct raft_io_append append;
    struct raft_io_append *libraft_append;
    raft_io_append_cb appended;
    struct raft_io_snapshot_put put;
    struct raft_io_snapshot_put *libraft_put;
    raft_io_snapshot_put_cb has_put;
    struct raft_io_send *libraft_send;
    raft_io_send_cb sent;
};

static struct log *log_of(struct raft_io *io)
{
    return (struct log *)((char *)io - offsetof(struct log, io));
}

static struct log_faults *faults_of(struct raft_io *io)
{
    return &log_of(io)->faults;
}

/* ---- failures ---- */

void log_faults_note(struct log_faults *f, err_t err, const char *text)
{
    if (f->err)
        return;
    f->err = err;
    snprintf(f->text, sizeof(f->text), "%s", text);
}

void log_faults_freeze(struct log_faults *f, bool is_frozen)
{
    f->is_frozen = is_frozen || f->is_mute;
}

static void note(struct raft_io *io, err_t err, int status, const char *what)
{
    char text[256];
    const char *why = io->errmsg[0] ? io->errmsg : raft_strerror(status);
    snprintf(text, sizeof(text), "%s: %.180s", what, why);
    log_faults_note(faults_of(io), err, text);
}

static int64_t oldest(const struct log_faults *f, bool is_append)
{
    const struct log_store *s;
    TAILQ_FOREACH(s, &f->under_way, link)
    if ((s->libraft_append != NULL) == is_append)
        return s->since_ms;
    return 0;
}

int64_t log_faults_append_since(const struct log_faults *f)
{
    return oldest(f, true);
}

int64_t log_faults_snapshot_since(const struct log_faults *f)
{
    return oldest(f, false);
}

static bool is_shortage(const char *message)
{
    static const int numbers[] = {UV_EMFILE, UV_ENFILE, UV_ENOMEM};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strstr(message, uv_strerror(numbers[i])))
            return true;
    return false;
}

/* Only a message reports this failure: "truncate segment NAME: OPERATION: ERROR". libraft sends it, like some others
 * for each append, from the thread that has failed. */
static void on_message(struct raft_tracer *tracer, int type, const void *arg)
{
    const struct raft_tracer_info *info = arg;
    struct log_faults *f = tracer->impl;
    if (type != RAFT_TRACER_DIAGNOSTIC || f->is_left_open || !strstr(info->diagnostic.file, "uv_finalize") ||
        strncmp(info->diagnostic.message, "truncate segment ", strlen("truncate segment ")) != 0)
        return;
    const char *name = strchr(info->diagnostic.message, ':');
    f->left_open_err = is_shortage(info->diagnostic.message) ? ERR_AGAIN : ERR_IO;
    snprintf(f->left_open, sizeof(f->left_open), "a full segment cannot be closed%.120s", name ? name : "");
    f->is_left_open = true;
}

/* libraft's one-shot timer on the struct of its raft_io is that of the retry. */
static void stop_retry(uv_handle_t *handle, void *impl)
{
    if (handle->type == UV_TIMER && handle->data == impl && uv_timer_get_repeat((uv_timer_t *)handle) == 0)
        uv_timer_stop((uv_timer_t *)handle);
}

void log_faults_look(struct raft_io *io)
{
    struct log_faults *f = faults_of(io);
    int number = 0;
    if (f->is_left_open)
        log_faults_note(f, f->left_open_err, f->left_open);
    if (f->err || TAILQ_EMPTY(&f->under_way) || !io->errmsg[0])
        return;
    bool is_short = strncmp(io->errmsg, "short write", strlen("short write")) == 0;
    if (!is_short && sscanf(io->errmsg, "write failed: -%d", &number) != 1)
        return;
    char text[128];
    snprintf(text, sizeof(text), "an entry cannot be written: %s", strerror(is_short ? ENOSPC : number));
    log_faults_note(f, is_short ? ERR_NOSPACE : err_from_errno(number), text);
    uv_walk(log_of(io)->config.loop, stop_retry, io->impl);
}

/* ---- what libraft stores ---- */

static struct log_store *begin(struct log_faults *f)
{
    struct log_store *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->faults = f;
    s->since_ms = clock_mono_ms();
    s->append.data = s->put.data = s;
    TAILQ_INSERT_TAIL(&f->under_way, s, link);
    return s;
}

static void set_aside(struct log_store *s)
{
    TAILQ_REMOVE(&s->faults->under_way, s, link);
    TAILQ_INSERT_TAIL(&s->faults->aside, s, link);
}

static void end(struct log_store *s, struct log_stores *list, int status)
{
    const struct log_store done = *s;
    TAILQ_REMOVE(list, s, link);
    free(s);
    if (done.libraft_append)
        done.appended(done.libraft_append, status);
    else if (done.libraft_put)
        done.has_put(done.libraft_put, status);
    else
        done.sent(done.libraft_send, status);
}

static void stored(struct log_store *s, int status, const char *what)
{
    struct log_faults *f = s->faults;
    struct log *log = (struct log *)((char *)f - offsetof(struct log, faults));
    if (!status && s->cut_from && log_disk_has_entries(&log->disk, s->cut_from)) {
        log_faults_note(f, ERR_IO, "entries that another leader has replaced cannot be removed");
        status = RAFT_IOERR;
    }
    if (status && !f->is_closing) {
        note(&log->io, log_err_from_raft(status), status, what);
        set_aside(s);
    } else {
        end(s, &f->under_way, status);
    }
}

static void append_done(struct raft_io_append *req, int status)
{
    stored(req->data, status, "an entry cannot be written");
}

static void put_done(struct raft_io_snapshot_put *req, int status)
{
    stored(req->data, status, "a snapshot cannot be written");
}

static int append(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb)
{
    struct log_faults *f = faults_of(io);
    if (TAILQ_EMPTY(&f->under_way))
        io->errmsg[0] = '\0';
    struct log_store *s = begin(f);
    if (!s) {
        note(io, ERR_NOMEM, RAFT_NOMEM,
             "an entry cannot be written"); /* the request is lost; libraft must not see an error */
        return 0;
    }
    s->libraft_append = req;
    s->appended = cb;
    s->cut_from = f->cut_from;
    f->cut_from = 0;
    int status = f->err ? RAFT_IOERR : f->append(io, &s->append, entries, n, append_done);
    if (status) {
        note(io, ERR_AGAIN, status, "an entry cannot be written");
        set_aside(s);
    }
    return 0;
}

static int truncate_entries(struct raft_io *io, raft_index index)
{
    struct log_faults *f = faults_of(io);
    bool removes = index < log_of(io)->guard.next;
    int status = f->err ? 0 : f->truncate(io, index);
    if (status)
        note(io, ERR_AGAIN, status, "entries cannot be removed");
    if (removes && (!f->cut_from || index < f->cut_from))
        f->cut_from = index;
    return 0;
}

/* After an error libraft frees a snapshot of its own, and may take another one later. It does not expect an error for a
 * snapshot of the leader, which has none trailing. */
static int snapshot_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
                        const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    struct log_faults *f = faults_of(io);
    struct log_store *s = begin(f);
    if (!s)
        return RAFT_NOMEM;
    s->libraft_put = req;
    s->has_put = cb;
    int status = f->err ? RAFT_IOERR : f->snapshot_put(io, trailing, &s->put, snapshot, put_done);
    if (!status)
        return 0;
    if (!trailing) {
        note(io, ERR_AGAIN, status, "a snapshot cannot be written");
        set_aside(s);
        return 0;
    }
    TAILQ_REMOVE(&f->under_way, s, link);
    free(s);
    return status;
}

static void vote_failed(struct raft_io *io, int status, const char *what)
{
    struct log_faults *f = faults_of(io);
    note(io, log_err_from_raft(status), status, what);
    f->is_mute = f->is_frozen = true;
}

static int set_term(struct raft_io *io, raft_term term)
{
    struct log_faults *f = faults_of(io);
    int status = f->err ? RAFT_IOERR : f->set_term(io, term);
    if (status)
        vote_failed(io, status, "the term cannot be written");
    return 0;
}

static int set_vote(struct raft_io *io, raft_id vote)
{
    struct log_faults *f = faults_of(io);
    int status = f->err ? RAFT_IOERR : f->set_vote(io, vote);
    if (status)
        vote_failed(io, status, "the vote cannot be written");
    return 0;
}

/* Neither a vote that is not on the disk leaves this voter, nor entries of such a term. */
static int send_message(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                        raft_io_send_cb cb)
{
    struct log_faults *f = faults_of(io);
    if (!f->is_mute)
        return f->send(io, req, message, cb);
    struct log_store *s = begin(f);
    if (!s)
        return RAFT_NOMEM;
    s->libraft_send = req;
    s->sent = cb;
    set_aside(s);
    return 0;
}

/* ---- what libraft gets ---- */

static void receive(struct raft_io *io, struct raft_message *message)
{
    struct log_faults *f = faults_of(io);
    if (f->is_frozen)
        libraft_fixes_drop(message);
    else
        f->receive(io, message);
}

static void tick(struct raft_io *io)
{
    struct log_faults *f = faults_of(io);
    if (!f->is_frozen)
        f->tick(io);
}

static int start(struct raft_io *io, unsigned ms, raft_io_tick_cb on_tick, raft_io_recv_cb on_receive)
{
    struct log_faults *f = faults_of(io);
    f->tick = on_tick;
    f->receive = on_receive;
    return f->start(io, ms, tick, receive);
}

/* libraft is closing already, so it takes the cancellations as its own. */
static void close_io(struct raft_io *io, raft_io_close_cb cb)
{
    struct log_faults *f = faults_of(io);
    f->is_closing = true;
    while (!TAILQ_EMPTY(&f->aside))
        end(TAILQ_FIRST(&f->aside), &f->aside, RAFT_CANCELED);
    f->close(io, cb);
}

void log_faults_install(struct raft_io *io)
{
    struct log_faults *f = faults_of(io);
    *f = (struct log_faults){.start = io->start,
                             .close = io->close,
                             .set_term = io->set_term,
                             .set_vote = io->set_vote,
                             .send = io->send,
                             .append = io->append,
                             .truncate = io->truncate,
                             .snapshot_put = io->snapshot_put};
    TAILQ_INIT(&f->under_way);
    TAILQ_INIT(&f->aside);
    f->tracer = (struct raft_tracer){.impl = f, .version = 2, .emit = on_message};
    raft_uv_set_tracer(io, &f->tracer);
    io->start = start;
    io->close = close_io;
    io->set_term = set_term;
    io->set_vote = set_vote;
    io->send = send_message;
    io->append = append;
    io->truncate = truncate_entries;
    io->snapshot_put = snapshot_put;
}
