/* Adapter: the stream Logs. The files are those that the supervisor gave to the workers; of ranks on other nodes it
 * says where theirs are, and no more. Control only reads them, a block at a time, as fast as the connection takes it,
 * and looks again every 100 ms while it follows. Chunks are whole lines, except where a line is longer than a block or
 * is the last one. */
#include "daemon/control/node.h"
#include "daemon/control/rpc_server.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES (32u << 10)
#define LOOK_MS 100

struct tail_file {
    int fd; /* -1: not there yet */
    off_t at;
    int slot;        /* its rank's, in the newest epoch: part of the file's name */
    char *elsewhere; /* the file is on another node: where, said once; NULL: here, or it has been said */
};

struct tail {
    struct node *node;
    uint64_t job;
    struct rpc_call *call; /* NULL: it has ended */
    uv_timer_t timer;
    bool follow;
    int64_t lines; /* of the end of each file; -1: all */
    int first, n;  /* ranks */
    struct tail_file files[];
};

/* ---- end ---- */

static void tail_closed(uv_handle_t *timer)
{
    struct tail *t = timer->data;
    for (int k = 0; k < t->n; k++)
        if (t->files[k].fd >= 0)
            close(t->files[k].fd);
    for (int k = 0; k < t->n; k++)
        free(t->files[k].elsewhere);
    free(t);
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

/* ---- files ---- */

/* Where the last `lines` lines begin. */
static off_t start_of_lines(int fd, off_t size, int64_t lines)
{
    char block[BLOCK_BYTES];
    off_t at = size;
    int64_t seen = 0;
    while (at > 0) {
        size_t n = at > (off_t)sizeof(block) ? sizeof(block) : (size_t)at;
        if (pread(fd, block, n, at - (off_t)n) != (ssize_t)n)
            return at;
        for (size_t i = n; i-- > 0;)
            if (block[i] == '\n' && at - (off_t)(n - i) != size - 1 && ++seen == lines)
                return at - (off_t)(n - i) + 1;
        at -= (off_t)n;
    }
    return 0;
}

static void open_file(struct tail *t, int k)
{
    char path[PATH_MAX];
    struct stat st;
    struct tail_file *f = &t->files[k];
    snprintf(path, sizeof(path), "%s/jobs/%" PRIu64 "/rank-%d.log", t->node->dir, t->job, f->slot);
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd >= 0 && t->lines >= 0 && fstat(f->fd, &st) == 0)
        f->at = t->lines ? start_of_lines(f->fd, st.st_size, t->lines) : st.st_size;
}

static err_t say_elsewhere(struct tail *t, int k)
{
    struct tail_file *f = &t->files[k];
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    chunk.rank = t->first + k;
    chunk.text.data = (uint8_t *)f->elsewhere;
    chunk.text.len = strlen(f->elsewhere);
    err_t err = rpc_item(t->call, &chunk.base);
    if (err)
        return err;
    free(f->elsewhere);
    f->elsewhere = NULL;
    return OK;
}

/* OK and *ret_n bytes said (0: nothing there), or what rpc_item says. */
static err_t say_block(struct tail *t, int k, bool last, size_t *ret_n)
{
    uint8_t block[BLOCK_BYTES];
    struct tail_file *f = &t->files[k];
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    *ret_n = 0;
    if (f->elsewhere)
        return say_elsewhere(t, k);
    if (f->slot < 0)
        return OK;
    if (f->fd < 0)
        open_file(t, k);
    ssize_t n = f->fd < 0 ? 0 : pread(f->fd, block, sizeof(block), f->at);
    if (n <= 0)
        return OK;
    const uint8_t *nl = memrchr(block, '\n', (size_t)n);
    size_t whole = nl ? (size_t)(nl - block) + 1 : (size_t)n == sizeof(block) || last ? (size_t)n : 0;
    if (!whole)
        return OK;
    chunk.rank = t->first + k;
    chunk.text.data = block;
    chunk.text.len = whole;
    err_t err = rpc_item(t->call, &chunk.base);
    if (err)
        return err;
    f->at += (off_t)whole;
    *ret_n = whole;
    return OK;
}

/* ---- the pump ---- */

static void look_again(uv_timer_t *timer);

static void pump(void *arg)
{
    struct tail *t = arg;
    const struct job *j = node_job(t->node, t->job);
    bool live = t->follow && j && !job_over(j);
    for (bool more = true; more;) {
        more = false;
        for (int k = 0; k < t->n; k++) {
            size_t n;
            err_t err = say_block(t, k, !live, &n);
            if (err == ERR_LIMIT) {
                rpc_call_on_drain(t->call, pump, t);
                return;
            }
            more = more || (n && !err);
        }
    }
    if (live)
        (void)uv_timer_start(&t->timer, look_again, LOOK_MS, 0);
    else
        tail_end(t);
}

static void look_again(uv_timer_t *timer)
{
    pump(timer->data);
}

/* Where the newest epoch in the log has the rank; before the first one, where it has its place. */
static void find_file(const struct node *n, const struct job *j, int rank, struct tail_file *f)
{
    const struct state_job *s = state_job_find(n->state, j->id);
    bool recorded = s && rank < s->epoch.n_members;
    const struct job_process *p = rank < j->n_workers ? &j->workers[rank].p : NULL;
    const char *name = recorded ? s->epoch.members[rank].node : p && p->agent ? p->agent->name : n->self.name;
    *f = (struct tail_file){.fd = -1, .slot = recorded ? s->epoch.members[rank].slot : p && p->agent ? p->slot : rank};
    bool here = strcmp(name, n->self.name) == 0 || (!n->agents->next && strcmp(name, "node-1") == 0);
    if (here)
        return;
    if (asprintf(&f->elsewhere, "(on node %s: jobs/%" PRIu64 "/rank-%d.log in its state directory)\n", name, j->id,
                 f->slot) < 0)
        f->elsewhere = NULL;
    f->slot = -1;
}

void rpc_client_logs(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct node *n = owner;
    const Dtd__LogsRequest *m = (const Dtd__LogsRequest *)request;
    const struct job *j = rpc_client_job(n, call, m->job);
    if (!j)
        return;
    if (m->rank < -1 || m->rank >= j->n_workers) {
        rpc_fail(call, ERR_NOTFOUND, "job %s has ranks 0 to %d", m->job, j->n_workers - 1);
        return;
    }
    int count = m->rank < 0 ? j->n_workers : 1;
    struct tail *t = calloc(1, sizeof(*t) + (size_t)count * sizeof(t->files[0]));
    if (!t || uv_timer_init(&n->loop, &t->timer)) {
        free(t);
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    t->node = n;
    t->job = j->id;
    t->call = call;
    t->timer.data = t;
    t->follow = m->has_follow && m->follow;
    t->lines = m->tail_lines;
    t->first = m->rank < 0 ? 0 : m->rank;
    t->n = count;
    for (int k = 0; k < count; k++)
        find_file(n, j, t->first + k, &t->files[k]);
    rpc_call_on_cancel(call, tail_gone, t);
    pump(t);
}
