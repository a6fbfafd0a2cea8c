/* Most of these were found by tests/sim, which finds them again without what mends them here.
 *
 * - The answer to a read of a snapshot that failed is not looked at: memory of nobody would be freed. libraft's request
 * is freed here, without it. A read that finds no whole snapshot, since one is being replaced, says that it has one: it
 * has failed, too.
 * - A read of a snapshot that ends while libraft closes is sent all the same, by a connection that nobody waits for. It
 * has failed, too.
 * - A snapshot from the leader that comes while the voter takes one of its own makes libraft follow a null pointer when
 * its own is written. It is dropped; the leader sends it again.
 * - Whoever closes while entries are being removed and a snapshot is being written is told that it is closed by the end
 * of the snapshot, and frees what the removal still uses. So the one waits for the other: no snapshot is taken or
 * received until what replaces the removed entries is stored, and entries that replace others while a snapshot is
 * written are dropped.
 * - Entries from the first on that come late, when the voter has a snapshot of them, are taken for new ones and written
 * over memory of others. They are dropped.
 * - A message that ends before the commit index and says that the leader's is higher sets it back. A snapshot that is
 * taken then is of a later state than its index says, and after a restart records are applied twice. The leader's word
 * is cut.
 * - The answer to entries or a snapshot of an older term says by memory that nobody has set how much is stored. A
 * leader of that term that leads again takes it for an acknowledgement, and commits what is on no majority's disks. It
 * says: nothing.
 * - Who sends a snapshot names the index of the one that it has read, and the term of the one that it had when it
 * decided to send. If another was written in between, the receiver keeps a wrong term for ever, and refuses the
 * leader's entries until it crashes of them. The term is set to the one that was read.
 * - Of several entries in one message each change of the voters is taken to be at the index of the first. Who got it so
 *   never sees it committed: as a leader it refuses changes for ever, and it may keep a change that another leader has
 *   replaced. So a message is taken apart such that a change is the first of its own.
 * - Who is asked whether it would vote (pre-vote) answers with the asker's term where its own is higher, too. The asker
 *   never learns that it is behind, and is refused for ever; where only its log is new enough, nobody can lead. The
 *   answer has our term.
 * - Who comes to lead while a majority's disks are nearly full cannot append libraft's own barrier, and the step that
 *   made it leader fails. What is pending when it leads no more is then not canceled, but answered as done by whatever
 *   another leader committed in its place. So who leads is known as such before anything is proposed. */
#include "daemon/control/log/libraft_fixes.h"

#include "daemon/control/log/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct log_mend *mend_of(struct raft_io *io)
{
    return &((struct log *)((char *)io - offsetof(struct log, io)))->mend;
}

/* ---- entries ---- */

/* 0: it has none there, or only in a snapshot. */
static raft_term term_at(const struct raft_trail *trail, raft_index index)
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

/* The last of the entries that we have others in the place of; 0: none. Where terms are equal so is all before. */
static raft_index replaced_by(struct raft *raft, const struct raft_append_entries *a)
{
    raft_index last = raft_last_index(raft), end = a->prev_log_index + a->n_entries, at = end < last ? end : last;
    if (at <= a->prev_log_index)
        return 0;
    raft_term term = term_at(&raft->trail, at);
    return term && term != a->entries[at - a->prev_log_index - 1].term ? at : 0;
}

