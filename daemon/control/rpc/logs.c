/* Adapter: the stream Logs of a client, and reads of log files on behalf of the leader. The supervisor opens these
 * files for the workers, on the nodes where they run.
 *
 *   pump -> a block of each file: read here, or from its node (Peer.ReadLog) -> sent -> .. -> pump again | end
 *
 * A file may have any size and content, so a thread of the pool reads it: the loop only sends what has been read. A
 * read contains the position in the file, and the node that reads keeps no state. So a read is simply repeated after a
 * node was unreachable. Control reads one block of each file at a time, as fast as the client's connection accepts
 * them.
 *
 * The middle of a log may have been left out (common/base/log_cut.h). A block ends behind the note about it, and the
 * next one begins where the log goes on. A reader whose place was left out meanwhile receives a line with the number
 * of bytes.
 *
 * The search for the last lines ends SEARCH_BYTES before the end of the file, because a line can be as long as the file
 * (a progress bar, a sparse file). The client then receives a note that names the first byte that is shown.
 *
 * With `follow`, control checks every 100 ms for new data, and whether a rank has moved to another node or slot. It
 * switches to the new file when the old one has no more data. Blocks contain whole lines, except if a line is longer
 * than a block or is the last one. */
#include "common/base/log.h"
#include "common/base/log_cut.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/supervisor/channel.h"
#include "proto/client.pb-c.h"
#include "proto/peer.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES (32u << 10)        /* below the limit of a message */
#define SEARCH_BYTES ((off_t)64 << 20) /* a thread reads them in 0.1 s, within ASK_MS also from a slow disk */
#define SHOWN_BYTES ((off_t)64 << 10)  /* of a line that is longer than SEARCH_BYTES: some screens */
#define LOOK_MS 100                    /* a delay that a user who follows a log does not notice */
#define ASK_MS 5000    /* reading a block may wait for a slow disk; after that the node counts as unreachable */
#define MOVED_LINES 50 /* lines that are shown from the new file of a rank that has moved: about a screen */

/* ---- files ---- */

struct place {
    uint64_t job;
    int slot;
    int64_t at;    /* offset of the next block */
    int64_t lines; /* start with the last `lines` lines instead of `at`; -1: not so */
    bool last;     /* include a last line without a newline */
};

/* One read; freed by its `came`. A thread uses it until then. */
struct log_read {
    struct pool_task task;
    void (*came)(struct log_read *read);
    void *arg;
    char path[PATH_MAX];
    struct place place; /* `at` becomes the offset of the block; `lines` becomes -1 */
    bool cut;           /* the lines begin more than SEARCH_BYTES before the end */
    int64_t left_out;   /* bytes before the block that no longer exist, and that no note in the text names */
    size_t len;
    uint8_t block[BLOCK_BYTES];
};

/* The offset at which the last `lines` lines begin. Sets *ret_cut if they begin earlier than is searched: the offset
 * then is that of the first line that was found, or SHOWN_BYTES before the end if there was none. */
static off_t start_of_lines(int fd, off_t size, int64_t lines, bool *ret_cut)
{
    char block[BLOCK_BYTES];
    const off_t least = size > SEARCH_BYTES ? size - SEARCH_BYTES : 0;
    off_t at = size, found = size;
    int64_t seen = 0;
    while (at > least && lines > 0) {
        size_t n = at - least > (off_t)sizeof(block) ? sizeof(block) : (size_t)(at - least);
        if (pread(fd, block, n, at - (off_t)n) != (ssize_t)n)
            return found;
        at -= (off_t)n;
        for (const char *nl = block + n; (nl = memrchr(block, '\n', (size_t)(nl - block)));) {
            off_t start = at + (nl - block) + 1;
            if (start == size)
                continue;
            found = start;
            if (++seen == lines)
                return found;
        }
    }
    *ret_cut = lines > 0 && at > 0;
    return lines <= 0 || at == 0 ? at : seen > 0 ? found : size - SHOWN_BYTES;
}

/* O_NONBLOCK: a user's process may have put a pipe in the place of the file. */
static int open_log(const char *path, struct stat *ret_st)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, ret_st) == 0 && S_ISREG(ret_st->st_mode))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void log_path(const struct rpc_server *server, uint64_t job, int slot, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/jobs/%" PRIu64 "/rank-%d.log", server->local->dir, job, slot);
}

