/* Leader duties: track which nodes are alive, choose voters, rotate keys.
 *
 * The nodes are listed in the replicated state. Each opens a connection to the leader, sends Hello and then a heartbeat
 * every CLUSTER_HEARTBEAT_MS. A node whose connection is closed may reconnect; after CLUSTER_LOST_MS without a
 * heartbeat it is declared lost. A new leader starts this timer at its election and doubles it, because the nodes must
 * first find the new leader. For the previous leader the timer starts at its last reply, and ends PREVIOUS_LEADER_MS
 * after the election at the earliest. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/cluster/rpc.h"
#include "daemon/control/cluster/voters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* How long a new leader waits for a node's first heartbeat. Twice the normal limit: a node notices that its leader is
 * gone only after CLUSTER_LOST_MS, and then has to find this one. */
#define FIRST_HEARTBEAT_MS (2 * CLUSTER_LOST_MS)
/* The least time that a new leader waits for the previous one. That may be alive and merely outvoted, and needs time to
 * step down and connect. */
#define PREVIOUS_LEADER_MS 1000
#define CHANGE_MS 500 /* between checks of the set of voters */

/* ---- nodes of the cluster ---- */

static struct cluster_peer *find_peer(const struct cluster *c, const char *name)
{
    int low = 0, high = c->n_peers;
    while (low < high) {
        int at = (low + high) / 2;
        bool is_before = strcmp(c->peers[at]->name, name) < 0;
        low = is_before ? at + 1 : low;
        high = is_before ? high : at;
    }
    return low < c->n_peers && strcmp(c->peers[low]->name, name) == 0 ? c->peers[low] : NULL;
}

static void unlink_inbound(struct cluster_peer *m)
{
    if (m->in)
        m->in->peer = NULL;
    m->in = NULL;
}

static void close_peer(struct cluster *c, struct cluster_peer *m)
{
    struct cluster_inbound *in = m->in;
    unlink_inbound(m);
    if (!in)
        return;
    c->events->member_down(c->owner, m->name);
    rpc_conn_close(in->conn);
}

static void free_peer(struct cluster *c, struct cluster_peer *m)
{
    cluster_spread_forget(c, m);
    free(m->name);
    free(m);
}

static void remove_peer(struct cluster *c, struct cluster_peer *m)
{
    bool was_lost = m->lost;
    if (m->in)
        rpc_cluster_dismiss(m->in->conn, m->name);
    close_peer(c, m);
    if (!was_lost)
        c->events->member_lost(c->owner, m->name, clock_mono_ms() - m->heartbeat_ms, "it left the cluster");
    free_peer(c, m);
}

/* NULL: out of memory. */
static struct cluster_peer *new_peer(const struct state_node *x, int64_t now)
{
    struct cluster_peer *m = calloc(1, sizeof(*m));
    char *copy = strdup(x->name);
    if (!m || !copy) {
        free(m);
        free(copy);
        return NULL;
    }
    m->name = copy;
    m->heartbeat_ms = now + FIRST_HEARTBEAT_MS - CLUSTER_LOST_MS;
    return m;
}

/* The peers of the nodes that the state lists, in `ret`, in the order of names like `old`; those that it does not list
 * go to `gone`. Returns false if a new one did not fit into memory. */
static bool merge_peers(struct cluster *c, int64_t now, struct cluster_peer **ret, int *ret_n,
                        struct cluster_peer **gone, int *ret_gone)
{
    const struct state_cluster *k = cluster_known(c);
    struct cluster_peer **old = c->peers;
    int at = 0, n = 0, n_gone = 0, missing = 0;
    for (int i = 0; i < k->n_nodes; i++) {
        const struct state_node *x = &k->nodes[i];
        if (x->id == c->self.id)
            continue;
        while (at < c->n_peers && strcmp(old[at]->name, x->name) < 0)
            gone[n_gone++] = old[at++];
        bool is_old = at < c->n_peers && strcmp(old[at]->name, x->name) == 0;
        struct cluster_peer *m = is_old ? old[at++] : new_peer(x, now);
        missing += !m;
        if (m) {
            m->id = x->id;
            ret[n++] = m;
        }
    }
    while (at < c->n_peers)
        gone[n_gone++] = old[at++];
    *ret_n = n;
    *ret_gone = n_gone;
    return !missing;
}

