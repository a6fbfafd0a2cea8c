#include "tests/sim/control/crowd.h"

#include "common/base/hash.h"
#include "common/rpc/methods.h"
#include "common/tunnel/tunnel.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/cluster/internal.h"
#include "daemon/control/cluster/rpc.h"
#include "daemon/control/state/features.h"
#include "proto/peer.pb-c.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in daemon/control/cluster: membership.c and fetch.c. */
#define JOIN_MS 5000
#define VIEW_MS 5000
#define RETRY_US (100 * US_PER_MS)
#define RESTART_US (300 * US_PER_MS) /* control restarts after it has joined */

#define MAX_VOTERS 8

#define NO_NODE "liar" /* a node that no view has, but those of a node that lies */

/* A view that nodes have. All of them share it, so it is computed once. */
struct crowd_view {
    LIST_ENTRY(crowd_view) link;
    uint64_t hash;
    uint8_t digest[CLUSTER_DIGEST_BYTES];
    struct buf bytes;
    int refs;
};

struct crowd_node {
    struct host *host;
    uv_loop_t loop;
    struct tunnel_host *tunnel;
    struct tunnel_request *request;
    struct rpc_conn *conn; /* NULL: none */
    struct cluster_self self;
    struct identity identity;
    bool is_old, is_up, beats;  /* the leader has answered Hello; a heartbeat is under way */
    struct crowd_view *view;    /* NULL: none */
    struct crowd_view *fetched; /* not confirmed yet; NULL: none */
    struct rpc_conn *source;    /* from which it fetches a view; NULL: none */
    bool fetches, offers;       /* it connects to the source or waits for it; the heartbeat under way has the digest */
    int voters[MAX_VOTERS], n_voters; /* their numbers */
    int turn, door, at,
        leader; /* turn: of next_door; numbers of the nodes that it tries, is connected to, and follows */
    int64_t replied_us;
};

static struct {
    struct crowd_node *nodes; /* by number */
    int first, last, doors;
    bool has_liars;
    int followers[MAX_HOSTS + 1];        /* of each node */
    LIST_HEAD(, crowd_view) views[1024]; /* by hash */
} crowd = {.first = 1};

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    static const char secret[KEY_SECRET_LENGTH] = "the key of the cluster";
    (void)owner, (void)id;
    memcpy(ret->bytes, secret, sizeof(secret));
    ret->len = sizeof(secret);
    return OK;
}

static void set_up(struct crowd_node *n, bool is_up)
{
    crowd.followers[n->leader] += is_up - n->is_up;
    n->is_up = is_up;
}

/* ---- views ---- */

static uint64_t hash_of(const void *view, size_t len)
{
    struct hash h;
    hash_init(&h);
    hash_add(&h, view, len);
    return hash_end(&h);
}

static struct crowd_view *find_view(uint64_t hash)
{
    struct crowd_view *v;
    LIST_FOREACH(v, &crowd.views[hash % 1024], link)
    if (v->hash == hash)
        return v;
    return NULL;
}

static struct crowd_view *add_view(const void *data, size_t len)
{
    uint64_t hash = hash_of(data, len);
    struct crowd_view *v = find_view(hash);
    if (v)
        return v;
    v = calloc(1, sizeof(*v));
    assert(v);
    v->hash = hash;
    err_t err = buf_append(&v->bytes, data, len);
    err = err ? err : cluster_view_digest(data, len, v->digest);
    assert(!err);
    LIST_INSERT_HEAD(&crowd.views[hash % 1024], v, link);
    return v;
}

/* What a follower does in cluster_view_change. */
static struct crowd_view *change_view(const struct crowd_view *from, const struct rpc_beat_reply *reply)
{
    struct crowd_view *v = find_view(reply->hash);
    struct buf bytes = {0};
    struct state *s;
    if (v)
        return v;
    err_t err = state_new(&s);
    err = err ? err : state_restore(s, from->bytes.data, from->bytes.len);
    for (int i = 0; !err && i < reply->n_changes; i++)
        err = state_cluster_merge(s, reply->changes[i].data, reply->changes[i].len);
    err = err ? err : state_cluster_snapshot(s, &bytes);
    assert(!err);
    v = add_view(bytes.data, bytes.len);
    if (v->hash != reply->hash)
        broken("the changes do not give the leader's view");
    buf_fini(&bytes);
    state_free(s);
    return v;
}

static void set_view(struct crowd_view **at, struct crowd_view *to)
{
    struct crowd_view *before = *at;
    if (to)
        to->refs++;
    *at = to;
    if (!before || --before->refs)
        return;
    LIST_REMOVE(before, link);
    buf_fini(&before->bytes);
    free(before);
}

