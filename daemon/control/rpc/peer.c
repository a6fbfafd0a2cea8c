/* Adapter: messages between nodes about jobs.
 *
 *   follower                                            leader
 *   a call of a client or a process  -- Forward -->     the same handler, on behalf of the original caller
 *   Commands (facts of this node)    ------------->     the node view becomes UP
 *   local_process_spawn, kill, release  <-- items --    node_view_spawn, kill, release
 *   Report (a process started or exited; the list) -->  node_view_child, node_view_listed
 *
 * A Report that was not answered because the connection was lost is not repeated: the follower sends the whole list
 * over the next connection. If too many reports wait for answers, the follower sends the list later instead of more
 * reports. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/node_load_codec.h"
#include "daemon/control/job/job.h"
#include "daemon/control/local/error_file.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/turn.h"
#include "proto/peer.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Callers of one node: more than it has processes and users. The limit bounds the leader's memory. */
#define NODE_MAX_PEERS 8192
#define ATTEND_MS 200 /* until the next try: one heartbeat; a new leader is ready after a few of them */

/* ---- forwarded calls ---- */

/* The peer of a caller at another node. There is one for each process and each user, as long as this node leads. */
static struct peer *peer_of(struct rpc_server *server, struct node_view *a, const struct rpc_origin *o)
{
    struct peer *p;
    int count = 0;
    uint64_t job = o->is_process ? o->job : 0;
    LIST_FOREACH(p, &a->peers, link)
    {
        if (p->job == job && p->slot == o->slot && p->uid == (uint32_t)o->uid && p->is_operator == o->is_operator)
            return p;
        count++;
    }
    p = count < NODE_MAX_PEERS ? calloc(1, sizeof(*p)) : NULL;
    if (!p)
        return NULL;
    *p = (struct peer){.server = server,
                       .from = a->name,
                       .job = job,
                       .slot = o->slot,
                       .uid = (uint32_t)o->uid,
                       .is_operator = o->is_operator};
    LIST_INSERT_HEAD(&a->peers, p, link);
    return p;
}

static uint32_t roles_of(const struct rpc_origin *o)
{
    uint32_t process = o->slot == CHANNEL_SLOT_IO ? RPC_ROLE_IO : RPC_ROLE_WORKER;
    return RPC_ROLE_ANY | (o->is_process ? process : RPC_ROLE_CLIENT);
}

static void forwarded(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct node_view *a = node_view_by_conn(server->jobs, rpc_call_conn(call));
    struct rpc_origin o;
    rpc_forwarded_origin(request, &o);
    if (!server->jobs->leads || !a) {
        if (o.is_process)
            rpc_server_park(call);
        else
            rpc_fail(call, ERR_AGAIN, "this node is no longer the leader: try again");
        return;
    }
    struct peer *p = peer_of(server, a, &o);
    if (!p) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    const struct rpc_forwarded config = {
        .methods = server->served, .n_methods = RPC_METHOD_COUNT, .owner = server, .roles = roles_of(&o), .data = p};
    rpc_forwarded_start(call, request, &config);
}

/* Processes have a rate on their own node (server.c). */
void rpc_peer_forward(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct rpc_origin o;
    rpc_forwarded_origin(request, &o);
    if (o.is_process)
        forwarded(server, call, request);
    else
        rpc_turn_take(server, (uint32_t)o.uid, call, request, forwarded);
}

void rpc_peer_window_update(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    rpc_forwarded_window_update(call, request);
}

/* ---- leader: commands to a node ---- */

static err_t send_command(struct rpc_call *attend, Dtd__AgentCommand *c, uint64_t job, int slot)
{
    c->job = job;
    c->has_slot = true;
    c->slot = slot;
    return rpc_item(attend, &c->base);
}

