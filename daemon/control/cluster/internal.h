/* Private parts of the cluster, shared by cluster.c (start, keys, incoming connections), view.c (the view), leader.c
 * (members, voters, key rotation), spread.c (how the view reaches the nodes), follower.c (finding the leader,
 * heartbeats), fetch.c (the view from another node), membership.c (init, join, leave), identity.c (which identities are
 * nodes) and rpc.c (messages). */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_INTERNAL_H
#define DTD_DAEMON_CONTROL_CLUSTER_INTERNAL_H

#include "common/base/paths.h"
#include "common/conf/node.h"
#include "common/rpc/methods.h"
#include "common/tunnel/key.h"
#include "common/tunnel/token.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/cluster/lineage_file.h"
#include "daemon/control/cluster/self_file.h"
#include "daemon/control/local/pool.h"
#include "daemon/control/state/features.h"
#include "daemon/control/state/replica.h"

#include <sys/queue.h>

#define TICK_MS 100
#define CALL_MS 1000 /* timeout of Hello and Beat (the heartbeat); less than CLUSTER_LOST_MS */

/* A connection that was opened by another node of the cluster or by a joining one. */
struct cluster_inbound {
    LIST_ENTRY(cluster_inbound) link;
    struct cluster *cluster;
    struct rpc_conn *conn;
    char name[NODE_NAME_MAX + 1]; /* as authenticated by the tunnel */
    uint64_t token;               /* id of the join token that it authenticated with; 0: the cluster's key */
    bool joins;                   /* its tunnel is for joining only */
    bool is_proven;               /* its tunnel has proved the identity `public_key` */
    uint8_t public_key[NODE_KEY_BYTES];
    struct cluster_peer *peer; /* leader: the node whose Hello came over it; NULL: none, or a later one has come */
};

/* Leader: another node of the cluster. */
struct cluster_peer {
    uint64_t id;
    char *name;
    struct cluster_inbound *in; /* NULL: not connected */
    bool lost;                  /* member_lost was called */
    bool changes;               /* it understands changes of the view */
    bool old_copy;              /* its log is an old copy */
    int64_t heartbeat_ms;       /* when its last heartbeat arrived */
    uint64_t view, index;       /* hash of its view and its log index, from that heartbeat */
    uint64_t voters;            /* `voters_version` that was sent to it; 0: none */
    bool shares;                /* it serves its view to other nodes, and fetches it from them */
    bool is_source;             /* it is in the queue of sources, for `serves` more nodes */
    int serves;
    TAILQ_ENTRY(cluster_peer) source_link;
    int64_t sent_ms; /* when it was sent to a source; 0: never */
    char version[32];
    struct features_range has; /* of its last Hello, which may have been refused; 0: it has sent none */
};

/* Leader: a change of the view, from the one with the hash `from` to that of the next step, or to the current one. */
struct cluster_step {
    uint64_t from;
    uint8_t digest[CLUSTER_DIGEST_BYTES]; /* of the view `from` */
    struct buf bytes;
};

/* Follower: the view on its way from another node (fetch.c). */
struct cluster_fetch {
    struct tunnel_request *request; /* at most one of these two is not NULL */
    struct rpc_conn *conn;
    struct cluster_introduced source; /* while it is fetched; name "": it is not */
    struct buf view;                  /* fetched, and not confirmed by the leader yet; empty: none */
    uint8_t digest[CLUSTER_DIGEST_BYTES];
    bool is_offered; /* the heartbeat under way has the digest */
};

/* Large answers with the view that the leader sends in one tick: 10 MB a second, which encryption turns into 2 % of a
 * core, so heartbeats go on. Everything above comes from nodes that have the view. */
#define CLUSTER_SPREAD_BYTES (1u << 20)
#define REFUSED_MS 5000 /* a node that is no longer a member has no reason to retry often */

struct cluster {
    uv_loop_t *loop;
    const char *dir;
    const struct node_conf *conf;
    const struct replica *replica;
    const struct rpc_method *methods;
    void *methods_owner;
    const struct cluster_events *events;
    void *owner;             /* of the events */
    bool is_member, closing; /* member of a cluster; else alone */
    struct cluster_self self;
    bool self_due, view_due; /* their files could not be written, as on a full disk, and are written again */
    bool view_saving;        /* a thread writes the view */
    struct pool *saves;
    int64_t save_ms; /* when */
    char self_path[PATH_STATE_DIR_MAX + 32], view_path[PATH_STATE_DIR_MAX + 32];
    uv_timer_t timer;
    int64_t ticked_ms;
    void (*closed)(void *owner);

