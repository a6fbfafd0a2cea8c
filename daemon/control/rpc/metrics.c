/* Adapter for the streams Metrics and Watch.
 *
 *   request -> (Metrics only: a thread of libuv's pool reads the file) -> pump: rows, then the status -> follow -> end
 *
 * `rows` holds the rows that have not been sent yet. Rows that arrive while the thread reads the file are kept in
 * `fresh`. When the connection's output queue is full, pump stops; it is called again when the queue has drained. */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/status.h"

#include "common/base/log.h"
#include "common/rpc/field_codec.h"

#include <stdlib.h>
#include <string.h>

struct watch {
    struct watch *next;
    struct job *job;
    struct rpc_call *call; /* NULL: the client has gone */
    bool metrics;          /* the method is Metrics; false: Watch */
    bool follow;
    bool changed; /* the status has to be sent */
    bool loading;
    int64_t from_step;
    struct metric_rows rows, fresh; /* rows: to be sent, starting with row `at` */
    size_t at;
    /* used by the thread while `loading` */
    uv_work_t work;
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

static void watch_free(struct watch *w)
{
    watch_part(w);
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
    err_t err = job_status_fill(&s, w->job, true);
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
    while (!err && w->at < w->rows.n) {
        err = send_row(w, &w->rows.row[w->at]);
        w->at += !err;
    }
    if (w->at == w->rows.n)
        w->at = w->rows.n = 0;
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
        if (w->loading)
            watch_part(w);
        else
            watch_free(w);
    }
}

/* ---- reading ---- */

static void load_work(uv_work_t *work)
{
    struct watch *w = work->data;
    w->err = metrics_load(w->path, &w->more, w->from_step, &w->loaded);
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

static void load_done(uv_work_t *work, int status)
{
    struct watch *w = work->data;
    w->loading = false;
    if (!w->call) {
        watch_free(w);
        return;
    }
    err_t err = status ? ERR_CANCELED : w->err;
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

static struct watch *watch_new(struct job *j, struct rpc_call *call)
{
    struct watch *w = calloc(1, sizeof(*w));
    if (!w) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return NULL;
    }
    w->job = j;
    w->call = call;
    w->work.data = w;
    w->next = *job_watches(j);
    *job_watches(j) = w;
    rpc_call_on_cancel(call, watch_gone, w);
    return w;
}

void rpc_client_watch(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct job *j = rpc_client_job(owner, call, ((const Dtd__JobRequest *)request)->job);
    struct watch *w = j ? watch_new(j, call) : NULL;
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
    struct watch *w = j ? watch_new(j, call) : NULL;
    if (!w)
        return;
    w->metrics = true;
    w->follow = m->has_follow && m->follow;
    w->from_step = m->has_from_step ? m->from_step : 0;
    const struct metrics *metrics = job_view_of(j).metrics;
    w->path = strdup(metrics->path);
    err_t err = w->path ? buf_append(&w->more, metrics->pending.data, metrics->pending.len) : ERR_NOMEM;
    if (!err)
        err = err_from_errno(-uv_queue_work(server->loop, &w->work, load_work, load_done));
    if (err) {
        watch_free(w);
        rpc_fail(call, err, "metrics: %s", err_text(err));
        return;
    }
    w->loading = true;
}
