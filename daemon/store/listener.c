/* See gate.h. All handles are counted, and the last one to be closed says so: whoever opens one counts it, so that an
 * opening that fails half way ends by the same path. */
#include "daemon/store/listener.h"

#include "common/base/log.h"
#include "daemon/store/peer_uid.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 64 /* the loop's other work waits no longer */
#define REST_MS 100
#define PORT_TRIES 16 /* for one that is free for both families */
#define KEEPALIVE_S 30

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

/* Returns 0, or a negative errno: -EADDRINUSE also when the port is free for one family alone. */
static int open_both(struct store_listener *g, uint16_t port)
{
    int v4 = open_listener(AF_INET, port);
    if (v4 < 0)
        return v4;
    g->port = port_of(v4);
    int v6 = open_listener(AF_INET6, g->port);
    if (v6 == -EADDRINUSE) {
        close(v4);
        return v6;
    }
    g->fds[0] = v4;
    g->fds[1] = v6 < 0 ? -1 : v6; /* no IPv6 here */
    return 0;
}

static err_t take_port(struct store_listener *g, uint16_t port, struct why *why)
{
    int r = open_both(g, port);
    for (int i = 1; r == -EADDRINUSE && !port && i < PORT_TRIES; i++)
        r = open_both(g, port);
    if (!r)
        return OK;
    return why_set(why, r == -EADDRINUSE ? ERR_BUSY : err_from_errno(-r), "store %s: port %u of 127.0.0.1 and ::1: %s",
                   g->name, port, strerror(-r));
}

/* ---- callers ---- */

static void resume(struct store_listener *g);

static void rested(uv_timer_t *timer)
{
    resume(timer->data);
}

static void pause_all(struct store_listener *g)
{
    for (int i = 0; i < STORE_LISTENER_SOCKETS; i++)
        if (g->fds[i] >= 0)
            uv_poll_stop(&g->polls[i]);
}

static void accept_failed(struct store_listener *g, int errnum)
{
    if (errnum == EAGAIN || errnum == EINTR || errnum == ECONNABORTED)
        return;
    log_error("store accepts nobody for a moment store=%s why=\"%s\" ms=%d", g->name, strerror(errnum), REST_MS);
    pause_all(g);
    uv_timer_start(&g->rest, rested, REST_MS, 0);
}

static bool is_welcome(struct store_listener *g, int fd)
{
    uid_t uid = (uid_t)-1;
    err_t err = peer_uid_get(g->netlink, fd, &uid);
    if (!err && (uid == g->uid || uid == 0))
        return true;
    g->refused++;
    if (err)
        log_warn("store connection closed store=%s why=\"whose it is is not known: %s\"", g->name, err_text(err));
    else
        log_warn("store connection closed store=%s uid=%d why=\"of another user than %d\"", g->name, (int)uid,
                 (int)g->uid);
    return false;
}

bool store_listener_is_full(const struct store_listener *g)
{
    return g->connections >= g->max_connections;
}

/* True: nobody more comes in until somebody leaves. */
static bool is_shut(struct store_listener *g)
{
    if (!store_listener_is_full(g))
        return false;
    if (!g->full)
        log_warn("store accepts nobody until somebody leaves store=%s connections=%d", g->name, g->connections);
    g->full = true;
    pause_all(g);
    return true;
}

static void called(uv_poll_t *poll, int status, int events)
{
    struct store_listener *g = poll->data;
    (void)status, (void)events; /* accept4 says it better */
    for (int i = 0; i < ACCEPTS_PER_TURN && !g->closing && !is_shut(g); i++) {
        int fd = accept4(poll == &g->polls[0] ? g->fds[0] : g->fds[1], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(g, errno);
            return;
        }
        if (is_welcome(g, fd))
            g->admit(g->owner, fd);
        else
            close(fd);
    }
}

static void resume(struct store_listener *g)
{
    for (int i = 0; i < STORE_LISTENER_SOCKETS; i++)
        if (g->fds[i] >= 0)
            uv_poll_start(&g->polls[i], UV_READABLE, called);
}

void store_listener_connection_closed(struct store_listener *g)
{
    g->connections--;
    if (!g->full || g->closing)
        return;
    g->full = false;
    resume(g);
}

/* ---- life ---- */

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

static err_t listen_start(struct store_listener *g)
{
    for (int i = 0; i < STORE_LISTENER_SOCKETS; i++) {
        if (g->fds[i] < 0)
            continue;
        int status = uv_poll_init(g->loop, &g->polls[i], g->fds[i]);
        if (status < 0)
            return err_from_errno(-status);
        g->polls[i].data = g;
        g->open_handles++;
    }
    resume(g);
    return OK;
}

err_t store_listener_open(struct store_listener *g, const struct store_listener_config *config, struct why *why)
{
    *g = (struct store_listener){.loop = config->loop,
                                 .uid = config->uid,
                                 .max_connections = connections_that_fit(config->max_connections),
                                 .netlink = -1,
                                 .fds = {-1, -1},
                                 .open_handles = 1,
                                 .admit = config->admit,
                                 .closed = config->closed,
                                 .owner = config->owner};
    snprintf(g->name, sizeof(g->name), "%s", config->name ? config->name : "");
    uv_timer_init(g->loop, &g->rest);
    g->rest.data = g;
    err_t err = peer_uid_open(&g->netlink, why);
    if (!err)
        err = take_port(g, config->port, why);
    return err ? err : listen_start(g);
}

static void handle_closed(uv_handle_t *handle)
{
    struct store_listener *g = handle->data;
    if (--g->open_handles)
        return;
    if (g->netlink >= 0)
        close(g->netlink);
    g->closed(g->owner);
}

void store_listener_close(struct store_listener *g)
{
    assert(!g->closing);
    g->closing = true;
    for (int i = 0; i < STORE_LISTENER_SOCKETS; i++) {
        if (g->fds[i] < 0)
            continue;
        if (g->polls[i].data)
            uv_close((uv_handle_t *)&g->polls[i], handle_closed);
        close(g->fds[i]);
    }
    uv_close((uv_handle_t *)&g->rest, handle_closed);
}
