/* Membership of this node in a cluster: which nodes exist, which one leads, and the connections between them. A single
 * node works in the same way, with one voter.
 *
 *   alone -> `cluster init` (creates a key, has an address) -> member of a cluster
 *   new   -> `cluster join`                                 -> member of a cluster
 *
 * The leader of the replicated log decides for all jobs. Every other node keeps one connection to the leader and
 * forwards: requests of its clients, workers and dtd-ios go to the leader (rpc_forward), and the leader's commands for
 * its supervisor come back. Voters also have streams of their own for libraft. All connections use common/tunnel: TLS
 * 1.3 with the cluster's key, and a signature of each end, which must be that of a listed node.
 *
 * A node is lost when it has sent no heartbeat for CLUSTER_LOST_MS, whether its connection is open or not.
 *
 * Loop thread; owned by control. Events are called from the loop, never from inside a call of this file. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H
#define DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "daemon/control/log/log.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define CLUSTER_NAME_MAX 253
/* Interval of a follower's heartbeats to the leader. */
#define CLUSTER_HEARTBEAT_MS 200
/* Well above the time for which the loop of a loaded machine may stand still, and below the 2 s within which the death
 * of a node has to be detected. */
#define CLUSTER_LOST_MS 1500

struct cluster;
struct features_range;
struct pool;
struct log_config;
struct node_conf;
struct replica;
struct state_cluster;
struct state_node;

/* Events for the rest of control, and questions to it. `owner` is that of cluster_new. */
struct cluster_events {
    /* This node is the leader and has applied everything that was committed before. It decides from now on. */
    void (*lead)(void *owner);
    /* This node is no longer the leader. Decisions that are not recorded are dropped; processes are left alone.
     * Proposals under way have ended with ERR_CANCELED. */
    void (*follow)(void *owner);
    /* Follower: the connection to the leader is open (report the processes of this node to it), or is closed. `conn` is
     * valid in between. */
    void (*leader_up)(void *owner, struct rpc_conn *conn);
    void (*leader_down)(void *owner);
    /* Leader: another node has connected; its connection is closed (the node may reconnect); the node is lost. `name`
     * is valid during the call. */
    void (*member_up)(void *owner, const char *name, struct rpc_conn *conn);
    void (*member_down)(void *owner, const char *name);
    void (*member_lost)(void *owner, const char *name, int64_t silent_ms, const char *why);
    /* Another node opened a stream to a c10d store of this node (`argument` names it). The callee owns the descriptor.
     */
    void (*stream)(void *owner, const char *argument, int fd);
    /* Whether that node must not vote any more: its dtd is shutting down, or the disk of its log has failed. NULL: this
     * node. */
    bool (*is_leaving)(void *owner, const char *name);
    /* Whether a job has not ended; *ret_job: which. */
    bool (*has_job)(void *owner, uint64_t *ret_job);
    /* Leader: whether the log has a job that this node's dtd is too old to read. */
    bool (*is_unfit)(void *owner);
    /* Follower: this node was removed from the cluster against its will. Its workers have to end. */
    void (*removed)(void *owner);
    /* Closes the log, then calls `then`. */
    void (*close_log)(void *owner, void (*then)(void *arg), void *arg);
};

/* What the cluster is given of the rest of control; all of it outlives the cluster. */
struct cluster_config {
    uv_loop_t *loop;
    const char *dir; /* the state directory */
    const struct node_conf *conf;
    const struct replica *replica;    /* its log is started after the cluster */
    const struct rpc_method *methods; /* what other nodes may call here, RPC_METHOD_COUNT of them */
    void *methods_owner;
    const struct cluster_events *events;
    void *owner;        /* of the events */
    struct pool *saves; /* for writes of small files */
};

NODISCARD err_t cluster_start(const struct cluster_config *config, struct cluster **ret, struct why *why);
void cluster_close(struct cluster *c, void (*cb)(void *owner));

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
bool cluster_has_successor(const struct cluster *c);
/* Follower: the connection to the leader; NULL: none is open. */
struct rpc_conn *cluster_leader_conn(struct cluster *c);
/* Follower: is this node a voter without which the other voters are no majority? A leader that is informed that this
 * node is leaving (node.leaving) first removes it from the voters, and reports this in its replies to heartbeats. False
 * when there has been no leader for CLUSTER_LOST_MS. */
