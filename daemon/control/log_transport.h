/* How libraft reaches other voters: never by its own TCP port (unauthenticated, and it crashes on hostile bytes),
 * always by streams that the authenticated peer connection hands over. Without peers, which is one voter, it listens
 * nowhere and every connect fails at once. One loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_TRANSPORT_H
#define DTD_DAEMON_CONTROL_LOG_TRANSPORT_H

#include <raft/uv.h>

/* What the peer connections will offer; NULL where there are none. */
struct log_peers {
    void *arg;
    /* Begins to bring an authenticated stream to the voter of that name: calls done->cb once, later. 0 or a raft error.
     */
    int (*connect)(void *arg, raft_id id, const char *node, struct raft_uv_connect *done);
};

struct log_transport {
    struct raft_uv_transport raft; /* for raft_uv_init */
    struct log_peers peers;
    raft_uv_accept_cb accepted; /* libraft's; NULL while it does not listen */
};

void log_transport_init(struct log_transport *t, const struct log_peers *peers);
/* A peer connection brought an authenticated stream from that voter. False: not listening, the stream stays the
 * caller's. */
bool log_transport_accept(struct log_transport *t, raft_id id, const char *node, uv_stream_t *stream);

#endif
