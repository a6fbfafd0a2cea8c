/* libraft's side of the streams. Addresses are logical names, looked up by whoever connects. */
#include "daemon/control/log_transport.h"

#include <string.h>

static struct log_transport *transport_of(struct raft_uv_transport *raft)
{
    return raft->impl;
}

static int transport_init(struct raft_uv_transport *raft, raft_id id, const char *address)
{
    (void)raft, (void)id, (void)address;
    return 0;
}

static int transport_listen(struct raft_uv_transport *raft, raft_uv_accept_cb cb)
{
    transport_of(raft)->accepted = cb;
    return 0;
}

static int transport_connect(struct raft_uv_transport *raft, struct raft_uv_connect *req, raft_id id,
                             const char *address, raft_uv_connect_cb cb)
{
    const struct log_peers *peers = &transport_of(raft)->peers;
    req->cb = cb;
    return peers->connect ? peers->connect(peers->arg, id, address, req) : RAFT_NOCONNECTION;
}

static void transport_close(struct raft_uv_transport *raft, raft_uv_transport_close_cb cb)
{
    transport_of(raft)->accepted = NULL;
    cb(raft);
}

void log_transport_init(struct log_transport *t, const struct log_peers *peers)
{
    memset(t, 0, sizeof(*t));
    if (peers)
        t->peers = *peers;
    t->raft.version = 1;
    t->raft.impl = t;
    t->raft.init = transport_init;
    t->raft.listen = transport_listen;
    t->raft.connect = transport_connect;
    t->raft.close = transport_close;
}

bool log_transport_accept(struct log_transport *t, raft_id id, const char *node, uv_stream_t *stream)
{
    if (!t->accepted)
        return false;
    t->accepted(&t->raft, id, node, stream);
    return true;
}