/* The offset at which the log goes on if there is a hole at `at`: behind it and the zeros with which its last block
 * begins. */
static off_t skip_hole(int fd, off_t at, off_t size)
{
    char block[BLOCK_BYTES];
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data == at)
        return at;
    if (data < 0)
        return errno == ENXIO ? size : at; /* a hole up to the end; or a file system that does not know holes */
    ssize_t got = pread(fd, block, sizeof(block), data), zeros = 0;
    while (zeros < got && !block[zeros])
        zeros++;
    return data + zeros;
}

/* Moves the place behind bytes that were left out. */
static void skip_left_out(struct log_read *r, int fd, off_t size)
{
    char text[LOG_CUT_NOTE_BYTES + 1];
    int64_t bytes, before = r->place.at - LOG_CUT_NOTE_BYTES;
    bool noted = before >= 0 && pread(fd, text, sizeof(text), before) == sizeof(text) &&
                 log_cut_note(text, LOG_CUT_NOTE_BYTES, &bytes) == text && !text[LOG_CUT_NOTE_BYTES];
    if (noted) {
        r->place.at = before + bytes;
        return;
    }
    if (r->place.at > size) { /* the file was truncated: it begins again */
        r->place.at = 0;
        return;
    }
    off_t at = r->place.at < size ? skip_hole(fd, r->place.at, size) : size;
    r->left_out = at - r->place.at;
    r->place.at = at;
}

/* Reads whole lines, or the part of a line up to its last \r. On a thread of the pool. */
static void read_block(struct pool_task *task)
{
    struct log_read *r = (struct log_read *)task;
    struct stat st;
    int fd = open_log(r->path, &st);
    r->len = 0;
    if (fd < 0)
        return;
    if (r->place.lines >= 0)
        r->place.at = start_of_lines(fd, st.st_size, r->place.lines, &r->cut);
    r->place.lines = -1;
    skip_left_out(r, fd, st.st_size);
    ssize_t got = pread(fd, r->block, BLOCK_BYTES, r->place.at);
    close(fd);
    if (got <= 0)
        return;
    int64_t bytes;
    const char *note = log_cut_note((const char *)r->block, (size_t)got, &bytes);
    if (note)
        got = note + LOG_CUT_NOTE_BYTES - (const char *)r->block;
    const uint8_t *nl = memrchr(r->block, '\n', (size_t)got);
    nl = nl ? nl : memrchr(r->block, '\r', (size_t)got); /* a progress bar is one line until it is complete */
    r->len = nl ? (size_t)(nl - r->block) + 1 : got == BLOCK_BYTES || r->place.last ? (size_t)got : 0;
}

static void read_done(struct pool_task *task)
{
    struct log_read *r = (struct log_read *)task;
    r->came(r);
}

/* `key`: the user for whom it is read. */
static err_t read_start(struct rpc_server *server, const struct place *place, uint64_t key,
                        void (*came)(struct log_read *), void *arg, struct log_read **ret)
{
    struct log_read *r = malloc(sizeof(*r));
    if (!r)
        return ERR_NOMEM;
    r->task = (struct pool_task){.run = read_block, .done = read_done};
    r->came = came;
    r->arg = arg;
    r->place = *place;
    r->cut = false;
    r->left_out = 0;
    log_path(server, place->job, place->slot, r->path);
    err_t err = pool_add(&server->reads, &r->task, key);
    if (err) {
        free(r);
        return err;
    }
    *ret = r;
    return OK;
}

/* Keeps only the lines of the last process that wrote to this log; returns the new length. */
static size_t remove_earlier(char *text, size_t len)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, CHANNEL_LOG_MARK)); at++)
        last = at + 1;
    const char *own = last ? strchr(last, '\n') : NULL;
    if (!own)
        return len;
    len -= (size_t)(own + 1 - text);
    memmove(text, own + 1, len + 1);
    return len;
}

