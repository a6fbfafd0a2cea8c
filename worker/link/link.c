/* The link's thread, and the functions that the compute thread calls for epochs and reports. */
#include "worker/link/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/methods.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORPHAN_DEFAULT_MS 60000 /* until the worker has read run.orphan_seconds in its job's spec */

/* ---- the thread ---- */

static void close_all(struct link *l)
{
    if (l->closing)
        return;
    l->closing = true;
    rpc_link_close(l->control, NULL, true);
    rpc_link_close(l->io, NULL, false);
    uv_close((uv_handle_t *)&l->orphan, NULL);
    uv_close((uv_handle_t *)&l->wake, NULL);
}

static void on_wake(uv_async_t *wake)
{
    struct link *l = wake->data;
    pthread_mutex_lock(&l->mu);
    bool stop = l->stop_thread;
    pthread_mutex_unlock(&l->mu);
    if (l->closing)
        return;
    control_flush(l);
    link_store_flush(l);
    io_flush(l);
    if (stop)
        close_all(l);
}

static void *thread_main(void *arg)
{
    struct link *l = arg;
    uv_run(&l->loop, UV_RUN_DEFAULT);
    return NULL;
}

static err_t open_links(struct link *l)
{
    struct rpc_link_config config = {.loop = &l->loop,
                                     .path = l->ticket.control,
                                     .methods = rpc_methods(),
                                     .n_methods = RPC_METHOD_COUNT,
                                     .owner = l,
                                     .backoff_max_ms = 200,
                                     .on_up = control_up,
                                     .on_down = control_down};
    err_t err = rpc_link_open(&config, &l->control);
    if (err)
        return err;
    config.path = l->ticket.io;
    config.on_up = io_up;
    config.on_down = io_down;
    err = rpc_link_open(&config, &l->io);
    if (err)
        rpc_link_close(l->control, NULL, false);
    return err;
}

