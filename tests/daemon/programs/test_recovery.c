/* Recovery: workers, control, dtd-io and the supervisor are killed, and jobs continue. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dtd d;

static int control_pid(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    assert_true(pid > 1); /* the caller kills it: -1, 0 and 1 would be other processes */
    return pid;
}

/* The parts that control measures add up; those of loading are the ones that worker_double reports for rank 1, or for
 * rank 0 if the recovery was over before rank 1's report arrived. */
static void expect_parts(const struct incident *i)
{
    assert_true(fabs(i->restart_ms + i->load_ms + i->step_ms - i->recover_ms) < 1.0);
    assert_true(fabs(i->slots_ms + i->connect_ms + i->scan_ms + i->log_ms - i->restart_ms) < 1.0);
    assert_true(i->slots_ms >= 0 && i->connect_ms > 0 && i->scan_ms > 0 && i->log_ms > 0);
    const double is[] = {i->data_ms, i->plan_ms, i->join_ms, i->memory_ms, i->state_ms};
    static const double of_rank_0[] = {9, 1, 1, 1, 1}, of_rank_1[] = {1, 2, 4, 8, 16};
    assert_true(!memcmp(is, of_rank_1, sizeof(is)) || !memcmp(is, of_rank_0, sizeof(is)));
}

TEST(killed_worker_makes_a_new_epoch)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    const struct client_job *s = job_status(&d, job);
    int survivor = s->worker[0].pid, victim = s->worker[1].pid;
    kill(victim, SIGKILL);
    job_wait_step(&d, job, 2, 2, 20000);
    s = job_status(&d, job);
    for (int64_t until = clock_mono_ms() + 10000; !(s->incident[0].recover_ms > 0);
         s = job_status(&d, job), sleep_ms(10))
        if (clock_mono_ms() > until)
            fail_msg("the incident is not completed");
    assert_string_equal("running", s->state);
    assert_int_equal(2, s->epoch);
    assert_int_equal(1, s->restarts);
    assert_int_equal(survivor, s->worker[0].pid);
    assert_int_not_equal(victim, s->worker[1].pid);
    assert_int_equal(1, s->n_incident);
    if (!strstr(s->incident[0].seen, "worker rank 1") || !strstr(s->incident[0].seen, "signal 9"))
        fail_msg("the incident names neither rank nor signal: %s", s->incident[0].seen);
    assert_string_equal("new epoch 2 from step 0", s->incident[0].decided);
    assert_true(s->incident[0].detect_ms >= 0 && s->incident[0].detect_ms < 100);
    assert_true(s->incident[0].recover_ms > 0);
    expect_parts(&s->incident[0]);
    assert_int_equal(1, s->start.epoch);
    assert_string_equal("epoch 1 with 2 workers", s->start.decided);
    expect_parts(&s->start);
    assert_true(s->incident[0].restart_ms > 0 && s->incident[0].step_ms > 0);
    assert_true(s->incident[0].lost_steps >= 5); /* there is no checkpoint */
    assert_int_equal(0, dtd_down(&d));
}

static bool write_to(const char *dir, const char *file, const char *text)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Moves the process into a control group with a limit of 64 MiB; false: no control group can be created. */
static bool confine_memory(char dir[300], int pid)
{
    static const char *const roots[][2] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                           {"/sys/fs/cgroup", "memory.max"}};
    char text[32];
    snprintf(text, sizeof(text), "%d", pid);
    for (int i = 0; i < 2; i++) {
        snprintf(dir, 300, "%s/dtd-test-%d", roots[i][0], (int)getpid());
        if (mkdir(dir, 0700))
            continue;
        if (write_to(dir, roots[i][1], "67108864") && write_to(dir, "cgroup.procs", text))
            return true;
        rmdir(dir);
    }
    return false;
}

/* The incident of a SIGKILL from the kernel's out-of-memory killer names that cause. */
TEST(out_of_memory_is_named)
{
    char job[32], env[400], dir[300], file[300];
    snprintf(file, sizeof(file), "%s/eat", test_tmpdir());
    snprintf(env, sizeof(env), "DOUBLE_EAT: %s", file);
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, env, ""), job);
    job_wait_step(&d, job, 1, 3, 20000);
    if (!confine_memory(dir, job_status(&d, job)->worker[1].pid))
        TEST_SKIP("no control group for memory can be made here");
    fclose(fopen(file, "w"));
    job_wait_step(&d, job, 2, 3, 30000);
    assert_int_equal(0, rmdir(dir));
    const struct client_job *s = job_status(&d, job);
    if (!strstr(s->incident[0].seen, "was killed by signal 9 (Killed): the kernel killed it for lack of memory"))
        fail_msg("the incident is: %s", s->incident[0].seen);
    assert_int_equal(0, dtd_down(&d));
}

