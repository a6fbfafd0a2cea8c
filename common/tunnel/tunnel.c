/* The states of one connection.
 *
 *   listener --> HANDSHAKE --> GREETING --> OPEN --> LINGER --> CLOSING
 *   request --> CONNECTING --^                                     ^
 *                   any state ------------------------------------+
 *
 *   HANDSHAKE   TLS. On the accepting side the first bytes must look like a ClientHello before OpenSSL parses them
 *   GREETING    the connecting side has sent its greeting and waits for the answer; the accepting side waits for the
 *               greeting, verifies it and answers
 *   OPEN        the owner has its descriptor; pump.c copies bytes
 *   LINGER      the owner has closed its descriptor, or a greeting was refused: remaining output is sent, input is
 *               discarded
 *   CLOSING     handles are being closed; the last close callback frees the tunnel
 * */
#include "common/base/log.h"
#include "common/tunnel/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct tunnel) + 2 * WIRE_BYTES <= TUNNEL_BYTES, "the memory limit in tunnel.h");

static const struct {
    const char *name;
    unsigned next;
} states[] = {
    [T_CONNECTING] = {"connecting", 1u << T_HANDSHAKE | 1u << T_CLOSING},
    [T_HANDSHAKE] = {"handshake", 1u << T_GREETING | 1u << T_CLOSING},
    [T_GREETING] = {"greeting", 1u << T_OPEN | 1u << T_LINGER | 1u << T_CLOSING},
    [T_OPEN] = {"open", 1u << T_LINGER | 1u << T_CLOSING},
    [T_LINGER] = {"linger", 1u << T_CLOSING},
    [T_CLOSING] = {"closing", 0},
};

void tunnel_move(struct tunnel *t, enum tunnel_state to)
{
    assert(states[t->state].next & 1u << to);
    log_debug("tunnel address=%s from=%s to=%s", t->peer.address, states[t->state].name, states[to].name);
    t->state = to;
}

static void timer_fired(uv_timer_t *timer);

/* ---- closing ---- */

static void handle_closed(uv_handle_t *handle)
{
    struct tunnel *t = handle->data;
    struct tunnel_host *host = t->host;
    if (--t->open_handles)
        return;
    TAILQ_REMOVE(&host->tunnels, t, link);
    host->all--;
    tls_end(t);
    OPENSSL_cleanse(&t->up, sizeof(t->up));
    OPENSSL_cleanse(&t->down, sizeof(t->down));
    free(t);
    host_maybe_closed(host);
}

void tunnel_cut(struct tunnel *t)
{
    if (t->state == T_CLOSING)
        return;
    tunnel_move(t, T_CLOSING);
    listener_forget(t);
    t->host->stats.tunnels -= t->counted;
    uv_close((uv_handle_t *)&t->timer, handle_closed);
    uv_close((uv_handle_t *)&t->wire_poll, handle_closed);
    close(t->wire_fd);
    if (t->pair_fd >= 0) {
        uv_close((uv_handle_t *)&t->pair_poll, handle_closed);
        close(t->pair_fd);
    }
}

static void report_failure(struct tunnel *t, err_t err, const char *text)
{
    struct tunnel_request *request = t->request;
    bool dialing = t->state == T_CONNECTING;
    t->request = NULL;
    if (t->role == ROLE_ACCEPT) {
        t->host->stats.refused++;
        host_log_refusal(t->host, t->peer.address, text);
    }
    tunnel_cut(t);
    if (request && dialing)
        request_dial_failed(request, err, text);
    else if (request)
        request_finish(request, err, text, NULL, -1);
}

void tunnel_fail(struct tunnel *t, err_t err, const char *fmt, ...)
{
    struct why why;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why.text, sizeof(why.text), fmt, ap);
    va_end(ap);
    if (t->state != T_CONNECTING)
        wire_flush(t); /* sends the TLS alert, if the socket accepts it */
    report_failure(t, err, why.text);
}

void tunnel_linger(struct tunnel *t)
{
    if (t->state == T_LINGER)
        return;
    tunnel_move(t, T_LINGER);
    listener_forget(t);
    t->progress_at = uv_now(t->host->config.loop);
    uv_timer_start(&t->timer, timer_fired, TUNNEL_LINGER_MS, 0);
}

/* ---- events ---- */

static void run_until_open(struct tunnel *t)
{
    if (t->state < T_OPEN)
        hello_run(t);
    if (t->state < T_OPEN) {
        wire_flush(t);
        if (t->wire_lost)
            tunnel_fail(t, ERR_CLOSED, "the connection was lost before both sides were authenticated");
        else if (t->hello_bytes >= TUNNEL_HELLO_BYTES)
            tunnel_fail(t, ERR_PROTO, "it sent more bytes than a handshake and a greeting have");
        else
            tunnel_arm(t);
    }
    if (t->state == T_OPEN || t->state == T_LINGER)
        pump_run(t);
}

static void connected(struct tunnel *t)
{
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (getsockopt(t->wire_fd, SOL_SOCKET, SO_ERROR, &errnum, &len))
        errnum = errno;
    if (errnum) {
        tunnel_fail(t, err_from_errno(errnum), "%s", strerror(errnum));
        return;
    }
    tunnel_move(t, T_HANDSHAKE);
    uv_timer_stop(&t->timer); /* the timer of the request still runs */
    run_until_open(t);
}

