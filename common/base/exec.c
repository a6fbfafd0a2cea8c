/* See exec.h. The child prepares itself between fork and exec, and the order matters: descriptors and cores with the
 * rights of this process, then the switch to the user, and then settings that the user chose (environment, working
 * folder). */
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

/* Moves descriptors to 0 .. 2 and 3 ... They are first duplicated above all targets, so none overwrites another's
 * source. */
static int fds_place(const struct exec *x)
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

static void cores_bind(const uint8_t *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int c = 0; cpus && c < EXEC_MAX_CPUS; c++)
        if (cpus[c / 8] >> (c % 8) & 1)
            CPU_SET(c, &set);
    if (CPU_COUNT(&set) && sched_setaffinity(0, sizeof(set), &set))
        log_warn("cannot bind to cores error=%s", strerror(errno));
}

static int environment_apply(const struct exec *x)
{
    const char *folder = NULL;
    if (x->mark)
        putenv((char *)x->mark);
    for (const char *p = x->env; p && p < x->env + x->env_bytes; p += strlen(p) + 1) {
        putenv((char *)p);
        folder = strncmp(p, "PWD=", 4) == 0 ? p + 4 : folder;
    }
    if (!folder || chdir(folder) == 0)
        return 0;
    log_error("cannot enter run.workdir path=%s error=%s", folder, strerror(errno));
    return -1;
}

_Noreturn static void child_exec(const struct exec *x, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (x->group)
        setpgid(0, 0);
    bool ready = (!x->cgroup || write(x->cgroup, "0", 1) == 1) && fds_place(x) == 0;
    if (ready)
        cores_bind(x->cpus);
    for (int cap = 0; x->user && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* so that file capabilities of a program cannot add rights */
    ready = ready && (!x->user || user_become(x->user) == 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after user_become, which clears it */
    if (getppid() != parent)          /* the parent exited before the call above */
        _exit(127);
    if (ready && environment_apply(x) == 0)
        execv(x->path, (char *const *)x->argv);
    log_error("cannot start program=%s error=%s", x->path, strerror(errno));
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
        child_exec(x, self);
    if (pid > 0 && x->group)
        setpgid(pid, pid); /* parent and child both set it, because either may run first */
    return pid;
}