err_t rpc_node_spawn(struct rpc_call *attend, const struct process_spawn *x)
{
    Dtd__AgentCommand c = DTD__AGENT_COMMAND__INIT;
    c.kind = DTD__AGENT_COMMAND__KIND__SPAWN;
    c.has_slots = c.has_workers = c.has_device = c.has_threads = c.has_uid = c.has_token = true;
    c.slots = x->slots;
    c.workers = x->workers;
    c.device = x->device;
    c.threads = x->threads;
    c.uid = x->uid;
    c.token = (ProtobufCBinaryData){CHANNEL_TOKEN_BYTES, (uint8_t *)x->token};
    c.env = (char **)x->env;
    c.n_env = (size_t)x->n_env;
    c.workdir = (char *)x->workdir;
    c.command = (char **)x->command;
    c.n_command = (size_t)x->n_command;
    c.has_epoch = x->n_command > 0;
    c.epoch = x->epoch;
    c.store_node = (char *)x->store_node;
    c.caller = (char *)x->caller;
    c.has_log_bytes = x->log_bytes != 0;
    c.log_bytes = x->log_bytes;
    c.has_gpus = x->gpus != 0;
    c.gpus = x->gpus;
    c.has_gpu_set = x->gpu_set != 0;
    c.gpu_set = x->gpu_set;
    c.has_memory_bytes = x->memory_bytes != 0;
    c.memory_bytes = x->memory_bytes;
    c.has_cores = x->cores != 0;
    c.cores = x->cores;
    return send_command(attend, &c, x->job, x->slot);
}

err_t rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig)
{
    Dtd__AgentCommand c = DTD__AGENT_COMMAND__INIT;
    c.kind = DTD__AGENT_COMMAND__KIND__KILL;
    c.has_signal = true;
    c.signal = sig;
    return send_command(attend, &c, job, slot);
}

err_t rpc_node_release(struct rpc_call *attend, uint64_t job, bool remove)
{
    Dtd__AgentCommand c = DTD__AGENT_COMMAND__INIT;
    c.kind = DTD__AGENT_COMMAND__KIND__RELEASE;
    c.has_remove = c.remove = remove;
    return send_command(attend, &c, job, 0);
}

err_t rpc_node_look(struct rpc_call *attend)
{
    Dtd__AgentCommand c = DTD__AGENT_COMMAND__INIT;
    c.kind = DTD__AGENT_COMMAND__KIND__LOOK;
    return send_command(attend, &c, 0, 0);
}

err_t rpc_node_store_close(struct rpc_call *attend, uint32_t uid, const char *name)
{
    Dtd__AgentCommand c = DTD__AGENT_COMMAND__INIT;
    c.kind = DTD__AGENT_COMMAND__KIND__STORE_CLOSE;
    c.has_uid = true;
    c.uid = uid;
    c.store = (char *)name;
    return send_command(attend, &c, 0, 0);
}

/* ---- leader: reports of a node ---- */

static void take_facts(struct node_view *a, const Dtd__AgentFacts *f)
{
    struct node_view_sick sick[GPUS_MAX];
    int n_sick = 0;
    for (size_t i = 0; i < f->n_gpu_sick && n_sick < GPUS_MAX; i++)
        sick[n_sick++] = (struct node_view_sick){f->gpu_sick[i]->gpu, f->gpu_sick[i]->what};
    const struct node_view_facts facts = {.slots = f->slots < 0 ? 0 : f->slots,
                                          .gpus = f->has_gpus ? f->gpus : -1,
                                          .broken = f->gpu_broken,
                                          .n_broken = (int)f->n_gpu_broken,
                                          .sick = sick,
                                          .n_sick = n_sick,
                                          .model = f->gpu_model ? f->gpu_model : "",
                                          .missing = f->gpu_missing ? f->gpu_missing : "",
                                          .leaving = f->has_leaving && f->leaving,
                                          .disk_full = f->has_disk_full && f->disk_full,
                                          .log_failed = f->has_log_failed && f->log_failed,
                                          .log_warning = f->log_warning ? f->log_warning : ""};
    node_view_set_facts(a, &facts);
}