size_t rpc_log_tail(const struct rpc_server *server, uint64_t job, int slot, char *ret, size_t size)
{
    struct stat st;
    char path[PATH_MAX];
    log_path(server, job, slot, path);
    int fd = open_log(path, &st);
    ssize_t got = -1;
    off_t at = 0;
    ret[0] = '\0';
    if (fd >= 0) {
        at = st.st_size > (off_t)size - 1 ? st.st_size - (off_t)size + 1 : 0;
        got = pread(fd, ret, size - 1, at);
        close(fd);
    }
    size_t len = got > 0 ? (size_t)got : 0;
    const char *nl = at > 0 ? memchr(ret, '\n', len) : NULL; /* the first line may be incomplete */
    size_t cut = nl && nl + 1 < ret + len ? (size_t)(nl - ret) + 1 : 0;
    memmove(ret, ret + cut, len - cut);
    len -= cut;
    for (size_t i = 0; i < len; i++)
        ret[i] = ret[i] ? ret[i] : ' ';
    ret[len] = '\0';
    return remove_earlier(ret, len);
}

/* ---- reads on behalf of the leader ---- */

static void leader_gone(void *arg)
{
    ((struct log_read *)arg)->arg = NULL;
}

static void block_for_leader(struct log_read *r)
{
    struct rpc_call *call = r->arg;
    Dtd__LogBlock b = DTD__LOG_BLOCK__INIT;
    b.text = (ProtobufCBinaryData){r->len, r->block};
    b.at = r->place.at;
    b.has_cut = b.cut = r->cut;
    b.has_left_out = r->left_out > 0;
    b.left_out = r->left_out;
    if (call) {
        rpc_call_on_cancel(call, NULL, NULL);
        rpc_reply(call, &b.base);
    }
    free(r);
}

void rpc_peer_read_log(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__LogRead *m = (const Dtd__LogRead *)request;
    const struct state_job *job = state_job_find(server->replica->state, m->job);
    struct place p = {.job = m->job,
                      .slot = m->slot,
                      .at = m->at,
                      .lines = m->has_lines ? m->lines : -1,
                      .last = m->has_last && m->last};
    struct log_read *r;
    if (m->slot < 0 || m->slot >= CHANNEL_MAX_SLOTS || m->at < 0) {
        rpc_fail(call, ERR_INVALID, "invalid position in a log: slot %d, offset %" PRId64, m->slot, m->at);
        return;
    }
    err_t err = read_start(server, &p, job ? job->uid : (uint32_t)-1, block_for_leader, call, &r);
    if (err)
        rpc_fail(call, err, "log of job %" PRIu64 " not read: %s", m->job, err_text(err));
    else
        rpc_call_on_cancel(call, leader_gone, r);
}

/* ---- a client's stream ---- */

enum file_state { FILE_OPEN, FILE_ASKED, FILE_QUIET, FILE_ENDED };

struct tail_file {
    struct tail *tail;
    int rank;
    bool left;             /* the rank of an earlier epoch ran there, and none of the newest one does */
    bool introduced;       /* the client has received the line about a file that is `left` */
    enum file_state state; /* ASKED: a thread or its node reads; QUIET: no more data until the next look */
    char *node;            /* the node of the file; NULL: this one */
    struct place place;
    bool guessed;      /* the job has not been placed yet: the rank may run elsewhere, and this file has no lines */
    bool noted;        /* the client has received the line about an unreachable node */
    int64_t left_out;  /* the client has to receive a note: so many bytes no longer exist; 0: no note */
    int64_t cut_lines; /* the client has to receive a note: so many lines are not shown completely; 0: no note */
    uint8_t *block;    /* read and not sent to the client yet; NULL: none */
    size_t len;
};

struct tail {
    struct rpc_server *server;
    uint64_t job;
    uint32_t uid;          /* the caller */
    struct rpc_call *call; /* NULL: it has ended */
    uv_timer_t timer;
    int holds; /* references: the timer, and each read that waits for a thread or a node */
    bool follow;
    int64_t lines; /* of the request */
    int n;
    struct tail_file files[];
};

static void tail_unref(struct tail *t)
{
    if (--t->holds > 0)
        return;
    for (int k = 0; k < t->n; k++) {
        free(t->files[k].node);
        free(t->files[k].block);
    }
    free(t);
}

static void tail_closed(uv_handle_t *timer)
{
    tail_unref(timer->data);
}

static void tail_gone(void *arg)
{
    struct tail *t = arg;
    t->call = NULL;
    uv_close((uv_handle_t *)&t->timer, tail_closed);
}

static void tail_end(struct tail *t)
{
    struct rpc_call *call = t->call;
    tail_gone(t);
    rpc_end(call);
}

/* ---- reads, here and on other nodes ---- */

static void pump(void *arg);

