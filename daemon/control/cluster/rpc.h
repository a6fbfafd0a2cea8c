/* Calls to other nodes of the cluster, with plain structs: protobuf types stay in rpc.c. After OK a callback runs once
 * and later, also when the connection is closed. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_RPC_H
#define DTD_DAEMON_CONTROL_CLUSTER_RPC_H

#include "common/rpc/rpc.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/cluster/self_file.h"

struct rpc_hello_reply {
    bool leads; /* the other node is the leader, in `term` */
    uint64_t term;
    uint32_t version;             /* the cluster version */
    const char *leader, *address; /* the leader of the other node; NULL: none */
    struct cluster_introductions introductions;
};
typedef void (*rpc_hello_cb)(void *arg, err_t err, const char *text, const struct rpc_hello_reply *reply);
NODISCARD err_t rpc_cluster_hello(struct rpc_conn *conn, const char *name, const uint8_t *instance, bool old_copy,
                                  uint32_t ms, rpc_hello_cb cb, void *arg);
/* The leader's answer. Without a view and changes the follower's view is current. `needed`: without this node the
 * voters would be no majority; false, too, if the leader is of a version without this field. */
struct rpc_beat_reply {
    struct cluster_bytes view; /* len 0: none */
    struct cluster_bytes changes[CLUSTER_STEPS];
    int n_changes;
    uint64_t hash;
    bool known, behind;         /* as in cluster_news */
    const char *source_address; /* NULL: none */
    struct cluster_introduced source;
    bool needed;
    const uint64_t *voters;
    int n_voters; /* 0: they have not changed */
    struct log_mark marks[CLUSTER_MARKS];
    int n_marks;
};
typedef void (*rpc_heartbeat_cb)(void *arg, err_t err, const struct rpc_beat_reply *reply);
NODISCARD err_t rpc_cluster_heartbeat(struct rpc_conn *conn, const struct cluster_beat *beat, uint32_t ms,
                                      rpc_heartbeat_cb cb, void *arg);
typedef void (*rpc_join_cb)(void *arg, err_t err, const char *text, uint64_t id, const void *view, size_t len);
/* `has`: the cluster versions of the dtd that joins, for which another node may make the call. `public_key`: of its
 * identity; NULL: it has none. */
NODISCARD err_t rpc_cluster_join(struct rpc_conn *conn, const struct cluster_self *self,
                                 const struct features_range *has, uint64_t token, const uint8_t *public_key,
                                 uint32_t ms, rpc_join_cb cb, void *arg);
/* The view that the other node has; len 0 after an error. */
typedef void (*rpc_view_cb)(void *arg, err_t err, const void *view, size_t len);
NODISCARD err_t rpc_cluster_view(struct rpc_conn *conn, uint32_t ms, rpc_view_cb cb, void *arg);
/* Reports to the leader that this node leaves the cluster. */
NODISCARD err_t rpc_cluster_leave(struct rpc_conn *conn, const struct cluster_self *self, uint32_t ms,
                                  void (*cb)(void *arg, err_t err, const char *text), void *arg);
/* Reports to a node that the leader has removed it. There is no answer to wait for. */
void rpc_cluster_dismiss(struct rpc_conn *conn, const char *name);

#endif