/* Adds and removes peers if the nodes of the state have changed. */
static void update_peers(struct cluster *c, int64_t now)
{
    const struct state_cluster *k = cluster_known(c);
    if (c->peers && k->changes == c->peers_changes)
        return;
    int n, n_gone;
    struct cluster_peer **peers = calloc((size_t)k->n_nodes + 1, sizeof(*peers));
    struct cluster_peer **gone = calloc((size_t)c->n_peers + 1, sizeof(*gone));
    if (!peers || !gone) { /* tried again at the next tick */
        free(peers);
        free(gone);
        return;
    }
    bool is_whole = merge_peers(c, now, peers, &n, gone, &n_gone);
    free(c->peers);
    c->peers = peers;
    c->n_peers = n;
    c->peers_changes = is_whole ? k->changes : k->changes - 1;
    for (int i = 0; i < n_gone; i++)
        remove_peer(c, gone[i]);
    free(gone);
}

static void check_liveness(struct cluster *c, struct cluster_peer *m, int64_t now)
{
    int64_t silent = now - m->heartbeat_ms;
    if (m->lost || silent <= CLUSTER_LOST_MS)
        return;
    const char *why = m->in ? "no heartbeat" : "connection closed";
    log_warn("node lost node=%s silent_ms=%" PRId64 " why=\"%s\"", m->name, silent, why);
    m->lost = true;
    close_peer(c, m);
    c->events->member_lost(c->owner, m->name, silent, why);
}

void cluster_lead_gone(struct cluster *c, struct cluster_inbound *in)
{
    struct cluster_peer *m = in->peer;
    if (!m)
        return;
    unlink_inbound(m);
    c->events->member_down(c->owner, m->name);
}

err_t cluster_hello(struct cluster *c, struct rpc_conn *conn, const struct cluster_greeting *from, struct why *why)
{
    struct cluster_inbound *in = rpc_conn_data(conn);
    const char *name = from->name;
    const struct state_node *x = cluster_node(c, name);
    if (!c->is_member || !c->leads)
        return ERR_AGAIN;
    if (!in || strcmp(in->name, name) != 0 || !x)
        return why_set(why, ERR_NOTFOUND, "this node is not a member of the cluster: dtctl cluster join");
    if (memcmp(x->instance, from->instance, NODE_INSTANCE_BYTES) != 0)
        return why_set(why, ERR_DENIED,
                       "another node has joined under this name: dtctl cluster leave, then join under another name");
    struct cluster_peer *m = find_peer(c, name);
    if (!m || m->id != x->id) {
        update_peers(c, clock_mono_ms()); /* the node is newer than the last tick */
        m = find_peer(c, name);
    }
    if (!m)
        return ERR_AGAIN;
    m->has = *from->has;
    snprintf(m->version, sizeof(m->version), "%s", from->version);
    err_t err = cluster_admits(c, name, from->has, why);
    if (err)
        return err;
    cluster_identity_register(c, in, x);
    if (m->in != in)
        close_peer(c, m);
    m->in = in;
    in->peer = m;
    m->lost = false;
    m->voters = 0;
    m->old_copy = from->old_copy;
    m->heartbeat_ms = clock_mono_ms();
    log_info("node connected node=%s", m->name);
    c->events->member_up(c->owner, m->name, conn);
    return OK;
}

/* Without this node, would the connected voters be no majority? Most nodes do not vote, and need no search. */
static bool is_needed(const struct cluster *c, const struct cluster_peer *x)
{
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n = log_members(c->replica->log, in_log), voters = 0, others = 0;
    bool votes = false;
    for (int i = 0; i < n; i++)
        votes |= in_log[i].role == LOG_VOTER && in_log[i].id == x->id;
    for (int i = 0; votes && i < n; i++) {
        const struct state_node *y = cluster_node_by_id(c, in_log[i].id);
        const struct cluster_peer *m = y ? find_peer(c, y->name) : NULL;
        if (in_log[i].role != LOG_VOTER)
            continue;
        voters++;
        others += in_log[i].id != x->id && (in_log[i].id == c->self.id || (m && m->in));
    }
    return votes && others <= voters / 2;
}

/* So a voter recognizes an old copy of another one's log also when the leader is down (log/witness.h). */
static void take_marks(const struct cluster *c, struct cluster_news *ret)
{
    struct log_mark marks[LOG_MAX_MEMBERS];
    int n = log_marks(c->replica->log, marks);
    ret->n_marks = n < CLUSTER_MARKS ? n : CLUSTER_MARKS;
    memcpy(ret->marks, marks, (size_t)ret->n_marks * sizeof(marks[0]));
}

bool cluster_needs_vote(const struct cluster *c, const struct state_node *x)
{
    const struct cluster_peer *m = find_peer(c, x->name);
    return m && is_needed(c, m);
}