/* Or about to. */
static bool is_removing(struct log_mend *mend, const struct raft *raft)
{
    if (raft->last_stored >= mend->removed)
        mend->removed = 0;
    return mend->replaced || mend->removed;
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

/* libraft takes min(leader_commit, end of the message) for its new commit index, also where that is below its old one.
 */
static void receive_entries(struct raft_io *io, struct raft_message *message)
{
    struct raft *raft = io->data;
    struct log_mend *mend = mend_of(io);
    struct raft_append_entries *a = &message->append_entries;
    mend->replaced = replaced_by(raft, a);
    if (mend->replaced && is_writing_snapshot(raft)) {
        drop_entries(a);
    } else {
        if (a->prev_log_index + a->n_entries < raft->commit_index && a->leader_commit > raft->commit_index)
            a->leader_commit = raft->commit_index;
        mend->receive(io, message);
    }
    mend->replaced = 0;
}

/* libraft calls this before each append; most remove nothing. */
static int truncate_entries(struct raft_io *io, raft_index index)
{
    struct log_mend *mend = mend_of(io);
    if (index <= mend->replaced)
        mend->removed = mend->replaced;
    return mend->truncate(io, index);
}

static int append(struct raft_io *io, struct raft_io_append *req, const struct raft_entry entries[], unsigned n,
                  raft_io_append_cb cb)
{
    struct log_mend *mend = mend_of(io);
    int status = mend->append(io, req, entries, n, cb);
    if (status)
        mend->removed = 0; /* nothing will be stored in its place */
    return status;
}

/* The first change that is not the first entry; n_entries: none. */
static unsigned change_at(const struct raft_append_entries *a)
{
    unsigned at = 1;
    while (at < a->n_entries && a->entries[at].type != RAFT_CHANGE)
        at++;
    return at < a->n_entries ? at : a->n_entries;
}

/* Entries [from, to) with memory of their own, as libraft takes them over. False: out of memory. */
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

/* What cannot be copied is as if it had been lost on the way. */
static void receive_in_parts(struct raft_io *io, struct raft_message *message)
{
    struct raft_append_entries rest = message->append_entries;
    for (unsigned done = 0; done < message->append_entries.n_entries;) {
        struct raft_message part = *message;
        unsigned n = change_at(&rest);
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

static struct raft_server *server_of(struct raft_configuration *conf, raft_id id)
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

/* Only voters forget a leader that they do not hear any more; whoever else had one would refuse every vote for ever. */
static bool has_silent_leader(struct raft_io *io, const struct raft *raft)
{
    return io->time(io) - raft->election_timer_start >= raft->election_timeout;
}

static void receive_as_voter(struct raft_io *io, struct raft_message *message)
{
    struct raft *raft = io->data;
    struct raft_server *self = server_of(&raft->configuration, raft->id);
    int role = self ? self->role : RAFT_VOTER;
    if ((!self || role != RAFT_VOTER) && has_silent_leader(io, raft))
        message->request_vote.disrupt_leader = true;
    if (is_only_voter(&raft->configuration, message->request_vote.candidate_id)) {
        message->request_vote.last_log_index = UINT64_MAX;
        message->request_vote.last_log_term = UINT64_MAX;
    }
    if (self)
        self->role = RAFT_VOTER;
    mend_of(io)->receive(io, message);
    if (self)
        self->role = role; /* being asked for a vote changes no configuration */
}

/* By the newest configuration that was loaded. */
static bool starts_alone(raft_id id, const struct raft_snapshot *snapshot, const struct raft_entry *entries, size_t n)
{
    struct raft_configuration conf;
    while (n && entries[n - 1].type != RAFT_CHANGE)
        n--;
    if (!n)
        return snapshot && is_only_voter(&snapshot->configuration, id);
    if (raft_configuration_decode(&entries[n - 1].buf, &conf))
        return false; /* libraft will say so */
    bool is_alone = is_only_voter(&conf, id);
    raft_configuration_close(&conf);
    return is_alone;
}

static int load(struct raft_io *io, raft_term *term, raft_id *vote, struct raft_snapshot **snapshot,
                raft_index *start_index, struct raft_entry *entries[], size_t *n_entries)
{
    const struct raft *raft = io->data;
    int status = mend_of(io)->load(io, term, vote, snapshot, start_index, entries, n_entries);
    if (status || !starts_alone(raft->id, *snapshot, *entries, *n_entries))
        return status;
    *term += 1;
    *vote = 0;
    return io->set_term(io, *term);
}

/* ---- messages ---- */

static bool is_untimely(struct raft_io *io, const struct raft_message *message)
{
    const struct raft *raft = io->data;
    if (message->type == RAFT_APPEND_ENTRIES)
        return message->append_entries.n_entries && !message->append_entries.prev_log_index && raft->trail.offset;
    return message->type == RAFT_INSTALL_SNAPSHOT && (raft->legacy.snapshot_taking || is_removing(mend_of(io), raft));
}

static void drop(struct raft_message *message)
{
    if (message->type == RAFT_APPEND_ENTRIES) {
        drop_entries(&message->append_entries);
    } else {
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

static void receive_timely(struct raft_io *io, struct raft_message *message)
{
    if (is_untimely(io, message))
        drop(message);
    else if (message->type == RAFT_REQUEST_VOTE)
        receive_as_voter(io, message);
    else if (message->type == RAFT_APPEND_ENTRIES &&
             change_at(&message->append_entries) < message->append_entries.n_entries)
        receive_in_parts(io, message);
    else if (message->type == RAFT_APPEND_ENTRIES)
        receive_entries(io, message);
    else
        mend_of(io)->receive(io, message);
}

static void receive(struct raft_io *io, struct raft_message *message)
{
    mend_of(io)->is_stale = is_stale(io, message);
    receive_timely(io, message);
    mend_of(io)->is_stale = false;
}

static int start(struct raft_io *io, unsigned ms, raft_io_tick_cb tick, raft_io_recv_cb cb)
{
    struct log_mend *mend = mend_of(io);
    mend->receive = cb;
    return mend->start(io, ms, tick, receive);
}

/* ---- snapshots ---- */

/* A request between libraft's and its io's, since the answer does not say whose it is. */
struct loading {
    struct raft_io_snapshot_get req;
    struct raft_io_snapshot_get *libraft;
    raft_io_snapshot_get_cb cb;
    struct raft_io *io;
};

static void free_snapshot(struct raft_snapshot *snapshot)
{
    for (unsigned i = 0; snapshot->bufs && i < snapshot->n_bufs; i++)
        raft_free(snapshot->bufs[i].base);
    raft_free(snapshot->bufs);
    raft_configuration_close(&snapshot->configuration);
    raft_free(snapshot);
}

static void loaded(struct raft_io_snapshot_get *req, struct raft_snapshot *snapshot, int status)
{
    struct loading l = *(struct loading *)req->data;
    const struct raft *raft = l.io->data;
    struct log_mend *mend = mend_of(l.io);
    raft_free(req->data);
    if (!status && (!snapshot->bufs || raft->legacy.closing)) {
        free_snapshot(snapshot);
        status = RAFT_IOERR;
    }
    if (status) {
        raft_free(l.libraft->data); /* the block that its request is in */
        return;
    }
    mend->snapshot_index = snapshot->index;
    mend->snapshot_term = snapshot->term;
    l.cb(l.libraft, snapshot, status);
}

static int snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req, raft_io_snapshot_get_cb cb)
{
    struct loading *l = raft_malloc(sizeof(*l));
    if (!l)
        return RAFT_NOMEM;
    *l = (struct loading){.req = {.data = l}, .libraft = req, .cb = cb, .io = io};
    int status = mend_of(io)->snapshot_get(io, &l->req, loaded);
    if (status)
        raft_free(l);
    return status;
}

static int send_message(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
                        raft_io_send_cb cb)
{
    struct log_mend *mend = mend_of(io);
    struct raft_message mended = *message;
    if (message->type == RAFT_INSTALL_SNAPSHOT && message->install_snapshot.last_index == mend->snapshot_index)
        mended.install_snapshot.last_term = mend->snapshot_term;
    if (message->type == RAFT_APPEND_ENTRIES_RESULT && mend->is_stale) {
        struct raft_append_entries_result *result = &mended.append_entries_result;
        result->last_log_index = 0;
        if (!result->rejected)
            result->rejected = 1; /* 0 would be an acknowledgement */
    }
    if (message->type == RAFT_REQUEST_VOTE_RESULT && !message->request_vote_result.vote_granted &&
        message->request_vote_result.term < ((const struct raft *)io->data)->current_term)
        mended.request_vote_result.term = ((const struct raft *)io->data)->current_term;
    return mend->send(io, req, &mended, cb);
}

void log_mend_leads(struct raft *raft)
{
    raft->legacy.prev_state = raft->state;
}

bool log_mend_may_snapshot(const struct raft *raft)
{
    if (is_removing(mend_of(raft->io), raft))
        return false;
    return !raft->configuration_uncommitted_index || raft->configuration_uncommitted_index > raft->last_applied;
}

/* libraft does not set the memory of a snapshot that it has not found. */
static void *zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

void log_mend(struct raft_io *io)
{
    static struct raft_heap heap;
    heap = *raft_heap_get();
    heap.malloc = zeroed;
    raft_heap_set(&heap);
    struct log_mend *mend = mend_of(io);
    *mend = (struct log_mend){.load = io->load,
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
