/* A topic is what some pages of a user follow: the overview, which is requested once a second, or a job or its log,
 * which dtd-control streams (Client.Watch, Client.Logs). A log's topic has one stream, because each page chooses its
 * ranks and how many lines it begins with. Its news are frames, texts of server-sent events, that all its streams
 * share.
 *
 * A new stream begins with the newest state. A stream whose page reads too slowly for the ring of frames is closed
 * instead of buffered; the browser opens another one and asks for what it has missed. */
#include "client/web/web.h"

#include "client/convert.h"
#include "client/json.h"

#include "common/base/clock.h"
#include "common/rpc/field_codec.h"
#include "proto/client.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING 64
#define POLL_MS 1000
#define FLUSH_MS 200
#define LOG_BATCH_BYTES (32 << 10) /* of a frame; RING of them are more than the lines that a page begins with */
#define USAGE_RECENT_MS 60000      /* a window of the past minute is shown until the next one is complete */
#define BATCH_MAX 256              /* metrics in a frame; a job with more steps in FLUSH_MS gets several frames */

struct frame {
    int refs;
    size_t len;
    char text[];
};

struct topic {
    struct session *session;
    struct topic *next;
    char job[WEB_JOB_BYTES]; /* "": the overview */
    uint64_t ranks;          /* the call for the usage of the ranks of a job that is followed; 0: none */
    bool usage;              /* of the ranks of the job; false: its status and metrics */
    LIST_HEAD(, stream) streams;
    bool ended, closing;
    struct frame *ring[RING]; /* frame i is in ring[i % RING] */
    uint64_t n_frames;
    struct frame *newest; /* the state for a new stream; NULL: not known yet */
    uint64_t newest_at;   /* the frame after it */
    uv_timer_t timer;
    int outstanding; /* calls; the topic lives until they have ended */
    /* The overview. */
    json_t *node, *cluster, *jobs;
    char *last; /* without the time */
    int polls;
    /* A job, or its log. */
    uint64_t watch; /* 0: no call */
    json_t *metrics;
    bool is_log;
    int rank; /* -1: all */
    int64_t lines;
    json_t *chunks; /* [[rank, text], ..] */
    size_t chunk_bytes;
};

struct stream {
    LIST_ENTRY(stream) entry;
    struct topic *topic; /* NULL: it has ended */
    struct MHD_Connection *connection;
    bool fresh, waits;
    uint64_t at; /* the next frame */
    struct frame *frame;
    size_t sent;
};

/* ---- frames ---- */

static void frame_drop(struct frame *f)
{
    if (f && --f->refs == 0)
        free(f);
}

static struct frame *frame_of(const char *event, const char *data)
{
    size_t len = strlen(event) + strlen(data) + strlen("event: \ndata: \n\n");
    struct frame *f = malloc(sizeof(*f) + len + 1);
    if (!f)
        return NULL;
    f->refs = 1;
    f->len = len;
    snprintf(f->text, len + 1, "event: %s\ndata: %s\n\n", event, data);
    return f;
}

static struct frame *frame_of_json(const char *event, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    struct frame *f = text ? frame_of(event, text) : NULL;
    free(text);
    return f;
}

static void wake(struct topic *t)
{
    struct stream *s;
    LIST_FOREACH(s, &t->streams, entry)
    if (s->waits) {
        s->waits = false;
        http_resume(session_web(t->session), s->connection);
    }
}

/* Takes over `f`; NULL (no memory): the streams miss this news, and get the next. */
static void publish(struct topic *t, struct frame *f)
{
    if (!f)
        return;
    struct frame **slot = &t->ring[t->n_frames++ % RING];
    frame_drop(*slot);
    *slot = f;
    wake(t);
}

static void publish_state(struct topic *t, struct frame *f)
{
    if (!f)
        return;
    frame_drop(t->newest);
    t->newest = f;
    f->refs++;
    publish(t, f);
    t->newest_at = t->n_frames;
}

/* ---- life ---- */

static void timer_closed(uv_handle_t *h)
{
    struct topic *t = h->data;
    for (int i = 0; i < RING; i++)
        frame_drop(t->ring[i]);
    frame_drop(t->newest);
    json_decref(t->node);
    json_decref(t->cluster);
    json_decref(t->jobs);
    json_decref(t->metrics);
    json_decref(t->chunks);
    free(t->last);
    free(t);
}

static void free_if_idle(struct topic *t)
{
    if (t->closing && !t->outstanding && !uv_is_closing((uv_handle_t *)&t->timer))
        uv_close((uv_handle_t *)&t->timer, timer_closed);
}

