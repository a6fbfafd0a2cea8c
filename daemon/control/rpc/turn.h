/* Calls of users that other nodes forward to the leader. A node has one connection for all its users, so the leader
 * cannot stop to read those of one of them. Instead the calls of a user whose requests have used the loop for long
 * enough (common/rpc/account.h) wait in a queue, at most users.buffer_mib / 2 of them. So do those of a user whose last
 * answer is in a long queue of the node's connection, because the answers of all others stand behind it. Loop thread.
 */
#ifndef DTD_DAEMON_CONTROL_RPC_TURN_H
#define DTD_DAEMON_CONTROL_RPC_TURN_H

#include "daemon/control/rpc/server.h"

/* Handles a forwarded call, now or later. Takes over the call. */
typedef void (*rpc_turn_cb)(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_turn_take(struct rpc_server *server, uint32_t uid, struct rpc_call *call, const ProtobufCMessage *request,
                   rpc_turn_cb cb);
/* Handles the calls that may be handled now. Call it on every tick of the loop. */
void rpc_turn_tick(struct rpc_server *server);

#endif
