/* How the ranks of an epoch connect.
 *
 *   listen | put "ADDRESS PORT" into the store | get those of all lower ranks of other nodes | handshakes, both ways,
 * in one loop | stop listening
 *
 * Outgoing connections that fail below TLS are tried again until the deadline, since their rank is known to listen;
 * TLS may refuse a few times (a full table there), not for ever. An incoming one takes its place only when its proof is
 * complete, so that a replayed beginning takes nobody's. */
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

#define STRANGERS 64      /* places for those who never come to an end */
#define HANDSHAKE_MS 5000 /* incoming */
#define AGAIN_MS 100      /* before an outgoing one is tried again */
#define REFUSALS 3        /* of one outgoing connection by TLS */
#define TURN_MS 20        /* between looks at `cancel` */

struct meeting {
    struct stream *s;
    const struct wire_config *config;
    int listener;
    int64_t deadline;
    struct handshake *list;
    struct pollfd *polls;
    int n, cap, missing; /* missing: connections that are not there yet */
    struct why *why;
};

/* ---- the listener and the store ---- */

static err_t listen_here(struct meeting *m)
{
    union wire_address at;
    const char *text = m->config->address;
    socklen_t bytes;
    if (!text || wire_address_find(text, 0, &at))
        return why_set(m->why, ERR_INVALID, "\"%s\" is no address that other nodes could reach this one at",
                       text ? text : "");
    m->listener = socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (m->listener < 0 || bind(m->listener, &at.any, wire_address_bytes(&at)) < 0 ||
        listen(m->listener, SOMAXCONN) < 0)
        return why_set(m->why, ERR_IO, "cannot listen on %s for the workers of other nodes: %s", text, strerror(errno));
    bytes = sizeof(at);
    if (getsockname(m->listener, &at.any, &bytes) < 0)
        return why_set(m->why, ERR_IO, "cannot listen on %s: %s", text, strerror(errno));
    return wire_leave_address(m->config, wire_stream.name, &at, m->why);
}

/* ---- handshakes ---- */

static void drop(struct handshake *h)
{
    SSL_free(h->ssl);
    h->ssl = NULL;
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
}

static void refuse(const struct handshake *h, const char *text)
{
    char from[WIRE_ADDRESS_MAX];
    wire_address_print(&h->at, from);
    log_warn("comm_connection_refused from=\"%s\" why=\"%s\"", from, h->wrong[0] ? h->wrong : text);
}

static void remove_at(struct meeting *m, int i)
{
    drop(&m->list[i]);
    m->list[i] = m->list[--m->n];
    if (i < m->n && m->list[i].ssl)
        SSL_set_app_data(m->list[i].ssl, &m->list[i]);
}

static void set_up_socket(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* slower without, not wrong */
}

/* Takes its place among the connections. */
static err_t settle(struct meeting *m, int i)
{
    struct stream *s = m->s;
    struct handshake *h = &m->list[i];
    const int rank = h->incoming ? h->id.from : h->rank, lane = h->incoming ? h->id.lane : h->lane;
    struct conn *c = &s->list[s->n_conns];
    if (stream_conn(s, rank, lane)) { /* two at once; the first to finish has it */
        refuse(h, "this rank is here already");
        remove_at(m, i);
        return OK;
    }
    *c = (struct conn){.rank = rank, .lane = lane, .fd = h->fd, .ssl = h->ssl, .readable = true, .writable = true};
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

/* An incoming one is refused and forgotten; an outgoing one tries again. */
static err_t fail(struct meeting *m, int i, const char *text, bool by_tls)
{
    struct handshake *h = &m->list[i];
    if (h->incoming) {
        refuse(h, text);
        remove_at(m, i);
        return OK;
    }
    if (by_tls && ++h->refusals >= REFUSALS)
        return why_set(m->why, ERR_DENIED,
                       "rank %d on node %d refuses this rank (%s): the two do not have the same epoch's secret",
                       h->rank, m->config->node_of[h->rank], text);
    drop(h);
    h->begun_ms = clock_mono_ms() + AGAIN_MS;
    return OK;
}

static err_t start(struct meeting *m, int i)
{
    struct handshake *h = &m->list[i];
    h->fd = socket(h->at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->fd < 0)
        return why_set(m->why, ERR_LIMIT, "cannot make a socket to rank %d: %s", h->rank, strerror(errno));
    set_up_socket(h->fd);
    if (connect(h->fd, &h->at.any, wire_address_bytes(&h->at)) < 0 && errno != EINPROGRESS)
        return fail(m, i, strerror(errno), false);
    return OK;
}

static err_t shake(struct meeting *m, int i)
{
    struct handshake *h = &m->list[i];
    char text[128];
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 || error)
        return fail(m, i, strerror(error), false);
    if (!h->ssl && !(h->ssl = stream_tls_new(m->s, h)))
        return why_set(m->why, ERR_NOMEM, "out of memory");
    ERR_clear_error();
    errno = 0;
    int rc = SSL_do_handshake(h->ssl), what = SSL_get_error(h->ssl, rc);
    if (rc == 1 && (!h->incoming || h->known))
        return settle(m, i);
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE)
        return OK;
    return fail(m, i, stream_tls_error(text, sizeof(text)), true);
}

