/* See relay.h. A connection has two ends. Bytes read from one end stay in its buffer until the other end's socket has
 * accepted them, and an end is read only while its buffer is empty. The end of one stream is forwarded by shutdown. The
 * connection closes when both streams have ended, or at the first error.
 *
 * The relay is freed when its listener and its last connection have been closed. */
#include "daemon/store/relay.h"

#include "common/base/log.h"
#include "daemon/store/listener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

struct relay_end {
    uv_poll_t poll;
    int fd, events;
    bool ended;     /* its stream has ended */
    size_t at, len; /* read from it and not yet written to the other end: buffer[at .. len) */
    uint8_t buffer[RELAY_BYTES];
};

struct relay_call {
    struct relay *relay;
    LIST_ENTRY(relay_call) link;
    struct relay_end near, far; /* the accepted connection; the stream to the store, fd -1 until it is connected */
    int open_handles;
    bool closing, dialling;
};

struct relay {
    struct store_listener listener;
    LIST_HEAD(, relay_call) calls;
    bool listener_closed;
    void (*dial)(void *owner, struct relay_call *call);
    void *owner;
};

/* ---- closing ---- */

static void free_relay(struct relay *r)
{
    if (r->listener_closed && LIST_EMPTY(&r->calls))
        free(r);
}

static void listener_closed(void *owner)
{
    struct relay *r = owner;
    r->listener_closed = true;
    free_relay(r);
}

static void free_call(struct relay_call *c)
{
    struct relay *r = c->relay;
    if (c->open_handles || c->dialling)
        return;
    LIST_REMOVE(c, link);
    free(c);
    free_relay(r);
}

static void handle_closed(uv_handle_t *handle)
{
    struct relay_call *c = handle->data;
    c->open_handles--;
    free_call(c);
}

static void close_end(struct relay_end *e)
{
    if (e->fd < 0)
        return;
    uv_close((uv_handle_t *)&e->poll, handle_closed);
    close(e->fd);
    e->fd = -1;
}

static void close_call(struct relay_call *c)
{
    if (c->closing)
        return;
    c->closing = true;
    close_end(&c->near);
    close_end(&c->far);
    store_listener_connection_closed(&c->relay->listener);
}

/* ---- bytes ---- */

/* False: the connection has failed. */
static bool read_from(struct relay_end *e)
{
    ssize_t n = recv(e->fd, e->buffer, sizeof(e->buffer), MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    e->at = 0;
    e->len = (size_t)n;
    e->ended = n == 0;
    return true;
}

static bool write_to(struct relay_end *to, struct relay_end *from)
{
    while (from->at < from->len) {
        ssize_t n = send(to->fd, from->buffer + from->at, from->len - from->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EINTR)
            return errno == EAGAIN;
        from->at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool is_empty(const struct relay_end *e)
{
    return e->at == e->len;
}

/* Copies from one end to the other as much as both sockets allow. */
static bool relay_move(struct relay_end *from, struct relay_end *to, bool readable)
{
    bool was_ended = from->ended;
    if (readable && !from->ended && is_empty(from) && !read_from(from))
        return false;
    if (!write_to(to, from))
        return false;
    if (from->ended && !was_ended)
        shutdown(to->fd, SHUT_WR);
    return true;
}

static void polled(uv_poll_t *poll, int status, int events);

static void watch(struct relay_end *e, const struct relay_end *other)
{
    int events = (is_empty(e) && !e->ended ? UV_READABLE : 0) | (is_empty(other) ? 0 : UV_WRITABLE);
    if (events == e->events)
        return;
    e->events = events;
    if (events)
        uv_poll_start(&e->poll, events, polled);
    else
        uv_poll_stop(&e->poll);
}

static void polled(uv_poll_t *poll, int status, int events)
{
    struct relay_call *c = poll->data;
    bool near = poll == &c->near.poll, readable = status < 0 || (events & UV_READABLE);
    if (c->closing)
        return;
    bool goes_on = relay_move(&c->near, &c->far, near && readable) && relay_move(&c->far, &c->near, !near && readable);
    if (!goes_on || (c->near.ended && c->far.ended)) {
        close_call(c);
        return;
    }
    watch(&c->near, &c->far);
    watch(&c->far, &c->near);
}

/* ---- accepting ---- */

static bool open_end(struct relay_call *c, struct relay_end *e, int fd)
{
    if (uv_poll_init(c->relay->listener.loop, &e->poll, fd))
        return false;
    e->poll.data = c;
    e->fd = fd;
    c->open_handles++;
    return true;
}

static void admit(void *owner, int fd)
{
    struct relay *r = owner;
    struct relay_call *c = calloc(1, sizeof(*c));
    if (!c) {
        store_listener_connection_failed(&r->listener);
        close(fd);
        return;
    }
    c->relay = r;
    c->near.fd = c->far.fd = -1;
    r->listener.connections++;
    LIST_INSERT_HEAD(&r->calls, c, link);
    if (!open_end(c, &c->near, fd)) {
        close(fd);
        close_call(c);
        free_call(c);
        return;
    }
    c->dialling = true;
    r->dial(r->owner, c);
}

void relay_connected(struct relay_call *c, int fd)
{
    c->dialling = false;
    bool wanted = fd >= 0 && !c->closing && open_end(c, &c->far, fd);
    if (!wanted) {
        if (fd >= 0)
            close(fd);
        close_call(c);
        free_call(c);
        return;
    }
    watch(&c->near, &c->far);
    watch(&c->far, &c->near);
}

/* ---- the relay ---- */

err_t relay_open(const struct relay_config *config, struct relay **ret, struct why *why)
{
    struct relay *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "store: %s", err_text(ERR_NOMEM));
    LIST_INIT(&r->calls);
    r->dial = config->dial;
    r->owner = config->owner;
    const struct store_listener_config listen_config = {.loop = config->loop,
                                                        .name = config->name,
                                                        .uid = config->uid,
                                                        .max_connections = config->max_connections,
                                                        .shares = config->shares,
                                                        .max_user = config->max_user,
                                                        .admit = admit,
                                                        .closed = listener_closed,
                                                        .owner = r};
    err_t err = store_listener_open(&r->listener, &listen_config, why);
    if (err) {
        store_listener_close(&r->listener);
        return err;
    }
    log_info("store relay opened store=%s port=%d uid=%d", r->listener.name, r->listener.port, (int)r->listener.uid);
    *ret = r;
    return OK;
}

uint16_t relay_port(const struct relay *r)
{
    return r->listener.port;
}

int relay_connections(const struct relay *r)
{
    return r->listener.connections;
}

void relay_close(struct relay *r)
{
    struct relay_call *c, *next;
    log_info("store relay closed store=%s", r->listener.name);
    for (c = LIST_FIRST(&r->calls); c; c = next) {
        next = LIST_NEXT(c, link);
        close_call(c);
    }
    store_listener_close(&r->listener);
}
