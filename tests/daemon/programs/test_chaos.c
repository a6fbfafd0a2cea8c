/* Longer tests of failures: deadlines that pass, and kills at many moments of a job. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <signal.h>

static struct dtd d;

/* A surviving worker that does not leave its epoch in time is killed. */
TEST(deaf_survivor_is_killed)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "DOUBLE_DEAF: \"0\"", ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    int deaf = job_status(&d, job)->worker[0].pid;
    kill(job_status(&d, job)->worker[1].pid, SIGKILL);
    job_wait_step(&d, job, 2, 2, 25000);
    const struct client_job *s = job_status(&d, job);
    assert_int_not_equal(deaf, s->worker[0].pid);
    assert_int_equal(1, s->restarts);
    assert_int_equal(0, dtd_down(&d));
}

/* Control is killed at many moments of a job's start; in each case exactly one job runs, and once. */
TEST(control_is_killed_while_a_job_starts)
{
    char begins[512], env[600];
    dtd_start(&d, "state");
    snprintf(begins, sizeof(begins), "%s/begins", test_tmpdir());
    snprintf(env, sizeof(env), "DOUBLE_BEGIN: \"%s\"", begins);
    for (int i = 0; i < 6; i++) {
        char job[32], name[32];
        uint8_t id[16];
        struct why why = {""};
        snprintf(name, sizeof(name), "j%d", i);
        const char *spec = spec_text(name, 2, 20, env, "");
        int control = dtd_control_pid(&d);
        assert_ok(client_request_id(id));
        err_t err = client_submit(dtd_client(&d), id, spec, NULL, job, &why);
        sleep_ms(4 * i);
        kill(control, SIGKILL);
        for (int tries = 0; tries < 3; tries++)
            err = client_submit(dtd_client(&d), id, spec, NULL, job, &why);
        assert_ok(err);
        job_wait(&d, job, "done", 30000);
        assert_int_equal(0, job_status(&d, job)->restarts);
        char *text = read_text(begins), epoch[24];
        snprintf(epoch, sizeof(epoch), "\n%d ", (int)job_status(&d, job)->epoch);
        int ranks = count_text(text, epoch) + (strncmp(text, epoch + 1, strlen(epoch + 1)) == 0);
        if (ranks != 2 || count_text(text, "\n") > 4) /* a worker may have begun before control was restarted */
            fail_msg("after %d ms %d workers began epoch%s:\n%s", 4 * i, ranks, epoch + 1, text);
        free(text);
        remove(begins);
    }
    struct client_job *jobs;
    struct why why = {""};
    int n;
    assert_ok(client_list(dtd_client(&d), &jobs, &n, &why));
    assert_int_equal(6, n);
    client_jobs_free(jobs, n);
    assert_int_equal(0, dtd_down(&d));
}

static int io_pid(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int pid = node.n_io ? node.io_pid[0] : 0;
    client_node_fini(&node);
    return pid;
}

/* Control and dtd-io are killed in turn, at moments that a fixed seed chooses, while the job continues in one epoch. */
TEST(control_and_io_are_killed_repeatedly)
{
    char job[32], path[512];
    uint32_t random = 12345;
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 400, "DOUBLE_STEP_MS: \"10\"", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    for (int i = 0; i < 12; i++) {
        random = random * 1664525u + 1013904223u;
        sleep_ms((int)(random >> 24));
        int pid = i % 3 == 2 ? io_pid() : dtd_control_pid(&d);
        if (pid > 1)
            kill(pid, SIGKILL);
    }
    job_wait(&d, job, "done", 40000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(1, s->epoch);
    assert_int_equal(0, s->restarts);
    snprintf(path, sizeof(path), "%s/metrics/%s.jsonl", d.dir, job);
    char *text = read_text(path);
    assert_int_equal(400, count_text(text, "\n"));
    free(text);
    assert_int_equal(0, dtd_down(&d));
}
