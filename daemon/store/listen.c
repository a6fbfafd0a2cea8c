/* Who may come in. The socket's options are set on the listeners, from which Linux's accepted sockets have them. A
 * caller is looked up before a byte of it is read. With no descriptor or no place left listening rests: callers wait in
 * the backlog, and try again by themselves. */
#include "common/base/log.h"
#include "daemon/store/caller.h"
#include "daemon/store/server_in.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
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

/* What is not TCP has none of them, and needs none. */
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
static int open_both(struct store_server *s, uint16_t port)
{
    int v4 = open_listener(AF_INET, port);
    if (v4 < 0)
        return v4;
    s->port = port_of(v4);
    int v6 = open_listener(AF_INET6, s->port);
    if (v6 == -EADDRINUSE) {
        close(v4);
        return v6;
    }
    s->listener_fds[0] = v4;
    s->listener_fds[1] = v6 < 0 ? -1 : v6; /* no IPv6 here */
    return 0;
}

err_t store_listen(struct store_server *s, uint16_t port, struct why *why)
{
    int r = open_both(s, port);
    for (int i = 1; r == -EADDRINUSE && !port && i < PORT_TRIES; i++)
        r = open_both(s, port);
    if (!r)
        return OK;
    return why_set(why, r == -EADDRINUSE ? ERR_BUSY : err_from_errno(-r), "store %s: port %u of 127.0.0.1 and ::1: %s",
                   s->name, port, strerror(-r));
}

/* ---- callers ---- */

static void resume(struct store_server *s);

static void rested(uv_timer_t *timer)
{
    resume(timer->data);
}

static void pause_all(struct store_server *s)
{
    for (int i = 0; i < STORE_LISTENERS; i++)
        if (s->listener_fds[i] >= 0)
            uv_poll_stop(&s->listeners[i]);
}

static void accept_failed(struct store_server *s, int errnum)
{
    if (errnum == EAGAIN || errnum == EINTR || errnum == ECONNABORTED)
        return;
    log_error("store accepts nobody for a moment store=%s why=\"%s\" ms=%d", s->name, strerror(errnum), REST_MS);
    pause_all(s);
    uv_timer_start(&s->rest, rested, REST_MS, 0);
}

static bool is_welcome(struct store_server *s, int fd)
{
    uid_t uid = (uid_t)-1;
    err_t err = caller_uid(s->netlink, fd, &uid);
    if (!err && (uid == s->uid || uid == 0))
        return true;
    s->stats.refused++;
    if (err)
        log_warn("store connection closed store=%s why=\"whose it is is not known: %s\"", s->name, err_text(err));
    else
        log_warn("store connection closed store=%s uid=%d why=\"of another user than %d\"", s->name, (int)uid,
                 (int)s->uid);
    return false;
}

static void admit(struct store_server *s, int fd)
{
    if (!is_welcome(s, fd)) {
        close(fd);
        return;
    }
    err_t err = client_open(s, fd);
    if (err)
        log_error("store connection closed store=%s why=\"%s\"", s->name, err_text(err));
}

static bool is_full(struct store_server *s)
{
    if (s->stats.connections < s->max_connections)
        return false;
    if (!s->full)
        log_warn("store accepts nobody until somebody leaves store=%s connections=%d", s->name, s->stats.connections);
    s->full = true;
    pause_all(s);
    return true;
}

static void called(uv_poll_t *poll, int status, int events)
{
    struct store_server *s = poll->data;
    (void)status, (void)events; /* accept4 says it better */
    for (int i = 0; i < ACCEPTS_PER_TURN && !s->closing && !is_full(s); i++) {
        int fd = accept4(poll == &s->listeners[0] ? s->listener_fds[0] : s->listener_fds[1], NULL, NULL,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(s, errno);
            return;
        }
        admit(s, fd);
    }
}

static void resume(struct store_server *s)
{
    for (int i = 0; i < STORE_LISTENERS; i++)
        if (s->listener_fds[i] >= 0)
            uv_poll_start(&s->listeners[i], UV_READABLE, called);
}

void store_listen_resume(struct store_server *s)
{
    if (!s->full || s->closing)
        return;
    s->full = false;
    resume(s);
}

err_t store_listen_start(struct store_server *s)
{
    for (int i = 0; i < STORE_LISTENERS; i++) {
        if (s->listener_fds[i] < 0)
            continue;
        int status = uv_poll_init(s->loop, &s->listeners[i], s->listener_fds[i]);
        if (status < 0)
            return err_from_errno(-status);
        s->listeners[i].data = s;
        s->open_handles++;
    }
    resume(s);
    return OK;
}

void store_listen_stop(struct store_server *s)
{
    for (int i = 0; i < STORE_LISTENERS; i++) {
        if (s->listener_fds[i] < 0)
            continue;
        if (s->listeners[i].data)
            uv_close((uv_handle_t *)&s->listeners[i], store_server_handle_closed);
        close(s->listener_fds[i]);
    }
}
