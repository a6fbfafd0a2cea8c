/* Which nodes there are, who leads, and the connections between them. One node alone is the same thing with one voter.
 *
 *   alone -> (cluster init: a key, an address) -> one of several          new -> (cluster join TOKEN) -> one of several
 *
 * The leader of the replicated log decides for all jobs. Every other node keeps one connection to the leader, and is a
 * pipe: what its clients, workers and dtd-ios ask goes to the leader (rpc_forward), what the leader wants of its
 * supervisor comes back. Voters besides have streams of their own for libraft. All of it goes through common/tunnel:
 * TLS 1.3 with the cluster's key.
 *
 * A node is lost when its connection is and it has not come back, or when it is silent, for CLUSTER_LOST_MS. The number
 * is well above what a loaded machine's loop may stand still, and below the 2 s in which a node's death is to be known.
 *
 * One loop thread; owned by the node. Events come from the loop, never from inside a call of this file. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H
#define DTD_DAEMON_CONTROL_CLUSTER_CLUSTER_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"

#include <stdbool.h>
#include <stdint.h>

#define CLUSTER_NAME_MAX 253
#define CLUSTER_BEAT_MS 200
#define CLUSTER_LOST_MS 1500

struct node;
struct cluster;
struct log_config;

/* What the cluster says to the rest of control. */
struct cluster_events {
    /* We lead, everything committed before has been applied: decide from now on. */
    void (*lead)(struct node *n);
    /* We do not any more: forget what was decided and not recorded, touch no process. Proposals under way have been
     * failed with ERR_CANCELED. */
    void (*follow)(struct node *n);
    /* Following: the connection to the leader is there (say to it what lives here), or has gone; `conn` is valid in
     * between. */
    void (*leader_up)(struct node *n, struct rpc_conn *conn);
    void (*leader_down)(struct node *n);
    /* Leading: another node's connection is there; it has gone (the node may come back); the node is lost. `name` is
     * valid during the call. */
    void (*member_up)(struct node *n, const char *name, struct rpc_conn *conn);
    void (*member_down)(struct node *n, const char *name);
    void (*member_lost)(struct node *n, const char *name, int64_t silent_ms, const char *why);
};

NODISCARD err_t cluster_start(struct node *n, const struct cluster_events *events, struct cluster **ret,
                              struct why *why);
void cluster_close(struct cluster *c, void (*cb)(struct node *n));

/* Before the log is opened: what it must know of the cluster. Its on_role is passed on to cluster_role. */
void cluster_log_config(struct cluster *c, struct log_config *ret);
void cluster_role(struct cluster *c);

bool cluster_named(const struct cluster *c);         /* this node is in a cluster */
const char *cluster_self(const struct cluster *c);   /* our own name */
const char *cluster_leader(const struct cluster *c); /* NULL: nobody leads, as far as we know */
bool cluster_leads(const struct cluster *c);
int cluster_nodes(const struct cluster *c); /* how many there are, ours among them */
/* Leading: another could, or can be made a voter. When this node goes down (node.leaving) both happen by themselves. */
bool cluster_has_heir(const struct cluster *c);
/* Following, to the leader; NULL: not now. */
struct rpc_conn *cluster_leader_conn(struct cluster *c);
/* Following, a voter, and without this node the log's others are no majority, as far as we know: a leader that hears
 * that this node goes (node.leaving) takes it out of the log first, and says so. False when nobody has led for long. */
bool cluster_is_needed(const struct cluster *c);

/* ---- what people ask ----
 *
 * Each that succeeds ends control some 100 ms later, and the supervisor starts it anew with the files that were
 * written; processes of jobs do not notice. Codes and sentences are for people. */
struct cluster_wish { /* NULL and "": the configuration's, the host's */
    const char *name, *listen, *advertise, *domain;
};
NODISCARD err_t cluster_init(struct cluster *c, const struct cluster_wish *w, struct why *why);
typedef void (*cluster_done_cb)(void *arg, err_t err, const char *why);
NODISCARD err_t cluster_join(struct cluster *c, const char *token, const struct cluster_wish *w, cluster_done_cb cb,
                             void *arg, struct why *why);
NODISCARD err_t cluster_leave(struct cluster *c, cluster_done_cb cb, void *arg, struct why *why);
/* The majority is lost for ever: this node's log goes on with this node alone. */
NODISCARD err_t cluster_recover(struct cluster *c, struct why *why);

/* ---- streams to another node's stores ---- */

/* `argument` says which (stores.h). The callback comes once and later, and owns `fd`; -1: the node cannot be reached.
 */
typedef void (*cluster_dial_cb)(void *arg, int fd);
NODISCARD err_t cluster_dial_store(struct cluster *c, const char *node, const char *argument, cluster_dial_cb cb,
                                   void *arg);

/* ---- what other nodes say, through rpc_cluster.c ---- */

/* ERR_AGAIN: we do not lead; others with the reason. */
NODISCARD err_t cluster_hello(struct cluster *c, struct rpc_conn *conn, const char *name, const uint8_t *instance,
                              const char *version, const char **ret_why);
/* `ret`: the newer view, or NULL; `ret_needed`: without that node the log's voters that are there are no majority. */
NODISCARD err_t cluster_beat(struct cluster *c, struct rpc_conn *conn, uint64_t view, uint64_t index,
                             const struct buf **ret, bool *ret_needed);

#endif
