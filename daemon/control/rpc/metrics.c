/* Adapter for the streams Metrics and Watch.
 *
 *   request -> (Metrics only: a thread of the pool `parses` reads the file) -> pump: rows, then the status -> follow ->
 * end
 *
 * `rows` holds the rows that have not been sent yet. Rows that arrive while the thread reads the file are kept in
 * `fresh`. When the connection's output queue is full, pump stops; it is called again when the queue has drained.
 *
 * A file of a long job has millions of rows. They are in memory until the client has received them, so a user may have
 * only a few such calls at a time (watch_loads). A call for the last rows, or for a curve in few points, has only those
 * in memory. For curves, rpc_curves_tick extends the curve files while jobs run. */
#include "daemon/control/job/curve.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/status.h"

#include "common/base/log.h"
#include "common/rpc/field_codec.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Bounds the memory for one user's calls; a script that asks for all of a user's jobs at once needs fewer. */
#define LOADS_PER_USER 16
/* Bounds one turn of the loop, since a fast client may keep the queue empty; to encode a row takes some 5 us. */
#define ROWS_PER_TURN 512

struct watch {
    struct watch *next;
    struct rpc_server *server;
    struct job *job;
    struct rpc_call *call; /* NULL: the client has gone */
    bool metrics;          /* the method is Metrics; false: Watch */
    bool follow;
    bool changed; /* the status has to be sent */
    bool loading;
    int64_t from_step, max_points, last; /* at most one is above 0 */
    uint32_t uid;                        /* the caller */
    bool held;                           /* in the server's watch_loads */
    LIST_ENTRY(watch) held_link;
    struct metric_points points;    /* to be sent first, starting with point `at_point` */
    struct metric_rows rows, fresh; /* rows: to be sent, starting with row `at` */
    size_t at, at_point;
    /* used by the thread while `loading` */
    struct pool_task task;
    atomic_bool stop; /* the rows are not needed any more */
    char *path;
    struct buf more;
    struct metric_rows loaded;
    struct metric_points loaded_points;
    err_t err;
};

/* Detaches the watch from its job, which may be freed while the thread still reads. */
static void watch_part(struct watch *w)
{
    for (struct watch **at = w->job ? job_watches(w->job) : NULL; at && *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    w->job = NULL;
}

/* The rows of the file have been sent, or will not be. */
static void watch_release(struct watch *w)
{
    if (!w->held)
        return;
    LIST_REMOVE(w, held_link);
    w->held = false;
    free(w->rows.row);
    free(w->points.point);
    w->rows = (struct metric_rows){0};
    w->points = (struct metric_points){0};
    w->at_point = 0;
}

static void watch_free(struct watch *w)
{
    watch_part(w);
    watch_release(w);
    free(w->rows.row);
    free(w->points.point);
    free(w->fresh.row);
    free(w->loaded.row);
    free(w->loaded_points.point);
    free(w->path);
    buf_fini(&w->more);
    free(w);
}

static void watch_gone(void *arg)
{
    struct watch *w = arg;
    w->call = NULL;
    atomic_store(&w->stop, true);
    if (!w->loading)
        watch_free(w);
}

/* ---- sending ---- */

static err_t send_row(struct watch *w, const struct metric *row)
{
    Dtd__Metric m;
    Dtd__WatchItem item = DTD__WATCH_ITEM__INIT;
    err_t err = metric_encode(row, &m);
    item.metric = &m;
    err = err ? err : rpc_item(w->call, w->metrics ? &m.base : &item.base);
    fields_encoded_fini(&m.base);
    return err;
}

static err_t send_point(struct watch *w, const struct metric_point *p)
{
    struct metric_point_message m;
    err_t err = metric_point_encode(p, &m);
    err = err ? err : rpc_item(w->call, &m.msg.base);
    fields_encoded_fini(&m.msg.base);
    return err;
}

static err_t send_status(struct watch *w)
{
    struct job_status s;
    Dtd__WatchItem item = DTD__WATCH_ITEM__INIT;
    err_t err = job_status_fill(&s, w->server, w->job, true);
    if (err)
        return err;
    item.status = &s.msg;
    err = rpc_item(w->call, &item.base);
    job_status_fini(&s);
    return err;
}

static void pump(void *arg)
{
    struct watch *w = arg;
    err_t err = OK;
    if (w->loading)
        return;
    for (int n = 0; !err && w->at_point + w->at < w->points.n + w->rows.n; n++) {
        const bool is_point = w->at_point < w->points.n;
        err = n >= ROWS_PER_TURN ? ERR_LIMIT
              : is_point         ? send_point(w, &w->points.point[w->at_point])
                                 : send_row(w, &w->rows.row[w->at]);
        *(is_point ? &w->at_point : &w->at) += !err;
    }
    if (w->at == w->rows.n && w->at_point == w->points.n) {
        w->at = w->rows.n = 0;
        watch_release(w);
    }
    if (!err && w->changed) {
        err = send_status(w);
        w->changed = err != OK;
    }
    if (err == ERR_LIMIT) {
        rpc_call_on_drain(w->call, pump, w);
        return;
    }
    if (err || !w->follow || job_over(w->job)) {
        struct rpc_call *call = w->call;
        watch_free(w);
        if (err)
            rpc_fail(call, err, "%s", err_text(err));
        else
            rpc_end(call);
    }
}

void rpc_watch_changed(struct job *j)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        next = w->next;
        w->changed = !w->metrics;
        if (w->call)
            pump(w);
    }
    rpc_usage_changed(j);
}

