/* Adapter: converts the messages of workers to plain structs, and commands for workers to messages. Serves the
 * rendezvous store of an epoch. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/field_codec.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/kinds.h"
#include "proto/worker.pb-c.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define USAGE_MORE_MAX 64 /* numbers in a report of usage, of a newer version perhaps */

/* ---- commands ---- */

static err_t send_command(struct rpc_call *attend, const Dtd__WorkerCommand *c)
{
    return rpc_item(attend, &c->base);
}

err_t rpc_worker_start(struct rpc_call *attend, const struct worker_start *s)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__START;
    c.has_epoch = c.has_rank = c.has_world = c.has_resume_step = 1;
    c.epoch = s->epoch;
    c.rank = s->rank;
    c.world = s->world;
    c.spec_yaml = (char *)s->yaml;
    c.resume_path = (char *)s->resume_path;
    c.resume_step = s->resume_step;
    c.node_of = (int32_t *)s->node_of;
    c.n_node_of = s->node_of ? (size_t)s->world : 0;
    c.has_secret = s->secret != NULL;
    c.secret = (ProtobufCBinaryData){s->secret ? EPOCH_SECRET_BYTES : 0, (uint8_t *)s->secret};
    c.address = (char *)s->address;
    return send_command(attend, &c);
}

err_t rpc_worker_end(struct rpc_call *attend, uint64_t epoch)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__END;
    c.has_epoch = 1;
    c.epoch = epoch;
    return send_command(attend, &c);
}

err_t rpc_worker_stop(struct rpc_call *attend, uint64_t epoch, bool save)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__STOP;
    c.has_epoch = c.has_save = 1;
    c.epoch = epoch;
    c.save = save;
    return send_command(attend, &c);
}

err_t rpc_worker_profile(struct rpc_call *attend, uint64_t epoch, uint64_t id, int steps)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__PROFILE;
    c.has_epoch = c.has_profile = c.has_profile_steps = 1;
    c.epoch = epoch;
    c.profile = id;
    c.profile_steps = steps;
    return send_command(attend, &c);
}

err_t rpc_worker_quit(struct rpc_call *attend)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__QUIT;
    return send_command(attend, &c);
}

/* ---- calls of workers ---- */

void rpc_worker_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__WorkerHello *m = (const Dtd__WorkerHello *)request;
    const struct hello h = {.job = m->job,
                            .slot = m->slot,
                            .token = m->token.data,
                            .token_bytes = m->token.len,
                            .epoch = m->has_epoch ? m->epoch : 0,
                            .role = RPC_ROLE_ANY | RPC_ROLE_WORKER};
    if (m->slot < 0)
        rpc_fail(call, ERR_INVALID, "slot %d", m->slot);
    else
        rpc_server_hello(owner, call, request, &h);
}

/* A call of Commands, by a worker or dtd-io. The stream ends only with its connection. By then, the process may already
 * have opened another one. */
struct attendance {
    struct jobs *jobs;
    uint64_t job;
    struct rpc_call *call;
};

static void attend_gone(void *arg)
{
    struct attendance *a = arg;
    struct job *j = jobs_find(a->jobs, a->job);
    if (j)
        job_process_detached(j, a->call);
    free(a);
}

static void attend(struct rpc_server *server, struct rpc_call *call, bool io)
{
    struct job_process *p;
    struct job *j = rpc_caller_job(call, &p);
    if (!j)
        return;
    if ((rpc_caller_peer(call)->slot == CHANNEL_SLOT_IO) != io) {
        rpc_fail(call, ERR_DENIED, "this method is not for this kind of process");
        return;
    }
    struct attendance *a = calloc(1, sizeof(*a));
    if (!a) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    *a = (struct attendance){server->jobs, rpc_caller_peer(call)->job, call};
    err_t err = job_process_attended(j, p, call);
    if (err) {
        rpc_fail(call, err, "this process already receives commands on another connection");
        free(a);
        return;
    }
    rpc_call_on_cancel(call, attend_gone, a);
    jobs_tick(server->jobs);
}

void rpc_worker_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    attend(owner, call, false);
}

void rpc_io_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    attend(owner, call, true);
}

