/* The server's and the client's side of Unix sockets. The listener reads the credentials of each peer from the kernel
 * before it reads a byte from the connection. */
#include "common/base/log.h"
#include "common/loop/acceptor.h"
#include "common/rpc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 16 /* each one allocates a connection with a buffer of 64 KiB */

struct rpc_listener {
    struct acceptor acceptor;
    rpc_accept_cb cb;
    void *owner;
};

static void connection_accepted(void *owner, int fd, const struct sockaddr_storage *from)
{
    (void)from;
    struct rpc_listener *l = owner;
    struct rpc_peer peer;
    rpc_peer_of(fd, &peer);
    l->cb(l->owner, fd, &peer);
}

void rpc_listener_close(struct rpc_listener *listener)
{
    acceptor_close(&listener->acceptor, free);
}

err_t rpc_listen(uv_loop_t *loop, int fd, rpc_accept_cb cb, void *owner, struct rpc_listener **ret)
{
    struct rpc_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return ERR_NOMEM;
    l->cb = cb;
    l->owner = owner;
    const struct acceptor_config config = {
        .loop = loop, .name = "rpc", .accepts_per_turn = ACCEPTS_PER_TURN, .accepted = connection_accepted, .owner = l};
    acceptor_init(&l->acceptor, &config);
    err_t err = acceptor_add(&l->acceptor, fd);
    if (err) {
        log_error("cannot listen server=rpc error=\"%s\"", err_text(err));
        rpc_listener_close(l);
        return err;
    }
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