/* Keeps what was read until it is sent. If there is no memory for it, the next look reads it again. */
static void block_keep(struct tail_file *f, int64_t at, const uint8_t *text, size_t len, bool cut, int64_t left_out)
{
    f->state = FILE_QUIET;
    f->noted = false;
    f->block = len ? malloc(len) : NULL;
    if (len && !f->block)
        return;
    f->cut_lines = cut ? f->place.lines : f->cut_lines;
    f->left_out += left_out;
    f->place.at = at;
    f->place.lines = -1;
    f->len = len;
    if (len)
        memcpy(f->block, text, len);
    else if (f->place.last)
        f->state = FILE_ENDED;
}

static void block_read_done(struct tail *t)
{
    if (t->call)
        pump(t);
    tail_unref(t);
}

static void block_came(void *arg, const struct rpc_result *result)
{
    struct tail_file *f = arg;
    const Dtd__LogBlock *b = (const Dtd__LogBlock *)(const void *)result->reply;
    if (b)
        block_keep(f, b->at, b->text.data, b->text.len, b->has_cut && b->cut, b->has_left_out ? b->left_out : 0);
    else
        f->state = FILE_QUIET;
    block_read_done(f->tail);
}

static err_t read_from_node(struct tail *t, struct tail_file *f)
{
    const struct node_view *a = node_view_find(t->server->jobs, f->node);
    Dtd__LogRead m = DTD__LOG_READ__INIT;
    m.job = f->place.job;
    m.slot = f->place.slot;
    m.at = f->place.at;
    m.has_lines = f->place.lines >= 0;
    m.lines = f->place.lines;
    m.has_last = m.last = f->place.last;
    return a && a->conn ? rpc_send(a->conn, PEER_READ_LOG, &m.base, ASK_MS, block_came, f, NULL) : ERR_CLOSED;
}

static void block_read_here(struct log_read *r)
{
    struct tail_file *f = r->arg;
    block_keep(f, r->place.at, r->block, r->len, r->cut, r->left_out);
    free(r);
    block_read_done(f->tail);
}

/* After an error (too many reads of this user wait, no memory) the next look tries again. */
static err_t read_file(struct tail *t, struct tail_file *f, bool last)
{
    struct log_read *r;
    f->place.last = last;
    err_t err = f->node ? read_from_node(t, f) : read_start(t->server, &f->place, t->uid, block_read_here, f, &r);
    t->holds += !err;
    f->state = err ? FILE_QUIET : FILE_ASKED;
    return err;
}

/* `from`: the place that the text was read from; NULL: it is a line of control. */
static err_t send_text(struct tail *t, int k, const struct place *from, const uint8_t *text, size_t len)
{
    const char *node = t->files[k].node;
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    chunk.rank = t->files[k].rank;
    if (from) {
        chunk.has_at = chunk.has_slot = true;
        chunk.at = from->at;
        chunk.slot = from->slot;
        chunk.node = node ? (char *)node : (char *)t->server->local->name;
    }
    chunk.text = (ProtobufCBinaryData){len, (uint8_t *)text};
    return rpc_item(t->call, &chunk.base);
}

/* Sends one line that names the node. If the client does not follow the log, the file ends with it; otherwise the node
 * may become reachable again. */
static err_t send_unreachable(struct tail *t, int k, bool last)
{
    struct tail_file *f = &t->files[k];
    char text[512];
    int len = snprintf(text, sizeof(text),
                       "(on node %s, which cannot be reached: jobs/%" PRIu64 "/rank-%d.log in its state directory)\n",
                       f->node, f->place.job, f->place.slot);
    err_t err = f->noted ? OK : send_text(t, k, NULL, (const uint8_t *)text, (size_t)len);
    f->noted = f->noted || !err;
    if (!err && last)
        f->state = FILE_ENDED;
    return err;
}

static err_t send_cut(struct tail *t, int k)
{
    struct tail_file *f = &t->files[k];
    char text[200];
    int len = snprintf(text, sizeof(text),
                       "(the last %" PRId64 " lines begin more than %d MiB before the end of the log: shown from byte "
                       "%" PRId64 "; without --tail all is shown)\n",
                       f->cut_lines, (int)(SEARCH_BYTES >> 20), f->place.at);
    err_t err = f->cut_lines ? send_text(t, k, NULL, (const uint8_t *)text, (size_t)len) : OK;
    f->cut_lines = err ? f->cut_lines : 0;
    return err;
}

