/* From one epoch to the next: why an epoch failed, whether another one follows, and which checkpoint that one loads.
 * The checkpoint folder is authoritative and the log is its index, so dtd-io lists the folder before every epoch. The
 * record of an epoch is committed before any worker receives START: if dtd-control exits in between, the next leader
 * finds the record and continues with it, and no epoch is started twice. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* A program that cannot start, for example because of an error in the script, fails within seconds of its start; one
 * that has run for longer has done some work, and is restarted at once. */
#define QUICK_FAILURE_MS 10000
/* The first restart is immediate, because most failures do not repeat. The waits before the following ones are 1 s,
 * 2 s, 4 s .. A minute bounds the load and the log of a job that fails for hours, and is short against the time in
 * which a user repairs the cause. */
#define BACKOFF_FIRST_MS 1000
#define BACKOFF_MAX_MS 60000

/* Before a recovery, epochs may have begun that this node's copy of the log does not have, and whose files are in the
 * checkpoint directory. So the next epoch of a job from before gets a number above theirs. */
#define EPOCHS_PER_GENERATION 1000

static uint64_t next_epoch_of(const struct job *j)
{
    uint64_t generation = jobs_generation(j->jobs);
    uint64_t before = j->epoch && generation > 1 ? (generation - 1) * EPOCHS_PER_GENERATION : 0;
    return (j->epoch > before ? j->epoch : before) + 1;
}

/* ---- losing an epoch ---- */

/* A proposal cannot be withdrawn: its epoch will be in the log with these members, although no worker was in it. */
static void epoch_given_up(struct job *j)
{
    if (j->phase.state == PHASE_COMMITTING && !j->epoch_committed)
        j->epoch = j->next_epoch;
}

static void begin_ending(struct job *j, const char *seen)
{
    j->incident.ends = true;
    job_incident_decided(j, "new epoch %" PRIu64, next_epoch_of(j));
    job_move(j, PHASE_ENDING, seen);
}

/* Decides when the next epoch begins. Steps of a training job are work done, so its epoch then counts as long. */
static void back_off(struct job *j)
{
    int64_t now = clock_mono_ms(), wait = 0;
    bool stepped = j->phase.state == PHASE_STEPPING && j->hang.stepped;
    bool quick = !stepped && j->attempt_ms && now - j->attempt_ms < QUICK_FAILURE_MS;
    j->quick_failures = quick ? j->quick_failures + 1 : 0;
    for (int i = 1; i < j->quick_failures && wait < BACKOFF_MAX_MS; i++)
        wait = wait ? 2 * wait : BACKOFF_FIRST_MS;
    wait = wait < BACKOFF_MAX_MS ? wait : BACKOFF_MAX_MS;
    j->retry_ms = wait ? now + wait : 0;
    if (!wait)
        return;
    char when[40];
    struct tm tm;
    time_t wall = (time_t)((clock_wall_ms() + wait) / 1000);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&wall, &tm));
    snprintf(j->reason, sizeof(j->reason),
             "%d epochs in a row failed within %d s of their start; the next one starts at %s. See `dtctl why %" PRIu64
             "`",
             j->quick_failures, QUICK_FAILURE_MS / 1000, when, j->id);
    log_info("next epoch waits job=%" PRIu64 " quick_failures=%d wait_ms=%" PRId64, j->id, j->quick_failures, wait);
}

bool job_epoch_backs_off(struct job *j)
{
    if (!j->retry_ms)
        return false;
    if (clock_mono_ms() < j->retry_ms)
        return true;
    j->retry_ms = 0;
    j->reason[0] = '\0';
    return false;
}

