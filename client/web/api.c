/* The requests of the page. Each becomes one call of dtd-control, whose answer goes back as JSON or text. Whether the
 * user may see a job is decided by dtd-control alone. */
#include "client/web/web.h"

#include "client/convert.h"
#include "client/export.h"
#include "client/json.h"

#include "common/rpc/field_codec.h"
#include "proto/client.pb-c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_DEFAULT 600
#define POINTS_MAX 5000
#define CSV_ROWS_MAX 100000 /* of a table for download; a longer job has rows that stand for several steps */
#define LINES_DEFAULT 1000
#define LINES_MAX 20000
#define LOG_BYTES_MAX (4 << 20)
#define TOKEN_BODY_MAX 512

/* ---- login ---- */

static void login_known(void *arg, enum session_state state, const char *text)
{
    struct request *r = arg;
    struct session *s = request_session(r);
    if (state != SESSION_IN || !s) {
        request_fail(r, state == SESSION_REFUSED ? ERR_DENIED : ERR_CLOSED, text);
        return;
    }
    request_answer_json(r, 200,
                        json_pack("{s:s, s:I, s:b, s:b}", "user", session_user(s), "uid", (json_int_t)session_uid(s),
                                  "system", session_system(s), "operator", session_is_operator(s)));
}

/* The token of the body; without a body, that of the cookie: dtd-web was restarted. */
static void serve_login(struct request *r)
{
    size_t len;
    const char *body = request_body(r, &len), *token = request_cookie(r);
    json_t *value = len && len <= TOKEN_BODY_MAX ? json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (len)
        token = json_string_value(json_object_get(value, "token"));
    struct web *w = request_web(r);
    struct session *s = NULL;
    err_t err = token && token[0] && strlen(token) < WEB_TOKEN_BYTES ? OK : ERR_DENIED;
    if (!err && !(s = session_find(w, token)))
        err = session_open(w, token, &s);
    if (!err && len)
        request_set_cookie(r, token);
    json_decref(value);
    if (!err)
        err = session_wait(s, login_known, r);
    if (err)
        request_fail(r, err, err == ERR_DENIED ? "log in with the address that `dtctl web` prints" : err_text(err));
}

static void serve_logout(struct request *r)
{
    request_set_cookie(r, NULL);
    request_answer_json(r, 200, json_object());
}

/* ---- usage of ranks ---- */

struct usage_lines {
    struct request *request;
    struct usage_sample *sample;
    int n, max; /* at `max` samples, neighbours become one */
};

static void usage_lines_free(struct usage_lines *l)
{
    for (int i = 0; i < l->n; i++)
        usage_sample_fini(&l->sample[i]);
    free(l->sample);
    free(l);
}

/* Neighbours of different epochs remain; if all are, the older half goes. */
static void usage_lines_halve(struct usage_lines *l)
{
    int n = 0;
    bool joined = false;
    for (int i = 0; i < l->n; i++) {
        if (joined || !n || !usage_sample_fits(&l->sample[n - 1], &l->sample[i])) {
            l->sample[n++] = l->sample[i];
            joined = false;
            continue;
        }
        usage_sample_join(&l->sample[n - 1], &l->sample[i]);
        usage_sample_fini(&l->sample[i]);
        joined = true;
    }
    l->n = n;
    for (int i = 0; n == l->max && i < n / 2; i++) {
        usage_sample_fini(&l->sample[i]);
        l->sample[i] = l->sample[n / 2 + i];
        l->n = n / 2;
    }
}

static void usage_lines_answer(struct usage_lines *l)
{
    struct buf text = {0};
    err_t err = OK;
    for (int i = 0; !err && i < l->n; i++)
        err = usage_line_format(&l->sample[i], &text);
    if (!err)
        request_answer(l->request, 200, "application/x-ndjson", (char *)text.data, text.len);
    else
        request_fail(l->request, err, err_text(err));
    if (err)
        buf_fini(&text);
}

static void usage_answered(void *arg, const struct rpc_result *r)
{
    struct usage_lines *l = arg;
    if (r->reply && l->n == l->max)
        usage_lines_halve(l);
    if (r->reply && convert_usage((const Dtd__UsageSample *)r->reply, &l->sample[l->n]) == OK)
        l->n++;
    if (!r->last)
        return;
    if (r->err)
        request_fail(l->request, r->err, r->text);
    else
        usage_lines_answer(l);
    usage_lines_free(l);
}

