/* The listener of a store or of a relay to one: a port on 127.0.0.1 and, where IPv6 exists, on ::1, to which one user
 * and root may connect. The kernel names the user of each peer (peer_uid.h), which is checked before a byte is read
 * from the connection. While the process has no descriptor left, or the owner has its maximum of connections, new
 * connections wait in the backlog. Socket options are set on the listening sockets, because on Linux accepted sockets
 * inherit them.
 *
 * Runs on the loop's thread. Embedded in its owner. */
#ifndef DTD_DAEMON_STORE_LISTENER_H
#define DTD_DAEMON_STORE_LISTENER_H

#include "common/base/err.h"
#include "common/base/log_limit.h"
#include "common/loop/acceptor.h"

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#define STORE_LISTENER_SOCKETS ACCEPTOR_SOCKETS_MAX /* 127.0.0.1 and ::1 */
#define STORE_LISTENER_NAME_MAX 95
#define STORE_STALL_MS 60000        /* the kernel drops a peer that acknowledges or reads nothing for this long */
#define STORE_SPARE_DESCRIPTORS 128 /* left for the rest of the process when max_connections is not configured */

struct store_listener_config {
    uv_loop_t *loop;
    const char *name;                   /* in log lines; copied, at most STORE_LISTENER_NAME_MAX bytes */
    uid_t uid;                          /* the user who may connect, in addition to root */
    uint16_t port;                      /* 0: any free port */
    int max_connections;                /* 0: derived from the limit of descriptors */
    struct shares *shares;              /* of descriptors; NULL: the user has no share of his own */
    int64_t max_user;                   /* connections of the user to all listeners with these shares */
    void (*admit)(void *owner, int fd); /* a connection of a permitted user; the callback owns the descriptor */
    void (*closed)(void *owner);        /* the listener's memory may be freed */
    void *owner;
};

struct store_listener {
    uv_loop_t *loop;
    char name[STORE_LISTENER_NAME_MAX + 1];
    uid_t uid;
    uint16_t port;
    int connections, max_connections; /* the owner increments `connections` for each connection that it keeps */
    uint64_t refused;                 /* connections of other users, and those whose user could not be determined */
    struct log_limit lines;           /* about these, and about connections that broke the protocol */
    int netlink;
    int fds[STORE_LISTENER_SOCKETS]; /* -1: none */
    struct acceptor acceptor;
    bool closing, full;
    struct shares *shares;
    int64_t max_user;
    void (*admit)(void *owner, int fd);
    void (*closed)(void *owner);
    void *owner;
};

/* Listens when it returns. ERR_UNSUPPORTED: the kernel cannot report the user of a peer. ERR_BUSY: the port is in use.
 * The listener must be closed after an error, too. */
NODISCARD err_t store_listener_open(struct store_listener *l, const struct store_listener_config *config,
                                    struct why *why);
bool store_listener_is_full(const struct store_listener *l);
/* Counts one more connection of the listener's user in the shares. False: he has all that he may have. For each
 * connection that was counted the owner calls store_listener_connection_closed or, if it has not incremented
 * `connections`, store_listener_connection_failed. */
bool store_listener_count(struct store_listener *l);
void store_listener_connection_failed(struct store_listener *l);
/* The owner has closed a connection: decrements `connections` and accepts again if the listener was full. */
void store_listener_connection_closed(struct store_listener *l);
/* `closed` is called later, once. */
void store_listener_close(struct store_listener *l);
/* Sets the options that accepted connections have on a socket of other origin. A socket that is not TCP has none of
 * them and needs none. */
void store_socket_options(int fd);

#endif
