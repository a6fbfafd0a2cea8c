/* What the cluster says to other nodes, in plain structs: protobuf stops in rpc_cluster.c. Callbacks come once and
 * later, also when the connection goes. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_RPC_H
#define DTD_DAEMON_CONTROL_CLUSTER_RPC_H

#include "common/rpc/rpc.h"
#include "daemon/control/cluster/self_file.h"

/* `leads`: in that term. `leader`, `address`: who leads and where, as far as it knows; NULL. */
typedef void (*rpc_hello_cb)(void *arg, err_t err, const char *text, bool leads, uint64_t term, const char *leader,
                             const char *address);
NODISCARD err_t rpc_cluster_hello(struct rpc_conn *conn, const char *name, const uint8_t *instance, uint32_t ms,
                                  rpc_hello_cb cb, void *arg);
/* `len` 0: it has nothing newer. `needed`: without this node there would be no majority of the log's voters; false,
 * too, where a dtd leads that does not know that word. */
typedef void (*rpc_beat_cb)(void *arg, err_t err, const void *view, size_t len, bool needed);
NODISCARD err_t rpc_cluster_beat(struct rpc_conn *conn, uint64_t view, uint64_t index, uint32_t ms, rpc_beat_cb cb,
                                 void *arg);
typedef void (*rpc_join_cb)(void *arg, err_t err, const char *text, uint64_t id, const void *view, size_t len);
NODISCARD err_t rpc_cluster_join(struct rpc_conn *conn, const struct cluster_self *self, uint64_t token, uint32_t ms,
                                 rpc_join_cb cb, void *arg);
/* Tells the leader that this node leaves. */
NODISCARD err_t rpc_cluster_leave(struct rpc_conn *conn, const struct cluster_self *self, uint32_t ms,
                                  void (*cb)(void *arg, err_t err, const char *text), void *arg);

#endif
