/* The list of all methods that dtd's programs serve and call: number, name, permitted roles, sizes. The message types
 * are looked up by name in protobuf-c's generated service descriptors. At its first use the table is checked against
 * them, so that table and .proto files always agree.
 *
 * A program makes its own copy with its handlers: rpc_methods_bind at its start, then rpc_conn_config.methods. */
#ifndef DTD_COMMON_RPC_METHODS_H
#define DTD_COMMON_RPC_METHODS_H

#include "common/rpc/rpc.h"

/* One row is one line, ascending by number:
 *
 *   id, number on the wire: never changed or reused, also not after the method is gone
 *   service and method of proto/
 *   roles that may call it; RPC_ROLE_ANY for the Hello methods, which exchange a token for a role
 *   largest request, and largest reply or item, in KiB; a job's spec has at most 1 MiB (submit)
 *   ONE reply, or a STREAM of items
 *
 * A new method is a row here and in RPC_CONTROL_METHODS, its messages in proto/, its handler, and its caller: for a
 * command of dtctl, client_call (client/client.h). */
// clang-format off
#define RPC_METHODS(X) \
    X(CLIENT_SUBMIT,          0x0101, Client,    Submit,         RPC_ROLE_CLIENT,  2048,     1, ONE) \
    X(CLIENT_STATUS,          0x0102, Client,    Status,         RPC_CLIENTS,         1,  4096, ONE) \
    X(CLIENT_LIST,            0x0103, Client,    List,           RPC_CLIENTS,         1, 16384, ONE) \
    X(CLIENT_CANCEL,          0x0104, Client,    Cancel,         RPC_CLIENTS,         1,  4096, ONE) \
    X(CLIENT_LOGS,            0x0105, Client,    Logs,           RPC_CLIENTS,         1,  1024, STREAM) \
    X(CLIENT_METRICS,         0x0106, Client,    Metrics,        RPC_CLIENTS,         1,     4, STREAM) \
    X(CLIENT_WATCH,           0x0107, Client,    Watch,          RPC_CLIENTS,         1,  4096, STREAM) \
    X(CLIENT_CHECKPOINTS,     0x0108, Client,    Checkpoints,    RPC_CLIENTS,         1, 16384, ONE) \
    X(CLIENT_NODE,            0x0109, Client,    Node,           RPC_CLIENTS,         1,    64, ONE) \
    X(CLIENT_SHUTDOWN,        0x010a, Client,    Shutdown,       RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_CLUSTER_INIT,    0x010b, Client,    ClusterInit,    RPC_ROLE_CLIENT,     4,     1, ONE) \
    X(CLIENT_CLUSTER_JOIN,    0x010c, Client,    ClusterJoin,    RPC_ROLE_CLIENT,     4,     1, ONE) \
    X(CLIENT_CLUSTER_STATUS,  0x010d, Client,    ClusterStatus,  RPC_CLIENTS,         1,  4096, ONE) \
    X(CLIENT_CLUSTER_TOKEN,   0x010e, Client,    ClusterToken,   RPC_ROLE_CLIENT,     1,     4, ONE) \
    X(CLIENT_CLUSTER_REMOVE,  0x010f, Client,    ClusterRemove,  RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_CLUSTER_LEAVE,   0x0110, Client,    ClusterLeave,   RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_CLUSTER_RECOVER, 0x0111, Client,    ClusterRecover, RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_CLUSTER_ROTATE,  0x0112, Client,    ClusterRotate,  RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_NODE_DRAIN,      0x0113, Client,    NodeDrain,      RPC_ROLE_CLIENT,     2,     1, ONE) \
    X(CLIENT_STORE_OPEN,      0x0114, Client,    StoreOpen,      RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_STORE_CLOSE,     0x0115, Client,    StoreClose,     RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_STORE_LIST,      0x0116, Client,    StoreList,      RPC_CLIENTS,         1,  4096, ONE) \
    X(CLIENT_REMOVE,          0x0117, Client,    Remove,         RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_WEB_TOKEN,       0x0118, Client,    WebToken,       RPC_ROLE_CLIENT,     1,     1, ONE) \
    X(CLIENT_WEB_LOGIN,       0x0119, Client,    WebLogin,       RPC_CLIENTS,         1,     1, ONE) \
    X(CLIENT_EVENTS,          0x011a, Client,    Events,         RPC_CLIENTS,         1,     4, STREAM) \
    X(CLIENT_PROFILE,         0x011b, Client,    Profile,        RPC_ROLE_CLIENT,     1,     8, ONE) \
    X(CLIENT_USAGE,           0x011f, Client,    Usage,          RPC_CLIENTS,         1, 16384, STREAM) \
    X(WORKER_HELLO,           0x0201, Worker,    Hello,          RPC_ROLE_ANY,        1,     1, ONE) \
    X(WORKER_COMMANDS,        0x0202, Worker,    Commands,       RPC_ROLE_WORKER,     1,  2048, STREAM) \
    X(WORKER_REPORT,          0x0203, Worker,    Report,         RPC_ROLE_WORKER,    64,     1, ONE) \
    X(WORKER_STORE_PUT,       0x0204, Worker,    StorePut,       RPC_ROLE_WORKER,     8,     1, ONE) \
    X(WORKER_STORE_GET,       0x0205, Worker,    StoreGet,       RPC_ROLE_WORKER,     1,     8, ONE) \
    X(IO_HELLO,               0x0301, Io,        Hello,          RPC_ROLE_ANY,        1,     1, ONE) \
    X(IO_SAVE,                0x0302, Io,        Save,           RPC_ROLE_WORKER, 16384,     1, STREAM) \
    X(IO_LOAD,                0x0303, Io,        Load,           RPC_ROLE_WORKER, 16384, 16384, ONE) \
    X(IO_STAGE,               0x0304, Io,        Stage,          RPC_ROLE_WORKER,     1,  1024, ONE) \
    X(IO_CONTROL_HELLO,       0x0401, IoControl, Hello,          RPC_ROLE_ANY,        1,     1, ONE) \
    X(IO_CONTROL_COMMANDS,    0x0402, IoControl, Commands,       RPC_ROLE_IO,         1,  2048, STREAM) \
    X(IO_CONTROL_REPORT,      0x0403, IoControl, Report,         RPC_ROLE_IO,      1024,     1, ONE) \
    X(PEER_HELLO,             0x0501, Peer,      Hello,          RPC_ROLE_PEER,       1,     4, ONE) \
    X(PEER_FORWARD,           0x0502, Peer,      Forward,        RPC_ROLE_PEER,    2052, 16388, STREAM) \
    X(PEER_WINDOW_UPDATE,     0x0503, Peer,      WindowUpdate,   RPC_ROLE_PEER,       1,     1, ONE) \
    X(PEER_COMMANDS,          0x0504, Peer,      Commands,       RPC_ROLE_PEER,     256,   256, STREAM) \
    X(PEER_REPORT,            0x0505, Peer,      Report,         RPC_ROLE_PEER,     256,     1, ONE) \
    X(PEER_BEAT,              0x0506, Peer,      Beat,           RPC_ROLE_PEER,       1, 16384, ONE) \
    X(PEER_JOIN,              0x0507, Peer,      Join,           RPC_ROLE_PEER | RPC_ROLE_JOIN, 4, 16384, ONE) \
    X(PEER_LEAVE,             0x0508, Peer,      Leave,          RPC_ROLE_PEER,       1,     1, ONE) \
    X(PEER_STORE_CLAIM,       0x0509, Peer,      StoreClaim,     RPC_ROLE_PEER,       1,     1, ONE) \
    X(PEER_READ_LOG,          0x050a, Peer,      ReadLog,        RPC_ROLE_PEER,       1,    64, ONE) \
    X(PEER_VIEW,              0x050b, Peer,      View,           RPC_ROLE_PEER,       1, 16384, ONE)

