/* Workarounds for libraft 0.22.1. Most of these defects were found by tests/sim, which finds each again when its
 * workaround is removed.
 *
 * Snapshots
 * - libraft ignores the status of a failed snapshot read and frees an uninitialised pointer. Here the failed read ends
 *   without calling libraft, and the request is freed. A read that finds no complete snapshot, because one is being
 *   replaced, reports success; it is treated as failed, too.
 * - A snapshot read that ends while libraft closes is still sent, by a connection that is never closed. Such a read is
 *   treated as failed.
 * - If a snapshot of the leader arrives while the voter takes its own, libraft follows a null pointer when its own is
 *   written. The received one is dropped; the leader sends it again.
 * - If libraft closes while entries are being removed and a snapshot is being written, the end of the snapshot is
 *   reported as the end of closing, and memory is freed that the removal still uses. So each waits for the other: no
 *   snapshot is taken or received until the entries that replace the removed ones are stored, and entries that replace
 *   others are dropped while a snapshot is written.
 * - A heartbeat to a server that is getting a snapshot names the snapshot's index. The server has nothing there yet and
 *   rejects it, and libraft then sends the snapshot again: a large one 20 times a second, until the leader has no
 * memory and the server no time. While one is on its way, others to the same server are not read and count as lost.
 * - A leader that sends a snapshot names the index of the one that it has read, but the term of the one that it had
 * when it decided to send. If another snapshot was written in between, the receiver keeps a wrong term forever and
 * refuses the leader's entries until it crashes. The term is set to that of the snapshot that was read.
 *
 * Entries
 * - Late entries that start at index 1 are taken for new ones when the voter already has them in a snapshot, and memory
 *   is overwritten. They are dropped.
 * - A message that ends before the commit index, and carries a higher commit index of the leader, sets ours back. A
 *   snapshot that is taken then contains a later state than that of its index, and after a restart records are applied
 *   twice. The leader's commit index in the message is reduced to ours.
 * - The reply to entries or a snapshot of an older term reports a stored index from uninitialised memory. A leader of
 *   that term that leads again takes it for an acknowledgement and commits entries that are on no majority's disks. The
 *   reply is changed to report that nothing is stored.
 * - libraft takes each configuration change in a message of several entries to be at the index of the first entry. The
 *   receiver then never sees the change committed: as a leader it refuses changes forever, and it may keep a change
 *   that another leader has replaced. So a message is split such that a change is the first entry of its part.
 *
 * Elections
 * - A voter that rejects a pre-vote request of an older term replies with the term of the request. The candidate never
 *   learns the current term and is rejected forever; if only its log is new enough, no voter can become leader. The
 *   reply carries our term.
 * - A new leader cannot append libraft's own barrier while the disks of a majority are nearly full, and the step that
 *   made it leader fails. When it steps down, its pending proposals are then not canceled but reported as done when
 *   another leader has committed other entries in their place. So libraft's previous state is set to leader before
 *   anything is proposed. */
#include "daemon/control/log/libraft_fixes.h"

#include "common/base/log.h"
#include "daemon/control/log/internal.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct log *log_of(struct raft_io *io)
{
    return (struct log *)((char *)io - offsetof(struct log, io));
}

static struct libraft_fixes *fixes_of(struct raft_io *io)
{
    return &log_of(io)->fixes;
}

/* ---- entries ---- */

/* Term of our entry at `index`; 0: there is none, or it is only in a snapshot. */
static raft_term entry_term(const struct raft_trail *trail, raft_index index)
{
    raft_term term = 0;
    if (index <= trail->offset)
        return 0;
    for (unsigned i = trail->back; i != trail->front;) {
        i = (i + trail->size - 1) % trail->size;
        if (trail->records[i].index < index)
            break;
        term = trail->records[i].term;
    }
    return term;
}

/* Index of the last entry of the message that replaces a different one of ours; 0: none. Entries of equal index and
 * term have equal predecessors, so comparing the last one is enough. */
static raft_index replaced_by(struct raft *raft, const struct raft_append_entries *a)
{
    raft_index last = raft_last_index(raft), end = a->prev_log_index + a->n_entries, at = end < last ? end : last;
    if (at <= a->prev_log_index)
        return 0;
    raft_term term = entry_term(&raft->trail, at);
    return term && term != a->entries[at - a->prev_log_index - 1].term ? at : 0;
}

