/* Adapter: calls of clients, except streams (metrics.c, logs.c). A submit is checked here although the client has
 * checked it, because clients are not trusted. A submit with a known request id is a repeat: it gets the answer of the
 * first one before anything is checked. */
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/status.h"
#include "daemon/control/state/features.h"

#include "common/base/caller.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/log.h"
#include "common/rpc/node_load_codec.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool own_or_fail(struct rpc_server *server, struct rpc_call *call, const struct job *j, bool only_see)
{
    char owner[80];
    const struct job_view v = job_view_of(j);
    if (only_see ? rpc_caller_sees(server, call, j) : rpc_caller_owns(server, call, j))
        return true;
    rpc_fail(call, ERR_DENIED,
             "job %" PRIu64 " belongs to %s; only its owner and root may do that. `dtctl status` lists it", v.id,
             rpc_caller_user(server, v.uid, owner, sizeof(owner)));
    return false;
}

static struct job *find_job(struct rpc_server *server, struct rpc_call *call, const char *id, bool only_see)
{
    char *end;
    errno = 0;
    uint64_t number = strtoull(id, &end, 10);
    struct job *j = id[0] >= '0' && id[0] <= '9' && !*end && !errno ? jobs_find(server->jobs, number) : NULL;
    if (!j && number && state_job_find(server->replica->state, number))
        rpc_fail(call, ERR_AGAIN, "dtd on %s leads and is too old to read job %.64s, which is kept: upgrade it",
                 server->local->name, id);
    else if (!j)
        rpc_fail(call, ERR_NOTFOUND, "no job %.64s; `dtctl status` lists the jobs", id);
    return j && own_or_fail(server, call, j, only_see) ? j : NULL;
}

struct job *rpc_client_job(struct rpc_server *server, struct rpc_call *call, const char *id)
{
    return find_job(server, call, id, false);
}

struct job *rpc_client_job_to_see(struct rpc_server *server, struct rpc_call *call, const char *id)
{
    return find_job(server, call, id, true);
}

static void reply_status(struct rpc_server *server, struct rpc_call *call, struct job *j)
{
    struct job_status s;
    err_t err = job_status_fill(&s, server, j, true);
    if (err) {
        rpc_fail(call, err, "%s", err_text(err));
        return;
    }
    rpc_reply(call, &s.msg.base);
    job_status_fini(&s);
}

void rpc_client_status(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct job *j = rpc_client_job_to_see(owner, call, ((const Dtd__JobRequest *)request)->job);
    if (j)
        reply_status(owner, call, j);
}

/* ---- submit ---- */

/* A client's call that waits until its record is applied. */
struct pending {
    struct rpc_proposal share; /* first; in server->proposals */
    struct rpc_server *server;
    struct rpc_call *call;
    uint64_t job;             /* only for a cancel */
    struct job_cancel cancel; /* only for a cancel */
};

static struct pending *pending_new(struct rpc_server *server, struct rpc_call *call, uint32_t uid)
{
    struct pending *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    *p = (struct pending){.share = {.uid = uid}, .server = server, .call = call};
    LIST_INSERT_HEAD(&server->proposals, &p->share, link);
    return p;
}

static void pending_free(struct pending *p)
{
    LIST_REMOVE(&p->share, link);
    free(p);
}

/* The answer of the state machine to a submit, also to a repeated one. */
static void answer_submitted(struct rpc_call *call, const struct state_result *result)
{
    char id[24];
    Dtd__SubmitReply reply = DTD__SUBMIT_REPLY__INIT;
    if (result->err == ERR_LIMIT) {
        rpc_fail(call, ERR_LIMIT,
                 "not submitted: there are %d jobs already, and none has ended. Cancel some, or submit again when one "
                 "has ended",
                 STATE_MAX_JOBS);
        return;
    }
    if (result->err) {
        rpc_fail(call, result->err, "not submitted: %s", err_text(result->err));
        return;
    }
    snprintf(id, sizeof(id), "%" PRIu64, result->job);
    reply.job = id;
    rpc_reply(call, &reply.base);
}