/* The methods that dtd-control serves, with their handlers. SERVED_BY_LEADER: the node that leads answers, and other
 * nodes forward the call to it. SERVED_LOCALLY: the node that is called answers. The methods of the cluster are in
 * rpc_cluster_rows, because tests replace the cluster. */
#define RPC_CONTROL_METHODS(X) \
    X(SERVED_BY_LEADER, CLIENT_SUBMIT,          rpc_client_submit) \
    X(SERVED_BY_LEADER, CLIENT_STATUS,          rpc_client_status) \
    X(SERVED_BY_LEADER, CLIENT_LIST,            rpc_client_list) \
    X(SERVED_BY_LEADER, CLIENT_CANCEL,          rpc_client_cancel) \
    X(SERVED_BY_LEADER, CLIENT_REMOVE,          rpc_client_remove) \
    X(SERVED_BY_LEADER, CLIENT_LOGS,            rpc_client_logs) \
    X(SERVED_BY_LEADER, CLIENT_METRICS,         rpc_client_metrics) \
    X(SERVED_BY_LEADER, CLIENT_WATCH,           rpc_client_watch) \
    X(SERVED_BY_LEADER, CLIENT_EVENTS,          rpc_client_events) \
    X(SERVED_BY_LEADER, CLIENT_USAGE,           rpc_client_usage) \
    X(SERVED_BY_LEADER, CLIENT_CHECKPOINTS,     rpc_client_checkpoints) \
    X(SERVED_LOCALLY,      CLIENT_NODE,            rpc_client_node) \
    X(SERVED_LOCALLY,      CLIENT_SHUTDOWN,        rpc_client_shutdown) \
    X(SERVED_LOCALLY,      CLIENT_WEB_TOKEN,       rpc_client_web_token) \
    X(SERVED_LOCALLY,      CLIENT_WEB_LOGIN,       rpc_client_web_login) \
    X(SERVED_BY_LEADER, CLIENT_PROFILE,         rpc_client_profile) \
    X(SERVED_LOCALLY,      CLIENT_STORE_OPEN,      rpc_client_store_open) \
    X(SERVED_BY_LEADER, CLIENT_STORE_CLOSE,     rpc_client_store_close) \
    X(SERVED_BY_LEADER, CLIENT_STORE_LIST,      rpc_client_store_list) \
    X(SERVED_LOCALLY,      WORKER_HELLO,           rpc_worker_hello) \
    X(SERVED_BY_LEADER, WORKER_COMMANDS,        rpc_worker_attend) \
    X(SERVED_BY_LEADER, WORKER_REPORT,          rpc_worker_report) \
    X(SERVED_BY_LEADER, WORKER_STORE_PUT,       rpc_worker_store_put) \
    X(SERVED_BY_LEADER, WORKER_STORE_GET,       rpc_worker_store_get) \
    X(SERVED_LOCALLY,      IO_CONTROL_HELLO,       rpc_io_hello) \
    X(SERVED_BY_LEADER, IO_CONTROL_COMMANDS,    rpc_io_attend) \
    X(SERVED_BY_LEADER, IO_CONTROL_REPORT,      rpc_io_report) \
    X(SERVED_LOCALLY,      PEER_FORWARD,           rpc_peer_forward) \
    X(SERVED_LOCALLY,      PEER_WINDOW_UPDATE,     rpc_peer_window_update) \
    X(SERVED_LOCALLY,      PEER_COMMANDS,          rpc_peer_attend) \
    X(SERVED_LOCALLY,      PEER_REPORT,            rpc_peer_report) \
    X(SERVED_LOCALLY,      PEER_STORE_CLAIM,       rpc_peer_store_claim) \
    X(SERVED_LOCALLY,      PEER_READ_LOG,          rpc_peer_read_log)
// clang-format on

#define RPC_METHOD_ID(id, number, ...) id = number,
#define RPC_METHOD_ONE(...) +1
enum rpc_method_id { RPC_METHODS(RPC_METHOD_ID) };
enum { RPC_METHOD_COUNT = 0 RPC_METHODS(RPC_METHOD_ONE) };

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