err_t link_start(const struct link_config *config, struct link **ret)
{
    pthread_condattr_t clock;
    struct link *l = calloc(1, sizeof(*l));
    if (!l)
        return ERR_NOMEM;
    snprintf(l->job, sizeof(l->job), "%s", config->job);
    l->slot = config->slot;
    l->ticket = config->ticket;
    l->orphan_ms = ORPHAN_DEFAULT_MS;
    link_store_init(l);
    pthread_mutex_init(&l->mu, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (uv_loop_init(&l->loop)) {
        free(l);
        return ERR_NOMEM;
    }
    uv_async_init(&l->loop, &l->wake, on_wake);
    uv_timer_init(&l->loop, &l->orphan);
    l->wake.data = l->orphan.data = l;
    err_t err = open_links(l);
    if (!err && pthread_create(&l->thread, NULL, thread_main, l) == 0) {
        *ret = l;
        return OK;
    }
    log_error("link_not_started error=%s", err_name(err));
    return err ? err : ERR_NOMEM; /* nothing is freed, because the caller exits */
}

void link_stop(struct link *l)
{
    pthread_mutex_lock(&l->mu);
    l->stop_thread = true;
    uv_async_send(&l->wake);
    pthread_mutex_unlock(&l->mu);
    pthread_join(l->thread, NULL);
    int rc = uv_loop_close(&l->loop);
    assert(rc == 0);
    for (struct report *r = l->reports.first, *next; r; r = next) {
        next = r->next;
        report_free(r);
    }
    report_free(l->state_report);
    io_forget(l);
    link_store_forget(l);
    link_epoch_fini(&l->next);
    pthread_mutex_destroy(&l->mu);
    pthread_cond_destroy(&l->changed);
    free(l);
}

/* ---- epochs ---- */

void link_epoch_fini(struct link_epoch *e)
{
    free(e->spec_yaml);
    free(e->resume_path);
    free(e->node_of);
    free(e->address);
    *e = (struct link_epoch){0};
}

err_t link_next(struct link *l, struct link_epoch *ret)
{
    err_t err = ERR_CLOSED;
    pthread_mutex_lock(&l->mu);
    while (!l->quit && !l->next.epoch)
        pthread_cond_wait(&l->changed, &l->mu);
    if (!l->quit && !(l->next.spec_yaml && l->next.resume_path && l->next.node_of && l->next.address)) {
        err = ERR_NOMEM;
    } else if (!l->quit) {
        io_abandon(l);
        link_store_forget(l);
        *ret = l->next;
        l->next = (struct link_epoch){0};
        l->epoch = ret->epoch;
        l->rank = ret->rank;
        l->running = true;
        l->ended = false;
        atomic_store(&l->cancel, 0);
        err = OK;
    }
    pthread_mutex_unlock(&l->mu);
    return err;
}

void link_leave(struct link *l)
{
    pthread_mutex_lock(&l->mu);
    l->running = false;
    if (l->ended) {
        control_push(l, report_new(l, DTD__WORKER_REPORT__KIND__IDLE, l->epoch, NULL));
        l->epoch = 0;
    }
    pthread_mutex_unlock(&l->mu);
}

const _Atomic int *link_cancel(const struct link *l)
{
    return &l->cancel;
}

void link_set_comm(struct link *l, struct comm *comm)
{
    pthread_mutex_lock(&l->mu);
    l->comm = comm;
    if (comm && atomic_load(&l->cancel))
        comm_abort(comm);
    pthread_mutex_unlock(&l->mu);
}

void link_set_orphan_seconds(struct link *l, int64_t seconds)
{
    pthread_mutex_lock(&l->mu);
    l->orphan_ms = seconds > 0 ? seconds * 1000 : 1000;
    pthread_mutex_unlock(&l->mu);
}

enum link_stop_kind link_stop_asked(struct link *l)
{
    pthread_mutex_lock(&l->mu);
    enum link_stop_kind stop = l->stop_epoch == l->epoch ? l->stop : LINK_GO_ON;
    pthread_mutex_unlock(&l->mu);
    return stop;
}

struct link_profile link_profile_asked(struct link *l)
{
    pthread_mutex_lock(&l->mu);
    struct link_profile p = l->profile_epoch == l->epoch ? l->profile : (struct link_profile){0};
    pthread_mutex_unlock(&l->mu);
    return p;
}

/* ---- reports ---- */

/* `part_ms` may be NULL. */
static void push_state(struct link *l, Dtd__WorkerReport__Kind kind, int64_t step, bool fatal, err_t load_error,
                       const char *text, const double *part_ms)
{
    pthread_mutex_lock(&l->mu);
    struct report *r = report_new(l, kind, l->epoch, text);
    if (r) {
        report_parts(r, part_ms, part_ms ? LOAD_PARTS : 0);
        r->msg.has_step = true;
        r->msg.step = step;
        r->msg.has_fatal = fatal;
        r->msg.fatal = fatal;
        r->msg.has_load_error = load_error;
        r->msg.load_error = load_error;
    }
    control_push(l, r);
    pthread_mutex_unlock(&l->mu);
}

void link_report_ready(struct link *l, int64_t step, const double part_ms[LOAD_PARTS])
{
    push_state(l, DTD__WORKER_REPORT__KIND__READY, step, false, OK, NULL, part_ms);
}

void link_report_usage(struct link *l, const struct usage_report *u)
{
    pthread_mutex_lock(&l->mu);
    control_drop_usage(l);
    struct report *r =
        clock_mono_ms() < l->usage_ms ? NULL : report_new(l, DTD__WORKER_REPORT__KIND__USAGE, l->epoch, NULL);
    if (r) {
        dtd__usage__init(&r->usage_msg);
        r->usage_msg.window_ms = u->window_ms;
        r->usage_msg.steps = u->steps;
        r->usage_msg.step = u->step;
        r->msg.usage = &r->usage_msg;
        if (fields_encode(&usage_fields, &u->usage, FIELDS_FOR_DAEMONS, &r->usage_msg.base)) {
            report_free(r);
            r = NULL;
        }
    }
    if (r)
        control_push(l, r);
    pthread_mutex_unlock(&l->mu);
}

void link_report_done(struct link *l, int64_t step)
{
    push_state(l, DTD__WORKER_REPORT__KIND__DONE, step, false, OK, NULL, NULL);
}

void link_report_failed(struct link *l, int64_t step, bool fatal, err_t load_error, const char *text)
{
    push_state(l, DTD__WORKER_REPORT__KIND__FAILED, step, fatal, load_error, text, NULL);
}

void link_report_profiled(struct link *l, uint64_t id, const char *text)
{
    pthread_mutex_lock(&l->mu);
    control_push_profiled(l, id, text);
    pthread_mutex_unlock(&l->mu);
}

void link_report_metric(struct link *l, const struct metric *m)
{
    pthread_mutex_lock(&l->mu);
    struct report *r = report_new(l, DTD__WORKER_REPORT__KIND__METRIC, l->epoch, NULL);
    if (r) {
        r->metric = *m;
        r->metric.epoch = l->epoch;
        r->metric.wall_ms = clock_wall_ms();
        r->msg.metric = &r->metric_msg;
        r->msg.has_step = true;
        r->msg.step = m->step;
        if (metric_encode(&r->metric, &r->metric_msg)) {
            report_free(r);
            r = NULL;
        }
    }
    control_push(l, r);
    pthread_mutex_unlock(&l->mu);
}
