/* Adapter: what daemons say to each other. */
#include "daemon/control/node.h"
#include "daemon/control/rpc_server.h"
#include "proto/peer.pb-c.h"

void rpc_peer_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct node *n = owner;
    Dtd__PeerStatus s = DTD__PEER_STATUS__INIT;
    s.node = (char *)(n->conf.name[0] ? n->conf.name : "node-1");
    s.version = (char *)DTD_VERSION;
    s.raft_state = (char *)log_state(n->log);
    s.raft_term = log_term(n->log);
    s.raft_index = log_index(n->log);
    rpc_reply(call, &s.base);
}
