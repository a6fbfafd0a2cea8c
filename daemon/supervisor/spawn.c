/* Starts and reaps processes. Invariants:
 *
 * - Every child of a job leads a process group of its own, so that signals also reach the processes that it started.
 *   After its exit all of them are killed, those of other process groups too (contain.c).
 * - Every child is killed when the supervisor exits, so that no worker trains unknown to the next supervisor.
 * - The exit of a child is recorded before control is notified. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/supervisor/descend.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_FDS EXEC_MAX_FDS
_Static_assert(MAX_FDS >= CHANNEL_MAX_SLOTS + 2 && EXEC_MAX_CPUS == CHANNEL_MAX_CPUS, "dtd-io gets every arena");
/* The first restart of control or dtd-web is immediate. One that exits within QUICK_EXIT_MS of its start would exit
 * again, so the following restarts wait 100 ms, 200 ms, .. up to 2 s, which keeps the load and the log small. */
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS 2000
#define QUICK_EXIT_MS 1000

pid_t sv_exec(const struct supervisor *s, const struct exec *x)
{
    char path[2 * PATH_MAX];
    struct exec here = *x;
    snprintf(path, sizeof(path), "%s/%s", s->bin, x->argv[0]);
    here.path = path;
    return exec_start(&here);
}

/* ---- children of jobs ---- */

struct sv_child *sv_child_find(struct supervisor *s, uint64_t job, int slot)
{
    SV_EACH_CHILD (s, c)
        if (c->job == job && c->slot == slot && c->state == CHANNEL_RUNNING)
            return c;
    return NULL;
}

/* Stores the strings of the command in argv[2] and following. Returns where they begin, which is the end of the
 * environment; NULL: there are fewer than n_args strings. */
static const char *take_command(const struct channel_msg *m, const char **argv)
{
    const char *end = m->env + m->env_bytes, *p = end;
    for (int i = m->n_args; i > 0; i--) {
        if (p == m->env)
            return NULL;
        for (p--; p > m->env && p[-1]; p--)
            ;
        argv[1 + i] = p;
    }
    return p;
}

/* dtd-io inherits its listener and every arena; a worker inherits the segment and its own arena (ARCHITECTURE.md). A
 * command is the user's own program: dt-worker executes it, and it inherits no descriptor of dtd. */
static pid_t child_exec_job(struct supervisor *s, const struct sv_job *j, int ticket, int cgroup,
                            const struct channel_msg *m)
{
    bool io = m->slot == CHANNEL_SLOT_IO;
    int fds[MAX_FDS] = {ticket, io ? j->listener : j->segment};
    int arenas = io ? j->slots : 1;
    char id[24], slot[16], gpu[16], name[64], mark[DESCEND_MARK_BYTES];
    memcpy(&fds[2], io ? j->arena : &j->arena[m->slot], (size_t)arenas * sizeof(int));
    snprintf(id, sizeof(id), "%" PRIu64, j->id);
    snprintf(slot, sizeof(slot), "%d", m->slot);
    snprintf(gpu, sizeof(gpu), "%d", m->gpu - 1);
    descend_mark(j->id, m->slot, mark);
    snprintf(name, sizeof(name), io ? "jobs/%s/io.log" : "jobs/%s/rank-%s.log", id, slot);
    const char *argv[] = {io ? "dtd-io" : "dt-worker", "--job", id,  io ? NULL : "--slot", slot,
                          m->gpu ? "--device" : NULL,  gpu,     NULL};
    const char *command[CHANNEL_MAX_ARGS + 3] = {"dt-worker", "--command"}, *end = take_command(m, command);
    if (!end) {
        errno = EINVAL;
        return -1;
    }
    struct exec x = {.argv = m->n_args ? command : argv,
                     .env = m->env,
                     .env_bytes = (size_t)(end - m->env),
                     .log = sv_log_open(s, name, &j->owner),
                     .fds = fds,
                     .n_fds = m->n_args ? 0 : 2 + arenas,
                     .cpus = io ? NULL : m->cpus,
                     .group = true,
                     .cgroup = cgroup,
                     .mark = mark,
                     .user = s->system ? &j->owner : NULL};
    log_mark_write(x.log, m->n_args ? (int)m->epoch - 1 : -1);
    if (m->n_args) /* the error file, which the user may write but not create (control/local/error_file.h) */
        snprintf(name, sizeof(name), "jobs/%s/error-%s-%" PRIu64 ".json", id, slot, m->epoch);
    if (m->n_args)
        close(sv_log_open(s, name, &j->owner));
    pid_t pid = sv_exec(s, &x);
    close(x.log);
    return pid;
}