static void take_stores(struct rpc_server *server, struct node_view *a, const Dtd__AgentFacts *f)
{
    struct c10d_owner_report *said = calloc(f->n_store + 1, sizeof(*said));
    int count = 0;
    for (size_t i = 0; said && i < f->n_store; i++)
        if (c10d_name_is_legal(f->store[i]->name))
            said[count++] = (struct c10d_owner_report){f->store[i]->uid, f->store[i]->name};
    if (said)
        c10d_owners_reported(server->c10d_owners, a, said, count);
    else
        log_error("out of memory: the stores of a node are not registered node=%s", a->name);
    free(said);
}

struct attendance {
    struct rpc_server *server;
    struct rpc_call *call;
    char *node;
};

static void attend_gone(void *arg)
{
    struct attendance *t = arg;
    struct node_view *a = node_view_find(t->server->jobs, t->node);
    if (a && a->attend == t->call)
        node_view_away(a);
    free(t->node);
    free(t);
}

void rpc_peer_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct node_view *a = node_view_by_conn(server->jobs, rpc_call_conn(call));
    struct attendance *t = server->jobs->leads && a ? calloc(1, sizeof(*t)) : NULL;
    if (!t) {
        rpc_fail(call, ERR_AGAIN, "this node is not the leader, or the connection belongs to no node of its cluster");
        return;
    }
    *t = (struct attendance){server, call, strdup(a->name)};
    if (!t->node) {
        free(t);
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    rpc_call_on_cancel(call, attend_gone, t);
    take_facts(a, (const Dtd__AgentFacts *)request);
    node_view_up(a, call);
    take_stores(server, a, (const Dtd__AgentFacts *)request);
    jobs_tick(server->jobs);
}

/* Nodes of versions before the field `cause` report only whether memory was the cause. */
static void take_cause(const Dtd__AgentChild *m, struct child *ret)
{
    bool oom = m->has_oom && m->oom;
    const char *text = m->cause ? m->cause : oom ? CHILD_OUT_OF_MEMORY_TEXT : "";
    ret->cause = oom ? CAUSE_OUT_OF_MEMORY : *text ? CAUSE_OTHER : CAUSE_UNKNOWN;
    snprintf(ret->cause_text, sizeof(ret->cause_text), "%s", text);
}

/* False: the message is invalid. */
static bool child_of(const Dtd__AgentChild *m, struct child *ret)
{
    if (m->token.len != CHANNEL_TOKEN_BYTES || m->slot < CHANNEL_SLOT_IO || m->slot >= CHANNEL_MAX_SLOTS ||
        m->job == 0 || m->job == CHANNEL_JOB_PROBE || m->device >= GPUS_MAX)
        return false;
    *ret = (struct child){.job = m->job,
                          .slot = m->slot,
                          .state = (enum channel_state)m->state,
                          .pid = m->pid,
                          .exit_status = m->exit_status,
                          .exit_signal = m->exit_signal,
                          .error = m->error,
                          .when_ns = clock_mono_ns() - (m->has_ago_ns && m->ago_ns > 0 ? m->ago_ns : 0),
                          .device = m->device,
                          .epoch = m->epoch,
                          .stranded = m->stranded,
                          .proc = m->proc && m->proc[0] ? m->proc[0] : '\0',
                          .log = m->log && strlen(m->log) <= CHILD_LOG_BYTES ? m->log : NULL,
                          .recorded = m->recorded && strlen(m->recorded) <= ERROR_FILE_TEXT ? m->recorded : NULL,
                          .recorded_ago_ms = m->has_recorded_ago_ms ? m->recorded_ago_ms : -1};
    memcpy(ret->token, m->token.data, sizeof(ret->token));
    take_cause(m, ret);
    return true;
}

void rpc_peer_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__AgentReport *m = (const Dtd__AgentReport *)request;
    struct node_view *a = node_view_by_conn(server->jobs, rpc_call_conn(call));
    Dtd__PeerEmpty empty = DTD__PEER_EMPTY__INIT;
    struct child c;
    if (!server->jobs->leads || !a || a->state != NODE_UP) {
        rpc_fail(call, ERR_AGAIN, "this node is not the leader, or the reporting node has no command stream");
        return;
    }
    if (m->load) {
        node_load_decode(m->load, &a->load);
        rpc_reply(call, &empty.base);
        return;
    }
    if (m->facts)
        take_facts(a, m->facts);
    for (size_t i = 0; i < m->n_child; i++)
        if (child_of(m->child[i], &c))
            node_view_child(server->jobs, a, &c);
        else
            log_warn("invalid report about a process ignored node=%s", a->name);
    if (m->listed)
        node_view_listed(server->jobs, a);
    rpc_reply(call, &empty.base);
    jobs_tick(server->jobs);
}

