/* See exec.h. Everything between fork and exec happens in the child, in an order that matters: descriptors and cores
 * while it is still ours, then the user, and only then what a user has named (environment, working folder). */
#include "common/base/exec.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Descriptors come to stand at 0 .. 2 and 3 ..; first above all targets, so that none overwrites another's source. */
static int place_fds(const struct exec *x)
{
    int high[EXEC_MAX_FDS], null = open("/dev/null", O_RDWR);
    for (int i = 0; i < x->n_fds; i++) {
        high[i] = fcntl(x->fds[i], F_DUPFD, 3 + x->n_fds);
        if (high[i] < 0)
            return -1;
    }
    if (null < 0 || dup2(null, 0) < 0 || (x->log >= 0 && (dup2(x->log, 1) < 0 || dup2(x->log, 2) < 0)) ||
        (x->out && dup2(x->out, 1) < 0))
        return -1;
    for (int i = 0; i < x->n_fds; i++)
        if (dup2(high[i], 3 + i) < 0)
            return -1;
    return (int)close_range(3u + (unsigned)x->n_fds, ~0u, 0);
}

static void bind_cores(const uint8_t *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int c = 0; cpus && c < EXEC_MAX_CPUS; c++)
        if (cpus[c / 8] >> (c % 8) & 1)
            CPU_SET(c, &set);
    if (CPU_COUNT(&set) && sched_setaffinity(0, sizeof(set), &set))
        log_warn("not bound to its cores error=%s", strerror(errno));
}

static int take_environment(const struct exec *x)
{
    const char *folder = NULL;
    for (const char *p = x->env; p && p < x->env + x->env_bytes; p += strlen(p) + 1) {
        putenv((char *)p);
        folder = strncmp(p, "PWD=", 4) == 0 ? p + 4 : folder;
    }
    if (!folder || chdir(folder) == 0)
        return 0;
    log_error("run.workdir cannot be entered path=%s error=%s", folder, strerror(errno));
    return -1;
}

_Noreturn static void become(const struct exec *x, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (x->group)
        setpgid(0, 0);
    bool ours = place_fds(x) == 0;
    if (ours)
        bind_cores(x->cpus);
    for (int cap = 0; x->user && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* no program on disk gives back what the user has not */
    ours = ours && (!x->user || user_become(x->user) == 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* becoming somebody else clears it */
    if (getppid() != parent)          /* it died before the line above */
        _exit(127);
    if (ours && take_environment(x) == 0)
        execv(x->path, (char *const *)x->argv);
    log_error("not started program=%s error=%s", x->path, strerror(errno));
    _exit(127);
}

pid_t exec_start(const struct exec *x)
{
    if (x->n_fds > EXEC_MAX_FDS) {
        errno = EMFILE;
        return -1;
    }
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become(x, self);
    if (pid > 0 && x->group)
        setpgid(pid, pid); /* as the child does: whoever comes first */
    return pid;
}
