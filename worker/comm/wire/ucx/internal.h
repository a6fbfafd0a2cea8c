/* The ucx wire: tagged messages over UCP endpoints. Endpoints are created with socket addresses (each rank listens, the
 * higher one connects) and report lost peers. The fabric must be trusted: nothing is encrypted, and UCX 1.13 terminates
 * its process when it receives certain bytes from anyone. A connecting rank must still prove the epoch's secret once,
 * so that no rank of another epoch connects by accident.
 *
 * UCX's shared-memory transport is never used, because a killed sender blocks it. UCX's keepalive is not used either:
 * dtd-control detects silent peers and aborts the epoch. When the wire fails, all messages in flight are ended before
 * progress returns the error, because the caller then reuses their buffers. */
#ifndef DTD_WORKER_COMM_WIRE_UCX_INTERNAL_H
#define DTD_WORKER_COMM_WIRE_UCX_INTERNAL_H

#include "worker/comm/wire/codec.h"
#include "worker/comm/wire/wire.h"

#include <ucp/api/ucp.h>

/* A tag: lane (2 bits), sender (14 bits), bytes of the message (48 bits). A receive matches lane and sender, and then
 * compares the sizes. */
#define UCX_TAG(lane, from, bytes) ((uint64_t)(lane) << 62 | (uint64_t)(from) << 48 | (uint64_t)(bytes))
#define UCX_TAG_MASK UCX_TAG(3, 0x3fff, 0)
#define UCX_TAG_BYTES (((uint64_t)1 << 48) - 1)
#define UCX_LANE_HELLO 2
#define UCX_LANE_BYE 3

struct ucx_hello {
    char identity[WIRE_IDENTITY_MAX];
    uint8_t proof[32]; /* HMAC-SHA256 of the identity with the epoch's key */
};

struct ucx_wire;

struct ucx_peer {
    struct ucx_wire *u;
    int rank;
    ucp_ep_h ep;
    bool outgoing, failed, connected;
    ucs_status_t why_failed;
    struct ucx_hello mine, theirs;
    struct wire_op hello_out, hello_in, bye_out, bye_in;
    void *closing;
    int pending; /* messages of the caller in flight to or from this peer */
};

struct ucx_wire {
    struct comm_wire base;
    int rank, world, node, efd, bell;
    uint64_t epoch;
    int *node_of;
    uint8_t key[WIRE_KEY_BYTES];
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    struct ucx_peer *peers;    /* one per rank; those of this node are not used */
    struct wire_op *in_flight; /* linked by `next` */
    bool ended;                /* all messages in flight have been ended: no buffer of the caller is used any more */
    bool unflushed;
    void *flush;
};

extern const struct wire_module dtd_ucx_module;

static inline bool ucx_is_remote(const struct ucx_wire *u, int rank)
{
    return u->node_of[rank] != u->node;
}

/* ---- move.c ---- */

void ucx_post_send(struct ucx_wire *u, struct ucx_peer *p, int lane, struct wire_op *op);
void ucx_post_recv(struct ucx_wire *u, struct ucx_peer *p, int lane, struct wire_op *op);
/* Ends all messages in flight; called when the wire is dead or closed. */
void ucx_end(struct ucx_wire *u);
err_t ucx_progress(struct comm_wire *w, int wait_ms);
bool ucx_flushed(struct comm_wire *w);
/* Closes an endpoint and waits for at most a second until it is closed. */
void ucx_close_ep(struct ucx_wire *u, struct ucx_peer *p, bool force);
void ucx_close_all(struct ucx_wire *u, bool force);

/* ---- connect.c ---- */

NODISCARD err_t ucx_connect_all(struct ucx_wire *u, const struct wire_config *config, struct why *why);

#endif
