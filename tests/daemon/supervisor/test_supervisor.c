/* The supervisor, tested from outside: one dtd per state directory, control is restarted, no process outlives it. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <signal.h>
#include <sys/wait.h>

/* True: the process has exited, and its new parent may not have collected it yet. */
static bool is_gone(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    char *text = read_text(path);
    const char *state = strrchr(text, ')');
    bool gone = !state || state[2] == 'Z' || state[2] == 'X';
    free(text);
    return gone;
}

static bool gone_within(pid_t pid, int ms)
{
    for (int64_t until = clock_mono_ms() + ms; clock_mono_ms() < until; sleep_ms(5))
        if (is_gone(pid))
            return true;
    return false;
}

static int control_pid(struct dtd *d)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    assert_true(pid > 1); /* never kill(0) or kill(1) */
    return pid;
}

TEST(second_dtd_refuses)
{
    struct dtd d;
    char text[4096], pid[32];
    dtd_start(&d, "state");
    int code = dtd_run((const char *[]){"--state-dir", d.dir, NULL}, text, sizeof(text));
    snprintf(pid, sizeof(pid), "(pid %d)", d.pid);
    assert_int_equal(1, code);
    if (!strstr(text, pid) || !strstr(text, d.dir))
        fail_msg("the refusal names neither pid %d nor %s: %s", d.pid, d.dir, text);
    assert_int_equal(0, dtd_down(&d));
}

TEST(bad_configuration_refuses)
{
    char path[512], text[4096];
    snprintf(path, sizeof(path), "%s/dtd.yaml", test_tmpdir());
    FILE *f = fopen(path, "w");
    fputs("log: {level: info}\nslotz: 4\n", f);
    fclose(f);
    assert_int_equal(2, dtd_run((const char *[]){"--config", path, NULL}, text, sizeof(text)));
    if (!strstr(text, "dtd.yaml:2") || !strstr(text, "slotz"))
        fail_msg("the refusal does not name file, line and key: %s", text);
}

TEST(configuration_names_the_state_dir)
{
    struct dtd d = {0};
    char path[512], text[4096];
    dtd_start(&d, "state"); /* the error message of the second one must name this folder */
    snprintf(path, sizeof(path), "%s/dtd.yaml", test_tmpdir());
    FILE *f = fopen(path, "w");
    fprintf(f, "state_dir: %s\n", d.dir);
    fclose(f);
    assert_int_equal(1, dtd_run((const char *[]){"--config", path, NULL}, text, sizeof(text)));
    assert_non_null(strstr(text, d.dir));
    assert_int_equal(0, dtd_down(&d));
}

TEST(long_state_dir_refuses)
{
    char dir[512], text[4096];
    snprintf(dir, sizeof(dir), "%s/%0100d", test_tmpdir(), 7);
    assert_int_equal(2, dtd_run((const char *[]){"--state-dir", dir, NULL}, text, sizeof(text)));
    assert_non_null(strstr(text, "shorter"));
}

TEST(control_is_started_again)
{
    struct dtd d;
    dtd_start(&d, "state");
    for (int i = 0; i < 3; i++) {
        int before = control_pid(&d);
        assert_int_equal(0, kill(before, SIGKILL));
        assert_true(gone_within(before, 5000));
        assert_int_not_equal(before, control_pid(&d));
    }
    assert_int_equal(0, kill(d.pid, 0));
    assert_int_equal(0, dtd_down(&d));
}

TEST(children_die_with_it)
{
    struct dtd d;
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    const struct client_job *s = job_status(&d, job);
    int control = control_pid(&d), first = s->worker[0].pid, second = s->worker[1].pid;
    dtd_kill(&d);
    assert_true(gone_within(control, 2000));
    assert_true(gone_within(first, 2000));
    assert_true(gone_within(second, 2000));
}

TEST(sigterm_ends_everything)
{
    struct dtd d;
    char job[32];
    int status;
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    int worker = job_status(&d, job)->worker[0].pid;
    kill(d.pid, SIGTERM);
    assert_int_equal(d.pid, waitpid(d.pid, &status, 0));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(gone_within(worker, 100));
    client_close(d.client);
}
