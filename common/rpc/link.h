/* A connection to a Unix socket that comes back by itself: connects, says on_up, and after every loss tries again with
 * backoff until it is closed. What a Hello must say and which streams to open is the owner's, in on_up. One loop
 * thread. */
#ifndef DTD_COMMON_RPC_LINK_H
#define DTD_COMMON_RPC_LINK_H

#include "common/rpc/rpc.h"

struct rpc_link;

struct rpc_link_config {
    uv_loop_t *loop;
    const char *path;                 /* copied */
    const struct rpc_method *methods; /* as in rpc_conn_config */
    int n_methods;
    uint32_t roles;                          /* what the other side may call on us */
    void *owner;                             /* first argument of handlers and callbacks */
    uint32_t backoff_min_ms, backoff_max_ms; /* 0: 20 and 1000 */
    void (*on_up)(void *owner, struct rpc_conn *conn);
    /* The connection has gone (all its calls have been failed already) or an attempt failed: `err` is why. May be NULL.
     */
    void (*on_down)(void *owner, err_t err);
};

/* The first attempt is made by the loop, never inside this call. */
NODISCARD err_t rpc_link_open(const struct rpc_link_config *config, struct rpc_link **ret);
struct rpc_conn *rpc_link_conn(struct rpc_link *link); /* NULL while down */
/* Drops the connection (a refused Hello, a stuck peer); the backoff goes on growing unless rpc_link_healthy was called.
 */
void rpc_link_reset(struct rpc_link *link);
/* The owner's handshake went well: the next loss begins with the shortest backoff. */
void rpc_link_healthy(struct rpc_link *link);
/* Fails the outstanding calls, then calls `cb` (may be NULL) once; on_down is not called any more. With `finish` what
 * is queued is sent first. A second call is ignored. */
void rpc_link_close(struct rpc_link *link, void (*cb)(void *owner), bool finish);

#endif
