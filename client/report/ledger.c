/* The time of a job is swept once from its slots to its end. Each piece of it is given to one part (a step to several),
 * times the number of workers then, and the next piece begins where it ended. So nothing is counted twice or left out,
 * whatever dates the clocks of the nodes have; times that go backwards make pieces of length zero.
 *
 * Only the newest row of a step is known. The rows of lost steps are gone, so the time between the last row of an epoch
 * and the failure is theirs, with the step that the failure broke off. Where control has no time of the failure,
 * because it did not run then, lost steps have at most twice the time of as many median steps; the rest is
 * detection. */
#include "client/report/ledger.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define X(id, name, label, meaning) [LEDGER_##id] = {name, label, meaning},
const struct ledger_row ledger_rows[LEDGER_COUNT] = {LEDGER_PARTS(X)};
#undef X

struct sweep {
    const struct client_job *job;
    const struct metric *row;
    size_t n;
    const int64_t *saved; /* ascending steps that have a checkpoint */
    int n_saved;
    int64_t every;
    const struct ledger_waits *waits;
    int64_t at, end, step_ms; /* step_ms: median of all steps */
    struct ledger *l;
};

static void spend(struct sweep *s, int64_t until, int64_t workers, enum ledger_part part)
{
    until = until < s->end ? until : s->end;
    if (until <= s->at)
        return;
    s->l->part_ms[part] += (until - s->at) * workers;
    s->l->total_ms += (until - s->at) * workers;
    s->l->stall_ms += part == LEDGER_STALL ? until - s->at : 0;
    s->at = until;
}

static int compare_int64(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static bool was_saved(const struct sweep *s, int64_t step)
{
    if (s->every > 0 && step % s->every == 0)
        return true;
    return s->n_saved && bsearch(&step, s->saved, (size_t)s->n_saved, sizeof(step), compare_int64);
}

static int64_t ms_of(double seconds)
{
    return isfinite(seconds) && seconds > 0 && seconds < 1e12 ? llround(seconds * 1e3) : 0;
}

static int64_t duration(double ms)
{
    return isfinite(ms) && ms > 0 && ms < 1e15 ? (int64_t)ms : 0;
}

/* ---- steps ---- */

/* What a step does with its time, apart from the part that ranks wait. */
static void spend_step(struct sweep *s, const struct metric *m, int64_t until, enum ledger_part part)
{
    const int64_t before = s->l->part_ms[part];
    spend(s, until, m->workers, part);
    if (part != LEDGER_PRODUCTIVE || !s->waits)
        return;
    const double share = s->waits->at(s->waits->arg, m->wall_ms);
    if (share > 0 && share < 1) {
        const int64_t wait = (int64_t)((double)(s->l->part_ms[part] - before) * share);
        s->l->part_ms[LEDGER_WAITING] += wait;
        s->l->part_ms[part] -= wait;
    }
}

/* Training between the row before and this one: the stall of a save, then the step, then the evaluation. Steps between
 * them whose rows control has thinned out count as long as this one. */
static void spend_row(struct sweep *s, const struct metric *m, const struct metric *before, bool lost)
{
    const int64_t steps = before && m->step > before->step ? m->step - before->step : 1;
    const int64_t step = duration((double)ms_of(m->step_s) * (double)steps), gap = m->wall_ms - s->at,
                  excess = gap > step ? gap - step : 0;
    const bool evaluated = !isnan(m->valid_loss) || !isnan(m->test_loss);
    const enum ledger_part part = lost ? LEDGER_RECOMPUTED : m->skipped ? LEDGER_SKIPPED : LEDGER_PRODUCTIVE;
    const bool saved = before && was_saved(s, before->step);
    s->l->saves += saved;
    if (!evaluated)
        spend(s, s->at + excess, m->workers, saved ? LEDGER_STALL : LEDGER_OTHER);
    spend_step(s, m, evaluated ? s->at + step : m->wall_ms, part);
    if (evaluated)
        spend(s, m->wall_ms, m->workers, LEDGER_EVALUATION);
}

/* ---- epochs ---- */

struct span {
    size_t from, until;           /* rows of the epoch */
    const struct incident *last;  /* the incident that ended it; NULL: none */
    const struct incident *began; /* the incident, or the start, whose recovery it is; NULL: unknown */
    bool first, newest;
};

/* An incident of dtd-io does not end its epoch: steps follow it. */
static const struct incident *ended_by(const struct sweep *s, uint64_t epoch, const struct span *p)
{
    const struct incident *last = NULL;
    for (int i = 0; i < s->job->n_incident; i++)
        if (s->job->incident[i].epoch == epoch)
            last = &s->job->incident[i];
    if (last && p->until > p->from && s->row[p->until - 1].wall_ms > last->wall_ms)
        return NULL;
    return last;
}

static int64_t workers_of(const struct sweep *s, const struct span *p)
{
    if (p->until > p->from)
        return s->row[p->from].workers;
    if (p->from > 0)
        return s->row[p->from - 1].workers;
    if (s->n)
        return s->row[0].workers;
    return s->job->max_workers > 0 ? s->job->max_workers : s->job->workers;
}

/* When the first step of the epoch began. Without a row of it, the recovery's durations have it, or nothing has. */
static int64_t first_step_at(const struct sweep *s, const struct span *p)
{
    const struct metric *m = &s->row[p->from];
    const bool known = p->began && !isnan(p->began->restart_ms) && !isnan(p->began->load_ms);
    const int64_t begin =
        known ? p->began->wall_ms + duration(p->began->restart_ms) + duration(p->began->load_ms) : INT64_MAX;
    if (p->until == p->from)
        return begin;
    return m->wall_ms - ms_of(m->step_s) < begin ? m->wall_ms - ms_of(m->step_s) : begin;
}

static void spend_failure(struct sweep *s, const struct span *p, int64_t workers)
{
    const struct incident *in = p->last;
    const int64_t lost = in->lost_steps > 0 ? in->lost_steps : 0;
    const int64_t failed = in->wall_ms - duration(in->detect_ms);
    const int64_t most = in->detect_ms > 0 ? failed : s->at + 2 * (lost + 1) * s->step_ms;
    spend(s, failed < most ? failed : most, workers, LEDGER_RECOMPUTED);
    spend(s, in->wall_ms, workers, LEDGER_DETECTION);
}

static void spend_epoch(struct sweep *s, const struct span *p)
{
    const int64_t workers = workers_of(s, p), begin = first_step_at(s, p);
    /* Steps after the checkpoint are lost, too, if the next epoch has repeated none of them yet. */
    const int64_t kept = p->last && p->last->lost_steps > 0 && p->newest && p->until > p->from
                             ? s->row[p->until - 1].step - p->last->lost_steps
                             : INT64_MAX;
    const int64_t decided = p->last ? p->last->wall_ms : s->end;
    spend(s, begin < decided ? begin : decided, workers, p->first ? LEDGER_STARTING : LEDGER_RESTART);
    for (size_t i = p->from; i < p->until; i++)
        spend_row(s, &s->row[i], i > p->from ? &s->row[i - 1] : NULL, s->row[i].step > kept);
    if (p->last)
        spend_failure(s, p, workers);
}

static uint64_t next_epoch(const struct sweep *s, uint64_t after)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < s->job->n_incident; i++)
        if (s->job->incident[i].epoch > after && s->job->incident[i].epoch < next)
            next = s->job->incident[i].epoch;
    return next;
}