/* The sentence is valid until the next call. */
static const char *not_logged_text(const struct rpc_server *server, err_t err)
{
    static char text[PATH_MAX + 1000];
    const char *warning = log_warning(server->replica->log);
    if (err != ERR_NOSPACE && !warning)
        return "the log did not record it; repeat the request with the same request id";
    if (err != ERR_NOSPACE) {
        snprintf(text, sizeof(text), "node %s: %s", server->local->name, warning);
        return text;
    }
    snprintf(text, sizeof(text),
             "the disk of %s on node %s is full; free some space and repeat the command (`dtctl node` there names the "
             "largest logs)",
             server->local->dir, server->local->name);
    return text;
}

static void submitted(void *arg, err_t err, uint64_t index, const void *result)
{
    struct pending *p = arg;
    const struct state_result *r = result;
    struct rpc_server *server = p->server;
    struct rpc_call *call = p->call;
    pending_free(p);
    if (err)
        rpc_fail(call, err, "not submitted: %s", not_logged_text(server, err));
    else
        answer_submitted(call, r);
    jobs_tick_soon(server->jobs, NULL);
}

#define OWN_ENV 4096 /* bytes reserved for the settings and the variables that dtd adds to a command's environment */

static err_t check_env(const struct job_spec *spec, struct why *why)
{
    size_t bytes = sizeof("PWD=") + strlen(spec->run.workdir);
    for (int i = 0; i < spec->run.n_env; i++)
        bytes += caller_packed_bytes(spec->run.env[i]);
    for (int i = 0; i < spec->run.n_caller_env; i++)
        bytes += caller_packed_bytes(spec->run.caller_env[i]);
    for (int i = 0; i < spec->n_command; i++)
        bytes += strlen(spec->command[i]) + 1;
    if (spec->n_command > CHANNEL_MAX_ARGS)
        return why_set(why, ERR_INVALID, "command has %d words, the maximum is %d", spec->n_command, CHANNEL_MAX_ARGS);
    if (bytes + OWN_ENV > CHANNEL_MAX_ENV)
        return why_set(
            why, ERR_INVALID,
            "environment, working folder and command have %zu bytes, the maximum is %d; with `dtctl run`, unset the "
            "variables that the command does not need",
            bytes, CHANNEL_MAX_ENV - OWN_ENV);
    return OK;
}

/* Refuses a job only if it would not fit on all current nodes when they were empty. */
static err_t check_room(struct rpc_server *server, const struct job_spec *spec, struct why *why)
{
    struct placement_node *nodes;
    const struct placement_want want = job_want(spec);
    char lack[600];
    int count = job_nodes(server->jobs, NULL, &nodes);
    if (!nodes)
        return ERR_NOMEM;
    int most = placement_most(nodes, count, &want), few = want.per_node ? want.min / want.per_node : 0;
    placement_all(nodes, count, &want, lack, sizeof(lack));
    free(nodes);
    if (most >= want.min)
        return OK;
    if (few > count)
        return why_set(why, ERR_INVALID,
                       "run.nodes: the job needs %d nodes with %d worker%s each, and there %s %d; ask for fewer nodes, "
                       "or add nodes by `dtctl cluster join`",
                       few, want.per_node, want.per_node == 1 ? "" : "s", count == 1 ? "is" : "are", count);
    return why_set(why, ERR_INVALID, "parallel.workers: %" PRId64 " %s; ask for fewer workers%s%s",
                   spec->parallel.workers, lack, want.per_node ? ", or for more nodes (run.nodes)" : "",
                   want.per_gpu ? ", or let more of them share a GPU (run.workers_per_gpu)"
                                : ", or set `slots` in dtd's configuration");
}

