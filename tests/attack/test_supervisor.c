/* A compromised dtd-control attacks the supervisor, which is root in a system-wide dtd. Whatever messages arrive, the
 * supervisor keeps running, ends after END, and starts no process as root. */
#include "common/base/clock.h"
#include "tests/daemon/programs/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { WAIT_MS = 100000 };

static pid_t start_supervisor(bool system)
{
    char program[512], state[512], places[1024], log[512];
    snprintf(program, sizeof(program), "%s/../tests/attack-bin/dtd", getenv("DTD_BIN"));
    snprintf(state, sizeof(state), "%s/state", test_tmpdir());
    snprintf(places, sizeof(places), "%s\n%s/run\nnobody\n", state, test_tmpdir());
    snprintf(log, sizeof(log), "%s/log", test_tmpdir());
    assert_int_equal(0, chmod(test_tmpdir(), 0711));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, 2) != 2 || setenv("DTD_TEST_PLACES", places, 1))
        _exit(125);
    if (system)
        execl(program, "dtd", "--system", (char *)NULL);
    else
        execl(program, "dtd", "--state-dir", state, (char *)NULL);
    _exit(126);
}

/* Reads the first word after `key` in /proc/PID/status. Returns false if the process has ended. */
static bool status_word(const char *pid, const char *key, char ret[64])
{
    char path[300], line[256];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%s/status", pid);
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof(line), f))
        found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%63s", ret) == 1;
    if (f)
        fclose(f);
    return found;
}

/* Counts the supervisor's count_job_processes that are processes of jobs. They are found by name, because between fork
 * and exec a child still has its parent's name. */
static int count_job_processes(pid_t parent, bool roots_only)
{
    char name[64], of[64], uid[64];
    struct dirent *e;
    int n = 0;
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    while ((e = readdir(proc)))
        if (status_word(e->d_name, "PPid:", of) && atoi(of) == parent && status_word(e->d_name, "Name:", name) &&
            (strcmp(name, "dt-worker") == 0 || strcmp(name, "dtd-io") == 0) && status_word(e->d_name, "Uid:", uid))
            n += !roots_only || strcmp(uid, "0") == 0;
    closedir(proc);
    return n;
}

static void attack(bool system)
{
    char log[512], want[64];
    int status = 0, most = 0;
    pid_t ended, pid = start_supervisor(system);
    for (int64_t until = clock_mono_ms() + WAIT_MS; !(ended = waitpid(pid, &status, WNOHANG)); sleep_ms(5)) {
        int n = count_job_processes(pid, false);
        most = n > most ? n : most;
        if (system)
            assert_int_equal(0, count_job_processes(pid, true));
        if (clock_mono_ms() > until)
            fail_msg("the supervisor did not end within %d s after its start", WAIT_MS / 1000);
    }
    assert_int_equal(pid, ended);
    snprintf(log, sizeof(log), "%s/%s", test_tmpdir(), system ? "log" : "state/control.log");
    char *text = read_text(log);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || count_text(text, "all random messages are sent") != 1)
        fail_msg("status %d: %s", status, text + (strlen(text) > 2000 ? strlen(text) - 2000 : 0));
    print_message("at most %d processes at once\n", most);
    assert_true(most >= 2); /* some SPAWN messages succeeded */
    snprintf(want, sizeof(want), "of uid %d\n", system ? (int)getpwnam("nobody")->pw_uid : (int)getuid());
    assert_int_equal(1, count_text(text, want));
    free(text);
}

TEST(control_sends_random_messages)
{
    attack(false);
}

TEST(control_sends_random_messages_to_root)
{
    if (geteuid() != 0)
        TEST_SKIP("a system-wide dtd is started by root");
    if (!getpwnam("nobody"))
        TEST_SKIP("this machine has no user nobody");
    attack(true);
}
