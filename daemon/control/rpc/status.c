/* The messages borrow strings, because packing only reads them: hence the casts that remove const. */
#include "daemon/control/rpc/status.h"

#include "common/rpc/field_codec.h"
#include "daemon/control/control.h"
#include "daemon/control/rpc/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *worker_state(const struct job *j, const struct job_worker *w)
{
    switch (w->p.state) {
    case PROCESS_ABSENT:
        return "absent";
    case PROCESS_ENDED:
        return "ended";
    case PROCESS_ASKED:
    case PROCESS_LIVE:
        break;
    }
    if (job_is_command(&j->spec))
        return w->p.state == PROCESS_LIVE ? "running" : "starting";
    if (!w->p.attend)
        return w->p.attended ? "silent" : "starting";
    if (w->done)
        return "done";
    if (!w->epoch || w->epoch != j->epoch)
        return "idle";
    return w->ready ? "running" : "loading";
}

static void fill_worker(Dtd__WorkerStatus *m, const struct job *j, int rank)
{
    const struct job_worker *w = &j->workers[rank];
    dtd__worker_status__init(m);
    m->rank = rank;
    m->pid = w->p.pid;
    m->state = (char *)worker_state(j, w);
    m->has_exit_status = w->p.has_exit && !w->p.exit_signal;
    m->exit_status = w->p.exit_status;
    m->has_exit_signal = w->p.has_exit && w->p.exit_signal;
    m->exit_signal = w->p.exit_signal;
    m->node = w->p.agent ? (char *)w->p.agent->name : NULL;
}

static void *need(size_t n, size_t size)
{
    return calloc(n ? n : 1, size);
}

static err_t fill_lists(struct job_status *s, const struct job *j, const struct state_job *state)
{
    size_t nw = (size_t)j->n_workers, ni = state ? (size_t)state->n_incidents : 0;
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
    s->msg.n_worker = nw;
    s->msg.worker = s->worker_refs;
    s->msg.incident = s->incident_refs;
    s->msg.spec_yaml = j->yaml;
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

/* The job's own reason, or else the warning of the log: while the log accepts no records, the job continues, but its
 * progress is not recorded. */
static const char *reason_of(const struct job *j)
{
    const char *full = job_over(j) || !j->node->log ? NULL : log_warning(j->node->log);
    return j->reason[0] ? j->reason : full;
}

err_t job_status_fill(struct job_status *s, struct job *j, bool full)
{
    const struct state_job *state = state_job_find(j->node->state, j->id);
    *s = (struct job_status){.msg = DTD__JOB_STATUS__INIT};
    snprintf(s->id, sizeof(s->id), "%" PRIu64, j->id);
    s->msg.job = s->id;
    s->msg.name = j->spec.name;
    s->msg.state = (char *)fsm_name(&j->state);
    s->msg.reason = (char *)reason_of(j);
    s->msg.epoch = j->epoch;
    s->msg.step = job_step(j);
    s->msg.steps = j->spec.train.steps;
    s->msg.workers = j->n_workers;
    s->msg.restarts = j->restarts;
    s->msg.submitted_ms = j->submitted_ms;
    s->msg.has_uid = true;
    s->msg.uid = j->uid;
    s->msg.user = (char *)rpc_server_user(j->uid, s->user, sizeof(s->user));
    s->msg.checkpoint_dir = j->spec.checkpoint.dir;
    s->msg.checkpoint_error = j->checkpoint_error[0] ? j->checkpoint_error : NULL;
    err_t err = OK;
    if (j->metrics.has_last) {
        err = metric_encode(&j->metrics.last, &s->last);
        s->msg.last = &s->last;
    }
    if (state)
        fill_state(s, state);
    if (!err && full)
        err = fill_lists(s, j, state);
    if (err)
        job_status_fini(s);
    return err;
}

void job_status_hide(struct job_status *s)
{
    s->msg.reason = s->msg.parent = s->msg.checkpoint_dir = s->msg.checkpoint_error = NULL;
    s->msg.has_checkpoint_step = false;
    s->msg.step = s->msg.steps = 0;
    s->msg.last = NULL;
}

void job_status_fini(struct job_status *s)
{
    for (size_t k = 0; k < s->msg.n_incident; k++)
        fields_encoded_fini(&s->incidents[k].base);
    if (s->last.base.descriptor)
        fields_encoded_fini(&s->last.base);
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
