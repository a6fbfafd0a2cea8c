/* Incidents: the failure, the decision, and the duration of the recovery and of each of its parts. A record is appended
 * to the log when an incident is opened and whenever one of its fields changes; a later record with the same wall time
 * replaces the earlier one. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void incident_logged(void *owner, uint64_t job, const struct state_result *result)
{
    struct jobs *jobs = owner;
    struct job *j = jobs_find(jobs, job);
    if (!j)
        return;
    j->dirty = true; /* the status has the incident only now */
    if (--j->incidents_due == 0)
        jobs_tick(jobs);
}

static void log_fields(struct job *j, const struct incident *i, int64_t wall_ms)
{
    const struct record r = {.kind = RECORD_INCIDENT, .wall_ms = wall_ms, .job = j->id, .incident = *i};
    if (outbox_add(&j->jobs->outbox, &r, incident_logged))
        log_error("incident not logged job=%" PRIu64 " seen=%s", j->id, i->seen);
    else
        j->incidents_due++;
    j->dirty = true;
}

static void log_incident(struct job *j)
{
    struct incident *i = &j->incident.fields;
    i->restarts = j->incident.ends ? j->restarts : -1;
    log_fields(j, i, i->wall_ms);
}

void job_incident_open(struct job *j, const char *seen, double detect_ms, bool by_exit)
{
    struct job_incident *i = &j->incident;
    const int64_t now = clock_mono_ns();
    free((char *)i->fields.log);
    free((char *)i->fields.error);
    *i = (struct job_incident){.open = true,
                               .by_exit = by_exit,
                               .fields = incident_none,
                               .decided_ns = now,
                               .part_ns = now,
                               .step = j->metrics.has_last && j->metrics.last.epoch == j->epoch ? job_step(j) : -1};
    snprintf(i->seen, sizeof(i->seen), "%s", seen);
    i->fields.epoch = j->epoch;
    i->fields.wall_ms = clock_wall_ms();
    i->fields.seen = i->seen;
    i->fields.decided = i->decided;
    i->fields.detect_ms = detect_ms;
    log_warn("incident job=%" PRIu64 " epoch=%" PRIu64 " detect_ms=%.1f seen=%s", j->id, j->epoch, detect_ms, seen);
}

/* Appends which workers were killed. */
static void append_killed(struct job_incident *i)
{
    size_t len = strlen(i->decided);
    if (i->killed[0])
        snprintf(i->decided + len, sizeof(i->decided) - len, "; %s", i->killed);
}

void job_incident_decided(struct job *j, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(j->incident.decided, sizeof(j->incident.decided), fmt, ap);
    va_end(ap);
    append_killed(&j->incident);
    log_incident(j);
}

void job_incident_attach_log(struct job *j, const char *log, bool by_exit)
{
    struct job_incident *i = &j->incident;
    if (!i->open || !log || (i->fields.log && (i->log_by_exit || !by_exit)))
        return;
    free((char *)i->fields.log);
    i->fields.log = strdup(log);
    i->log_by_exit = by_exit;
    log_incident(j);
}

/* By ages, because the dates of nodes differ. The date in the text is this leader's, as that of the incident is. */
void job_incident_attach_error(struct job *j, int rank, const char *error, int64_t ago_ms)
{
    struct job_incident *i = &j->incident;
    char when[40] = "";
    char *text;
    struct tm tm;
    const bool known = ago_ms >= 0;
    const int64_t at_ms = known ? clock_mono_ms() - ago_ms : INT64_MAX;
    time_t wall = (time_t)((clock_wall_ms() - ago_ms) / 1000);
    if (!i->open || !error || (known && at_ms > i->decided_ns / 1000000) || (i->fields.error && at_ms >= i->error_ms))
        return;
    if (known && gmtime_r(&wall, &tm))
        strftime(when, sizeof(when), " at %Y-%m-%dT%H:%M:%SZ", &tm);
    if (asprintf(&text, "rank %d%s: %s", rank, when, error) < 0)
        return;
    free((char *)i->fields.error);
    i->fields.error = text;
    i->error_ms = at_ms;
    log_incident(j);
}

static void record_closed(struct job *j, double detect_ms, const char *seen, const char *decided, enum event_kind kind)
{
    if (j->incident.open)
        return;
    job_incident_open(j, seen, detect_ms, true);
    j->incident.fields.event = kind;
    job_incident_decided(j, "%s", decided);
    j->incident.open = false;
}

void job_incident_record(struct job *j, double detect_ms, const char *seen, const char *decided)
{
    record_closed(j, detect_ms, seen, decided, EVENT_NONE);
}

void job_incident_save_failed(struct job *j, const char *seen)
{
    record_closed(j, 0, seen, "training continues; the next save is attempted on schedule", EVENT_CHECKPOINT_FAILED);
}

void job_incident_killed(struct job *j, const char *seen, const char *words)
{
    struct job_incident *i = &j->incident;
    if (i->open) {
        snprintf(i->killed, sizeof(i->killed), "%s", words);
        append_killed(i);
        log_incident(j);
    } else {
        job_incident_record(j, 0, seen, words);
    }
}

/* ---- durations ---- */

/* Returns the duration in ms of the part that ends now. */
static double end_part(int64_t *part_ns)
{
    int64_t now = clock_mono_ns();
    double ms = (double)(now - *part_ns) / 1e6;
    *part_ns = now;
    return ms;
}