TEST(restarts_are_used_up)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", "restarts: 1"), job);
    for (uint64_t epoch = 1; epoch <= 2; epoch++) {
        job_wait_step(&d, job, epoch, 2, 20000);
        kill(job_status(&d, job)->worker[0].pid, SIGTERM);
    }
    job_wait(&d, job, "failed", 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(2, s->epoch);
    assert_int_equal(1, s->restarts);
    assert_int_equal(SIGTERM, s->worker[0].exit_signal);
    assert_non_null(strstr(s->reason, "signal 15"));
    assert_non_null(strstr(s->reason, "dtctl resume"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(exit_status_is_reported)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "DOUBLE_EXIT: \"1\"", "restarts: 0"), job);
    job_wait(&d, job, "failed", 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(3, s->worker[1].exit_status);
    assert_non_null(strstr(s->reason, "exit status 3"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(failed_worker_is_replaced)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 20, "DOUBLE_FAIL: \"0\"", ""), job);
    job_wait(&d, job, "done", 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(2, s->epoch);
    assert_int_equal(1, s->restarts);
    assert_non_null(strstr(s->incident[0].seen, "DOUBLE_FAIL asked for it"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(workers_survive_control)
{
    char job[32], path[512];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 3, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    int pids[3];
    for (int k = 0; k < 3; k++)
        pids[k] = job_status(&d, job)->worker[k].pid;
    for (int i = 0; i < 3; i++) {
        kill(control_pid(), SIGKILL);
        const struct client_job *s = job_status(&d, job);
        job_wait_step(&d, job, 1, s->last.step + 10, 20000);
    }
    job_wait(&d, job, "running", 5000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(1, s->epoch);
    assert_int_equal(0, s->restarts);
    int64_t last = s->last.step;
    for (int k = 0; k < 3; k++)
        assert_int_equal(pids[k], s->worker[k].pid);
    snprintf(path, sizeof(path), "%s/metrics/%s.jsonl", d.dir, job);
    char *text = read_text(path);
    for (int64_t step = 1; step <= last; step++) { /* no step is lost or written twice */
        char key[64];
        snprintf(key, sizeof(key), "{\"step\": %lld,", (long long)step);
        if (count_text(text, key) != 1)
            fail_msg("step %lld has %d lines", (long long)step, count_text(text, key));
    }
    free(text);
    assert_int_equal(0, dtd_down(&d));
}

TEST(jobs_go_on_after_dtd_was_killed)
{
    char job[32], done[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("b", 1, 3, "", ""), done);
    job_wait(&d, done, "done", 20000);
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    dtd_kill(&d);
    dtd_start(&d, "state");
    job_wait_step(&d, job, 2, 2, 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(2, s->epoch);
    assert_int_equal(0, s->restarts);
    assert_int_equal(1, s->n_incident);
    assert_string_equal("done", job_status(&d, done)->state);
    assert_int_equal(0, dtd_down(&d));
}

TEST(jobs_go_on_after_dtd_was_stopped)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    assert_int_equal(0, dtd_down(&d));
    dtd_start(&d, "state");
    job_wait_step(&d, job, 2, 2, 20000);
    assert_int_equal(0, dtd_down(&d));
}

TEST(killed_io_ends_no_epoch)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    assert_int_equal(1, node.n_io);
    int io = node.io_pid[0];
    client_node_fini(&node);
    kill(io, SIGKILL);
    for (int64_t until = clock_mono_ms() + 10000; clock_mono_ms() < until; sleep_ms(20)) {
        assert_ok(client_node_get(dtd_client(&d), &node, &why));
        bool back = node.n_io == 1 && node.io_pid[0] != io;
        client_node_fini(&node);
        if (back)
            break;
    }
    const struct client_job *s = job_status(&d, job);
    job_wait_step(&d, job, 1, s->last.step + 10, 10000);
    s = job_status(&d, job);
    assert_string_equal("running", s->state);
    assert_int_equal(1, s->epoch);
    assert_int_equal(0, s->restarts);
    assert_int_equal(1, s->n_incident);
    assert_non_null(strstr(s->incident[0].seen, "dtd-io"));
    assert_int_equal(0, dtd_down(&d));
}