/* Checks a parsed spec against the nodes and the other jobs. */
static err_t check_node(struct rpc_server *server, uint32_t uid, const struct job_spec *spec, struct why *why)
{
    const struct gpus *g = &server->local->gpus;
    if (job_gpus(spec) && !server->jobs->nodes->next && g->known && gpus_count(g) == 0)
        return why_set(why, ERR_INVALID,
                       "run.device: cuda, but this node has no usable GPU: %s. Set run.device: cpu, or repair the GPU "
                       "(`dt-worker --probe` shows its state) and restart dtd",
                       g->missing);
    err_t err = check_room(server, spec, why);
    if (err)
        return err;
    const struct job *user = job_is_command(spec) ? NULL : jobs_with_folder(server->jobs, spec->checkpoint.dir, uid);
    if (user)
        return why_set(why, ERR_INVALID,
                       "checkpoint.dir: %s is in use by job %" PRIu64 "; wait for it, cancel it, or set another one",
                       spec->checkpoint.dir, job_view_of(user).id);
    return check_env(spec, why);
}

static err_t check_parent(struct rpc_server *server, struct rpc_call *call, const char *parent,
                          const struct job_spec *spec, uint64_t *ret, struct why *why)
{
    char owner[80];
    *ret = parent ? strtoull(parent, NULL, 10) : 0;
    const struct job *j = *ret ? jobs_find(server->jobs, *ret) : NULL;
    if (!parent)
        return OK;
    if (!j)
        return why_set(why, ERR_NOTFOUND, "no job %.64s to resume", parent);
    const struct job_view v = job_view_of(j);
    if (!rpc_caller_owns(server, call, j))
        return why_set(why, ERR_DENIED, "job %" PRIu64 " belongs to %s; only its owner and root may resume it", v.id,
                       rpc_caller_user(server, v.uid, owner, sizeof(owner)));
    return job_resume_check(v.spec, spec, why);
}

/* The user for whom a caller submits. */
static uint32_t submit_uid(const struct rpc_server *server, struct rpc_call *call)
{
    return server->system ? rpc_caller_uid(call) : getuid();
}

static err_t propose_submit(struct rpc_server *server, struct rpc_call *call, const Dtd__SubmitRequest *m,
                            uint64_t parent)
{
    struct pending *p = pending_new(server, call, submit_uid(server, call));
    if (!p)
        return ERR_NOMEM;
    p->share.is_submit = true;
    p->share.bytes = strlen(m->spec_yaml);
    struct record r = {.kind = RECORD_SUBMITTED,
                       .wall_ms = clock_wall_ms(),
                       .has_request = true,
                       .submitted = {.spec = m->spec_yaml, .parent = parent, .uid = p->share.uid}};
    memcpy(r.request_id, m->request_id.data, REQUEST_ID_BYTES);
    err_t err = replica_propose(server->replica, &r, submitted, p);
    if (err)
        pending_free(p);
    return err;
}

/* A submit of a job for GPUs waits for the end of the probe, so that the job can be refused if the node has no GPU. If
 * the probe takes longer than this, the job is accepted and starts when the GPUs are known. 20 s, because a client's
 * call times out after 30 s. */
#define HELD_MS 20000

struct held_submit {
    struct rpc_proposal share; /* first; in server->proposals */
    struct held_submit *next;  /* in the order of arrival */
    struct rpc_server *server;
    int64_t until_ms;
    struct rpc_call *call;
    Dtd__SubmitRequest *m;
};