static void serve_usage(struct request *r)
{
    struct usage_lines *l = calloc(1, sizeof(*l));
    const int max = 2 * (int)request_number(r, "points", 10, POINTS_MAX, POINTS_DEFAULT);
    Dtd__UsageRequest q = DTD__USAGE_REQUEST__INIT;
    q.job = (char *)request_job(r);
    q.has_from_ms = true;
    q.from_ms = request_number(r, "from_ms", 0, INT64_MAX, 0);
    if (l)
        *l = (struct usage_lines){.request = r, .sample = calloc((size_t)max, sizeof(*l->sample)), .max = max};
    err_t err =
        l && l->sample ? session_call(request_session(r), CLIENT_USAGE, &q.base, usage_answered, l, NULL) : ERR_NOMEM;
    if (!err)
        return;
    request_fail(r, err, err_text(err));
    if (l)
        usage_lines_free(l);
}

/* ---- streams ---- */

static void follow(struct request *r, const char *job)
{
    struct topic *t = session_topic(request_session(r), job);
    if (t)
        request_follow(r, t);
    else
        request_fail(r, ERR_NOMEM, err_text(ERR_NOMEM));
}

static void serve_events(struct request *r)
{
    follow(r, "");
}

static void serve_job_events(struct request *r)
{
    follow(r, request_job(r));
}

static void serve_log_events(struct request *r)
{
    struct topic *t =
        session_log_topic(request_session(r), request_job(r), (int)request_number(r, "rank", -1, INT32_MAX, -1),
                          request_number(r, "lines", 1, LINES_MAX, LINES_DEFAULT));
    if (t)
        request_follow(r, t);
    else
        request_fail(r, ERR_NOMEM, err_text(ERR_NOMEM));
}

static void serve_usage_events(struct request *r)
{
    char topic[WEB_JOB_BYTES + sizeof(WEB_USAGE)];
    snprintf(topic, sizeof(topic), WEB_USAGE "%s", request_job(r));
    follow(r, topic);
}

/* ---- a curve: the metrics of a job in few rows ---- */

/* dtd-control sends at most `max` points. One of an older version sends all rows: then, at `max` points, pairs of them
 * become one. */
struct curve {
    struct request *request;
    bool is_csv; /* the answer is the table of `dtctl metrics --to csv`, without the extremes of joined rows */
    struct metric_points points;
    size_t max;
    int64_t per_point; /* steps in a full point */
    err_t err;
};

static void curve_halve(struct curve *c)
{
    struct metric_point *p = c->points.point;
    for (size_t i = 0; i < c->points.n / 2; i++) {
        p[i] = p[2 * i];
        metric_point_merge(&p[i], &p[2 * i + 1]);
    }
    c->points.n /= 2;
    c->per_point *= 2;
}

/* The points have ascending steps: dtd-control leaves out the rows of steps that ran again. */
static void curve_add(struct curve *c, const struct metric_point *p)
{
    struct metric_points *to = &c->points;
    if (to->n && to->point[to->n - 1].steps < c->per_point) {
        metric_point_merge(&to->point[to->n - 1], p);
        return;
    }
    if (to->n == c->max)
        curve_halve(c);
    c->err = c->err ? c->err : metric_points_add(to, p);
}

static json_t *json_of_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static const struct metric_spread *spread_of(const struct metric_point *p, const char *name)
{
    return &p->of[field_find(&metric_fields, name) - metric_fields.field];
}

static json_t *json_of_row(const struct metric_point *p)
{
    json_t *ret = json_of_metric(&p->last);
    if (!ret || p->steps == 1)
        return ret;
    const struct metric_spread *loss = spread_of(p, "loss"), *step_s = spread_of(p, "step_s");
    json_object_set_new(ret, "loss_min", json_of_number(loss->n ? loss->min : NAN));
    json_object_set_new(ret, "loss_max", json_of_number(loss->n ? loss->max : NAN));
    json_object_set_new(ret, "step_s_max", json_of_number(step_s->n ? step_s->max : NAN));
    if (loss->n < p->steps)
        json_object_set_new(ret, "not_finite", json_true());
    json_object_set_new(ret, "steps_merged", json_integer(p->steps));
    return ret;
}