bool cluster_is_needed(const struct cluster *c);

/* The cluster as known to this node. */
const struct state_cluster *cluster_known(const struct cluster *c);
const struct state_node *cluster_node(const struct cluster *c, const char *name);
/* This node's id in the cluster, and the address at which others reach it; undefined outside a cluster. */
uint64_t cluster_self_id(const struct cluster *c);
const char *cluster_address(const struct cluster *c);
/* Leader: facts about a node that are not in the state. */
enum cluster_node_state { CLUSTER_NODE_UNKNOWN, CLUSTER_NODE_UP, CLUSTER_NODE_AWAY, CLUSTER_NODE_LOST };
struct cluster_facts {
    enum cluster_node_state state;
    const char *version; /* NULL: unknown */
    uint32_t newest;     /* the newest cluster version of its dtd; 0: unknown */
    int64_t silent_ms;
    uint64_t index;
};
/* Is the node a voter without which the connected voters are no majority? */
bool cluster_needs_vote(const struct cluster *c, const struct state_node *x);
void cluster_lead_facts(const struct cluster *c, const struct state_node *x, struct cluster_facts *ret);
/* The cluster version (state/features.h). */
uint32_t cluster_version(const struct cluster *c);
/* Whether what needs this cluster version may be used. If not, `why` names `what` and the node that lags; leader only.
 */
NODISCARD err_t cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why);
/* Leader: the newest cluster version of any node, this one and those that were refused included. */
uint32_t cluster_newest(const struct cluster *c);
/* Why the leader refuses this node; "": it does not. */
const char *cluster_refused(const struct cluster *c);
/* The node that an accepted connection belongs to, as its tunnel has authenticated it. */
struct cluster_caller {
    const char *name;
    uint64_t token;            /* id of the join token that it used; 0: the cluster's key */
    bool joins;                /* the tunnel is for joining only: the caller is no node yet */
    const uint8_t *public_key; /* NULL: it has proved none, being of an older version */
};
/* False: the connection did not come through a tunnel of the cluster. */
bool cluster_caller(struct cluster *c, const struct rpc_conn *conn, struct cluster_caller *ret);
/* Do nodes join by a file with the cluster's key (cluster.key_file), and not only by tokens? */
bool cluster_has_key_file(const struct cluster *c);
/* Follower: the leader reports over this connection that it has removed the node of this name. False: the connection is
 * not the one to the leader, or the node is another one. */
bool cluster_take_dismissal(struct cluster *c, const struct rpc_conn *conn, const char *name);
/* Follower: the leader has removed this node from the cluster. */
bool cluster_is_removed(const struct cluster *c);

/* The voters, for a node whose view may be too old to have all of them. */
#define CLUSTER_INTRODUCED \
    9 /* as many as fit into the answer to Hello; a cluster has 5, and more only while they change */
struct cluster_introduced {
    char name[CLUSTER_NAME_MAX + 1];
    uint64_t id;
    uint8_t public_key[32]; /* zeros: none */
};
struct cluster_introductions {
    struct cluster_introduced nodes[CLUSTER_INTRODUCED];
    int n;
};
const struct cluster_introductions *cluster_introductions(struct cluster *c); /* valid until the next call */
/* Leader: may one more node join, beside `pending` ones whose records are not applied yet? False: a node is of a
 * version whose state holds only STATE_MAX_NODES_BEFORE nodes, or a voter is not connected and may be; `ret` is its
 * name, valid until the next record. */
bool cluster_may_grow(const struct cluster *c, int pending, const char **ret);
/* Leader: appends what the new node of this name gets as the answer to its Join: keys, tokens, the voters, itself and
 * some others; of a small cluster all nodes. */
NODISCARD err_t cluster_welcome(struct cluster *c, const char *name, struct buf *ret);
/* The nodes and keys as this node knows them, encoded, and a hash of that. NULL: none yet. */
const struct buf *cluster_view_bytes(const struct cluster *c);
uint64_t cluster_view_hash(const struct cluster *c);

/* ---- requests of users ----
 *
 * After each success control exits some 100 ms later, and the supervisor starts it again with the files that were
 * written. Processes of jobs are not affected. Codes and sentences are for users. */