/* ---- follower: commands of the leader ---- */

static err_t spawn_command(struct rpc_server *server, const Dtd__AgentCommand *c)
{
    const struct process_spawn x = {.job = c->job,
                                    .slot = c->slot,
                                    .slots = c->slots,
                                    .workers = c->workers,
                                    .device = c->device,
                                    .threads = c->threads,
                                    .uid = c->uid,
                                    .token = c->token.data,
                                    .env = c->env,
                                    .n_env = (int)c->n_env,
                                    .workdir = c->workdir,
                                    .command = c->command,
                                    .n_command = (int)c->n_command,
                                    .epoch = c->epoch,
                                    .store_node = c->store_node,
                                    .caller = c->caller,
                                    .log_bytes = c->log_bytes,
                                    .gpus = c->gpus,
                                    .gpu_set = c->gpu_set,
                                    .memory_bytes = c->memory_bytes,
                                    .cores = c->cores};
    bool sound = c->token.len == CHANNEL_TOKEN_BYTES && c->slot >= CHANNEL_SLOT_IO && c->slot < c->slots &&
                 c->slots <= CHANNEL_MAX_SLOTS && c->workers > 0 && c->job && c->job != CHANNEL_JOB_PROBE;
    char cause[CHILD_CAUSE_BYTES];
    if (sound && local_process_gpu_cause(server->local, x.device, cause))
        return ERR_UNSUPPORTED; /* the leader has not received the report about the GPU yet */
    return sound ? local_process_spawn(server->local, &x) : ERR_INVALID;
}

/* Reports the process as the supervisor would report one that it refused. */
static void report_refused(struct rpc_server *server, const Dtd__AgentCommand *c, err_t err)
{
    struct child child = {.job = c->job,
                          .slot = c->slot,
                          .state = CHANNEL_REFUSED,
                          .error = err == ERR_NOMEM ? ENOMEM : EINVAL,
                          .when_ns = clock_mono_ns(),
                          .device = -1};
    log_error("not started job=%" PRIu64 " slot=%d error=%s", c->job, c->slot, err_text(err));
    if (c->token.len != CHANNEL_TOKEN_BYTES)
        return;
    memcpy(child.token, c->token.data, sizeof(child.token));
    if (c->has_device && local_process_gpu_cause(server->local, c->device, child.cause_text))
        child.cause = CAUSE_GPU;
    rpc_node_child(server, &child);
}

static void command_came(void *arg, const struct rpc_result *result)
{
    struct rpc_server *server = arg;
    const Dtd__AgentCommand *c = (const Dtd__AgentCommand *)(const void *)result->reply;
    err_t err = OK;
    if (!c) {
        if (result->last && server->leader && result->err != ERR_CLOSED)
            server->attend_ms = clock_mono_ms() + ATTEND_MS; /* the node has not finished becoming the leader yet */
        if (result->err == ERR_AGAIN)
            log_info("the leader cannot take this node's stream yet text=%s", result->text);
        else if (result->err && result->err != ERR_CLOSED)
            log_warn("no commands from the leader error=%s text=%s", err_text(result->err), result->text);
        return;
    }
    switch (c->kind) {
    case DTD__AGENT_COMMAND__KIND__SPAWN:
        err = spawn_command(server, c);
        if (err)
            report_refused(server, c, err);
        return;
    case DTD__AGENT_COMMAND__KIND__KILL:
        err = supervisor_link_kill(&server->local->supervisor, c->job, c->slot, c->signal);
        break;
    case DTD__AGENT_COMMAND__KIND__LOOK:
        local_processes_look(server->local);
        rpc_node_list(server);
        return;
    case DTD__AGENT_COMMAND__KIND__STORE_CLOSE:
        c10d_close(server->c10d, c->uid, c->store ? c->store : "");
        return;
    case DTD__AGENT_COMMAND__KIND__RELEASE:
        err = local_process_release(server->local, c->job, c->remove);
        break;
    default:
        err = ERR_UNSUPPORTED;
    }
    if (err)
        log_error("command failed kind=%d job=%" PRIu64 " error=%s", (int)c->kind, c->job, err_text(err));
}

