/* Blocking calls over the callback library of common/rpc.
 *
 * A call is rpc_send followed by uv_run until `struct pending_call` is done. Only one call is in flight at a time, so
 * nothing is locked or queued. A stream adds a timer (the tick) and a SIGINT watcher while it runs. Both only cancel
 * the rpc call; its last callback ends the loop, so there is one way out. */
#include "client/client.h"
#include "client/convert.h"
#include "client/daemon.h"

#include "common/base/clock.h"
#include "common/rpc/field_codec.h"
#include "common/rpc/methods.h"
#include "common/rpc/rpc.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A call may wait for an election (about a second) and for a write to the replicated log. 30 s is well above both, and
 * equals RPC_STALL_MS. */
#define CALL_DEADLINE_MS 30000
/* The progress line is redrawn every 200 ms (REDRAW_MS in out.c). */
#define TICK_MS 200

struct client {
    uv_loop_t loop;
    struct rpc_conn *conn;
    bool open; /* on_close has not been called yet */
    uint32_t call_deadline_ms;
};

/* One call in flight. `on_reply` copies a reply into `ret`, or passes an item to `stream`; its error ends the call. */
struct pending_call {
    struct client *client;
    uint64_t call;
    bool done, canceled, replied;
    bool job_ended; /* a Watch: it has delivered the last status */
    err_t err, reply_err;
    struct why *why;
    err_t (*on_reply)(struct pending_call *p, const ProtobufCMessage *reply);
    void *ret;
    const struct client_stream *stream;
};

/* ---- the connection ---- */

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct client *c = owner;
    c->open = false;
    c->conn = NULL;
}

err_t client_open(const char *state_dir, struct client **ret, struct why *why)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/control.sock", state_dir) >= sizeof(path))
        return why_set(why, ERR_INVALID, "the path of the state directory is too long: %s", state_dir);
    int fd;
    err_t err = rpc_connect_unix(path, &fd);
    if (err && daemon_check_host(state_dir, why))
        return ERR_INVALID;
    if (err)
        return why_set(why, err == ERR_NOTFOUND ? ERR_CLOSED : err, "no dtd answers at %s (%s). Start one: dtctl up",
                       path, err_text(err));
    struct client *c = calloc(1, sizeof(*c));
    if (!c || uv_loop_init(&c->loop)) {
        free(c);
        close(fd);
        return why_set(why, ERR_NOMEM, "out of memory");
    }
    const struct rpc_conn_config config = {
        .loop = &c->loop, .methods = rpc_methods(), .n_methods = RPC_METHOD_COUNT, .owner = c, .on_close = conn_closed};
    err = rpc_conn_open(&config, fd, RPC_ROLE_ANY, &c->conn);
    if (err) {
        uv_loop_close(&c->loop);
        free(c);
        return why_set(why, err, "%s: %s", path, err_text(err));
    }
    c->open = true;
    c->call_deadline_ms = CALL_DEADLINE_MS;
    *ret = c;
    return OK;
}

void client_set_deadline(struct client *c, uint32_t ms)
{
    c->call_deadline_ms = ms;
}

void client_close(struct client *c)
{
    if (!c)
        return;
    if (c->open)
        rpc_conn_close(c->conn);
    uv_run(&c->loop, UV_RUN_DEFAULT);
    assert(!c->open);
    int r = uv_loop_close(&c->loop);
    assert(r == 0);
    free(c);
}

/* ---- one call ---- */

static void call_answered(void *arg, const struct rpc_result *r)
{
    struct pending_call *p = arg;
    if (r->err) {
        p->err = r->err;
        why_set(p->why, r->err, "%s", r->text && r->text[0] ? r->text : err_text(r->err));
    } else if (r->reply && p->on_reply && !p->reply_err && !p->canceled) {
        p->reply_err = p->on_reply(p, r->reply);
        p->replied = !p->reply_err;
        if (p->reply_err && !r->last)
            rpc_cancel(p->client->conn, p->call);
    }
    if (r->last)
        p->done = true;
}

static err_t call_wait(struct pending_call *p)
{
    while (!p->done)
        uv_run(&p->client->loop, UV_RUN_ONCE);
    if (p->reply_err)
        return why_set(p->why, p->reply_err, "%s", err_text(p->reply_err));
    return p->canceled ? ERR_CANCELED : p->err;
}

