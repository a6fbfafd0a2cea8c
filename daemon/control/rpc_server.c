/* See rpc_server.h. The kernel says who connects. Into a private dtd only its user and root come at all; a system-wide
 * one serves every user of the machine, so many connections of each, and every job's own rules say the rest. */
#include "daemon/control/rpc_server.h"

#include "common/base/log.h"
#include "daemon/control/node.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLIENTS_PER_USER 1024 /* connections that are no process of a job */

static const struct rpc_binding bindings[] = {
    {CLIENT_SUBMIT, rpc_client_submit},
    {CLIENT_STATUS, rpc_client_status},
    {CLIENT_LIST, rpc_client_list},
    {CLIENT_CANCEL, rpc_client_cancel},
    {CLIENT_LOGS, rpc_client_logs},
    {CLIENT_METRICS, rpc_client_metrics},
    {CLIENT_WATCH, rpc_client_watch},
    {CLIENT_CHECKPOINTS, rpc_client_checkpoints},
    {CLIENT_NODE, rpc_client_node},
    {CLIENT_SHUTDOWN, rpc_client_shutdown},
    {WORKER_HELLO, rpc_worker_hello},
    {WORKER_ATTEND, rpc_worker_attend},
    {WORKER_REPORT, rpc_worker_report},
    {WORKER_STORE_PUT, rpc_worker_store_put},
    {WORKER_STORE_GET, rpc_worker_store_get},
    {IO_CONTROL_HELLO, rpc_io_hello},
    {IO_CONTROL_ATTEND, rpc_io_attend},
    {IO_CONTROL_REPORT, rpc_io_report},
    {PEER_HELLO, rpc_peer_hello},
};

void rpc_server_bind(struct node *n)
{
    rpc_methods_bind(bindings, (int)(sizeof(bindings) / sizeof(bindings[0])), n->methods);
}

/* ---- connections ---- */

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct node *n = owner;
    struct peer *p = rpc_conn_data(conn);
    bool process = p && p->job;
    if (p) {
        children_bye(n, p);
        LIST_REMOVE(p, link);
    }
    free(p);
    if (process) /* its Attend has gone before it */
        node_tick(n);
}

static bool may_come_in(const struct node *n, const struct rpc_peer *who)
{
    int clients = 0;
    const struct peer *p;
    if (who->uid == 0 || who->uid == getuid())
        return true;
    LIST_FOREACH(p, &n->peers, link)
    clients += p->uid == who->uid && !p->job;
    return n->system && clients < CLIENTS_PER_USER;
}

static void accepted(void *owner, int fd, const struct rpc_peer *who)
{
    struct node *n = owner;
    const struct rpc_conn_config config = {
        .loop = &n->loop, .methods = n->methods, .n_methods = RPC_METHOD_COUNT, .owner = n, .on_close = conn_closed};
    if (!may_come_in(n, who)) {
        log_warn("refused uid=%u pid=%d", (unsigned)who->uid, (int)who->pid);
        close(fd);
        return;
    }
    struct peer *p = calloc(1, sizeof(*p));
    if (!p) {
        close(fd);
        return;
    }
    p->node = n;
    p->uid = (uint32_t)who->uid;
    err_t err = rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_CLIENT, &p->conn);
    if (err) {
        log_warn("connection not opened error=%s", err_text(err));
        free(p);
        return;
    }
    rpc_conn_set_data(p->conn, p);
    LIST_INSERT_HEAD(&n->peers, p, link);
}

err_t rpc_server_start(struct node *n, int fd)
{
    return rpc_listen(&n->loop, fd, accepted, n, &n->listener);
}

void rpc_server_finish(struct node *n)
{
    if (n->listener)
        rpc_listener_close(n->listener);
    n->listener = NULL;
}

void rpc_server_drop(struct peer *peer)
{
    peer->job = 0;
    rpc_conn_close(peer->conn);
}

struct peer *rpc_server_peer(struct rpc_call *call)
{
    struct rpc_conn *conn = rpc_call_conn(call);
    return conn ? rpc_conn_data(conn) : NULL;
}

/* ---- who calls ---- */

uid_t rpc_server_uid(struct rpc_call *call)
{
    const struct peer *p = rpc_server_peer(call);
    return p ? p->uid : (uid_t)-1;
}

const char *rpc_server_user(uid_t uid, char *ret, size_t size)
{
    const struct passwd *pw = getpwuid(uid);
    if (pw)
        snprintf(ret, size, "%.64s", pw->pw_name);
    else
        snprintf(ret, size, "uid %u", (unsigned)uid);
    return ret;
}

bool rpc_server_is_admin(struct rpc_call *call, const char *what)
{
    uid_t uid = rpc_server_uid(call);
    if (uid == 0 || uid == getuid())
        return true;
    char name[80];
    rpc_fail(call, ERR_DENIED, "only root may %s that serves all users of this machine, and you are %s", what,
             rpc_server_user(uid, name, sizeof(name)));
    return false;
}

/* ---- processes of jobs ---- */

struct job *rpc_server_job(struct rpc_call *call, struct job_process **ret)
{
    const struct peer *p = rpc_server_peer(call);
    struct job *j = p && p->job ? node_job(p->node, p->job) : NULL;
    const struct agent *a = !j ? NULL : p->from ? agent_find(p->node, p->from) : &p->node->self;
    struct job_process *process = a ? job_process_find(j, a, p->slot) : NULL;
    if (!process || !job_process_running(process)) {
        rpc_fail(call, ERR_STALE, "this process belongs to no job any more");
        return NULL;
    }
    *ret = process;
    return j;
}

/* Its own node checks the token; whoever decides then hears which epoch it is in. */
err_t rpc_server_hello(struct node *n, struct rpc_call *call, const char *id, int slot, const void *token,
                       size_t token_bytes, uint64_t epoch, uint32_t role)
{
    char *end;
    errno = 0;
    uint64_t number = strtoull(id, &end, 10);
    struct peer *p = rpc_server_peer(call);
    bool named = *id && !*end && !errno;
    err_t err = named && p && !p->job ? children_hello(n, number, slot, token, token_bytes, p) : ERR_DENIED;
    struct job *j = err ? NULL : node_job(n, number);
    struct job_process *process = j ? job_process_find(j, &n->self, slot) : NULL;
    if (!err)
        err = process ? job_process_hello(j, process, epoch) : ERR_DENIED;
    if (err) {
        log_warn("hello refused job=%s slot=%d", id, slot);
        rpc_fail(call, err, "no process of this job and slot has this token");
        return err;
    }
    p->job = number;
    p->slot = slot;
    rpc_conn_set_roles(p->conn, role);
    return OK;
}
