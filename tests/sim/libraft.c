/* The simulation's raft_uv: libraft's own core runs unchanged over this raft_io, which uses the virtual disk and
 * network. The functions have libraft's names, so the log sets it up as in production. libraft requires its io to fire
 * completed requests before and after each turn of the loop; the function for that is in its archive but not in its
 * headers. */
#include "tests/sim/libraft.h"

#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/stream.h"

#include <assert.h>
#include <raft/uv.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_US 20000 /* closing takes up to 20 ms, so that other events fall into it */
#define DISK_RETRY_US (50 * US_PER_MS)
#define MAX_IDS 64 /* of voters; each node that joins has another one */
#define CONNECT_RETRY_US (100 * US_PER_MS)
#define CAPACITY 1000 /* entries; libraft accepts a proposal if it has at least 1 */

void LegacyFireCompletedRequests(struct raft *r);

struct sending {
    TAILQ_ENTRY(sending) link;
    struct sim_io *io;
    struct raft_io_send *request;
    struct event *event;
    int status;
};

/* One append or snapshot under way. */
struct storing {
    struct sim_io *io;
    struct raft_io_append *append;
    struct raft_io_snapshot_put *put;
};

/* One snapshot that is being read. */
struct reading {
    TAILQ_ENTRY(reading) link;
    struct sim_io *io;
    struct raft_io_snapshot_get *request;
    struct event *event;
};

/* The streams of this voter to another one, and of that one to this. */
struct line {
    struct uv_stream_s *out, *in; /* NULL: none */
    struct raft_uv_connect request;
    bool is_connecting;
    int64_t retry_us;
};

struct sim_io {
    struct raft_io *raft_io;
    raft_id id;
    uint64_t start; /* number of this start, of all logs */
    struct raft_uv_transport *transport;
    struct line lines[MAX_IDS + 1]; /* by the id of the other voter */
    struct host *host;
    struct disk *disk;
    struct files *files;
    unsigned tick_ms;
    raft_io_tick_cb tick;
    raft_io_recv_cb receive;
    raft_io_close_cb closed;
    struct event *ticking;
    bool is_started, is_closing;
    raft_index next;        /* index of the next entry to append */
    int removals, puts;     /* number under way */
    struct storing *failed; /* the append whose write has failed */
    struct event *retry;
    struct {
        int64_t us; /* 0: none, or it has been stored */
        raft_index index;
        uint64_t start;           /* of the receiver */
    } snapshot_sent[MAX_IDS + 1]; /* by receiver */
    struct hook before, after;
    TAILQ_HEAD(, sending) sends;
    TAILQ_HEAD(, reading) reads;
};

static uint64_t n_starts;
static struct sim_io *running[MAX_HOSTS + 1]; /* per host: the io of its process, once started */
uint64_t libraft_deaths;
bool libraft_uses_streams;
void (*libraft_recovered)(struct host *host);

static struct sim_io *io_of(struct raft_io *io)
{
    return io->impl;
}

/* ---- the turn of the loop ---- */

static void each_turn(void *arg)
{
    struct sim_io *io = arg;
    bool has_room = !io->disk->is_full || io->disk->room > 1024 || io->disk->free_bytes >= io->disk->segment_bytes;
    io->raft_io->capacity = has_room ? CAPACITY : 0;
    LegacyFireCompletedRequests(io->raft_io->data);
}

static void tick(void *arg);

static void arm(struct sim_io *io)
{
    int64_t us = (int64_t)io->tick_ms * US_PER_MS;
    io->ticking =
        world_after(io->host, us - us * io->host->rate_ppm / 1000000 + world_between(FROM_CLOCK, 0, 300), tick, io);
}

static void tick(void *arg)
{
    struct sim_io *io = arg;
    arm(io);
    io->tick(io->raft_io);
}

/* ---- streams ---- */

static void line_freed(uv_handle_t *handle)
{
    raft_free(handle);
}

static void line_close(struct uv_stream_s **stream)
{
    if (*stream)
        uv_close((uv_handle_t *)*stream, line_freed);
    *stream = NULL;
}

