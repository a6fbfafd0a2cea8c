/* The processes that a child of a job has started end with it, whether or not they have left its process group. The
 * exit of the child is reported when they have gone, since control then gives its GPU and its slot to another job. They
 * are killed by the child's control group, or without one by their descent (descend.h). */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/supervisor/descend.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_MS 5    /* SIGKILL takes effect within a few milliseconds */
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
    return x;
}

int sv_contain_spawn(struct supervisor *s, struct sv_job *j, const struct channel_msg *m, int *ret)
{
    struct channel_limits limits = limits_next(s, j, m);
    int e = cgroup_job(&s->groups, j->id, &limits);
    if (e)
        return e;
    j->limits = limits;
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
    return descend_kill(&x) <= 0;
}

static bool all_ended(struct supervisor *s, const struct sv_child *c)
{
    if (c->job == CHANNEL_JOB_PROBE)
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
    if (!finish(s, c))
        s->next_kill_ms = clock_mono_ms() + AGAIN_MS;
}

void sv_contain_tick(struct supervisor *s)
{
    int64_t now = clock_mono_ms();
    if (!s->next_kill_ms || now < s->next_kill_ms)
        return;
    s->next_kill_ms = 0;
    SV_EACH_CHILD (s, c)
        if (c->job && c->is_reaped && c->state == CHANNEL_RUNNING && !finish(s, c))
            s->next_kill_ms = now + AGAIN_MS;
}
