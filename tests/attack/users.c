/* See users.h. */
#include "tests/attack/users.h"

#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void users_require(void)
{
    if (geteuid() != 0)
        TEST_SKIP("a system-wide dtd is started by root");
    if (!getpwnam(ALICE) || !getpwnam(MALLORY) || !getpwnam("nobody"))
        TEST_SKIP("this machine lacks one of the users " ALICE ", " MALLORY " and nobody");
}

pid_t users_begin(const char *user, int (*fn)(void *arg), void *arg)
{
    const struct passwd *pw = getpwnam(user);
    assert_non_null(pw);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    if (setgroups(0, NULL) || setgid(pw->pw_gid) || setuid(pw->pw_uid) || prctl(PR_SET_PDEATHSIG, SIGKILL))
        _exit(100); /* prctl comes last: setuid clears PDEATHSIG */
    _exit(fn(arg));
}

int users_run(const char *user, int (*fn)(void *arg), void *arg)
{
    int status;
    pid_t pid = users_begin(user, fn, arg);
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void users_end(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(pid, waitpid(pid, &status, 0));
}

void users_make_folder(const char *name, const char *owner, mode_t mode)
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/%s", test_tmpdir(), name);
    assert_int_equal(0, mkdir(dir, mode));
    assert_int_equal(0, chmod(dir, mode));
    assert_int_equal(0, chown(dir, getpwnam(owner)->pw_uid, getpwnam(owner)->pw_gid));
}
