/* A started program has exactly the descriptors, environment, folder and rights that exec_start gave it. */
#include "common/base/exec.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Runs a shell command as `x` describes and returns its output. */
static const char *run(struct exec x, const char *line, int *ret_status)
{
    static char text[4096];
    const char *argv[] = {"sh", "-c", line, NULL};
    int fd[2];
    assert_int_equal(0, pipe2(fd, O_CLOEXEC));
    x.path = "/bin/sh";
    x.argv = argv;
    x.log = fd[1];
    pid_t pid = exec_start(&x);
    assert_true(pid > 0);
    close(fd[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(fd[0], text + len, sizeof(text) - 1 - len)) > 0;)
        len += (size_t)n;
    text[len] = '\0';
    close(fd[0]);
    assert_int_equal(pid, waitpid(pid, ret_status, 0));
    return text;
}

TEST(descriptors_are_those_and_no_others)
{
    int status, fds[] = {open("/etc/passwd", O_RDONLY), open("/dev/zero", O_RDONLY)};
    int leak = open("/etc/group", O_RDONLY);
    assert_true(leak >= 0);
    const char *text = run((struct exec){.fds = fds, .n_fds = 2}, "readlink /proc/$$/fd/*", &status);
    assert_non_null(strstr(text, "/dev/null\n"));
    assert_non_null(strstr(text, "/etc/passwd\n/dev/zero\n"));
    assert_null(strstr(text, "/etc/group"));
}

TEST(environment_and_folder)
{
    static const char env[] = "A=1\0PWD=/usr\0B=x y";
    int status;
    const char *text = run((struct exec){.env = env, .env_bytes = sizeof(env)}, "echo $A $B; pwd -P", &status);
    assert_string_equal("1 x y\n/usr\n", text);
}

TEST(a_folder_that_cannot_be_entered)
{
    static const char env[] = "PWD=/no/such/folder";
    int status;
    const char *text = run((struct exec){.env = env, .env_bytes = sizeof(env)}, "echo never", &status);
    assert_non_null(strstr(text, "/no/such/folder"));
    assert_null(strstr(text, "never"));
    assert_int_equal(127, WEXITSTATUS(status));
}

/* The working folder is entered with the user's rights, after the process has dropped the supervisor's. */
TEST(a_folder_is_entered_as_the_user)
{
    struct user u;
    struct why why = {""};
    char env[300];
    int status;
    if (geteuid() != 0)
        TEST_SKIP("only root can become somebody else");
    assert_ok(user_by_name("daemon", &u, &why));
    assert_int_equal(0, chmod(test_tmpdir(), 0700));
    int n = snprintf(env, sizeof(env), "PWD=%s", test_tmpdir());
    const struct exec x = {.env = env, .env_bytes = (size_t)n + 1, .user = &u};
    assert_non_null(strstr(run(x, "echo never", &status), "Permission denied"));
    const struct exec y = {.user = &u};
    assert_string_equal("daemon 0\n", run(y, "echo $USER $(cat /etc/shadow 2>/dev/null | wc -l)", &status));
}

TEST(cores)
{
    uint8_t cpus[EXEC_MAX_CPUS / 8] = {1};
    int status;
    assert_string_equal("1\n", run((struct exec){.cpus = cpus}, "nproc", &status));
}

/* The same after a switch of users, which clears PR_SET_PDEATHSIG. */
TEST(it_dies_with_its_parent)
{
    struct user u;
    struct why why = {""};
    int fd[2], status;
    char byte;
    bool root = geteuid() == 0;
    if (root)
        assert_ok(user_by_name("daemon", &u, &why));
    assert_int_equal(0, pipe2(fd, O_CLOEXEC));
    pid_t parent = fork();
    if (parent == 0) {
        const char *argv[] = {"sleep", "60", NULL};
        const struct exec x = {
            .path = "/bin/sleep", .argv = argv, .log = -1, .fds = &fd[1], .n_fds = 1, .user = root ? &u : NULL};
        pid_t pid = exec_start(&x);
        usleep(300000); /* until it has become sleep */
        _exit(pid > 0 ? 0 : 1);
    }
    close(fd[1]);
    assert_int_equal(parent, waitpid(parent, &status, 0));
    assert_int_equal(0, status);
    assert_int_equal(
        0, read(fd[0], &byte, 1)); /* the child had the other end; the time limit of the test case is the deadline */
}
