/* The stream row of the wires: life, and the turn that moves all connections.
 *
 * The kernel says once that a connection can be read or written again (edges); until it refuses, it is tried. abort
 * only touches descriptors: it cuts the connections, so that the peers hear of it whatever this rank's thread does, and
 * rings the bell that the thread waits on. */
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
#define CLOSE_DRAIN 64 /* reads; what is unread when a socket is closed would cut the peer's reading short */

static void close_conn(struct conn *c, bool in_order)
{
    uint8_t rest[16384];
    if (in_order && !c->left)
        (void)SSL_shutdown(c->ssl); /* says good-bye if the socket takes it; the peer need not hear it */
    SSL_free(c->ssl);
    for (int i = 0; in_order && i < CLOSE_DRAIN && recv(c->fd, rest, sizeof(rest), 0) > 0; i++)
        ;
    close(c->fd);
}

static void stream_close(struct wire *w)
{
    struct stream *s = (struct stream *)w;
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

/* Two sockets for each remote rank may be more than the usual soft limit. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* then a socket is refused, with a sentence */
    }
}

static err_t make(struct stream *s, const struct wire_config *config, struct why *why)
{
    const size_t world = (size_t)config->world;
    s->node_of = malloc(world * sizeof(*s->node_of));
    s->conns = calloc(world * WIRE_LANES, sizeof(struct conn *));
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

static err_t stream_open(const struct wire_config *config, struct wire **ret, struct why *why)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return why_set(why, ERR_NOMEM, "out of memory");
    *s = (struct stream){
        .base.ops = &wire_stream, .rank = config->rank, .world = config->world, .epoll = -1, .bell = -1};
    s->epoch = config->epoch;
    s->rekey = STREAM_REKEY;
    raise_limit();
    err_t err = make(s, config, why);
    err = err ? err : stream_meet(s, config, why);
    if (err) {
        s->base.dead = err; /* no good-byes */
        stream_close(&s->base);
        return err;
    }
    snprintf(s->base.note, sizeof(s->base.note), "TLS 1.3 over TCP, %d connections", s->n_conns);
    *ret = &s->base;
    return OK;
}

static void stream_abort(struct wire *w)
{
    struct stream *s = (struct stream *)w;
    const uint64_t one = 1;
    if (atomic_exchange(&w->aborted, 1))
        return;
    for (int i = 0; i < s->n_conns; i++)
        shutdown(s->list[i].fd, SHUT_RDWR);
    if (write(s->bell, &one, sizeof(one)) < 0)
        return; /* full is rung too */
}

static void stream_send(struct wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct conn *c = stream_conn((struct stream *)w, rank, lane);
    conn_queue(&c->out_end, op);
}

static void stream_recv(struct wire *w, int rank, enum wire_lane lane, struct wire_op *op)
{
    struct conn *c = stream_conn((struct stream *)w, rank, lane);
    conn_queue(&c->in_end, op);
}

static err_t move_all(struct stream *s, bool *moved)
{
    err_t err = OK;
    for (int i = 0; !err && i < s->n_conns; i++) {
        struct conn *c = &s->list[i];
        if (c->readable || c->left || (c->out && c->writable))
            err = conn_move(s, c, moved);
    }
    return err;
}

static err_t listen_to_kernel(struct stream *s, int wait_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(s->epoll, events, EVENTS, wait_ms);
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (!c)
            continue;
        c->readable |= (events[i].events & ~(uint32_t)EPOLLOUT) != 0;
        c->writable |= (events[i].events & ~(uint32_t)(EPOLLIN | EPOLLRDHUP)) != 0;
    }
    if (n < 0 && errno != EINTR)
        return wire_die(&s->base, ERR_IO, "cannot wait for other nodes: %s", strerror(errno));
    return OK;
}

static err_t stream_progress(struct wire *w, int wait_ms)
{
    struct stream *s = (struct stream *)w;
    bool moved = false;
    if (atomic_load(&w->aborted))
        return ERR_CANCELED;
    err_t err = w->dead ? w->dead : move_all(s, &moved);
    err = err ? err : listen_to_kernel(s, moved ? 0 : wait_ms);
    if (!err && !moved)
        err = move_all(s, &moved);
    return atomic_load(&w->aborted) ? ERR_CANCELED : err;
}

static bool stream_flushed(struct wire *w)
{
    (void)w;
    return true; /* what is done is the kernel's */
}

const struct wire_ops wire_stream = {.name = "stream",
                                     .open = stream_open,
                                     .close = stream_close,
                                     .abort = stream_abort,
                                     .send = stream_send,
                                     .recv = stream_recv,
                                     .progress = stream_progress,
                                     .flushed = stream_flushed};