int crowd_having(uint64_t hash)
{
    int ret = 0;
    for (int id = crowd.first; id <= crowd.last; id++)
        ret += crowd.nodes[id].is_up && crowd.nodes[id].view->hash == hash;
    return ret;
}

static void try_node(void *arg);

static void lose(struct crowd_node *n)
{
    struct rpc_conn *conn = n->conn;
    set_up(n, false);
    n->beats = false;
    n->conn = NULL;
    if (conn) {
        rpc_conn_set_data(conn, NULL);
        rpc_conn_close(conn);
    }
    world_after(n->host, RETRY_US, try_node, n);
}

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct crowd_node *n = rpc_conn_data(conn);
    (void)owner;
    if (n && n->conn == conn)
        lose(n);
}

/* ---- joining ---- */

static void on_joined(void *arg, err_t err, const char *text, uint64_t id, const void *view, size_t len)
{
    struct crowd_node *n = arg;
    (void)text;
    if (!n->conn)
        return;
    rpc_conn_set_data(n->conn, NULL);
    rpc_conn_close(n->conn);
    n->conn = NULL;
    if (err) {
        world_after(n->host, RETRY_US, try_node, n);
        return;
    }
    set_view(&n->view, add_view(view, len));
    n->self.id = id;
    world_after(n->host, RESTART_US, try_node, n);
}

/* ---- following ---- */

/* A node tries all nodes in turn, like follower.c. While it joins, it knows only a few addresses. */
static int next_door(struct crowd_node *n)
{
    int known = n->self.id ? crowd.last : crowd.doors;
    int64_t at;
    int voter = n->n_voters && n->turn % 4 ? n->voters[(n->turn + n->host->id) % n->n_voters] : 0;
    if (voter && voter != n->leader) {
        n->turn++;
        return voter;
    }
    do
        at = (n->host->id + (int64_t)n->turn++ * 7919) % known; /* a prime: follower.c chooses such a step, too */
    while (at + 1 == n->host->id);
    return (int)at + 1;
}

static void on_command(void *arg, const struct rpc_result *r)
{
    (void)arg, (void)r;
}

static void on_report(void *arg, const struct rpc_result *r)
{
    (void)arg, (void)r;
}

/* As rpc_node_attend and rpc_node_list of a node without GPUs and processes. */
static err_t attend(struct crowd_node *n)
{
    Dtd__AgentFacts facts = DTD__AGENT_FACTS__INIT;
    Dtd__AgentReport report = DTD__AGENT_REPORT__INIT;
    facts.slots = 8;
    facts.has_gpus = true;
    report.has_listed = report.listed = true;
    report.facts = &facts;
    err_t err = rpc_send(n->conn, PEER_COMMANDS, &facts.base, 0, on_command, n, NULL);
    return err ? err : rpc_send(n->conn, PEER_REPORT, &report.base, 0, on_report, n, NULL);
}

static void fetch(struct crowd_node *n, const char *address);

/* The view that the leader has sent, or has confirmed. */
static void take_news(struct crowd_node *n, const struct rpc_beat_reply *reply)
{
    if (n->offers && reply->known)
        set_view(&n->view, n->fetched);
    if (n->offers)
        set_view(&n->fetched, NULL);
    n->offers = false;
    if (reply->view.len)
        set_view(&n->view, add_view(reply->view.data, reply->view.len));
    else if (reply->n_changes)
        set_view(&n->view, change_view(n->view, reply));
    if (reply->source_address && !n->fetches && !n->fetched)
        fetch(n, reply->source_address);
}

static void on_beat(void *arg, err_t err, const struct rpc_beat_reply *reply)
{
    struct crowd_node *n = arg;
    n->beats = false;
    if (!n->conn || err == ERR_TIMEOUT)
        return;
    if (err) {
        lose(n);
        return;
    }
    n->replied_us = world.now_us;
    take_news(n, reply);
    for (int i = 0; i < reply->n_voters && i < MAX_VOTERS; i++)
        n->voters[i] = (int)reply->voters[i];
    if (reply->n_voters)
        n->n_voters = reply->n_voters < MAX_VOTERS ? reply->n_voters : MAX_VOTERS;
}

static void beat(void *arg)
{
    struct crowd_node *n = arg;
    if (!n->is_up)
        return;
    if (world.now_us - n->replied_us > CLUSTER_LOST_MS * US_PER_MS) {
        lose(n);
        return;
    }
    world_after(n->host, CLUSTER_HEARTBEAT_MS * US_PER_MS + world_between(FROM_CLOCK, 0, 300), beat, n);
    if (n->beats)
        return;
    const struct cluster_beat b = {.view = n->view->hash,
                                   .changes = !n->is_old,
                                   .shares = !n->is_old,
                                   .fetched = n->fetched ? n->fetched->digest : NULL};
    n->offers = n->fetched != NULL;
    n->beats = rpc_cluster_heartbeat(n->conn, &b, CALL_MS, on_beat, n) == OK;
}