/* True also while a message is being received that will remove entries. */
static bool is_removing(struct libraft_fixes *fixes, const struct raft *raft)
{
    if (raft->last_stored >= fixes->removed)
        fixes->removed = 0;
    return fixes->replaced || fixes->removed;
}

static bool is_writing_snapshot(const struct raft *raft)
{
    return raft->legacy.snapshot_taking || raft->legacy.snapshot_install;
}

static void drop_entries(struct raft_append_entries *a)
{
    raft_free(a->entries[0].batch);
    raft_free(a->entries);
}

/* libraft sets its commit index to min(leader_commit, end of the message), even if that is below its old one. */
static void receive_entries(struct raft_io *io, struct raft_message *message)
{
    struct raft *raft = io->data;
    struct libraft_fixes *fixes = fixes_of(io);
    struct raft_append_entries *a = &message->append_entries;
    fixes->replaced = replaced_by(raft, a);
    if (fixes->replaced && is_writing_snapshot(raft)) {
        drop_entries(a);
    } else {
        if (a->prev_log_index + a->n_entries < raft->commit_index && a->leader_commit > raft->commit_index)
            a->leader_commit = raft->commit_index;
        fixes->receive(io, message);
    }
    fixes->replaced = 0;
}

/* libraft calls this before each append; most calls remove nothing. */
static int truncate_entries(struct raft_io *io, raft_index index)
{
    struct libraft_fixes *fixes = fixes_of(io);
    if (index <= fixes->replaced)
        fixes->removed = fixes->replaced;
    return fixes->truncate(io, index);
}

static int append(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb)
{
    struct libraft_fixes *fixes = fixes_of(io);
    int status = fixes->append(io, req, entries, n, cb);
    if (status)
        fixes->removed = 0; /* nothing will replace the removed entries */
    return status;
}

/* Position of the first configuration change that is not the first entry; n_entries: none. */
static unsigned next_change(const struct raft_append_entries *a)
{
    unsigned at = 1;
    while (at < a->n_entries && a->entries[at].type != RAFT_CHANGE)
        at++;
    return at < a->n_entries ? at : a->n_entries;
}

/* Copies entries [from, to) into memory of their own, which libraft takes over. False: out of memory. */
static bool copy_part(const struct raft_append_entries *a, unsigned from, unsigned to, struct raft_append_entries *ret)
{
    size_t bytes = 0, at = 0;
    for (unsigned i = from; i < to; i++)
        bytes += a->entries[i].buf.len;
    ret->entries = raft_malloc((to - from) * sizeof(struct raft_entry));
    char *batch = raft_malloc(bytes ? bytes : 1);
    if (!ret->entries || !batch) {
        raft_free(ret->entries);
        raft_free(batch);
        return false;
    }
    for (unsigned i = from; i < to; i++) {
        struct raft_entry e = a->entries[i];
        memcpy(batch + at, e.buf.base, e.buf.len);
        e.buf.base = batch + at;
        e.batch = batch;
        at += e.buf.len;
        ret->entries[i - from] = e;
    }
    ret->n_entries = to - from;
    return true;
}

/* A part that cannot be copied counts as lost in the network. */
static void receive_in_parts(struct raft_io *io, struct raft_message *message)
{
    struct raft_append_entries rest = message->append_entries;
    for (unsigned done = 0; done < message->append_entries.n_entries;) {
        struct raft_message part = *message;
        unsigned n = next_change(&rest);
        part.append_entries.prev_log_index = rest.prev_log_index;
        part.append_entries.prev_log_term = rest.prev_log_term;
        if (!copy_part(&rest, 0, n, &part.append_entries))
            break;
        rest.prev_log_index += n;
        rest.prev_log_term = rest.entries[n - 1].term;
        rest.entries += n;
        rest.n_entries -= n;
        done += n;
        receive_entries(io, &part);
    }
    drop_entries(&message->append_entries);
}

/* ---- votes ---- */

static struct raft_server *find_server(struct raft_configuration *conf, raft_id id)
{
    for (unsigned i = 0; i < conf->n; i++)
        if (conf->servers[i].id == id)
            return &conf->servers[i];
    return NULL;
}