/* The part that ends when the job enters a phase; 0: none. */
static const size_t part_before[] = {
    [PHASE_GATHERING] = offsetof(struct incident, slots_ms), [PHASE_SCANNING] = offsetof(struct incident, connect_ms),
    [PHASE_COMMITTING] = offsetof(struct incident, scan_ms), [PHASE_LOADING] = offsetof(struct incident, log_ms),
    [PHASE_STEPPING] = offsetof(struct incident, load_ms),
};

static void end_phase(struct incident *fields, int64_t begin_ns, int64_t *part_ns, enum job_phase to)
{
    size_t at = (size_t)to < sizeof(part_before) / sizeof(part_before[0]) ? part_before[to] : 0;
    if (at)
        *(double *)(void *)((char *)fields + at) = end_part(part_ns);
    if (to == PHASE_LOADING)
        fields->restart_ms = (double)(*part_ns - begin_ns) / 1e6;
}

void job_incident_phase(struct job *j, enum job_phase to)
{
    struct job_incident *i = &j->incident;
    struct job_start *s = &j->start;
    if (i->open)
        end_phase(&i->fields, i->decided_ns, &i->part_ns, to);
    if (to == PHASE_ENDING || to == PHASE_QUITTING || to == PHASE_REJOINING)
        s->open = false; /* from here on, incidents measure; a new leader has not seen all parts */
    if (s->open)
        end_phase(&s->fields, s->begin_ns, &s->part_ns, to);
}

static const size_t load_fields[LOAD_PARTS] = {
    [LOAD_DATA] = offsetof(struct incident, data_ms),   [LOAD_PLAN] = offsetof(struct incident, plan_ms),
    [LOAD_JOIN] = offsetof(struct incident, join_ms),   [LOAD_MEMORY] = offsetof(struct incident, memory_ms),
    [LOAD_STATE] = offsetof(struct incident, state_ms),
};

static void keep_slowest(struct incident *fields, const double part_ms[LOAD_PARTS])
{
    double now = 0, before = 0;
    for (int k = 0; k < LOAD_PARTS; k++) {
        now += part_ms[k];
        before += *(double *)(void *)((char *)fields + load_fields[k]);
    }
    for (int k = 0; k < LOAD_PARTS && !(now <= before); k++) /* `before` is NAN at first */
        *(double *)(void *)((char *)fields + load_fields[k]) = part_ms[k];
}

void job_incident_loaded(struct job *j, const double part_ms[LOAD_PARTS])
{
    if (j->incident.open)
        keep_slowest(&j->incident.fields, part_ms);
    if (j->start.open)
        keep_slowest(&j->start.fields, part_ms);
}

/* The first METRIC may precede the last READY. That rank then counts as loaded, so that the durations of the parts
 * still add up to the total. */
static void end_step(struct incident *fields, int64_t begin_ns, int64_t *part_ns)
{
    if (!isnan(fields->restart_ms) && isnan(fields->load_ms))
        fields->load_ms = end_part(part_ns);
    double step_ms = end_part(part_ns);
    if (!isnan(fields->load_ms))
        fields->step_ms = step_ms;
    fields->recover_ms = (double)(*part_ns - begin_ns) / 1e6;
}

static void record_start(struct job *j)
{
    struct job_start *s = &j->start;
    snprintf(s->decided, sizeof(s->decided), "epoch %" PRIu64 " with %d workers", j->epoch, j->n_workers);
    s->fields.epoch = j->epoch;
    s->fields.decided = s->decided;
    log_fields(j, &s->fields, clock_wall_ms());
    log_info("started job=%" PRIu64 " ms=%.0f restart_ms=%.0f load_ms=%.0f step_ms=%.0f", j->id, s->fields.recover_ms,
             s->fields.restart_ms, s->fields.load_ms, s->fields.step_ms);
}

void job_incident_recovered(struct job *j)
{
    struct job_incident *i = &j->incident;
    struct job_start *s = &j->start;
    if (!job_in_epoch(j)) /* a late report of the epoch that failed */
        return;
    if (i->open) {
        i->open = false;
        end_step(&i->fields, i->decided_ns, &i->part_ns);
        log_incident(j);
        job_totals_recovered(&j->totals, true, i->fields.recover_ms, j->n_workers);
    }
    if (s->open) {
        s->open = false;
        end_step(&s->fields, s->begin_ns, &s->part_ns);
        record_start(j);
        job_totals_recovered(&j->totals, false, s->fields.recover_ms, j->n_workers);
    }
}

void job_incident_start(struct job *j)
{
    struct job_start *s = &j->start;
    const struct state_job *logged = state_job_find(j->jobs->replica->state, j->id);
    const int64_t waited_ms = logged && logged->submitted_clock_ms
                                  ? state_clock_ms(j->jobs->replica->clock) - logged->submitted_clock_ms
                                  : clock_wall_ms() - j->submitted_ms;
    *s = (struct job_start){.open = true, .fields = incident_none};
    s->part_ns = s->begin_ns = clock_mono_ns() - (waited_ms > 0 ? waited_ms : 0) * 1000000;
    s->fields.is_start = true;
    s->fields.seen = "submitted";
    s->fields.wall_ms = j->submitted_ms;
}

/* Peers' failure reports often arrive before the SIGCHLD of the worker that exited and are less precise, so an exit
 * replaces the recorded cause. */
void job_incident_better_cause(struct job *j, const char *seen)
{
    if (!j->incident.open || j->incident.by_exit)
        return;
    snprintf(j->incident.seen, sizeof(j->incident.seen), "%s", seen);
    j->incident.by_exit = true;
    log_incident(j);
}
