/* Adapter: calls of other nodes and requests of users that concern the cluster. A call that needs a record is answered
 * when the record is applied. Its errors become sentences by the table in verdict_text. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conf/node.h"
#include "common/rpc/node_load_codec.h"
#include "common/tunnel/address.h"
#include "common/tunnel/key.h"
#include "common/tunnel/token.h"
#include "daemon/control/cluster/lineage_file.h"
#include "daemon/control/cluster/rpc.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/state/features.h"
#include "proto/client.pb-c.h"
#include "proto/peer.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_HOURS 24
#define MAX_HOURS (24 * 365)

/* ---- records with a waiting call ---- */

static const char *verdict_text(enum record_kind kind, err_t err)
{
    static const struct {
        enum record_kind kind;
        err_t err;
        const char *text;
    } table[] = {
        {RECORD_NODE, ERR_EXISTS,
         "the cluster has a node of this name: choose another name (--name), or remove the old node "
         "(dtctl cluster remove)"},
        {RECORD_NODE, ERR_DENIED, "the token is unknown or used up: dtctl cluster token"},
        {RECORD_NODE, ERR_STALE, "the token has expired: dtctl cluster token"},
        {RECORD_NODE, ERR_LIMIT, "the cluster has the maximum number of nodes"},
        {RECORD_NODE, ERR_UNSUPPORTED,
         "the cluster version has risen above the versions of the node's dtd: upgrade it, and join again"},
        {RECORD_NODE_LEFT, ERR_NOTFOUND, "no node of that name: dtctl cluster status"},
        {RECORD_NODE_ADMIN, ERR_NOTFOUND, "no node of that name: dtctl cluster status"},
        {RECORD_TOKEN, ERR_LIMIT, "there is the maximum number of join tokens; wait until one expires"},
        {RECORD_KEY, ERR_LIMIT, "the cluster has the maximum number of keys"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].kind == kind && table[i].err == err)
            return table[i].text;
    return err_text(err);
}

struct pending_record {
    struct cluster_viewer viewer; /* of a join; the first member */
    struct rpc_server *server;
    struct rpc_call *call;
    enum record_kind kind;
    struct token token;
    int64_t expires_ms;
    uint32_t uses;
    uint64_t node; /* the number of a node that has joined */
};

static void reply_token(struct pending_record *w)
{
    char text[TOKEN_TEXT_MAX];
    struct why why = {""};
    Dtd__JoinToken m = DTD__JOIN_TOKEN__INIT;
    err_t err = token_encode(&w->token, text, &why);
    if (err) {
        rpc_fail(w->call, err, "%s", why.text);
        return;
    }
    m.token = text;
    m.has_uses = m.has_expires_ms = true;
    m.uses = w->uses;
    m.expires_ms = w->expires_ms;
    rpc_reply(w->call, &m.base);
    explicit_bzero(text, sizeof(text));
}

static void reply_joined(struct cluster_viewer *viewer, const struct buf *view)
{
    struct pending_record *w = (struct pending_record *)viewer;
    Dtd__JoinReply m = DTD__JOIN_REPLY__INIT;
    m.id = w->node;
    m.view = (ProtobufCBinaryData){view->len, view->data};
    rpc_reply(w->call, &m.base);
    free(w);
}

static void on_recorded(void *arg, err_t err, uint64_t index, const void *result)
{
    struct pending_record *w = arg;
    const struct state_result *r = result;
    (void)index;
    w->server->joins -= w->kind == RECORD_NODE;
    if (!err && !r->err && w->kind == RECORD_NODE) {
        w->node = r->node;
        w->viewer.cb = reply_joined;
        cluster_view_await(w->server->cluster, &w->viewer);
        return;
    }
    if (err)
        rpc_fail(w->call, ERR_AGAIN,
                 "the leader has changed, and the request may or may not have been executed: check, and try again");
    else if (r->err)
        rpc_fail(w->call, r->err, "%s", verdict_text(w->kind, r->err));
    else if (w->kind == RECORD_TOKEN)
        reply_token(w);
    else {
        Dtd__PeerEmpty for_peers = DTD__PEER_EMPTY__INIT;
        Dtd__Empty for_people = DTD__EMPTY__INIT;
        rpc_reply(w->call, rpc_call_method(w->call) == PEER_LEAVE ? &for_peers.base : &for_people.base);
    }
    token_wipe(&w->token);
    free(w);
}