/* A probe belongs to no job and inherits no descriptors. Control reads its output file after its exit. */
static int child_exec_probe(struct supervisor *s, const char *option, pid_t *ret)
{
    char path[PATH_MAX];
    const char *argv[] = {"dt-worker", option, NULL};
    snprintf(path, sizeof(path), "%s/%s.json", s->dir, option + strlen("--"));
    const struct user *user = s->system ? &s->service : NULL;
    struct exec x = {.argv = argv, .log = sv_log_open(s, "probe.log", user), .group = true, .user = user};
    x.out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, s->system ? 0644 : 0600);
    *ret = x.out < 0 ? -1 : sv_exec(s, &x);
    int e = *ret < 0 ? errno : 0;
    if (x.out >= 0)
        close(x.out);
    close(x.log);
    return e;
}

/* Returns 0 and the pid, or an errno. */
static int child_start(struct supervisor *s, const struct channel_msg *m, pid_t *ret)
{
    struct sv_job *j = NULL;
    if (s->phase != SV_SERVING)
        return ESHUTDOWN;
    if (m->job == 0 || m->slot >= m->slots)
        return EINVAL;
    if (sv_child_find(s, m->job, m->slot))
        return EEXIST;
    if (m->job == CHANNEL_JOB_PROBE)
        return channel_probe(m->slot) ? child_exec_probe(s, channel_probe(m->slot), ret) : EINVAL;
    int e = sv_job_need(s, m, &j);
    if (e)
        return e;
    int cgroup = 0, ticket = sv_ticket(s, j, m->token);
    if (ticket < 0)
        return errno;
    e = sv_contain_spawn(s, j, m, &cgroup);
    pid_t pid = e ? -1 : child_exec_job(s, j, ticket, cgroup, m);
    e = e ? e : pid < 0 ? errno : 0;
    close(ticket);
    if (cgroup)
        close(cgroup);
    *ret = pid;
    return e;
}

/* Health checks run twice a minute and would fill the log at level info. */
static enum log_level child_log_level(const struct sv_child *c)
{
    return c->job == CHANNEL_JOB_PROBE && c->slot == CHANNEL_SLOT_HEALTH ? LOG_DEBUG : LOG_INFO;
}

void sv_child_spawn(struct supervisor *s, const struct channel_msg *m)
{
    struct sv_child *c = NULL;
    for (int i = 0; i < SV_MAX_CHILDREN && !c; i++)
        c = s->children[i].job ? NULL : &s->children[i];
    if (!c || m->job == 0) {
        log_error("not started, too many children job=%" PRIu64 " slot=%d", m->job, m->slot);
        return;
    }
    pid_t pid = 0;
    int e = child_start(s, m, &pid);
    *c = (struct sv_child){.job = m->job,
                           .slot = m->slot,
                           .due = true,
                           .pid = e ? 0 : pid,
                           .state = e ? CHANNEL_REFUSED : CHANNEL_RUNNING,
                           .error = e,
                           .gpu = m->gpu,
                           .epoch = m->epoch,
                           .log_bytes = m->log_bytes,
                           .job_oom = e || m->job == CHANNEL_JOB_PROBE ? 0 : cgroup_job_oom(&s->groups, m->job),
                           .when_ns = clock_mono_ns()};
    memcpy(c->token, m->token, sizeof(c->token));
    memcpy(c->cpus, m->cpus, sizeof(c->cpus));
    if (e)
        log_error("not started job=%" PRIu64 " slot=%d error=%s", m->job, m->slot, strerror(e));
    else
        log_at(child_log_level(c), "started job=%" PRIu64 " slot=%d pid=%d", m->job, m->slot, pid);
}

void sv_children_signal(struct supervisor *s, int sig)
{
    SV_EACH_CHILD (s, c)
        if (c->job && c->state == CHANNEL_RUNNING && !c->is_reaped)
            kill(-c->pid, sig);
    if (s->control > 0)
        kill(s->control, sig);
    if (s->web > 0)
        kill(-s->web, sig);
}

/* ---- control and dtd-web ---- */

static void restart_begin(struct sv_restart *r)
{
    r->since_ms = clock_mono_ms();
    r->retry_ms = r->since_ms + BACKOFF_MAX_MS; /* in case the start fails */
}

