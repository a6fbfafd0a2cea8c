/* Accepts connections from listening sockets on a libuv loop. All of dtd's servers use it: the RPC listener, the tunnel
 * listener and the listener of the c10d store.
 *
 * When accept fails because the process is out of descriptors or memory, the connection stays in the backlog and the
 * socket stays readable: polling it further would run the loop at full speed. The acceptor therefore stops polling all
 * its sockets for ACCEPTOR_RETRY_MS and then tries again.
 *
 * Embedded in its owner. Everything runs on the loop's thread. */
#ifndef DTD_COMMON_LOOP_ACCEPTOR_H
#define DTD_COMMON_LOOP_ACCEPTOR_H

#include "common/base/err.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <uv.h>

#define ACCEPTOR_SOCKETS_MAX 2 /* a server on the loopback interface listens on 127.0.0.1 and ::1 */
/* Short enough for clients, which wait in the backlog; long enough to keep the error lines in the log few. */
#define ACCEPTOR_RETRY_MS 100

struct acceptor_config {
    uv_loop_t *loop;
    const char *name;     /* of the server, in log lines; not copied */
    int accepts_per_turn; /* bounds the work of one turn of the loop, so that other handles are served in between */
    /* Called before each accept; NULL: always true. False pauses the acceptor until the owner calls acceptor_resume. */
    bool (*may_accept)(void *owner);
    /* `fd` is non-blocking and close-on-exec, and belongs to the callback. `from` is the client's address. */
    void (*accepted)(void *owner, int fd, const struct sockaddr_storage *from);
    void *owner;
};

struct acceptor {
    struct acceptor_config config;
    int fds[ACCEPTOR_SOCKETS_MAX], n_fds;
    uv_poll_t polls[ACCEPTOR_SOCKETS_MAX];
    uv_timer_t retry;
    int open_handles;
    bool closing;
    void (*closed)(void *owner);
};

/* Accepts nothing yet. From here on the acceptor must be closed. */
void acceptor_init(struct acceptor *a, const struct acceptor_config *config);
/* Starts to accept from `fd`, which already listens, becomes non-blocking and remains the caller's: it must stay open
 * until acceptor_close. */
NODISCARD err_t acceptor_add(struct acceptor *a, int fd);
/* Leaves new connections in the backlog. */
void acceptor_pause(struct acceptor *a);
void acceptor_resume(struct acceptor *a);
/* Accepts nothing more. `closed` is called once, later; the acceptor's memory may be freed in it. Must not be called
 * twice. */
void acceptor_close(struct acceptor *a, void (*closed)(void *owner));

#endif
