/* How the ranks of an epoch connect.
 *
 *   listen | put "ADDRESS PORT" into the store | get the addresses of all lower ranks of other nodes | incoming and
 *   outgoing handshakes, in one loop | stop listening
 *
 * An outgoing connection that fails before TLS is retried until the deadline, because its peer has published its
 * address and listens. A failure in TLS is retried too, at most REFUSALS attempts, because the peer's table may be
 * full. An incoming connection takes its place only when its handshake is complete, so a replayed handshake cannot take
 * a rank's place. */
#include "worker/comm/wire/stream/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define STRANGERS 64      /* places in addition to the expected connections, for handshakes that never finish */
#define HANDSHAKE_MS 5000 /* limit for an incoming handshake */
#define AGAIN_MS 100      /* delay before an outgoing connection is retried */
#define REFUSALS 3        /* failures in TLS of one outgoing connection before this rank gives up */
#define TURN_MS 20        /* interval between checks of config->cancel */

struct stream_connecting {
    struct stream_wire *s;
    const struct wire_config *config;
    int listener;
    int64_t deadline;
    struct stream_handshake *list;
    struct pollfd *polls;
    int n, cap, missing; /* missing: number of connections that are not established yet */
    struct why *why;
};

/* ---- the listener and the store ---- */

/* Connections of an earlier epoch keep the port of their listener. SO_REUSEADDR allows another listener there. */
static err_t listen_at(void *arg, const union wire_address *at, struct why *why)
{
    struct stream_connecting *m = arg;
    int on = 1;
    m->listener = socket(at->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (m->listener >= 0 && setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(m->listener, &at->any, wire_address_bytes(at)) == 0 && listen(m->listener, SOMAXCONN) == 0)
        return OK;
    err_t err = errno == EADDRINUSE ? ERR_EXISTS : ERR_IO;
    why_set(why, err, "cannot listen on %s for the workers of other nodes: %s; " WIRE_ADDRESS_REMEDY,
            m->config->address, strerror(errno));
    if (m->listener >= 0)
        close(m->listener);
    m->listener = -1;
    return err;
}

static err_t listen_here(struct stream_connecting *m)
{
    union wire_address at;
    socklen_t bytes = sizeof(at);
    err_t err = wire_listen(m->config, listen_at, m, m->why);
    if (err)
        return err;
    if (getsockname(m->listener, &at.any, &bytes) < 0)
        return why_set(m->why, ERR_IO, "cannot listen on %s: %s", m->config->address, strerror(errno));
    return wire_publish_address(m->config, wire_stream.name, &at, m->why);
}

/* ---- handshakes ---- */

static void close_handshake(struct stream_handshake *h)
{
    SSL_free(h->ssl);
    h->ssl = NULL;
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
}

static void refuse(const struct stream_handshake *h, const char *text)
{
    char from[WIRE_ADDRESS_MAX];
    wire_address_print(&h->at, from);
    log_warn("comm_connection_refused from=\"%s\" why=\"%s\"", from, h->wrong[0] ? h->wrong : text);
}

static void remove_at(struct stream_connecting *m, int i)
{
    close_handshake(&m->list[i]);
    m->list[i] = m->list[--m->n];
    if (i < m->n && m->list[i].ssl)
        SSL_set_app_data(m->list[i].ssl, &m->list[i]);
}

static void set_up_socket(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* a failure costs only speed */
}

/* Moves a finished handshake to the list of connections. */
static err_t add_connection(struct stream_connecting *m, int i)
{
    struct stream_wire *s = m->s;
    struct stream_handshake *h = &m->list[i];
    const int rank = h->incoming ? h->id.from : h->rank, lane = h->incoming ? h->id.lane : h->lane;
    struct stream_connection *c = &s->list[s->n_conns];
    if (stream_conn(s, rank, lane)) { /* two handshakes at once: the first to finish is accepted */
        refuse(h, "this rank is connected already");
        remove_at(m, i);
        return OK;
    }
    *c = (struct stream_connection){
        .rank = rank, .lane = lane, .fd = h->fd, .ssl = h->ssl, .readable = true, .writable = true};
    c->out_end = &c->out;
    c->in_end = &c->in;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &event) < 0)
        return why_set(m->why, ERR_IO, "cannot watch a connection: %s", strerror(errno));
    SSL_set_app_data(c->ssl, NULL);
    s->conns[(size_t)lane * (size_t)s->world + (size_t)rank] = c;
    s->n_conns++;
    m->missing--;
    h->ssl = NULL;
    h->fd = -1;
    remove_at(m, i);
    return OK;
}

/* Refuses and removes an incoming connection; schedules the next attempt of an outgoing one. */
static err_t handshake_failed(struct stream_connecting *m, int i, const char *text, bool by_tls)
{
    struct stream_handshake *h = &m->list[i];
    if (h->incoming) {
        refuse(h, text);
        remove_at(m, i);
        return OK;
    }
    if (by_tls && ++h->refusals >= REFUSALS)
        return why_set(m->why, ERR_DENIED,
                       "rank %d on node %d refused this rank (%s): the two do not have the same epoch's secret",
                       h->rank, m->config->node_of[h->rank], text);
    close_handshake(h);
    h->begun_ms = clock_mono_ms() + AGAIN_MS;
    return OK;
}

static err_t start_outgoing(struct stream_connecting *m, int i)
{
    struct stream_handshake *h = &m->list[i];
    h->fd = socket(h->at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->fd < 0)
        return why_set(m->why, ERR_LIMIT, "cannot create a socket to rank %d: %s", h->rank, strerror(errno));
    set_up_socket(h->fd);
    if (connect(h->fd, &h->at.any, wire_address_bytes(&h->at)) < 0 && errno != EINPROGRESS)
        return handshake_failed(m, i, strerror(errno), false);
    return OK;
}

