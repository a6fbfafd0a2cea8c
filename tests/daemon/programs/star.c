/* A cluster for tests of jobs on several nodes, in place of daemon/control/cluster/cluster.c. The node that
 * DTD_TEST_LEADER names is always the leader; the others reach it by a Unix socket in the folder DTD_TEST_STAR. It
 * calls the same events of control as the real cluster, but has no key and no votes. A node first sends its name. It is
 * lost if it has had no connection, or has sent nothing, for CLUSTER_LOST_MS. */
#include "daemon/control/cluster/cluster.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/rpc/adapters.h"
#include "proto/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Linked with --wrap. rpc_send removes the fields of reports that an older version does not send or does not read.
 * health_oom simulates the out-of-memory killer. */
err_t __real_rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
                      rpc_callback cb, void *arg, uint64_t *ret_call);
err_t __wrap_rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
                      rpc_callback cb, void *arg, uint64_t *ret_call);
enum health_oom __wrap_health_oom(struct health *h, pid_t pid);

static bool strips(const char *what)
{
    const char *strip = getenv("DTD_TEST_STRIP");
    return strip && strcmp(strip, what) == 0;
}

err_t __wrap_rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
                      rpc_callback cb, void *arg, uint64_t *ret_call)
{
    Dtd__AgentReport *m = (Dtd__AgentReport *)request;
    if (method == PEER_REPORT && strips("sick") && m->facts)
        m->facts->n_gpu_sick = 0;
    for (size_t i = 0; method == PEER_REPORT && strips("cause") && i < m->n_child; i++)
        m->child[i]->cause = NULL;
    return __real_rpc_send(conn, method, request, deadline_ms, cb, arg, ret_call);
}

enum health_oom __wrap_health_oom(struct health *h, pid_t pid)
{
    (void)h;
    (void)pid;
    return getenv("DTD_TEST_OOM") ? HEALTH_OOM_YES : HEALTH_OOM_NO;
}

#define MEMBERS 8

struct member {
    char name[64];
    struct rpc_conn *conn; /* NULL: gone */
    int64_t heard_ms;
    bool lost;
    uint64_t frames;
};

struct cluster {
    struct cluster_config config;
    const char *name; /* of this node */
    const struct cluster_events *events;
    void *owner;
    uv_timer_t timer;
    bool leads, told, ready; /* ready: this node leads its own log, which has one voter */
    struct rpc_listener *listener;
    struct rpc_conn *leader;
    bool up;
    struct member members[MEMBERS];
    int n_members;
};

static struct cluster star;
static struct rpc_method methods[RPC_METHOD_COUNT];

static void socket_path(char *ret, size_t size)
{
    snprintf(ret, size, "%s/star.sock", getenv("DTD_TEST_STAR"));
}

/* ---- the leader ---- */

static void member_closed(void *owner, struct rpc_conn *conn)
{
    for (int i = 0; i < star.n_members; i++)
        if (star.members[i].conn == conn) {
            star.members[i].conn = NULL;
            star.events->member_down(star.owner, star.members[i].name);
        }
}

static void member_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__PeerHello *h = (const Dtd__PeerHello *)(const void *)request;
    Dtd__PeerStatus s = DTD__PEER_STATUS__INIT;
    struct member *m = NULL;
    for (int i = 0; i < star.n_members; i++)
        if (strcmp(star.members[i].name, h->node) == 0)
            m = &star.members[i];
    if (!m)
        m = &star.members[star.n_members++];
    snprintf(m->name, sizeof(m->name), "%s", h->node);
    bool fresh = m->conn != rpc_call_conn(call);
    m->conn = rpc_call_conn(call);
    m->lost = false;
    m->heard_ms = clock_mono_ms();
    s.node = (char *)star.name;
    s.version = s.raft_state = (char *)"";
    rpc_reply(call, &s.base);
    if (fresh)
        star.events->member_up(star.owner, m->name, m->conn);
}

static void accepted(void *owner, int fd, const struct rpc_peer *who)
{
    const struct rpc_conn_config config = {.loop = star.config.loop,
                                           .methods = methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = star.config.methods_owner,
                                           .on_close = member_closed};
    struct rpc_conn *conn;
    if (rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_PEER, &conn))
        log_error("no connection");
}

static void listen_star(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socket_path(a.sun_path, sizeof(a.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(a.sun_path);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, sizeof(a)) || listen(fd, 16) ||
        rpc_listen(star.config.loop, fd, accepted, NULL, &star.listener))
        abort();
}