void rpc_watch_metric(struct job *j, const struct metric *row)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        next = w->next;
        if (!w->call || !w->follow || row->step < w->from_step)
            continue;
        if (metric_rows_add(w->loading ? &w->fresh : &w->rows, row))
            log_error("metric not forwarded step=%lld", (long long)row->step);
        pump(w);
    }
}

void rpc_watch_forget(struct job *j)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        struct rpc_call *call = w->call;
        next = w->next;
        w->call = NULL;
        if (call) {
            rpc_call_on_cancel(call, NULL, NULL);
            rpc_fail(call, ERR_AGAIN, "another node is the leader now: try again");
        }
        atomic_store(&w->stop, true);
        if (w->loading)
            watch_part(w);
        else
            watch_free(w);
    }
}

/* ---- reading ---- */

static struct watch *watch_of(struct pool_task *task)
{
    return (struct watch *)((char *)task - offsetof(struct watch, task));
}

static void load_run(struct pool_task *task)
{
    struct watch *w = watch_of(task);
    w->err = atomic_load(&w->stop) ? ERR_CANCELED
             : w->max_points       ? curve_load(w->path, &w->more, w->max_points, &w->stop, &w->loaded_points)
             : w->last             ? metrics_load_last(w->path, &w->more, w->last, &w->stop, &w->loaded)
                                   : metrics_load(w->path, &w->more, w->from_step, &w->stop, &w->loaded);
}

/* Appends the rows that arrived while the file was read, except those that were already in the file. */
static err_t add_fresh(struct watch *w)
{
    const struct metric last = w->rows.n     ? w->rows.row[w->rows.n - 1]
                               : w->points.n ? w->points.point[w->points.n - 1].last
                                             : (struct metric){.step = -1};
    err_t err = OK;
    for (size_t i = 0; i < w->fresh.n && !err; i++) {
        const struct metric *r = &w->fresh.row[i];
        bool known = r->epoch < last.epoch || (r->epoch == last.epoch && r->step <= last.step);
        if (!known)
            err = metric_rows_add(&w->rows, r);
    }
    w->fresh.n = 0;
    return err;
}

static void load_done(struct pool_task *task)
{
    struct watch *w = watch_of(task);
    w->loading = false;
    if (!w->call) {
        watch_free(w);
        return;
    }
    err_t err = w->err;
    if (!err) {
        w->rows = w->loaded;
        w->loaded = (struct metric_rows){0};
        w->points = w->loaded_points;
        w->loaded_points = (struct metric_points){0};
        err = add_fresh(w);
    }
    if (err) {
        struct rpc_call *call = w->call;
        watch_free(w);
        rpc_fail(call, err, "metrics: %s", err_text(err));
        return;
    }
    pump(w);
}

/* ---- requests ---- */

static int loads_of(const struct rpc_server *server, uint32_t uid)
{
    const struct watch *w;
    int n = 0;
    LIST_FOREACH(w, &server->watch_loads, held_link)
    n += w->uid == uid;
    return n;
}

