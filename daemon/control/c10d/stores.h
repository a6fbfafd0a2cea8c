/* The c10d stores of this node (daemon/store), and its ports that relay to a store on another node. Each serves one
 * user.
 *
 * Control contains the stores because control owns the tunnels through which other nodes reach them, because the
 * store's library never blocks the loop, and because the supervisor already restarts control. A store is lost when
 * control exits. A separate process would not help: clients of a store cannot reconnect.
 *
 * The leader decides which node has the store of a name (owners.h). Loop thread; owned by the daemon. */
#ifndef DTD_DAEMON_CONTROL_C10D_STORES_H
#define DTD_DAEMON_CONTROL_C10D_STORES_H

#include "common/base/err.h"
#include "common/base/log_limit.h"
#include "daemon/control/state/record.h"
#include "daemon/store/server.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define C10D_NAME_MAX 64
#define C10D_MAX_BYTES (128u << 20) /* memory for the keys, values and buffers of one store */

struct cluster;
struct relay;
struct shares;

/* Of one user on this node. `connections` and `bytes` hold in a system-wide dtd. */
struct c10d_limits {
    int64_t stores, connections;
    size_t bytes;
};

/* What the stores of one user hold on this node. */
struct c10d_user {
    LIST_ENTRY(c10d_user) link;
    uint32_t uid;
    int n_open; /* stores and relays, with those that are closing */
    struct budget budget;
};

struct c10d_endpoint {
    LIST_ENTRY(c10d_endpoint) link;
    struct c10d_registry *c10d;
    struct c10d_user *user;
    uint32_t uid; /* its user; uid and name together identify a store */
    char name[C10D_NAME_MAX + 1];
    char holder[NODE_NAME_MAX + 1]; /* the node that has the store; "": this one */
    struct store_server *server;    /* the store; NULL: on another node */
    struct relay *relay;            /* the port to another node; NULL: the store is here */
};

/* A stream from another node that arrived before the store of its epoch was opened. */
struct c10d_parked {
    LIST_ENTRY(c10d_parked) link;
    char argument[C10D_NAME_MAX + 16];
    uint32_t uid;
    int fd;
    int64_t due_ms;
};

struct c10d_registry {
    uv_loop_t *loop;
    struct cluster *cluster; /* opens streams to other nodes */
    bool system;             /* dtd serves all users of the machine */
    struct c10d_limits limits;
    struct shares *descriptors; /* of the users of a system-wide dtd */
    LIST_HEAD(, c10d_user) users;
    LIST_HEAD(, c10d_endpoint) open;
    LIST_HEAD(, c10d_parked) parked;
    int n_parked;
    struct log_limit lines; /* about connections that were closed */
};

/* A name of a user's store: 1 to C10D_NAME_MAX letters, digits, dots, dashes and underscores. */
bool c10d_name_is_legal(const char *name);
/* Returns this node's port of a store, and opens the store or the relay if necessary. `holder`: the node that has the
 * store; NULL: this one. A port to a different node is closed first. ERR_LIMIT: the user has users.stores here. */
NODISCARD err_t c10d_open(struct c10d_registry *s, uint32_t uid, const char *name, const char *holder,
                          uint16_t *ret_port, struct why *why);
/* The same for the store of a job's epoch; stores of its other epochs are closed. */
NODISCARD err_t c10d_open_epoch(struct c10d_registry *s, uint32_t uid, uint64_t job, uint64_t epoch, const char *holder,
                                uint16_t *ret_port);
/* NULL: none. */
struct c10d_endpoint *c10d_find(struct c10d_registry *s, uint32_t uid, const char *name);
/* Closes the store or the port with all its connections, if it is open here. */
void c10d_close(struct c10d_registry *s, uint32_t uid, const char *name);
/* Closes the stores of a job's epochs, except the one named `except` (NULL: all). They are named "JOB/EPOCH", which is
 * not a legal name for a user's store. */
void c10d_close_job(struct c10d_registry *s, uint64_t job, const char *except);
/* Passes a stream from another node to its store. That node has checked the user. `argument` is "UID NAME". A stream
 * that arrives before its epoch's store waits up to 10 s for it. The function takes over the descriptor. */
void c10d_take(struct c10d_registry *s, const char *argument, int fd);
/* Call it on every tick of the loop: passes on streams whose store is open now, and closes those whose time is up. */
void c10d_tick(struct c10d_registry *s);

#endif
