/* Adapter for the stream Usage, built as Metrics is (metrics.c):
 *
 *   request -> a thread of the pool `parses` reads the file -> pump -> follow -> end
 *
 * Samples that arrive while the thread reads are kept in `fresh`. When the connection's output queue is full, pump
 * stops, and is called again when the queue has drained. */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/server.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "proto/client.pb-c.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_PER_USER 8 /* a file's samples take some 10 MiB of memory */
#define SAMPLES_PER_TURN 64
#define WAITING_MAX 1024 /* samples that arrive while a client still receives those of the file */

struct usage_watch {
    struct usage_watch *next;
    struct rpc_server *server;
    struct job *job;       /* NULL: it may be gone */
    struct rpc_call *call; /* NULL: the client has gone */
    bool follow, loading;
    int64_t from_ms;
    uint32_t uid;
    bool held; /* in the server's usage_loads */
    LIST_ENTRY(usage_watch) held_link;
    struct usage_samples samples, fresh; /* to be sent, starting with `at`; that arrive while the thread reads */
    size_t at, most;                     /* samples that may be waiting */
    /* used by the thread while `loading` */
    struct pool_task task;
    atomic_bool stop;
    char *path;
    struct buf more;
    struct usage_samples loaded;
    err_t err;
};

/* Detaches the watch from its job, which may be freed while the thread still reads. */
static void watch_part(struct usage_watch *w)
{
    for (struct usage_watch **at = w->job ? job_usage_watches(w->job) : NULL; at && *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    w->job = NULL;
}

static void watch_release(struct usage_watch *w)
{
    if (w->held)
        LIST_REMOVE(w, held_link);
    w->held = false;
    usage_samples_fini(&w->samples);
    w->at = 0;
}

static void watch_free(struct usage_watch *w)
{
    watch_part(w);
    watch_release(w);
    usage_samples_fini(&w->fresh);
    usage_samples_fini(&w->loaded);
    free(w->path);
    buf_fini(&w->more);
    free(w);
}

static void watch_gone(void *arg)
{
    struct usage_watch *w = arg;
    w->call = NULL;
    atomic_store(&w->stop, true);
    if (!w->loading)
        watch_free(w);
}

/* ---- sending ---- */

static bool has_column(const struct usage_sample *s, enum usage_field f)
{
    bool has = false;
    for (int r = 0; !has && r < s->ranks; r++)
        has = isfinite(*usage_at(s, f, r));
    return has;
}

/* The message borrows names and values: hence the casts that remove const. */
static err_t send_sample(struct rpc_call *call, const struct usage_sample *s)
{
    Dtd__UsageSample m = DTD__USAGE_SAMPLE__INIT;
    Dtd__UsageColumn columns[USAGE_COUNT], *refs[USAGE_COUNT];
    m.wall_ms = s->wall_ms;
    m.window_ms = s->window_ms;
    m.step = s->step;
    m.epoch = s->epoch;
    m.node = s->node;
    m.n_node = (size_t)s->ranks;
    m.column = refs;
    for (int f = 0; f < USAGE_COUNT; f++) {
        if (!has_column(s, (enum usage_field)f))
            continue;
        Dtd__UsageColumn *c = refs[m.n_column++] = &columns[f];
        dtd__usage_column__init(c);
        c->name = (char *)(uintptr_t)usage_fields.field[f].name;
        c->value = usage_at(s, (enum usage_field)f, 0);
        c->n_value = (size_t)s->ranks;
    }
    return rpc_item(call, &m.base);
}

static void pump(void *arg)
{
    struct usage_watch *w = arg;
    err_t err = OK;
    if (w->loading)
        return;
    for (int n = 0; !err && w->at < w->samples.n; n++) {
        err = n < SAMPLES_PER_TURN ? send_sample(w->call, &w->samples.sample[w->at]) : ERR_LIMIT;
        w->at += !err;
    }
    if (w->at == w->samples.n)
        watch_release(w);
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

static err_t add_copy(struct usage_samples *list, size_t most, const struct usage_sample *s)
{
    struct usage_sample copy;
    err_t err = list->n < most ? usage_sample_copy(s, &copy) : ERR_LIMIT;
    return err ? err : usage_samples_add(list, &copy);
}

void rpc_usage_sample(struct job *j, const struct usage_sample *s)
{
    for (struct usage_watch *w = *job_usage_watches(j), *next; w; w = next) {
        next = w->next;
        if (!w->call || !w->follow || s->wall_ms < w->from_ms)
            continue;
        if (add_copy(w->loading ? &w->fresh : &w->samples, w->most, s))
            log_warn("usage not forwarded step=%lld", (long long)s->step);
        pump(w);
    }
}

void rpc_usage_changed(struct job *j)
{
    for (struct usage_watch *w = *job_usage_watches(j), *next; w && job_over(j); w = next) {
        next = w->next;
        if (w->call)
            pump(w);
    }
}

void rpc_usage_forget(struct job *j)
{
    for (struct usage_watch *w = *job_usage_watches(j), *next; w; w = next) {
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

static struct usage_watch *watch_of(struct pool_task *task)
{
    return (struct usage_watch *)((char *)task - offsetof(struct usage_watch, task));
}

static void load_run(struct pool_task *task)
{
    struct usage_watch *w = watch_of(task);
    w->err =
        atomic_load(&w->stop) ? ERR_CANCELED : usage_file_load(w->path, &w->more, w->from_ms, &w->stop, &w->loaded);
}

/* The last line that was read may be of a window to which a fresh one has been joined since; it ends earlier. */
static err_t add_fresh(struct usage_watch *w)
{
    const int64_t last_ms = w->samples.n ? w->samples.sample[w->samples.n - 1].wall_ms : 0;
    err_t err = OK;
    for (size_t i = 0; !err && i < w->fresh.n; i++)
        if (w->fresh.sample[i].wall_ms > last_ms)
            err = usage_samples_add(&w->samples, &w->fresh.sample[i]);
    usage_samples_fini(&w->fresh);
    return err;
}

static void load_done(struct pool_task *task)
{
    struct usage_watch *w = watch_of(task);
    w->loading = false;
    if (!w->call) {
        watch_free(w);
        return;
    }
    err_t err = w->err;
    if (!err) {
        w->samples = w->loaded;
        w->loaded = (struct usage_samples){0};
        w->most = w->samples.n + WAITING_MAX;
        err = add_fresh(w);
    }
    if (err) {
        struct rpc_call *call = w->call;
        watch_free(w);
        rpc_fail(call, err, "usage: %s", err_text(err));
        return;
    }
    pump(w);
}

/* ---- requests ---- */

static int loads_of(const struct rpc_server *server, uint32_t uid)
{
    const struct usage_watch *w;
    int n = 0;
    LIST_FOREACH(w, &server->usage_loads, held_link)
    n += w->uid == uid;
    return n;
}

static err_t load_start(struct usage_watch *w)
{
    const struct usage_file *f = job_usage_file(w->job);
    w->path = strdup(f->path);
    err_t err = w->path ? usage_file_rest(f, &w->more) : ERR_NOMEM;
    if (!err && loads_of(w->server, w->uid) >= LOADS_PER_USER)
        err = ERR_BUSY;
    w->task = (struct pool_task){.run = load_run, .done = load_done};
    err = err ? err : pool_add(&w->server->parses, &w->task, w->uid);
    if (err)
        return err;
    w->loading = w->held = true;
    LIST_INSERT_HEAD(&w->server->usage_loads, w, held_link);
    return OK;
}

/* From memory: a client that shows the present asks again and again. */
static void reply_newest(struct rpc_call *call, const struct job *j)
{
    const struct usage_sample *s = job_usage_newest(j);
    err_t err = s->ranks ? send_sample(call, s) : OK;
    if (err)
        rpc_fail(call, err, "usage: %s", err_text(err));
    else
        rpc_end(call);
}

/* Windows have dates of the leader, which ascend although another one's date was ahead. */
static int64_t first_date(const struct job *j, const Dtd__UsageRequest *m)
{
    const int64_t now = clock_wall_ms(), newest = job_usage_newest(j)->wall_ms;
    if (m->has_recent_ms)
        return (now > newest ? now : newest) - m->recent_ms;
    return m->has_from_ms ? m->from_ms : 0;
}

void rpc_client_usage(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__UsageRequest *m = (const Dtd__UsageRequest *)request;
    struct job *j = rpc_client_job_to_see(server, call, m->job);
    if (j && m->has_newest && m->newest) {
        reply_newest(call, j);
        return;
    }
    struct usage_watch *w = j ? calloc(1, sizeof(*w)) : NULL;
    if (!w) {
        if (j)
            rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    *w = (struct usage_watch){.server = server,
                              .job = j,
                              .call = call,
                              .follow = m->has_follow && m->follow,
                              .from_ms = first_date(j, m),
                              .uid = rpc_caller_uid(call),
                              .most = WAITING_MAX,
                              .next = *job_usage_watches(j)};
    *job_usage_watches(j) = w;
    rpc_call_on_cancel(call, watch_gone, w);
    err_t err = load_start(w);
    if (!err)
        return;
    watch_free(w);
    rpc_fail(call, err, "usage: %s%s", err_text(err),
             err == ERR_BUSY ? ": this user has as many calls for usage as it may; end or await one of them" : "");
}
