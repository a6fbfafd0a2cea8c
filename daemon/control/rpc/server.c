/* The kernel reports the user of each connection. A private dtd accepts only its own user and root. A system-wide dtd
 * accepts every user of the machine, with a limited number of connections per user; handlers then check permissions per
 * job (caller.h). */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"

#include "common/base/log.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Requests of a process of a job. A worker reports a step at a time, and joins an epoch with two requests for each
 * other rank; dtd-io reports each checkpoint, and at a scan each folder, of which there are at most 4096. Reports of
 * dtd-io become records of the log. */
#define WORKER_REQUESTS_PER_S 1000
#define IO_REQUESTS_PER_S 50
#define REQUESTS_AT_ONCE 8192

/* Threads for users' files, half of them for one user: another user's read never waits for a read that hangs. */
#define READ_THREADS 4
#define READS_WAITING 256 /* the files of a large job; a stream whose read is refused tries again after 100 ms */
#define PARSE_THREADS 2   /* each uses a core for as long as it takes */
#define PARSES_WAITING 32 /* not reached: metrics.c refuses a user's calls before */

/* ---- calls for the leader ---- */

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
    return (struct rpc_origin){.is_process = p->job != 0,
                               .uid = p->uid,
                               .is_operator = rpc_caller_is_operator(p),
                               .job = p->job,
                               .slot = p->slot};
}

/* Without a leader, calls of processes wait, because their epoch can continue without an answer. Calls of clients fail
 * with an explanation. */
void rpc_server_pass_on(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct peer *p = rpc_caller_peer(call);
    const struct rpc_origin origin = p ? origin_of(p) : (struct rpc_origin){0};
    if (p && server->leader)
        rpc_forward(call, request, server->leader, &origin, origin.is_process);
    else if (p && origin.is_process)
        rpc_server_park(call);
    else
        rpc_fail(call, ERR_AGAIN,
                 "there is no leader now, or this node cannot reach it: try again, see `dtctl cluster status`");
}

/* ---- connections ---- */

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct rpc_server *server = owner;
    struct peer *p = rpc_conn_data(conn);
    bool process = p && p->job;
    if (p) {
        local_process_disconnected(server->local, p);
        LIST_REMOVE(p, link);
        rpc_share_disconnected(server, p->kernel_uid);
    }
    free(p);
    if (process) /* its command stream has been closed before */
        jobs_tick(server->jobs);
}

static void connection_accepted(void *owner, int fd, const struct rpc_peer *who)
{
    struct rpc_server *server = owner;
    struct rpc_account *account;
    if (!rpc_share_connected(server, (uint32_t)who->uid, &account)) {
        if (log_limit_line(&server->refusals, "connections refused"))
            log_warn("connection refused uid=%u pid=%d", (unsigned)who->uid, (int)who->pid);
        close(fd);
        return;
    }
    struct peer *p = calloc(1, sizeof(*p));
    if (!p) {
        rpc_share_disconnected(server, (uint32_t)who->uid);
        close(fd);
        return;
    }
    const struct rpc_conn_config config = {.loop = server->loop,
                                           .methods = server->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = server,
                                           .on_close = conn_closed,
                                           .account = account};
    const char *name;
    p->server = server;
    p->uid = p->kernel_uid = (uint32_t)who->uid;
    (void)names_get(&server->names, p->uid, &name); /* so that it is known when a message needs it */
    err_t err = rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_CLIENT, &p->conn);
    if (err) {
        if (log_limit_line(&server->refusals, "connections refused"))
            log_warn("connection not opened error=%s", err_text(err));
        rpc_share_disconnected(server, p->kernel_uid);
        free(p);
        return;
    }
    rpc_conn_set_data(p->conn, p);
    LIST_INSERT_HEAD(&server->peers, p, link);
}

err_t rpc_server_init(struct rpc_server *server)
{
    const struct pool_config reads = {.loop = server->loop,
                                      .threads = READ_THREADS,
                                      .user_threads = READ_THREADS / 2,
                                      .user_waiting = READS_WAITING},
                             parses = {.loop = server->loop,
                                       .threads = PARSE_THREADS,
                                       .user_threads = PARSE_THREADS / 2,
                                       .user_waiting = PARSES_WAITING};
    LIST_INIT(&server->watch_loads);
    err_t err = pool_init(&server->reads, &reads);
    err = err ? err : pool_init(&server->parses, &parses);
    return err ? err : names_init(&server->names, server->loop);
}

err_t rpc_server_start(struct rpc_server *server, int fd)
{
    return rpc_listen(server->loop, fd, connection_accepted, server, &server->listener);
}

void rpc_server_finish(struct rpc_server *server)
{
    if (server->listener)
        rpc_listener_close(server->listener);
    server->listener = NULL;
}

void rpc_server_drop(struct peer *peer)
{
    peer->job = 0;
    rpc_conn_close(peer->conn);
}

/* ---- processes of jobs ---- */

static void refuse_hello(struct rpc_server *server, struct rpc_call *call, const struct hello *h, err_t err)
{
    if (log_limit_line(&server->refusals, "processes refused"))
        log_warn("hello refused job=%s slot=%d", h->job, h->slot);
    rpc_fail(call, err, "no process of this job and slot has this token");
}

/* Reports to the job, on the leader, the epoch that the process is in. */
static void report_hello(struct rpc_server *server, struct rpc_call *call, const struct hello *h, const struct peer *p)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    struct job *j = jobs_find(server->jobs, p->job);
    const struct node_view *a = p->from ? node_view_find(server->jobs, p->from) : &server->jobs->self;
    struct job_process *process = j && a ? job_process_find(j, a, p->slot) : NULL;
    err_t err = process ? job_process_hello(j, process, h->epoch) : ERR_DENIED;
    if (err)
        refuse_hello(server, call, h, err);
    else
        rpc_reply(call, &empty.base);
}

/* The process's own node checks the token. Without a leader the Hello succeeds, too; the process sends another one to
 * the next leader. */
void rpc_server_hello(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request,
                      const struct hello *h)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    char *end;
    errno = 0;
    uint64_t job = strtoull(h->job, &end, 10);
    struct peer *p = rpc_caller_peer(call);
    bool named = p && *h->job && !*end && !errno && job;
    if (named && p->from) {
        if (job == p->job && h->slot == p->slot)
            report_hello(server, call, h, p);
        else
            refuse_hello(server, call, h, ERR_DENIED);
        return;
    }
    err_t err = named && !p->job ? local_process_hello(server->local, job, h->slot, h->token, h->token_bytes, p->uid, p)
                                 : ERR_DENIED;
    if (err) {
        refuse_hello(server, call, h, err);
        return;
    }
    p->job = job;
    p->slot = h->slot;
    rpc_conn_set_roles(p->conn, h->role);
    rpc_conn_set_rate(p->conn, h->role & RPC_ROLE_IO ? IO_REQUESTS_PER_S : WORKER_REQUESTS_PER_S, REQUESTS_AT_ONCE);
    if (server->jobs->leads)
        report_hello(server, call, h, p);
    else if (server->leader)
        rpc_server_pass_on(server, call, request);
    else
        rpc_reply(call, &empty.base);
}
