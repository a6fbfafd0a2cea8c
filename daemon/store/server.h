/* A c10d store on a loop: what unmodified PyTorch processes take for their TCPStore (docs/store.md). A process may have
 * many, one for each job and attempt, with a port of its own each.
 *
 * A store listens on 127.0.0.1 and, where there is IPv6, on ::1, both at one port. It serves the user it was opened for
 * and root, whom the kernel names, and nobody else. Everything runs on the loop's thread, and nothing here blocks: no
 * names are resolved, a turn of the loop does a bounded amount of work for each connection. */
#ifndef DTD_DAEMON_STORE_SERVER_H
#define DTD_DAEMON_STORE_SERVER_H

#include "daemon/store/wire.h"

#include <sys/types.h>
#include <uv.h>

#define STORE_HANDSHAKE_MS 10000           /* from connecting to a first whole request */
#define STORE_MAX_BYTES (256u << 20)       /* unless configured otherwise */
#define STORE_OUTPUT_HIGH_BYTES (1u << 20) /* a client that leaves this much unread is not read */

struct store_server;

struct store_server_config {
    const char *name;      /* in log lines; copied, at most STORE_LISTENER_NAME_MAX bytes */
    uid_t uid;             /* who is served, beside root */
    uint16_t port;         /* 0: any */
    size_t max_bytes;      /* all memory that clients may occupy; 0: STORE_MAX_BYTES */
    int max_connections;   /* 0: what the limit of descriptors leaves */
    uint64_t handshake_ms; /* 0: STORE_HANDSHAKE_MS */
};

struct store_server_stats {
    int connections;
    size_t keys;  /* with a value, init/ among them */
    size_t bytes; /* of max_bytes */
    uint64_t accepted;
    uint64_t refused;    /* another user's, or of nobody any more */
    uint64_t broken;     /* closed for what they sent, or for not saying anything */
    uint64_t operations; /* requests, of whatever length their lists are */
    uint64_t by_op[WIRE_OPS];
};

/* Serves when it returns. ERR_UNSUPPORTED: the kernel cannot tell who calls. ERR_BUSY: the port is taken. */
NODISCARD err_t store_server_open(uv_loop_t *loop, const struct store_server_config *config, struct store_server **ret,
                                  struct why *why);
uint16_t store_server_port(const struct store_server *server);
/* A connection that somebody else accepted, and vouches for: any stream socket. The descriptor is the store's from
 * here, and is closed on an error too. ERR_LIMIT: there are too many connections. */
NODISCARD err_t store_server_adopt(struct store_server *server, int fd);
void store_server_stats(const struct store_server *server, struct store_server_stats *ret);
/* Closes every connection and forgets everything. `cb`, which may be NULL, is called once, later; the server is gone
 * when it is called. */
void store_server_close(struct store_server *server, void (*cb)(void *arg), void *arg);

#endif
