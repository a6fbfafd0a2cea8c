/* The usage of a job's ranks: from reports to windows, to stragglers, to the file in the state directory, to the file
 * beside the checkpoints, and to clients. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A worker reports once in two seconds, and nothing while it has no connection. */
#define REPORTS_PER_S 1.0
#define REPORTS_AT_ONCE 8.0
#define REFUSED_MS 60000
#define WINDOW_MAX_MS 86400000 /* a step may take hours */
#define VALUE_MAX 1e21         /* FLOPs of a step of the largest models */

#define IO_USAGE_MAX (4u << 20)  /* hours, for a dtd-io that cannot be reached */
#define IO_USAGE_SEND (1u << 20) /* at once; a command has at most 2 MiB */
#define HISTORY_MS 60000         /* a shared file system that is slow */
#define IO_USAGE_MS 1000         /* one write per second to a file on a shared file system */

/* ---- reports ---- */

static bool is_value(double x)
{
    return isnan(x) || (x >= 0 && x <= VALUE_MAX);
}

bool job_usage_valid(const struct usage_report *r)
{
    bool valid =
        r->window_ms > 0 && r->window_ms <= WINDOW_MAX_MS && r->steps > 0 && r->steps <= INT32_MAX && r->step >= 0;
    for (int f = 0; f < USAGE_COUNT; f++)
        valid = valid && is_value(field_get(&usage_fields.field[f], &r->usage).real);
    return valid;
}

bool job_usage_allowed(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    const int64_t now = clock_mono_ms();
    const double more = w->usage_ms ? (double)(now - w->usage_ms) * 1e-3 * REPORTS_PER_S : REPORTS_AT_ONCE;
    w->usage_credit = fmin(w->usage_credit + more, REPORTS_AT_ONCE);
    w->usage_ms = now;
    if (w->usage_credit < 1)
        return false;
    w->usage_credit--;
    return true;
}

bool job_usage_refused(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    const int64_t now = clock_mono_ms();
    if (now < w->usage_refused_ms)
        return false;
    w->usage_refused_ms = now + REFUSED_MS;
    return true;
}

static err_t name_nodes(const struct job *j, struct usage_sample *s)
{
    err_t err = OK;
    for (int r = 0; !err && r < s->ranks && r < j->n_workers; r++)
        err = usage_sample_set_node(s, r, j->workers[r].p.node ? j->workers[r].p.node->name : "");
    return err;
}

static bool is_listed(const struct straggler *list, int n, int rank)
{
    for (int i = 0; i < n && i < JOB_STRAGGLERS_MAX; i++)
        if (list[i].rank == rank)
            return true;
    return false;
}

/* An event for each rank that is in only one of the lists. */
static void record_stragglers(struct job *j, const struct usage_sample *s, const struct straggler *before, int n_before,
                              const struct straggler *now, int n_now)
{
    char text[120];
    for (int i = 0; i < n_now && i < JOB_STRAGGLERS_MAX; i++) {
        snprintf(text, sizeof(text), "rank %d computes %.2f times as long as the median", now[i].rank, now[i].ratio);
        if (!is_listed(before, n_before, now[i].rank))
            jobs_event_record(j->jobs, j->id, EVENT_STRAGGLER, s->node[now[i].rank], text);
    }
    for (int i = 0; i < n_before && i < JOB_STRAGGLERS_MAX; i++) {
        snprintf(text, sizeof(text), "rank %d no longer computes longer than the others", before[i].rank);
        if (!is_listed(now, n_now, before[i].rank))
            jobs_event_record(j->jobs, j->id, EVENT_STRAGGLER_GONE,
                              before[i].rank < s->ranks ? s->node[before[i].rank] : "", text);
    }
}

static void find_stragglers(struct job *j, const struct usage_sample *s)
{
    bool changed = false;
    struct straggler list[JOB_STRAGGLERS_MAX], before[JOB_STRAGGLERS_MAX];
    int n_before = stragglers_list(&j->stragglers, before, JOB_STRAGGLERS_MAX);
    if (stragglers_add(&j->stragglers, s, &changed))
        log_warn("stragglers not found job=%" PRIu64 " error=%s", j->id, err_text(ERR_NOMEM));
    if (!changed)
        return;
    int n = stragglers_list(&j->stragglers, list, JOB_STRAGGLERS_MAX);
    log_info("stragglers changed job=%" PRIu64 " epoch=%" PRIu64 " n=%d", j->id, j->epoch, n);
    for (int i = 0; i < n && i < JOB_STRAGGLERS_MAX; i++)
        log_info("straggler job=%" PRIu64 " rank=%d node=%s ratio=%.2f", j->id, list[i].rank, s->node[list[i].rank],
                 list[i].ratio);
    record_stragglers(j, s, before, n_before, list, n);
    j->dirty = true;
}

static void drop_oldest(struct job *j)
{
    struct buf *b = &j->io_usage;
    while (b->len > IO_USAGE_MAX) {
        const size_t n = (size_t)((uint8_t *)memchr(b->data, '\n', b->len) - b->data) + 1;
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
    }
}