static struct line *line_of(struct sim_io *io, raft_id id)
{
    assert(id <= MAX_IDS);
    return &io->lines[id];
}

static void line_accepted(struct raft_uv_transport *transport, raft_id id, const char *address,
                          struct uv_stream_s *stream)
{
    struct line *l = line_of(transport->data, id);
    (void)address;
    line_close(&l->in);
    l->in = stream;
}

static void line_connected(struct raft_uv_connect *request, struct uv_stream_s *stream, int status)
{
    struct line *l = request->data;
    l->is_connecting = false;
    l->out = status ? NULL : stream;
}

/* The host to which a message for this voter goes; 0: there is no stream, and one is being opened. */
static int line_host(struct sim_io *io, raft_id id, const char *address)
{
    struct line *l = line_of(io, id);
    const struct host *other = l->out ? stream_other(l->out) : NULL;
    if (!libraft_uses_streams)
        return (int)id;
    if (other)
        return other->id;
    line_close(&l->out);
    if (l->is_connecting || world.now_us < l->retry_us)
        return 0;
    l->retry_us = world.now_us + CONNECT_RETRY_US;
    l->request.data = l;
    l->is_connecting = io->transport->connect(io->transport, &l->request, id, address, line_connected) == 0;
    return 0;
}

static bool line_carries(struct sim_io *from, struct sim_io *to)
{
    if (!libraft_uses_streams)
        return true;
    const struct uv_stream_s *out = from ? line_of(from, to->id)->out : NULL,
                             *in = line_of(to, from ? from->id : 0)->in;
    return out && in && stream_meets(out, in);
}

static void transport_closed(struct raft_uv_transport *transport)
{
    (void)transport;
}

static void lines_close(struct sim_io *io)
{
    for (raft_id id = 0; id <= MAX_IDS; id++) {
        line_close(&io->lines[id].out);
        line_close(&io->lines[id].in);
    }
    io->transport->close(io->transport, transport_closed);
}

/* ---- start ---- */

static int io_init(struct raft_io *raft_io, raft_id id, const char *address)
{
    (void)address;
    io_of(raft_io)->id = id;
    return 0;
}

static int io_start(struct raft_io *raft_io, unsigned ms, raft_io_tick_cb on_tick, raft_io_recv_cb on_receive)
{
    struct sim_io *io = io_of(raft_io);
    io->tick_ms = ms;
    io->tick = on_tick;
    io->receive = on_receive;
    io->is_started = true;
    running[io->host->id] = io;
    io->start = ++n_starts;
    if (libraft_uses_streams)
        io->transport->listen(io->transport, line_accepted);
    host_hook(io->host, &io->before);
    host_hook(io->host, &io->after);
    arm(io);
    return 0;
}

static struct raft_snapshot *load_snapshot(const struct stored_snapshot *s)
{
    struct raft_snapshot *to = raft_malloc(sizeof(*to));
    assert(to);
    *to = (struct raft_snapshot){
        .index = s->index, .term = s->term, .configuration_index = s->configuration_index, .n_bufs = 1};
    raft_configuration_init(&to->configuration);
    for (unsigned i = 0; i < s->configuration.n; i++) {
        const struct raft_server *server = &s->configuration.servers[i];
        int status = raft_configuration_add(&to->configuration, server->id, server->address, server->role);
        assert(!status);
    }
    to->bufs = raft_malloc(sizeof(*to->bufs));
    assert(to->bufs);
    to->bufs[0].len = s->len;
    to->bufs[0].base = raft_malloc(s->len);
    assert(to->bufs[0].base);
    memcpy(to->bufs[0].base, s->data, s->len);
    return to;
}

static struct raft_entry *load_entries(const struct files *f)
{
    size_t bytes = 8, at = 0;
    for (size_t i = 0; i < f->n; i++)
        bytes += f->entries[i].len;
    struct raft_entry *entries = raft_malloc(f->n * sizeof(*entries));
    char *batch = raft_malloc(bytes);
    assert(entries && batch);
    for (size_t i = 0; i < f->n; i++) {
        const struct stored *e = &f->entries[i];
        entries[i] = (struct raft_entry){e->term, e->type, {batch + at, e->len}, batch};
        memcpy(batch + at, e->data, e->len);
        at += e->len;
    }
    return entries;
}