static void watch_members(void)
{
    int64_t now = clock_mono_ms();
    for (int i = 0; i < star.n_members; i++) {
        struct member *m = &star.members[i];
        if (m->lost || now - m->heard_ms < CLUSTER_LOST_MS)
            continue;
        m->lost = true;
        struct rpc_conn *conn = m->conn;
        m->conn = NULL;
        if (conn)
            rpc_conn_close(conn);
        star.events->member_lost(star.owner, m->name, now - m->heard_ms, conn ? "silent" : "its connection has gone");
    }
}

/* ---- followers ---- */

static void hello_answered(void *arg, const struct rpc_result *result)
{
    if (result->err || star.up || !star.leader)
        return;
    star.up = true;
    star.events->leader_up(star.owner, star.leader);
}

static void leader_closed(void *owner, struct rpc_conn *conn)
{
    star.leader = NULL;
    if (star.up)
        star.events->leader_down(star.owner);
    star.up = false;
}

/* While the file exists, the node sends and receives nothing, as with an unplugged cable: both ends continue to run. */
static bool is_cut(void)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/cut-%s", getenv("DTD_TEST_STAR"), star.name);
    return access(path, F_OK) == 0;
}

static void send_heartbeat(void)
{
    Dtd__PeerHello h = DTD__PEER_HELLO__INIT;
    h.node = (char *)star.name;
    h.version = (char *)"";
    if (!is_cut() && rpc_send(star.leader, PEER_HELLO, &h.base, 0, hello_answered, NULL, NULL))
        log_error("the heartbeat was not sent");
}

static void reach_leader(void)
{
    char path[108];
    int fd;
    const struct rpc_conn_config config = {.loop = star.config.loop,
                                           .methods = methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = star.config.methods_owner,
                                           .on_close = leader_closed};
    socket_path(path, sizeof(path));
    if (!star.leader && !is_cut() && rpc_connect_unix(path, &fd) == OK &&
        rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_PEER, &star.leader))
        star.leader = NULL;
    if (star.leader)
        send_heartbeat();
}

/* ---- cluster.h ---- */

static void on_timer(uv_timer_t *timer)
{
    if (!star.ready)
        return;
    if (!star.leads) {
        reach_leader();
        return;
    }
    if (!star.told)
        star.events->lead(star.owner);
    star.told = true;
    watch_members();
}

err_t cluster_start(const struct cluster_config *config, struct cluster **ret, struct why *why)
{
    const char *name = config->conf->name[0] ? config->conf->name : "node-1";
    star = (struct cluster){.config = *config, .name = name, .events = config->events, .owner = config->owner};
    star.leads = strcmp(name, getenv("DTD_TEST_LEADER")) == 0;
    memcpy(methods, config->methods, sizeof(methods));
    for (int i = 0; i < RPC_METHOD_COUNT; i++)
        if (methods[i].id == PEER_HELLO)
            methods[i].handler = member_hello;
    if (star.leads)
        listen_star();
    (void)uv_timer_init(config->loop, &star.timer);
    (void)uv_timer_start(&star.timer, on_timer, 0, CLUSTER_HEARTBEAT_MS);
    *ret = &star;
    return OK;
}

void cluster_close(struct cluster *c, void (*cb)(void *owner))
{
    (void)uv_timer_stop(&c->timer);
    cb(c->owner);
}

void cluster_log_config(struct cluster *c, struct log_config *ret)
{
    (void)c, (void)ret;
}

void cluster_role(struct cluster *c)
{
    c->ready = true;
    (void)uv_timer_start(&c->timer, on_timer, 0, CLUSTER_HEARTBEAT_MS);
}

bool cluster_named(const struct cluster *c)
{
    return false;
}

err_t cluster_dial_store(struct cluster *c, const char *node, const char *argument, cluster_dial_cb cb, void *arg)
{
    return ERR_UNSUPPORTED; /* no streams in a star */
}

const struct rpc_server_row *rpc_cluster_rows(int *ret_n)
{
    *ret_n = 0;
    return NULL;
}

err_t cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why)
{
    return OK; /* all are of one version */
}

uint32_t cluster_newest(const struct cluster *c)
{
    return 1;
}

const char *cluster_self(const struct cluster *c)
{
    return c->name;
}

const struct state_node *cluster_node(const struct cluster *c, const char *name)
{
    return NULL;
}

const char *cluster_leader(const struct cluster *c)
{
    return getenv("DTD_TEST_LEADER");
}

bool cluster_has_successor(const struct cluster *c)
{
    return false;
}

bool cluster_is_needed(const struct cluster *c)
{
    return false;
}

int cluster_nodes(const struct cluster *c)
{
    return 1 + c->n_members;
}

bool cluster_leads(const struct cluster *c)
{
    return c->leads;
}

struct rpc_conn *cluster_leader_conn(struct cluster *c)
{
    return c->up ? c->leader : NULL;
}
