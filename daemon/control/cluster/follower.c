/* Following: finding who leads, and staying with him.
 *
 *   (nobody) -> a tunnel to somebody -> Hello -> he leads: beats ... silence or loss -> (nobody)
 *                                            -> he does not, and says who does -> a tunnel to that one
 *
 * Whom to ask first: the one whom our own log follows, then whom another named, then all that are known in turn. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/cluster/rpc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 100
#define REFUSED_MS 5000 /* who is no node of the cluster any more need not ask often */

/* ---- losing him ---- */

static void lost(struct cluster *c, const char *why)
{
    bool was_up = c->leader_up;
    struct rpc_conn *conn = c->leader;
    c->leader_up = c->asking = c->released = false;
    c->leader = NULL;
    c->try_ms = clock_mono_ms() + RETRY_MS;
    if (was_up) {
        log_info("who leads is lost node=%s why=\"%s\"", c->leader_name, why);
        c->events->leader_down(c->node);
    }
    if (conn) {
        rpc_conn_set_data(conn, NULL);
        rpc_conn_close(conn);
    }
}

void cluster_follow_end(struct cluster *c)
{
    lost(c, "this node leads");
}

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct cluster *c = rpc_conn_data(conn);
    (void)owner;
    if (c && c->leader == conn)
        lost(c, "the connection has ended");
}

/* ---- Hello ---- */

static void on_hello(void *arg, err_t err, const char *text, bool leads, uint64_t term, const char *leader,
                     const char *address)
{
    struct cluster *c = arg;
    if (!c->leader || c->leader_up)
        return; /* of a connection that is given up */
    if (err || !leads) {
        if (err && err != ERR_CLOSED)
            log_info("not taken for a node node=%s why=\"%s\"", c->leader_name, text);
        snprintf(c->hint, sizeof(c->hint), "%s", !err && address ? address : "");
        if (leader && strcmp(leader, c->self.name) == 0)
            c->hint[0] = '\0';
        lost(c, "");
        if (err == ERR_NOTFOUND || err == ERR_DENIED)
            c->try_ms = clock_mono_ms() + REFUSED_MS;
        return;
    }
    c->leader_up = true;
    c->leader_term = term;
    c->leader_heard_ms = clock_mono_ms();
    snprintf(c->followed, sizeof(c->followed), "%s", c->leader_name);
    log_info("following node=%s", c->leader_name);
    c->events->leader_up(c->node, c->leader);
}

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct cluster *c = owner;
    struct node *n = c->node;
    const struct rpc_conn_config config = {.loop = &n->loop,
                                           .methods = n->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .max_calls = RPC_PEER_MAX_CALLS,
                                           .owner = n,
                                           .on_close = conn_closed};
    c->request = NULL;
    c->try_ms = clock_mono_ms() + RETRY_MS;
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
    if (rpc_cluster_hello(c->leader, c->self.name, c->self.instance, CALL_MS, on_hello, c))
        lost(c, "");
}

/* ---- whom to ask ---- */

static const char *next_address(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    const struct state_node *own = cluster_node_by_id(c, log_leader(c->node->log));
    int n_peers = c->node->conf.cluster.n_peers, all = k->n_nodes + n_peers;
    if (own && own->id != c->self.id && c->turn++ % 2 == 0)
        return own->address;
    if (c->hint[0])
        return c->hint;
    for (int i = 0; i < all; i++) {
        int at = c->turn++ % all;
        const char *address = at < k->n_nodes ? k->nodes[at].address : c->node->conf.cluster.peers[at - k->n_nodes];
        if (strcmp(address, c->self.address) != 0)
            return address;
    }
    return NULL;
}

static void ask(struct cluster *c, int64_t now)
{
    struct why why = {""};
    const char *address = next_address(c);
    c->try_ms = now + RETRY_MS;
    if (!address)
        return;
    const struct tunnel_connect_config config = {
        .address = address, .key = cluster_key(c), .purpose = TUNNEL_RPC, .deadline_ms = CALL_MS};
    if (tunnel_connect(c->host, &config, connected, c, &c->request, &why)) {
        log_debug("a node cannot be asked why=\"%s\"", why.text);
        c->request = NULL;
        c->hint[0] = '\0';
    }
}

/* ---- beats ---- */

static void on_beat(void *arg, err_t err, const void *view, size_t len, bool needed)
{
    struct cluster *c = arg;
    if (!c->leader)
        return;
    c->asking = false;
    if (err == ERR_AGAIN) {
        lost(c, "it leads no more");
        return;
    }
    if (err)
        return; /* silence is judged by the clock, an end by the connection */
    c->leader_heard_ms = clock_mono_ms();
    c->released = !needed;
    if (len)
        cluster_view_set(c, view, len);
}

void cluster_follow_tick(struct cluster *c, int64_t now, int64_t gap_ms)
{
    c->leader_heard_ms += gap_ms;
    if (!c->leader && !c->request && now >= c->try_ms)
        ask(c, now);
    if (!c->leader_up)
        return;
    /* Who votes no more is told of no new leader by the log: it may still know one of before. */
    const struct state_node *x = cluster_node_by_id(c, log_leader(c->node->log));
    bool newer = log_term(c->node->log) > c->leader_term;
    if (newer && x && strcmp(x->name, c->leader_name) != 0 && x->id != c->self.id) {
        snprintf(c->hint, sizeof(c->hint), "%s", x->address);
        lost(c, "the log is led by another");
        return;
    }
    if (now - c->leader_heard_ms > CLUSTER_LOST_MS) {
        lost(c, "it is silent");
        return;
    }
    if (c->asking || now < c->beat_ms)
        return;
    c->beat_ms = now + CLUSTER_BEAT_MS;
    c->asking = rpc_cluster_beat(c->leader, c->view_hash, log_index(c->node->log), CALL_MS, on_beat, c) == OK;
}