static bool is_only_voter(const struct raft_configuration *conf, raft_id id)
{
    bool is_voter = false;
    for (unsigned i = 0; i < conf->n; i++) {
        if (conf->servers[i].role != RAFT_VOTER)
            continue;
        if (conf->servers[i].id != id)
            return false;
        is_voter = true;
    }
    return is_voter;
}

/* Whether an election timeout has passed without a message of a leader. In libraft only voters drop such a leader; a
 * server that is not yet a voter by its own configuration would refuse every vote forever. */
static bool has_silent_leader(struct raft_io *io, const struct raft *raft)
{
    return io->time(io) - raft->election_timer_start >= raft->election_timeout;
}

/* Handles a vote request as a voter would, even if this server does not have that role in its own configuration yet:
 * its vote may be needed to commit the change that makes it a voter. A candidate that is the only voter in
 * this server's configuration gets the vote whatever its log is: it may have crashed and lost entries that it had
 * sent. */
static void receive_as_voter(struct raft_io *io, struct raft_message *message)
{
    struct raft *raft = io->data;
    struct raft_server *self = find_server(&raft->configuration, raft->id);
    int role = self ? self->role : RAFT_VOTER;
    if ((!self || role != RAFT_VOTER) && has_silent_leader(io, raft))
        message->request_vote.disrupt_leader = true;
    if (is_only_voter(&raft->configuration, message->request_vote.candidate_id)) {
        message->request_vote.last_log_index = UINT64_MAX;
        message->request_vote.last_log_term = UINT64_MAX;
    }
    if (self)
        self->role = RAFT_VOTER;
    fixes_of(io)->receive(io, message);
    if (self)
        self->role = role; /* a vote request changes no configuration */
}

/* Is this the only voter of the newest configuration that was loaded? */
static bool starts_alone(raft_id id, const struct raft_snapshot *snapshot, const struct raft_entry *entries, size_t n)
{
    struct raft_configuration conf;
    while (n && entries[n - 1].type != RAFT_CHANGE)
        n--;
    if (!n)
        return snapshot && is_only_voter(&snapshot->configuration, id);
    if (raft_configuration_decode(&entries[n - 1].buf, &conf))
        return false; /* libraft reports this error itself */
    bool is_alone = is_only_voter(&conf, id);
    raft_configuration_close(&conf);
    return is_alone;
}

/* An only voter that restarts gets a new term. In the term that it has led it could write a second entry of the same
 * index. */
static int load(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries)
{
    const struct raft *raft = io->data;
    int status = fixes_of(io)->load(io, term, vote, snapshot, start_index, entries, n_entries);
    if (status || !starts_alone(raft->id, *snapshot, *entries, *n_entries))
        return status;
    *term += 1;
    *vote = 0;
    return io->set_term(io, *term);
}

/* The server has stored everything up to `index`. */
static void forget_sent(struct libraft_fixes *fixes, raft_id id, raft_index index)
{
    for (int i = 0; i < LIBRAFT_SNAPSHOTS_SENT; i++)
        if (fixes->sent[i].id == id && fixes->sent[i].index <= index)
            fixes->sent[i].id = 0;
}

/* ---- messages ---- */

static bool must_drop(struct raft_io *io, const struct raft_message *message)
{
    const struct raft *raft = io->data;
    if (message->type == RAFT_APPEND_ENTRIES)
        return message->append_entries.n_entries && !message->append_entries.prev_log_index && raft->trail.offset;
    return message->type == RAFT_INSTALL_SNAPSHOT && (raft->legacy.snapshot_taking || is_removing(fixes_of(io), raft));
}

void libraft_fixes_drop(struct raft_message *message)
{
    if (message->type == RAFT_APPEND_ENTRIES && message->append_entries.n_entries) {
        drop_entries(&message->append_entries);
    } else if (message->type == RAFT_INSTALL_SNAPSHOT) {
        raft_configuration_close(&message->install_snapshot.conf);
        raft_free(message->install_snapshot.data.base);
    }
}

static bool is_stale(struct raft_io *io, const struct raft_message *message)
{
    const struct raft *raft = io->data;
    if (message->type == RAFT_APPEND_ENTRIES)
        return message->append_entries.term < raft->current_term;
    return message->type == RAFT_INSTALL_SNAPSHOT && message->install_snapshot.term < raft->current_term;
}

