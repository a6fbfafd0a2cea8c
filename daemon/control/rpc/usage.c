/* Adapter for the stream Usage (watch.h). */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/watch.h"

#include "common/base/log.h"
#include "proto/client.pb-c.h"

#include <stdlib.h>

#define LOADS_PER_USER 8 /* a file's samples take some 10 MiB of memory */
#define SAMPLES_PER_TURN 64
#define WAITING_MAX 1024 /* samples that arrive while a client still receives those of the file */

struct usage_watch {
    struct watch w;
    int64_t from_ms;
    struct usage_samples samples, fresh; /* to be sent, starting with `at`; that arrive while the thread reads */
    size_t at, most;                     /* samples that may be waiting */
    struct usage_samples loaded;         /* used by the thread while `loading` */
};

static struct usage_watch *usage_of(struct watch *w)
{
    return (struct usage_watch *)w;
}

static void usage_release(struct watch *w)
{
    usage_samples_fini(&usage_of(w)->samples);
    usage_of(w)->at = 0;
}

static void usage_fini(struct watch *w)
{
    usage_samples_fini(&usage_of(w)->fresh);
    usage_samples_fini(&usage_of(w)->loaded);
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

static err_t usage_send(struct watch *base)
{
    struct usage_watch *w = usage_of(base);
    err_t err = OK;
    for (int n = 0; !err && w->at < w->samples.n; n++) {
        err = n < SAMPLES_PER_TURN ? send_sample(base->call, &w->samples.sample[w->at]) : ERR_LIMIT;
        w->at += !err;
    }
    if (w->at == w->samples.n)
        watch_release(base);
    return err;
}

/* ---- reading ---- */

static err_t usage_load(struct watch *base)
{
    struct usage_watch *w = usage_of(base);
    return usage_file_load(base->path, &base->more, w->from_ms, &base->stop, &w->loaded);
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

static err_t usage_loaded(struct watch *base)
{
    struct usage_watch *w = usage_of(base);
    w->samples = w->loaded;
    w->loaded = (struct usage_samples){0};
    w->most = w->samples.n + WAITING_MAX;
    return add_fresh(w);
}

static const struct watch_kind usage_kind = {
    .name = "usage",
    .loads_per_user = LOADS_PER_USER,
    .load = usage_load,
    .loaded = usage_loaded,
    .send = usage_send,
    .release = usage_release,
    .fini = usage_fini,
};

/* ---- what is new ---- */

static err_t add_copy(struct usage_samples *list, size_t most, const struct usage_sample *s)
{
    struct usage_sample copy;
    err_t err = list->n < most ? usage_sample_copy(s, &copy) : ERR_LIMIT;
    return err ? err : usage_samples_add(list, &copy);
}

void rpc_usage_sample(struct job *j, const struct usage_sample *s)
{
    for (struct watch *w = *job_watches(j), *next; w; w = next) {
        struct usage_watch *u = usage_of(w);
        next = w->next;
        if (w->kind != &usage_kind || !w->call || !w->follow || s->wall_ms < u->from_ms)
            continue;
        if (add_copy(w->loading ? &u->fresh : &u->samples, u->most, s))
            log_warn("usage not forwarded step=%lld", (long long)s->step);
        watch_pump(w);
    }
}

/* ---- requests ---- */

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

void rpc_client_usage(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__UsageRequest *m = (const Dtd__UsageRequest *)request;
    struct job *j = rpc_client_job_to_see(server, call, m->job);
    if (j && m->has_newest && m->newest) {
        reply_newest(call, j);
        return;
    }
    struct usage_watch *w = j ? usage_of(watch_new(&usage_kind, sizeof(*w), server, j, call)) : NULL;
    if (!w)
        return;
    w->w.follow = m->has_follow && m->follow;
    w->from_ms = m->has_from_ms ? m->from_ms : 0;
    w->most = WAITING_MAX;
    const struct usage_file *f = job_usage_file(j);
    watch_load(&w->w, f->path, usage_file_rest(f, &w->w.more));
}