err_t topic_open(struct session *s, const char *job, struct topic **ret)
{
    struct topic *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    t->session = s;
    t->usage = strncmp(job, WEB_USAGE, strlen(WEB_USAGE)) == 0;
    snprintf(t->job, sizeof(t->job), "%s", job + (t->usage ? strlen(WEB_USAGE) : 0));
    LIST_INIT(&t->streams);
    uv_timer_init(&session_web(s)->loop, &t->timer);
    t->timer.data = t;
    *ret = t;
    return OK;
}

static void end_streams(struct topic *t)
{
    struct stream *s;
    while ((s = LIST_FIRST(&t->streams))) {
        LIST_REMOVE(s, entry);
        s->topic = NULL;
        if (s->waits)
            http_resume(session_web(t->session), s->connection);
        s->waits = false;
    }
}

void topic_close(struct topic *t)
{
    t->closing = true;
    end_streams(t);
    uv_timer_stop(&t->timer);
    if (t->watch)
        session_cancel(t->session, t->watch);
    if (t->ranks)
        session_cancel(t->session, t->ranks);
    free_if_idle(t);
}

bool topic_is(const struct topic *t, const char *job)
{
    const bool usage = strncmp(job, WEB_USAGE, strlen(WEB_USAGE)) == 0;
    return !t->is_log && usage == t->usage && strcmp(t->job, job + (usage ? strlen(WEB_USAGE) : 0)) == 0;
}

struct topic *topic_next(const struct topic *t)
{
    return t->next;
}

void topic_link(struct topic *t, struct topic *next)
{
    t->next = next;
}

bool topic_unused(const struct topic *t)
{
    return LIST_EMPTY(&t->streams);
}

void topic_keep_alive(struct topic *t)
{
    struct frame *f = malloc(sizeof(*f) + 4);
    if (!f)
        return;
    *f = (struct frame){.refs = 1, .len = 3};
    memcpy(f->text, ":\n\n", 4);
    publish(t, f);
}

/* ---- the overview ---- */

static struct frame *overview_frame(struct topic *t)
{
    json_t *all = json_pack("{s:I, s:s, s:b, s:o}", "at", (json_int_t)clock_wall_ms(), "user", session_user(t->session),
                            "system", session_system(t->session), "jobs", json_incref(t->jobs));
    if (all && t->node)
        json_object_set(all, "node", t->node);
    if (all && t->cluster)
        json_object_set(all, "cluster", t->cluster);
    struct frame *f = frame_of_json("overview", all);
    json_decref(all);
    return f;
}

/* The answers of one round are there: they are news if anything differs from the last round. */
static void overview_done(struct topic *t)
{
    if (!t->jobs)
        return;
    json_t *parts = json_pack("[O?O?O]", t->node, t->cluster, t->jobs);
    char *text = parts ? json_dumps(parts, JSON_COMPACT) : NULL;
    json_decref(parts);
    if (!text || (t->last && t->newest && strcmp(text, t->last) == 0)) {
        free(text);
        return;
    }
    free(t->last);
    t->last = text;
    publish_state(t, overview_frame(t));
}

static void keep(json_t **slot, json_t *value)
{
    json_decref(*slot);
    *slot = value;
}

static void part_ended(struct topic *t)
{
    t->outstanding--;
    t->polls--;
    if (t->closing)
        free_if_idle(t);
    else if (t->polls == 0)
        overview_done(t);
}

static void node_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    struct client_node node;
    if (r->reply && !t->closing && !convert_node((const Dtd__NodeReply *)r->reply, &node)) {
        keep(&t->node, json_of_node(&node));
        client_node_fini(&node);
    }
    if (r->last)
        part_ended(t);
}

static void cluster_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    struct client_cluster c;
    if (r->reply && !t->closing && !convert_cluster((const Dtd__ClusterReport *)r->reply, &c)) {
        keep(&t->cluster, json_of_cluster(&c));
        client_cluster_fini(&c);
    }
    if (r->last)
        part_ended(t);
}

static void jobs_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    struct client_job *jobs;
    int n;
    if (r->reply && !t->closing && !convert_jobs((const Dtd__JobList *)r->reply, &jobs, &n)) {
        json_t *list = json_array();
        for (int i = 0; i < n; i++)
            json_array_append_new(list, json_of_job(&jobs[i]));
        client_jobs_free(jobs, n);
        keep(&t->jobs, list);
    }
    if (r->last)
        part_ended(t);
}