static const struct kind_pair kinds[] = {
    {DTD__WORKER_REPORT__KIND__IDLE, REPORT_IDLE},         {DTD__WORKER_REPORT__KIND__READY, REPORT_READY},
    {DTD__WORKER_REPORT__KIND__METRIC, REPORT_METRIC},     {DTD__WORKER_REPORT__KIND__DONE, REPORT_DONE},
    {DTD__WORKER_REPORT__KIND__FAILED, REPORT_FAILED},     {DTD__WORKER_REPORT__KIND__SAVE_FAILED, REPORT_SAVE_FAILED},
    {DTD__WORKER_REPORT__KIND__PROFILED, REPORT_PROFILED},
};

/* An honest worker sends neither: its connection is closed, or, if another node forwards it, its report is refused. */
static void refuse_usage(struct rpc_call *call, struct job *j, int rank, const char *why)
{
    const struct peer *peer = rpc_caller_peer(call);
    struct rpc_conn *conn = peer && !peer->from ? peer->conn : NULL;
    if (job_usage_refused(j, rank))
        log_warn("usage refused job=%" PRIu64 " rank=%d why=\"%s\"%s", job_view_of(j).id, rank, why,
                 conn ? " connection=closed" : "");
    rpc_fail(call, ERR_LIMIT, "usage: %s", why);
    if (conn)
        rpc_conn_close(conn);
}

static void take_usage(struct rpc_call *call, struct job *j, int rank, const Dtd__WorkerReport *m)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    struct usage_report r = {.usage = usage_none};
    if (m->usage) {
        r.window_ms = m->usage->window_ms;
        r.steps = m->usage->steps;
        r.step = m->usage->step;
    }
    if (!job_usage_allowed(j, rank)) {
        refuse_usage(call, j, rank, "reports come too often");
        return;
    }
    if (m->usage && m->usage->n_more <= USAGE_MORE_MAX)
        fields_decode(&usage_fields, &m->usage->base, &r.usage);
    if (!m->usage || m->usage->n_more > USAGE_MORE_MAX || !job_usage_valid(&r)) {
        refuse_usage(call, j, rank, "the report has impossible numbers");
        return;
    }
    job_usage_report(j, rank, m->epoch, &r);
    rpc_reply(call, &empty.base);
}

/* The reply is sent after job_worker_report, because a worker does not repeat a report that was answered. While this
 * node shuts down, metrics are not answered: the worker repeats them to the next leader, which then has them. */
void rpc_worker_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct rpc_server *server = owner;
    const Dtd__WorkerReport *m = (const Dtd__WorkerReport *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    struct job_process *p;
    struct job *j = rpc_caller_job(call, &p);
    if (!j)
        return;
    if (m->kind == DTD__WORKER_REPORT__KIND__USAGE) {
        take_usage(call, j, job_process_rank(j, p), m);
        return;
    }
    const struct kind_pair *kind = kind_pair_find(kinds, sizeof(kinds) / sizeof(kinds[0]), m->kind);
    if (!kind) {
        rpc_fail(call, ERR_INVALID, "report of kind %d", (int)m->kind);
        return;
    }
    const struct metric metric = m->metric ? metric_decode(m->metric) : metric_none;
    const struct worker_report r = {.kind = (enum worker_report_kind)kind->plain,
                                    .epoch = m->epoch,
                                    .rank = m->rank,
                                    .metric = m->metric ? &metric : NULL,
                                    .text = m->text ? m->text : "",
                                    .step = m->has_step ? m->step : -1,
                                    .fatal = m->has_fatal && m->fatal,
                                    .load_error = m->has_load_error ? (err_t)m->load_error : OK,
                                    .part_ms = m->n_part_ms == LOAD_PARTS ? m->part_ms : NULL,
                                    .profile = m->has_profile ? m->profile : 0};
    job_worker_report(j, job_process_rank(j, p), &r);
    if (r.kind == REPORT_METRIC && server->jobs->leaving)
        rpc_server_park(call);
    else
        rpc_reply(call, &empty.base);
}

/* ---- the store of the epoch ---- */

/* A StoreGet that waits for its key. */
struct get {
    struct rendezvous_wait wait; /* first */
    struct job *job;
    struct rpc_call *call;
};

static bool visible(const char *key)
{
    for (const char *c = key; *c; c++)
        if (*c <= ' ' || *c > '~')
            return false;
    return *key && strlen(key) <= RENDEZVOUS_KEY_MAX;
}

/* The rendezvous store of the caller's epoch. If `epoch` is not the job's current epoch, or the key is invalid, fails
 * the call and returns NULL. A new leader first finds out whether the epoch continues; until then it accepts it. */