static void held_free(struct held_submit *h)
{
    for (struct held_submit **at = &h->server->held_submits; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    LIST_REMOVE(&h->share, link);
    dtd__submit_request__free_unpacked(h->m, NULL);
    free(h);
}

static void held_gone(void *arg)
{
    held_free(arg);
}

static Dtd__SubmitRequest *copy_of(const Dtd__SubmitRequest *m)
{
    size_t bytes = dtd__submit_request__get_packed_size(m);
    uint8_t *packed = malloc(bytes);
    Dtd__SubmitRequest *copy = NULL;
    if (packed)
        copy = dtd__submit_request__unpack(NULL, dtd__submit_request__pack(m, packed), packed);
    free(packed);
    return copy;
}

static err_t hold_submit(struct rpc_server *server, struct rpc_call *call, const Dtd__SubmitRequest *m)
{
    struct held_submit *h = calloc(1, sizeof(*h)), **at = &server->held_submits;
    if (!h)
        return ERR_NOMEM;
    *h = (struct held_submit){
        .share = {.uid = submit_uid(server, call), .is_submit = true, .bytes = strlen(m->spec_yaml)},
        .server = server,
        .until_ms = clock_mono_ms() + HELD_MS,
        .call = call,
        .m = copy_of(m)};
    if (!h->m) {
        free(h);
        return ERR_NOMEM;
    }
    LIST_INSERT_HEAD(&server->proposals, &h->share, link);
    while (*at)
        at = &(*at)->next;
    *at = h;
    rpc_call_on_cancel(call, held_gone, h);
    return OK;
}

static void submit(struct rpc_server *server, struct rpc_call *call, const Dtd__SubmitRequest *m, bool may_wait);

static void continue_submit(struct held_submit *h)
{
    h->server->held_submits = h->next;
    rpc_call_on_cancel(h->call, NULL, NULL);
    h->share.is_submit = false; /* now the submit itself counts */
    h->share.bytes = 0;
    submit(h->server, h->call, h->m, false);
    held_free(h);
}

void rpc_client_gpus_known(struct rpc_server *server)
{
    while (server->held_submits)
        continue_submit(server->held_submits);
}

void rpc_client_tick(struct rpc_server *server)
{
    while (server->held_submits && clock_mono_ms() >= server->held_submits->until_ms)
        continue_submit(server->held_submits);
}

void rpc_client_forget(struct rpc_server *server)
{
    for (struct held_submit *h; (h = server->held_submits);) {
        server->held_submits = h->next;
        rpc_call_on_cancel(h->call, NULL, NULL);
        rpc_fail(h->call, ERR_AGAIN, "another node is the leader now: try again");
        held_free(h);
    }
}

/* Until every node's dtd has the keys of the job file, a leader that lacks one could not continue the job. */
static err_t check_keys(const struct rpc_server *server, const struct job_spec *spec, struct why *why)
{
    const char *key;
    uint32_t version;
    err_t err = job_since(spec, &version, &key);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    return version > 1 ? cluster_may_use(server->cluster, version, key, why) : OK;
}

static void submit(struct rpc_server *server, struct rpc_call *call, const Dtd__SubmitRequest *m, bool may_wait)
{
    struct job_spec spec;
    struct state_result first;
    struct why why = {""};
    uint64_t parent = 0;
    if (m->request_id.len != REQUEST_ID_BYTES) {
        rpc_fail(call, ERR_INVALID, "a request id has %d bytes, this one %zu", REQUEST_ID_BYTES, m->request_id.len);
        return;
    }
    if (state_request_find(server->replica->state, m->request_id.data, &first)) {
        answer_submitted(call, &first);
        return;
    }
    if (server->jobs->stopping) {
        rpc_fail(call, ERR_AGAIN, "dtd is shutting down; submit again when it has restarted");
        return;
    }
    if (server->system && (rpc_caller_uid(call) == 0 || rpc_caller_uid(call) == (uid_t)-1)) {
        rpc_fail(call, ERR_DENIED, "a system-wide dtd runs no job as root; submit it as the user who owns the job");
        return;
    }
    err_t err = job_parse("job", m->spec_yaml, strlen(m->spec_yaml), NULL, 0, &spec, &why);
    if (err) {
        bool is_old = cluster_newest(server->cluster) > features_newest();
        rpc_fail(call, err, "%s%s%s%s", why.text, is_old ? "; dtd on " : "", is_old ? server->local->name : "",
                 is_old ? ", which leads, is older than that of other nodes: upgrade it" : "");
        return;
    }
    err = check_keys(server, &spec, &why);
    err = err ? err : rpc_share_proposes(server, submit_uid(server, call), &why);
    err = err ? err : rpc_share_submits(server, submit_uid(server, call), strlen(m->spec_yaml), &why);
    err = err ? err : check_parent(server, call, m->parent, &spec, &parent, &why);
    bool wait = may_wait && !err && job_gpus(&spec) && !server->local->gpus.known && !server->jobs->nodes->next;
    if (wait)
        err = hold_submit(server, call, m);
    else if (!err)
        err = check_node(server, submit_uid(server, call), &spec, &why);
    if (!err && !wait) {
        err = propose_submit(server, call, m, parent);
        if (err)
            why_set(&why, err, "not submitted: %s", not_logged_text(server, err));
    }
    job_fini(&spec);
    if (err)
        rpc_fail(call, err, "%s", why.text);
}

void rpc_client_submit(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    submit(owner, call, (const Dtd__SubmitRequest *)request, true);
}

/* ---- cancel ---- */

static void canceled(void *arg, err_t err, uint64_t index, const void *result)
{
    struct pending p = *(struct pending *)arg;
    const struct state_result *r = result;
    struct job *j = jobs_find(p.server->jobs, p.job);
    pending_free(arg);
    if (err || !j) {
        rpc_fail(p.call, err ? err : ERR_NOTFOUND, "not canceled: %s", not_logged_text(p.server, err));
        return;
    }
    p.cancel.repeated = r->repeated;
    if (!r->err)
        job_cancel(j, &p.cancel);
    jobs_tick_soon(p.server->jobs, j);
    reply_status(p.server, p.call, j); /* also for a job that had already ended: the status shows that */
}

/* Answers a cancel that would change nothing in the state: the job has ended or is stopping, or the request was applied
 * before. It is not logged, so that a client that repeats it does not fill the log. A job that is stopping gets the new
 * time of grace, or ends at once. */
static bool answer_known_cancel(struct rpc_server *server, struct rpc_call *call, struct job *j, const struct record *r,
                                struct job_cancel cancel)
{
    struct state_result answer;
    cancel.repeated = state_request_find(server->replica->state, r->request_id, &answer);
    if (!cancel.repeated && !state_is_idle(server->replica->state, r, &answer))
        return false;
    if (!answer.err)
        job_cancel(j, &cancel);
    jobs_tick_soon(server->jobs, j);
    reply_status(server, call, j);
    return true;
}

void rpc_client_cancel(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__CancelRequest *m = (const Dtd__CancelRequest *)request;
    struct job *j = rpc_client_job(server, call, m->job);
    if (!j)
        return;
    if (m->request_id.len != REQUEST_ID_BYTES) {
        rpc_fail(call, ERR_INVALID, "a request id has %d bytes, this one %zu", REQUEST_ID_BYTES, m->request_id.len);
        return;
    }
    if (m->has_grace_seconds && (m->grace_seconds < 0 || m->grace_seconds > JOB_MAX_GRACE_SECONDS)) {
        rpc_fail(call, ERR_INVALID, "the time of grace is %" PRId64 " s; expected 0 to %d s", m->grace_seconds,
                 JOB_MAX_GRACE_SECONDS);
        return;
    }
    enum state_desired desired = m->save ? DESIRED_SAVED : DESIRED_CANCELED;
    const struct job_cancel cancel = {.desired = desired,
                                      .grace_ms = m->has_grace_seconds ? m->grace_seconds * 1000 : JOB_GRACE_OF_FILE};
    struct record r = {.kind = RECORD_DESIRED,
                       .wall_ms = clock_wall_ms(),
                       .has_request = true,
                       .job = job_view_of(j).id,
                       .desired = {.desired = desired}};
    memcpy(r.request_id, m->request_id.data, REQUEST_ID_BYTES);
    if (answer_known_cancel(server, call, j, &r, cancel))
        return;
    struct why why = {""};
    err_t err = rpc_share_proposes(server, rpc_caller_uid(call), &why);
    if (err) {
        rpc_fail(call, err, "not canceled: %s", why.text);
        return;
    }
    struct pending *p = pending_new(server, call, rpc_caller_uid(call));
    err = ERR_NOMEM;
    if (p) {
        p->job = r.job;
        p->cancel = cancel;
        err = replica_propose(server->replica, &r, canceled, p);
    }
    if (err) {
        if (p)
            pending_free(p);
        rpc_fail(call, err, "not canceled: %s", not_logged_text(server, err));
    }
}

/* ---- profile ---- */

static void reply_profile(struct rpc_call *call, struct job *j)
{
    const struct job_profile_view v = job_profile_view_of(j);
    const struct job_view view = job_view_of(j);
    Dtd__ProfileReply m = DTD__PROFILE_REPLY__INIT;
    m.id = v.id;
    m.epoch = v.epoch;
    m.steps = v.steps;
    m.workers = v.workers;
    m.written = v.written;
    m.step = view.step;
    m.dir = (char *)view.spec->checkpoint.dir;
    m.has_done = m.done = v.done;
    m.error = v.error[0] ? (char *)v.error : NULL;
    rpc_reply(call, &m.base);
}

void rpc_client_profile(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__ProfileRequest *m = (const Dtd__ProfileRequest *)request;
    struct job *j = rpc_client_job(owner, call, m->job);
    struct why why = {""};
    if (!j)
        return;
    if (m->steps < 1 || m->steps > JOB_PROFILE_STEPS) {
        rpc_fail(call, ERR_INVALID, "a profile has 1 to %d steps, not %d", JOB_PROFILE_STEPS, m->steps);
        return;
    }
    err_t err = job_profile_start(j, m->request, m->steps, &why);
    if (err)
        rpc_fail(call, err, "%s", why.text);
    else
        reply_profile(call, j);
}

/* ---- remove ---- */

static void removed(void *arg, err_t err, uint64_t index, const void *result)
{
    const Dtd__Empty reply = DTD__EMPTY__INIT;
    struct pending p = *(struct pending *)arg;
    const struct state_result *r = result;
    pending_free(arg);
    if (err || r->err) {
        rpc_fail(p.call, err ? err : r->err, "not removed: %s",
                 err ? not_logged_text(p.server, err) : err_text(r->err));
        return;
    }
    jobs_remove(p.server->jobs, p.job);
    rpc_reply(p.call, &reply.base);
}

static err_t propose_remove(struct rpc_server *server, struct rpc_call *call, const uint8_t *request_id, uint64_t job)
{
    struct pending *p = pending_new(server, call, rpc_caller_uid(call));
    if (!p)
        return ERR_NOMEM;
    p->job = job;
    struct record r = {.kind = RECORD_JOB_REMOVED, .wall_ms = clock_wall_ms(), .has_request = true, .job = job};
    memcpy(r.request_id, request_id, REQUEST_ID_BYTES);
    err_t err = replica_propose(server->replica, &r, removed, p);
    if (err)
        pending_free(p);
    return err;
}

void rpc_client_remove(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__Empty reply = DTD__EMPTY__INIT;
    struct rpc_server *server = owner;
    struct state_result first;
    const Dtd__RemoveRequest *m = (const Dtd__RemoveRequest *)request;
    if (m->request_id.len != REQUEST_ID_BYTES) {
        rpc_fail(call, ERR_INVALID, "a request id has %d bytes, this one %zu", REQUEST_ID_BYTES, m->request_id.len);
        return;
    }
    if (state_request_find(server->replica->state, m->request_id.data, &first) && !first.err) {
        rpc_reply(call, &reply.base);
        return;
    }
    struct job *j = rpc_client_job(server, call, m->job);
    if (!j)
        return;
    const struct job_view v = job_view_of(j);
    if (!job_over(j)) {
        rpc_fail(call, ERR_INVALID, "job %" PRIu64 " is %s; end it first: dtctl cancel %" PRIu64, v.id, v.state, v.id);
        return;
    }
    struct why why = {""};
    err_t err = rpc_share_proposes(server, rpc_caller_uid(call), &why);
    err = err ? err : propose_remove(server, call, m->request_id.data, v.id);
    if (err)
        rpc_fail(call, err, "not removed: %s", why.text[0] ? why.text : not_logged_text(server, err));
}

/* ---- lists ---- */

void rpc_client_list(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    Dtd__JobList list = DTD__JOB_LIST__INIT;
    size_t count = 0, filled = 0;
    for (struct job *j = server->jobs->head; j; j = job_next(j))
        count++;
    struct job_status *all = calloc(count + 1, sizeof(*all));
    Dtd__JobStatus **refs = calloc(count + 1, sizeof(void *));
    for (struct job *j = server->jobs->head; j && all && refs; j = job_next(j)) {
        if (job_status_fill(&all[filled], server, j, false))
            break;
        if (!rpc_caller_sees(server, call, j))
            job_status_hide(&all[filled]);
        refs[filled] = &all[filled].msg;
        filled++;
    }
    list.n_job = filled;
    list.job = refs;
    list.has_now_ms = true;
    list.now_ms = clock_wall_ms();
    if (filled == count && all && refs)
        rpc_reply(call, &list.base);
    else
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    while (filled)
        job_status_fini(&all[--filled]);
    free(all);
    free(refs);
}

static void fill_checkpoint(Dtd__Checkpoint *m, const char *job, const struct state_checkpoint *c)
{
    dtd__checkpoint__init(m);
    m->job = (char *)job;
    m->step = c->step;
    m->epoch = c->epoch;
    m->path = (char *)c->path;
    m->bytes = c->bytes;
    m->committed_ms = c->committed_ms;
    m->has_loss = c->loss == c->loss;
    m->loss = c->loss;
}

void rpc_client_checkpoints(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    char *id = ((const Dtd__JobRequest *)request)->job;
    const struct job *j = rpc_client_job_to_see(server, call, id);
    if (!j)
        return;
    const struct state_job *s = job_view_of(j).logged;
    size_t count = s ? (size_t)s->n_checkpoints : 0;
    Dtd__CheckpointList list = DTD__CHECKPOINT_LIST__INIT;
    Dtd__Checkpoint *all = calloc(count + 1, sizeof(*all));
    Dtd__Checkpoint **refs = calloc(count + 1, sizeof(void *));
    for (size_t i = 0; i < count && all && refs; i++) {
        fill_checkpoint(&all[i], id, &s->checkpoints[i]);
        refs[i] = &all[i];
    }
    list.n_checkpoint = count;
    list.checkpoint = refs;
    if (all && refs)
        rpc_reply(call, &list.base);
    else
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    free(all);
    free(refs);
}

/* ---- the node ---- */

void rpc_client_warning(const struct rpc_server *server, char *ret, size_t size)
{
    const char *log = log_warning(server->replica->log), *low = server->local->health.warning;
    const int failing = jobs_unwritten(server->jobs);
    const char *sick = server->local->gpus.sick, *unknown = server->local->probe.warning;
    int at = snprintf(ret, size, "%s%s%s", log ? log : "", log && *low ? "; " : "", low);
    at += snprintf(ret + at, size - (size_t)at, "%s%s", at && *sick ? "; " : "", sick);
    at += snprintf(ret + at, size - (size_t)at, "%s%s", at && *unknown ? "; " : "", unknown);
    if (failing)
        snprintf(ret + at, size - (size_t)at, "%smetrics of %d jobs are in memory only: they cannot be written",
                 at ? "; " : "", failing);
}

static bool is_io(const struct child *c)
{
    return c->slot == CHANNEL_SLOT_IO && c->state == CHANNEL_RUNNING;
}

/* The message about one NUMA node, with the memory that it points to. */
struct numa_reply {
    Dtd__NumaNode m;
    char cores[5 * CHANNEL_MAX_CPUS]; /* at most 5 characters per CPU: "1023," */
    int32_t gpu[GPUS_MAX];
};

static void fill_numa_node(const struct rpc_server *server, int node, struct numa_reply *ret)
{
    const struct topology *t = &server->local->children.cores.at;
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    topology_node_cpus(t, node, cpus);
    cpus_print(cpus, CHANNEL_MAX_CPUS, ret->cores, sizeof(ret->cores));
    dtd__numa_node__init(&ret->m);
    ret->m.number = t->node[node];
    ret->m.cores = ret->cores;
    ret->m.gpu = ret->gpu;
    for (int i = 0; i < server->local->gpus.n; i++)
        if (gpus_numa_node(&server->local->gpus, i) == ret->m.number)
            ret->gpu[ret->m.n_gpu++] = i;
}

/* Fills in the NUMA nodes that have a CPU of dtd's affinity or a GPU, if these CPUs are in several nodes. Without
 * memory the list is empty. The caller frees *ret and m->numa_node. */
static void fill_numa_nodes(const struct rpc_server *server, Dtd__NodeReply *m, struct numa_reply **ret)
{
    const struct topology *t = &server->local->children.cores.at;
    bool several = t->n_cpu_nodes > 1;
    *ret = several ? calloc((size_t)t->n_nodes, sizeof(**ret)) : NULL;
    m->numa_node = several ? calloc((size_t)t->n_nodes, sizeof(*m->numa_node)) : NULL;
    for (int i = 0; i < t->n_nodes && *ret && m->numa_node; i++) {
        fill_numa_node(server, i, &(*ret)[i]);
        if ((*ret)[i].cores[0] || (*ret)[i].m.n_gpu)
            m->numa_node[m->n_numa_node++] = &(*ret)[i].m;
    }
}

struct node_load rpc_node_load_of(const struct node_load *load, const struct gpus *g)
{
    struct node_load ret = *load;
    for (int i = 0; i < ret.n_gpu; i++) {
        const char *sick = gpus_sick(g, (int)ret.gpu[i].gpu);
        ret.gpu[i].sick = *sick ? sick : NULL;
    }
    return ret;
}

void rpc_client_node(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    Dtd__NodeReply m = DTD__NODE_REPLY__INIT;
    char host[256] = "", warning[2500];
    struct numa_reply *numa;
    struct node_load_message load;
    struct node_use_message use;
    size_t count = 0;
    for (const struct child *c = server->local->children.head; c; c = c->next)
        count += is_io(c);
    int32_t *io = calloc(count + 1, sizeof(*io));
    for (const struct child *c = server->local->children.head; c && io; c = c->next)
        if (is_io(c))
            io[m.n_io_pid++] = c->pid;
    (void)gethostname(host, sizeof(host) - 1);
    rpc_client_warning(server, warning, sizeof(warning));
    m.version = (char *)DTD_VERSION;
    m.node = cluster_named(server->cluster) ? (char *)cluster_self(server->cluster)
             : server->local->conf->name[0] ? server->local->conf->name
                                            : host;
    const struct state_node *listed =
        cluster_named(server->cluster) ? cluster_node(server->cluster, cluster_self(server->cluster)) : NULL;
    m.drained = listed ? listed->drained : NULL;
    m.supervisor_pid = getppid();
    m.control_pid = getpid();
    m.io_pid = io;
    m.state_dir = (char *)server->local->dir;
    m.slots = server->jobs->self.slots;
    m.raft_state = (char *)log_state(server->replica->log);
    m.raft_term = log_term(server->replica->log);
    m.raft_index = log_index(server->replica->log);
    m.warning = warning[0] ? warning : NULL;
    m.has_gpus = m.has_gpus_free = server->local->gpus.known;
    m.gpus = gpus_count(&server->local->gpus);
    m.gpus_free = gpus_free(&server->local->gpus);
    m.gpu_model = server->local->gpus.model;
    m.gpu_missing = server->local->gpus.missing;
    m.has_gpu_probe_ms = true;
    m.gpu_probe_ms = probe_gpus_ms(server->local);
    fill_numa_nodes(server, &m, &numa);
    const struct node_load now = rpc_node_load_of(&server->local->load.now, &server->local->gpus);
    if (node_load_encode(&now, &load) == OK)
        m.load = &load.m;
    rpc_use_fill(server, &server->jobs->self, &use);
    m.use = &use.m;
    rpc_reply(call, &m.base);
    node_load_encoded_fini(&load);
    free(numa);
    free(m.numa_node);
    free(io);
}

void rpc_client_shutdown(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (!rpc_caller_is_admin(call, "stop a dtd"))
        return;
    log_info("shutdown requested pid=%d uid=%u", (int)rpc_conn_peer_pid(rpc_call_conn(call)),
             (unsigned)rpc_caller_uid(call));
    rpc_reply(call, &empty.base);
    struct rpc_server *server = owner;
    server->stop(server->owner);
}