static err_t send_left_out(struct tail *t, int k)
{
    struct tail_file *f = &t->files[k];
    char text[200];
    int len =
        snprintf(text, sizeof(text),
                 "(%" PRId64 " bytes of this log no longer exist: it reached its limit, run.log_bytes, or the disk "
                 "was full)\n",
                 f->left_out);
    err_t err = f->left_out ? send_text(t, k, NULL, (const uint8_t *)text, (size_t)len) : OK;
    f->left_out = err ? f->left_out : 0;
    return err;
}

/* One line before the output of a rank of an earlier epoch. */
static err_t send_introduction(struct tail *t, int k)
{
    struct tail_file *f = &t->files[k];
    char text[512];
    int len = snprintf(text, sizeof(text), "(rank %d ran on node %s in an earlier epoch, with this output:)\n", f->rank,
                       f->node ? f->node : t->server->local->name);
    err_t err = f->left && !f->introduced ? send_text(t, k, NULL, (const uint8_t *)text, (size_t)len) : OK;
    f->introduced = f->introduced || !err;
    return err;
}

/* ---- the pump ---- */

/* Sends the block of file k that has been read, and starts to read the next one. Otherwise the error of rpc_item. */
static err_t send_block(struct tail *t, int k, bool last)
{
    struct tail_file *f = &t->files[k];
    err_t gap = send_left_out(t, k);
    if (gap)
        return gap;
    if (f->block) {
        err_t err = send_introduction(t, k);
        err = err ? err : send_cut(t, k);
        err = err ? err : send_text(t, k, &f->place, f->block, f->len);
        if (err)
            return err;
        f->place.at += (int64_t)f->len;
        free(f->block);
        f->block = NULL;
        f->state = FILE_OPEN;
    }
    if (f->state != FILE_OPEN)
        return OK;
    return read_file(t, f, last) == ERR_CLOSED && f->node ? send_unreachable(t, k, last) : OK;
}

static bool all_ended(const struct tail *t)
{
    for (int k = 0; k < t->n; k++)
        if (t->files[k].state != FILE_ENDED)
            return false;
    return true;
}

static void find_file(struct tail *t, const struct job *j, int rank, int64_t lines, struct tail_file *f);

/* Switches to the new file of a rank that has been placed, or has moved; returns whether it did. After a move the file
 * may have lines of earlier epochs, so only its last MOVED_LINES lines are sent, some of which the client may have
 * received before. */
static bool follow_rank(struct tail *t, int k)
{
    const struct job *j = jobs_find(t->server->jobs, t->job);
    struct tail_file *f = &t->files[k], now;
    char text[200];
    if (!j || f->left || f->rank >= job_view_of(j).n_workers || f->block || f->state == FILE_ASKED)
        return false;
    find_file(t, j, f->rank, f->guessed ? t->lines : MOVED_LINES, &now);
    const char *was = f->node ? f->node : t->server->local->name, *is = now.node ? now.node : t->server->local->name;
    int len = snprintf(text, sizeof(text), "(rank %d is on node %s now; the last %d lines there:)\n", f->rank, is,
                       MOVED_LINES);
    if ((now.place.slot == f->place.slot && strcmp(was, is) == 0) ||
        (!f->guessed && send_text(t, k, NULL, (const uint8_t *)text, (size_t)len))) {
        free(now.node);
        return false;
    }
    free(f->node);
    *f = now;
    return true;
}

static void look_again(uv_timer_t *timer)
{
    struct tail *t = timer->data;
    for (int k = 0; k < t->n; k++)
        if (t->files[k].state == FILE_QUIET)
            t->files[k].state = FILE_OPEN;
    pump(t);
}

static void pump(void *arg)
{
    struct tail *t = arg;
    const struct job *j = jobs_find(t->server->jobs, t->job);
    bool live = t->follow && j && !job_over(j);
    for (int k = 0; k < t->n; k++) {
        const struct tail_file *f = &t->files[k];
        err_t err = send_block(t, k, !live);
        bool is_over = !err && !f->block && f->state != FILE_OPEN && f->state != FILE_ASKED;
        if (is_over && follow_rank(t, k)) /* after the last data of the old file */
            err = send_block(t, k, !live);
        if (err == ERR_LIMIT) {
            rpc_call_on_drain(t->call, pump, t);
            return;
        }
    }
    if (!live && all_ended(t))
        tail_end(t);
    else if (!uv_is_active((uv_handle_t *)&t->timer)) /* a file with much data must not delay the look at the others */
        (void)uv_timer_start(&t->timer, look_again, LOOK_MS, 0);
}

