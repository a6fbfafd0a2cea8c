/* Adapter for the streams Metrics and Watch (watch.h). A Watch reads no file: it sends the status, and rows as they
 * come.
 *
 * A file of a long job has millions of rows. They are in memory until the client has received them, so a user may have
 * only a few such calls at a time. A call for the last rows, or for a curve in few points, has only those in memory.
 * For curves, rpc_curves_tick extends the curve files while jobs run. */
#include "daemon/control/job/curve.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/status.h"
#include "daemon/control/rpc/watch.h"

#include "common/base/log.h"
#include "common/rpc/field_codec.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Bounds the memory for one user's calls; a script that asks for all of a user's jobs at once needs fewer. */
#define LOADS_PER_USER 16
/* Bounds one turn of the loop, since a fast client may keep the queue empty; to encode a row takes some 5 us. */
#define ROWS_PER_TURN 512

struct metrics_watch {
    struct watch w;
    bool metrics;                        /* the method is Metrics; false: Watch */
    bool changed;                        /* the status has to be sent */
    int64_t from_step, max_points, last; /* at most one is above 0 */
    struct metric_points points;         /* to be sent first, starting with point `at_point` */
    struct metric_rows rows,
        fresh; /* rows: to be sent, starting with row `at`; fresh: they came while the thread read */
    size_t at, at_point;
    /* used by the thread while `loading` */
    struct metric_rows loaded;
    struct metric_points loaded_points;
};

static struct metrics_watch *rows_of(struct watch *w)
{
    return (struct metrics_watch *)w;
}

static void rows_release(struct watch *w)
{
    struct metrics_watch *m = rows_of(w);
    free(m->rows.row);
    free(m->points.point);
    m->rows = (struct metric_rows){0};
    m->points = (struct metric_points){0};
    m->at = m->at_point = 0;
}

static void rows_fini(struct watch *w)
{
    struct metrics_watch *m = rows_of(w);
    free(m->fresh.row);
    free(m->loaded.row);
    free(m->loaded_points.point);
}

/* ---- sending ---- */

static err_t send_row(struct metrics_watch *w, const struct metric *row)
{
    Dtd__Metric m;
    Dtd__WatchItem item = DTD__WATCH_ITEM__INIT;
    err_t err = metric_encode(row, &m);
    item.metric = &m;
    err = err ? err : rpc_item(w->w.call, w->metrics ? &m.base : &item.base);
    fields_encoded_fini(&m.base);
    return err;
}

static err_t send_point(struct metrics_watch *w, const struct metric_point *p)
{
    struct metric_point_message m;
    err_t err = metric_point_encode(p, &m);
    err = err ? err : rpc_item(w->w.call, &m.msg.base);
    fields_encoded_fini(&m.msg.base);
    return err;
}

static err_t send_status(struct metrics_watch *w)
{
    struct job_status s;
    Dtd__WatchItem item = DTD__WATCH_ITEM__INIT;
    err_t err = job_status_fill(&s, w->w.server, w->w.job, true);
    if (err)
        return err;
    item.status = &s.msg;
    err = rpc_item(w->w.call, &item.base);
    job_status_fini(&s);
    return err;
}

static err_t rows_send(struct watch *base)
{
    struct metrics_watch *w = rows_of(base);
    err_t err = OK;
    for (int n = 0; !err && w->at_point + w->at < w->points.n + w->rows.n; n++) {
        const bool is_point = w->at_point < w->points.n;
        err = n >= ROWS_PER_TURN ? ERR_LIMIT
              : is_point         ? send_point(w, &w->points.point[w->at_point])
                                 : send_row(w, &w->rows.row[w->at]);
        *(is_point ? &w->at_point : &w->at) += !err;
    }
    if (w->at == w->rows.n && w->at_point == w->points.n)
        watch_release(base);
    if (!err && w->changed) {
        err = send_status(w);
        w->changed = err != OK;
    }
    return err;
}

/* ---- reading ---- */

static err_t rows_load(struct watch *base)
{
    struct metrics_watch *w = rows_of(base);
    return w->max_points ? curve_load(base->path, &base->more, w->max_points, &base->stop, &w->loaded_points)
           : w->last     ? metrics_load_last(base->path, &base->more, w->last, &base->stop, &w->loaded)
                         : metrics_load(base->path, &base->more, w->from_step, &base->stop, &w->loaded);
}

/* Appends the rows that arrived while the file was read, except those that were already in the file. */
static err_t add_fresh(struct metrics_watch *w)
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

static err_t rows_loaded(struct watch *base)
{
    struct metrics_watch *w = rows_of(base);
    w->rows = w->loaded;
    w->loaded = (struct metric_rows){0};
    w->points = w->loaded_points;
    w->loaded_points = (struct metric_points){0};
    return add_fresh(w);
}

static const struct watch_kind metrics_kind = {
    .name = "metrics",
    .loads_per_user = LOADS_PER_USER,
    .load = rows_load,
    .loaded = rows_loaded,
    .send = rows_send,
    .release = rows_release,
    .fini = rows_fini,
};

/* ---- what is new ---- */

void rpc_watch_changed(struct job *j)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        next = w->next;
        if (w->kind == &metrics_kind)
            rows_of(w)->changed = !rows_of(w)->metrics;
        if (w->call)
            watch_pump(w);
    }
}

void rpc_watch_metric(struct job *j, const struct metric *row)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        struct metrics_watch *m = rows_of(w);
        next = w->next;
        if (w->kind != &metrics_kind || !w->call || !w->follow || row->step < m->from_step)
            continue;
        if (metric_rows_add(w->loading ? &m->fresh : &m->rows, row))
            log_error("metric not forwarded step=%lld", (long long)row->step);
        watch_pump(w);
    }
}

/* ---- requests ---- */

static struct metrics_watch *rows_new(struct rpc_server *server, struct rpc_call *call, const char *job)
{
    struct job *j = rpc_client_job_to_see(server, call, job);
    return j ? rows_of(watch_new(&metrics_kind, sizeof(struct metrics_watch), server, j, call)) : NULL;
}

void rpc_client_watch(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct metrics_watch *w = rows_new(owner, call, ((const Dtd__JobRequest *)request)->job);
    if (!w)
        return;
    w->w.follow = w->changed = true;
    watch_pump(&w->w);
}

static bool is_one_part(const Dtd__MetricsRequest *m)
{
    const int parts = (m->has_from_step && m->from_step > 0) + m->has_points + m->has_last;
    return parts <= 1 && (!m->has_points || (m->points >= 1 && m->points <= CURVE_POINTS_MAX)) &&
           (!m->has_last || m->last >= 1);
}

void rpc_client_metrics(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__MetricsRequest *m = (const Dtd__MetricsRequest *)request;
    if (!is_one_part(m)) {
        rpc_fail(call, ERR_INVALID, "a request for metrics has one of: from_step, points (1 to %d), last (at least 1)",
                 CURVE_POINTS_MAX);
        return;
    }
    struct metrics_watch *w = rows_new(owner, call, m->job);
    if (!w)
        return;
    w->metrics = true;
    w->w.follow = m->has_follow && m->follow;
    w->from_step = m->has_from_step ? m->from_step : 0;
    w->max_points = m->has_points ? m->points : 0;
    w->last = m->has_last ? m->last : 0;
    const struct metrics *metrics = job_view_of(w->w.job).metrics;
    watch_load(&w->w, metrics->path, buf_append(&w->w.more, metrics->pending.data, metrics->pending.len));
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
