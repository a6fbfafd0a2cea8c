/* The table of all methods that dtd's programs serve and call: number, name, permitted roles, sizes. The message types
 * are looked up by name in protobuf-c's generated service descriptors. At its first use the table is checked against
 * them, so that table and .proto files always agree.
 *
 * A program makes its own copy with its handlers: rpc_methods_bind at its start, then rpc_conn_config.methods. */
#ifndef DTD_COMMON_RPC_METHODS_H
#define DTD_COMMON_RPC_METHODS_H

#include "common/rpc/rpc.h"

/* On the wire: never renumbered, only appended. */
enum rpc_method_id {
    CLIENT_SUBMIT = 0x0101,
    CLIENT_STATUS,
    CLIENT_LIST,
    CLIENT_CANCEL,
    CLIENT_LOGS,
    CLIENT_METRICS,
    CLIENT_WATCH,
    CLIENT_CHECKPOINTS,
    CLIENT_NODE,
    CLIENT_SHUTDOWN,
    CLIENT_CLUSTER_INIT,
    CLIENT_CLUSTER_JOIN,
    CLIENT_CLUSTER_STATUS,
    CLIENT_CLUSTER_TOKEN,
    CLIENT_CLUSTER_REMOVE,
    CLIENT_CLUSTER_LEAVE,
    CLIENT_CLUSTER_RECOVER,
    CLIENT_CLUSTER_ROTATE,
    CLIENT_NODE_DRAIN,
    CLIENT_STORE_OPEN,
    CLIENT_STORE_CLOSE,
    CLIENT_STORE_LIST,
    WORKER_HELLO = 0x0201,
    WORKER_COMMANDS,
    WORKER_REPORT,
    WORKER_STORE_PUT,
    WORKER_STORE_GET,
    IO_HELLO = 0x0301,
    IO_SAVE,
    IO_LOAD,
    IO_CONTROL_HELLO = 0x0401,
    IO_CONTROL_COMMANDS,
    IO_CONTROL_REPORT,
    PEER_HELLO = 0x0501,
    PEER_FORWARD,
    PEER_WINDOW_UPDATE,
    PEER_COMMANDS,
    PEER_REPORT,
    PEER_BEAT,
    PEER_JOIN,
    PEER_LEAVE,
    PEER_STORE_CLAIM,
    PEER_READ_LOG,
};
#define RPC_METHOD_COUNT 43

struct rpc_binding {
    uint16_t id;
    rpc_handler handler;
};

/* The whole table with all handlers NULL, for a program that only calls. RPC_METHOD_COUNT rows, ascending by id. */
const struct rpc_method *rpc_methods(void);

/* Copies the table and sets the handlers of the methods that this program serves; the others answer ERR_UNSUPPORTED. An
 * id that is not in the table is a programming error and aborts the process. */
void rpc_methods_bind(const struct rpc_binding *bindings, int n, struct rpc_method ret[RPC_METHOD_COUNT]);

#endif
