/* Accepting on a socket that somebody else made and keeps. The kernel says who is calling before a byte is read. Out of
 * descriptors the backlog would wake the loop for ever: then listening rests for a moment. */
#include "common/base/log.h"
#include "common/rpc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 16 /* the loop's other work waits no longer */
#define REST_MS 100

struct rpc_listener {
    uv_poll_t poll;
    uv_timer_t rest;
    int open_handles, fd;
    bool closing;
    rpc_accept_cb cb;
    void *owner;
};

static void readable(uv_poll_t *poll, int status, int events);

static void rested(uv_timer_t *timer)
{
    struct rpc_listener *l = timer->data;
    uv_poll_start(&l->poll, UV_READABLE, readable);
}

static void accept_failed(struct rpc_listener *l, int errnum)
{
    if (errnum == EAGAIN || errnum == EINTR || errnum == ECONNABORTED)
        return;
    log_error("accept failed, listening rests why=\"%s\" ms=%d", strerror(errnum), REST_MS);
    uv_poll_stop(&l->poll);
    uv_timer_start(&l->rest, rested, REST_MS, 0);
}

static void readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events; /* accept4 says it better */
    struct rpc_listener *l = poll->data;
    for (int i = 0; i < ACCEPTS_PER_TURN && !l->closing; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            accept_failed(l, errno);
            return;
        }
        struct rpc_peer peer;
        rpc_peer_of(fd, &peer);
        l->cb(l->owner, fd, &peer);
    }
}

static void handle_closed(uv_handle_t *handle)
{
    struct rpc_listener *l = handle->data;
    if (!--l->open_handles)
        free(l);
}

void rpc_listener_close(struct rpc_listener *listener)
{
    listener->closing = true;
    uv_close((uv_handle_t *)&listener->poll, handle_closed);
    uv_close((uv_handle_t *)&listener->rest, handle_closed);
}

err_t rpc_listen(uv_loop_t *loop, int fd, rpc_accept_cb cb, void *owner, struct rpc_listener **ret)
{
    struct rpc_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return ERR_NOMEM;
    l->fd = fd;
    l->cb = cb;
    l->owner = owner;
    l->open_handles = 2;
    int status = uv_poll_init(loop, &l->poll, fd); /* sets O_NONBLOCK */
    if (status < 0) {
        log_error("cannot listen why=\"%s\"", uv_strerror(status));
        free(l);
        return rpc_err_from_uv(status);
    }
    uv_timer_init(loop, &l->rest);
    l->poll.data = l;
    l->rest.data = l;
    uv_poll_start(&l->poll, UV_READABLE, readable);
    *ret = l;
    return OK;
}

static err_t connect_unix(const char *path, int flags, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(addr.sun_path)) {
        log_error("socket path too long path=%s bytes=%zu max=%zu remedy=\"a shorter DTD_DIR\"", path, strlen(path),
                  sizeof(addr.sun_path) - 1);
        return ERR_LIMIT;
    }
    strcpy(addr.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        return err_from_errno(errno);
    int r;
    do {
        r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
    } while (r && errno == EINTR);
    if (r) {
        err_t err = err_from_errno(errno);
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return OK;
}

err_t rpc_connect_unix(const char *path, int *ret_fd)
{
    return connect_unix(path, 0, ret_fd);
}

err_t rpc_connect_unix_now(const char *path, int *ret_fd)
{
    return connect_unix(path, SOCK_NONBLOCK, ret_fd);
}