/* Entries that end before the snapshot are worth nothing. */
static void align_entries(struct files *f)
{
    if (!f->first)
        f->first = 1;
    if (f->snapshot && files_last(f) < f->snapshot->index) {
        f->n = 0;
        f->first = f->snapshot->index + 1;
    }
}

/* Entries that follow the snapshot without a gap are loaded; libraft has the same rule. */
static int io_load(struct raft_io *raft_io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                   raft_index *start_index, struct raft_entry *entries[], size_t *n_entries)
{
    struct files *f = io_of(raft_io)->files;
    align_entries(f);
    if (f->first > (f->snapshot ? f->snapshot->index : 0) + 1) {
        strcpy(raft_io->errmsg, "entries are missing");
        return RAFT_CORRUPT;
    }
    if (bug(BUG_LAST_ENTRY_LOST) && f->n > 1)
        f->n--;
    *term = f->term;
    *vote = f->vote;
    *snapshot = f->snapshot ? load_snapshot(f->snapshot) : NULL;
    *start_index = f->first;
    *entries = f->n ? load_entries(f) : NULL;
    *n_entries = f->n;
    io_of(raft_io)->next = files_last(f) + 1;
    return 0;
}

static int io_bootstrap(struct raft_io *raft_io, const struct raft_configuration *configuration)
{
    struct files *f = io_of(raft_io)->files;
    struct raft_buffer data;
    if (f->term)
        return RAFT_CANTBOOTSTRAP;
    int status = raft_configuration_encode(configuration, &data);
    if (status)
        return status;
    f->term = 1;
    f->first = 1;
    files_put(f, 1, RAFT_CHANGE, &data);
    raft_free(data.base);
    return 0;
}

/* As in raft_uv, the configuration follows all entries and has the term of the last one. */
static int io_recover(struct raft_io *raft_io, const struct raft_configuration *configuration)
{
    struct sim_io *io = io_of(raft_io);
    struct files *f = io->files;
    struct raft_buffer data;
    int status = raft_configuration_encode(configuration, &data);
    if (status)
        return status;
    raft_term term = f->n ? f->entries[f->n - 1].term : f->snapshot ? f->snapshot->term : 1;
    if (host_acts(io->host)) {
        align_entries(f);
        files_put(f, term, RAFT_CHANGE, &data);
        if (libraft_recovered)
            libraft_recovered(io->host);
    }
    raft_free(data.base);
    return 0;
}

/* ---- term and vote ---- */

static int vote_failed(struct sim_io *io)
{
    strcpy(io->raft_io->errmsg, "fdatasync: i/o error");
    return bug(BUG_FAILED_VOTE_GIVEN) ? 0 : RAFT_IOERR;
}

static int io_set_term(struct raft_io *raft_io, raft_term term)
{
    struct sim_io *io = io_of(raft_io);
    if (!host_acts(io->host))
        return 0;
    bool fails = disk_fails(io->disk, DISK_VOTES);
    if (fails && world_chance(FROM_DISK, 0.5))
        return vote_failed(io);
    if (!bug(BUG_TERM_NOT_STORED))
        io->files->term = term;
    io->files->vote = 0;
    return fails ? vote_failed(io) : 0;
}

static int io_set_vote(struct raft_io *raft_io, raft_id id)
{
    struct sim_io *io = io_of(raft_io);
    bool fails = host_acts(io->host) && disk_fails(io->disk, DISK_VOTES);
    if (fails && world_chance(FROM_DISK, 0.5))
        return vote_failed(io);
    if (host_acts(io->host) && !bug(BUG_VOTE_NOT_STORED))
        io->files->vote = id;
    return fails ? vote_failed(io) : 0;
}

/* ---- sending and receiving ---- */

static void sent(void *arg)
{
    struct sending *s = arg;
    TAILQ_REMOVE(&s->io->sends, s, link);
    s->request->cb(s->request, s->status);
    free(s);
}