/* Readers ask for the windows after the last one that they have, so the dates ascend although a clock may be set back,
 * or another leader's is behind. */
static int64_t date_of(const struct job *j, const struct usage_sample *s)
{
    const int64_t now = clock_wall_ms(), newest = j->usage_newest.wall_ms;
    int64_t last = j->usage.last_ms > newest ? j->usage.last_ms : newest;
    last = last > j->submitted_ms ? last : j->submitted_ms;
    return now > last ? now : last + s->window_ms;
}

static void take_window(struct job *j, struct usage_sample *s)
{
    s->wall_ms = date_of(j, s);
    err_t err = name_nodes(j, s);
    if (err) {
        log_warn("usage lost job=%" PRIu64 " error=%s", j->id, err_text(err));
        return;
    }
    find_stragglers(j, s);
    usage_sample_fini(&j->usage_newest);
    if (usage_sample_copy(s, &j->usage_newest))
        j->usage_newest = (struct usage_sample){0};
    usage_file_add(&j->usage, s, j->kind->saves ? &j->io_usage : NULL);
    drop_oldest(j);
    j->jobs->out->watch_usage(j, s);
}

void job_usage_report(struct job *j, int rank, uint64_t epoch, const struct usage_report *r)
{
    struct usage_sample s;
    if (epoch != j->epoch || rank < 0 || rank >= j->n_workers)
        return;
    err_t err = usage_windows_add(&j->usage_windows, epoch, j->n_workers, rank, r, &s);
    if (err) {
        log_warn("usage lost job=%" PRIu64 " error=%s", j->id, err_text(err));
        return;
    }
    if (s.ranks)
        take_window(j, &s);
    usage_sample_fini(&s);
}

/* ---- beside the checkpoints ---- */

/* Up to the last line that fits. */
static size_t send_bytes(const struct buf *b)
{
    if (b->len <= IO_USAGE_SEND)
        return b->len;
    const uint8_t *end = memrchr(b->data, '\n', IO_USAGE_SEND);
    return end ? (size_t)(end - b->data) + 1 : 0;
}

/* What was sent is not kept for a dtd-io that replaces this one: the file then lacks a second. */
void job_usage_send(struct job *j, struct rpc_call *committer)
{
    struct buf *b = &j->io_usage;
    const bool ends = j->phase.state >= PHASE_QUITTING;
    if (ends)
        usage_file_close_window(&j->usage, b);
    const size_t n = send_bytes(b);
    if (!n || (!ends && clock_mono_ms() < j->io_usage_ms))
        return;
    if (j->jobs->out->io_usage(committer, (const char *)b->data, n))
        return;
    j->io_usage_ms = clock_mono_ms() + IO_USAGE_MS;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

/* A dtd-io of an older version does not answer. */
void job_usage_ask(struct job *j, struct rpc_call *committer)
{
    const int64_t now = clock_mono_ms();
    if (j->usage_history == HISTORY_ASKED && now >= j->usage_history_ms)
        job_usage_history_failed(j, "dtd-io does not send it");
    if (j->usage_history != HISTORY_DUE || j->jobs->out->io_usage_history(committer, j->usage_history_at))
        return;
    j->usage_history = HISTORY_ASKED;
    j->usage_history_ms = now + HISTORY_MS;
}

/* An earlier job may have used the folder. */
static void take_line(struct job *j, const char *line, size_t len)
{
    struct usage_sample s;
    if (usage_line_parse(line, len, &s))
        return;
    if (s.wall_ms >= j->submitted_ms)
        usage_file_before(&j->usage, line, len);
    usage_sample_fini(&s);
}

void job_usage_history(struct job *j, const char *text)
{
    if (j->usage_history != HISTORY_ASKED)
        return;
    j->usage_history_at += (int64_t)strlen(text);
    j->usage_history = *text ? HISTORY_DUE : HISTORY_KNOWN;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        take_line(j, text, (size_t)(end - text));
    if (j->usage_history == HISTORY_KNOWN)
        usage_file_release(&j->usage);
    else
        usage_file_flush(&j->usage);
}

void job_usage_history_failed(struct job *j, const char *why)
{
    if (j->usage_history == HISTORY_KNOWN)
        return;
    log_warn("usage of earlier leaders is missing job=%" PRIu64 " why=\"%s\"", j->id, why);
    j->usage_history = HISTORY_KNOWN;
    usage_file_release(&j->usage);
}

/* ---- views ---- */

int job_stragglers(const struct job *j, struct straggler *ret, int max)
{
    const bool steps = j->stragglers.epoch == j->epoch && j->phase.state == PHASE_STEPPING;
    const int n = steps ? stragglers_list(&j->stragglers, ret, max) : 0;
    return n < max ? n : max;
}

const struct usage_sample *job_usage_newest(const struct job *j)
{
    return &j->usage_newest;
}

const struct usage_file *job_usage_file(const struct job *j)
{
    return &j->usage;
}
