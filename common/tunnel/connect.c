/* Connecting: resolve, dial the addresses in turn, twice if need be, handshake, greeting.
 *
 *   request_start -> go_on -> look_up -> [resolved, or too slow] -> go_on
 *                          -> dial -> (tunnel: CONNECTING) -> failed: go_on
 *                                                          -> connected: handshake .. -> request_finish
 *   timer, cancel -> request_finish -> (timer closed) -> callback, freed
 *
 * Numeric addresses are not resolved: that would wait for a thread of libuv's pool, which may be busy with files. A
 * name that is not resolved in FIRST_MS delays the next address of the list no longer; its sockets are tried when they
 * are known. A resolution that already runs cannot be stopped; its memory is separate and outlives the request. */
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
    int index;                      /* of the address */
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
    for (int i = 0; i < ADDRESSES_MAX; i++)
        if (r->resolves[i]) {
            r->resolves[i]->request = NULL;
            uv_cancel((uv_req_t *)&r->resolves[i]->req);
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

static int count_resolves(const struct tunnel_request *r)
{
    int n = 0;
    for (int i = 0; i < ADDRESSES_MAX; i++)
        n += r->resolves[i] != NULL;
    return n;
}

static uint64_t left_ms(const struct tunnel_request *r)
{
    uint64_t now = uv_now(r->host->config.loop);
    return r->due > now ? r->due - now : 0;
}

static void timed_out(uv_timer_t *timer)
{
    struct tunnel_request *r = timer->data;
    bool hello = r->tunnel && r->tunnel->state > T_CONNECTING;
    finish_at(r, ERR_TIMEOUT,
              !r->tunnel && count_resolves(r) ? "the name was not resolved in time"
              : hello ? "the peer accepted the connection but did not complete the handshake in time"
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
static uint64_t time_of(const struct tunnel_request *r)
{
    const int names = count_resolves(r);
    uint64_t share = left_ms(r) / (uint64_t)(r->n_to - r->at + names);
    if (!r->is_patient && (r->n_to > 1 || r->n_addresses > 1) && share > FIRST_MS)
        share = FIRST_MS;
    return share ? share : 1;
}

static bool dial_next(struct tunnel_request *r)
{
    uint64_t share = time_of(r);
    r->at++;
    r->err = dial(r, &r->to[r->at - 1], share);
    if (r->err)
        why_set(&r->why, r->err, "%s", err_text(r->err));
    return r->err == OK;
}

static void look_up(struct tunnel_request *r);

/* Tries all sockets of one address of the list, then those of the next one. */
static void go_on(struct tunnel_request *r)
{
    while (!r->finished) {
        if (r->at < r->n_to) {
            if (dial_next(r))
                return;
        } else if (r->looked_up < r->n_addresses) {
            look_up(r);
            if (r->waits)
                return;
        } else if (!begin_second_round(r)) {
            break;
        }
    }
    if (r->finished || count_resolves(r))
        return;
    struct why last = r->why;
    finish_at(r, r->err, last.text);
}

void request_dial_failed(struct tunnel_request *r, err_t err, const char *why)
{
    r->tunnel = NULL;
    r->err = err;
    why_set(&r->why, err, "%s", why);
    keep_silent(r, err);
    go_on(r);
}

/* ---- names ---- */

static void wait_no_longer(struct tunnel_request *r)
{
    r->waits = false;
    uv_timer_start(&r->timer, timed_out, left_ms(r), 0);
}

static void name_is_slow(uv_timer_t *timer)
{
    struct tunnel_request *r = timer->data;
    wait_no_longer(r);
    go_on(r);
}

static void take_sockets(struct tunnel_request *r, int status, const struct addrinfo *list)
{
    const int before = r->n_to;
    for (const struct addrinfo *a = list; a && r->n_to < REQUEST_ADDRESSES_MAX; a = a->ai_next)
        if ((a->ai_family == AF_INET || a->ai_family == AF_INET6) && a->ai_addrlen <= sizeof(r->to[0]))
            memcpy(&r->to[r->n_to++], a->ai_addr, a->ai_addrlen);
    if (r->n_to > before)
        return;
    r->err = ERR_NOTFOUND;
    why_set(&r->why, r->err, "%s", status < 0 ? uv_strerror(status) : "the name has no address");
}

static void resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct resolve *resolve = (struct resolve *)(void *)((char *)req - offsetof(struct resolve, req));
    struct tunnel_request *r = resolve->request;
    const int index = resolve->index;
    free(resolve);
    if (r) {
        r->resolves[index] = NULL;
        take_sockets(r, status, list);
        if (r->waits)
            wait_no_longer(r);
        if (!r->tunnel) /* else the sockets are tried when the present one fails */
            go_on(r);
    }
    uv_freeaddrinfo(list);
}

static void resolve(struct tunnel_request *r, int index)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC, .ai_flags = AI_NUMERICSERV};
    const struct address *a = &r->addresses[index];
    const uint64_t left = left_ms(r);
    char port[8];
    snprintf(port, sizeof(port), "%d", a->port);
    struct resolve *x = calloc(1, sizeof(*x));
    int status = UV_ENOMEM;
    if (x) {
        *x = (struct resolve){.request = r, .index = index};
        status = uv_getaddrinfo(r->host->config.loop, &x->req, resolved, a->host, port, &hints);
    }
    if (status < 0) {
        free(x);
        r->err = err_from_errno(-status);
        why_set(&r->why, r->err, "%s", uv_strerror(status));
        return;
    }
    r->resolves[index] = x;
    r->waits = true;
    if (r->looked_up < r->n_addresses && left > FIRST_MS)
        uv_timer_start(&r->timer, name_is_slow, FIRST_MS, 0);
}

static void look_up(struct tunnel_request *r)
{
    const int index = r->looked_up++;
    socklen_t len;
    struct sockaddr_storage to;
    err_t err = address_numeric(&r->addresses[index], &to, &len);
    if (err == ERR_NOTFOUND) {
        resolve(r, index);
    } else if (err) {
        r->err = ERR_INVALID;
        why_set(&r->why, r->err, "the text in brackets is not an IPv6 address");
    } else if (r->n_to < REQUEST_ADDRESSES_MAX) {
        r->to[r->n_to++] = to;
    }
}

static void request_start(uv_timer_t *timer)
{
    struct tunnel_request *r = timer->data;
    uv_timer_start(&r->timer, timed_out, left_ms(r), 0);
    go_on(r);
}

/* ---- starting a request ---- */

static err_t request_fill(struct tunnel_request *r, const struct tunnel_connect_config *c, struct why *why)
{
    const char *argument = c->argument ? c->argument : "", *expected = c->expected ? c->expected : "";
    err_t err = addresses_parse(c->address, r->addresses, &r->n_addresses, why);
    if (err)
        return err;
    for (int i = 0; i < r->n_addresses; i++)
        if (!r->addresses[i].port)
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