static struct rendezvous *store_of(struct rpc_call *call, uint64_t epoch, const char *key, struct job **ret,
                                   int *ret_rank)
{
    struct job_process *p;
    struct rendezvous *store = NULL;
    struct job *j = rpc_caller_job(call, &p);
    if (!j)
        return NULL;
    if (!visible(key)) {
        rpc_fail(call, ERR_INVALID, "a key is 1 to %d visible ASCII characters", RENDEZVOUS_KEY_MAX);
        return NULL;
    }
    if (job_rendezvous(j, p, epoch, &store)) {
        rpc_fail(call, ERR_STALE, "epoch %" PRIu64 " of job %" PRIu64 " has ended", epoch, job_view_of(j).id);
        return NULL;
    }
    *ret = j;
    *ret_rank = job_process_rank(j, p);
    return store;
}

static void store_refused(struct rpc_call *call, err_t err, const char *key)
{
    static const struct {
        err_t err;
        const char *why;
    } reasons[] = {{ERR_EXISTS, "the key already has another value"},
                   {ERR_INVALID, "a value is at most 4096 bytes"},
                   {ERR_LIMIT, "an epoch has at most 1024 keys, a worker at most 64 waiting gets"}};
    _Static_assert(RENDEZVOUS_VALUE_MAX == 4096 && RENDEZVOUS_KEYS_MAX == 1024 && RENDEZVOUS_WAITS_MAX == 64,
                   "the texts above contain these limits");
    const char *why = err_text(err);
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].err == err)
            why = reasons[i].why;
    rpc_fail(call, err, "store key %s: %s", key, why);
}

void rpc_worker_store_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    const Dtd__StorePutRequest *m = (const Dtd__StorePutRequest *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    int rank;
    struct job *j;
    struct rendezvous *store = store_of(call, m->epoch, m->key, &j, &rank);
    if (!store)
        return;
    err_t err = rendezvous_put(store, (struct rendezvous_bytes){m->key, strlen(m->key)},
                               (struct rendezvous_bytes){m->value.data, m->value.len});
    if (err)
        store_refused(call, err, m->key);
    else
        rpc_reply(call, &empty.base);
}

static void reply_value(struct rpc_call *call, struct rendezvous_bytes value)
{
    Dtd__StoreValue v = DTD__STORE_VALUE__INIT;
    v.value = (ProtobufCBinaryData){value.len, (uint8_t *)value.data};
    rpc_reply(call, &v.base);
}

static void get_done(struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value)
{
    struct get *g = (struct get *)w;
    char who[256];
    if (!err) {
        reply_value(g->call, value);
    } else if (err == ERR_TIMEOUT) {
        int n = job_rendezvous_missing(g->job, who, sizeof(who));
        rpc_fail(g->call, err, "no rank stored the key %.*s in time; %s%s", (int)w->key_len, (const char *)w->key,
                 n ? "missing: " : "all ranks have joined, so one of them hangs before it stores the key",
                 n ? who : "");
    } else {
        rpc_fail(g->call, err, "the epoch ended before a rank stored the key %.*s", (int)w->key_len,
                 (const char *)w->key);
    }
    free(g);
}

static void get_gone(void *arg)
{
    struct get *g = arg;
    rendezvous_wait_drop(job_rendezvous_of(g->job), &g->wait);
    free(g);
}

static void wait_for(struct job *j, int rank, struct rpc_call *call, const Dtd__StoreGetRequest *m)
{
    struct get *g = calloc(1, sizeof(*g));
    if (!g) {
        store_refused(call, ERR_NOMEM, m->key);
        return;
    }
    *g = (struct get){.wait = {.owner = rank, .deadline_ms = clock_mono_ms() + m->timeout_ms, .done = get_done},
                      .job = j,
                      .call = call};
    err_t err = rendezvous_wait(job_rendezvous_of(j), (struct rendezvous_bytes){m->key, strlen(m->key)}, &g->wait);
    if (err) {
        store_refused(call, err, m->key);
        free(g);
        return;
    }
    rpc_call_on_cancel(call, get_gone, g);
}

void rpc_worker_store_get(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    const Dtd__StoreGetRequest *m = (const Dtd__StoreGetRequest *)request;
    struct rendezvous_bytes value;
    int rank;
    struct job *j;
    struct rendezvous *store = store_of(call, m->epoch, m->key, &j, &rank);
    if (!store)
        return;
    if (rendezvous_get(store, (struct rendezvous_bytes){m->key, strlen(m->key)}, &value) == OK)
        reply_value(call, value);
    else
        wait_for(j, rank, call, m);
}
