/* Incidents: the failure, the decision, and the duration of the recovery and of each of its parts. A record is appended
 * to the log when an incident is opened and whenever one of its fields changes; a later record with the same wall time
 * replaces the earlier one. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void incident_logged(void *owner, uint64_t job, const struct state_result *result)
{
    struct jobs *jobs = owner;
    struct job *j = jobs_find(jobs, job);
    if (!j || --j->incidents_due)
        return;
    jobs_tick(jobs);
}

static void log_incident(struct job *j)
{
    struct incident *i = &j->incident.fields;
    i->restarts = j->incident.ends ? j->restarts : -1;
    const struct record r = {.kind = RECORD_INCIDENT, .wall_ms = i->wall_ms, .job = j->id, .incident = *i};
    if (outbox_add(&j->jobs->outbox, &r, incident_logged))
        log_error("incident not logged job=%" PRIu64 " seen=%s", j->id, i->seen);
    else
        j->incidents_due++;
    j->dirty = true;
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

void job_incident_attach_error(struct job *j, int rank, const char *error, int64_t when_s)
{
    struct job_incident *i = &j->incident;
    char when[40] = "";
    char *text;
    struct tm tm;
    time_t t = (time_t)when_s;
    if (!i->open || !error || when_s * 1000 > i->fields.wall_ms || (i->fields.error && when_s >= i->error_s))
        return;
    if (when_s > 0 && gmtime_r(&t, &tm))
        strftime(when, sizeof(when), " at %Y-%m-%dT%H:%M:%SZ", &tm);
    if (asprintf(&text, "rank %d%s: %s", rank, when, error) < 0)
        return;
    free((char *)i->fields.error);
    i->fields.error = text;
    i->error_s = when_s;
    log_incident(j);
}

void job_incident_record(struct job *j, double detect_ms, const char *seen, const char *decided)
{
    if (j->incident.open)
        return;
    job_incident_open(j, seen, detect_ms, true);
    job_incident_decided(j, "%s", decided);
    j->incident.open = false;
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

/* Returns the duration in ms of the part of the recovery that ends now. */
static double end_part(struct job_incident *i)
{
    int64_t now = clock_mono_ns();
    double ms = (double)(now - i->part_ns) / 1e6;
    i->part_ns = now;
    return ms;
}

void job_incident_phase(struct job *j, enum job_phase to)
{
    struct job_incident *i = &j->incident;
    if (i->open && to == PHASE_LOADING)
        i->fields.restart_ms = end_part(i);
    else if (i->open && to == PHASE_STEPPING)
        i->fields.load_ms = end_part(i);
}

/* The first METRIC may precede the last READY. That rank then counts as loaded, so that the durations of the parts
 * still add up to the total. */
void job_incident_recovered(struct job *j)
{
    struct job_incident *i = &j->incident;
    if (!i->open || !job_in_epoch(j)) /* a late report of the epoch that failed */
        return;
    i->open = false;
    if (!isnan(i->fields.restart_ms) && isnan(i->fields.load_ms))
        i->fields.load_ms = end_part(i);
    double step_ms = end_part(i);
    if (!isnan(i->fields.load_ms))
        i->fields.step_ms = step_ms;
    i->fields.recover_ms = (double)(i->part_ns - i->decided_ns) / 1e6;
    log_incident(j);
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
