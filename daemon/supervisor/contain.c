/* The processes that a child of a job has started end with it, whether or not they have left its process group. The
 * exit of the child is reported when they have gone, since control then gives its GPU and its slot to another job. They
 * are killed by the child's control group, or without one by their descent (descend.h).
 *
 * One process is meant to outlive its parent: dtd-io that control has ended leaves `dtctl report`, which waits for the
 * end of the job (daemon/io/job_report.c). It has REPORT_MS after the release of the job. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_MS 5      /* SIGKILL takes effect within a few milliseconds */
#define REPORT_MS 90000 /* `dtctl report` waits for 60 s, and a report with all its pictures takes some seconds */
#define LOOK_MS 1000
#define LATE_MS 10000 /* a process that SIGKILL has not ended by then waits for a device or a disk */

err_t sv_contain_start(struct supervisor *s, struct why *why)
{
    int e = descend_start(&s->is_sole);
    if (e)
        return why_set(why, err_from_errno(e), "PR_SET_CHILD_SUBREAPER: %s", strerror(e));
    cgroup_start(&s->groups, s->system, s->dir);
    return OK;
}

static bool job_runs(struct supervisor *s, uint64_t job)
{
    SV_EACH_CHILD (s, c)
        if (c->job == job && c->state == CHANNEL_RUNNING)
            return true;
    return false;
}

static int64_t larger(int64_t a, int64_t b)
{
    return !a || !b ? 0 : a > b ? a : b; /* 0: no limit */
}

/* A job that gives up workers is not squeezed while the others still have their memory. */
static struct channel_limits limits_next(struct supervisor *s, const struct sv_job *j, const struct channel_msg *m)
{
    struct channel_limits x = m->limits;
    if (!job_runs(s, j->id))
        return x;
    x.memory_bytes = larger(x.memory_bytes, j->limits.memory_bytes);
    x.processes = (int32_t)larger(x.processes, j->limits.processes);
    x.gpu_minors |= j->limits.gpu_minors;
    return x;
}

/* A job is started without the guard, too: it adds to the permissions of the device files. */
static void guard_gpus(struct supervisor *s, const struct sv_job *j)
{
    int e = j->limits.gpu_guard ? cgroup_job_guard(&s->groups, j->id, j->limits.gpu_minors) : 0;
    if (e && e != s->guard_error)
        log_info("jobs may open GPUs of other jobs error=\"%s\" remedy=\"CapabilityBoundingSet=CAP_BPF "
                 "CAP_NET_ADMIN in a drop-in of the unit\"",
                 strerror(e));
    s->guard_error = e;
}

int sv_contain_spawn(struct supervisor *s, struct sv_job *j, const struct channel_msg *m, int *ret)
{
    struct channel_limits limits = limits_next(s, j, m);
    int e = cgroup_job(&s->groups, j->id, &limits);
    if (e)
        return e;
    j->limits = limits;
    guard_gpus(s, j);
    return cgroup_process(&s->groups, j->id, m->slot, ret);
}

/* ---- after the exit ---- */

static bool is_child(void *owner, pid_t pid)
{
    struct supervisor *s = owner;
    SV_EACH_CHILD (s, c)
        if (c->job && c->state == CHANNEL_RUNNING && !c->is_reaped && c->pid == pid)
            return true;
    return pid == s->control || pid == s->web;
}

static uid_t user_of(struct supervisor *s, uint64_t job)
{
    const struct sv_job *j = s->system ? sv_job_find(s, job) : NULL;
    return j ? j->owner.uid : getuid();
}

/* No other process of a job runs for the user of `c`. */
static bool is_alone(struct supervisor *s, const struct sv_child *c)
{
    uid_t uid = user_of(s, c->job);
    SV_EACH_CHILD (s, o)
        if (o != c && o->job && o->job != CHANNEL_JOB_PROBE && o->state == CHANNEL_RUNNING && !o->is_reaped &&
            user_of(s, o->job) == uid)
            return false;
    return s->is_sole;
}

static bool kill_descendants(struct supervisor *s, const struct sv_child *c)
{
    char mark[DESCEND_MARK_BYTES];
    descend_mark(c->job, c->slot, mark);
    const struct descend x = {
        .mark = mark, .uid = user_of(s, c->job), .alone = is_alone(s, c), .is_own = is_child, .owner = s};
    return descend_kill(&x, &s->seen) == 0;
}

static bool may_leave_report(const struct sv_child *c)
{
    return c->slot == CHANNEL_SLOT_IO && !c->exit_status && !c->exit_signal;
}

