/* Reports of workers and dtd-io. A report of an epoch that has ended changes nothing. A report that arrives twice,
 * because its sender lost the connection before the answer, changes nothing the second time. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/metric_line.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FOLDERS 4096        /* limits the memory for one scan; a job keeps far fewer checkpoints */
#define IO_LINES_MAX (1u << 20) /* over 1000 steps, for a dtd-io that cannot be reached */

/* ---- workers ---- */

static void keep_io_line(struct job *j, const struct metric *row)
{
    struct buf *b = &j->io_lines;
    if (metric_line_format(row, b))
        return;
    while (b->len > IO_LINES_MAX) { /* dtd-io has been unreachable for long */
        size_t n = (size_t)((uint8_t *)memchr(b->data, '\n', b->len) - b->data) + 1;
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
        j->io_sent -= j->io_sent < n ? j->io_sent : n;
    }
}

/* A line that is older than the job counts as another job's (is_new_line), so the clock of a worker's node, which may
 * be slow, must not make it older. */
static struct metric dated(const struct job *j, const struct metric *m)
{
    struct metric ret = *m;
    ret.wall_ms = m->wall_ms > j->submitted_ms ? m->wall_ms : j->submitted_ms;
    return ret;
}

static void on_metric(struct job *j, struct job_worker *w, const struct worker_report *r)
{
    const struct metric m = dated(j, r->metric);
    bool repeated = j->metrics.has_last && j->metrics.last.epoch == r->epoch && j->metrics.last.step >= r->metric->step;
    w->ready = true;
    if (repeated || r->epoch != j->epoch)
        return;
    metrics_append(&j->metrics, &m);
    j->metric_ms = clock_mono_ms();
    job_totals_step(&j->totals, &m, j->metric_ms);
    job_hang_step(j);
    keep_io_line(j, &m);
    job_incident_recovered(j);
    j->jobs->out->watch_metric(j, &m);
}

static void on_failed(struct job *j, int rank, const struct worker_report *r)
{
    if (log_limit_line(&j->report_lines, "reports of failures"))
        log_warn("worker failed job=%" PRIu64 " rank=%d epoch=%" PRIu64 " fatal=%d text=%s", j->id, rank, r->epoch,
                 r->fatal, r->text);
    if (j->phase.state >= PHASE_DRAINING) {
        j->workers[rank].done = true;
        return;
    }
    bool is_replaced = r->load_error && r->epoch == j->epoch && job_epoch_unreadable(j, r->load_error, r->text);
    if (r->fatal && !is_replaced) {
        job_epoch_fatal(j, "worker rank %d: %s", rank, r->text);
        return;
    }
    if (r->epoch == j->epoch && !is_replaced)
        job_epoch_lost(j, 0, false, "worker rank %d failed: %s", rank, r->text);
    j->workers[rank].p.failed = true;
    job_process_kill(j, &j->workers[rank].p,
                     SIGKILL); /* it reported that it cannot continue: a new process replaces it */
}

/* If this leader sent no END for the present epoch, a previous leader did. */
static void on_idle(struct job *j, int rank, uint64_t epoch)
{
    struct job_worker *w = &j->workers[rank];
    bool left = w->epoch && w->epoch == j->epoch && j->phase.state == PHASE_LOADING && !j->stopping;
    if (epoch < w->epoch)
        return;
    w->idle = true;
    w->epoch = 0;
    w->ready = false;
    if (left)
        job_epoch_again(j, "the previous leader had ended the epoch at a worker");
}

static void on_save_failed(struct job *j, const char *text)
{
    if (!j->checkpoint_error[0]) /* one incident for consecutive failures */
        job_incident_save_failed(j, text);
    snprintf(j->checkpoint_error, sizeof(j->checkpoint_error), "%s", text);
    j->totals.t.checkpoints_failed++;
    j->dirty = true;
    if (log_limit_line(&j->report_lines, "reports of failures"))
        log_warn("save failed job=%" PRIu64 " text=%s", j->id, text);
}

/* Workers report these while they train, and no other job waits for one of them. */
static bool is_of_this_job_only(enum worker_report_kind kind)
{
    return kind == REPORT_METRIC || kind == REPORT_SAVE_FAILED || kind == REPORT_PROFILED;
}

void job_worker_report(struct job *j, int rank, const struct worker_report *r)
{
    struct job_worker *w = &j->workers[rank];
    switch (r->kind) {
    case REPORT_IDLE:
        on_idle(j, rank, r->epoch);
        break;
    case REPORT_READY:
        w->ready = w->ready || r->epoch == j->epoch;
        if (r->epoch == j->epoch && r->part_ms)
            job_incident_loaded(j, r->part_ms);
        break;
    case REPORT_METRIC:
        if (r->metric)
            on_metric(j, w, r);
        break;
    case REPORT_DONE:
        if (r->epoch == j->epoch) {
            w->ready = w->done = true;
            w->done_step = r->step;
            job_incident_recovered(j);
        }
        break;
    case REPORT_FAILED:
        on_failed(j, rank, r);
        break;
    case REPORT_SAVE_FAILED:
        if (r->epoch == j->epoch)
            on_save_failed(j, r->text);
        break;
    case REPORT_PROFILED:
        job_profile_written(j, rank, r->profile, r->text);
        break;
    }
    if (is_of_this_job_only(r->kind))
        jobs_tick_one(j->jobs, j);
    else
        jobs_tick(j->jobs);
}

