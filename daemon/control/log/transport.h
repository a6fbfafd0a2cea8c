/* Streams of libraft to other voters. libraft's own TCP transport is not used: it is not authenticated, and it crashes
 * on hostile bytes. log_peers brings the streams instead. A stream carries messages one way, so each voter connects to
 * each other. Without peers, that is, with one voter, every connect fails at once. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_TRANSPORT_H
#define DTD_DAEMON_CONTROL_LOG_TRANSPORT_H

#include "daemon/control/log/log.h"

#include <raft/uv.h>
#include <sys/queue.h>

struct log_transport {
    struct raft_uv_transport raft; /* for raft_uv_init */
    uv_loop_t *loop;
    struct log_peers peers;
    raft_uv_accept_cb accepted;       /* callback of libraft; NULL while it does not listen */
    LIST_HEAD(, log_connect) pending; /* connects under way; after the transport is closed they end without it */
};

void log_transport_init(struct log_transport *t, uv_loop_t *loop, const struct log_peers *peers);
/* Takes over `fd` on success. ERR_AGAIN: not listening. */
NODISCARD err_t log_transport_accept(struct log_transport *t, raft_id id, const char *address, int fd);

#endif
