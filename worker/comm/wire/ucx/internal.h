/* The ucx wire: UCP endpoints made with sockaddr (each rank listens, the higher one connects), in the mode that reports
 * lost peers, and tagged messages. The fabric has to be trusted: nothing is encrypted, and UCX 1.13 ends its process
 * when strangers send it certain bytes. Who connects still has to prove the epoch's secret once, so that no rank of
 * another epoch gets in by accident.
 *
 * UCX's own shared memory is never used (a killed sender wedges it), nor its idea of who is alive: a silent peer is
 * control's business, which aborts the epoch. What is under way when the wire dies is ended before progress says so,
 * since its buffers are the caller's. */
#ifndef DTD_WORKER_COMM_WIRE_UCX_INTERNAL_H
#define DTD_WORKER_COMM_WIRE_UCX_INTERNAL_H

#include "worker/comm/wire/codec.h"
#include "worker/comm/wire/wire.h"

#include <ucp/api/ucp.h>

/* A tag: lane (2 bits), sender (14), bytes of the message (48): a receive matches lane and sender, and finds out
 * whether the sizes agree. */
#define UCX_TAG(lane, from, bytes) ((uint64_t)(lane) << 62 | (uint64_t)(from) << 48 | (uint64_t)(bytes))
#define UCX_TAG_MASK UCX_TAG(3, 0x3fff, 0)
#define UCX_TAG_BYTES (((uint64_t)1 << 48) - 1)
#define UCX_LANE_HELLO 2
#define UCX_LANE_BYE 3

struct hello {
    char identity[WIRE_IDENTITY_MAX];
    uint8_t proof[32]; /* HMAC-SHA256 of it with the epoch's key */
};

struct ucx;

struct peer {
    struct ucx *u;
    int rank;
    ucp_ep_h ep;
    bool outgoing, failed, here, left;
    ucs_status_t why_failed;
    struct hello mine, theirs;
    struct wire_op hello_out, hello_in, bye_out, bye_in;
    void *closing;
    int owed; /* messages of the caller's under way with it */
};

struct ucx {
    struct wire base;
    int rank, world, node, efd, bell;
    uint64_t epoch;
    int *node_of;
    uint8_t key[WIRE_KEY_BYTES];
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    struct peer *peers;        /* of every rank; those of this node are not used */
    struct wire_op *under_way; /* by `next` */
    bool ended;                /* nothing of the caller's is touched any more */
    bool unflushed;
    void *flush;
};

extern const struct wire_module dtd_ucx_module;

static inline bool ucx_is_remote(const struct ucx *u, int rank)
{
    return u->node_of[rank] != u->node;
}

/* ---- move.c ---- */

void ucx_post_send(struct ucx *u, struct peer *p, int lane, struct wire_op *op);
void ucx_post_recv(struct ucx *u, struct peer *p, int lane, struct wire_op *op);
/* Ends what is under way; the wire is dead. */
void ucx_end(struct ucx *u);
err_t ucx_progress(struct wire *w, int wait_ms);
bool ucx_flushed(struct wire *w);
/* Closes an endpoint and waits a little until it is. */
void ucx_close_ep(struct ucx *u, struct peer *p, bool force);
void ucx_close_all(struct ucx *u, bool force);

/* ---- connect.c ---- */

NODISCARD err_t ucx_meet(struct ucx *u, const struct wire_config *config, struct why *why);

#endif
