/* Follower: finds the leader, keeps a connection to it and sends heartbeats.
 *
 *   (no leader) -> tunnel to some node -> Hello -> it leads: heartbeats ... timeout or connection lost -> (no leader)
 *                                               -> it does not lead, and names the leader -> tunnel to that node
 *
 * Nodes are tried in this order: the leader that our own log follows (every second time), the one that another node has
 * named, then the voters, of which one leads or will lead, and every fourth time one of all known nodes in turn. Each
 * node begins at another one and skips many: if all went through the list in its order, all would ask the same node,
 * and those of a rack without power, which are often neighbours in the list and cost CALL_MS each, would come one after
 * another. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/cluster/rpc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 100
#define ALL_TURN 4 /* every fourth turn tries any node instead of a voter: the voters may be others by now */

/* ---- connection lost ---- */

static void lose_leader(struct cluster *c, const char *why)
{
    bool was_up = c->leader_up;
    struct rpc_conn *conn = c->leader;
    c->leader_up = c->heartbeat_pending = c->released = false;
    c->leader = NULL;
    c->try_ms = clock_mono_ms() + RETRY_MS;
    if (was_up) {
        log_info("leader lost node=%s why=\"%s\"", c->leader_name, why);
        c->events->leader_down(c->owner);
    }
    if (conn) {
        rpc_conn_set_data(conn, NULL);
        rpc_conn_close(conn);
    }
}

void cluster_follow_end(struct cluster *c)
{
    lose_leader(c, "this node leads");
    cluster_fetch_drop(c);
}

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct cluster *c = rpc_conn_data(conn);
    (void)owner;
    if (c && c->leader == conn)
        lose_leader(c, "the connection was closed");
}

/* ---- Hello ---- */

/* An older leader does not check the versions of this dtd. */
static err_t check_version(const struct cluster *c, const struct rpc_hello_reply *r, struct why *why)
{
    if (r->version >= features_oldest() && r->version <= features_newest())
        return OK;
    return why_set(why, ERR_DENIED,
                   "the cluster has version %" PRIu32 ", and dtd on %s supports %" PRIu32 " to %" PRIu32
                   " (docs/operate/upgrade.md)",
                   r->version, c->self.name, features_oldest(), features_newest());
}

static void note_refusal(struct cluster *c, err_t err, const char *text)
{
    if (!err || err == ERR_CLOSED || err == ERR_TIMEOUT)
        return;
    log_info("this node is refused by node=%s why=\"%s\"", c->leader_name, text);
    snprintf(c->refused, sizeof(c->refused), "%.200s refuses this node: %.300s", c->leader_name, text);
}

static void on_hello(void *arg, err_t err, const char *text, const struct rpc_hello_reply *reply)
{
    struct cluster *c = arg;
    struct why why = {""};
    if (!c->leader || c->leader_up)
        return; /* reply on a connection that was given up */
    if (!err)
        cluster_introduce(c, &reply->introductions);
    if (!err && reply->leads && (err = check_version(c, reply, &why)))
        text = why.text;
    if (err || !reply->leads) {
        note_refusal(c, err, text);
        snprintf(c->hint, sizeof(c->hint), "%s", !err && reply->address ? reply->address : "");
        if (!err && reply->leader && strcmp(reply->leader, c->self.name) == 0)
            c->hint[0] = '\0';
        lose_leader(c, "");
        if (err == ERR_NOTFOUND || err == ERR_DENIED)
            c->try_ms = clock_mono_ms() + REFUSED_MS;
        return;
    }
    c->leader_up = true;
    c->leader_term = reply->term;
    c->refused[0] = '\0';
    cluster_note_answer(c, OK);
    c->leader_reply_ms = clock_mono_ms();
    snprintf(c->followed, sizeof(c->followed), "%s", c->leader_name);
    log_info("following node=%s", c->leader_name);
    c->events->leader_up(c->owner, c->leader);
}

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct cluster *c = owner;
    const struct rpc_conn_config config = {.loop = c->loop,
                                           .methods = c->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .max_calls = RPC_PEER_MAX_CALLS,
                                           .owner = c->methods_owner,
                                           .on_close = conn_closed};
    c->request = NULL;
    c->try_ms = clock_mono_ms() + (c->is_removed ? REFUSED_MS : RETRY_MS);
    if (err == ERR_STALE)
        cluster_note_answer(c, err);
    if (err) {
        log_debug("no connection to a node why=\"%s\"", why);
        c->hint[0] = '\0';
        return;
    }
    if (c->closing || c->leads || c->leader) {
        close(fd);
        return;
    }
    snprintf(c->leader_name, sizeof(c->leader_name), "%s", peer->name);
    err = rpc_conn_open(&config, fd, RPC_ROLE_PEER, &c->leader);
    if (err) {
        c->leader = NULL;
        return;
    }
    rpc_conn_set_data(c->leader, c);
    if (rpc_cluster_hello(c->leader, c->self.name, c->self.instance, cluster_old_copy(c) != NULL, CALL_MS, on_hello, c))
        lose_leader(c, "");
}

/* ---- which node to try ---- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The place of a turn among `n`: a step that has no common divisor with n reaches each place once in n turns. */
static int place_of_turn(const struct cluster *c, int turn, int n)
{
    int64_t step = (int64_t)n * 5 / 8 + 1;
    while (common_divisor(step, n) != 1)
        step++;
    return (int)(((int64_t)(c->self.id % (uint64_t)n) + (int64_t)turn % n * step) % n);
}