err_t cluster_heartbeat(struct cluster *c, struct rpc_conn *conn, const struct cluster_beat *beat,
                        struct cluster_news *ret)
{
    struct cluster_inbound *in = rpc_conn_data(conn);
    struct cluster_peer *m = c->leads && in ? in->peer : NULL;
    if (!m)
        return ERR_AGAIN;
    *ret = (struct cluster_news){.needed = is_needed(c, m)};
    m->heartbeat_ms = clock_mono_ms();
    m->changes = beat->changes;
    m->view = beat->view;
    m->index = beat->index;
    cluster_spread(c, m, beat, ret);
    if (cluster_votes(c, m->id))
        take_marks(c, ret);
    if (m->voters == c->voters_version)
        return OK;
    m->voters = c->voters_version;
    ret->voters = c->voters;
    ret->n_voters = c->n_voters;
    return OK;
}

/* ---- voters ---- */

/* The node has reported that it is shutting down, or that the disk of its log has failed. */
static bool must_not_vote(const struct cluster *c, const struct state_node *x)
{
    return c->events->is_leaving(c->owner, x->id == c->self.id ? NULL : x->name);
}

static void describe_node(const struct cluster *c, const struct state_node *x, struct voters_node *ret, int64_t now)
{
    const struct cluster_peer *m = find_peer(c, x->name);
    bool self = x->id == c->self.id;
    *ret = (struct voters_node){.id = x->id,
                                .listed = true,
                                .self = self,
                                .up = self || (m && m->in),
                                .drained = x->drained != NULL || must_not_vote(c, x) || (m && m->old_copy),
                                .away_ms = self || !m ? 0
                                           : m->in    ? 0
                                                      : now - m->heartbeat_ms,
                                .domain = x->domain};
}

/* Followers search for the next leader among the voters. */
static void update_voters(struct cluster *c)
{
    struct log_member in_log[LOG_MAX_MEMBERS];
    uint64_t ids[LOG_MAX_MEMBERS];
    int n_log = log_members(c->replica->log, in_log), n = 0;
    for (int i = 0; i < n_log; i++)
        if (in_log[i].role == LOG_VOTER)
            ids[n++] = in_log[i].id;
    if (c->voters_version && n == c->n_voters && memcmp(ids, c->voters, (size_t)n * sizeof(ids[0])) == 0)
        return;
    memcpy(c->voters, ids, (size_t)n * sizeof(ids[0]));
    c->n_voters = n;
    c->voters_version++;
}

static void on_changed(void *arg, err_t err)
{
    struct cluster *c = arg;
    c->changing = false;
    if (err)
        log_warn("voters not changed error=%s", err_text(err));
}

static void make_change(struct cluster *c, struct voters_change x)
{
    struct log *log = c->replica->log;
    err_t err = OK;
    c->changing = x.step != VOTERS_NOTHING;
    if (x.step == VOTERS_ADD)
        err = log_add(log, x.id, on_changed, c);
    else if (x.step == VOTERS_PROMOTE)
        err = log_assign(log, x.id, LOG_VOTER, on_changed, c);
    else if (x.step == VOTERS_REMOVE)
        err = log_remove(log, x.id, on_changed, c);
    else if (x.step == VOTERS_HAND_OVER)
        err = log_transfer(log, x.id, on_changed, c);
    if (err) {
        c->changing = false;
        log_debug("voters not changed error=%s", err_text(err));
    }
}

/* Lists all nodes of the state and all members of the log, each once. Returns the number; *ret is NULL when out of
 * memory. The caller frees it. */
static int list_nodes(const struct cluster *c, int64_t now, struct voters_node **ret)
{
    const struct state_cluster *k = cluster_known(c);
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n_log = log_members(c->replica->log, in_log), n = 0;
    struct voters_node *nodes = *ret = calloc((size_t)(k->n_nodes + n_log) + 1, sizeof(*nodes));
    for (; nodes && n < k->n_nodes; n++)
        describe_node(c, &k->nodes[n], &nodes[n], now);
    for (int i = 0; nodes && i < n_log; i++) {
        int at = 0;
        while (at < n && nodes[at].id != in_log[i].id)
            at++;
        if (at == n)
            nodes[n++] = (struct voters_node){.id = in_log[i].id, .self = in_log[i].id == c->self.id, .domain = ""};
        nodes[at].in_log = true;
        nodes[at].role = in_log[i].role;
    }
    return n;
}

static void choose_voters(struct cluster *c, int64_t now)
{
    const struct cluster_peer *newer = c->events->is_unfit(c->owner) ? cluster_newer_voter(c) : NULL;
    struct voters_node *nodes;
    if (newer) {
        make_change(c, (struct voters_change){VOTERS_HAND_OVER, newer->id});
        return;
    }
    int n = list_nodes(c, now, &nodes);
    if (nodes && cluster_known(c)->n_nodes)
        make_change(c, voters_next(nodes, n));
    free(nodes);
}

