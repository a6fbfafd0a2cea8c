/* The raft_uv_transport of the log. libraft closes and frees the stream handles itself, with its own allocator. It
 * waits for the end of each connect before it closes, so closing the transport ends them; a stream that is brought
 * later is closed. */
#include "daemon/control/log/transport.h"

#include "daemon/control/log/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct log_connect {
    LIST_ENTRY(log_connect) link;
    struct log_transport *transport; /* NULL: closed since the request */
    struct raft_uv_connect *request;
};

static struct log_transport *transport_of(struct raft_uv_transport *raft)
{
    return raft->impl;
}

static int transport_init(struct raft_uv_transport *raft, raft_id id, const char *address)
{
    (void)raft, (void)id, (void)address;
    return 0;
}

static int transport_listen(struct raft_uv_transport *raft, raft_uv_accept_cb cb)
{
    transport_of(raft)->accepted = cb;
    return 0;
}

static void stream_closed(uv_handle_t *handle)
{
    raft_free(handle);
}

/* Takes over `fd`. NULL: out of memory or descriptors; fd is closed then. */
static uv_stream_t *stream_of(struct log_transport *t, int fd)
{
    uv_pipe_t *pipe = raft_malloc(sizeof(*pipe));
    if (!pipe || uv_pipe_init(t->loop, pipe, 0)) {
        raft_free(pipe);
        close(fd);
        return NULL;
    }
    if (uv_pipe_open(pipe, fd)) {
        close(fd);
        uv_close((uv_handle_t *)pipe, stream_closed);
        return NULL;
    }
    return (uv_stream_t *)pipe;
}

void log_connected(struct log_connect *c, int fd)
{
    struct log_transport *t = c->transport;
    struct raft_uv_connect *request = c->request;
    if (t)
        LIST_REMOVE(c, link);
    free(c);
    if (!t) {
        if (fd >= 0)
            close(fd);
        return;
    }
    uv_stream_t *stream = fd >= 0 ? stream_of(t, fd) : NULL;
    request->cb(request, stream, stream ? 0 : RAFT_NOCONNECTION);
}

static struct log *log_of(struct log_transport *t)
{
    return (struct log *)((char *)t - offsetof(struct log, transport));
}

static int transport_connect(struct raft_uv_transport *raft, struct raft_uv_connect *request, raft_id id,
                             const char *address, raft_uv_connect_cb cb)
{
    struct log_transport *t = transport_of(raft);
    (void)address;
    struct log_connect *c = t->peers.connect ? calloc(1, sizeof(*c)) : NULL;
    if (!c)
        return RAFT_NOCONNECTION;
    libraft_fixes_note_connection(&log_of(t)->fixes, id);
    c->transport = t;
    c->request = request;
    request->cb = cb;
    LIST_INSERT_HEAD(&t->pending, c, link);
    if (t->peers.connect(t->peers.arg, c, id)) {
        LIST_REMOVE(c, link);
        free(c);
        return RAFT_NOCONNECTION;
    }
    return 0;
}

static void transport_close(struct raft_uv_transport *raft, raft_uv_transport_close_cb cb)
{
    struct log_transport *t = transport_of(raft);
    t->accepted = NULL;
    while (!LIST_EMPTY(&t->pending)) {
        struct log_connect *c = LIST_FIRST(&t->pending);
        LIST_REMOVE(c, link);
        c->transport = NULL;
        c->request->cb(c->request, NULL, RAFT_CANCELED);
    }
    cb(raft);
}

void log_transport_init(struct log_transport *t, uv_loop_t *loop, const struct log_peers *peers)
{
    memset(t, 0, sizeof(*t));
    t->loop = loop;
    t->peers = *peers;
    LIST_INIT(&t->pending);
    t->raft.version = 1;
    t->raft.impl = t;
    t->raft.init = transport_init;
    t->raft.listen = transport_listen;
    t->raft.connect = transport_connect;
    t->raft.close = transport_close;
}

err_t log_transport_accept(struct log_transport *t, raft_id id, const char *address, int fd)
{
    if (!t->accepted)
        return ERR_AGAIN;
    int own = dup(fd); /* after a failure the caller still owns fd */
    uv_stream_t *stream = own >= 0 ? stream_of(t, own) : NULL;
    if (!stream)
        return ERR_NOMEM;
    close(fd);
    t->accepted(&t->raft, id, address, stream);
    return OK;
}