static bool is_here(const struct rpc_server *server, const char *node)
{
    return strcmp(node, server->local->name) == 0 || (!server->jobs->nodes->next && strcmp(node, "node-1") == 0);
}

/* Finds the file of a rank: at the node and slot of the newest recorded epoch, or before the first one, of its current
 * placement. */
static void find_file(struct tail *t, const struct job *j, int rank, int64_t lines, struct tail_file *f)
{
    const struct rpc_server *server = t->server;
    const struct job_view v = job_view_of(j);
    const struct state_job *s = v.logged;
    bool recorded = s && rank < s->epoch.n_members;
    const struct job_rank_view p = rank < v.n_workers ? job_rank_view_of(j, rank) : (struct job_rank_view){0};
    const char *name = recorded ? s->epoch.members[rank].node : p.node ? p.node : server->local->name;
    int slot = recorded ? s->epoch.members[rank].slot : p.node ? p.slot : rank;
    bool here = is_here(server, name);
    *f = (struct tail_file){.tail = t,
                            .rank = rank,
                            .place = {.job = v.id, .slot = slot, .lines = lines},
                            .node = here ? NULL : strdup(name),
                            .guessed = !recorded && !p.node};
    if (!here && !f->node)
        f->state = FILE_ENDED;
}

/* Whether the client gets the files of places that the job has left. A client that follows the job has received them,
 * and gets only those of a rank that the job does not have any more. */
static bool is_wanted(const struct state_left *left, const Dtd__LogsRequest *m, int n_workers)
{
    bool follows = m->has_follow && m->follow;
    return m->rank < 0 ? !follows : left->rank == m->rank && (!follows || m->rank >= n_workers);
}

/* Makes the files of places that the job has left the first ones of `t`; NULL: only counts them. Returns their number.
 */
static int find_left(struct tail *t, const struct job *j, const Dtd__LogsRequest *m)
{
    const struct job_view v = job_view_of(j);
    int n = 0;
    for (int i = 0; v.logged && i < v.logged->n_left; i++) {
        const struct state_left *left = &v.logged->left[i];
        if (!is_wanted(left, m, v.n_workers))
            continue;
        if (t) {
            bool here = is_here(t->server, left->node);
            t->files[n] = (struct tail_file){.tail = t,
                                             .rank = left->rank,
                                             .left = true,
                                             .place = {.job = v.id, .slot = left->slot, .lines = m->tail_lines},
                                             .node = here ? NULL : strdup(left->node)};
            if (!here && !t->files[n].node)
                t->files[n].state = FILE_ENDED;
        }
        n++;
    }
    return n;
}

void rpc_client_logs(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__LogsRequest *m = (const Dtd__LogsRequest *)request;
    const struct job *j = rpc_client_job_to_see(server, call, m->job);
    if (!j)
        return;
    const int n_workers = job_view_of(j).n_workers;
    const int n_left = find_left(NULL, j, m);
    if (m->rank < -1 || (m->rank >= n_workers && !n_left)) {
        rpc_fail(call, ERR_NOTFOUND, "job %s has ranks 0 to %d", m->job, n_workers - 1);
        return;
    }
    const int n_now = m->rank < 0 ? n_workers : m->rank < n_workers;
    const int count = n_left + n_now;
    struct tail *t = calloc(1, sizeof(*t) + (size_t)count * sizeof(t->files[0]));
    if (!t || uv_timer_init(server->loop, &t->timer)) {
        free(t);
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    t->server = server;
    t->job = job_view_of(j).id;
    t->uid = rpc_caller_uid(call);
    t->call = call;
    t->holds = 1;
    t->timer.data = t;
    t->follow = m->has_follow && m->follow;
    t->n = count;
    t->lines = m->tail_lines;
    find_left(t, j, m);
    for (int k = 0; k < n_now; k++)
        find_file(t, j, m->rank < 0 ? k : m->rank, m->tail_lines, &t->files[n_left + k]);
    rpc_call_on_cancel(call, tail_gone, t);
    pump(t);
}
