/* Connecting: resolve, dial the addresses in turn, twice if need be, handshake, greeting.
 *
 *   request_start -> [resolved] -> dial_next -> (tunnel: CONNECTING) -> failed: dial_next
 *                                                                    -> connected: handshake .. -> request_finish
 *   timer, cancel -> request_finish -> (timer closed) -> callback, freed
 *
 * Numeric addresses are not resolved: that would wait for a thread of libuv's pool, which may be busy with files. A
 * resolution that already runs cannot be stopped; its memory is separate and outlives the request. */
#include "common/tunnel/internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_MS 250 /* more than the round trip of any site, and as long as browsers wait (RFC 8305) */

struct resolve {
    uv_getaddrinfo_t req;
    struct tunnel_request *request; /* NULL: the request has ended */
};

/* ---- ending a request ---- */

static void timer_closed(uv_handle_t *handle)
{
    struct tunnel_request *r = handle->data;
    struct tunnel_host *host = r->host;
    bool ok = r->err == OK;
    TAILQ_REMOVE(&host->requests, r, link);
    r->cb(r->owner, r->err, r->why.text, ok ? &r->peer : NULL, r->fd);
    free(r);
    host_maybe_closed(host);
}

void request_finish(struct tunnel_request *r, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    if (r->finished)
        return;
    r->finished = true;
    r->err = err;
    r->fd = fd;
    if (peer)
        r->peer = *peer;
    snprintf(r->why.text, sizeof(r->why.text), "%s", why);
    if (r->tunnel && err) {
        r->tunnel->request = NULL;
        tunnel_cut(r->tunnel);
    }
    r->tunnel = NULL;
    if (r->resolve) {
        r->resolve->request = NULL;
        uv_cancel((uv_req_t *)&r->resolve->req);
    }
    uv_close((uv_handle_t *)&r->timer, timer_closed);
}

void tunnel_connect_cancel(struct tunnel_request *r)
{
    static const char text[] = "canceled";
    if (r->finished && r->err == OK) { /* the tunnel is open, but the callback has not been called */
        close(r->fd);
        r->fd = -1;
        r->err = ERR_CANCELED;
        snprintf(r->why.text, sizeof(r->why.text), "%s", text);
    }
    request_finish(r, ERR_CANCELED, text, NULL, -1);
}

static void finish_at(struct tunnel_request *r, err_t err, const char *what)
{
    struct why why;
    why_set(&why, err, "%s: %s", r->address_text, what);
    request_finish(r, err, why.text, NULL, -1);
}

static void timed_out(uv_timer_t *timer)
{
    struct tunnel_request *r = timer->data;
    bool hello = r->tunnel && r->tunnel->state > T_CONNECTING;
    finish_at(r, ERR_TIMEOUT,
              r->resolve ? "the name was not resolved in time"
              : hello    ? "the peer accepted the connection but did not complete the handshake in time"
                         : "no answer in time: is the node up, and is the port open?");
}

/* ---- dialing ---- */

static err_t dial(struct tunnel_request *r, const struct sockaddr_storage *to, uint64_t ms)
{
    socklen_t len = to->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_from_errno(errno);
    wire_set_options(fd, r->lost_ms);
    if (connect(fd, (const struct sockaddr *)to, len) && errno != EINPROGRESS) {
        err_t err = err_from_errno(errno);
        close(fd);
        return err;
    }
    err_t err = tunnel_new(r->host, fd, to, ROLE_CONNECT, &r->tunnel);
    if (err)
        return err;
    r->tunnel->request = r;
    r->tunnel->lost_ms = r->lost_ms;
    r->tunnel->one_way = r->one_way;
    r->tunnel->peer.key = r->key;
    tunnel_begin(r->tunnel, T_CONNECTING, ms);
    return OK;
}

/* The second round has the addresses that did not answer in the first; the others have refused. */
static void keep_silent(struct tunnel_request *r, err_t err)
{
    if (!r->is_patient && err == ERR_TIMEOUT)
        r->to[r->n_silent++] = r->to[r->at - 1];
}

static bool begin_second_round(struct tunnel_request *r)
{
    if (r->is_patient || !r->n_silent)
        return false;
    r->is_patient = true;
    r->n_to = r->n_silent;
    r->at = 0;
    return true;
}

/* In the first round an address has FIRST_MS, so that a dead network of a node delays no more than that; in the second
 * one, for networks that are slower, an equal share of the remaining time. */
static uint64_t time_of(const struct tunnel_request *r, uint64_t left)
{
    uint64_t share = left / (uint64_t)(r->n_to - r->at);
    if (!r->is_patient && r->n_to > 1 && share > FIRST_MS)
        share = FIRST_MS;
    return share ? share : 1;
}

static void dial_next(struct tunnel_request *r)
{
    uint64_t now = uv_now(r->host->config.loop), left = r->due > now ? r->due - now : 0;
    while (r->at < r->n_to || begin_second_round(r)) {
        const struct sockaddr_storage *to = &r->to[r->at];
        uint64_t share = time_of(r, left);
        r->at++;
        r->err = dial(r, to, share);
        if (!r->err)
            return;
        why_set(&r->why, r->err, "%s", err_text(r->err));
    }
    struct why last = r->why;
    finish_at(r, r->err, last.text);
}