/* A node that may still connect to a new leader and be a successor. */
static bool may_come(const struct voters_node *x)
{
    return x->listed && !x->self && !x->up && !x->drained && x->away_ms < CLUSTER_LOST_MS;
}

bool cluster_has_successor(const struct cluster *c)
{
    struct voters_node *nodes;
    int n = c->is_member && c->leads ? list_nodes(c, clock_mono_ms(), &nodes) : 0;
    if (!n)
        return false;
    bool has = voters_have_successor(nodes, n);
    for (int i = 0; i < n; i++)
        has = has || may_come(&nodes[i]);
    free(nodes);
    return has;
}

/* ---- records of the leader ---- */

static void on_proposed(void *arg, err_t err, uint64_t index, const void *result)
{
    struct cluster *c = arg;
    (void)index;
    const struct state_result *r = result;
    c->proposing = false;
    if (err || r->err)
        log_warn("a record of the cluster is refused error=%s", err_text(err ? err : r->err));
}

void cluster_propose(struct cluster *c, struct record *r)
{
    r->wall_ms = clock_wall_ms();
    c->proposing = replica_propose(c->replica, r, on_proposed, c) == OK;
}

static void propose_key(struct cluster *c, uint32_t version, enum state_key_step step)
{
    struct record r = {.kind = RECORD_KEY, .key = {.version = version, .step = step}};
    const struct key *given = key_ring_newest(&c->ring);
    if (step == KEY_ADDED && given && !cluster_known(c)->n_keys) {
        r.key.version = given->version;
        memcpy(r.key.secret, given->secret, sizeof(r.key.secret));
    } else if (step == KEY_ADDED && getrandom(r.key.secret, sizeof(r.key.secret), 0) != sizeof(r.key.secret)) {
        return;
    }
    cluster_propose(c, &r);
    explicit_bzero(&r, sizeof(r));
}

/* Proposes the records that are missing: the first key, the first node, and this node's new address or domain. Returns
 * whether one was missing. */
static bool propose_missing_records(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    const struct state_node *own = cluster_node(c, c->self.name);
    if (!k->n_keys) {
        propose_key(c, 1, KEY_ADDED);
        return true;
    }
    /* Before the first node: what was recorded while this node was alone may need its version. */
    if (cluster_version_raise(c))
        return true;
    if (cluster_lineage_propose(c))
        return true;
    bool has_keys = cluster_version(c) >= FEATURE_IDENTITY;
    bool lacks_key = own && has_keys && !record_has_key(own->public_key);
    if (own && !lacks_key && strcmp(own->address, c->self.address) == 0 && strcmp(own->domain, c->self.domain) == 0)
        return false;
    if (!own && k->next_node != 1)
        return false; /* this node has left, and leads only until another does */
    struct record r = {
        .kind = RECORD_NODE,
        .node = {
            .name = c->self.name, .address = c->self.address, .domain = c->self.domain, .newest = features_newest()}};
    memcpy(r.node.instance, c->self.instance, NODE_INSTANCE_BYTES);
    if (has_keys && (!own || lacks_key)) /* a key that is recorded stays, and a record without one is not refused */
        memcpy(r.node.public_key, c->identity.public_key, NODE_KEY_BYTES);
    cluster_propose(c, &r);
    return true;
}

/* A node with the current view has all keys. A lost node gets a new key only after it has connected with an old one, so
 * the old one is kept for it (`lost_too`). */
static bool all_have_view(const struct cluster *c, bool lost_too)
{
    for (int i = 0; i < c->n_peers; i++) {
        const struct cluster_peer *m = c->peers[i];
        if (m->view != c->view_hash && (lost_too || !m->lost))
            return false;
    }
    return true;
}

static void rotate_keys(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    if (k->n_keys < 2 || c->view_saved != c->view_hash)
        return; /* this node, too, must have the new key in its file before the old one is dropped */
    uint32_t newest = k->keys[k->n_keys - 1].version;
    if (k->key_used != newest && all_have_view(c, false))
        propose_key(c, newest, KEY_USED);
    else if (k->key_used == newest && all_have_view(c, true))
        propose_key(c, k->keys[0].version, KEY_DROPPED);
}

/* ---- size ---- */

bool cluster_votes(const struct cluster *c, uint64_t id)
{
    for (int i = 0; i < c->n_voters; i++)
        if (c->voters[i] == id)
            return true;
    return false;
}

