/* The report of run.report. Only dtctl can write one, because it asks control for all that is in it; so the dtd-io of
 * rank 0's node starts `dtctl report` when control ends it. The command waits until the job has ended, which is after
 * this process has exited, so it has a session of its own. Neither the end of the job nor its slots wait for it, and it
 * gives up if the job did not end but moves to other nodes. */
#include "daemon/io/io.h"

#include "common/base/log.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_S \
    "60" /* for the end of the job: dtd-io and workers have a few seconds for it, and a new leader some more */

extern char **environ;

/* The dtctl beside this program. */
static bool find_dtctl(char ret[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 1);
    char *slash;
    if (n < 0)
        return false;
    ret[n] = 0;
    slash = strrchr(ret, '/');
    if (!slash || slash + sizeof("/dtctl") > ret + PATH_MAX)
        return false;
    strcpy(slash, "/dtctl");
    return true;
}

/* This process's variables, with the folder of control's socket. The caller frees the array. */
static char **make_env(char *dir)
{
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **ret = calloc(n + 2, sizeof(*ret));
    for (size_t i = 0; ret && i < n; i++)
        if (strncmp(environ[i], "DTD_DIR=", 8) != 0)
            ret[k++] = environ[i];
    if (ret)
        ret[k] = dir;
    return ret;
}

static int start(const char *path, char *const *argv, char *const *env, pid_t *ret)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int err = posix_spawn_file_actions_init(&files);
    if (err)
        return err;
    err = posix_spawnattr_init(&attr);
    if (err) {
        posix_spawn_file_actions_destroy(&files);
        return err;
    }
    err = posix_spawn_file_actions_addclosefrom_np(&files, 3); /* arenas and sockets of the job */
    if (!err)
        err = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!err)
        err = posix_spawnattr_setsigmask(&attr, &none);
    if (!err)
        err = posix_spawnattr_setsigdefault(&attr, &all);
    if (!err)
        err = posix_spawn(ret, path, &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return err;
}

void io_job_report_start(const struct io *io)
{
    static char report[] = "report", to[] = "--to", wait[] = "--wait", seconds[] = WAIT_S;
    char path[PATH_MAX], dir[sizeof(io->ticket.control) + sizeof("DTD_DIR=")], *job, *file;
    const char *slash = strrchr(io->ticket.control, '/');
    pid_t pid = 0;
    if (!io->spec.yaml || !io->spec.report[0] || !slash)
        return;
    snprintf(dir, sizeof(dir), "DTD_DIR=%.*s", (int)(slash - io->ticket.control), io->ticket.control);
    job = strdup(io->job);
    file = strdup(io->spec.report);
    char **env = make_env(dir);
    char *const argv[] = {path, report, job, to, file, wait, seconds, NULL};
    int err = !job || !file || !env ? ENOMEM : !find_dtctl(path) ? ENOENT : start(path, argv, env, &pid);
    if (err)
        log_warn("report none key=run.report why=\"%s\" remedy=\"dtctl report %s --to FILE\"", strerror(err), io->job);
    else
        log_info("report started pid=%d to=%s", (int)pid, io->spec.report);
    free(env);
    free(job);
    free(file);
}
