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
#ifndef DTD_DAEMON_CONTROL_CLUSTER_H
#define DTD_DAEMON_CONTROL_CLUSTER_H

#include "common/base/err.h"
#include "common/rpc/rpc.h"

#include <stdbool.h>
#include <stdint.h>

#define CLUSTER_NAME_MAX 253
#define CLUSTER_BEAT_MS 200
#define CLUSTER_LOST_MS 1500

struct node;
struct cluster;

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

const char *cluster_self(const struct cluster *c);   /* our own name */
const char *cluster_leader(const struct cluster *c); /* NULL: nobody leads, as far as we know */
bool cluster_leads(const struct cluster *c);
/* Following, to the leader; NULL: not now. */
struct rpc_conn *cluster_leader_conn(struct cluster *c);

#endif