/* Proposes the record; answers the call when it is applied, or now after an error. */
static void propose_for_call(struct rpc_server *server, struct rpc_call *call, struct record *r,
                             const struct pending_record *with)
{
    struct why why = {""};
    err_t err = cluster_may_use(server->cluster, feature_of_record(r), "this request", &why);
    if (err) {
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    struct pending_record *w = calloc(1, sizeof(*w));
    err = w ? OK : ERR_NOMEM;
    if (w) {
        if (with)
            *w = *with;
        w->server = server;
        w->call = call;
        w->kind = r->kind;
        r->wall_ms = clock_wall_ms();
        err = replica_propose(server->replica, r, on_recorded, w);
    }
    server->joins += !err && r->kind == RECORD_NODE;
    if (!err)
        return;
    free(w);
    const char *warning = err == ERR_AGAIN ? NULL : log_warning(server->replica->log);
    rpc_fail(call, err, "not recorded: %s", warning ? warning : err_text(err));
}

/* ---- calls of other nodes ---- */

/* Dtds without a cluster version do not send it. */
static struct features_range range_of(bool has_oldest, uint32_t oldest, bool has_newest, uint32_t newest)
{
    return (struct features_range){has_oldest ? oldest : 1, has_newest ? newest : 1};
}

struct introduction_messages {
    Dtd__PeerIntroduction m[CLUSTER_INTRODUCED], *list[CLUSTER_INTRODUCED];
};

static void fill_introductions(struct cluster *c, struct introduction_messages *ret, Dtd__PeerStatus *s)
{
    const struct cluster_introductions *from = cluster_introductions(c);
    for (int i = 0; i < from->n; i++) {
        const struct cluster_introduced *in = &from->nodes[i];
        Dtd__PeerIntroduction *m = ret->list[i] = &ret->m[i];
        dtd__peer_introduction__init(m);
        m->name = (char *)in->name;
        m->id = in->id;
        m->has_public_key = record_has_key(in->public_key);
        m->public_key = (ProtobufCBinaryData){NODE_KEY_BYTES, (uint8_t *)in->public_key};
    }
    s->n_introduction = (size_t)from->n;
    s->introduction = ret->list;
}

static void handle_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    static const uint8_t none[NODE_INSTANCE_BYTES];
    const Dtd__PeerHello *h = (const Dtd__PeerHello *)request;
    struct rpc_server *server = owner;
    struct cluster *c = server->cluster;
    struct why why = {""};
    Dtd__PeerStatus s = DTD__PEER_STATUS__INIT;
    bool whole = h->has_instance && h->instance.len == NODE_INSTANCE_BYTES;
    const struct features_range has = range_of(h->has_oldest, h->oldest, h->has_newest, h->newest);
    const struct cluster_greeting from = {.name = h->node,
                                          .version = h->version,
                                          .instance = whole ? h->instance.data : none,
                                          .has = &has,
                                          .old_copy = h->has_old_copy && h->old_copy};
    err_t err = cluster_hello(c, rpc_call_conn(call), &from, &why);
    if (err && err != ERR_AGAIN) {
        log_warn("node refused node=%s why=\"%s\"", h->node, why.text);
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    const struct state_node *leader = cluster_leader(c) ? cluster_node(c, cluster_leader(c)) : NULL;
    s.node = (char *)cluster_self(c);
    s.version = (char *)DTD_VERSION;
    s.raft_state = (char *)log_state(server->replica->log);
    s.raft_term = log_term(server->replica->log);
    s.raft_index = log_index(server->replica->log);
    s.has_leads = true;
    s.leads = !err;
    s.leader = leader ? leader->name : NULL;
    s.leader_address = leader ? leader->address : NULL;
    s.has_cluster_version = cluster_version(c) > 1;
    s.cluster_version = cluster_version(c);
    struct introduction_messages introductions;
    fill_introductions(c, &introductions, &s);
    rpc_reply(call, &s.base);
}

static void handle_heartbeat(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__PeerBeat *b = (const Dtd__PeerBeat *)request;
    struct rpc_server *server = owner;
    const struct cluster_beat beat = {b->view, b->raft_index, b->has_changes && b->changes};
    struct cluster_news news = {.n_changes = 0};
    Dtd__PeerBeatReply m = DTD__PEER_BEAT_REPLY__INIT;
    ProtobufCBinaryData changes[CLUSTER_STEPS];
    Dtd__PeerMark marks[CLUSTER_MARKS], *mark[CLUSTER_MARKS];
    struct rpc_conn *conn = rpc_call_conn(call);
    err_t err = conn ? cluster_heartbeat(server->cluster, conn, &beat, &news) : ERR_AGAIN;
    if (err) {
        rpc_fail(call, err, "this node is not the leader");
        return;
    }
    m.has_needed = true;
    m.needed = news.needed;
    m.has_view = news.view != NULL;
    if (news.view)
        m.view = (ProtobufCBinaryData){news.view->len, news.view->data};
    for (int i = 0; i < news.n_changes; i++)
        changes[i] = (ProtobufCBinaryData){news.changes[i]->len, news.changes[i]->data};
    m.change = changes;
    m.n_change = (size_t)news.n_changes;
    m.has_hash = news.n_changes > 0;
    m.hash = news.hash;
    m.voter = (uint64_t *)news.voters;
    m.n_voter = (size_t)news.n_voters;
    for (int i = 0; i < news.n_marks; i++) {
        dtd__peer_mark__init(&marks[i]);
        marks[i].id = news.marks[i].id;
        marks[i].process = news.marks[i].process;
        marks[i].term = news.marks[i].term;
        marks[i].stored = news.marks[i].stored;
        mark[i] = &marks[i];
    }
    m.mark = mark;
    m.n_mark = (size_t)news.n_marks;
    rpc_reply(call, &m.base);
}

static void on_forwarded_join(void *arg, err_t err, const char *text, uint64_t id, const void *view, size_t len)
{
    struct rpc_call *call = arg;
    Dtd__JoinReply m = DTD__JOIN_REPLY__INIT;
    m.id = id;
    m.view = (ProtobufCBinaryData){len, (uint8_t *)view};
    if (err)
        rpc_fail(call, err == ERR_CLOSED || err == ERR_TIMEOUT ? ERR_AGAIN : err, "%s", text[0] ? text : err_text(err));
    else
        rpc_reply(call, &m.base);
}

/* Forwards a join request to the leader, which records it; any node accepts the request. */
static void forward_join(struct rpc_server *server, struct rpc_call *call, const Dtd__JoinRequest *q,
                         const struct features_range *has)
{
    struct cluster_self self = {0};
    struct rpc_conn *conn = cluster_leader_conn(server->cluster);
    snprintf(self.name, sizeof(self.name), "%s", q->name);
    snprintf(self.address, sizeof(self.address), "%s", q->address);
    snprintf(self.domain, sizeof(self.domain), "%s", q->domain ? q->domain : "");
    memcpy(self.instance, q->instance.data, NODE_INSTANCE_BYTES);
    err_t err = conn ? rpc_cluster_join(conn, &self, has, q->has_token ? q->token : 0,
                                        q->has_public_key ? q->public_key.data : NULL, 4000, on_forwarded_join, call)
                     : ERR_AGAIN;
    if (err)
        rpc_fail(call, err, "there is no leader at the moment: try again");
}

static bool is_legal_join(const Dtd__JoinRequest *q)
{
    return q->instance.len == NODE_INSTANCE_BYTES && node_name_valid(q->name, strlen(q->name)) &&
           strlen(q->address) <= NODE_TEXT_MAX && (!q->domain || strlen(q->domain) <= NODE_TEXT_MAX) &&
           (!q->has_public_key || q->public_key.len == NODE_KEY_BYTES);
}

/* A connection for joining may only join: with the token that it was authenticated with, under the tunnel's name and
 * with the identity that the tunnel has proved. Any other one is of a node, which forwards what it has checked. */
static bool is_callers_join(const struct cluster_caller *caller, const Dtd__JoinRequest *q)
{
    bool is_same_key = caller->public_key
                           ? q->has_public_key && memcmp(q->public_key.data, caller->public_key, NODE_KEY_BYTES) == 0
                           : !q->has_public_key;
    return !caller->joins ||
           ((q->has_token ? q->token : 0) == caller->token && strcmp(caller->name, q->name) == 0 && is_same_key);
}

static void handle_join(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__JoinRequest *q = (const Dtd__JoinRequest *)request;
    struct rpc_server *server = owner;
    struct cluster_caller caller;
    uint64_t token = q->has_token ? q->token : 0;
    struct address address;
    struct why why = {""};
    if (!cluster_caller(server->cluster, rpc_call_conn(call), &caller) || !is_legal_join(q) ||
        !is_callers_join(&caller, q)) {
        rpc_fail(call, ERR_DENIED, "the request does not match the authenticated connection");
        return;
    }
    if (!token && !cluster_has_key_file(server->cluster)) {
        rpc_fail(call, ERR_DENIED, "joining this cluster needs a token: dtctl cluster token");
        return;
    }
    if (address_parse(q->address, &address, &why)) {
        rpc_fail(call, ERR_INVALID, "%s", why.text);
        return;
    }
    const struct features_range has = range_of(q->has_oldest, q->oldest, q->has_newest, q->newest);
    if (!cluster_leads(server->cluster)) {
        forward_join(server, call, q, &has);
        return;
    }
    if (cluster_admits(server->cluster, q->name, &has, &why)) {
        rpc_fail(call, ERR_INVALID, "%s", why.text); /* the same at every address: dtds stop trying */
        return;
    }
    /* The first node must be recorded first: it is voter 1 already, and the next node that is recorded gets that
     * number. */
    if (!cluster_node(server->cluster, cluster_self(server->cluster))) {
        rpc_fail(call, ERR_AGAIN, "the cluster is being created: try again");
        return;
    }
    const char *old = "";
    if (!cluster_may_grow(server->cluster, server->joins, &old)) {
        rpc_fail(call, ERR_AGAIN,
                 "the cluster has %d nodes, and %s has not shown that its version allows more: upgrade it, or start it",
                 STATE_MAX_NODES_BEFORE, old);
        return;
    }
    struct record r = {.kind = RECORD_NODE,
                       .node = {.name = q->name,
                                .address = q->address,
                                .domain = q->domain ? q->domain : "",
                                .token = token,
                                .newest = has.newest}};
    memcpy(r.node.instance, q->instance.data, NODE_INSTANCE_BYTES);
    if (q->has_public_key && cluster_version(server->cluster) >= FEATURE_IDENTITY)
        memcpy(r.node.public_key, q->public_key.data, NODE_KEY_BYTES);
    log_info("node joins node=%s address=%s version=%s", q->name, q->address, q->version ? q->version : "?");
    propose_for_call(server, call, &r, NULL);
}

static void handle_leave(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__PeerHello *h = (const Dtd__PeerHello *)request;
    struct rpc_server *server = owner;
    struct cluster_caller caller;
    bool is_known = cluster_caller(server->cluster, rpc_call_conn(call), &caller);
    struct record r = {.kind = RECORD_NODE_LEFT, .node_left = {.name = h->node}};
    if (cluster_take_dismissal(server->cluster, rpc_call_conn(call), h->node)) {
        Dtd__PeerEmpty empty = DTD__PEER_EMPTY__INIT;
        rpc_reply(call, &empty.base);
        return;
    }
    if (!is_known || caller.joins || strcmp(caller.name, h->node) != 0)
        rpc_fail(call, ERR_DENIED, "only the node itself may request to leave");
    else if (!cluster_leads(server->cluster))
        rpc_fail(call, ERR_AGAIN, "this node is not the leader: try again");
    else
        propose_for_call(server, call, &r, NULL);
}

/* ---- requests of users ---- */

static struct cluster_options options_of(const Dtd__ClusterInitRequest *q)
{
    return (struct cluster_options){q->name, q->listen, q->advertise, q->domain};
}

static void reply_empty(struct rpc_call *call, err_t err, const char *why)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (err)
        rpc_fail(call, err, "%s", why);
    else
        rpc_reply(call, &empty.base);
}

