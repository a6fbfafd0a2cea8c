/* See listener.h. An opening that fails half way is undone by store_listener_close, like a complete one. */
#include "daemon/store/listener.h"

#include "common/base/log.h"
#include "common/base/shares.h"
#include "daemon/store/peer_uid.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 64 /* all ranks of a job connect at once, and an accepted connection costs little */
#define PORT_TRIES 16       /* a free port of IPv4 may be in use for IPv6; 16 such ports in a row are unlikely */
#define KEEPALIVE_S 30 /* between probes of an idle connection; STORE_STALL_MS limits how long they go unanswered */

/* ---- sockets ---- */

static void option(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof(value)))
        log_debug("store socket option not set option=%d why=\"%s\"", name, strerror(errno));
}

void store_socket_options(int fd)
{
    option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S);
    option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S);
    option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, STORE_STALL_MS);
}

static void address_of(int family, uint16_t port, struct sockaddr_in6 *ret, socklen_t *ret_len)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    *ret = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback};
    *ret_len = family == AF_INET ? sizeof(v4) : sizeof(*ret);
    if (family == AF_INET)
        memcpy(ret, &v4, sizeof(v4));
}

static int open_listener(int family, uint16_t port)
{
    struct sockaddr_in6 addr;
    socklen_t len;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    address_of(family, port, &addr, &len);
    option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6)
        option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    store_socket_options(fd);
    if (bind(fd, (struct sockaddr *)&addr, len) || listen(fd, SOMAXCONN)) {
        int errnum = errno;
        close(fd);
        return -errnum;
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in6 addr = {.sin6_port = 0};
    socklen_t len = sizeof(addr);
    return getsockname(fd, (struct sockaddr *)&addr, &len) ? 0 : ntohs(addr.sin6_port);
}

/* Returns 0 or a negative errno. -EADDRINUSE also means that the port is free for only one of the two families. */
static int open_both(struct store_listener *l, uint16_t port)
{
    int v4 = open_listener(AF_INET, port);
    if (v4 < 0)
        return v4;
    l->port = port_of(v4);
    int v6 = open_listener(AF_INET6, l->port);
    if (v6 == -EADDRINUSE) {
        close(v4);
        return v6;
    }
    l->fds[0] = v4;
    l->fds[1] = v6 < 0 ? -1 : v6; /* -1: this machine has no IPv6 */
    return 0;
}

static err_t take_port(struct store_listener *l, uint16_t port, struct why *why)
{
    int r = open_both(l, port);
    for (int i = 1; r == -EADDRINUSE && !port && i < PORT_TRIES; i++)
        r = open_both(l, port);
    if (!r)
        return OK;
    return why_set(why, r == -EADDRINUSE ? ERR_BUSY : err_from_errno(-r), "store %s: port %u of 127.0.0.1 and ::1: %s",
                   l->name, port, strerror(-r));
}

/* ---- connections ---- */

static bool is_permitted(struct store_listener *l, int fd)
{
    uid_t uid = (uid_t)-1;
    err_t err = peer_uid_get(l->netlink, fd, &uid);
    if (!err && (uid == l->uid || uid == 0))
        return true;
    l->refused++;
    if (!log_limit_line(&l->lines, "store connections closed"))
        return false;
    if (err)
        log_warn("store connection closed store=%s why=\"the user of the peer is unknown: %s\"", l->name,
                 err_text(err));
    else
        log_warn("store connection closed store=%s uid=%d why=\"only uid %d and root may connect\"", l->name, (int)uid,
                 (int)l->uid);
    return false;
}

bool store_listener_is_full(const struct store_listener *l)
{
    return l->connections >= l->max_connections;
}

static bool may_accept(void *owner)
{
    struct store_listener *l = owner;
    if (!store_listener_is_full(l))
        return true;
    if (!l->full)
        log_warn("store is full, new connections wait store=%s connections=%d", l->name, l->connections);
    l->full = true;
    return false;
}

bool store_listener_count(struct store_listener *l)
{
    if (!l->shares || shares_take(l->shares, (uint32_t)l->uid, l->max_user))
        return true;
    if (log_limit_line(&l->lines, "store connections closed"))
        log_warn("store connection closed store=%s uid=%d why=\"the user has %" PRId64
                 " connections to stores (users.store_connections), or as many as are left for others\"",
                 l->name, (int)l->uid, shares_of(l->shares, (uint32_t)l->uid));
    return false;
}

void store_listener_connection_failed(struct store_listener *l)
{
    if (l->shares)
        shares_give(l->shares, (uint32_t)l->uid);
}

static void connection_accepted(void *owner, int fd, const struct sockaddr_storage *from)
{
    (void)from;
    struct store_listener *l = owner;
    if (is_permitted(l, fd) && store_listener_count(l))
        l->admit(l->owner, fd);
    else
        close(fd);
}

void store_listener_connection_closed(struct store_listener *l)
{
    l->connections--;
    store_listener_connection_failed(l);
    if (!l->full || l->closing)
        return;
    l->full = false;
    acceptor_resume(&l->acceptor);
}

/* ---- opening and closing ---- */

static int connections_that_fit(int configured)
{
    struct rlimit limit;
    if (configured > 0)
        return configured;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > (1u << 20))
        return 1 << 20;
    return limit.rlim_cur > 2 * STORE_SPARE_DESCRIPTORS ? (int)limit.rlim_cur - STORE_SPARE_DESCRIPTORS
                                                        : (int)limit.rlim_cur / 2;
}

static err_t accept_start(struct store_listener *l)
{
    err_t err = OK;
    for (int i = 0; i < STORE_LISTENER_SOCKETS && !err; i++)
        err = l->fds[i] >= 0 ? acceptor_add(&l->acceptor, l->fds[i]) : OK;
    return err;
}

err_t store_listener_open(struct store_listener *l, const struct store_listener_config *config, struct why *why)
{
    *l = (struct store_listener){.loop = config->loop,
                                 .uid = config->uid,
                                 .max_connections = connections_that_fit(config->max_connections),
                                 .shares = config->shares,
                                 .max_user = config->max_user,
                                 .netlink = -1,
                                 .fds = {-1, -1},
                                 .admit = config->admit,
                                 .closed = config->closed,
                                 .owner = config->owner};
    snprintf(l->name, sizeof(l->name), "%s", config->name ? config->name : "");
    const struct acceptor_config accepting = {.loop = l->loop,
                                              .name = l->name,
                                              .accepts_per_turn = ACCEPTS_PER_TURN,
                                              .may_accept = may_accept,
                                              .accepted = connection_accepted,
                                              .owner = l};
    acceptor_init(&l->acceptor, &accepting);
    err_t err = peer_uid_open(&l->netlink, why);
    if (!err)
        err = take_port(l, config->port, why);
    return err ? err : accept_start(l);
}

static void acceptor_closed(void *owner)
{
    struct store_listener *l = owner;
    if (l->netlink >= 0)
        close(l->netlink);
    l->closed(l->owner);
}

void store_listener_close(struct store_listener *l)
{
    assert(!l->closing);
    l->closing = true;
    acceptor_close(&l->acceptor, acceptor_closed);
    for (int i = 0; i < STORE_LISTENER_SOCKETS; i++)
        if (l->fds[i] >= 0)
            close(l->fds[i]);
}