static err_t call_start(struct pending_call *p, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms)
{
    if (!p->client->open)
        return why_set(p->why, ERR_CLOSED, "the connection to dtd is closed");
    err_t err = rpc_send(p->client->conn, method, request, deadline_ms, call_answered, p, &p->call);
    return err ? why_set(p->why, err, "%s", err_text(err)) : OK;
}

static err_t call_one(struct client *c, uint16_t method, const ProtobufCMessage *request,
                      err_t (*on_reply)(struct pending_call *, const ProtobufCMessage *), void *ret, struct why *why)
{
    struct pending_call p = {.client = c, .on_reply = on_reply, .ret = ret, .why = why};
    err_t err = call_start(&p, method, request, c->call_deadline_ms);
    if (!err)
        err = call_wait(&p);
    if (!err && on_reply && !p.replied)
        return why_set(why, ERR_PROTO, "dtd ended the call without a reply");
    return err;
}

/* rpc frees the reply after this callback: the copy is made by packing it and unpacking it again. */
static err_t copy_message(struct pending_call *p, const ProtobufCMessage *reply)
{
    const size_t bytes = protobuf_c_message_get_packed_size(reply);
    uint8_t *packed = malloc(bytes + 1);
    if (!packed)
        return ERR_NOMEM;
    protobuf_c_message_pack(reply, packed);
    ProtobufCMessage *copy = protobuf_c_message_unpack(reply->descriptor, NULL, bytes, packed);
    explicit_bzero(packed, bytes); /* it may be a join token */
    free(packed);
    *(ProtobufCMessage **)p->ret = copy;
    return copy ? OK : ERR_NOMEM;
}

err_t client_call(struct client *c, enum rpc_method_id method, const ProtobufCMessage *request, void *ret_reply,
                  struct why *why)
{
    return call_one(c, method, request, ret_reply ? copy_message : NULL, ret_reply, why);
}