/* ---- follower: reports to the leader ---- */

struct facts {
    Dtd__AgentFacts m;
    int32_t broken[GPUS_MAX];
    Dtd__AgentSickGpu sick[GPUS_MAX], *sick_refs[GPUS_MAX];
    Dtd__AgentStore *stores, **store_refs; /* only for Commands */
};

static void fill_sick(const struct gpus *g, int i, struct facts *f)
{
    Dtd__AgentSickGpu *m = &f->sick[f->m.n_gpu_sick];
    dtd__agent_sick_gpu__init(m);
    m->gpu = i;
    m->what = (char *)gpus_sick(g, i);
    f->sick_refs[f->m.n_gpu_sick++] = m;
}

static void fill_facts(struct rpc_server *server, struct facts *f)
{
    const struct gpus *g = &server->local->gpus;
    dtd__agent_facts__init(&f->m);
    f->m.slots = server->jobs->self.slots;
    f->m.has_gpus = g->known;
    f->m.gpus = g->n;
    f->m.gpu_broken = f->broken;
    f->m.gpu_sick = f->sick_refs;
    for (int i = 0; i < g->n; i++) {
        if (!gpus_is_usable(g, i))
            f->broken[f->m.n_gpu_broken++] = i;
        if (*gpus_sick(g, i))
            fill_sick(g, i, f);
    }
    f->m.gpu_model = (char *)g->model;
    f->m.gpu_missing = (char *)g->missing;
    f->m.has_leaving = f->m.leaving = server->jobs->leaving;
    f->m.has_disk_full = f->m.disk_full = server->local->log_watch.is_full;
    f->m.log_warning = (char *)log_warning(server->replica->log);
    f->m.has_log_failed = f->m.log_failed = log_has_failed(server->replica->log);
}

static void report_answered(void *arg, const struct rpc_result *result)
{
    struct rpc_server *server = arg;
    server->reports--;
    if (result->err && result->err != ERR_CLOSED && result->err != ERR_AGAIN) /* AGAIN: see command_came */
        log_warn("the leader refused a report error=%s text=%s", err_text(result->err), result->text);
    if (result->err != ERR_CLOSED && server->list_due && server->reports == 0)
        rpc_node_list(server);
}

static void send_report(struct rpc_server *server, const Dtd__AgentReport *m)
{
    struct rpc_conn *conn = server->leader;
    if (!conn || server->jobs->leads)
        return; /* the next leader gets the whole list */
    err_t err = rpc_send(conn, PEER_REPORT, &m->base, 0, report_answered, server, NULL);
    server->reports += !err;
    if (err)
        server->list_due = true;
}

/* The users' stores of this node, without ports to other nodes. */
static err_t fill_stores(struct rpc_server *server, struct facts *f)
{
    struct c10d_endpoint *e;
    size_t count = 0;
    LIST_FOREACH(e, &server->c10d->open, link)
    count++;
    f->stores = calloc(count + 1, sizeof(*f->stores));
    f->store_refs = calloc(count + 1, sizeof(*f->store_refs));
    if (!f->stores || !f->store_refs)
        return ERR_NOMEM;
    f->m.store = f->store_refs;
    LIST_FOREACH(e, &server->c10d->open, link)
    if (e->server && c10d_name_is_legal(e->name)) {
        Dtd__AgentStore *s = &f->stores[f->m.n_store];
        dtd__agent_store__init(s);
        s->uid = e->uid;
        s->name = e->name;
        f->store_refs[f->m.n_store++] = s;
    }
    return OK;
}