static void on_done(void *arg, err_t err, const char *why)
{
    reply_empty(arg, err, why);
}

static void handle_init(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct why why = {""};
    const struct cluster_options w = options_of((const Dtd__ClusterInitRequest *)request);
    if (rpc_caller_is_admin(call, "make a cluster of the dtd"))
        reply_empty(call, cluster_init(server->cluster, &w, &why), why.text);
}

static void handle_user_join(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__ClusterInitRequest *q = (const Dtd__ClusterInitRequest *)request;
    struct rpc_server *server = owner;
    struct why why = {""};
    const struct cluster_options w = options_of(q);
    if (!rpc_caller_is_admin(call, "join a cluster with the dtd"))
        return;
    err_t err = cluster_join(server->cluster, q->token ? q->token : "", &w, on_done, call, &why);
    if (err)
        reply_empty(call, err, why.text);
}

static void handle_user_leave(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct why why = {""};
    (void)request;
    if (!rpc_caller_is_admin(call, "leave a cluster with the dtd"))
        return;
    err_t err = cluster_leave(server->cluster, on_done, call, &why);
    if (err)
        reply_empty(call, err, why.text);
}

static void handle_recover(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct why why = {""};
    (void)request;
    if (rpc_caller_is_admin(call, "recover the log of the dtd"))
        reply_empty(call, cluster_recover(server->cluster, rpc_caller_uid(call), &why), why.text);
}

