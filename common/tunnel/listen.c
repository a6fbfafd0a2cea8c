/* Accepts connections. Until a peer has proved that it has a key, its connection costs a socket, a TLS state and a
 * timer. Therefore the number of pending connections is limited, in total and per remote address. At a limit a new
 * connection replaces the oldest pending one (of its own address, if that limit is reached). A peer with a key is
 * pending for only two round trips; a peer without one cannot block others for long. */
#include "common/base/log.h"
#include "common/tunnel/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 16 /* each one creates a TLS state */

/* ---- pending connections ---- */

void listener_forget(struct tunnel *t)
{
    struct tunnel_listener *l = t->listener;
    if (!l)
        return;
    TAILQ_REMOVE(&l->pending, t, pending_link);
    l->n_pending--;
    t->host->stats.pending--;
    t->listener = NULL;
}

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                      &((const struct sockaddr_in *)(const void *)b)->sin_addr, sizeof(struct in_addr)) == 0;
    if (a->ss_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    return true;
}

static void drop(struct tunnel *t, const char *why)
{
    t->host->stats.dropped++;
    host_log_refusal(t->host, t->peer.address, why);
    tunnel_cut(t);
}

/* Drops a pending connection if one more from this address would exceed a limit. */
static void make_room(struct tunnel_listener *l, const struct sockaddr_storage *from)
{
    struct tunnel *t, *oldest = NULL;
    int same = 0;
    TAILQ_FOREACH(t, &l->pending, pending_link)
    {
        if (!same_address(&t->from, from))
            continue;
        same++;
        oldest = oldest ? oldest : t;
    }
    if (same >= TUNNEL_PENDING_ADDRESS_MAX)
        drop(oldest, "dropped: too many unauthenticated connections from its address");
    else if (l->n_pending >= TUNNEL_PENDING_MAX)
        drop(TAILQ_FIRST(&l->pending), "dropped: too many unauthenticated connections");
}

struct tunnel *listener_take(struct tunnel_listener *l, int fd, const struct sockaddr_storage *from)
{
    struct tunnel *t;
    make_room(l, from);
    if (l->host->all >= TUNNEL_TUNNELS_MAX + TUNNEL_PENDING_MAX || tunnel_new(l->host, fd, from, ROLE_ACCEPT, &t)) {
        if (l->host->all >= TUNNEL_TUNNELS_MAX + TUNNEL_PENDING_MAX)
            close(fd);
        l->host->stats.dropped++;
        host_log_refusal(l->host, "?", "no room for another connection");
        return NULL;
    }
    t->listener = l;
    TAILQ_INSERT_TAIL(&l->pending, t, pending_link);
    l->n_pending++;
    l->host->stats.pending++;
    wire_set_options(fd, t->lost_ms);
    tunnel_begin(t, T_HANDSHAKE, TUNNEL_HANDSHAKE_MS);
    return t;
}

/* ---- the socket ---- */

static void connection_accepted(void *owner, int fd, const struct sockaddr_storage *from)
{
    listener_take(owner, fd, from);
}

static void acceptor_closed(void *owner)
{
    struct tunnel_listener *l = owner;
    struct tunnel_host *host = l->host;
    void (*closed)(void *) = l->closed;
    void *closed_owner = l->owner;
    TAILQ_REMOVE(&host->listeners, l, link);
    free(l);
    if (closed)
        closed(closed_owner);
    host_maybe_closed(host);
}

void tunnel_listener_close(struct tunnel_listener *l, void (*cb)(void *owner))
{
    if (l->closing)
        return;
    l->closing = true;
    l->closed = cb;
    while (!TAILQ_EMPTY(&l->pending))
        tunnel_cut(TAILQ_FIRST(&l->pending));
    acceptor_close(&l->acceptor, acceptor_closed);
}

err_t tunnel_listen(struct tunnel_host *host, int fd, tunnel_accept_cb cb, void *owner, struct tunnel_listener **ret)
{
    struct tunnel_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return ERR_NOMEM;
    *l = (struct tunnel_listener){.host = host, .cb = cb, .owner = owner};
    TAILQ_INIT(&l->pending);
    TAILQ_INSERT_TAIL(&host->listeners, l, link);
    const struct acceptor_config config = {.loop = host->config.loop,
                                           .name = "tunnel",
                                           .accepts_per_turn = ACCEPTS_PER_TURN,
                                           .accepted = connection_accepted,
                                           .owner = l};
    acceptor_init(&l->acceptor, &config);
    err_t err = acceptor_add(&l->acceptor, fd);
    if (err) {
        log_error("cannot listen server=tunnel error=\"%s\"", err_text(err));
        tunnel_listener_close(l, NULL);
        return err;
    }
    *ret = l;
    return OK;
}

err_t tunnel_bind(const char *address, int *ret_fd, struct why *why)
{
    struct address a;
    struct sockaddr_storage to;
    socklen_t len;
    int one = 1;
    err_t err = address_parse(address, &a, why);
    if (err)
        return err;
    if (address_numeric(&a, &to, &len))
        return why_set(why, ERR_INVALID,
                       "%s: a listening address must be a numeric address of this machine, for example 0.0.0.0:%d",
                       address, a.port);
    int fd = address_socket(&to, &len);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "cannot create a socket for %s: %s", address,
                       errno == EAFNOSUPPORT ? "this kernel has no IPv6; set an IPv4 address" : strerror(errno));
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) || bind(fd, (struct sockaddr *)&to, len) ||
        listen(fd, 128)) {
        err = why_set(why, errno == EADDRINUSE ? ERR_EXISTS : err_from_errno(errno), "cannot listen on %s: %s", address,
                      strerror(errno));
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return OK;
}