static void receive_current(struct raft_io *io, struct raft_message *message)
{
    if (must_drop(io, message))
        libraft_fixes_drop(message);
    else if (message->type == RAFT_REQUEST_VOTE)
        receive_as_voter(io, message);
    else if (message->type == RAFT_APPEND_ENTRIES &&
             next_change(&message->append_entries) < message->append_entries.n_entries)
        receive_in_parts(io, message);
    else if (message->type == RAFT_APPEND_ENTRIES)
        receive_entries(io, message);
    else
        fixes_of(io)->receive(io, message);
}

/* A voter that has acknowledged entries to us, the leader, has them on its disk. */
static void witness_reply(struct raft_io *io, const struct raft_message *message)
{
    struct log *log = (struct log *)((char *)io - offsetof(struct log, io));
    const struct raft_append_entries_result *result = &message->append_entries_result;
    const struct log_mark *known = witness_find(&log->witness, message->server_id);
    if (message->type != RAFT_APPEND_ENTRIES_RESULT || result->rejected || !known ||
        result->term != log->raft.current_term || raft_state(&log->raft) != RAFT_LEADER)
        return;
    const struct log_mark mark = {message->server_id, known->process, result->term, result->last_log_index};
    witness_note(&log->witness, &mark);
}

static void receive(struct raft_io *io, struct raft_message *message)
{
    if (message->type == RAFT_APPEND_ENTRIES_RESULT && !message->append_entries_result.rejected)
        forget_sent(fixes_of(io), message->server_id, message->append_entries_result.last_log_index);
    witness_reply(io, message);
    fixes_of(io)->is_stale = is_stale(io, message);
    receive_current(io, message);
    fixes_of(io)->is_stale = false;
}

static int start(struct raft_io *io, unsigned ms, raft_io_tick_cb tick, raft_io_recv_cb cb)
{
    struct libraft_fixes *fixes = fixes_of(io);
    fixes->receive = cb;
    return fixes->start(io, ms, tick, receive);
}

/* ---- snapshots ---- */

/* Request to the raft_io on behalf of a request of libraft. The callback gets only the former, so this holds both. */
struct snapshot_read {
    struct raft_io_snapshot_get req;
    struct raft_io_snapshot_get *libraft;
    raft_io_snapshot_get_cb cb;
    struct raft_io *io;
    struct raft_snapshot *snapshot;
    struct log_snapshot_check check;
};

static void free_snapshot(struct raft_snapshot *snapshot)
{
    for (unsigned i = 0; snapshot->bufs && i < snapshot->n_bufs; i++)
        raft_free(snapshot->bufs[i].base);
    raft_free(snapshot->bufs);
    raft_configuration_close(&snapshot->configuration);
    raft_free(snapshot);
}

/* The block of libraft 0.22.1 that contains the request for a snapshot. */
struct libraft_send {
    struct raft_io_send send;
    struct raft_io_snapshot_get get;
    struct raft *raft;
    struct raft_message message;
};

/* The server that is to get the snapshot; 0: unknown. */
static raft_id receiver_of(const struct raft_io *io, const struct raft_io_snapshot_get *req)
{
    const struct libraft_send *s = req->data;
    bool is_known = &s->get == req && s->raft == io->data && s->message.type == RAFT_INSTALL_SNAPSHOT;
    return is_known ? s->message.server_id : 0;
}

void libraft_fixes_note_connection(struct libraft_fixes *fixes, raft_id id)
{
    forget_sent(fixes, id, UINT64_MAX);
}

/* Returns whether the server already gets a snapshot; notes it otherwise. Without a free row it is sent again. */
static bool is_on_its_way(struct raft_io *io, raft_id id)
{
    struct libraft_fixes *fixes = fixes_of(io);
    struct libraft_snapshot_sent *unused = NULL;
    const struct raft *raft = io->data;
    raft_time now = io->time(io), most = raft->install_snapshot_timeout;
    for (int i = 0; i < LIBRAFT_SNAPSHOTS_SENT; i++) {
        struct libraft_snapshot_sent *s = &fixes->sent[i];
        bool is_recent = s->id && now - s->since < most;
        if (is_recent && s->id == id)
            return true;
        if (!is_recent || s->id == id)
            unused = s;
    }
    if (unused && id)
        *unused = (struct libraft_snapshot_sent){id, raft->trail.snapshot.index, now};
    return false;
}

