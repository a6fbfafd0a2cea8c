/* An open tunnel: copies bytes between the owner's socketpair and TLS.
 *
 *   owner -> pair -> up -> SSL_write -> BIO -> wire          wire -> BIO -> SSL_read -> down -> pair -> owner
 *
 * Each stage is a buffer of fixed size and is filled only when it is empty (the BIO: when it has room), so that a slow
 * side holds the other side back through both sockets. Each event reads once from its socket and then moves as many
 * bytes as possible. A descriptor is polled only for events that can be handled immediately, so that the loop never
 * spins.
 *
 * Each direction ends separately. The owner's end of stream becomes close_notify and FIN after all bytes before it have
 * been sent. The peer's close_notify becomes the owner's end of stream after the owner has accepted all bytes before
 * it. After both, the tunnel closes. A FIN or reset without close_notify ends both directions after the received bytes
 * have been delivered. On a one-way tunnel close_notify does the same.
 *
 * When the owner has closed its descriptor (EPOLLHUP), the tunnel lingers: it flushes what the owner wrote and discards
 * what it receives, because closing a TCP socket with unread bytes would reset the connection and lose the flushed
 * bytes. To receive EPOLLHUP while nothing else is polled for, the tunnel polls for priority data, which a Unix socket
 * never has. */
#include "common/base/log.h"
#include "common/tunnel/internal.h"

#include <errno.h>
#include <poll.h>

static bool buffer_empty(const struct plain_buffer *p)
{
    return p->at == p->len;
}

static void buffer_consume(struct plain_buffer *p, size_t n)
{
    p->at += n;
    if (buffer_empty(p))
        p->at = p->len = 0;
}

/* ---- the owner ---- */

static void owner_closed(struct tunnel *t)
{
    if (t->owner_gone)
        return;
    t->owner_gone = true;
    t->down.at = t->down.len = 0;
    tunnel_linger(t);
}

static void look_for_hangup(struct tunnel *t)
{
    struct pollfd p = {.fd = t->pair_fd};
    if (!t->owner_gone && poll(&p, 1, 0) == 1 && (p.revents & POLLHUP))
        owner_closed(t);
}

static void read_owner(struct tunnel *t)
{
    ssize_t n;
    if (t->up_ended || !buffer_empty(&t->up))
        return;
    do
        n = recv(t->pair_fd, t->up.bytes, PLAIN_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        t->up.len = (size_t)n;
    else if (n == 0 || errno != EAGAIN)
        t->up_ended = true;
}

void pump_pair_ready(struct tunnel *t, int status, int events)
{
    if (status < 0 || (events & UV_READABLE))
        read_owner(t);
    if (status < 0 || t->up_ended || (events & UV_PRIORITIZED))
        look_for_hangup(t);
    pump_run(t);
}

/* ---- to the peer ---- */

/* Replaces the traffic key long before the cipher's limit for one key. */
static void rekey(struct tunnel *t)
{
    if (t->sent_bytes < t->rekey_bytes)
        return;
    t->sent_bytes = 0;
    if (!SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
        wire_mark_lost(t);
}

static void ssl_broke(struct tunnel *t)
{
    int alert;
    const char *reason = tls_reason(&alert);
    if (!t->wire_lost)
        log_warn("tunnel broken peer=%s address=%s why=\"%s\"", t->peer.name, t->peer.address, reason);
    wire_mark_lost(t);
}

static bool push_up(struct tunnel *t)
{
    size_t n;
    if (buffer_empty(&t->up) || t->close_sent)
        return false;
    rekey(t);
    if (t->wire_lost) {
        t->up.at = t->up.len = 0;
        t->up_ended = true;
        return false;
    }
    ERR_clear_error();
    if (SSL_write_ex(t->ssl, t->up.bytes + t->up.at, t->up.len - t->up.at, &n)) {
        buffer_consume(&t->up, n);
        t->sent_bytes += n;
        t->host->stats.bytes_out += n;
        return true;
    }
    int error = SSL_get_error(t->ssl, 0);
    if (error != SSL_ERROR_WANT_WRITE && error != SSL_ERROR_WANT_READ)
        ssl_broke(t);
    return false;
}

static bool end_up(struct tunnel *t)
{
    if (!t->up_ended || !buffer_empty(&t->up) || t->wire_lost)
        return false;
    if (!t->close_sent) {
        ERR_clear_error();
        int r = SSL_shutdown(t->ssl);
        if (r < 0 && SSL_get_error(t->ssl, r) == SSL_ERROR_WANT_WRITE)
            return false;
        t->close_sent = true;
        return true;
    }
    if (t->wire_shut || wire_pending(t))
        return false;
    shutdown(t->wire_fd, SHUT_WR);
    t->wire_shut = true;
    return true;
}

/* ---- to the owner ---- */

static void read_stopped(struct tunnel *t, int error)
{
    if (error == SSL_ERROR_ZERO_RETURN) {
        t->down_ended = true;
    } else if (error == SSL_ERROR_WANT_READ && t->wire_ended) { /* the connection ended without close_notify */
        log_info("tunnel lost peer=%s address=%s", t->peer.name, t->peer.address);
        wire_mark_lost(t);
        t->down_ended = true;
    } else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
        ssl_broke(t);
        t->down_ended = true;
    }
}

static bool fill_down(struct tunnel *t)
{
    if (!buffer_empty(&t->down) || t->down_ended || t->owner_gone)
        return false;
    ERR_clear_error();
    if (SSL_read_ex(t->ssl, t->down.bytes, PLAIN_BYTES, &t->down.len)) {
        t->host->stats.bytes_in += t->down.len;
        return true;
    }
    t->down.len = 0;
    read_stopped(t, SSL_get_error(t->ssl, 0));
    return t->down_ended;
}

static bool flush_down(struct tunnel *t)
{
    ssize_t n;
    if (t->owner_gone || t->down_shut)
        return false;
    if (buffer_empty(&t->down)) {
        if (!t->down_ended)
            return false;
        shutdown(t->pair_fd, SHUT_WR);
        t->down_shut = true;
        return true;
    }
    do
        n = send(t->pair_fd, t->down.bytes + t->down.at, t->down.len - t->down.at, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        buffer_consume(&t->down, (size_t)n);
    else if (errno != EAGAIN)
        owner_closed(t);
    return n > 0 || t->owner_gone;
}

/* ---- both directions ---- */

static bool is_over(const struct tunnel *t)
{
    if (t->state == T_LINGER)
        return t->wire_lost || (t->wire_shut && t->wire_ended);
    return t->down_shut && (t->wire_shut || t->wire_lost || t->one_way);
}

void pump_run(struct tunnel *t)
{
    bool progress = true, sent = false;
    while (progress && t->state != T_CLOSING) {
        bool flushed = wire_flush(t);
        sent |= flushed;
        progress = flushed | fill_down(t);
        progress |= flush_down(t);
        progress |= push_up(t);
        progress |= end_up(t);
    }
    if (is_over(t)) {
        tunnel_cut(t);
        return;
    }
    if (sent)
        t->progress_at = uv_now(t->host->config.loop);
    tunnel_arm(t);
}