static struct watch *watch_new(struct rpc_server *server, struct job *j, struct rpc_call *call)
{
    struct watch *w = calloc(1, sizeof(*w));
    if (!w) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return NULL;
    }
    w->server = server;
    w->job = j;
    w->call = call;
    w->uid = rpc_caller_uid(call);
    w->next = *job_watches(j);
    *job_watches(j) = w;
    rpc_call_on_cancel(call, watch_gone, w);
    return w;
}

void rpc_client_watch(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct job *j = rpc_client_job_to_see(server, call, ((const Dtd__JobRequest *)request)->job);
    struct watch *w = j ? watch_new(server, j, call) : NULL;
    if (!w)
        return;
    w->follow = w->changed = true;
    pump(w);
}

static bool is_one_part(const Dtd__MetricsRequest *m)
{
    const int parts = (m->has_from_step && m->from_step > 0) + m->has_points + m->has_last;
    return parts <= 1 && (!m->has_points || (m->points >= 1 && m->points <= CURVE_POINTS_MAX)) &&
           (!m->has_last || m->last >= 1);
}

void rpc_client_metrics(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__MetricsRequest *m = (const Dtd__MetricsRequest *)request;
    if (!is_one_part(m)) {
        rpc_fail(call, ERR_INVALID, "a request for metrics has one of: from_step, points (1 to %d), last (at least 1)",
                 CURVE_POINTS_MAX);
        return;
    }
    struct job *j = rpc_client_job_to_see(server, call, m->job);
    struct watch *w = j ? watch_new(server, j, call) : NULL;
    if (!w)
        return;
    w->metrics = true;
    w->follow = m->has_follow && m->follow;
    w->from_step = m->has_from_step ? m->from_step : 0;
    w->max_points = m->has_points ? m->points : 0;
    w->last = m->has_last ? m->last : 0;
    const struct metrics *metrics = job_view_of(j).metrics;
    w->path = strdup(metrics->path);
    err_t err = w->path ? buf_append(&w->more, metrics->pending.data, metrics->pending.len) : ERR_NOMEM;
    if (!err && loads_of(server, w->uid) >= LOADS_PER_USER)
        err = ERR_BUSY;
    w->task = (struct pool_task){.run = load_run, .done = load_done};
    err = err ? err : pool_add(&server->parses, &w->task, w->uid);
    if (err) {
        watch_free(w);
        rpc_fail(call, err, "metrics: %s%s", err_text(err),
                 err == ERR_BUSY ? ": this user has as many calls for metrics as it may; end or await one of them"
                                 : "");
        return;
    }
    w->loading = w->held = true;
    LIST_INSERT_HEAD(&server->watch_loads, w, held_link);
}

/* ---- curve files ---- */

struct curve_task {
    struct pool_task task;
    struct rpc_server *server;
    err_t err;
    char path[];
};

static struct curve_task *curve_of(struct pool_task *task)
{
    return (struct curve_task *)((char *)task - offsetof(struct curve_task, task));
}

static void curve_run(struct pool_task *task)
{
    struct curve_task *t = curve_of(task);
    t->err = curve_update(t->path, NULL);
}

/* A curve file is not needed: a call for points makes them without it. */
static void curve_done(struct pool_task *task)
{
    struct curve_task *t = curve_of(task);
    if (t->err)
        log_warn("curve not extended path=%s error=%s", t->path, err_text(t->err));
    t->server->extends_curve = false;
    free(t);
}

static void curve_start(struct rpc_server *server, struct job *j)
{
    const struct job_view v = job_view_of(j);
    const size_t bytes = strlen(v.metrics->path) + 1;
    struct curve_task *t = calloc(1, sizeof(*t) + bytes);
    if (!t)
        return;
    *t = (struct curve_task){.task = {.run = curve_run, .done = curve_done}, .server = server};
    memcpy(t->path, v.metrics->path, bytes);
    server->extends_curve = pool_add(&server->parses, &t->task, v.uid) == OK;
    if (!server->extends_curve)
        free(t);
}

/* One at a time, so that most threads of the pool are for calls. */
void rpc_curves_tick(struct rpc_server *server)
{
    for (struct job *j = server->jobs->head; j && !server->extends_curve; j = job_next(j))
        if (job_curve_due(j))
            curve_start(server, j);
}