static void csv_answer(struct curve *c)
{
    const size_t n = c->points.n;
    struct metric *all = malloc((n ? n : 1) * sizeof(*all));
    struct buf text = {0};
    for (size_t i = 0; all && i < n; i++)
        all[i] = c->points.point[i].last;
    err_t err = all ? export_csv_format(all, n, &text) : ERR_NOMEM;
    free(all);
    if (!err) {
        request_answer(c->request, 200, "text/csv; charset=utf-8", (char *)text.data, text.len);
        return;
    }
    buf_fini(&text);
    request_fail(c->request, err, err_text(err));
}

static void metrics_answered(void *arg, const struct rpc_result *r)
{
    struct curve *c = arg;
    if (r->reply) {
        struct metric_point p;
        metric_point_decode((const Dtd__Metric *)r->reply, &p);
        curve_add(c, &p);
    }
    if (!r->last)
        return;
    if (r->err || c->err) {
        request_fail(c->request, r->err ? r->err : c->err, r->err ? r->text : err_text(c->err));
    } else if (c->is_csv) {
        csv_answer(c);
    } else {
        json_t *rows = json_array();
        for (size_t i = 0; i < c->points.n; i++)
            json_array_append_new(rows, json_of_row(&c->points.point[i]));
        request_answer_json(c->request, 200, rows);
    }
    free(c->points.point);
    free(c);
}

/* dtd-control joins steps to at least half of `max` points, so that the page has at least as many as it asked for; a
 * table for download has every step of a usual job. */
static void curve_start(struct request *r, int64_t max, bool is_csv)
{
    struct curve *c = calloc(1, sizeof(*c));
    Dtd__MetricsRequest q = DTD__METRICS_REQUEST__INIT;
    q.job = (char *)request_job(r);
    q.has_points = !is_csv;
    q.points = max;
    if (c)
        *c = (struct curve){.request = r, .max = (size_t)max, .per_point = 1, .is_csv = is_csv};
    err_t err = c ? session_call(request_session(r), CLIENT_METRICS, &q.base, metrics_answered, c, NULL) : ERR_NOMEM;
    if (!err)
        return;
    request_fail(r, err, err_text(err));
    free(c);
}

static void serve_metrics(struct request *r)
{
    curve_start(r, 2 * request_number(r, "points", 10, POINTS_MAX, POINTS_DEFAULT), false);
}

static void serve_csv(struct request *r)
{
    curve_start(r, CSV_ROWS_MAX, true);
}

/* ---- a job's checkpoints, log and end ---- */

static void checkpoints_answered(void *arg, const struct rpc_result *r)
{
    struct client_checkpoint *list;
    int n;
    if (r->err || !r->reply || convert_checkpoints((const Dtd__CheckpointList *)r->reply, &list, &n)) {
        request_fail(arg, r->err ? r->err : ERR_NOMEM, r->text);
        return;
    }
    json_t *ret = json_array();
    for (int i = 0; i < n; i++) {
        json_t *one = json_pack("{s:I, s:I, s:o, s:I, s:I}", "step", (json_int_t)list[i].step, "epoch",
                                (json_int_t)list[i].epoch, "path", json_of_text(list[i].path, strlen(list[i].path)),
                                "bytes", (json_int_t)list[i].bytes, "committed_ms", (json_int_t)list[i].committed_ms);
        json_object_set_new(one, "loss", json_of_number(list[i].loss));
        json_array_append_new(ret, one);
    }
    client_checkpoints_free(list, n);
    request_answer_json(arg, 200, ret);
}

static void serve_checkpoints(struct request *r)
{
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    q.job = (char *)request_job(r);
    err_t err = session_call(request_session(r), CLIENT_CHECKPOINTS, &q.base, checkpoints_answered, r, NULL);
    if (err)
        request_fail(r, err, err_text(err));
}

struct log_text {
    struct request *request;
    struct session *session;
    uint64_t call;
    bool prefixed, full;
    struct buf text;
};

/* Adds whole lines, each with its rank. A chunk may end within a line, at a \r. */
static err_t log_add(struct log_text *l, int rank, const char *text, size_t len)
{
    err_t err = OK;
    for (const char *end = text + len; !err && text < end;) {
        const char *nl = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((nl ? nl + 1 : end) - text);
        if (l->prefixed)
            err = buf_printf(&l->text, "[%d] ", rank);
        if (!err)
            err = buf_append(&l->text, text, n);
        if (!err && !nl)
            err = buf_append(&l->text, "\n", 1);
        text += n;
    }
    return err;
}