static bool all_ended(struct supervisor *s, const struct sv_child *c)
{
    if (c->job == CHANNEL_JOB_PROBE || may_leave_report(c))
        return true;
    return cgroup_exists(&s->groups) ? cgroup_process_kill(&s->groups, c->job, c->slot) : kill_descendants(s, c);
}

static enum channel_oom oom_of(const struct supervisor *s, const struct sv_child *c)
{
    if (c->job == CHANNEL_JOB_PROBE || cgroup_process_oom(&s->groups, c->job, c->slot) == 0)
        return CHANNEL_OOM_NO;
    return cgroup_job_oom(&s->groups, c->job) > c->job_oom ? CHANNEL_OOM_LIMIT : CHANNEL_OOM_MACHINE;
}

/* False: something of the child still runs. */
static bool finish(struct supervisor *s, struct sv_child *c)
{
    if (!all_ended(s, c)) {
        if (!c->is_late && clock_mono_ns() - c->when_ns > INT64_C(1000000) * LATE_MS)
            log_warn("what a process has started does not end after SIGKILL; its slot stays in use job=%" PRIu64
                     " slot=%d pid=%d",
                     c->job, c->slot, c->pid);
        c->is_late = clock_mono_ns() - c->when_ns > INT64_C(1000000) * LATE_MS;
        return false;
    }
    c->oom = oom_of(s, c);
    if (c->job != CHANNEL_JOB_PROBE)
        cgroup_process_remove(&s->groups, c->job, c->slot);
    c->state = CHANNEL_EXITED;
    c->due = true;
    return true;
}

void sv_contain_ended(struct supervisor *s, struct sv_child *c)
{
    c->is_reaped = true;
    if (!cgroup_exists(&s->groups))
        s->next_kill_ms = clock_mono_ms(); /* one look for all that have ended by now */
    else if (!finish(s, c))
        s->next_kill_ms = clock_mono_ms() + AGAIN_MS;
}

/* ---- the report of a job that has been released ---- */

/* True: nothing of the job is left, or it runs again. */
static bool left_is_gone(struct supervisor *s, const struct sv_left *l, int64_t now)
{
    const struct sv_child io = {.job = l->job, .slot = CHANNEL_SLOT_IO};
    if (sv_job_find(s, l->job))
        return true;
    if (cgroup_exists(&s->groups)) {
        if (now >= l->deadline_ms)
            (void)cgroup_process_kill(&s->groups, l->job, CHANNEL_SLOT_IO);
        return cgroup_job_remove(&s->groups, l->job);
    }
    return now >= l->deadline_ms && (!descend_look(&s->seen) || kill_descendants(s, &io));
}

/* A free entry, or else the oldest, which ends now. */
static struct sv_left *left_take(struct supervisor *s)
{
    struct sv_left *l = s->left;
    for (int i = 0; i < SV_MAX_LEFT; i++) {
        if (!s->left[i].job)
            return &s->left[i];
        l = s->left[i].deadline_ms < l->deadline_ms ? &s->left[i] : l;
    }
    (void)left_is_gone(s, l, l->deadline_ms);
    return l;
}

void sv_contain_release(struct supervisor *s, uint64_t job)
{
    if (cgroup_exists(&s->groups) && cgroup_job_remove(&s->groups, job))
        return;
    int64_t now = clock_mono_ms();
    *left_take(s) = (struct sv_left){.job = job, .deadline_ms = now + REPORT_MS};
    s->next_look_ms = now + LOOK_MS;
}

static void look_at_left(struct supervisor *s, int64_t now)
{
    if (!s->next_look_ms || now < s->next_look_ms)
        return;
    s->next_look_ms = 0;
    for (struct sv_left *l = s->left; l < s->left + SV_MAX_LEFT; l++) {
        if (l->job && left_is_gone(s, l, now))
            l->job = 0;
        if (l->job)
            s->next_look_ms = now + LOOK_MS;
    }
}

void sv_contain_tick(struct supervisor *s)
{
    int64_t now = clock_mono_ms();
    look_at_left(s, now);
    if (!s->next_kill_ms || now < s->next_kill_ms)
        return;
    s->next_kill_ms = 0;
    if (!cgroup_exists(&s->groups) && !descend_look(&s->seen)) {
        log_warn("/proc cannot be read, or out of memory: what processes of jobs have started is not ended");
        s->seen.n = 0;
    }
    SV_EACH_CHILD (s, c)
        if (c->job && c->is_reaped && c->state == CHANNEL_RUNNING && !finish(s, c))
            s->next_kill_ms = now + AGAIN_MS;
}