static void wire_ready(uv_poll_t *poll, int status, int events)
{
    struct tunnel *t = poll->data;
    if (t->state == T_CONNECTING) {
        connected(t);
        return;
    }
    if (status < 0) { /* an error is pending; bytes received before it can still be read */
        t->wire_armed = 0;
        t->wire_lost = true;
    }
    if (status < 0 || (events & UV_READABLE)) {
        if (t->state == T_LINGER)
            wire_discard(t);
        else
            wire_read(t);
    }
    run_until_open(t);
}

static void pair_ready(uv_poll_t *poll, int status, int events)
{
    struct tunnel *t = poll->data;
    if (status < 0)
        t->pair_armed = 0;
    pump_pair_ready(t, status, events);
}

/* Runs periodically while sent bytes are not acknowledged. */
static void watch(struct tunnel *t)
{
    enum wire_health health = wire_look(t);
    if (health == WIRE_WAITS) {
        uv_timer_start(&t->timer, timer_fired, wire_watch_ms(t), 0);
    } else if (health == WIRE_DEAD) {
        log_info("tunnel lost peer=%s address=%s why=\"its host does not acknowledge anything\"", t->peer.name,
                 t->peer.address);
        wire_mark_lost(t);
        pump_run(t);
    }
}

static void timer_fired(uv_timer_t *timer)
{
    struct tunnel *t = timer->data;
    uint64_t now = uv_now(t->host->config.loop);
    if (t->state < T_OPEN) {
        tunnel_fail(t, ERR_TIMEOUT, "%s",
                    t->state == T_CONNECTING ? "no answer" : "it did not complete the handshake in time");
    } else if (t->state == T_LINGER) {
        uint64_t due = t->progress_at + TUNNEL_LINGER_MS;
        if (due <= now)
            tunnel_cut(t);
        else
            uv_timer_start(timer, timer_fired, due - now, 0);
    } else {
        watch(t);
    }
}

static void poll_arm(struct tunnel *t, uv_poll_t *poll, int *armed, int want, uv_poll_cb cb)
{
    if (*armed == want)
        return;
    if (want)
        uv_poll_start(poll, want, cb);
    else
        uv_poll_stop(poll);
    *armed = want;
}

static int wire_wants(const struct tunnel *t)
{
    bool reads = !t->wire_ended && t->state != T_CONNECTING && (t->state == T_LINGER || wire_has_room(t));
    bool writes = t->state == T_CONNECTING || wire_pending(t);
    return (reads ? UV_READABLE : 0) | (writes ? UV_WRITABLE : 0);
}

static int pair_wants(const struct tunnel *t)
{
    bool reads = !t->up_ended && t->up.at == t->up.len && !t->wire_lost;
    bool writes = t->down.at != t->down.len;
    return (reads ? UV_READABLE : 0) | (writes ? UV_WRITABLE : 0) | (t->owner_gone ? 0 : UV_PRIORITIZED);
}

void tunnel_arm(struct tunnel *t)
{
    if (t->state == T_CLOSING)
        return;
    poll_arm(t, &t->wire_poll, &t->wire_armed, wire_wants(t), wire_ready);
    if (t->pair_fd >= 0)
        poll_arm(t, &t->pair_poll, &t->pair_armed, pair_wants(t), pair_ready);
    if (t->state == T_OPEN && wire_is_busy(t) && !uv_is_active((uv_handle_t *)&t->timer)) {
        t->looked_at = uv_now(t->host->config.loop);
        t->waits_since = t->looked_at;
        uv_timer_start(&t->timer, timer_fired, wire_watch_ms(t), 0);
    }
}

/* ---- opening ---- */

err_t tunnel_new(struct tunnel_host *host, int fd, const struct sockaddr_storage *from, enum tunnel_role role,
                 struct tunnel **ret)
{
    struct tunnel *t = calloc(1, sizeof(*t));
    err_t err = ERR_NOMEM;
    if (!t)
        goto fail_alloc;
    t->host = host;
    t->lost_ms = TUNNEL_LOST_MS;
    t->role = role;
    t->wire_fd = fd;
    t->pair_fd = -1;
    t->from = *from;
    t->rekey_bytes = REKEY_BYTES;
    address_print(from, t->peer.address, sizeof(t->peer.address));
    err = tls_start(t);
    if (err)
        goto fail_tls;
    int status = uv_poll_init(host->config.loop, &t->wire_poll, fd);
    if (status < 0) {
        err = err_from_errno(-status);
        goto fail_poll;
    }
    uv_timer_init(host->config.loop, &t->timer);
    t->wire_poll.data = t->timer.data = t;
    t->open_handles = 2;
    TAILQ_INSERT_TAIL(&host->tunnels, t, link);
    host->all++;
    *ret = t;
    return OK;
fail_poll:
    tls_end(t);
fail_tls:
    free(t);
fail_alloc:
    close(fd);
    return err;
}

void tunnel_begin(struct tunnel *t, enum tunnel_state state, uint64_t deadline_ms)
{
    t->state = state;
    if (t->request)
        psk_identity_print(t->peer.key, t->host->name, t->identity);
    uv_timer_start(&t->timer, timer_fired, deadline_ms, 0);
    tunnel_arm(t);
}

void tunnel_feed(struct tunnel *t, const uint8_t *data, size_t len)
{
    size_t room = BIO_ctrl_get_write_guarantee(t->wire);
    if (t->state >= T_OPEN || !len || room < len)
        return;
    BIO_write(t->wire, data, (int)len);
    wire_received(t, data, len);
    run_until_open(t);
}