static err_t continue_handshake(struct stream_connecting *m, int i)
{
    struct stream_handshake *h = &m->list[i];
    char text[128];
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 || error)
        return handshake_failed(m, i, strerror(error), false);
    if (!h->ssl && !(h->ssl = stream_tls_new(m->s, h)))
        return why_set(m->why, ERR_NOMEM, "out of memory");
    ERR_clear_error();
    errno = 0;
    int rc = SSL_do_handshake(h->ssl), what = SSL_get_error(h->ssl, rc);
    if (rc == 1 && (!h->incoming || h->known))
        return add_connection(m, i);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE)
        return OK;
    return handshake_failed(m, i, stream_tls_error(text, sizeof(text)), true);
}

/* Accepts all waiting connections. When all places are taken, the oldest incoming handshake is refused. */
static void accept_all(struct stream_connecting *m)
{
    for (;;) {
        union wire_address from;
        socklen_t bytes = sizeof(from);
        int oldest = -1, fd = accept4(m->listener, &from.any, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        for (int i = 0; i < m->n && m->n == m->cap; i++)
            if (m->list[i].incoming && (oldest < 0 || m->list[i].begun_ms < m->list[oldest].begun_ms))
                oldest = i;
        if (oldest >= 0) {
            refuse(&m->list[oldest], "too many connections at once");
            remove_at(m, oldest);
        }
        set_up_socket(fd);
        m->list[m->n++] =
            (struct stream_handshake){.fd = fd, .incoming = true, .begun_ms = clock_mono_ms(), .at = from};
    }
}

static err_t check_handshake(struct stream_connecting *m, int i, short events)
{
    struct stream_handshake *h = &m->list[i];
    int64_t now = clock_mono_ms();
    if (!h->incoming && h->fd < 0)
        return now >= h->begun_ms ? start_outgoing(m, i) : OK;
    if (h->incoming && now - h->begun_ms > HANDSHAKE_MS)
        return handshake_failed(m, i, "the handshake timed out", false);
    return events ? continue_handshake(m, i) : OK;
}

static int set_polls(struct stream_connecting *m)
{
    for (int i = 0; i < m->n; i++) {
        struct stream_handshake *h = &m->list[i];
        const bool reads = h->ssl ? !SSL_want_write(h->ssl) : h->incoming;
        m->polls[i] = (struct pollfd){.fd = h->fd, .events = reads ? POLLIN : POLLOUT};
    }
    m->polls[m->n] = (struct pollfd){.fd = m->listener, .events = POLLIN};
    return m->n + 1;
}

static err_t name_missing(const struct stream_connecting *m)
{
    char text[128] = "";
    size_t at = 0;
    for (int r = 0; r < m->s->world && at < sizeof(text) - 16; r++)
        if (stream_is_remote(m->s, r) && (!stream_conn(m->s, r, 0) || !stream_conn(m->s, r, 1)))
            at += (size_t)snprintf(text + at, sizeof(text) - at, " %d", r);
    return why_set(m->why, ERR_TIMEOUT, "no connection with rank%s of other nodes within %" PRId64 " ms", text,
                   m->config->timeout_ms);
}

static err_t complete_all(struct stream_connecting *m)
{
    err_t err = OK;
    while (!err && m->missing > 0) {
        if (clock_mono_ms() >= m->deadline)
            return name_missing(m);
        err = wire_check_canceled(m->config, m->why);
        if (!err && poll(m->polls, (nfds_t)set_polls(m), TURN_MS) < 0 && errno != EINTR)
            err = why_set(m->why, ERR_IO, "cannot wait for other nodes: %s", strerror(errno));
        const bool came = m->polls[m->n].revents != 0;
        for (int i = m->n - 1; !err && i >= 0; i--) /* backwards: a removed entry is replaced by the last, seen one */
            err = check_handshake(m, i, m->polls[i].revents);
        if (!err && came)
            accept_all(m);
    }
    return err;
}

/* ---- opening ---- */

/* The expected connections are those to lower ranks and those from higher ranks. */
static err_t prepare(struct stream_connecting *m)
{
    const struct stream_wire *s = m->s;
    int remote = 0;
    for (int r = 0; r < s->world; r++)
        remote += stream_is_remote(s, r);
    m->missing = remote * WIRE_LANES;
    m->cap = m->missing + STRANGERS;
    m->list = calloc((size_t)m->cap, sizeof(*m->list));
    m->polls = calloc((size_t)m->cap + 1, sizeof(*m->polls));
    return m->list && m->polls ? OK : why_set(m->why, ERR_NOMEM, "out of memory");
}

static err_t lookup_peers(struct stream_connecting *m)
{
    err_t err = OK;
    for (int r = 0; !err && r < m->s->rank; r++) {
        union wire_address at;
        if (!stream_is_remote(m->s, r))
            continue;
        err = wire_lookup_address(m->config, wire_stream.name, r, m->deadline, &at, m->why);
        for (int lane = 0; !err && lane < WIRE_LANES; lane++)
            m->list[m->n++] = (struct stream_handshake){.fd = -1, .rank = r, .lane = lane, .at = at};
    }
    return err;
}

err_t stream_connect_all(struct stream_wire *s, const struct wire_config *config, struct why *why)
{
    struct stream_connecting m = {
        .s = s, .config = config, .listener = -1, .deadline = clock_mono_ms() + config->timeout_ms, .why = why};
    err_t err = prepare(&m);
    err = err ? err : listen_here(&m);
    err = err ? err : lookup_peers(&m);
    err = err ? err : complete_all(&m);
    while (m.n > 0)
        remove_at(&m, m.n - 1);
    if (m.listener >= 0)
        close(m.listener);
    free(m.list);
    free(m.polls);
    return err;
}