/* ---- io ---- */

static void checkpoint_recorded(void *owner, uint64_t job, const struct state_result *result)
{
    struct jobs *jobs = owner;
    struct job *j = jobs_find(jobs, job);
    if (j)
        j->retention_due = j->dirty = true;
}

static err_t add_folder(struct job *j, const struct state_checkpoint *c)
{
    if (j->n_folders == MAX_FOLDERS)
        return ERR_LIMIT;
    struct job_folder *p = realloc(j->folders, (size_t)(j->n_folders + 1) * sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    j->folders = p;
    p[j->n_folders] = (struct job_folder){.c = *c};
    p[j->n_folders].c.path = strdup(c->path);
    if (!p[j->n_folders].c.path)
        return ERR_NOMEM;
    j->n_folders++;
    return OK;
}

/* During a scan, folders that dtd-io finds and folders that it commits need not be distinguished: both exist, and the
 * end of the scan updates the catalog. */
static void on_committed(struct job *j, const struct job_io *io, uint64_t epoch, const struct state_checkpoint *c,
                         const char *low)
{
    if (io->scan == SCAN_ASKED && add_folder(j, c))
        log_error("folder not added to the scan job=%" PRIu64 " path=%s", j->id, c->path);
    if (epoch == 0)
        return;
    log_info("checkpoint committed job=%" PRIu64 " step=%" PRId64 " epoch=%" PRIu64 " bytes=%" PRId64, j->id, c->step,
             c->epoch, c->bytes);
    const struct record r = {.kind = RECORD_CHECKPOINT, .wall_ms = clock_wall_ms(), .job = j->id, .checkpoint = *c};
    if (outbox_add(&j->jobs->outbox, &r, checkpoint_recorded))
        log_error("checkpoint not logged job=%" PRIu64 " step=%" PRId64, j->id, c->step);
    job_totals_saved(&j->totals, c->step, c->bytes, clock_mono_ms());
    j->checkpoint_error[0] = '\0';
    if (*low && !j->disk_low)
        job_incident_record(j, 0, low, "training continues; free some space or lower checkpoint.keep_last");
    j->disk_low = *low;
    j->dirty = true;
    if (j->may_grow && epoch == j->epoch && !j->moving)
        job_grow(j);
}

static void on_scanned(struct job *j, struct job_io *io, const char *text)
{
    if (io->scan != SCAN_ASKED)
        return;
    io->scan = SCAN_DONE;
    if (*text)
        job_epoch_fatal(j, "%s", text);
    else
        job_catalog_scanned(j);
}

/* Whether a line is to be added: it is of this job (an earlier job may have used the folder), and it is newer than the
 * last line of this node's file. */
static bool is_new_line(const struct job *j, const struct metric *row)
{
    bool known = row->epoch < j->known_epoch || (row->epoch == j->known_epoch && row->step <= j->known_step);
    return row->wall_ms >= j->submitted_ms && !known;
}

static void on_history(struct job *j, const char *text)
{
    struct metric row;
    if (j->history != HISTORY_ASKED)
        return;
    j->history_at += (int64_t)strlen(text);
    j->history = *text ? HISTORY_DUE : HISTORY_KNOWN;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        if (metric_line_parse(text, (size_t)(end - text), &row) == OK && is_new_line(j, &row))
            metrics_before(&j->metrics, &row);
    if (j->history == HISTORY_KNOWN)
        metrics_release(&j->metrics);
    else
        metrics_flush(&j->metrics);
}

static void on_removed(struct job *j, const struct state_checkpoint *c)
{
    const struct record r = {
        .kind = RECORD_CHECKPOINT_REMOVED, .wall_ms = clock_wall_ms(), .job = j->id, .removed = {.step = c->step}};
    if (outbox_add(&j->jobs->outbox, &r, NULL))
        log_error("removal not logged job=%" PRIu64 " step=%" PRId64, j->id, c->step);
}

/* Another job has taken the checkpoint folder over. */
static void on_lost(struct job *j, const char *text)
{
    snprintf(j->checkpoint_error, sizeof(j->checkpoint_error), "%s", text);
    job_incident_record(j, 0, text, j->stopping ? "the job ends without this save" : "the job fails");
    job_epoch_fatal(j, "%s", text);
    j->dirty = true;
}

void job_io_report(struct job *j, struct job_process *p, const struct io_report *r)
{
    struct job_io *io = (struct job_io *)p;
    switch (r->kind) {
    case IO_COMMITTED:
        if (r->checkpoint)
            on_committed(j, io, r->epoch, r->checkpoint, r->text);
        break;
    case IO_SAVE_FAILED:
        on_save_failed(j, r->text);
        break;
    case IO_LOST:
        on_lost(j, r->text);
        break;
    case IO_SCANNED:
        on_scanned(j, io, r->text);
        break;
    case IO_HISTORY:
        on_history(j, r->text);
        break;
    case IO_USAGE_HISTORY:
        job_usage_history(j, r->text);
        break;
    case IO_REMOVED:
        if (r->checkpoint)
            on_removed(j, r->checkpoint);
        break;
    }
    jobs_tick(j->jobs);
}
