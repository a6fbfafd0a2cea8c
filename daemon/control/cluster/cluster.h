/* Membership of this node in a cluster: which nodes exist, which one leads, and the connections between them. A single
 * node works in the same way, with one voter.
 *
 *   alone -> `cluster init` (creates a key, has an address) -> member of a cluster
 *   new   -> `cluster join TOKEN`                           -> member of a cluster
 *
 * The leader of the replicated log decides for all jobs. Every other node keeps one connection to the leader and
 * forwards: requests of its clients, workers and dtd-ios go to the leader (rpc_forward), and the leader's commands for
 * its supervisor come back. Voters also have streams of their own for libraft. All connections use common/tunnel: TLS
 * 1.3 with the cluster's key.
 *
 * A node is lost when it has sent no heartbeat for CLUSTER_LOST_MS, whether its connection is open or not.
 *
 * Loop thread; owned by control. Events are called from the loop, never from inside a call of this file. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H
#define DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"

#include <stdbool.h>
#include <stdint.h>

#define CLUSTER_NAME_MAX 253
/* Interval of a follower's heartbeats to the leader. */
#define CLUSTER_BEAT_MS 200
/* Well above the time for which the loop of a loaded machine may stand still, and below the 2 s within which the death
 * of a node has to be detected. */
#define CLUSTER_LOST_MS 1500

struct node;
struct cluster;
struct log_config;

/* Events for the rest of control. */
struct cluster_events {
    /* This node is the leader and has applied everything that was committed before. It decides from now on. */
    void (*lead)(struct node *n);
    /* This node is no longer the leader. Decisions that are not recorded are dropped; processes are left alone.
     * Proposals under way have ended with ERR_CANCELED. */
    void (*follow)(struct node *n);
    /* Follower: the connection to the leader is open (report the processes of this node to it), or is closed. `conn` is
     * valid in between. */
    void (*leader_up)(struct node *n, struct rpc_conn *conn);
    void (*leader_down)(struct node *n);
    /* Leader: another node has connected; its connection is closed (the node may reconnect); the node is lost. `name`
     * is valid during the call. */
    void (*member_up)(struct node *n, const char *name, struct rpc_conn *conn);
    void (*member_down)(struct node *n, const char *name);
    void (*member_lost)(struct node *n, const char *name, int64_t silent_ms, const char *why);
};

NODISCARD err_t cluster_start(struct node *n, const struct cluster_events *events, struct cluster **ret,
                              struct why *why);
void cluster_close(struct cluster *c, void (*cb)(struct node *n));

/* Fills in the cluster's part of the log's configuration, before the log is opened. The log's on_role calls
 * cluster_role. */
void cluster_log_config(struct cluster *c, struct log_config *ret);
void cluster_role(struct cluster *c);

bool cluster_named(const struct cluster *c);         /* this node is a member of a cluster */
const char *cluster_self(const struct cluster *c);   /* name of this node */
const char *cluster_leader(const struct cluster *c); /* NULL: no leader is known */
bool cluster_leads(const struct cluster *c);
int cluster_nodes(const struct cluster *c); /* number of nodes, including this one */
/* Leader: is there a successor, that is, another voter or a node that can be made one? When this node goes down
 * (node.leaving), the promotion and the handover happen by themselves. */
bool cluster_has_heir(const struct cluster *c);
/* Follower: the connection to the leader; NULL: none is open. */
struct rpc_conn *cluster_leader_conn(struct cluster *c);
/* Follower: is this node a voter without which the other voters are no majority? A leader that is informed that this
 * node is leaving (node.leaving) first removes it from the voters, and reports this in its replies to heartbeats. False
 * when there has been no leader for CLUSTER_LOST_MS. */
bool cluster_is_needed(const struct cluster *c);

/* ---- requests of users ----
 *
 * After each success control exits some 100 ms later, and the supervisor starts it again with the files that were
 * written. Processes of jobs are not affected. Codes and sentences are for users. */
struct cluster_wish { /* NULL or "": the value of the configuration, else a default from the host's name */
    const char *name, *listen, *advertise, *domain;
};
NODISCARD err_t cluster_init(struct cluster *c, const struct cluster_wish *w, struct why *why);
typedef void (*cluster_done_cb)(void *arg, err_t err, const char *why);
NODISCARD err_t cluster_join(struct cluster *c, const char *token, const struct cluster_wish *w, cluster_done_cb cb,
                             void *arg, struct why *why);
NODISCARD err_t cluster_leave(struct cluster *c, cluster_done_cb cb, void *arg, struct why *why);
/* For a permanently lost majority: the log continues with this node as its only voter. */
NODISCARD err_t cluster_recover(struct cluster *c, struct why *why);

/* ---- streams to another node's stores ---- */

/* `argument` names the store (c10d). After OK the callback runs once and later, and owns `fd`; -1: the node cannot be
 * reached. */
typedef void (*cluster_dial_cb)(void *arg, int fd);
NODISCARD err_t cluster_dial_store(struct cluster *c, const char *node, const char *argument, cluster_dial_cb cb,
                                   void *arg);

/* ---- requests of other nodes, called by cluster/rpc.c ---- */

/* A node connects. ERR_AGAIN: this node is not the leader. Other errors set `ret_why`. */
NODISCARD err_t cluster_hello(struct cluster *c, struct rpc_conn *conn, const char *name, const uint8_t *instance,
                              const char *version, const char **ret_why);
/* A heartbeat with the hash of the sender's view and its log index. `ret`: the current view if it differs, else NULL.
 * `ret_needed`: without the sender, the connected voters are no majority. */
NODISCARD err_t cluster_beat(struct cluster *c, struct rpc_conn *conn, uint64_t view, uint64_t index,
                             const struct buf **ret, bool *ret_needed);

#endif