static void log_answered(void *arg, const struct rpc_result *r)
{
    struct log_text *l = arg;
    const Dtd__LogChunk *chunk = (const Dtd__LogChunk *)r->reply;
    if (chunk && !l->full && log_add(l, chunk->rank, (const char *)chunk->text.data, chunk->text.len))
        l->full = true;
    if (!l->full && l->text.len > LOG_BYTES_MAX) {
        static const char rest[] = "[dtd] the rest is left out: ask for fewer lines, or use `dtctl logs`\n";
        l->full = true;
        if (buf_append(&l->text, rest, sizeof(rest) - 1))
            l->text.len = 0;
    }
    if (l->full && !r->last)
        session_cancel(l->session, l->call);
    if (!r->last)
        return;
    if (r->err && !(l->full && r->err == ERR_CANCELED)) {
        request_fail(l->request, r->err, r->text);
        buf_fini(&l->text);
    } else {
        request_answer(l->request, 200, "text/plain; charset=utf-8", (char *)l->text.data, l->text.len);
    }
    free(l);
}

static void serve_log(struct request *r)
{
    struct log_text *l = calloc(1, sizeof(*l));
    Dtd__LogsRequest q = DTD__LOGS_REQUEST__INIT;
    q.job = (char *)request_job(r);
    q.has_rank = q.has_tail_lines = true;
    q.rank = (int32_t)request_number(r, "rank", -1, INT32_MAX, -1);
    q.tail_lines = request_number(r, "lines", 1, LINES_MAX, LINES_DEFAULT);
    if (l)
        *l = (struct log_text){.request = r, .session = request_session(r), .prefixed = q.rank < 0};
    err_t err = l ? session_call(l->session, CLIENT_LOGS, &q.base, log_answered, l, &l->call) : ERR_NOMEM;
    if (!err)
        return;
    free(l);
    request_fail(r, err, err_text(err));
}

static void cancel_answered(void *arg, const struct rpc_result *r)
{
    struct client_job job;
    if (r->err || !r->reply || convert_job((const Dtd__JobStatus *)r->reply, &job)) {
        request_fail(arg, r->err ? r->err : ERR_NOMEM, r->text);
        return;
    }
    request_answer_json(arg, 200, json_of_job(&job));
    client_job_fini(&job);
}

static void serve_cancel(struct request *r)
{
    size_t len;
    const char *body = request_body(r, &len);
    json_t *value = len ? json_loadb(body, len, JSON_REJECT_DUPLICATES, NULL) : json_object();
    uint8_t id[16];
    if (!json_is_object(value) || client_request_id(id)) {
        json_decref(value);
        request_fail(r, ERR_INVALID, "the body is not {\"save\": true}");
        return;
    }
    Dtd__CancelRequest q = DTD__CANCEL_REQUEST__INIT;
    q.request_id = (ProtobufCBinaryData){sizeof(id), id};
    q.job = (char *)request_job(r);
    q.has_save = true;
    q.save = json_is_true(json_object_get(value, "save"));
    json_decref(value);
    err_t err = session_call(request_session(r), CLIENT_CANCEL, &q.base, cancel_answered, r, NULL);
    if (err)
        request_fail(r, err, err_text(err));
}

const struct api_route api_routes[] = {
    {"GET", "/metrics", true, scrape_serve},
    {"POST", "/login", true, serve_login},
    {"POST", "/logout", true, serve_logout},
    {"GET", "/api/events", false, serve_events},
    {"GET", "/api/jobs/ID/events", false, serve_job_events},
    {"GET", "/api/jobs/ID/metrics", false, serve_metrics},
    {"GET", "/api/jobs/ID/metrics.csv", false, serve_csv},
    {"GET", "/api/jobs/ID/usage", false, serve_usage},
    {"GET", "/api/jobs/ID/usage/events", false, serve_usage_events},
    {"GET", "/api/jobs/ID/checkpoints", false, serve_checkpoints},
    {"GET", "/api/jobs/ID/log", false, serve_log},
    {"GET", "/api/jobs/ID/log/events", false, serve_log_events},
    {"GET", "/api/jobs/ID/plan", false, plan_serve_table},
    {"GET", "/api/jobs/ID/timeline.svg", false, plan_serve_timeline},
    {"GET", "/api/jobs/ID/forecast", false, plan_serve_forecast},
    {"GET", "/api/jobs/ID/explain", false, plan_serve_explain},
    {"GET", "/api/layouts", false, plan_serve_layouts},
    {"POST", "/api/jobs/ID/cancel", false, serve_cancel},
};
const int api_n_routes = sizeof(api_routes) / sizeof(api_routes[0]);