struct cluster_options { /* NULL or "": the value of the configuration, else a default from the host's name */
    const char *name, *listen, *advertise, *domain;
};
NODISCARD err_t cluster_init(struct cluster *c, const struct cluster_options *w, struct why *why);
typedef void (*cluster_done_cb)(void *arg, err_t err, const char *why);
NODISCARD err_t cluster_join(struct cluster *c, const char *token, const struct cluster_options *w, cluster_done_cb cb,
                             void *arg, struct why *why);
NODISCARD err_t cluster_leave(struct cluster *c, cluster_done_cb cb, void *arg, struct why *why);
/* Leader: hands over to another voter, because this node is to be removed. ERR_AGAIN: it is under way. */
NODISCARD err_t cluster_hand_over(struct cluster *c, struct why *why);
/* For a permanently lost majority: the log continues with this node as its only voter. */
NODISCARD err_t cluster_recover(struct cluster *c, uint32_t uid, struct why *why);
/* The recovery that this node was no part of; NULL: none. */
struct lineage_file;
const struct lineage_file *cluster_superseded(const struct cluster *c);
/* The node that has found this node's log to be an old copy of what it has acknowledged, and when; NULL: none. */
const struct lineage_file *cluster_old_copy(const struct cluster *c);

/* ---- streams to another node's stores ---- */

/* `argument` names the store (c10d). After OK the callback runs once and later, and owns `fd`; -1: the node cannot be
 * reached. */
typedef void (*cluster_dial_cb)(void *arg, int fd);
NODISCARD err_t cluster_dial_store(struct cluster *c, const char *node, const char *argument, cluster_dial_cb cb,
                                   void *arg);

/* ---- requests of other nodes, called by cluster/rpc.c ---- */

/* A node that connects. */
struct cluster_greeting {
    const char *name, *version;
    const uint8_t *instance;
    const struct features_range *has; /* the cluster versions of its dtd */
    bool old_copy;                    /* its log is an old copy: it cannot vote */
};
/* ERR_AGAIN: this node is not the leader. Other errors set `why`. */
NODISCARD err_t cluster_hello(struct cluster *c, struct rpc_conn *conn, const struct cluster_greeting *from,
                              struct why *why);
/* Whether a node with this dtd can be in the cluster. */
NODISCARD err_t cluster_admits(const struct cluster *c, const char *node, const struct features_range *has,
                               struct why *why);
struct cluster_bytes {
    const void *data;
    size_t len;
};

#define CLUSTER_DIGEST_BYTES 32 /* SHA-256 */
/* A heartbeat: the hash of the sender's view, whether it understands changes of the view, and its log index. `shares`:
 * it serves its view to other nodes, and fetches it from them. `fetched`: the digest of a view that it has fetched and
 * not taken yet; NULL: none. */
struct cluster_beat {
    uint64_t view, index;
    bool changes, shares;
    const uint8_t *fetched;
};
#define CLUSTER_STEPS 64 /* changes of the view that the leader keeps: those of 6 s, if all ticks have some */
#define CLUSTER_MARKS 8  /* more than the voters of the largest cluster, and those that replace them */
/* What the leader answers; at most one of `view` and `changes` is set. */
struct cluster_news {
    const struct buf *view;                   /* the whole view; NULL: the sender has it, or gets changes */
    const struct buf *changes[CLUSTER_STEPS]; /* to be made in this order */
    int n_changes;
    uint64_t hash;                   /* of the view after the changes */
    bool known;                      /* the sender may take the view that it has fetched; the changes are from it on */
    bool behind;                     /* its view is not current after this answer */
    const struct state_node *source; /* then: a node from which to fetch it; NULL: none has room */
    bool needed;                     /* without the sender, the connected voters are no majority */
    const uint64_t *voters;          /* ids, if they have changed since the last heartbeat; NULL: they have not */
    int n_voters;
    struct log_mark marks[CLUSTER_MARKS]; /* to a voter: what is known of all voters */
    int n_marks;
};
NODISCARD err_t cluster_heartbeat(struct cluster *c, struct rpc_conn *conn, const struct cluster_beat *beat,
                                  struct cluster_news *ret);

#endif
