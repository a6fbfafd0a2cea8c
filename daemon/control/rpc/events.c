/* Adapter for the stream Events. The events are in the replicated state, so every leader has the same ones with the
 * same numbers, and a client whose leader is gone continues after the last number that it got.
 *
 *   request -> pump: the events that it may see and has not got -> follow: pump again on a tick that finds new ones ->
 * end
 *
 * A turn of the loop looks at no more events than there are (STATE_MAX_EVENTS). When the connection's output queue is
 * full, pump stops; it is called again when the queue has drained. */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct event_stream {
    LIST_ENTRY(event_stream) link;
    struct rpc_server *server;
    struct rpc_call *call;
    uint64_t job; /* 0: all */
    bool all;     /* the caller may see the jobs of all users */
    uint32_t uid;
    bool follow;
    uint64_t after;   /* the newest event that was sent or skipped */
    int64_t since_ms; /* a date; of older versions of dtctl */
    int64_t age_ms;   /* INT64_MAX: any */
};

static void stream_free(struct event_stream *x)
{
    LIST_REMOVE(x, link);
    free(x);
}

static void stream_gone(void *arg)
{
    stream_free(arg);
}

static bool may_see_event(const struct event_stream *x, const struct state_event *e)
{
    return !e->job || x->all || e->uid == x->uid;
}

static bool is_wanted(const struct event_stream *x, const struct state_event *e)
{
    return (!x->job || e->job == x->job) && e->wall_ms >= x->since_ms && may_see_event(x, e) &&
           replica_age_ms(x->server->replica, e->wall_ms, e->clock_ms) <= x->age_ms;
}

static err_t send_event(struct event_stream *x, const struct state_event *e)
{
    char id[24];
    const struct job *j = e->job ? jobs_find(x->server->jobs, e->job) : NULL;
    Dtd__Event m = DTD__EVENT__INIT;
    snprintf(id, sizeof(id), "%" PRIu64, e->job);
    m.id = e->id;
    m.wall_ms = e->wall_ms;
    m.type = (char *)event_kind_name(e->kind);
    m.job = e->job ? id : NULL;
    m.name = j ? (char *)job_view_of(j).spec->name : NULL;
    m.has_epoch = e->epoch != 0;
    m.epoch = e->epoch;
    m.has_step = e->step >= 0;
    m.step = e->step;
    m.node = e->node[0] ? (char *)e->node : NULL;
    m.text = (char *)e->text;
    return rpc_item(x->call, &m.base);
}

static bool is_over(const struct event_stream *x)
{
    const struct job *j = x->job ? jobs_find(x->server->jobs, x->job) : NULL;
    return !x->follow || (x->job && (!j || job_over(j)));
}

static void pump(void *arg)
{
    struct event_stream *x = arg;
    const struct state_event *const *events;
    int n = state_events(x->server->replica->state, &events), i = n;
    err_t err = OK;
    while (i > 0 && events[i - 1]->id > x->after)
        i--;
    for (; i < n && !err; i++) {
        err = is_wanted(x, events[i]) ? send_event(x, events[i]) : OK;
        x->after = err ? x->after : events[i]->id;
    }
    if (err == ERR_LIMIT) {
        rpc_call_on_drain(x->call, pump, x);
        return;
    }
    if (err || is_over(x)) {
        struct rpc_call *call = x->call;
        stream_free(x);
        if (err)
            rpc_fail(call, err, "%s", err_text(err));
        else
            rpc_end(call);
    }
}

void rpc_events_tick(struct rpc_server *server)
{
    uint64_t next = state_event_next(server->replica->state);
    for (struct event_stream *x = LIST_FIRST(&server->event_streams), *following; x; x = following) {
        following = LIST_NEXT(x, link);
        if (x->after + 1 < next || is_over(x))
            pump(x);
    }
}

void rpc_events_forget(struct rpc_server *server)
{
    for (struct event_stream *x = LIST_FIRST(&server->event_streams), *following; x; x = following) {
        struct rpc_call *call = x->call;
        following = LIST_NEXT(x, link);
        rpc_call_on_cancel(call, NULL, NULL);
        stream_free(x);
        rpc_fail(call, ERR_AGAIN, "another node is the leader now: try again");
    }
}

/* A job that was removed has events, too. */
static bool has_events(const struct event_stream *x)
{
    const struct state_event *const *events;
    int n = state_events(x->server->replica->state, &events);
    for (int i = 0; i < n; i++)
        if (events[i]->job == x->job && may_see_event(x, events[i]))
            return true;
    return false;
}

/* False: the call has failed. */
static bool job_found(struct event_stream *x, const char *id)
{
    char *end;
    errno = 0;
    x->job = id[0] >= '0' && id[0] <= '9' ? strtoull(id, &end, 10) : 0;
    bool number = x->job && !*end && !errno;
    return number && !jobs_find(x->server->jobs, x->job) && has_events(x)
               ? true
               : rpc_client_job_to_see(x->server, x->call, id) != NULL;
}

static bool sees_all(const struct rpc_server *server, struct rpc_call *call)
{
    const struct peer *p = rpc_caller_peer(call);
    return !server->system || rpc_caller_uid(call) == 0 || (p && rpc_caller_is_operator(p));
}

void rpc_client_events(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__EventsRequest *m = (const Dtd__EventsRequest *)request;
    struct event_stream *x = calloc(1, sizeof(*x));
    if (!x) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    *x = (struct event_stream){.server = server,
                               .call = call,
                               .uid = rpc_caller_uid(call),
                               .all = sees_all(server, call),
                               .follow = m->has_follow && m->follow,
                               .after = m->has_after ? m->after : 0,
                               .since_ms = m->has_since_ms && !m->has_age_ms ? m->since_ms : INT64_MIN,
                               .age_ms = m->has_age_ms ? m->age_ms : INT64_MAX};
    if (x->after >= state_event_next(server->replica->state))
        x->after = 0;
    if (m->job && !job_found(x, m->job)) {
        free(x);
        return;
    }
    LIST_INSERT_HEAD(&server->event_streams, x, link);
    rpc_call_on_cancel(call, stream_gone, x);
    pump(x);
}