static void restart_ended(struct sv_restart *r, int64_t now)
{
    if (now - r->since_ms >= QUICK_EXIT_MS)
        r->backoff_ms = 0;
    r->retry_ms = now + r->backoff_ms;
    int64_t longer = r->backoff_ms ? r->backoff_ms * 2 : BACKOFF_FIRST_MS;
    r->backoff_ms = longer < BACKOFF_MAX_MS ? longer : BACKOFF_MAX_MS;
}

/* dtd-web opens its own socket, because browsers repeat a request after its restart. */
void sv_web_start(struct supervisor *s)
{
    const char *argv[] = {"dtd-web", "--run-dir", s->run, "--config", s->config, NULL};
    const struct user *user = s->system ? &s->web_user : NULL;
    restart_begin(&s->web_restart);
    struct exec x = {.argv = argv, .log = sv_log_open(s, "web.log", user), .group = true, .user = user};
    s->web = sv_exec(s, &x);
    close(x.log);
    if (s->web < 0)
        log_error("dtd-web not started error=%s", strerror(errno));
    else
        log_info("dtd-web started pid=%d", s->web);
}

static void web_ended(struct supervisor *s, int status)
{
    log_warn("dtd-web ended pid=%d status=%d signal=%d; see web.log", s->web,
             WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    s->web = -1;
    restart_ended(&s->web_restart, clock_mono_ms());
}

void sv_control_start(struct supervisor *s)
{
    int pair[2];
    restart_begin(&s->control_restart);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        log_error("control not started error=%s", strerror(errno));
        return;
    }
    const int fds[] = {pair[1], s->listener};
    const char *argv[] = {"dtd-control", "--state-dir", s->dir, NULL, NULL, NULL, NULL};
    int n = 3;
    if (s->system)
        argv[n++] = "--system";
    if (s->config) {
        argv[n++] = "--config";
        argv[n++] = s->config;
    }
    struct exec x = {.argv = argv,
                     .log = s->system ? -1 : sv_log_open(s, "control.log", NULL), /* -1: the journal */
                     .fds = fds,
                     .n_fds = 2,
                     .user = s->system ? &s->service : NULL};
    s->control = sv_exec(s, &x);
    if (x.log >= 0)
        close(x.log);
    close(pair[1]);
    if (s->control < 0) {
        log_error("control not started error=%s", strerror(errno));
        close(pair[0]);
        return;
    }
    s->channel = pair[0];
    sv_service_expect(s);
    log_info("control started pid=%d", s->control);
}

static void control_ended(struct supervisor *s, int status)
{
    int64_t now = clock_mono_ms();
    log_warn("control ended pid=%d status=%d signal=%d after_ms=%" PRId64, s->control,
             WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
             now - s->control_restart.since_ms);
    s->control = -1;
    sv_channel_read(s); /* the last message may be END */
    sv_channel_close(s);
    restart_ended(&s->control_restart, now);
}

/* ---- the exit of a child ---- */

/* NULL: control, or an orphan of another process that the kernel handed to us, as to process 1 of a container. */
static struct sv_child *child_find(struct supervisor *s, pid_t pid)
{
    SV_EACH_CHILD (s, c)
        if (c->job && c->pid == pid && c->state == CHANNEL_RUNNING && !c->is_reaped)
            return c;
    return NULL;
}

static void child_ended(struct supervisor *s, struct sv_child *c, int status, int64_t when_ns)
{
    c->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    c->exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    c->when_ns = when_ns;
    sv_contain_ended(s, c);
    log_at(child_log_level(c), "ended job=%" PRIu64 " slot=%d pid=%d status=%d signal=%d", c->job, c->slot, c->pid,
           c->exit_status, c->exit_signal);
}

void sv_reap(struct supervisor *s)
{
    for (;;) {
        siginfo_t info = {0};
        int status = 0;
        int64_t now = clock_mono_ns();
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
            return;
        struct sv_child *c = child_find(s, info.si_pid);
        if (c)
            kill(-c->pid, SIGKILL); /* the rest of its group; before waitpid frees the pid for reuse */
        if (waitpid(info.si_pid, &status, 0) != info.si_pid)
            return;
        if (info.si_pid == s->control)
            control_ended(s, status);
        else if (info.si_pid == s->web)
            web_ended(s, status);
        else if (c)
            child_ended(s, c, status, now);
    }
}