void client_reply_free(void *reply)
{
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

/* ---- a stream ---- */

static void stream_cancel(struct pending_call *p)
{
    if (p->canceled || p->done)
        return;
    p->canceled = true;
    if (p->client->open)
        rpc_cancel(p->client->conn, p->call);
}

/* The handles of a stream, or of two that end together. */
struct stream_watch {
    uv_signal_t sig;
    uv_timer_t timer;
    struct pending_call *first, *second; /* second: may be NULL */
    int open_handles;                    /* handles that the loop has not closed yet */
};

static void watch_cancel(struct stream_watch *w)
{
    stream_cancel(w->first);
    if (w->second)
        stream_cancel(w->second);
}

static void stream_interrupted(uv_signal_t *handle, int signum)
{
    watch_cancel(handle->data);
}

static void stream_ticked(uv_timer_t *handle)
{
    struct stream_watch *w = handle->data;
    const struct client_stream *s = w->first->stream;
    if (s->tick && !w->first->canceled && !s->tick(s->arg))
        watch_cancel(w);
}

static void stream_handle_closed(uv_handle_t *handle)
{
    struct stream_watch *w = handle->data;
    w->open_handles--;
}

static bool call_failed(const struct pending_call *p)
{
    return p->done && (p->err || p->reply_err);
}

/* Runs the loop until the calls have ended. The second one, a follower of logs, ends by itself only if the job ends. */
static err_t watch_wait(struct stream_watch *w)
{
    struct pending_call *a = w->first, *b = w->second;
    while (b && !(a->done && b->done)) {
        uv_run(&a->client->loop, UV_RUN_ONCE);
        if (a->canceled || call_failed(a) || (a->done && !a->job_ended))
            stream_cancel(b);
        if (b->canceled || call_failed(b))
            stream_cancel(a);
    }
    bool second = b && (call_failed(b) || b->canceled) && !call_failed(a);
    return call_wait(second && !b->canceled ? b : a);
}

/* `logs` (may be NULL): a second call of CLIENT_LOGS, which the same stream receives. */
static err_t call_streams(struct pending_call *p, uint16_t method, const ProtobufCMessage *request,
                          struct pending_call *logs, const ProtobufCMessage *logs_request)
{
    struct client *c = p->client;
    struct stream_watch w = {.first = p, .open_handles = 2};
    uv_signal_init(&c->loop, &w.sig);
    uv_timer_init(&c->loop, &w.timer);
    w.sig.data = w.timer.data = &w;
    err_t err = call_start(p, method, request, 0);
    if (!err && logs && !call_start(logs, CLIENT_LOGS, logs_request, 0))
        w.second = logs;
    if (!err && logs && !w.second)
        stream_cancel(p);
    if (!err) {
        uv_signal_start(&w.sig, stream_interrupted, SIGINT);
        uv_timer_start(&w.timer, stream_ticked, TICK_MS, TICK_MS);
        err = watch_wait(&w);
    }
    uv_close((uv_handle_t *)&w.sig, stream_handle_closed);
    uv_close((uv_handle_t *)&w.timer, stream_handle_closed);
    while (w.open_handles) /* the handles are on this stack frame */
        uv_run(&c->loop, UV_RUN_ONCE);
    return err;
}

static err_t call_stream(struct client *c, uint16_t method, const ProtobufCMessage *request,
                         err_t (*on_reply)(struct pending_call *, const ProtobufCMessage *),
                         const struct client_stream *stream, struct why *why)
{
    struct pending_call p = {.client = c, .on_reply = on_reply, .stream = stream, .why = why};
    return call_streams(&p, method, request, NULL, NULL);
}

/* ---- conversion of replies ---- */

struct list {
    void *items;
    int n;
};

static err_t copy_job(struct pending_call *p, const ProtobufCMessage *reply)
{
    return convert_job((const Dtd__JobStatus *)reply, p->ret);
}

static err_t copy_jobs(struct pending_call *p, const ProtobufCMessage *reply)
{
    struct list *ret = p->ret;
    struct client_job *jobs = NULL;
    err_t err = convert_jobs((const Dtd__JobList *)reply, &jobs, &ret->n);
    ret->items = jobs;
    return err;
}

static err_t copy_checkpoints(struct pending_call *p, const ProtobufCMessage *reply)
{
    struct list *ret = p->ret;
    struct client_checkpoint *items = NULL;
    err_t err = convert_checkpoints((const Dtd__CheckpointList *)reply, &items, &ret->n);
    ret->items = items;
    return err;
}

static err_t copy_node(struct pending_call *p, const ProtobufCMessage *reply)
{
    return convert_node((const Dtd__NodeReply *)reply, p->ret);
}

static err_t copy_cluster(struct pending_call *p, const ProtobufCMessage *reply)
{
    return convert_cluster((const Dtd__ClusterReport *)reply, p->ret);
}

static err_t copy_job_id(struct pending_call *p, const ProtobufCMessage *reply)
{
    const Dtd__SubmitReply *r = (const Dtd__SubmitReply *)reply;
    if ((size_t)snprintf(p->ret, 32, "%s", r->job) >= 32)
        return ERR_PROTO;
    return OK;
}

/* ---- the calls ---- */

err_t client_request_id(uint8_t ret[16])
{
    size_t have = 0;
    while (have < 16) {
        ssize_t n = getrandom(ret + have, 16 - have, 0);
        if (n < 0 && errno != EINTR)
            return err_from_errno(errno);
        have += n > 0 ? (size_t)n : 0;
    }
    return OK;
}

err_t client_submit(struct client *c, const uint8_t request_id[16], const char *spec_yaml, const char *parent,
                    char ret_job[32], struct why *why)
{
    Dtd__SubmitRequest q = DTD__SUBMIT_REQUEST__INIT;
    q.request_id.data = (uint8_t *)request_id;
    q.request_id.len = 16;
    q.spec_yaml = (char *)spec_yaml;
    q.parent = parent && parent[0] ? (char *)parent : NULL;
    return call_one(c, CLIENT_SUBMIT, &q.base, copy_job_id, ret_job, why);
}

err_t client_status(struct client *c, const char *job, struct client_job *ret, struct why *why)
{
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    q.job = (char *)job;
    return call_one(c, CLIENT_STATUS, &q.base, copy_job, ret, why);
}

err_t client_list(struct client *c, struct client_job **ret, int *ret_n, struct why *why)
{
    Dtd__Empty q = DTD__EMPTY__INIT;
    struct list list = {0};
    err_t err = call_one(c, CLIENT_LIST, &q.base, copy_jobs, &list, why);
    if (err)
        return err;
    *ret = list.items;
    *ret_n = list.n;
    return OK;
}

err_t client_cancel(struct client *c, const uint8_t request_id[16], const char *job, bool save, int64_t grace_seconds,
                    struct client_job *ret, struct why *why)
{
    Dtd__CancelRequest q = DTD__CANCEL_REQUEST__INIT;
    q.request_id.data = (uint8_t *)request_id;
    q.request_id.len = 16;
    q.job = (char *)job;
    q.has_save = q.save = save;
    q.has_grace_seconds = grace_seconds != CLIENT_GRACE_DEFAULT;
    q.grace_seconds = grace_seconds;
    return call_one(c, CLIENT_CANCEL, &q.base, copy_job, ret, why);
}

err_t client_remove(struct client *c, const uint8_t request_id[16], const char *job, struct why *why)
{
    Dtd__RemoveRequest q = DTD__REMOVE_REQUEST__INIT;
    q.request_id.data = (uint8_t *)request_id;
    q.request_id.len = 16;
    q.job = (char *)job;
    return call_one(c, CLIENT_REMOVE, &q.base, NULL, NULL, why);
}

err_t client_checkpoints(struct client *c, const char *job, struct client_checkpoint **ret, int *ret_n, struct why *why)
{
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    struct list list = {0};
    q.job = (char *)job;
    err_t err = call_one(c, CLIENT_CHECKPOINTS, &q.base, copy_checkpoints, &list, why);
    if (err)
        return err;
    *ret = list.items;
    *ret_n = list.n;
    return OK;
}

err_t client_node_get(struct client *c, struct client_node *ret, struct why *why)
{
    Dtd__Empty q = DTD__EMPTY__INIT;
    return call_one(c, CLIENT_NODE, &q.base, copy_node, ret, why);
}

err_t client_shutdown(struct client *c, struct why *why)
{
    Dtd__Empty q = DTD__EMPTY__INIT;
    return call_one(c, CLIENT_SHUTDOWN, &q.base, NULL, NULL, why);
}

/* ---- the cluster ---- */

err_t client_cluster_status(struct client *c, struct client_cluster *ret, struct why *why)
{
    Dtd__Empty q = DTD__EMPTY__INIT;
    return call_one(c, CLIENT_CLUSTER_STATUS, &q.base, copy_cluster, ret, why);
}

err_t client_node_drain(struct client *c, const char *node, const char *reason, struct why *why)
{
    Dtd__ClusterNodeRequest q = DTD__CLUSTER_NODE_REQUEST__INIT;
    q.name = (char *)node;
    q.reason = (char *)reason;
    return call_one(c, CLIENT_NODE_DRAIN, &q.base, NULL, NULL, why);
}

/* ---- the streams ---- */

static err_t forward_log(struct pending_call *p, const ProtobufCMessage *item)
{
    const Dtd__LogChunk *chunk = (const Dtd__LogChunk *)item;
    const struct client_stream *s = p->stream;
    const struct client_log log = {.rank = chunk->rank,
                                   .text = (const char *)chunk->text.data,
                                   .len = chunk->text.len,
                                   .node = chunk->node ? chunk->node : "",
                                   .slot = chunk->slot,
                                   .at = chunk->has_at ? chunk->at : -1};
    if (s->log && !s->log(s->arg, &log))
        stream_cancel(p);
    return OK;
}

static err_t forward_metric(struct pending_call *p, const ProtobufCMessage *item)
{
    const struct metric m = metric_decode((const Dtd__Metric *)item);
    const struct client_stream *s = p->stream;
    struct metric_point point;
    if (s->point)
        metric_point_decode((const Dtd__Metric *)item, &point);
    if (s->point ? !s->point(s->arg, &point) : s->metric && !s->metric(s->arg, &m))
        stream_cancel(p);
    return OK;
}

static err_t forward_watch_item(struct pending_call *p, const ProtobufCMessage *item)
{
    const Dtd__WatchItem *w = (const Dtd__WatchItem *)item;
    const struct client_stream *s = p->stream;
    if (w->metric && s->metric) {
        const struct metric m = metric_decode(w->metric);
        if (!s->metric(s->arg, &m))
            stream_cancel(p);
    }
    if (w->status && s->status) {
        struct client_job job;
        err_t err = convert_job(w->status, &job);
        if (err)
            return err;
        p->job_ended = client_job_ended(&job);
        if (!s->status(s->arg, &job))
            stream_cancel(p);
        client_job_fini(&job);
    }
    return OK;
}

err_t client_logs(struct client *c, const char *job, int rank, bool follow, int64_t tail_lines,
                  const struct client_stream *stream, struct why *why)
{
    Dtd__LogsRequest q = DTD__LOGS_REQUEST__INIT;
    q.job = (char *)job;
    q.has_rank = q.has_follow = q.has_tail_lines = true;
    q.rank = rank;
    q.follow = follow;
    q.tail_lines = tail_lines;
    return call_stream(c, CLIENT_LOGS, &q.base, forward_log, stream, why);
}

err_t client_metrics(struct client *c, const char *job, bool follow, int64_t from_step,
                     const struct client_stream *stream, struct why *why)
{
    const struct client_metrics_part part = {.follow = follow, .from_step = from_step};
    return client_metrics_part(c, job, &part, stream, why);
}

err_t client_metrics_part(struct client *c, const char *job, const struct client_metrics_part *part,
                          const struct client_stream *stream, struct why *why)
{
    Dtd__MetricsRequest q = DTD__METRICS_REQUEST__INIT;
    q.job = (char *)job;
    q.has_follow = q.has_from_step = true;
    q.follow = part->follow;
    q.from_step = part->from_step;
    q.has_points = part->points > 0;
    q.points = part->points;
    q.has_last = part->last > 0;
    q.last = part->last;
    return call_stream(c, CLIENT_METRICS, &q.base, forward_metric, stream, why);
}

static err_t forward_event(struct pending_call *p, const ProtobufCMessage *item)
{
    const Dtd__Event *m = (const Dtd__Event *)item;
    const struct client_stream *s = p->stream;
    const struct client_event event = {.id = m->id,
                                       .wall_ms = m->wall_ms,
                                       .epoch = m->has_epoch ? m->epoch : 0,
                                       .step = m->has_step ? m->step : -1,
                                       .type = m->type,
                                       .job = m->job ? m->job : "",
                                       .name = m->name ? m->name : "",
                                       .node = m->node ? m->node : "",
                                       .text = m->text};
    if (s->event && !s->event(s->arg, &event))
        stream_cancel(p);
    return OK;
}

err_t client_events(struct client *c, const char *job, bool follow, uint64_t after, int64_t age_ms,
                    const struct client_stream *stream, struct why *why)
{
    Dtd__EventsRequest q = DTD__EVENTS_REQUEST__INIT;
    q.job = (char *)job;
    q.has_follow = q.has_after = true;
    q.follow = follow;
    q.after = after;
    q.has_age_ms = q.has_since_ms = age_ms > 0;
    q.age_ms = age_ms;
    q.since_ms = clock_wall_ms() - age_ms; /* for a leader of an older version, which does not know ages */
    return call_stream(c, CLIENT_EVENTS, &q.base, forward_event, stream, why);
}

static err_t forward_usage(struct pending_call *p, const ProtobufCMessage *item)
{
    struct usage_sample sample;
    const struct client_stream *s = p->stream;
    err_t err = convert_usage((const Dtd__UsageSample *)item, &sample);
    if (err)
        return err;
    if (s->usage && !s->usage(s->arg, &sample))
        stream_cancel(p);
    usage_sample_fini(&sample);
    return OK;
}

err_t client_usage(struct client *c, const char *job, bool follow, int64_t from_ms, const struct client_stream *stream,
                   struct why *why)
{
    Dtd__UsageRequest q = DTD__USAGE_REQUEST__INIT;
    q.job = (char *)job;
    q.has_follow = q.has_from_ms = true;
    q.follow = follow;
    q.from_ms = from_ms;
    return call_stream(c, CLIENT_USAGE, &q.base, forward_usage, stream, why);
}

err_t client_usage_newest(struct client *c, const char *job, const struct client_stream *stream, struct why *why)
{
    Dtd__UsageRequest q = DTD__USAGE_REQUEST__INIT;
    q.job = (char *)job;
    q.has_newest = q.newest = true;
    return call_stream(c, CLIENT_USAGE, &q.base, forward_usage, stream, why);
}

err_t client_watch(struct client *c, const char *job, const struct client_stream *stream, struct why *why)
{
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    Dtd__LogsRequest logs = DTD__LOGS_REQUEST__INIT;
    struct why logs_why = {0};
    q.job = logs.job = (char *)job;
    logs.has_follow = logs.follow = true;
    struct pending_call p = {.client = c, .on_reply = forward_watch_item, .stream = stream, .why = why};
    struct pending_call l = {.client = c, .on_reply = forward_log, .stream = stream, .why = &logs_why};
    err_t err = call_streams(&p, CLIENT_WATCH, &q.base, stream->log ? &l : NULL, &logs.base);
    if (err && logs_why.text[0] && !p.err)
        why_set(why, err, "%s", logs_why.text);
    return err;
}