static void sweep_epochs(struct sweep *s)
{
    uint64_t epoch = 0;
    const struct incident *began = s->job->start.epoch ? &s->job->start : NULL;
    bool first = true;
    for (size_t i = 0;;) {
        struct span p = {.from = i, .until = i, .began = began, .first = first};
        const uint64_t without = next_epoch(s, epoch), with = i < s->n ? s->row[i].epoch : UINT64_MAX;
        epoch = with < without ? with : without;
        if (epoch == UINT64_MAX)
            break;
        while (p.until < s->n && s->row[p.until].epoch <= epoch)
            p.until++;
        p.newest = p.until == s->n;
        p.last = ended_by(s, epoch, &p);
        spend_epoch(s, &p);
        i = p.until;
        began = p.last;
        first = false;
    }
    /* After the last row or incident: the epoch that is running, starting or ending now. */
    const struct span rest = {.from = s->n, .until = s->n, .began = began};
    const enum ledger_part part = first                      ? LEDGER_STARTING
                                  : began                    ? LEDGER_RESTART
                                  : client_job_ended(s->job) ? LEDGER_ENDING
                                                             : LEDGER_OTHER;
    spend(s, s->end, workers_of(s, &rest), part);
}

/* ---- all of it ---- */

static err_t median_step(struct sweep *s)
{
    if (!s->n)
        return OK;
    int64_t *all = malloc(s->n * sizeof(*all));
    if (!all)
        return ERR_NOMEM;
    for (size_t i = 0; i < s->n; i++)
        all[i] = ms_of(s->row[i].step_s);
    qsort(all, s->n, sizeof(*all), compare_int64);
    s->step_ms = all[s->n / 2];
    free(all);
    return OK;
}

/* Before the first epoch a job has no slots: it waits, or it ended waiting. */
static int64_t slots_at(const struct client_job *job, int64_t end_ms)
{
    if (job->start.epoch)
        return job->submitted_ms + duration(job->start.slots_ms);
    return job->started_ms ? job->submitted_ms : end_ms;
}

err_t ledger_make(const struct client_job *job, const struct metric *row, size_t n, const struct ledger_saves *saves,
                  int64_t end_ms, const struct ledger_waits *waits, struct ledger *ret)
{
    struct ledger l = {0};
    struct sweep s = {.job = job, .row = row, .n = n, .waits = waits, .end = end_ms, .l = &l, .every = saves->every};
    int64_t *saved = calloc((size_t)saves->n + 1, sizeof(*saved));
    err_t err = saved ? median_step(&s) : ERR_NOMEM;
    if (!err) {
        for (int i = 0; i < saves->n; i++)
            saved[i] = saves->checkpoint[i].step;
        qsort(saved, (size_t)saves->n, sizeof(*saved), compare_int64);
        s.saved = saved;
        s.n_saved = saves->n;
        s.at = slots_at(job, end_ms);
        s.at = s.at < end_ms ? s.at : end_ms;
        l.queued_ms = s.at > job->submitted_ms ? s.at - job->submitted_ms : 0;
        l.wall_ms = end_ms - s.at;
        sweep_epochs(&s);
        *ret = l;
    }
    free(saved);
    return err;
}
