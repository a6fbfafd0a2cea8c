#include "daemon/control/rpc/watch.h"

#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

void watch_release(struct watch *w)
{
    if (w->held)
        LIST_REMOVE(w, held_link);
    w->held = false;
    w->kind->release(w);
}

static void watch_free(struct watch *w)
{
    watch_part(w);
    watch_release(w);
    w->kind->fini(w);
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

struct watch *watch_new(const struct watch_kind *kind, size_t bytes, struct rpc_server *server, struct job *j,
                        struct rpc_call *call)
{
    struct watch *w = calloc(1, bytes);
    if (!w) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return NULL;
    }
    w->kind = kind;
    w->server = server;
    w->job = j;
    w->call = call;
    w->uid = rpc_caller_uid(call);
    w->next = *job_watches(j);
    *job_watches(j) = w;
    rpc_call_on_cancel(call, watch_gone, w);
    return w;
}

/* ---- sending ---- */

static void pump(void *arg)
{
    watch_pump(arg);
}

void watch_pump(struct watch *w)
{
    if (w->loading)
        return;
    err_t err = w->kind->send(w);
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
    w->err = atomic_load(&w->stop) ? ERR_CANCELED : w->kind->load(w);
}

static void load_done(struct pool_task *task)
{
    struct watch *w = watch_of(task);
    w->loading = false;
    if (!w->call) {
        watch_free(w);
        return;
    }
    err_t err = w->err ? w->err : w->kind->loaded(w);
    if (err) {
        struct rpc_call *call = w->call;
        const char *name = w->kind->name;
        watch_free(w);
        rpc_fail(call, err, "%s: %s", name, err_text(err));
        return;
    }
    watch_pump(w);
}

static int loads_of(const struct watch *w)
{
    const struct watch *other;
    int n = 0;
    LIST_FOREACH(other, &w->server->watch_loads, held_link)
    n += other->kind == w->kind && other->uid == w->uid;
    return n;
}

void watch_load(struct watch *w, const char *path, err_t err)
{
    const char *name = w->kind->name;
    struct rpc_call *call = w->call;
    if (!err && !(w->path = strdup(path)))
        err = ERR_NOMEM;
    if (!err && loads_of(w) >= w->kind->loads_per_user)
        err = ERR_BUSY;
    w->task = (struct pool_task){.run = load_run, .done = load_done};
    err = err ? err : pool_add(&w->server->parses, &w->task, w->uid);
    if (!err) {
        w->loading = w->held = true;
        LIST_INSERT_HEAD(&w->server->watch_loads, w, held_link);
        return;
    }
    watch_free(w);
    if (err == ERR_BUSY)
        rpc_fail(call, err, "%s: %s: this user has as many calls for %s as it may; end or await one of them", name,
                 err_text(err), name);
    else
        rpc_fail(call, err, "%s: %s", name, err_text(err));
}
