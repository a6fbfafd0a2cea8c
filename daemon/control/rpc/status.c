/* The messages borrow strings, because packing only reads them: hence the casts that remove const. */
#include "daemon/control/rpc/status.h"

#include "common/base/clock.h"
#include "common/rpc/field_codec.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void fill_worker(Dtd__WorkerStatus *m, const struct job *j, int rank)
{
    const struct job_rank_view w = job_rank_view_of(j, rank);
    dtd__worker_status__init(m);
    m->rank = rank;
    m->pid = w.pid;
    m->state = (char *)w.state;
    m->has_exit_status = w.has_exit && !w.exit_signal;
    m->exit_status = w.exit_status;
    m->has_exit_signal = w.has_exit && w.exit_signal;
    m->exit_signal = w.exit_signal;
    m->node = (char *)w.node;
}

static void *need(size_t n, size_t size)
{
    return calloc(n ? n : 1, size);
}

static err_t fill_lists(struct job_status *s, const struct job *j, const struct state_job *state)
{
    size_t nw = (size_t)job_view_of(j).n_workers, ni = state ? (size_t)state->n_incidents : 0;
    s->workers = need(nw, sizeof(*s->workers));
    s->worker_refs = need(nw, sizeof(void *));
    s->incidents = need(ni, sizeof(*s->incidents));
    s->incident_refs = need(ni, sizeof(void *));
    if (!s->workers || !s->worker_refs || !s->incidents || !s->incident_refs)
        return ERR_NOMEM;
    for (size_t k = 0; k < nw; k++) {
        fill_worker(&s->workers[k], j, (int)k);
        s->worker_refs[k] = &s->workers[k];
    }
    err_t err = OK;
    for (size_t k = 0; !err && k < ni; k++) {
        Dtd__Incident *m = s->incident_refs[k] = &s->incidents[k];
        dtd__incident__init(m);
        s->msg.n_incident++;
        err = fields_encode(&incident_fields, &state->incidents[k], FIELDS_FOR_CLIENTS, &m->base);
    }
    if (!err && state && state->start.epoch) {
        dtd__incident__init(&s->start);
        s->msg.start = &s->start;
        err = fields_encode(&incident_fields, &state->start, FIELDS_FOR_CLIENTS, &s->start.base);
    }
    s->msg.n_worker = nw;
    s->msg.worker = s->worker_refs;
    s->msg.incident = s->incident_refs;
    s->msg.spec_yaml = (char *)job_view_of(j).yaml;
    return err;
}

static void fill_state(struct job_status *s, const struct state_job *state)
{
    const struct state_checkpoint *c = state_newest_checkpoint(state);
    s->msg.has_started_ms = state->started_ms != 0;
    s->msg.started_ms = state->started_ms;
    s->msg.has_ended_ms = state->ended_ms != 0;
    s->msg.ended_ms = state->ended_ms;
    s->msg.has_checkpoint_step = c != NULL;
    s->msg.checkpoint_step = c ? c->step : 0;
    snprintf(s->parent, sizeof(s->parent), "%" PRIu64, state->parent);
    s->msg.parent = state->parent ? s->parent : NULL;
}

static void fill_straggler(struct job_status *s, const struct job *j, const struct straggler *from)
{
    Dtd__Straggler *m = s->straggler_refs[s->msg.n_straggler] = &s->stragglers[s->msg.n_straggler];
    char *text = s->straggler_texts[s->msg.n_straggler], since[16] = "";
    const char *node = job_rank_view_of(j, from->rank).node;
    const time_t seconds = (time_t)(from->since_ms / 1000);
    struct tm local;
    if (localtime_r(&seconds, &local))
        strftime(since, sizeof(since), "%H:%M", &local);
    snprintf(text, sizeof(s->straggler_texts[0]),
             "rank %d on node %s computes %.2f times as long as the median since %s", from->rank, node ? node : "?",
             from->ratio, since);
    dtd__straggler__init(m);
    m->rank = from->rank;
    m->node = (char *)(node ? node : "");
    m->ratio = from->ratio;
    m->since_ms = from->since_ms;
    m->text = text;
    s->msg.n_straggler++;
}

static void fill_stragglers(struct job_status *s, const struct job *j)
{
    struct straggler list[JOB_STRAGGLERS_MAX];
    const int n = job_stragglers(j, list, JOB_STRAGGLERS_MAX);
    s->msg.straggler = s->straggler_refs;
    for (int i = 0; i < n; i++)
        fill_straggler(s, j, &list[i]);
}

