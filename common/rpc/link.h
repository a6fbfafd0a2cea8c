/* A connection to a Unix socket that is re-established automatically. The link connects, calls on_up, and after every
 * loss reconnects with backoff until it is closed. The owner sends its Hello and opens its streams in on_up. Runs on
 * the loop's thread. */
#ifndef DTD_COMMON_RPC_LINK_H
#define DTD_COMMON_RPC_LINK_H

#include "common/rpc/rpc.h"

struct rpc_link;

struct rpc_link_config {
    uv_loop_t *loop;
    const char *path;                 /* copied */
    const struct rpc_method *methods; /* as in rpc_conn_config */
    int n_methods;
    uint32_t roles;                          /* of the other side: which of `methods` it may call */
    void *owner;                             /* first argument of handlers and callbacks */
    uint32_t backoff_min_ms, backoff_max_ms; /* 0: 20 and 1000 */
    void (*on_up)(void *owner, struct rpc_conn *conn);
    /* The connection was lost (all its calls have already failed) or an attempt failed; `err` is the reason. May be
     * NULL. */
    void (*on_down)(void *owner, err_t err);
};

/* The loop makes the first attempt later, never inside this call. */
NODISCARD err_t rpc_link_open(const struct rpc_link_config *config, struct rpc_link **ret);
struct rpc_conn *rpc_link_conn(struct rpc_link *link); /* NULL while down */
/* Closes the connection, for instance after a refused Hello, and reconnects. The backoff continues to grow unless
 * rpc_link_healthy was called. */
void rpc_link_reset(struct rpc_link *link);
/* The owner's handshake succeeded: resets the backoff to its minimum. */
void rpc_link_healthy(struct rpc_link *link);
/* Fails the outstanding calls, then calls `cb` (may be NULL) once; on_down is not called any more. With `finish` the
 * queued output is sent first. A second call is ignored. */
void rpc_link_close(struct rpc_link *link, void (*cb)(void *owner), bool finish);

#endif
