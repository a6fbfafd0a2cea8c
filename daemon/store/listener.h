/* Who may come in: a port on 127.0.0.1 and, where there is IPv6, on ::1, that one user and root may connect to, whom
 * the kernel names. A store is behind it, or a relay to one. The socket's options are set on the listeners, from which
 * Linux's accepted sockets have them. A caller is looked up before a byte of it is read. With no descriptor left, or no
 * place, listening rests: callers wait in the backlog, and try again by themselves. One loop's thread; embedded in its
 * owner, whose memory it must not outlive. */
#ifndef DTD_DAEMON_STORE_LISTENER_H
#define DTD_DAEMON_STORE_LISTENER_H

#include "common/base/err.h"

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#define STORE_LISTENER_SOCKETS 2
#define STORE_LISTENER_NAME_MAX 95
#define STORE_STALL_MS 60000        /* a peer that acknowledges or takes nothing for so long is dropped by the kernel */
#define STORE_SPARE_DESCRIPTORS 128 /* of the process, kept for others when no number of connections is configured */

struct store_listener_config {
    uv_loop_t *loop;
    const char *name;                   /* in log lines; copied, at most STORE_LISTENER_NAME_MAX bytes */
    uid_t uid;                          /* who may come in, beside root */
    uint16_t port;                      /* 0: any */
    int max_connections;                /* 0: what the limit of descriptors leaves */
    void (*admit)(void *owner, int fd); /* the descriptor is the owner's */
    void (*closed)(void *owner);        /* the gate's memory may go */
    void *owner;
};

struct store_listener {
    uv_loop_t *loop;
    char name[STORE_LISTENER_NAME_MAX + 1];
    uid_t uid;
    uint16_t port;
    int connections, max_connections; /* counted by the owner: one less is store_listener_connection_closed */
    uint64_t refused;                 /* another user's, or of nobody any more */
    int netlink;
    int fds[STORE_LISTENER_SOCKETS]; /* -1: none */
    uv_poll_t polls[STORE_LISTENER_SOCKETS];
    uv_timer_t rest; /* listening goes on */
    int open_handles;
    bool closing, full;
    void (*admit)(void *owner, int fd);
    void (*closed)(void *owner);
    void *owner;
};

/* Listens when it returns. ERR_UNSUPPORTED: the kernel cannot tell who calls. ERR_BUSY: the port is taken. On an error,
 * too, it is to be closed. */
NODISCARD err_t store_listener_open(struct store_listener *g, const struct store_listener_config *config,
                                    struct why *why);
bool store_listener_is_full(const struct store_listener *g);
/* A connection has gone: `connections` is one less. */
void store_listener_connection_closed(struct store_listener *g);
/* `closed` is called later. */
void store_listener_close(struct store_listener *g);
/* Of a stream socket that a caller or his relay has; what is not TCP has none of them, and needs none. */
void store_socket_options(int fd);

#endif