/* The voters in turn, each node beginning at another one. NULL: this turn is for all nodes, or there is none: the
 * leader that was lost is left out, because an attempt to connect to a node without power takes CALL_MS. If it still
 * leads, another voter names it. */
static const char *voter_address(const struct cluster *c)
{
    if (!c->n_voters || c->turn % ALL_TURN == 0)
        return NULL;
    uint64_t id = c->voters[((uint64_t)c->turn + c->self.id) % (uint64_t)c->n_voters];
    const struct state_node *x = id == c->self.id ? NULL : cluster_node_by_id(c, id);
    return x && strcmp(x->name, c->followed) != 0 ? x->address : NULL;
}

static const char *next_address(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    const struct state_node *own = cluster_node_by_id(c, log_leader(c->replica->log));
    int n_peers = c->conf->cluster.n_peers, all = k->n_nodes + n_peers;
    if (own && own->id != c->self.id && c->turn++ % 2 == 0)
        return own->address;
    if (c->hint[0])
        return c->hint;
    const char *voter = voter_address(c);
    if (voter) {
        c->turn++;
        return voter;
    }
    for (int i = 0; i < all; i++) {
        int at = place_of_turn(c, c->turn++, all);
        const char *address = at < k->n_nodes ? k->nodes[at].address : c->conf->cluster.peers[at - k->n_nodes];
        if (strcmp(address, c->self.address) != 0)
            return address;
    }
    return NULL;
}

static void try_next_node(struct cluster *c, int64_t now)
{
    struct why why = {""};
    const char *address = next_address(c);
    c->try_ms = now + RETRY_MS;
    if (!address)
        return;
    const struct tunnel_connect_config config = {
        .address = address, .key = cluster_key(c), .purpose = TUNNEL_RPC, .deadline_ms = CALL_MS};
    if (tunnel_connect(c->host, &config, connected, c, &c->request, &why)) {
        log_debug("no connection to a node why=\"%s\"", why.text);
        c->request = NULL;
        c->hint[0] = '\0';
    }
}

/* ---- heartbeats ---- */

static void on_heartbeat(void *arg, err_t err, const struct rpc_beat_reply *reply)
{
    struct cluster *c = arg;
    if (!c->leader)
        return;
    c->heartbeat_pending = false;
    if (err == ERR_AGAIN) {
        lose_leader(c, "it is no longer the leader");
        return;
    }
    if (err)
        return; /* cluster_follow_tick detects the timeout, conn_closed a closed connection */
    c->leader_reply_ms = clock_mono_ms();
    c->released = !reply->needed;
    if (!reply->behind)
        c->introduced.n = 0; /* the view is current after this reply */
    cluster_fetch_answered(c, reply->known);
    if (reply->source_address)
        cluster_fetch_begin(c, reply->source_address, &reply->source);
    if (reply->view.len)
        cluster_view_set(c, reply->view.data, reply->view.len);
    else if (reply->n_changes)
        cluster_view_change(c, reply->changes, reply->n_changes, reply->hash);
    log_learn(c->replica->log, reply->marks, reply->n_marks);
    if (!reply->n_voters)
        return;
    memcpy(c->voters, reply->voters, (size_t)reply->n_voters * sizeof(c->voters[0]));
    c->n_voters = reply->n_voters;
}

void cluster_follow_tick(struct cluster *c, int64_t now, int64_t gap_ms)
{
    c->leader_reply_ms += gap_ms;
    if (cluster_superseded(c))
        return;
    if (cluster_log_is_old(c) && !c->view_saving && c->view_saved == c->view_hash) {
        log_warn("the cluster was recovered: this node starts again, with an empty log generation=%" PRIu64,
                 cluster_known(c)->lineage.generation);
        cluster_restart(c);
        return;
    }
    if (!c->leader && !c->request && now >= c->try_ms)
        try_next_node(c, now);
    if (!c->leader_up)
        return;
    /* The log of a former voter gets no news of leader changes and may name an old leader; hence the comparison of
     * terms. */
    const struct state_node *x = cluster_node_by_id(c, log_leader(c->replica->log));
    bool newer = log_term(c->replica->log) > c->leader_term;
    if (newer && x && strcmp(x->name, c->leader_name) != 0 && x->id != c->self.id) {
        snprintf(c->hint, sizeof(c->hint), "%s", x->address);
        lose_leader(c, "another node leads the log");
        return;
    }
    if (now - c->leader_reply_ms > CLUSTER_LOST_MS) {
        lose_leader(c, "no reply to heartbeats");
        return;
    }
    if (c->heartbeat_pending || now < c->next_heartbeat_ms)
        return;
    c->next_heartbeat_ms = now + CLUSTER_HEARTBEAT_MS;
    const struct cluster_beat beat = {.view = cluster_view_reported(c),
                                      .index = log_index(c->replica->log),
                                      .changes = true,
                                      .shares = true,
                                      .fetched = cluster_fetch_offer(c)};
    c->heartbeat_pending = rpc_cluster_heartbeat(c->leader, &beat, CALL_MS, on_heartbeat, c) == OK;
}
