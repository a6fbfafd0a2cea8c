/* A c10d store on a libuv loop: a server for the TCPStore client of unmodified PyTorch processes
 * (docs/use/c10d-store.md). A process can have many stores, one per job and attempt, each with a port of its own.
 *
 * A store listens on the same port of 127.0.0.1 and, where IPv6 exists, of ::1. It serves the user for whom it was
 * opened and root, and no other user; the kernel names the user of each connection. Everything runs on the loop's
 * thread, and nothing blocks: no names are resolved, and a turn of the loop does a bounded amount of work per
 * connection. */
#ifndef DTD_DAEMON_STORE_SERVER_H
#define DTD_DAEMON_STORE_SERVER_H

#include "daemon/store/wire.h"

#include <sys/types.h>
#include <uv.h>

#define STORE_HANDSHAKE_MS 10000           /* from the connection to the first complete request; then it is closed */
#define STORE_REQUEST_MS 60000             /* from the first byte of a request to its last one, of up to max_bytes */
#define STORE_MAX_BYTES (256u << 20)       /* default of max_bytes */
#define STORE_OUTPUT_HIGH_BYTES (1u << 20) /* a client with this much unsent output is not read */

struct store_server;

struct store_server_config {
    const char *name;      /* in log lines; copied, at most STORE_LISTENER_NAME_MAX bytes */
    uid_t uid;             /* the user who is served, in addition to root */
    uint16_t port;         /* 0: any free port */
    size_t max_bytes;      /* all memory that clients may occupy; 0: STORE_MAX_BYTES */
    int max_connections;   /* 0: derived from the limit of descriptors */
    uint64_t handshake_ms; /* 0: STORE_HANDSHAKE_MS */
    uint64_t request_ms;   /* from the first byte of a request to its last one; 0: STORE_REQUEST_MS */
    struct shares *shares; /* see listener.h; NULL: none */
    int64_t max_user;
    struct budget *user_budget; /* memory of all stores of the user, which max_bytes counts against too; NULL: none */
};

struct store_server_stats {
    int connections;
    size_t keys;  /* with a value, including init/ */
    size_t bytes; /* in use, of max_bytes */
    uint64_t accepted;
    uint64_t refused;    /* connections of other users, and those whose user could not be determined */
    uint64_t broken;     /* closed because of an invalid request, or because no request came in time */
    uint64_t operations; /* requests; a request with a list of keys counts once */
    uint64_t by_op[WIRE_OPS];
};

/* Serves when it returns. ERR_UNSUPPORTED: the kernel cannot report the user of a peer. ERR_BUSY: port in use. */
NODISCARD err_t store_server_open(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret,
                                  struct why *why);
uint16_t store_server_port(const struct store_server *server);
/* Serves a connection that the caller has accepted and authorized; any stream socket. The store takes over the
 * descriptor and closes it on an error, too. ERR_LIMIT: there are too many connections. */
NODISCARD err_t store_server_adopt(struct store_server *server, int fd);
void store_server_stats(const struct store_server *server, struct store_server_stats *ret);
/* Closes every connection and frees all data. `cb`, which may be NULL, is called once, later, after the server has been
 * freed. */
void store_server_close(struct store_server *server, void (*cb)(void *arg), void *arg);

#endif