void rpc_node_attend(struct rpc_server *server)
{
    struct facts f;
    struct rpc_conn *conn = server->leader;
    server->list_due = false;
    fill_facts(server, &f);
    err_t err = fill_stores(server, &f);
    if (!err)
        err = conn ? rpc_send(conn, PEER_COMMANDS, &f.m.base, 0, command_came, server, NULL) : ERR_CLOSED;
    free(f.stores);
    free(f.store_refs);
    if (err)
        log_error("command stream from the leader not opened error=%s", err_text(err));
}

void rpc_node_facts(struct rpc_server *server)
{
    struct facts f;
    Dtd__AgentReport m = DTD__AGENT_REPORT__INIT;
    fill_facts(server, &f);
    m.facts = &f.m;
    send_report(server, &m);
}

void rpc_node_load(struct rpc_server *server)
{
    struct node_load_message load;
    Dtd__AgentReport m = DTD__AGENT_REPORT__INIT;
    if (node_load_encode(&server->local->load.now, &load) == OK) {
        m.load = &load.m;
        send_report(server, &m);
    }
    node_load_encoded_fini(&load);
}

static void fill_child(Dtd__AgentChild *m, const struct child *c, char proc[2])
{
    dtd__agent_child__init(m);
    proc[0] = c->proc;
    proc[1] = '\0';
    m->proc = proc[0] ? proc : NULL;
    m->log = (char *)c->log;
    m->recorded = (char *)c->recorded;
    m->has_recorded_ago_ms = c->recorded && c->recorded_ago_ms >= 0;
    m->recorded_ago_ms = c->recorded_ago_ms;
    m->has_oom = m->oom = c->cause == CAUSE_OUT_OF_MEMORY;
    m->cause = c->cause_text[0] ? (char *)c->cause_text : NULL;
    m->job = c->job;
    m->slot = c->slot;
    m->token = (ProtobufCBinaryData){CHANNEL_TOKEN_BYTES, (uint8_t *)c->token};
    m->state = (int32_t)c->state;
    m->pid = c->pid;
    m->device = c->device;
    m->has_exit_status = m->has_exit_signal = m->has_error = m->has_ago_ns = !child_runs(c);
    m->exit_status = c->exit_status;
    m->exit_signal = c->exit_signal;
    m->error = c->error;
    m->ago_ns = clock_mono_ns() - c->when_ns;
    m->has_epoch = c->epoch != 0;
    m->epoch = c->epoch;
    m->has_stranded = c->stranded;
    m->stranded = c->stranded;
}

void rpc_node_child(struct rpc_server *server, const struct child *c)
{
    Dtd__AgentReport m = DTD__AGENT_REPORT__INIT;
    Dtd__AgentChild child, *ref = &child;
    char proc[2];
    fill_child(&child, c, proc);
    m.n_child = 1;
    m.child = &ref;
    send_report(server, &m);
}

void rpc_node_list(struct rpc_server *server)
{
    Dtd__AgentReport m = DTD__AGENT_REPORT__INIT;
    struct facts f;
    size_t count = 0;
    fill_facts(server, &f); /* repeats a report of facts that may have been lost */
    m.facts = &f.m;
    for (const struct child *c = server->local->children.head; c; c = c->next)
        count++;
    Dtd__AgentChild *all = calloc(count + 1, sizeof(*all)), **refs = calloc(count + 1, sizeof(void *));
    char(*proc)[2] = calloc(count + 1, sizeof(*proc));
    if (all && refs && proc) {
        for (const struct child *c = server->local->children.head; c; c = c->next, m.n_child++) {
            fill_child(&all[m.n_child], c, proc[m.n_child]);
            refs[m.n_child] = &all[m.n_child];
        }
        m.child = refs;
        m.has_listed = m.listed = true;
        server->list_due = false;
        send_report(server, &m);
    } else {
        log_error("out of memory: the list of processes is sent to the leader later");
        server->list_due = true;
    }
    free(all);
    free(refs);
    free(proc);
}

void rpc_peer_forgotten(struct node_view *a)
{
    while (!LIST_EMPTY(&a->peers)) {
        struct peer *p = LIST_FIRST(&a->peers);
        LIST_REMOVE(p, link);
        free(p);
    }
}
