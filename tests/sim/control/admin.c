#include "tests/sim/control/admin.h"

#include "common/rpc/methods.h"
#include "daemon/control/state/state.h"
#include "proto/client.pb-c.h"
#include "tests/sim/control/branches.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define AGAIN_US (US_PER_S / 2) /* before a call is repeated */
#define PATIENCE_US (20 * US_PER_S)

static struct {
    struct host *host;
    uv_loop_t loop;
    struct rpc_conn *conn;
    uint16_t method;
    const ProtobufCMessage *request;
    bool is_answered;
    err_t err;
    char text[600], token[ADMIN_TOKEN_MAX];
} admin;

void admin_init(void)
{
    memset(&admin, 0, sizeof(admin));
}

const char *admin_answer(void)
{
    return admin.text;
}

static bool is_answered(void)
{
    return admin.is_answered;
}

static void conn_is_closed(void *owner, struct rpc_conn *conn)
{
    (void)owner;
    if (admin.conn == conn)
        admin.conn = NULL;
}

static void end_call(err_t err, const char *text)
{
    admin.is_answered = true;
    admin.err = err;
    snprintf(admin.text, sizeof(admin.text), "%s", text ? text : "");
}

static void answered(void *arg, const struct rpc_result *result)
{
    (void)arg;
    if (admin.is_answered)
        return;
    if (!result->err && admin.method == CLIENT_CLUSTER_TOKEN)
        snprintf(admin.token, sizeof(admin.token), "%s", ((const Dtd__JoinToken *)result->reply)->token);
    end_call(result->err, result->text);
}

static void start_call(void *arg)
{
    const struct rpc_conn_config config = {.loop = &admin.loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = arg,
                                           .on_close = conn_is_closed};
    int fd;
    uv_loop_init(&admin.loop);
    err_t err = rpc_connect_unix("/control.sock", &fd);
    err = err ? err : rpc_conn_open(&config, fd, RPC_ROLE_ANY, &admin.conn);
    err =
        err ? err
            : rpc_send(admin.conn, admin.method, admin.request, (int)(ADMIN_CALL_US / US_PER_MS), answered, NULL, NULL);
    if (err)
        end_call(err, "not sent");
}

static void close_conn(void *arg)
{
    (void)arg;
    if (admin.conn)
        rpc_conn_close(admin.conn);
    admin.conn = NULL;
}

static err_t call(const struct machine *m, uint16_t method, const ProtobufCMessage *request)
{
    if (!admin.host) {
        admin.host = host_beside(m->host);
        host_up(admin.host);
    }
    if (!m->has_dtd)
        return ERR_CLOSED;
    admin.host->on = m->host;
    admin.method = method;
    admin.request = request;
    admin.is_answered = false;
    world_after(admin.host, 0, start_call, NULL);
    world_run(world.now_us + ADMIN_CALL_US + US_PER_S, is_answered);
    if (!admin.is_answered)
        end_call(ERR_TIMEOUT, "no answer");
    trace("the administrator's call %x on host %d ends: %s %s", method, m->host->id, err_name(admin.err), admin.text);
    world_after(admin.host, 0, close_conn, NULL);
    world_run(world.now_us + US_PER_MS, NULL);
    return admin.err;
}

static err_t call_empty(const struct machine *m, uint16_t method)
{
    const Dtd__Empty empty = DTD__EMPTY__INIT;
    return call(m, method, &empty.base);
}

err_t admin_recover(const struct machine *m)
{
    return call_empty(m, CLIENT_CLUSTER_RECOVER);
}

err_t admin_leave(const struct machine *m)
{
    return call_empty(m, CLIENT_CLUSTER_LEAVE);
}

err_t admin_rotate(const struct machine *m)
{
    return call_empty(m, CLIENT_CLUSTER_ROTATE);
}

err_t admin_remove(const struct machine *m, const char *node, bool evicts)
{
    Dtd__ClusterNodeRequest q = DTD__CLUSTER_NODE_REQUEST__INIT;
    q.name = (char *)node;
    q.has_evict = q.evict = evicts;
    return call(m, CLIENT_CLUSTER_REMOVE, &q.base);
}

err_t admin_token(const struct machine *m, char ret[ADMIN_TOKEN_MAX])
{
    const Dtd__JoinToken q = DTD__JOIN_TOKEN__INIT;
    err_t err = call(m, CLIENT_CLUSTER_TOKEN, &q.base);
    if (!err)
        memcpy(ret, admin.token, ADMIN_TOKEN_MAX);
    return err;
}

err_t admin_join(const struct machine *m, const char *token)
{
    Dtd__ClusterInitRequest q = DTD__CLUSTER_INIT_REQUEST__INIT;
    q.token = (char *)token;
    return call(m, CLIENT_CLUSTER_JOIN, &q.base);
}

/* ---- taking a node in anew ---- */

static bool serves(const struct machine *m)
{
    return m->host->is_up && m->node && m->node->rpc.listener;
}

static bool is_member(const struct machine *m)
{
    return cluster_named(m->node->cluster);
}

/* A token is used until it admits no node any more: there may be only so many. */
static void try_to_join(const struct machine *m, char token[ADMIN_TOKEN_MAX])
{
    const struct machine *leader = branch_leader();
    if (!leader || (!token[0] && admin_token(leader, token)))
        return;
    err_t err = admin_join(m, token); /* the loop sees whether it has joined */
    if (err == ERR_DENIED || err == ERR_STALE)
        token[0] = '\0';
    if (err == ERR_EXISTS) /* the answer to an earlier call was lost, or it was never out */
        (void)admin_remove(leader, m->node ? m->node->conf.name : "", false);
}

/* It cannot leave: it was removed while it was down, and its key is not valid any more, so no node talks to it. */
static bool is_forgotten(const struct machine *m)
{
    const struct machine *leader = branch_leader();
    const struct state_node *x =
        leader ? state_node_find(leader->node->replica.state, cluster_self(m->node->cluster)) : NULL;
    return leader && !cluster_leader(m->node->cluster) && (!x || x->id != cluster_self_id(m->node->cluster));
}

bool admin_take_anew(struct machine *m, int64_t limit_us)
{
    const int64_t begin_us = world.now_us;
    char token[ADMIN_TOKEN_MAX] = "";
    bool has_left = false;
    while (world.now_us < begin_us + limit_us) {
        if (!serves(m)) {
            world_run(world.now_us + AGAIN_US, NULL);
            continue;
        }
        if (has_left && machine_is_well(m) && is_member(m) && m->branch == branch_newest())
            return true;
        if (!is_member(m)) {
            has_left = true;
            try_to_join(m, token);
        } else if (!has_left && world.now_us - begin_us > PATIENCE_US && is_forgotten(m)) {
            machine_wipe(m);
        } else if (!has_left) {
            (void)admin_leave(m); /* repeated until it is no member */
        }
        world_run(world.now_us + AGAIN_US, NULL);
    }
    return false;
}