void request_dial_failed(struct tunnel_request *r, err_t err, const char *why)
{
    r->tunnel = NULL;
    r->err = err;
    why_set(&r->why, err, "%s", why);
    keep_silent(r, err);
    dial_next(r);
}

static void resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct resolve *resolve = (struct resolve *)(void *)((char *)req - offsetof(struct resolve, req));
    struct tunnel_request *r = resolve->request;
    free(resolve);
    if (r) {
        r->resolve = NULL;
        for (const struct addrinfo *a = list; a && r->n_to < REQUEST_ADDRESSES_MAX; a = a->ai_next)
            if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) && a->ai_addrlen <= sizeof(r->to[0]))
                memcpy(&r->to[r->n_to++], a->ai_addr, a->ai_addrlen);
        if (status < 0 || !r->n_to)
            finish_at(r, ERR_NOTFOUND, status < 0 ? uv_strerror(status) : "the name has no address");
        else
            dial_next(r);
    }
    uv_freeaddrinfo(list);
}

static void resolve(struct tunnel_request *r)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC, .ai_flags = AI_NUMERICSERV};
    char port[8];
    snprintf(port, sizeof(port), "%d", r->address.port);
    r->resolve = calloc(1, sizeof(*r->resolve));
    int status = UV_ENOMEM;
    if (r->resolve) {
        r->resolve->request = r;
        status = uv_getaddrinfo(r->host->config.loop, &r->resolve->req, resolved, r->address.host, port, &hints);
    }
    if (status < 0) {
        free(r->resolve);
        r->resolve = NULL;
        finish_at(r, err_from_errno(-status), uv_strerror(status));
    }
}

static void request_start(uv_timer_t *timer)
{
    struct tunnel_request *r = timer->data;
    uint64_t now = uv_now(r->host->config.loop);
    socklen_t len;
    uv_timer_start(&r->timer, timed_out, r->due > now ? r->due - now : 0, 0);
    err_t err = address_numeric(&r->address, &r->to[0], &len);
    if (err == ERR_NOTFOUND) {
        resolve(r);
    } else if (err) {
        finish_at(r, ERR_INVALID, "the text in brackets is not an IPv6 address");
    } else {
        r->n_to = 1;
        dial_next(r);
    }
}

/* ---- starting a request ---- */

static err_t request_fill(struct tunnel_request *r, const struct tunnel_connect_config *c, struct why *why)
{
    const char *argument = c->argument ? c->argument : "", *expected = c->expected ? c->expected : "";
    err_t err = address_parse(c->address, &r->address, why);
    if (err)
        return err;
    if (!r->address.port)
        return why_set(why, ERR_INVALID, "%s: cannot connect to port 0", c->address);
    if (expected[0] && !node_name_valid(expected, strlen(expected)))
        return why_set(why, ERR_INVALID, "the expected node name is not a valid node name");
    if (!greeting_argument_valid(argument, strlen(argument)))
        return why_set(why, ERR_INVALID, "a tunnel's argument has at most %d visible characters", TUNNEL_ARGUMENT_MAX);
    if (c->purpose < TUNNEL_RPC || c->purpose > TUNNEL_STORE ||
        (c->key.kind == TUNNEL_KEY_JOIN && c->purpose != TUNNEL_JOIN))
        return why_set(why, ERR_INVALID, "a join token can only open a tunnel for joining");
    snprintf(r->address_text, sizeof(r->address_text), "%s", c->address);
    strcpy(r->expected, expected);
    strcpy(r->argument, argument);
    r->key = c->key;
    r->purpose = c->purpose;
    return OK;
}

err_t tunnel_connect(struct tunnel_host *host, const struct tunnel_connect_config *config, tunnel_connect_cb cb,
                     void *owner, struct tunnel_request **ret, struct why *why)
{
    if (host->closing)
        return why_set(why, ERR_CLOSED, "this node's tunnels are being closed");
    if (host->all >= TUNNEL_TUNNELS_MAX)
        return why_set(why, ERR_LIMIT, "%d tunnels are already open", TUNNEL_TUNNELS_MAX);
    struct tunnel_request *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = request_fill(r, config, why);
    if (err) {
        free(r);
        return err;
    }
    r->host = host;
    r->cb = cb;
    r->owner = owner;
    r->fd = -1;
    uv_update_time(host->config.loop);
    r->due = uv_now(host->config.loop) + (config->deadline_ms ? config->deadline_ms : TUNNEL_HANDSHAKE_MS);
    r->lost_ms = config->lost_ms ? config->lost_ms : TUNNEL_LOST_MS;
    r->one_way = config->one_way;
    uv_timer_init(host->config.loop, &r->timer);
    r->timer.data = r;
    uv_timer_start(&r->timer, request_start, 0, 0);
    TAILQ_INSERT_TAIL(&host->requests, r, link);
    *ret = r;
    return OK;
}
