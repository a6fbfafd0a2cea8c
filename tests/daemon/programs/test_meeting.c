/* The rendezvous of an epoch's ranks in control's store. The worker double stores a value, gets the values of all other
 * ranks, and only then reports that it is ready. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <signal.h>

static struct dtd d;

static const char *path_of(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", test_tmpdir(), name);
    return path[turn];
}

static const char *env_of(const char *more)
{
    static char env[1024];
    snprintf(env, sizeof(env), "DOUBLE_STORE: %s%s", path_of("seen"), more);
    return env;
}

static int seen(const char *what)
{
    char *text = read_text(path_of("seen"));
    int n = count_text(text, what);
    free(text);
    return n;
}

static void wait_seen(const char *what, int n)
{
    for (int64_t until = clock_mono_ms() + 20000; seen(what) < n; sleep_ms(10))
        if (clock_mono_ms() > until)
            fail_msg("timeout: '%s' did not appear %d times", what, n);
}

static int control_pid(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    assert_true(pid > 1);
    return pid;
}

TEST(ranks_exchange_values)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 4, 100000, env_of(""), ""), job);
    job_wait_step(&d, job, 1, 3, 20000);
    assert_int_equal(4, seen(" met 4"));
    assert_int_equal(1, seen(" one 0")); /* the first rank succeeds; the others get ERR_EXISTS */
    assert_int_equal(3, seen(" one -4"));
    assert_int_equal(4, seen(" later -16")); /* a put for an epoch that does not exist */
    kill(job_status(&d, job)->worker[2].pid, SIGKILL);
    job_wait_step(&d, job, 2, 3, 20000);
    assert_int_equal(4, seen("epoch 2 rank 0 met 4") + seen("epoch 2 rank 1 met 4") + seen("epoch 2 rank 2 met 4") +
                            seen("epoch 2 rank 3 met 4"));
    assert_int_equal(2, seen(" one 0")); /* the keys of epoch 1 are gone, so one rank of epoch 2 succeeds again */
    assert_int_equal(0, dtd_down(&d));
}

TEST(control_is_killed_during_rendezvous)
{
    char job[32], more[600];
    snprintf(more, sizeof(more), ", DOUBLE_HOLD: %s", path_of("hold"));
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 3, 100000, env_of(more), ""), job);
    wait_seen(" later ", 2); /* ranks 0 and 2 have stored their values */
    for (int i = 0; i < 2; i++) {
        kill(control_pid(), SIGKILL);
        wait_seen(" later ", 4 + 2 * i); /* and have stored them again in the new control */
    }
    assert_int_equal(0, seen(" met "));
    close(open(path_of("hold"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    job_wait_step(&d, job, 1, 3, 20000);
    assert_int_equal(3, seen(" met 3"));
    assert_int_equal(0, job_status(&d, job)->restarts);
    assert_int_equal(0, dtd_down(&d));
}

TEST(missing_rank_is_named)
{
    char job[32], more[600];
    snprintf(more, sizeof(more), ", DOUBLE_MISS_MS: \"300\", DOUBLE_HOLD: %s", path_of("hold"));
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 3, 100000, env_of(more), "restarts: 0"), job);
    job_wait(&d, job, "failed", 20000);
    const char *reason = job_status(&d, job)->reason;
    if (!strstr(reason, "ERR_TIMEOUT: no rank stored the key here/1 in time; missing: worker rank 1"))
        fail_msg("the reason does not name who is missing: %s", reason);
    assert_int_equal(0, dtd_down(&d));
}

TEST(end_of_epoch_ends_waiting_gets)
{
    char job[32], more[600];
    snprintf(more, sizeof(more), ", DOUBLE_HOLD: %s", path_of("hold"));
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 3, 100000, env_of(more), ""), job);
    wait_seen(" later ", 2);
    kill(job_status(&d, job)->worker[1].pid, SIGKILL);
    wait_seen("epoch 2 rank 0 later ", 1); /* the end of epoch 1 ended rank 0's get */
    close(open(path_of("hold"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    job_wait_step(&d, job, 2, 3, 20000);
    assert_int_equal(1, job_status(&d, job)->restarts);
    assert_int_equal(0, dtd_down(&d));
}