/* The record of the checkpoint has no reading of the cluster's clock in the state, but its event has. */
static void fill_saved_age(struct job_status *s, const struct replica *r, uint64_t job)
{
    const struct state_event *const *events;
    for (int i = state_events(r->state, &events) - 1; s->msg.has_checkpoint_step && i >= 0; i--)
        if (events[i]->job == job && events[i]->kind == EVENT_CHECKPOINT && events[i]->step == s->msg.checkpoint_step) {
            s->msg.has_saved_age_ms = true;
            s->msg.saved_age_ms = replica_age_ms(r, events[i]->wall_ms, events[i]->clock_ms);
            return;
        }
}

static void fill_ages(struct job_status *s, const struct replica *r, const struct job_view *v)
{
    s->msg.has_age_ms = true;
    s->msg.age_ms = replica_age_ms(r, v->submitted_ms, v->logged ? v->logged->submitted_clock_ms : 0);
    s->msg.has_last_age_ms = v->metrics->has_last && v->metric_ms;
    s->msg.last_age_ms = clock_mono_ms() - v->metric_ms;
}

err_t job_status_fill(struct job_status *s, struct rpc_server *server, struct job *j, bool full)
{
    const struct job_view v = job_view_of(j);
    const struct state_job *state = v.logged;
    *s = (struct job_status){.msg = DTD__JOB_STATUS__INIT};
    snprintf(s->id, sizeof(s->id), "%" PRIu64, v.id);
    s->msg.job = s->id;
    s->msg.name = v.spec->name;
    s->msg.state = (char *)v.state;
    s->msg.reason = (char *)v.reason;
    s->msg.epoch = v.epoch;
    s->msg.step = v.step;
    s->msg.steps = v.spec->train.steps;
    s->msg.workers = v.n_workers;
    s->msg.has_max_workers = true;
    s->msg.max_workers = v.max_workers;
    s->msg.has_grace_left_ms = v.grace_left_ms > 0;
    s->msg.grace_left_ms = v.grace_left_ms;
    s->msg.restarts = v.restarts;
    s->msg.layout_why = (char *)v.layout_why;
    s->msg.submitted_ms = v.submitted_ms;
    s->msg.has_uid = true;
    s->msg.uid = v.uid;
    s->msg.user = (char *)rpc_caller_name(server, v.uid, s->user, sizeof(s->user));
    s->msg.checkpoint_dir = v.spec->checkpoint.dir;
    s->msg.checkpoint_error = v.checkpoint_error[0] ? (char *)v.checkpoint_error : NULL;
    err_t err = OK;
    if (v.metrics->has_last) {
        err = metric_encode(&v.metrics->last, &s->last);
        s->msg.last = &s->last;
    }
    fill_stragglers(s, j);
    fill_ages(s, server->replica, &v);
    if (!err && !job_over(j)) {
        err = totals_encode(v.totals, &s->totals);
        s->msg.totals = &s->totals.msg;
    }
    if (state)
        fill_state(s, state);
    if (full)
        fill_saved_age(s, server->replica, v.id);
    if (!err && full)
        err = fill_lists(s, j, state);
    if (err)
        job_status_fini(s);
    return err;
}

void job_status_hide(struct job_status *s)
{
    s->msg.reason = s->msg.parent = s->msg.checkpoint_dir = s->msg.checkpoint_error = NULL;
    s->msg.has_checkpoint_step = s->msg.has_saved_age_ms = s->msg.has_last_age_ms = false;
    s->msg.step = s->msg.steps = 0;
    s->msg.last = NULL;
    s->msg.n_straggler = 0;
    s->msg.totals = NULL;
}

void job_status_fini(struct job_status *s)
{
    for (size_t k = 0; k < s->msg.n_incident; k++)
        fields_encoded_fini(&s->incidents[k].base);
    if (s->msg.start)
        fields_encoded_fini(&s->start.base);
    s->msg.start = NULL;
    if (s->last.base.descriptor)
        fields_encoded_fini(&s->last.base);
    if (s->totals.msg.base.descriptor)
        fields_encoded_fini(&s->totals.msg.base);
    s->msg.n_incident = 0;
    free(s->workers);
    free(s->worker_refs);
    free(s->incidents);
    free(s->incident_refs);
    s->workers = NULL;
    s->worker_refs = NULL;
    s->incidents = NULL;
    s->incident_refs = NULL;
}