    /* The cluster's nodes, tokens and keys. The leader reads them from its state; a follower has the view that the
     * leader sent last. */
    struct state *view;
    struct buf view_bytes;
    uint64_t view_hash, view_changes;          /* hash 0: none, or the changes of the leader did not fit */
    uint64_t view_saved;                       /* hash of the view in the file */
    bool keys_unsaved;                         /* the view has other keys than the one in the file */
    uint8_t view_digest[CLUSTER_DIGEST_BYTES]; /* leader; zeros: not computed, as by a follower */
    struct cluster_step steps[CLUSTER_STEPS];
    int n_steps;
    struct key_ring ring; /* from a key file; used until the state has keys */

    /* identities (identity.c) */
    struct identity identity; /* of this node, or of the node that it becomes by joining */
    char identity_path[PATH_STATE_DIR_MAX + 32];
    bool has_old_identity;  /* it was in the file at the start */
    uint32_t registered_at; /* leader: the cluster version at which the identities of all peers were looked at */
    struct cluster_introductions introduced; /* by the node that answered Hello last, until the leader has replied */
    struct cluster_introductions introduces; /* for the nodes that send Hello, made from .. */
    uint64_t introduces_ids[CLUSTER_INTRODUCED], introduces_changes; /* .. these voters and `changes` of .. */
    int n_introduces_ids, introduces_from;                           /* .. 1 the state or 2 the view; 0: not made yet */
    int64_t removed_since_ms; /* since when the leader's answer has been that this node was removed; 0: it is not */
    bool is_removed;
    bool recheck_due; /* at the next tick, tunnels of removed nodes and of dropped keys are closed */

    struct tunnel_host *host;
    struct tunnel_listener *listener;
    int fd;
    LIST_HEAD(, cluster_inbound) inbound;

    /* leader */
    bool leads, changing, proposing; /* a change of the voters, a record is under way */
    int64_t lead_ms, change_ms;
    struct cluster_peer **peers; /* ascending by name; n_peers of them */
    int n_peers;
    uint64_t peers_changes;  /* `changes` of the state when they were taken from it */
    uint64_t voters_version; /* incremented when the voters change */

    /* spread.c */
    TAILQ_HEAD(, cluster_peer) sources; /* nodes with the current view that may serve it */
    size_t spread_limit;                /* bytes of large answers in one tick */
    size_t large_bytes, small_bytes;    /* sent since the last tick */

    uint64_t voters[LOG_MAX_MEMBERS]; /* ids; a follower has them from the leader */
    int n_voters;

    /* follower */
    struct tunnel_request *request;
    struct rpc_conn *leader;
    bool leader_up, heartbeat_pending;                            /* it has answered Hello; a heartbeat is under way */
    char leader_name[NODE_NAME_MAX + 1], hint[NODE_TEXT_MAX + 1]; /* hint: address to try next; "": none */
    char followed[NODE_NAME_MAX + 1]; /* the last leader, which replied last at leader_reply_ms; "": none yet */
    uint64_t leader_term;             /* the leader's term when it answered Hello */
    char refused[600];                /* why the last Hello was refused; "": it was not */
    int64_t leader_reply_ms, try_ms, next_heartbeat_ms;
    int64_t led_ms; /* when this node was last the leader; 0: never */
    bool released;  /* the leader reports that there is a majority without this node */
    int turn;       /* which address is tried next */
    struct cluster_fetch fetch;

    /* lineage.c */
    struct lineage_file recovery, superseded, old_copy; /* generation 0: none */
    bool recovers, lineage_proposed; /* the file `recovery` exists; a record of the lineage is under way */
    int64_t recovery_ms;             /* when its end is written again */
    bool rechecks;                   /* keys of open tunnels are compared, for which retired ones do not count */

    /* joining */
    struct token token; /* id 0: none */
    struct cluster_joining *join;
};

const struct state_node *cluster_node_by_id(const struct cluster *c, uint64_t id);
struct tunnel_key_id cluster_key(const struct cluster *c); /* the key to connect with */

/* view.c. Reads the file. */
NODISCARD err_t cluster_view_load(struct cluster *c, struct why *why);
/* Starts to write the file, if it is behind and no write is under way; the second does it after a failure. */
void cluster_view_save(struct cluster *c);
void cluster_view_save_again(struct cluster *c);
/* Follower: replaces the view with the one that the leader has sent. */
void cluster_view_set(struct cluster *c, const void *bytes, size_t len);
/* Follower: makes the changes that the leader has sent. `hash`: of the view that they give. */
void cluster_view_change(struct cluster *c, const struct cluster_bytes *changes, int n, uint64_t hash);
/* Follower: the hash to report to the leader. */
uint64_t cluster_view_reported(const struct cluster *c);
/* Leader: encodes the view again if the state has changed. */
void cluster_view_make(struct cluster *c);
/* Leader: what a follower needs that has the view with the hash `has`. Fills in all but `needed` and `voters`. */
void cluster_view_news(const struct cluster *c, uint64_t has, bool understands, struct cluster_news *ret);
/* Leader: bytes of the changes from the view with this hash; SIZE_MAX: they are not kept any more, or it is unknown. */
size_t cluster_view_lag(const struct cluster *c, uint64_t has);
/* Leader: is this the digest of one of the last views? */
bool cluster_view_is_known(const struct cluster *c, const uint8_t digest[CLUSTER_DIGEST_BYTES], uint64_t *ret_hash);
NODISCARD err_t cluster_view_digest(const void *data, size_t len, uint8_t ret[CLUSTER_DIGEST_BYTES]);

