/* See rpc_server.h. The kernel says who connects. Into a private dtd only its user and root come at all; a system-wide
 * one serves every user of the machine, so many connections of each, and every job's own rules say the rest. */
#include "daemon/control/rpc/server.h"

#include "common/base/log.h"
#include "daemon/control/job/node_view.h"
#include "daemon/control/control.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLIENTS_PER_USER 1024 /* connections that are no process of a job */

#define ROW(where, id, handler) {where, {id, handler}},

static const struct rpc_server_row rows[] = {RPC_CONTROL_METHODS(ROW)};
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))
#define MAX_ROWS RPC_METHOD_COUNT

/* These, and the cluster's. */
static const struct rpc_server_row *row_at(int i)
{
    int n;
    const struct rpc_server_row *more = rpc_cluster_rows(&n);
    return i < N_ROWS ? &rows[i] : i < N_ROWS + n ? &more[i - N_ROWS] : NULL;
}

/* ---- calls for the node that leads ---- */

static void parked_gone(void *arg)
{
    (void)arg;
}

void rpc_server_park(struct rpc_call *call)
{
    rpc_call_on_cancel(call, parked_gone, NULL);
}

static struct rpc_origin origin_of(const struct peer *p)
{
    return (struct rpc_origin){.is_process = p->job != 0, .uid = p->uid, .job = p->job, .slot = p->slot};
}

/* Processes wait where nobody leads: their epoch goes on without a word from us. People are told. */
void rpc_server_pass_on(struct node *n, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct peer *p = rpc_server_peer(call);
    const struct rpc_origin origin = p ? origin_of(p) : (struct rpc_origin){0};
    if (p && n->leader)
        rpc_forward(call, request, n->leader, &origin, origin.is_process);
    else if (p && origin.is_process)
        rpc_server_park(call);
    else
        rpc_fail(call, ERR_AGAIN, "no node leads now, or it cannot be reached from here; ask again, see `dtctl node`");
}

static void answer_or_pass_on(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct node *n = owner;
    uint16_t id = rpc_call_method(call);
    if (!n->leads) {
        rpc_server_pass_on(n, call, request);
        return;
    }
    const struct rpc_server_row *row;
    for (int i = 0; (row = row_at(i)); i++)
        if (row->binding.id == id) {
            row->binding.handler(owner, call, request);
            return;
        }
}

void rpc_server_bind(struct node *n)
{
    struct rpc_binding here[MAX_ROWS], all[MAX_ROWS];
    const struct rpc_server_row *row;
    int count = 0;
    for (; (row = row_at(count)) && count < MAX_ROWS; count++) {
        all[count] = here[count] = row->binding;
        if (row->where == AT_LEADER)
            here[count].handler = answer_or_pass_on;
    }
    rpc_methods_bind(here, count, n->methods);
    rpc_methods_bind(all, count, n->served);
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
    return rpc_call_data(call);
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

static void hello_refused(struct rpc_call *call, const struct hello *h, err_t err)
{
    log_warn("hello refused job=%s slot=%d", h->job, h->slot);
    rpc_fail(call, err, "no process of this job and slot has this token");
}

/* Whoever decides hears which epoch the process is in. */
static void hello_to_leader(struct node *n, struct rpc_call *call, const struct hello *h, const struct peer *p)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    struct job *j = node_job(n, p->job);
    const struct agent *a = p->from ? agent_find(n, p->from) : &n->self;
    struct job_process *process = j && a ? job_process_find(j, a, p->slot) : NULL;
    err_t err = process ? job_process_hello(j, process, h->epoch) : ERR_DENIED;
    if (err)
        hello_refused(call, h, err);
    else
        rpc_reply(call, &empty.base);
}

/* Its own node checks the token. Where nobody leads it is welcome all the same, and comes back for the next one. */
void rpc_server_hello(struct node *n, struct rpc_call *call, const ProtobufCMessage *request, const struct hello *h)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    char *end;
    errno = 0;
    uint64_t job = strtoull(h->job, &end, 10);
    struct peer *p = rpc_server_peer(call);
    bool named = p && *h->job && !*end && !errno && job;
    if (named && p->from) {
        if (job == p->job && h->slot == p->slot)
            hello_to_leader(n, call, h, p);
        else
            hello_refused(call, h, ERR_DENIED);
        return;
    }
    err_t err = named && !p->job ? children_hello(n, job, h->slot, h->token, h->token_bytes, p) : ERR_DENIED;
    if (err) {
        hello_refused(call, h, err);
        return;
    }
    p->job = job;
    p->slot = h->slot;
    rpc_conn_set_roles(p->conn, h->role);
    if (n->leads)
        hello_to_leader(n, call, h, p);
    else if (n->leader)
        rpc_server_pass_on(n, call, request);
    else
        rpc_reply(call, &empty.base);
}