static void overview_poll(uv_timer_t *timer)
{
    static const struct {
        enum rpc_method_id method;
        rpc_callback cb;
    } parts[] = {{CLIENT_NODE, node_answered}, {CLIENT_CLUSTER_STATUS, cluster_answered}, {CLIENT_LIST, jobs_answered}};
    struct topic *t = timer->data;
    Dtd__Empty q = DTD__EMPTY__INIT;
    if (t->polls) /* dtd-control is slower than a second: the next round waits */
        return;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!session_call(t->session, parts[i].method, &q.base, parts[i].cb, t, NULL)) {
            t->polls++;
            t->outstanding++;
        }
}

/* ---- a job ---- */

static void flush(struct topic *t)
{
    if (t->metrics)
        publish(t, frame_of_json("metrics", t->metrics));
    if (t->chunks)
        publish(t, frame_of_json("log", t->chunks));
    keep(&t->metrics, NULL);
    keep(&t->chunks, NULL);
    t->chunk_bytes = 0;
}

static void flush_due(uv_timer_t *timer)
{
    flush(timer->data);
}

static void take_metric(struct topic *t, const Dtd__Metric *m)
{
    const struct metric metric = metric_decode(m);
    if (!t->metrics)
        t->metrics = json_array();
    json_array_append_new(t->metrics, json_of_metric(&metric));
    if (json_array_size(t->metrics) >= BATCH_MAX)
        flush(t);
    else if (!uv_is_active((uv_handle_t *)&t->timer))
        uv_timer_start(&t->timer, flush_due, FLUSH_MS, 0);
}

static void take_status(struct topic *t, const Dtd__JobStatus *s)
{
    struct client_job job;
    if (convert_job(s, &job))
        return;
    flush(t); /* a status follows the metrics that came before it */
    json_t *value = json_of_job(&job);
    publish_state(t, frame_of_json("status", value));
    json_decref(value);
    t->ended = client_job_ended(&job);
    client_job_fini(&job);
}

/* The call has ended: with the job, or because of an error. */
static void call_ended(struct topic *t, const struct rpc_result *r)
{
    t->watch = 0;
    t->outstanding--;
    if (t->closing) {
        free_if_idle(t);
        return;
    }
    flush(t);
    if (t->ended && !r->err)
        (t->usage ? publish_state : publish)(t, frame_of("end", "{}")); /* a status itself shows that it is the last */
    else if (r->err && r->err != ERR_CLOSED)
        topic_down(t, r->text[0] ? r->text : err_text(r->err));
}

static void watch_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    const Dtd__WatchItem *item = (const Dtd__WatchItem *)r->reply;
    if (item && !t->closing && item->metric)
        take_metric(t, item->metric);
    if (item && !t->closing && item->status)
        take_status(t, item->status);
    if (r->last)
        call_ended(t, r);
}

/* ---- the usage of its ranks ---- */

/* The first frame of a stream is the newest window; a page gets earlier ones by GET /api/jobs/ID/usage. */
static void usage_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    struct usage_sample s;
    if (r->reply && !t->closing && convert_usage((const Dtd__UsageSample *)r->reply, &s) == OK) {
        json_t *value = json_of_usage(&s);
        publish_state(t, frame_of_json("usage", value));
        json_decref(value);
        usage_sample_fini(&s);
    }
    if (!r->last)
        return;
    t->ended = !r->err;
    call_ended(t, r);
}

/* The stream of a job has it too, so that a page needs one connection for both. */
static void ranks_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    struct usage_sample s;
    if (r->reply && !t->closing && convert_usage((const Dtd__UsageSample *)r->reply, &s) == OK) {
        json_t *value = json_of_usage(&s);
        publish(t, frame_of_json("usage", value));
        json_decref(value);
        usage_sample_fini(&s);
    }
    if (!r->last)
        return;
    t->ranks = 0;
    t->outstanding--;
    if (t->closing)
        free_if_idle(t);
}

/* ---- the log of a job ---- */

static void take_chunk(struct topic *t, const Dtd__LogChunk *m)
{
    if (!t->chunks)
        t->chunks = json_array();
    json_array_append_new(t->chunks,
                          json_pack("[i, o]", (int)m->rank, json_of_text((const char *)m->text.data, m->text.len)));
    t->chunk_bytes += m->text.len;
    if (t->chunk_bytes >= LOG_BATCH_BYTES)
        flush(t);
    else if (!uv_is_active((uv_handle_t *)&t->timer))
        uv_timer_start(&t->timer, flush_due, FLUSH_MS, 0);
}