/* Leader: is there a cluster, and may the caller change it? Answers the call if not. */
static bool may_change(struct rpc_server *server, struct rpc_call *call, const char *what)
{
    if (!rpc_caller_is_admin(call, what))
        return false;
    if (cluster_named(server->cluster))
        return true;
    rpc_fail(call, ERR_NOTFOUND, "this node is in no cluster: dtctl cluster init");
    return false;
}

static void add_address(struct token *t, const char *address)
{
    if (t->n_addresses < TOKEN_ADDRESSES_MAX && strlen(address) <= TOKEN_ADDRESS_MAX)
        snprintf(t->addresses[t->n_addresses++], TOKEN_ADDRESS_MAX + 1, "%s", address);
}

static void handle_token(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__JoinToken *q = (const Dtd__JoinToken *)request;
    struct rpc_server *server = owner;
    const struct cluster *c = server->cluster;
    struct why why = {""};
    uint32_t hours = q->has_hours ? q->hours : DEFAULT_HOURS;
    struct pending_record w = {.uses = q->has_uses ? q->uses : 1};
    if (!may_change(server, call, "make tokens for the cluster of the dtd"))
        return;
    if (!w.uses || w.uses > STATE_MAX_NODES || !hours || hours > MAX_HOURS) {
        rpc_fail(call, ERR_INVALID, "--uses is 1 to %d, --hours 1 to %d", STATE_MAX_NODES, MAX_HOURS);
        return;
    }
    err_t err = token_make(&w.token, &why);
    if (err) {
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    add_address(&w.token, cluster_address(c));
    for (int i = 0; i < cluster_known(c)->n_nodes; i++)
        if (cluster_known(c)->nodes[i].id != cluster_self_id(c))
            add_address(&w.token, cluster_known(c)->nodes[i].address);
    w.expires_ms = clock_wall_ms() + (int64_t)hours * 3600 * 1000;
    struct record r = {.kind = RECORD_TOKEN, .token = {.id = w.token.id, .expires_ms = w.expires_ms, .uses = w.uses}};
    r.token.until_ms = state_clock_ms(server->replica->clock) + (int64_t)hours * 3600 * 1000;
    memcpy(r.token.secret, w.token.secret, TOKEN_SECRET_LENGTH);
    propose_for_call(server, call, &r, &w);
    explicit_bzero(&r, sizeof(r));
    token_wipe(&w.token);
}

static void on_withdrawn(void *arg, err_t err, uint64_t index, const void *result)
{
    (void)arg, (void)index, (void)result;
    if (err)
        log_warn("a join token is not withdrawn error=%s", err_text(err));
}

/* Every node has the join tokens in its view; an evicted one must not come back with them. */
static err_t withdraw_tokens(struct rpc_server *server)
{
    const struct state_cluster *k = cluster_known(server->cluster);
    err_t err = OK;
    for (int i = 0; !err && i < k->n_tokens; i++) {
        struct record r = {.kind = RECORD_TOKEN, .wall_ms = clock_wall_ms(), .token = {.id = k->tokens[i].id}};
        err = replica_propose(server->replica, &r, on_withdrawn, NULL);
    }
    return err;
}

/* OK: the node may be removed although it is up. */
static err_t prepare_eviction(struct rpc_server *server, const struct state_node *x, struct why *why)
{
    if (x->id == cluster_self_id(server->cluster))
        return cluster_hand_over(server->cluster, why);
    if (cluster_needs_vote(server->cluster, x))
        return why_set(
            why, ERR_BUSY,
            "without %s the voters that are up are no majority, and nothing would be recorded any more: first "
            "start another voter (dtctl cluster status)",
            x->name);
    err_t err = withdraw_tokens(server);
    return err ? why_set(why, err, "not recorded: %s", err_text(err)) : OK;
}

static void handle_remove(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__ClusterNodeRequest *q = (const Dtd__ClusterNodeRequest *)request;
    struct rpc_server *server = owner;
    struct cluster *c = server->cluster;
    struct cluster_facts facts;
    if (!may_change(server, call, "remove a node from the cluster of the dtd"))
        return;
    const struct state_node *x = cluster_node(c, q->name ? q->name : "");
    if (!x) {
        rpc_fail(call, ERR_NOTFOUND, "%s", verdict_text(RECORD_NODE_LEFT, ERR_NOTFOUND));
        return;
    }
    bool evicts = q->has_evict && q->evict;
    struct why why = {""};
    cluster_lead_facts(c, x, &facts);
    if (facts.state == CLUSTER_NODE_UP && !evicts) {
        rpc_fail(call, ERR_BUSY,
                 "%s is up: run `dtctl cluster leave` on it, or remove it against its will: dtctl cluster remove %s "
                 "--evict",
                 x->name, x->name);
        return;
    }
    err_t err = evicts ? prepare_eviction(server, x, &why) : OK;
    if (err) {
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    struct record r = {.kind = RECORD_NODE_LEFT, .node_left = {.name = q->name}};
    log_info("node %s node=%s", evicts ? "evicted" : "removed", q->name);
    propose_for_call(server, call, &r, NULL);
}

static void handle_drain(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__ClusterNodeRequest *q = (const Dtd__ClusterNodeRequest *)request;
    struct rpc_server *server = owner;
    if (!may_change(server, call, "drain a node of the dtd"))
        return;
    if (!q->name || (q->reason && strlen(q->reason) > NODE_REASON_MAX)) {
        rpc_fail(call, ERR_INVALID, "the request needs the name of a node, and a reason of at most %d bytes",
                 NODE_REASON_MAX);
        return;
    }
    struct record r = {.kind = RECORD_NODE_ADMIN, .node_admin = {.name = q->name, .drained = q->reason}};
    propose_for_call(server, call, &r, NULL);
}

static void handle_rotate(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    (void)request;
    if (!may_change(server, call, "change the key of the dtd's cluster"))
        return;
    const struct state_cluster *k = cluster_known(server->cluster);
    if (k->n_keys > 1) {
        rpc_fail(call, ERR_BUSY,
                 "a key rotation is under way: the old key is valid until every node has the new one. Remove "
                 "nodes that are permanently lost");
        return;
    }
    struct record r = {.kind = RECORD_KEY, .key = {.version = k->keys[0].version + 1, .step = KEY_ADDED}};
    struct key_ring ring;
    struct why why = {""};
    err_t err = key_ring_make(&ring, &why);
    if (err) {
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    memcpy(r.key.secret, ring.keys[0].secret, KEY_SECRET_LENGTH);
    key_ring_wipe(&ring);
    propose_for_call(server, call, &r, NULL);
    explicit_bzero(&r, sizeof(r));
}

/* ---- status ---- */

struct status_reply {
    Dtd__ClusterReport msg;
    char **held_back; /* names of the nodes for which the next cluster version waits */
    Dtd__ClusterNode *nodes, **refs;
    struct node_load_message *loads;
    struct node_use_message *uses;
    char (*prints)[IDENTITY_FINGERPRINT_MAX];
    int voters, voters_up;
    char note[512];
};

static bool is_leader(const struct cluster *c, uint64_t id)
{
    const char *leader = cluster_leader(c);
    const struct state_node *x = leader ? cluster_node(c, leader) : NULL;
    return x && x->id == id;
}

static const struct log_member *member_of(uint64_t id, const struct log_member *in_log, int n)
{
    for (int i = 0; i < n; i++)
        if (in_log[i].id == id)
            return &in_log[i];
    return NULL;
}

static void fill_node(struct rpc_server *server, const struct state_node *x, struct status_reply *s,
                      Dtd__ClusterNode *m)
{
    static const char *const roles[] = {[LOG_SPARE] = "spare", [LOG_STANDBY] = "standby", [LOG_VOTER] = "voter"};
    static const char *const states[] = {[CLUSTER_NODE_UNKNOWN] = "unknown",
                                         [CLUSTER_NODE_UP] = "up",
                                         [CLUSTER_NODE_AWAY] = "away",
                                         [CLUSTER_NODE_LOST] = "lost"};
    struct log_member in_log[LOG_MAX_MEMBERS];
    const struct cluster *c = server->cluster;
    struct cluster_facts f = {.state = x->id == cluster_self_id(c) ? CLUSTER_NODE_UP : CLUSTER_NODE_UNKNOWN};
    const struct log_member *member = member_of(x->id, in_log, log_members(server->replica->log, in_log));
    bool leads = is_leader(c, x->id), votes = leads || (member && member->role == LOG_VOTER);
    if (cluster_leads(c))
        cluster_lead_facts(c, x, &f);
    s->voters += votes;
    s->voters_up += votes && f.state == CLUSTER_NODE_UP;
    dtd__cluster_node__init(m);
    m->name = x->name;
    m->id = x->id;
    m->address = x->address;
    m->domain = x->domain[0] ? x->domain : NULL;
    m->drained = x->drained;
    m->state = (char *)states[f.state];
    m->version = (char *)f.version;
    m->has_newest = f.newest > 0;
    m->newest = f.newest;
    m->role = leads ? (char *)"leader" : member ? (char *)roles[member->role] : NULL;
    m->has_silent_ms = f.silent_ms > 0;
    m->silent_ms = f.silent_ms;
    m->has_log_index = f.index > 0;
    m->log_index = f.index;
}

/* The leader's own node measures itself; of the others it has the last report. */
static void fill_load(struct rpc_server *server, struct node_load_message *load, Dtd__ClusterNode *m)
{
    const struct node_view *a = server->jobs->leads ? node_view_find(server->jobs, m->name) : NULL;
    if (!a || (!a->is_self && a->state != NODE_UP))
        return;
    const struct node_load now = rpc_node_load_of(a->is_self ? &server->local->load.now : &a->load, a->gpus);
    if (node_load_encode(&now, load) == OK && (load->m.n_more || load->m.n_gpu))
        m->load = &load->m;
}

static void fill_use(struct rpc_server *server, struct node_use_message *use, Dtd__ClusterNode *m)
{
    const struct node_view *a = server->jobs->leads ? node_view_find(server->jobs, m->name) : NULL;
    if (!a || (!a->is_self && a->state != NODE_UP))
        return;
    rpc_use_fill(server, a, use);
    m->use = &use->m;
}

static void write_superseded(const struct lineage_file *by, struct status_reply *s)
{
    char when[32];
    time_t seconds = (time_t)(by->at_ms / 1000);
    struct tm tm;
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
    snprintf(
        s->note, sizeof(s->note),
        "this cluster was recovered on node %.64s at %s without this node, which neither leads nor votes any more. "
        "Its jobs belong to the recovered cluster. Take this node in anew: dtctl cluster leave, then dtctl cluster "
        "join with a token of %.64s",
        by->by, when, by->by);
}

static void write_old_copy(const struct lineage_file *by, struct status_reply *s)
{
    snprintf(
        s->note, sizeof(s->note),
        "node %.64s reports that the log of this node is an old copy: it lacks records that this node has "
        "acknowledged, so it does not vote any more. Take this node in anew: dtctl cluster leave, then dtctl cluster "
        "join with a token of %.64s",
        by->by, by->by);
}

static void write_lineage(const struct state_lineage *l, Dtd__ClusterReport *m)
{
    m->has_id = m->has_generation = l->id != 0;
    m->id = l->id;
    m->generation = l->generation;
    m->has_recovered_ms = l->by[0] != '\0';
    m->recovered_ms = l->at_ms;
    m->recovered_by = l->by[0] ? (char *)l->by : NULL;
}

static void fill_versions(const struct cluster *c, struct status_reply *s)
{
    const uint32_t next = cluster_leads(c) ? cluster_newest(c) : 0;
    s->msg.has_cluster_version = true;
    s->msg.cluster_version = cluster_version(c);
    s->msg.has_next_version = next > s->msg.cluster_version;
    s->msg.next_version = next;
    s->msg.held_back = s->held_back;
    for (size_t i = 0; s->msg.has_next_version && i < s->msg.n_node; i++) {
        const Dtd__ClusterNode *m = s->msg.node[i];
        if (strcmp(m->state, "up") != 0 || m->newest < next)
            s->held_back[s->msg.n_held_back++] = m->name;
    }
}

static void fill_identity(const struct state_node *x, char print[IDENTITY_FINGERPRINT_MAX], Dtd__ClusterNode *m)
{
    if (!record_has_key(x->public_key))
        return;
    identity_fingerprint(x->public_key, print);
    m->identity = print;
}

static void write_note(const struct cluster *c, struct status_reply *s)
{
    int n = cluster_known(c)->n_nodes;
    const char *leader = cluster_leader(c);
    if (cluster_superseded(c))
        write_superseded(cluster_superseded(c), s);
    else if (cluster_old_copy(c))
        write_old_copy(cluster_old_copy(c), s);
    else if (!cluster_named(c))
        snprintf(s->note, sizeof(s->note),
                 "this node is in no cluster: dtctl cluster init, or dtctl cluster join TOKEN");
    else if (!leader && cluster_refused(c)[0])
        snprintf(s->note, sizeof(s->note), "%s", cluster_refused(c));
    else if (cluster_is_removed(c))
        snprintf(s->note, sizeof(s->note),
                 "this node was removed from the cluster: dtctl cluster leave, then join again with a new token");
    else if (!leader)
        snprintf(s->note, sizeof(s->note),
                 "no leader is known: running jobs go on, no new ones start. A majority of the voters must be "
                 "up; if it is permanently lost: dtctl cluster recover, on a node that was a voter");
    else if (n == 1)
        snprintf(s->note, sizeof(s->note), "one node; to add another: dtctl cluster token");
    else if (n == 2)
        snprintf(
            s->note, sizeof(s->note),
            "of 2 nodes %s is the only voter. A regular shutdown hands the log over; while it is lost, no new jobs "
            "start. Add a third node to avoid this: dtctl cluster token",
            leader);
    else if (s->voters_up < s->voters)
        snprintf(s->note, sizeof(s->note),
                 "%d of %d voters are up; a lost one is replaced within 10 s if another node "
                 "is up. To remove it: dtctl cluster remove NODE",
                 s->voters_up, s->voters);
    s->msg.note = s->note[0] ? s->note : NULL;
}

static void handle_status(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const struct cluster *c = server->cluster;
    const struct state_cluster *k = cluster_known(c);
    if (!server->jobs->leads && server->leader) {
        rpc_server_pass_on(server, call, request);
        return;
    }
    struct status_reply s = {.msg = DTD__CLUSTER_REPORT__INIT};
    size_t count = cluster_named(c) ? (size_t)k->n_nodes : 0;
    s.nodes = calloc(count + 1, sizeof(*s.nodes));
    s.refs = calloc(count + 1, sizeof(void *));
    s.held_back = calloc(count + 1, sizeof(char *));
    s.loads = calloc(count + 1, sizeof(*s.loads));
    s.uses = calloc(count + 1, sizeof(*s.uses));
    s.prints = calloc(count + 1, sizeof(*s.prints));
    for (size_t i = 0; i < count && s.nodes && s.refs; i++) {
        fill_node(server, &k->nodes[i], &s, &s.nodes[i]);
        if (s.loads)
            fill_load(server, &s.loads[i], &s.nodes[i]);
        if (s.uses)
            fill_use(server, &s.uses[i], &s.nodes[i]);
        if (s.prints)
            fill_identity(&k->nodes[i], s.prints[i], &s.nodes[i]);
        s.refs[i] = &s.nodes[i];
    }
    if (s.nodes && s.refs && s.held_back) {
        s.msg.self = (char *)cluster_self(c);
        s.msg.leader = (char *)(cluster_named(c) ? cluster_leader(c) : NULL);
        s.msg.n_node = count;
        s.msg.node = s.refs;
        s.msg.has_log_index = s.msg.has_log_term = s.msg.has_key = s.msg.has_keys = true;
        s.msg.log_index = log_index(server->replica->log);
        s.msg.log_term = log_term(server->replica->log);
        s.msg.key = k->key_used;
        s.msg.keys = (uint32_t)k->n_keys;
        write_lineage(&k->lineage, &s.msg);
        fill_versions(c, &s);
        write_note(c, &s);
        rpc_reply(call, &s.msg.base);
    } else {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    for (size_t i = 0; i < count && s.loads; i++)
        if (s.loads[i].m.base.descriptor) /* it was filled */
            node_load_encoded_fini(&s.loads[i]);
    free(s.prints);
    free(s.loads);
    free(s.uses);
    free(s.nodes);
    free(s.refs);
    free(s.held_back);
}

const struct rpc_server_row *rpc_cluster_rows(int *ret_n)
{
    static const struct rpc_server_row rows[] = {
        {SERVED_LOCALLY, {CLIENT_CLUSTER_INIT, handle_init}},
        {SERVED_LOCALLY, {CLIENT_CLUSTER_JOIN, handle_user_join}},
        {SERVED_LOCALLY, {CLIENT_CLUSTER_STATUS, handle_status}},
        {SERVED_BY_LEADER, {CLIENT_CLUSTER_TOKEN, handle_token}},
        {SERVED_BY_LEADER, {CLIENT_CLUSTER_REMOVE, handle_remove}},
        {SERVED_LOCALLY, {CLIENT_CLUSTER_LEAVE, handle_user_leave}},
        {SERVED_LOCALLY, {CLIENT_CLUSTER_RECOVER, handle_recover}},
        {SERVED_BY_LEADER, {CLIENT_CLUSTER_ROTATE, handle_rotate}},
        {SERVED_BY_LEADER, {CLIENT_NODE_DRAIN, handle_drain}},
        {SERVED_LOCALLY, {PEER_HELLO, handle_hello}},
        {SERVED_LOCALLY, {PEER_BEAT, handle_heartbeat}},
        {SERVED_LOCALLY, {PEER_JOIN, handle_join}},
        {SERVED_LOCALLY, {PEER_LEAVE, handle_leave}},
    };
    *ret_n = sizeof(rows) / sizeof(rows[0]);
    return rows;
}