/* The oldest makes room when all places are taken. */
static void accept_all(struct meeting *m)
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
            refuse(&m->list[oldest], "too many come at once");
            remove_at(m, oldest);
        }
        set_up_socket(fd);
        m->list[m->n++] = (struct handshake){.fd = fd, .incoming = true, .begun_ms = clock_mono_ms(), .at = from};
    }
}

static err_t look_at(struct meeting *m, int i, short events)
{
    struct handshake *h = &m->list[i];
    int64_t now = clock_mono_ms();
    if (!h->incoming && h->fd < 0)
        return now >= h->begun_ms ? start(m, i) : OK;
    if (h->incoming && now - h->begun_ms > HANDSHAKE_MS)
        return fail(m, i, "it does not go on", false);
    return events ? shake(m, i) : OK;
}

static int set_polls(struct meeting *m)
{
    for (int i = 0; i < m->n; i++) {
        struct handshake *h = &m->list[i];
        const bool reads = h->ssl ? !SSL_want_write(h->ssl) : h->incoming;
        m->polls[i] = (struct pollfd){.fd = h->fd, .events = reads ? POLLIN : POLLOUT};
    }
    m->polls[m->n] = (struct pollfd){.fd = m->listener, .events = POLLIN};
    return m->n + 1;
}

static err_t name_missing(const struct meeting *m)
{
    char text[128] = "";
    size_t at = 0;
    for (int r = 0; r < m->s->world && at < sizeof(text) - 16; r++)
        if (stream_is_remote(m->s, r) && (!stream_conn(m->s, r, 0) || !stream_conn(m->s, r, 1)))
            at += (size_t)snprintf(text + at, sizeof(text) - at, " %d", r);
    return why_set(m->why, ERR_TIMEOUT, "no connection with rank%s of other nodes within %" PRId64 " ms", text,
                   m->config->timeout_ms);
}

static err_t shake_all(struct meeting *m)
{
    err_t err = OK;
    while (!err && m->missing > 0) {
        if (clock_mono_ms() >= m->deadline)
            return name_missing(m);
        err = wire_is_over(m->config, m->why);
        if (!err && poll(m->polls, (nfds_t)set_polls(m), TURN_MS) < 0 && errno != EINTR)
            err = why_set(m->why, ERR_IO, "cannot wait for other nodes: %s", strerror(errno));
        const bool came = m->polls[m->n].revents != 0;
        for (int i = m->n - 1; !err && i >= 0; i--) /* what is removed is replaced from the end, seen already */
            err = look_at(m, i, m->polls[i].revents);
        if (!err && came)
            accept_all(m);
    }
    return err;
}

/* ---- all of it ---- */

/* Both ways: connections to lower ranks, and from higher ones. */
static err_t prepare(struct meeting *m)
{
    const struct stream *s = m->s;
    int remote = 0;
    for (int r = 0; r < s->world; r++)
        remote += stream_is_remote(s, r);
    m->missing = remote * WIRE_LANES;
    m->cap = m->missing + STRANGERS;
    m->list = calloc((size_t)m->cap, sizeof(*m->list));
    m->polls = calloc((size_t)m->cap + 1, sizeof(*m->polls));
    return m->list && m->polls ? OK : why_set(m->why, ERR_NOMEM, "out of memory");
}

static err_t ask_all(struct meeting *m)
{
    err_t err = OK;
    for (int r = 0; !err && r < m->s->rank; r++) {
        union wire_address at;
        if (!stream_is_remote(m->s, r))
            continue;
        err = wire_ask_address(m->config, wire_stream.name, r, m->deadline, &at, m->why);
        for (int lane = 0; !err && lane < WIRE_LANES; lane++)
            m->list[m->n++] = (struct handshake){.fd = -1, .rank = r, .lane = lane, .at = at};
    }
    return err;
}

err_t stream_meet(struct stream *s, const struct wire_config *config, struct why *why)
{
    struct meeting m = {
        .s = s, .config = config, .listener = -1, .deadline = clock_mono_ms() + config->timeout_ms, .why = why};
    err_t err = prepare(&m);
    err = err ? err : listen_here(&m);
    err = err ? err : ask_all(&m);
    err = err ? err : shake_all(&m);
    while (m.n > 0)
        remove_at(&m, m.n - 1);
    if (m.listener >= 0)
        close(m.listener);
    free(m.list);
    free(m.polls);
    return err;
}