#define SNAPSHOT_AGAIN_US 1500000 /* half of LOG_INSTALL_MS, which counts from the beginning of the read */

/* libraft 0.22.1 sends a snapshot with each heartbeat until the first one has been stored. A receiver that has started
 * again has lost the one on its way, and libraft tries again at once after a send that fails. */
static void note_snapshot_sent(struct sim_io *io, int to, const struct raft_message *message)
{
    const raft_id id = message->server_id;
    const int64_t now = host_mono_us(io->host), last = io->snapshot_sent[id].us;
    const uint64_t start = running[to] ? running[to]->start : 0;
    if (last && start == io->snapshot_sent[id].start && now - last < SNAPSHOT_AGAIN_US &&
        !libuv_blocked_us) /* else its read may have taken longer */
        broken("libraft sends a snapshot to voter %d, to which one is on its way", (int)id);
    io->snapshot_sent[id].us = now;
    io->snapshot_sent[id].start = start;
    io->snapshot_sent[id].index = message->install_snapshot.last_index;
}

/* The result of an append or of a snapshot has arrived. */
static void note_stored(struct sim_io *io, raft_id from, const struct raft_append_entries_result *result)
{
    if (!result->rejected && result->last_log_index >= io->snapshot_sent[from].index)
        io->snapshot_sent[from].us = 0;
}

static int io_send(struct raft_io *raft_io, struct raft_io_send *request, const struct raft_message *message,
                   raft_io_send_cb cb)
{
    struct sim_io *io = io_of(raft_io);
    if (io->is_closing) /* libraft 0.22.1 would open a connection that is never closed */
        broken("libraft sends a message after raft_close");
    struct sending *s = calloc(1, sizeof(*s));
    assert(s);
    *s = (struct sending){.io = io, .request = request};
    request->cb = cb;
    if (host_acts(io->host)) {
        int to = line_host(io, message->server_id, message->server_address);
        check_sent(io->host, message);
        s->status = to ? net_send(io->host->id, io->id, to, message) : RAFT_NOCONNECTION;
        if (message->type == RAFT_INSTALL_SNAPSHOT && !s->status)
            note_snapshot_sent(io, to, message);
    }
    TAILQ_INSERT_TAIL(&io->sends, s, link);
    s->event = world_after(io->host, s->status ? 100 * US_PER_MS : world_between(FROM_NETWORK, 1, 200), sent, s);
    return 0;
}

void libraft_receive(struct host *from, struct host *host, struct raft_message *message)
{
    struct sim_io *io = running[host->id];
    if (io && !line_carries(running[from->id], io)) {
        net_message_free(message);
        return;
    }
    if (io && message->type == RAFT_APPEND_ENTRIES_RESULT)
        note_stored(io, message->server_id, &message->append_entries_result);
    if (io && !io->is_closing)
        io->receive(io->raft_io, message);
}

void libraft_walk(struct host *host, uv_walk_cb cb, void *arg)
{
    struct sim_io *io = running[host->id];
    uv_timer_t timer = {.type = UV_TIMER, .data = io};
    if (!io || !io->retry)
        return;
    timer.u.reserved[0] = io->retry;
    cb((uv_handle_t *)&timer, arg);
    io->retry = timer.u.reserved[0];
}

/* ---- storing ---- */

static struct storing *storing(struct sim_io *io)
{
    struct storing *s = calloc(1, sizeof(*s));
    assert(s);
    s->io = io;
    return s;
}

/* libraft 0.22.1 retries a failed write with a pointer to another struct. */
static void retry(void *arg)
{
    struct sim_io *io = arg;
    broken("libraft of host %d follows a wrong pointer, 50 ms after a write has failed", io->host->id);
}

static void append_failed(struct storing *s)
{
    struct sim_io *io = s->io;
    strcpy(io->raft_io->errmsg, "write failed: -5");
    io->failed = s;
    io->retry = world_after(io->host, DISK_RETRY_US, retry, io);
}