/* A node that has connected a moment ago has sent its versions, but may have sent no heartbeat yet. */
static bool holds_many_nodes(const struct cluster_peer *m)
{
    return m->changes || m->has.newest >= FEATURE_MANY_NODES;
}

bool cluster_may_grow(const struct cluster *c, int pending, const char **ret)
{
    if (cluster_version(c) >= FEATURE_MANY_NODES || cluster_known(c)->n_nodes + pending < STATE_MAX_NODES_BEFORE)
        return true;
    for (int i = 0; i < c->n_peers; i++) {
        const struct cluster_peer *m = c->peers[i];
        *ret = m->name;
        if (!holds_many_nodes(m) && (m->in || cluster_votes(c, m->id)))
            return false;
    }
    return true;
}

/* ---- status ---- */

void cluster_lead_facts(const struct cluster *c, const struct state_node *x, struct cluster_facts *ret)
{
    const struct cluster_peer *m = find_peer(c, x->name);
    bool self = x->id == c->self.id;
    *ret = (struct cluster_facts){.state = self      ? CLUSTER_NODE_UP
                                           : !m      ? CLUSTER_NODE_UNKNOWN
                                           : m->in   ? CLUSTER_NODE_UP
                                           : m->lost ? CLUSTER_NODE_LOST
                                                     : CLUSTER_NODE_AWAY,
                                  .version = self                 ? DTD_VERSION
                                             : m && m->version[0] ? m->version
                                                                  : NULL,
                                  .newest = self ? features_newest()
                                            : m  ? m->has.newest
                                                 : 0,
                                  .silent_ms = self || !m || m->in ? 0 : clock_mono_ms() - m->heartbeat_ms,
                                  .index = self ? log_index(c->replica->log)
                                           : m  ? m->index
                                                : 0};
}

/* ---- begin, end, tick ---- */

/* In most cases the loss of the previous leader is the reason for this election, so it is detected sooner. */
static void shorten_previous_leader(struct cluster *c, int64_t now)
{
    int64_t latest = now + PREVIOUS_LEADER_MS - CLUSTER_LOST_MS;
    struct cluster_peer *m = find_peer(c, c->followed);
    if (m)
        m->heartbeat_ms = c->leader_reply_ms > latest ? c->leader_reply_ms : latest;
}

void cluster_lead_begin(struct cluster *c)
{
    int64_t now = clock_mono_ms();
    c->lead_ms = now;
    c->changing = c->proposing = false;
    c->registered_at = 0;
    c->introduced.n = 0; /* the state is current, and an introduction may be of a node that has left since */
    if (c->is_member) {
        update_peers(c, now);
        shorten_previous_leader(c, now);
    }
    c->events->lead(c->owner);
}

void cluster_lead_end(struct cluster *c)
{
    for (int i = 0; i < c->n_peers; i++) {
        struct cluster_inbound *in = c->peers[i]->in;
        unlink_inbound(c->peers[i]);
        if (in)
            rpc_conn_close(in->conn);
        free_peer(c, c->peers[i]);
    }
    free(c->peers);
    c->peers = NULL;
    c->n_peers = 0;
    /* From now on the view replaces the state; it has been kept as a copy of it. */
    if (c->is_member)
        cluster_view_make(c);
    c->changing = c->proposing = false;
    c->led_ms = clock_mono_ms();
    c->events->follow(c->owner);
}

/* When the cluster version rises, nodes are connected whose identities could not be recorded before. */
static void register_identities(struct cluster *c)
{
    uint32_t version = cluster_version(c);
    if (version == c->registered_at)
        return;
    for (int i = 0; i < c->n_peers; i++) {
        const struct state_node *x = cluster_node(c, c->peers[i]->name);
        if (c->peers[i]->in && x)
            cluster_identity_register(c, c->peers[i]->in, x);
    }
    c->registered_at = version;
}

void cluster_lead_tick(struct cluster *c, int64_t now, int64_t gap_ms)
{
    update_peers(c, now); /* before a new view cuts the tunnels of removed nodes: it reports to them why */
    cluster_view_make(c);
    cluster_spread_tick(c);
    update_voters(c);
    register_identities(c);
    for (int i = 0; i < c->n_peers; i++) {
        c->peers[i]->heartbeat_ms += gap_ms;
        check_liveness(c, c->peers[i], now);
    }
    if (!c->proposing && !propose_missing_records(c))
        rotate_keys(c);
    if (c->changing || now < c->change_ms)
        return;
    c->change_ms = now + CHANGE_MS;
    choose_voters(c, now);
}
