/* Adapter for the streams Metrics and Watch.
 *
 *   request -> (Metrics only: a thread of the pool `parses` reads the file) -> pump: rows, then the status -> follow ->
 * end
 *
 * `rows` holds the rows that have not been sent yet. Rows that arrive while the thread reads the file are kept in
 * `fresh`. When the connection's output queue is full, pump stops; it is called again when the queue has drained.
 *
 * A file of a long job has millions of rows. They are in memory until the client has received them, so a user may have
 * only a few such calls at a time (watch_loads). */
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
    int64_t from_step;
    uint32_t uid; /* the caller */
    bool held;    /* in the server's watch_loads */
    LIST_ENTRY(watch) held_link;
    struct metric_rows rows, fresh; /* rows: to be sent, starting with row `at` */
    size_t at;
    /* used by the thread while `loading` */
    struct pool_task task;
    atomic_bool stop; /* nobody needs the rows any more */
    char *path;
    struct buf more;
    struct metric_rows loaded;
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
    w->rows = (struct metric_rows){0};
}

static void watch_free(struct watch *w)
{
    watch_part(w);
    watch_release(w);
    free(w->rows.row);
    free(w->fresh.row);
    free(w->loaded.row);
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
    for (int n = 0; !err && w->at < w->rows.n; n++) {
        err = n < ROWS_PER_TURN ? send_row(w, &w->rows.row[w->at]) : ERR_LIMIT;
        w->at += !err;
    }
    if (w->at == w->rows.n) {
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
    w->err = atomic_load(&w->stop) ? ERR_CANCELED : metrics_load(w->path, &w->more, w->from_step, &w->stop, &w->loaded);
}

/* Appends the rows that arrived while the file was read, except those that were already in the file. */
static err_t add_fresh(struct watch *w)
{
    const struct metric last = w->rows.n ? w->rows.row[w->rows.n - 1] : (struct metric){.step = -1};
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
    struct job *j = rpc_client_job(server, call, ((const Dtd__JobRequest *)request)->job);
    struct watch *w = j ? watch_new(server, j, call) : NULL;
    if (!w)
        return;
    w->follow = w->changed = true;
    pump(w);
}

void rpc_client_metrics(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__MetricsRequest *m = (const Dtd__MetricsRequest *)request;
    struct job *j = rpc_client_job(server, call, m->job);
    struct watch *w = j ? watch_new(server, j, call) : NULL;
    if (!w)
        return;
    w->metrics = true;
    w->follow = m->has_follow && m->follow;
    w->from_step = m->has_from_step ? m->from_step : 0;
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