static void log_answered(void *arg, const struct rpc_result *r)
{
    struct topic *t = arg;
    const Dtd__LogChunk *chunk = (const Dtd__LogChunk *)r->reply;
    if (chunk && !t->closing)
        take_chunk(t, chunk);
    if (!r->last)
        return;
    t->ended = !r->err;
    call_ended(t, r);
}

/* Each call begins with the last lines again. */
static void log_start(struct topic *t)
{
    Dtd__LogsRequest q = DTD__LOGS_REQUEST__INIT;
    q.job = t->job;
    q.has_rank = q.has_follow = q.follow = q.has_tail_lines = true;
    q.rank = t->rank;
    q.tail_lines = t->lines;
    if (t->watch || session_call(t->session, CLIENT_LOGS, &q.base, log_answered, t, &t->watch))
        return;
    t->outstanding++;
    publish(t, frame_of("begin", "{}"));
}

void topic_follow_log(struct topic *t, int rank, int64_t lines)
{
    t->is_log = true;
    t->rank = rank;
    t->lines = lines;
}

/* ---- calls that stream ---- */

static void watch_start(struct topic *t)
{
    if (t->is_log) {
        log_start(t);
        return;
    }
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    Dtd__UsageRequest u = DTD__USAGE_REQUEST__INIT;
    q.job = u.job = t->job;
    u.has_follow = u.follow = u.has_from_ms = true;
    u.from_ms = clock_wall_ms() - USAGE_RECENT_MS;
    if (t->watch)
        return;
    err_t err = t->usage ? session_call(t->session, CLIENT_USAGE, &u.base, usage_answered, t, &t->watch)
                         : session_call(t->session, CLIENT_WATCH, &q.base, watch_answered, t, &t->watch);
    t->outstanding += !err;
    if (!err && !t->usage && !t->ranks)
        t->outstanding += !session_call(t->session, CLIENT_USAGE, &u.base, ranks_answered, t, &t->ranks);
}

/* ---- the session's connection ---- */

void topic_up(struct topic *t)
{
    free(t->last);
    t->last = NULL; /* after a loss the same state is news */
    if (t->job[0])
        watch_start(t);
    else
        uv_timer_start(&t->timer, overview_poll, 0, POLL_MS);
}

void topic_down(struct topic *t, const char *text)
{
    json_t *value = json_pack("{s:o}", "error", json_of_text(text, strlen(text)));
    publish(t, frame_of_json("lost", value));
    json_decref(value);
    if (!t->job[0])
        uv_timer_stop(&t->timer);
}

/* ---- streams ---- */

err_t stream_open(struct topic *t, struct MHD_Connection *connection, struct stream **ret)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    *s = (struct stream){.topic = t, .connection = connection, .fresh = true, .at = t->is_log ? 0 : t->n_frames};
    LIST_INSERT_HEAD(&t->streams, s, entry);
    if (t->job[0] && !t->ended) /* the last call may have failed */
        watch_start(t);
    *ret = s;
    return OK;
}

void stream_close(struct stream *s)
{
    if (s->topic)
        LIST_REMOVE(s, entry);
    frame_drop(s->frame);
    free(s);
}

/* The frame to send after the last one; NULL: there is none now. */
static struct frame *next_frame(struct stream *s)
{
    struct topic *t = s->topic;
    struct frame *f = NULL;
    if (s->fresh && t->newest) {
        f = t->newest;
        /* What followed it, such as the end, is news for this stream as well. */
        s->at = t->n_frames - t->newest_at < RING ? t->newest_at : t->n_frames;
    } else if (s->at < t->n_frames) {
        f = t->ring[s->at++ % RING];
    }
    s->fresh = s->fresh && !t->newest;
    if (f)
        f->refs++;
    return f;
}

ssize_t stream_read(struct stream *s, char *ret, size_t max)
{
    if (!s->topic || s->topic->n_frames - s->at > RING)
        return -1;
    if (s->frame && s->sent == s->frame->len) {
        frame_drop(s->frame);
        s->frame = NULL;
    }
    if (!s->frame) {
        s->frame = next_frame(s);
        s->sent = 0;
    }
    if (!s->frame) {
        s->waits = true;
        return 0;
    }
    size_t n = s->frame->len - s->sent < max ? s->frame->len - s->sent : max;
    memcpy(ret, s->frame->text + s->sent, n);
    s->sent += n;
    return (ssize_t)n;
}