static void appended(void *arg, int status)
{
    if (status == RAFT_IOERR) {
        append_failed(arg);
        return;
    }
    struct storing s = *(struct storing *)arg;
    free(arg);
    s.append->cb(s.append, status);
}

static int refused(struct sim_io *io)
{
    bool is_memory = io->disk->faults & DISK_MEMORY;
    strcpy(io->raft_io->errmsg, is_memory ? "out of memory" : "eventfd: too many open files");
    return is_memory ? RAFT_NOMEM : RAFT_IOERR;
}

static int io_append(struct raft_io *raft_io, struct raft_io_append *request, const struct raft_entry entries[],
                     unsigned n, raft_io_append_cb cb)
{
    struct sim_io *io = io_of(raft_io);
    request->cb = cb;
    if (!host_acts(io->host))
        return 0;
    if (disk_fails(io->disk, DISK_MEMORY | DISK_DESCRIPTORS))
        return refused(io);
    io->next += n;
    struct storing *s = storing(io);
    s->append = request;
    disk_append(io->disk, io->files, entries, n, appended, s);
    return 0;
}

/* If libraft's own io (0.22.1) were closed now, it would free memory that it still uses. */
static void check_apart(const struct sim_io *io)
{
    if (io->removals && io->puts)
        broken("libraft removes entries while it writes a snapshot");
}

static void removed(void *arg, int status)
{
    (void)status;
    ((struct sim_io *)arg)->removals--;
}

static int io_truncate(struct raft_io *raft_io, raft_index index)
{
    struct sim_io *io = io_of(raft_io);
    if (!host_acts(io->host))
        return 0;
    bool removes = index < io->next;
    if (removes) {
        io->next = index;
        io->removals++;
        check_apart(io);
    }
    disk_truncate(io->disk, io->files, index, removes ? removed : NULL, io);
    return 0;
}

/* libraft 0.22.1 dereferences a null pointer when a snapshot arrives from the leader while it takes one of its own. */
static bool kills_libraft(const struct sim_io *io, const struct storing *s)
{
    const struct raft *raft = io->raft_io->data;
    return !io->is_closing && s->put && raft->legacy.snapshot_taking && raft->legacy.snapshot_pending;
}

static void snapshot_stored(void *arg, int status)
{
    struct storing s = *(struct storing *)arg;
    free(arg);
    s.io->puts--;
    if (kills_libraft(s.io, &s)) {
        trace("libraft crashes at a snapshot within a snapshot");
        libraft_deaths++;
        host_die(s.io->host);
        return;
    }
    s.put->cb(s.put, bug(BUG_FAILED_SNAPSHOT_TAKEN) && !s.io->is_closing ? 0 : status);
}

static int io_snapshot_put(struct raft_io *raft_io, unsigned trailing, struct raft_io_snapshot_put *request,
                           const struct raft_snapshot *snapshot, raft_io_snapshot_put_cb cb)
{
    struct sim_io *io = io_of(raft_io);
    request->cb = cb;
    if (!host_acts(io->host))
        return 0;
    struct storing *s = storing(io);
    s->put = request;
    if (!trailing) /* from the leader: replaces all entries */
        io->next = snapshot->index + 1;
    io->puts++;
    check_apart(io);
    disk_snapshot(io->disk, io->files, snapshot, trailing, snapshot_stored, s);
    return 0;
}

static void snapshot_read(void *arg)
{
    struct reading r = *(struct reading *)arg;
    TAILQ_REMOVE(&r.io->reads, (struct reading *)arg, link);
    free(arg);
    r.request->cb(r.request, load_snapshot(r.io->files->snapshot), 0);
}

static int io_snapshot_get(struct raft_io *raft_io, struct raft_io_snapshot_get *request, raft_io_snapshot_get_cb cb)
{
    struct sim_io *io = io_of(raft_io);
    struct reading *r = calloc(1, sizeof(*r));
    assert(r);
    *r = (struct reading){.io = io, .request = request};
    request->cb = cb;
    TAILQ_INSERT_TAIL(&io->reads, r, link);
    r->event = world_after(io->host, world_between(FROM_DISK, 100, io->disk->latency_us), snapshot_read, r);
    return 0;
}