static void on_hello(void *arg, err_t err, const char *text, const struct rpc_hello_reply *reply)
{
    struct crowd_node *n = arg;
    int id;
    (void)text;
    if (!n->conn || n->is_up)
        return;
    if (!err && reply->leads && attend(n) == OK) {
        n->leader = n->at;
        set_up(n, true);
        n->replied_us = world.now_us;
        beat(n);
        return;
    }
    n->door = reply->address && sscanf(reply->address, "10.0.0.%d:", &id) == 1 ? id : next_door(n);
    lose(n);
}

/* ---- the view from another node ---- */

static void end_fetch(struct crowd_node *n)
{
    struct rpc_conn *conn = n->source;
    n->source = NULL;
    n->fetches = false;
    if (conn) {
        rpc_conn_set_data(conn, NULL);
        rpc_conn_close(conn);
    }
}

static void on_view(void *arg, err_t err, const void *view, size_t len)
{
    struct crowd_node *n = arg;
    if (!n->source)
        return;
    if (!err)
        set_view(&n->fetched, add_view(view, len));
    end_fetch(n);
}

static void source_closed(void *owner, struct rpc_conn *conn)
{
    struct crowd_node *n = rpc_conn_data(conn);
    (void)owner;
    if (n && n->source == conn) {
        n->source = NULL;
        end_fetch(n);
    }
}

static void source_connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct crowd_node *n = owner;
    const struct rpc_conn_config config = {.loop = &n->loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = n,
                                           .on_close = source_closed};
    (void)why, (void)peer;
    err = err ? err : rpc_conn_open(&config, fd, 0, &n->source);
    if (!err) {
        rpc_conn_set_data(n->source, n);
        err = rpc_cluster_view(n->source, VIEW_MS, on_view, n);
    }
    if (err)
        end_fetch(n);
}

static void fetch(struct crowd_node *n, const char *address)
{
    struct tunnel_request *request;
    struct why why;
    const struct tunnel_connect_config config = {
        .address = address, .key = {TUNNEL_KEY_CLUSTER, 1}, .purpose = TUNNEL_RPC, .deadline_ms = CALL_MS};
    n->fetches = true;
    err_t err = tunnel_connect(n->tunnel, &config, source_connected, n, &request, &why);
    assert(!err);
}

/* A view with one node more, which would be admitted wherever this view is believed. */
static struct buf make_false_view(const struct crowd_view *from)
{
    struct buf bytes = {0};
    struct state *s;
    struct state_result result;
    const struct record r = {.kind = RECORD_NODE,
                             .wall_ms = 1,
                             .node = {.name = NO_NODE, .address = "10.0.0.1:7811", .domain = "", .newest = UINT32_MAX}};
    err_t err = state_new(&s);
    err = err ? err : state_restore(s, from->bytes.data, from->bytes.len);
    err = err ? err : state_apply(s, &r, &result);
    err = err ? err : state_cluster_snapshot(s, &bytes);
    assert(!err && !result.err);
    state_free(s);
    return bytes;
}

static void handle_view(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct crowd_node *n = owner;
    bool lies = crowd.has_liars && n->host->id % 2;
    struct buf made = {0};
    Dtd__PeerView m = DTD__PEER_VIEW__INIT;
    (void)request;
    if (lies)
        made = make_false_view(n->view);
    const struct buf *bytes = lies ? &made : &n->view->bytes;
    m.view = (ProtobufCBinaryData){bytes->len, bytes->data};
    rpc_reply(call, &m.base);
    buf_fini(&made);
}

/* ---- other nodes, which search for the leader or fetch the view ---- */

static void handle_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct crowd_node *n = owner;
    Dtd__PeerStatus s = DTD__PEER_STATUS__INIT;
    char leader[16], address[32];
    (void)request;
    snprintf(leader, sizeof(leader), "node-%d", n->leader);
    snprintf(address, sizeof(address), "10.0.0.%d:7811", n->leader);
    s.node = (char *)n->self.name;
    s.version = (char *)DTD_VERSION;
    s.raft_state = (char *)"";
    s.leader = n->is_up ? leader : NULL;
    s.leader_address = n->is_up ? address : NULL;
    rpc_reply(call, &s.base);
}

static void inbound_closed(void *owner, struct rpc_conn *conn)
{
    (void)owner, (void)conn;
}