/* spread.c. Leader: what the node gets as the answer to this heartbeat. */
void cluster_spread(struct cluster *c, struct cluster_peer *m, const struct cluster_beat *beat,
                    struct cluster_news *ret);
void cluster_spread_tick(struct cluster *c);
void cluster_spread_forget(struct cluster *c, struct cluster_peer *m); /* it is no source any more */

/* fetch.c. Follower: fetches the view from a node that the leader has named, if no fetch is under way. */
void cluster_fetch_begin(struct cluster *c, const char *address, const struct cluster_introduced *source);
/* The digest for the heartbeat that is sent now; NULL: there is none. */
const uint8_t *cluster_fetch_offer(struct cluster *c);
/* The answer to the heartbeat: takes the view that was offered, or drops it. */
void cluster_fetch_answered(struct cluster *c, bool is_known);
void cluster_fetch_drop(struct cluster *c);

/* lineage.c. What every tunnel compares; its functions get the cluster. */
extern const struct tunnel_kin cluster_kin;
/* Reads the files, after the view. */
NODISCARD err_t cluster_lineage_load(struct cluster *c, struct why *why);
/* Our folder has a log of an earlier generation than the view: it is renamed at the next start. */
bool cluster_log_is_old(const struct cluster *c);
/* Writes the file `recovery`, with the members of the log. */
NODISCARD err_t cluster_lineage_request(const struct cluster *c, uint32_t uid, struct why *why);
/* The node has left the cluster: removes the files. */
void cluster_lineage_forget(const struct cluster *c);
/* This node leads the log: may it lead the cluster? False until the record of a recovery, which it proposes, is
 * applied; to be asked again then. */
bool cluster_may_lead(struct cluster *c);
/* Leader: proposes the cluster's id if it has none. Returns whether it has. */
bool cluster_lineage_propose(struct cluster *c);
void cluster_self_save(struct cluster *c);
/* Closes the tunnels whose key is no longer valid. */
void cluster_recheck(struct cluster *c);

/* ---- identity.c ---- */

/* Reads the file; makes it in a cluster of an older version. */
NODISCARD err_t cluster_identity_load(struct cluster *c, struct why *why);
NODISCARD err_t cluster_identity_write(struct cluster *c, struct why *why);
/* The identity that was read is the one that the view lists; no other node would admit another one. */
NODISCARD err_t cluster_identity_check(const struct cluster *c, struct why *why);
enum tunnel_verdict cluster_admit(void *owner, const struct tunnel_peer *peer, bool accepts); /* owner: the cluster */
/* Does a node of this id and name exist, as far as this node knows? */
bool cluster_is_node(const struct cluster *c, uint64_t id, const char *name);
void cluster_introduce(struct cluster *c, const struct cluster_introductions *from);
/* Leader: records the identity of `in`, if the node has none. */
void cluster_identity_register(const struct cluster *c, const struct cluster_inbound *in, const struct state_node *x);
/* Follower: the result of an attempt to connect. ERR_STALE: the leader answers that this node was removed. */
void cluster_note_answer(struct cluster *c, err_t err);

NODISCARD err_t cluster_host_open(struct cluster *c, struct why *why);
/* Exits control after a moment; the supervisor starts it again. */
void cluster_restart(struct cluster *c);

/* version.c. Leader: proposes the next cluster version if all nodes have it; returns whether it did. */
bool cluster_version_raise(struct cluster *c);
/* Leader: a voter whose dtd is newer than this one; NULL: none. */
const struct cluster_peer *cluster_newer_voter(const struct cluster *c);

void cluster_propose(struct cluster *c, struct record *r);
bool cluster_votes(const struct cluster *c, uint64_t id);

void cluster_lead_begin(struct cluster *c);
void cluster_lead_end(struct cluster *c);
void cluster_lead_tick(struct cluster *c, int64_t now, int64_t gap_ms);
void cluster_lead_gone(struct cluster *c, struct cluster_inbound *in);

void cluster_follow_tick(struct cluster *c, int64_t now, int64_t gap_ms);
/* This node leads: closes the connection to the previous leader. */
void cluster_follow_end(struct cluster *c);

/* For a node with cluster.key_file that is not in a cluster yet: creates one or starts to join. */
NODISCARD err_t cluster_static(struct cluster *c, struct why *why);
void cluster_join_tick(struct cluster *c, int64_t now);

#endif