/* ---- the end ---- */

static void closed(void *arg)
{
    struct sim_io *io = arg;
    for (struct reading *r; (r = TAILQ_FIRST(&io->reads));) { /* the close waits for these reads */
        world_cancel(r->event);
        snapshot_read(r);
    }
    io->closed(io->raft_io);
}

static void io_close(struct raft_io *raft_io, raft_io_close_cb cb)
{
    struct sim_io *io = io_of(raft_io);
    io->is_closing = true;
    io->closed = cb;
    io->before.is_on = io->after.is_on = false;
    if (io->ticking)
        world_cancel(io->ticking);
    if (running[io->host->id] == io)
        running[io->host->id] = NULL;
    if (io->retry)
        world_cancel(io->retry);
    lines_close(io);
    disk_cancel(io->disk);
    if (io->failed)
        appended(io->failed, RAFT_CANCELED);
    io->failed = NULL;
    for (struct sending *s; (s = TAILQ_FIRST(&io->sends));) {
        world_cancel(s->event);
        s->status = RAFT_CANCELED;
        sent(s);
    }
    world_after(io->host, world_between(FROM_DISK, 0, CLOSE_US), closed, io);
}

static raft_time io_time(struct raft_io *raft_io)
{
    return (raft_time)(host_mono_us(io_of(raft_io)->host) / US_PER_MS);
}

static int io_random(struct raft_io *raft_io, int min, int max)
{
    (void)raft_io;
    return (int)world_between(FROM_RAFT, min, max - 1);
}

void libraft_forget(struct host *host)
{
    running[host->id] = NULL;
}

/* ---- functions that the log calls ---- */

int raft_uv_init(struct raft_io *raft_io, struct uv_loop_s *loop, const char *dir, struct raft_uv_transport *transport)
{
    (void)loop;
    struct sim_io *io = calloc(1, sizeof(*io));
    assert(io);
    const char *name = strrchr(dir, '/');
    io->raft_io = raft_io;
    io->transport = transport;
    io->transport->data = io;
    io->host = world.current;
    io->disk = &disks[io->host->id];
    io->files = name && strcmp(name, "/log.new") == 0 ? &io->disk->fresh : &io->disk->log;
    io->before = (struct hook){.fn = each_turn, .arg = io, .is_on = true, .at_start = true};
    io->after = (struct hook){.fn = each_turn, .arg = io, .is_on = true, .at_end = true};
    TAILQ_INIT(&io->sends);
    TAILQ_INIT(&io->reads);
    raft_io->version = 2;
    raft_io->impl = io;
    raft_io->capacity = CAPACITY;
    raft_io->init = io_init;
    raft_io->start = io_start;
    raft_io->close = io_close;
    raft_io->load = io_load;
    raft_io->bootstrap = io_bootstrap;
    raft_io->recover = io_recover;
    raft_io->set_term = io_set_term;
    raft_io->set_vote = io_set_vote;
    raft_io->send = io_send;
    raft_io->append = io_append;
    raft_io->truncate = io_truncate;
    raft_io->snapshot_put = io_snapshot_put;
    raft_io->snapshot_get = io_snapshot_get;
    raft_io->time = io_time;
    raft_io->random = io_random;
    return 0;
}

void raft_uv_close(struct raft_io *raft_io)
{
    (void)raft_io; /* the hooks may be read until the turn ends */
}

void raft_uv_set_auto_recovery(struct raft_io *io, bool flag)
{
    (void)io, (void)flag;
}

void raft_uv_set_segment_size(struct raft_io *io, size_t size)
{
    io_of(io)->disk->segment_bytes = size;
}

void raft_uv_set_tracer(struct raft_io *io, struct raft_tracer *tracer)
{
    (void)io, (void)tracer;
}

void raft_uv_set_disk_retry(struct raft_io *io, unsigned ms)
{
    (void)io, (void)ms;
}

void raft_uv_set_connect_retry_delay(struct raft_io *io, unsigned ms)
{
    (void)io, (void)ms;
}
