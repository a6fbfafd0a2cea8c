/* The function table of the stream wire: open, close, abort, and progress on all connections.
 *
 * epoll is edge-triggered: it reports once that a connection is readable or writable, and the rank then uses the
 * connection until a call would block. abort only touches descriptors, so any thread may call it. It shuts the
 * connections down, so the peers detect the abort even if this rank's thread is busy, and wakes that thread through the
 * bell. */
#include "worker/comm/wire/stream/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define EVENTS 64
/* Reads before a socket is closed: with unread data in its buffer, close would reset the connection and the peer could
 * lose data that it has not read yet. */
#define CLOSE_DRAIN 64

static void close_conn(struct stream_connection *c, bool in_order)
{
    uint8_t rest[16384];
    if (in_order && !c->left)
        (void)SSL_shutdown(c->ssl); /* sends close_notify if the socket accepts it now; the peer can do without */
    SSL_free(c->ssl);
    for (int i = 0; in_order && i < CLOSE_DRAIN && recv(c->fd, rest, sizeof(rest), 0) > 0; i++)
        ;
    close(c->fd);
}

static void stream_close(struct comm_wire *w)
{
    struct stream_wire *s = (struct stream_wire *)w;
    const bool in_order = !w->dead && !atomic_load(&w->aborted);
    for (int i = 0; i < s->n_conns; i++)
        close_conn(&s->list[i], in_order);
    SSL_CTX_free(s->ctx);
    OPENSSL_cleanse(s->key, sizeof(s->key));
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->bell >= 0)
        close(s->bell);
    free(s->list);
    free(s->conns);
    free(s->node_of);
    free(s);
}

/* Raises the soft limit of descriptors: two sockets for each remote rank may exceed the usual value. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* if this fails, creating a socket fails with a message */
    }
}

static err_t allocate(struct stream_wire *s, const struct wire_config *config, struct why *why)
{
    const size_t world = (size_t)config->world;
    s->node_of = malloc(world * sizeof(*s->node_of));
    s->conns = calloc(world * WIRE_LANES, sizeof(struct stream_connection *));
    s->list = calloc(world * WIRE_LANES, sizeof(*s->list));
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!s->node_of || !s->conns || !s->list)
        return why_set(why, ERR_NOMEM, "out of memory");
    memcpy(s->node_of, config->node_of, world * sizeof(*s->node_of));
    s->node = s->node_of[config->rank];
    struct epoll_event event = {.events = EPOLLIN};
    if (s->epoll < 0 || s->bell < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->bell, &event) < 0)
        return why_set(why, ERR_IO, "cannot set up connections between nodes: %s", strerror(errno));
    return stream_tls_init(s, config, why);
}

static err_t stream_open(const struct wire_config *config, struct comm_wire **ret, struct why *why)
{
    struct stream_wire *s = calloc(1, sizeof(*s));
    if (!s)
        return why_set(why, ERR_NOMEM, "out of memory");
    *s = (struct stream_wire){
        .base.ops = &wire_stream, .rank = config->rank, .world = config->world, .epoll = -1, .bell = -1};
    s->epoch = config->epoch;
    s->rekey = STREAM_REKEY;
    raise_limit();
    err_t err = allocate(s, config, why);
    err = err ? err : stream_connect_all(s, config, why);
    if (err) {
        s->base.dead = err; /* close without notifying the peers */
        stream_close(&s->base);
        return err;
    }
    snprintf(s->base.note, sizeof(s->base.note), "TLS 1.3 over TCP, %d connections", s->n_conns);
    *ret = &s->base;
    return OK;
}

static void stream_abort(struct comm_wire *w)
{
    struct stream_wire *s = (struct stream_wire *)w;
    const uint64_t one = 1;
    if (atomic_exchange(&w->aborted, 1))
        return;
    for (int i = 0; i < s->n_conns; i++)
        shutdown(s->list[i].fd, SHUT_RDWR);
    if (write(s->bell, &one, sizeof(one)) < 0)
        return; /* the eventfd is full, so the thread wakes up anyway */
}

static void stream_send(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct stream_connection *c = stream_conn((struct stream_wire *)w, rank, lane);
    conn_queue(&c->out_end, op);
}

static void stream_recv(struct comm_wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct stream_connection *c = stream_conn((struct stream_wire *)w, rank, lane);
    conn_queue(&c->in_end, op);
}

static err_t move_all(struct stream_wire *s, bool *moved)
{
    err_t err = OK;
    for (int i = 0; !err && i < s->n_conns; i++) {
        struct stream_connection *c = &s->list[i];
        if (c->readable || c->left || (c->out && c->writable))
            err = conn_move(s, c, moved);
    }
    return err;
}

static err_t wait_events(struct stream_wire *s, int wait_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(s->epoll, events, EVENTS, wait_ms);
    for (int i = 0; i < n; i++) {
        struct stream_connection *c = events[i].data.ptr;
        if (!c)
            continue;
        c->readable |= (events[i].events & ~(uint32_t)EPOLLOUT) != 0;
        c->writable |= (events[i].events & ~(uint32_t)(EPOLLIN | EPOLLRDHUP)) != 0;
    }
    if (n < 0 && errno != EINTR)
        return wire_fail(&s->base, ERR_IO, "cannot wait for other nodes: %s", strerror(errno));
    return OK;
}

static err_t stream_progress(struct comm_wire *w, int wait_ms)
{
    struct stream_wire *s = (struct stream_wire *)w;
    bool moved = false;
    if (atomic_load(&w->aborted))
        return ERR_CANCELED;
    err_t err = w->dead ? w->dead : move_all(s, &moved);
    err = err ? err : wait_events(s, moved ? 0 : wait_ms);
    if (!err && !moved)
        err = move_all(s, &moved);
    return atomic_load(&w->aborted) ? ERR_CANCELED : err;
}

static bool stream_flushed(struct comm_wire *w)
{
    (void)w;
    return true; /* the socket buffers hold the data of every send that is done */
}

const struct wire_ops wire_stream = {.name = "stream",
                                     .open = stream_open,
                                     .close = stream_close,
                                     .abort = stream_abort,
                                     .send = stream_send,
                                     .recv = stream_recv,
                                     .progress = stream_progress,
                                     .flushed = stream_flushed};
