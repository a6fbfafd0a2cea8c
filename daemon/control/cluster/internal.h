/* The inside of the cluster: cluster.c (life, keys, what comes in), cluster_lead.c (members, voters, keys in rotation),
 * cluster_follow.c (finding who leads, beats), cluster_join.c (init, join, leave). */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_INTERNAL_H
#define DTD_DAEMON_CONTROL_CLUSTER_INTERNAL_H

#include "common/tunnel/key.h"
#include "common/tunnel/token.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/cluster/self_file.h"
#include "daemon/control/control.h"

#include <sys/queue.h>

#define TICK_MS 100
#define CALL_MS 1000 /* of Hello and Beat: less than CLUSTER_LOST_MS */
#define SAVE_MAX_BYTES (4u << 20)

/* A connection that another node has made to us, or a joining one. */
struct inbound {
    LIST_ENTRY(inbound) link;
    struct cluster *cluster;
    struct rpc_conn *conn;
    char name[NODE_NAME_MAX + 1]; /* as its tunnel says */
    uint64_t token;               /* it came by this one; 0: by the cluster's key */
};

/* Leading: another node. */
struct member {
    struct member *next; /* in no order */
    char *name;
    struct inbound *in; /* NULL: not connected */
    bool lost, keeping; /* lost: said so; keeping: still a node of the cluster */
    int64_t heard_ms;
    uint64_t view, index;
    char version[32];
};

struct cluster {
    struct node *node;
    const struct cluster_events *events;
    bool is_member, closing; /* a node of a cluster; else alone */
    struct cluster_self self;
    char self_path[PATH_STATE_DIR_MAX + 32], view_path[PATH_STATE_DIR_MAX + 32];
    uv_timer_t timer;
    int64_t ticked_ms;
    void (*closed)(struct node *n);

    /* What is known of the cluster: the leader's is its state, the others' the last that they were told. */
    struct state *view;
    struct buf view_bytes;
    uint64_t view_hash, view_changes;
    struct key_ring ring; /* of a key file: until the state has keys */

    struct tunnel_host *host;
    struct tunnel_listener *listener;
    int fd;
    LIST_HEAD(, inbound) inbound;

    /* leading */
    bool leads, changing, proposing;
    int64_t lead_ms, change_ms;
    struct member *members;

    /* following */
    struct tunnel_request *request;
    struct rpc_conn *leader;
    bool leader_up, asking; /* its Hello was answered; a Beat is under way */
    char leader_name[NODE_NAME_MAX + 1], hint[NODE_TEXT_MAX + 1];
    char followed[NODE_NAME_MAX + 1]; /* whom we followed last, and heard at leader_heard_ms; "": nobody yet */
    uint64_t leader_term;             /* that it led in when it answered our Hello */
    int64_t leader_heard_ms, try_ms, beat_ms;
    int64_t led_ms; /* until when we led, or when we began */
    bool released;  /* it has said that there is a majority without us */
    int turn;

    /* joining */
    struct token token; /* id 0: none */
    struct join *join;
};

/* The cluster as far as it is known here. */
const struct state_cluster *cluster_known(const struct cluster *c);
const struct state_node *cluster_node(const struct cluster *c, const char *name);
const struct state_node *cluster_node_by_id(const struct cluster *c, uint64_t id);
struct tunnel_key_id cluster_key(const struct cluster *c); /* to connect with */
/* Takes over what the leader says. */
void cluster_view_set(struct cluster *c, const void *bytes, size_t len);
/* The leader's own, when it has changed. */
void cluster_view_make(struct cluster *c);
NODISCARD err_t cluster_host_open(struct cluster *c, struct why *why);
/* Control ends, and the supervisor starts it again. */
void cluster_restart(struct cluster *c);

struct cluster_facts {
    const char *state, *version; /* version NULL: not known */
    int64_t silent_ms;
    uint64_t index;
};
void cluster_lead_facts(const struct cluster *c, const struct state_node *x, struct cluster_facts *ret);
void cluster_lead_begin(struct cluster *c);
void cluster_lead_end(struct cluster *c);
void cluster_lead_tick(struct cluster *c, int64_t now, int64_t gap_ms);
void cluster_lead_gone(struct cluster *c, struct inbound *in);

void cluster_follow_tick(struct cluster *c, int64_t now, int64_t gap_ms);
/* Nobody is followed any more. */
void cluster_follow_end(struct cluster *c);

/* A node that was given the key beforehand, and is in no cluster yet. */
NODISCARD err_t cluster_static(struct cluster *c, struct why *why);
void cluster_join_tick(struct cluster *c, int64_t now);

#endif