static void accepted(void *owner, const struct tunnel_peer *peer, int fd)
{
    static struct rpc_method methods[RPC_METHOD_COUNT];
    static const struct rpc_binding served[] = {{PEER_HELLO, handle_hello}, {PEER_VIEW, handle_view}};
    struct crowd_node *n = owner;
    struct rpc_conn *conn;
    if (!methods[0].id)
        rpc_methods_bind(served, 2, methods);
    const struct rpc_conn_config config = {
        .loop = &n->loop, .methods = methods, .n_methods = RPC_METHOD_COUNT, .owner = n, .on_close = inbound_closed};
    (void)peer;
    err_t err = rpc_conn_open(&config, fd, RPC_ROLE_PEER, &conn);
    assert(!err);
}

/* ---- connecting ---- */

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct crowd_node *n = owner;
    const struct features_range has = {features_oldest(), features_newest()};
    const struct rpc_conn_config config = {.loop = &n->loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .max_calls = RPC_PEER_MAX_CALLS,
                                           .owner = n,
                                           .on_close = conn_closed};
    (void)why;
    if (!err)
        sscanf(peer->name, "node-%d", &n->at);
    if (err || rpc_conn_open(&config, fd, RPC_ROLE_PEER, &n->conn)) {
        n->conn = NULL;
        n->door = next_door(n);
        world_after(n->host, RETRY_US, try_node, n);
        return;
    }
    rpc_conn_set_data(n->conn, n);
    err = n->self.id ? rpc_cluster_hello(n->conn, n->self.name, n->self.instance, false, CALL_MS, on_hello, n)
                     : rpc_cluster_join(n->conn, &n->self, &has, 0, n->is_old ? NULL : n->identity.public_key, JOIN_MS,
                                        on_joined, n);
    if (err)
        lose(n);
}

static void try_node(void *arg)
{
    struct crowd_node *n = arg;
    char address[32];
    struct why why;
    snprintf(address, sizeof(address), "10.0.0.%d:7811", n->door);
    const struct tunnel_connect_config config = {.address = address,
                                                 .key = {TUNNEL_KEY_CLUSTER, 1},
                                                 .purpose = n->self.id ? TUNNEL_RPC : TUNNEL_JOIN,
                                                 .deadline_ms = n->self.id ? CALL_MS : JOIN_MS};
    err_t err = tunnel_connect(n->tunnel, &config, connected, n, &n->request, &why);
    assert(!err);
}

static void begin(void *arg)
{
    struct crowd_node *n = arg;
    const struct tunnel_host_config config = {.loop = &n->loop,
                                              .name = n->self.name,
                                              .keys = {NULL, find_key},
                                              .identity = {.own = n->is_old ? NULL : &n->identity}};
    struct why why;
    uv_loop_init(&n->loop);
    struct tunnel_listener *listener;
    err_t err = tunnel_host_open(&config, &n->tunnel, &why);
    err = err ? err : tunnel_listen(n->tunnel, 0, accepted, n, &listener);
    assert(!err);
    try_node(n);
}

void crowd_init(int first, int last, int doors)
{
    crowd.first = first;
    crowd.last = last;
    crowd.doors = doors;
    crowd.nodes = calloc((size_t)last + 1, sizeof(*crowd.nodes));
    assert(crowd.nodes);
    for (int id = first; id <= last; id++) {
        struct crowd_node *n = &crowd.nodes[id];
        n->host = &world.hosts[id];
        n->door = 1 + id % doors;
        snprintf(n->self.name, sizeof(n->self.name), "node-%d", id);
        snprintf(n->self.address, sizeof(n->self.address), "10.0.0.%d:7811", id);
        memcpy(n->self.instance, &id, sizeof(id));
        memcpy(n->identity.public_key, &id, sizeof(id));
    }
}

void crowd_start(int64_t within_us)
{
    for (int id = crowd.first; id <= crowd.last; id++) {
        machines[id].has_power = true;
        host_up(&world.hosts[id]);
        world_after(&world.hosts[id], crowd.nodes[id].is_old ? 0 : world_between(FROM_FAULTS, 0, within_us), begin,
                    &crowd.nodes[id]);
    }
}

void crowd_has_old_node(void)
{
    crowd.nodes[crowd.first].is_old = true;
    machines[crowd.first].running = 1;
}

void crowd_has_liars(void)
{
    crowd.has_liars = true;
}

bool crowd_is_deceived(const struct cluster *c)
{
    return cluster_node(c, NO_NODE) != NULL;
}

void crowd_kill(int id)
{
    struct crowd_node *n = &crowd.nodes[id];
    set_up(n, false);
    n->conn = NULL;
    set_view(&n->view, NULL);
    set_view(&n->fetched, NULL);
    machines[id].has_power = false;
    host_down(n->host);
    tunnel_forget(n->host);
    stream_forget(n->host, false);
}

int crowd_following(int leader)
{
    return crowd.followers[leader];
}