void job_epoch_lost(struct job *j, double detect_ms, bool by_exit, const char *fmt, ...)
{
    char seen[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(seen, sizeof(seen), fmt, ap);
    va_end(ap);
    if (j->phase.state == PHASE_ENDING && by_exit)
        job_incident_better_cause(j, seen);
    if (j->phase.state == PHASE_ENDING || j->phase.state >= PHASE_DRAINING || j->stopping)
        return;
    if (j->adopting) /* job_adopt decides once every node has sent its list; it sees that the process has ended */
        return;
    epoch_given_up(j);
    job_incident_open(j, seen, detect_ms, by_exit);
    j->totals.t.failures++;
    if (j->restarts >= j->spec.run.restarts) {
        job_incident_decided(j, "the job fails: no restarts left (run.restarts: %" PRId64 ")", j->spec.run.restarts);
        char resume[64] = "";
        if (j->kind->saves)
            snprintf(resume, sizeof(resume), "; continue with `dtctl resume %" PRIu64 "`", j->id);
        job_stop(j, END_FAILED, false,
                 "%s; no restarts left (run.restarts: %" PRId64 "). See `dtctl logs %" PRIu64 "`%s", seen,
                 j->spec.run.restarts, j->id, resume);
        job_move(j, PHASE_QUITTING, "no restarts left");
        return;
    }
    j->restarts++;
    back_off(j);
    begin_ending(j, seen);
}

void job_epoch_again(struct job *j, const char *seen)
{
    epoch_given_up(j);
    job_incident_open(j, seen, 0, true);
    begin_ending(j, seen);
}

void job_epoch_ended(struct job *j, const struct incident *by)
{
    struct job_incident *i = &j->incident;
    job_incident_open(j, by->seen, by->detect_ms, true);
    i->fields.log = by->log ? strdup(by->log) : NULL;
    i->fields.error = by->error ? strdup(by->error) : NULL;
    i->log_by_exit = true;
    i->fields.wall_ms = by->wall_ms;
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    int64_t ms = s && s->incident_clock_ms ? state_clock_ms(j->jobs->replica->clock) - s->incident_clock_ms
                                           : clock_wall_ms() - by->wall_ms;
    i->decided_ns -= (ms > 0 ? ms : 0) * 1000000;
    i->part_ns = i->decided_ns;
    begin_ending(j, i->seen); /* the new record frees `by`, so the copy is passed */
}

void job_epoch_resize(struct job *j, const char *seen)
{
    if (j->phase.state != PHASE_STEPPING || j->stopping)
        return;
    j->resize = true;
    j->may_grow = false;
    job_epoch_again(j, seen);
}

void job_epoch_fatal(struct job *j, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (j->stopping || job_over(j))
        return;
    job_stop(j, END_FAILED, false, "%s", text);
    if (j->phase.state < PHASE_DRAINING)
        job_move(j, PHASE_QUITTING, "it cannot continue");
}

/* ---- the next epoch ---- */

/* Returns N of "…/step-N", else 0: the worker then reads the step from the checkpoint that it loads. */
static int64_t step_of_path(const char *path)
{
    const char *name = strrchr(path, '/');
    int64_t step = 0;
    int used = 0;
    if (sscanf(name ? name + 1 : path, "step-%" SCNd64 "%n", &step, &used) != 1 || step < 0)
        return 0;
    return step;
}

static err_t set_resume(struct job *j, const char *path, int64_t step)
{
    char *copy = path ? strdup(path) : NULL;
    if (path && !copy)
        return ERR_NOMEM;
    free(j->resume_path);
    j->resume_path = copy;
    j->resume_step = step;
    return OK;
}

static bool is_damaged(const struct job *j, int64_t step)
{
    for (int i = 0; i < j->n_damaged; i++)
        if (j->damaged[i] == step)
            return true;
    return false;
}

/* The newest checkpoint in the folder that is not damaged and below `below`; NULL: none. */
static const struct state_checkpoint *newest_folder(const struct job *j, bool own, int64_t below)
{
    const struct state_checkpoint *best = NULL;
    for (int i = 0; i < j->n_folders; i++) {
        const struct job_folder *f = &j->folders[i];
        if ((f->own || !own) && f->c.step < below && !is_damaged(j, f->c.step) && (!best || f->c.step > best->step))
            best = &f->c;
    }
    return best;
}

/* If resume_from is damaged, an older step of the job that it belongs to takes its place, provided it is in this job's
 * folder. */
static err_t choose_checkpoint(struct job *j)
{
    const char *from = j->spec.checkpoint.resume_from;
    const struct state_checkpoint *best = newest_folder(j, true, INT64_MAX);
    if (!best && from && *from) {
        int64_t step = step_of_path(from);
        if (!is_damaged(j, step))
            return set_resume(j, from, step);
        best = newest_folder(j, false, step);
    }
    return best ? set_resume(j, best->path, best->step) : set_resume(j, NULL, 0);
}

/* Whether there is a checkpoint to load instead of the one that is damaged. resume_from with its own treatment of names
 * or optimizer has no substitute, because that treatment is for this one checkpoint. */
static bool has_older(const struct job *j)
{
    const struct job_checkpoint *c = &j->spec.checkpoint;
    bool has_from = c->resume_from && *c->resume_from;
    if (newest_folder(j, true, j->resume_step) || (has_from && !is_damaged(j, step_of_path(c->resume_from))))
        return true;
    return has_from && c->optimizer != OPTIMIZER_FRESH && !c->n_map &&
           newest_folder(j, false, step_of_path(c->resume_from));
}

/* Errors of the checkpoint's files, and not of the job, the worker or the connection to dtd-io. */
static bool is_damage(err_t err)
{
    return err == ERR_CORRUPT || err == ERR_IO || err == ERR_NOTFOUND;
}

bool job_epoch_unreadable(struct job *j, err_t err, const char *text)
{
    char seen[512];
    if (j->phase.state == PHASE_ENDING && (is_damaged(j, j->resume_step) || j->unread_step == j->resume_step))
        return true; /* another rank's report has ended the epoch */
    if (j->phase.state != PHASE_LOADING || j->stopping || !j->resume_path || !is_damage(err))
        return false;
    if (j->spec.checkpoint.on_damage != DAMAGE_OLDER || is_damaged(j, j->resume_step) ||
        j->n_damaged == JOB_DAMAGED_MAX)
        return false;
    if (err == ERR_IO && j->unread_step != j->resume_step) {
        j->unread_step = j->resume_step;
        job_epoch_lost(j, 0, false, "step %" PRId64 " cannot be read: %s", j->resume_step, text);
        return true;
    }
    j->damaged[j->n_damaged++] = j->resume_step;
    if (!has_older(j)) {
        j->n_damaged--;
        return false;
    }
    snprintf(seen, sizeof(seen), "the checkpoint of step %" PRId64 " cannot be read: %s", j->resume_step, text);
    job_epoch_again(j, seen);
    return true;
}

void job_epoch_find_resume(struct job *j)
{
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    const char *from = j->spec.checkpoint.resume_from;
    err_t err = OK;
    for (int i = 0; s && i < s->n_checkpoints; i++)
        if (s->checkpoints[i].step == j->resume_step) {
            err = set_resume(j, s->checkpoints[i].path, j->resume_step);
            from = NULL;
        }
    if (from && *from && step_of_path(from) == j->resume_step)
        err = set_resume(j, from, j->resume_step);
    if (err)
        log_error("resume path job=%" PRIu64 " error=%s", j->id, err_text(err));
}

static void epoch_recorded(void *owner, uint64_t job, const struct state_result *result)
{
    struct jobs *jobs = owner;
    struct job *j = jobs_find(jobs, job);
    const struct state_job *s = state_job_find(jobs->replica->state, job);
    if (!j || j->phase.state != PHASE_COMMITTING)
        return;
    if (s && s->end == END_NONE && s->epoch.epoch < j->next_epoch)
        return; /* an earlier epoch, abandoned after it was proposed */
    /* If the log was reopened in between, the record was proposed twice. The second is stale, yet the epoch is ours. */
    if (!s || s->epoch.epoch != j->next_epoch) {
        job_epoch_fatal(j, "the log refused epoch %" PRIu64 ": %s", j->next_epoch, err_text(result->err));
    } else {
        j->epoch = j->next_epoch;
        j->epoch_committed = true;
        for (int k = 0; k < j->n_workers; k++) /* a worker may still be in the previous epoch, and done there */
            j->workers[k].ready = j->workers[k].done = false;
        log_info("epoch job=%" PRIu64 " epoch=%" PRIu64 " workers=%d resume_step=%" PRId64 " path=%s", j->id, j->epoch,
                 j->n_workers, j->resume_step, j->resume_path ? j->resume_path : "");
    }
    jobs_tick(jobs);
}

/* "; the damaged checkpoint of step S is put aside" if this epoch resumes from before one, else "". */
static const char *damage_now(const struct job *j, char *ret, size_t size)
{
    ret[0] = '\0';
    if (j->n_damaged && j->damaged[j->n_damaged - 1] > j->resume_step)
        snprintf(ret, size, "; the damaged checkpoint of step %" PRId64 " is put aside", j->damaged[j->n_damaged - 1]);
    return ret;
}

/* " with N of M workers" if parallel.min_workers lets the number change, else "". */
static const char *workers_now(const struct job *j, char *ret, size_t size)
{
    bool ranged = j->spec.parallel.min_workers && j->spec.parallel.min_workers < j->max_workers;
    ret[0] = '\0';
    if (ranged)
        snprintf(ret, size, " with %d of %d workers", j->n_workers, j->max_workers);
    return ret;
}

/* ", layout auto: .." if the planner has chosen it, else "". */
static const char *layout_now(const struct job *j, char *ret, size_t size)
{
    ret[0] = '\0';
    if (j->layout.why)
        snprintf(ret, size, ", layout auto: %.*s", (int)strcspn(j->layout.why, ";"), j->layout.why);
    return ret;
}

void job_epoch_propose(struct job *j)
{
    char text[64], damage[96], layout[200];
    struct state_member *members = calloc((size_t)j->n_workers, sizeof(*members));
    err_t err = members ? choose_checkpoint(j) : ERR_NOMEM;
    if (!err && getrandom(j->secret, sizeof(j->secret), 0) != sizeof(j->secret))
        err = ERR_IO;
    if (!err) {
        for (int k = 0; k < j->n_workers; k++)
            members[k] = (struct state_member){.node = j->workers[k].p.node->name, .slot = j->workers[k].p.slot};
        j->next_epoch = next_epoch_of(j);
        j->epoch_committed = false;
        const struct record r = {.kind = RECORD_EPOCH,
                                 .wall_ms = clock_wall_ms(),
                                 .job = j->id,
                                 .epoch = {.epoch = j->next_epoch,
                                           .members = members,
                                           .n_members = j->n_workers,
                                           .resume_step = j->resume_step,
                                           .restarts = j->restarts,
                                           .layout = j->layout.keys,
                                           .layout_why = j->layout.why}};
        err = outbox_add(&j->jobs->outbox, &r, epoch_recorded);
    }
    free(members);
    if (err)
        job_stop(j, END_FAILED, false, "no new epoch: %s", err_text(err));
    if (!err && j->incident.open && j->incident.step >= 0)
        j->incident.fields.lost_steps = j->incident.step > j->resume_step ? j->incident.step - j->resume_step : 0;
    if (!err && j->incident.open)
        job_incident_decided(j, "new epoch %" PRIu64 " from step %" PRId64 "%s%s%s", j->next_epoch, j->resume_step,
                             workers_now(j, text, sizeof(text)), layout_now(j, layout, sizeof(layout)),
                             damage_now(j, damage, sizeof(damage)));
}