static void pass_snapshot(struct snapshot_read *l, int status)
{
    const struct raft *raft = l->io->data;
    struct libraft_fixes *fixes = fixes_of(l->io);
    struct snapshot_read r = *l;
    raft_free(l);
    if (!status && raft->legacy.closing) {
        free_snapshot(r.snapshot);
        status = RAFT_IOERR;
    }
    if (status) {
        forget_sent(fixes, receiver_of(r.io, r.libraft), UINT64_MAX);
        raft_free(r.libraft->data); /* the block that contains its request */
        return;
    }
    fixes->snapshot_index = r.snapshot->index;
    fixes->snapshot_term = r.snapshot->term;
    r.cb(r.libraft, r.snapshot, status);
}

static void snapshot_was_checked(struct log_snapshot_check *check, bool is_sound)
{
    struct snapshot_read *l = (struct snapshot_read *)((char *)check - offsetof(struct snapshot_read, check));
    if (!is_sound) {
        log_error("a snapshot on this disk is damaged and not sent index=%" PRIu64, (uint64_t)l->snapshot->index);
        free_snapshot(l->snapshot);
    }
    pass_snapshot(l, is_sound ? 0 : RAFT_CORRUPT);
}

static void snapshot_was_read(struct raft_io_snapshot_get *req, struct raft_snapshot *snapshot, int status)
{
    struct snapshot_read *l = req->data;
    l->snapshot = snapshot;
    if (!status && !snapshot->bufs) {
        free_snapshot(snapshot);
        status = RAFT_IOERR;
    }
    if (status)
        pass_snapshot(l, status);
    else
        log_snapshot_check(log_of(l->io), &l->check, &snapshot->bufs[0], snapshot_was_checked);
}

static int snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req, raft_io_snapshot_get_cb cb)
{
    if (is_on_its_way(io, receiver_of(io, req))) {
        raft_free(req->data);
        return 0;
    }
    struct snapshot_read *l = raft_malloc(sizeof(*l));
    if (!l)
        return RAFT_NOMEM;
    *l = (struct snapshot_read){.req = {.data = l}, .libraft = req, .cb = cb, .io = io};
    int status = fixes_of(io)->snapshot_get(io, &l->req, snapshot_was_read);
    if (status)
        raft_free(l);
    return status;
}

static int send_message(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                        raft_io_send_cb cb)
{
    struct libraft_fixes *fixes = fixes_of(io);
    struct raft_message fixed = *message;
    if (message->type == RAFT_INSTALL_SNAPSHOT && message->install_snapshot.last_index == fixes->snapshot_index)
        fixed.install_snapshot.last_term = fixes->snapshot_term;
    if (message->type == RAFT_APPEND_ENTRIES_RESULT && fixes->is_stale) {
        struct raft_append_entries_result *result = &fixed.append_entries_result;
        result->last_log_index = 0;
        if (!result->rejected)
            result->rejected = 1; /* 0 would be an acknowledgement */
    }
    if (message->type == RAFT_REQUEST_VOTE_RESULT && !message->request_vote_result.vote_granted &&
        message->request_vote_result.term < ((const struct raft *)io->data)->current_term)
        fixed.request_vote_result.term = ((const struct raft *)io->data)->current_term;
    return fixes->send(io, req, &fixed, cb);
}

void libraft_fixes_note_leader(struct raft *raft)
{
    raft->legacy.prev_state = raft->state;
}

bool libraft_fixes_may_snapshot(const struct raft *raft)
{
    if (is_removing(fixes_of(raft->io), raft))
        return false;
    return !raft->configuration_uncommitted_index || raft->configuration_uncommitted_index > raft->last_applied;
}

/* libraft leaves the struct of a snapshot that it has not found uninitialised. */
static void *malloc_zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

void libraft_fixes_install(struct raft_io *io)
{
    static struct raft_heap heap;
    heap = *raft_heap_get();
    heap.malloc = malloc_zeroed;
    raft_heap_set(&heap);
    struct libraft_fixes *fixes = fixes_of(io);
    *fixes = (struct libraft_fixes){.load = io->load,
                                    .start = io->start,
                                    .send = io->send,
                                    .append = io->append,
                                    .truncate = io->truncate,
                                    .snapshot_get = io->snapshot_get};
    io->load = load;
    io->start = start;
    io->send = send_message;
    io->append = append;
    io->truncate = truncate_entries;
    io->snapshot_get = snapshot_get;
}
