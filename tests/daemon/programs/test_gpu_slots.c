/* Jobs for GPUs: which job gets which GPU, waits, or is refused. The worker double replaces the probe; it prints the
 * text of a file. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/file.h"
#include "tests/daemon/control/local/sysfs_tree.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

static struct dtd d;

static const char *path_of(const char *name)
{
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", test_tmpdir(), name);
    return path[turn];
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void start_with(int n)
{
    static char text[4096];
    char *at = text + sprintf(text, "{\"gpus\": [");
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s{\"index\": %d, \"model\": \"NVIDIA T\"}", i ? ", " : "", i);
    sprintf(at, "], \"gpu_missing\": \"no driver: libcuda.so.1 was not found\"}");
    write_text("probe", text);
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    dtd_start(&d, "state");
}

static const char *spec(const char *name, int workers, int steps, const char *more)
{
    char env[600], rest[200];
    snprintf(env, sizeof(env), "DOUBLE_DEVICES: %s", path_of("devices"));
    snprintf(rest, sizeof(rest), "device: cuda%s%s", *more ? ", " : "", more);
    return spec_text(name, workers, steps, env, rest);
}

static int seen(const char *what)
{
    char *text = read_text(path_of("devices"));
    int n = count_text(text, what);
    free(text);
    return n;
}

static void expect_node(int gpus, int free_ones)
{
    struct client_node node;
    struct why why = {""};
    for (int64_t until = clock_mono_ms() + 10000;; sleep_ms(10)) {
        assert_ok(client_node_get(dtd_client(&d), &node, &why));
        bool there = node.gpus == gpus && node.gpus_free == free_ones;
        if (!there && clock_mono_ms() > until)
            fail_msg("%d of %d GPUs are free, expected %d of %d", node.gpus_free, node.gpus, free_ones, gpus);
        client_node_fini(&node);
        if (there)
            return;
    }
}

static void refused(const char *text, const char *a, const char *b)
{
    char job[32];
    uint8_t id[16];
    struct why why = {""};
    assert_ok(client_request_id(id));
    assert_err(ERR_INVALID, client_submit(dtd_client(&d), id, text, NULL, job, &why));
    if (!strstr(why.text, a) || !strstr(why.text, b))
        fail_msg("the refusal does not contain '%s' or '%s': %s", a, b, why.text);
}

static int control_pid(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    return pid;
}

TEST(each_worker_has_its_gpu)
{
    char a[32], b[32];
    start_with(4);
    job_submit(&d, spec("a", 4, 100000, "workers_per_gpu: 2"), a);
    job_wait_step(&d, a, 1, 2, 20000);
    job_submit(&d, spec("b", 2, 100000, ""), b);
    job_wait_step(&d, b, 1, 2, 20000);
    assert_int_equal(1, seen("1 0 on 0"));
    assert_int_equal(1, seen("1 1 on 0"));
    assert_int_equal(1, seen("1 2 on 1"));
    assert_int_equal(1, seen("1 3 on 1"));
    assert_int_equal(1, seen("2 0 on 2"));
    assert_int_equal(1, seen("2 1 on 3"));
    expect_node(4, 0);
    kill(job_status(&d, b)->worker[1].pid, SIGKILL);
    job_wait_step(&d, b, 2, 2, 20000);
    assert_int_equal(2, seen("2 1 on 3")); /* the new worker has the same GPU */
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_job_waits_for_gpus)
{
    char a[32], b[32], c[32];
    start_with(2);
    job_submit(&d, spec("a", 1, 100000, ""), a);
    job_wait_step(&d, a, 1, 2, 20000);
    job_submit(&d, spec("b", 2, 3, ""), b);
    job_submit(&d, spec_text("c", 2, 3, "", ""), c); /* uses CPUs and overtakes b, which it does not delay */
    sleep_ms(200);
    const struct client_job *s = job_status(&d, b);
    assert_string_equal("pending", s->state);
    if (!strstr(s->reason, "waits for 2 GPUs: node-1 has 1 of 2 free"))
        fail_msg("the reason is different: %s", s->reason);
    expect_node(2, 1);
    job_wait(&d, c, "done", 20000);
    assert_string_equal("pending", job_status(&d, b)->state);
    struct why why = {""};
    uint8_t id[16];
    struct client_job canceled;
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, a, false, CLIENT_GRACE_DEFAULT, &canceled, &why));
    client_job_fini(&canceled);
    job_wait(&d, b, "done", 20000);
    expect_node(2, 2);
    assert_int_equal(0, dtd_down(&d));
}

TEST(too_few_gpus_are_refused_at_once)
{
    start_with(2);
    refused(spec("a", 3, 5, ""), "need 3 GPUs, but node-1 has 2", "share a GPU");
    refused(spec("a", 9, 5, "workers_per_gpu: 4"), "need 3 GPUs, but node-1 has 2", "fewer workers");
    assert_int_equal(0, dtd_down(&d));
}

TEST(no_gpu_names_the_probes_reason)
{
    start_with(0);
    expect_node(0, 0);
    refused(spec("a", 1, 5, ""), "no driver: libcuda.so.1 was not found", "run.device: cpu");
    assert_int_equal(0, dtd_down(&d));
}

/* The first submit arrives while the probe still runs: its answer waits for the probe. */
TEST(hanging_probe_blocks_no_other_job)
{
    char job[32];
    start_with(1);
    expect_node(1, 1);
    setenv("DOUBLE_PROBE_HANGS", "1", 1);
    setenv("DTD_PROBE_LIMIT_MS", "5000", 1);
    dtd_kill(&d);
    sleep_ms(200);
    dtd_start(&d, "state");
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    assert_int_equal(-1, node.gpus);
    client_node_fini(&node);
    job_submit(&d, spec_text("c", 1, 3, "", ""), job);
    job_wait(&d, job, "done", 20000);
    int64_t start = clock_mono_ms();
    kill(control_pid(), SIGKILL); /* the next control finds the probe of this one */
    refused(spec("a", 1, 5, ""), "did not end within 5 s", "run.device: cpu");
    assert_in_range(clock_mono_ms() - start, 2500, 19000); /* less than the longest wait of a submit, 20 s */
    assert_int_equal(0, dtd_down(&d));
}

static void expect_reason(const char *job, const char *what)
{
    for (int64_t until = clock_mono_ms() + 20000; !strstr(job_status(&d, job)->reason, what); sleep_ms(20))
        if (clock_mono_ms() > until)
            fail_msg("the job's reason does not contain '%s': %s", what, job_status(&d, job)->reason);
}

static int logged(const char *what)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/control.log", d.dir);
    char *text = read_text(path);
    int n = count_text(text, what);
    free(text);
    return n;
}

static void expect_probe_ms(int gpus, int64_t least, int64_t most)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    assert_int_equal(gpus, node.gpus);
    assert_in_range(node.gpu_probe_ms, least, most);
    client_node_fini(&node);
}

/* The probe is slow, as with a cold disk or a driver that has to start. A job for GPUs is accepted before the probe
 * ends, and the duration is shown. */
TEST(a_probe_may_take_its_time)
{
    char job[32];
    write_text("probe", "sleeps 24000\n{\"gpus\": [{\"index\": 0, \"model\": \"NVIDIA T\"}]}\n");
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    dtd_start(&d, "state");
    int64_t start = clock_mono_ms();
    job_submit(&d, spec("a", 1, 3, ""), job);
    assert_in_range(clock_mono_ms() - start, 15000, 23500);
    expect_probe_ms(-1, 15000, 24500);
    expect_reason(job, "waits for 1 GPU: node-1 has not reported its GPUs yet");
    job_wait(&d, job, "done", 20000);
    expect_probe_ms(1, 23900, 40000);
    assert_int_equal(1, logged("`dt-worker --probe` took 2"));
    assert_int_equal(0, dtd_down(&d));
}

/* The probe fails after a job for GPUs was accepted. */
TEST(a_probe_may_fail_late)
{
    char job[32];
    write_text("probe", "hangs\n");
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    setenv("DTD_PROBE_LIMIT_MS", "23000", 1);
    dtd_start(&d, "state");
    job_submit(&d, spec("a", 1, 3, ""), job);
    expect_reason(job, "node-1 has none of 0 free: `dt-worker --probe` did not end within 23 s: the driver may hang");
    assert_string_equal("pending", job_status(&d, job)->state);
    refused(spec("b", 1, 5, ""), "did not end within 23 s", "run.device: cpu");
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_broken_probe_is_reported)
{
    setenv("DOUBLE_PROBE", path_of("nothing"), 1);
    dtd_start(&d, "state");
    refused(spec("a", 1, 5, ""), "ended with status 1", "probe.log");
    assert_int_equal(0, dtd_down(&d));
    write_text("words", "these are no words of a probe");
    setenv("DOUBLE_PROBE", path_of("words"), 1);
    dtd_start(&d, "state2");
    refused(spec("a", 1, 5, ""), "not JSON", "dt-worker --probe");
    assert_int_equal(0, dtd_down(&d));
}

/* The driver reports that a GPU has lost data: no job gets it, and `dtctl node` warns. */
TEST(sick_gpu_is_not_assigned)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    write_text("words",
               "{\"gpus\": [{\"index\": 0, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 3}}, "
               "{\"index\": 1, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 0}}]}");
    setenv("DOUBLE_PROBE", path_of("words"), 1);
    dtd_start(&d, "state");
    refused(spec("a", 2, 5, ""), "need 2 GPUs", "");
    expect_node(1, 1);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    if (!strstr(node.warning, "GPU 0 is not used: it has uncorrectable memory errors (3)"))
        fail_msg("the warning does not name the GPU: %s", node.warning);
    client_node_fini(&node);
    job_submit(&d, spec("b", 1, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    assert_int_equal(1, seen("1 0 on 1"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(gpus_are_known_after_control_was_killed)
{
    char a[32], b[32];
    start_with(3);
    job_submit(&d, spec("a", 2, 100000, ""), a);
    job_wait_step(&d, a, 1, 2, 20000);
    job_submit(&d, spec("b", 1, 100000, ""), b);
    job_wait_step(&d, b, 1, 2, 20000);
    assert_int_equal(1, seen("2 0 on 2"));
    int victim = job_status(&d, a)->worker[1].pid, control = control_pid();
    kill(control, SIGSTOP);
    kill(victim, SIGKILL); /* only the next control gets the report about its exit */
    sleep_ms(100);
    kill(control, SIGKILL);
    job_wait_step(&d, a, 2, 2, 20000);
    assert_int_equal(2, seen("1 0 on 0"));
    assert_int_equal(2, seen("1 1 on 1"));
    assert_int_equal(1, seen("2 0 on 2"));
    expect_node(3, 0);
    assert_int_equal(0, dtd_down(&d));
}

TEST(configuration_sets_the_number_of_gpus)
{
    char job[32], path[512], err[1024];
    snprintf(path, sizeof(path), "%s", path_of("node.yaml"));
    write_text("node.yaml", "gpus: 65\n");
    const char *bad[] = {"--config", path, NULL};
    assert_int_equal(2, dtd_run(bad, err, sizeof(err)));
    assert_non_null(strstr(err, "gpus"));
    write_text("node.yaml", "gpus: 2\n");
    setenv("DOUBLE_PROBE", path_of("nothing"), 1);
    dtd_start_with(&d, "state", path);
    expect_node(2, 2);
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    assert_int_equal(1, seen("1 1 on 1"));
    expect_node(2, 0);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- health while jobs run ---- */

/* Replaces the file by a rename, so that a reader finds the old text or the new one. */
static void write_health(const char *text)
{
    char from[512], to[512];
    write_text("health.new", text);
    snprintf(from, sizeof(from), "%s", path_of("health.new"));
    snprintf(to, sizeof(to), "%s", path_of("health"));
    assert_int_equal(0, rename(from, to));
}

/* The GPUs whose bits are set in `sick` have an uncorrectable error. The list is in the library's order, last GPU
 * first. */
static void write_sick(int n, unsigned sick)
{
    char text[2048], *at = text + sprintf(text, "{\"gpus\": [");
    for (int i = n; i-- > 0;)
        at += sprintf(at, "{\"uuid\": \"GPU-%d\", \"health\": {\"ecc_uncorrected_volatile\": %u}}%s", i, sick >> i & 1,
                      i ? ", " : "]}");
    write_health(text);
}

static void start_watched(int n, const char *every_ms)
{
    char text[2048], *at = text + sprintf(text, "{\"gpus\": [");
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s{\"index\": %d, \"model\": \"NVIDIA T\", \"uuid\": \"GPU-%d\", \"health\": {}}",
                      i ? ", " : "", i, i);
    sprintf(at, "]}");
    write_text("probe", text);
    write_sick(n, 0);
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    setenv("DOUBLE_HEALTH", path_of("health"), 1);
    setenv("DTD_HEALTH_MS", every_ms, 1);
    dtd_start(&d, "state");
}

static void expect_warning(const char *what)
{
    struct client_node node;
    struct why why = {""};
    for (int64_t until = clock_mono_ms() + 30000;; sleep_ms(20)) {
        assert_ok(client_node_get(dtd_client(&d), &node, &why));
        bool there = *what ? strstr(node.warning, what) != NULL : node.warning[0] == '\0';
        if (!there && clock_mono_ms() > until)
            fail_msg("the warning is '%s', without '%s'", node.warning, what);
        client_node_fini(&node);
        if (there)
            return;
    }
}

/* Incident i of n contains `a` and `b`; waits, because the last one may not be in the log yet. */
static void expect_incident(const char *job, int n, int i, const char *a, const char *b)
{
    const struct client_job *s = job_status(&d, job);
    for (int64_t until = clock_mono_ms() + 10000; s->n_incident < n && clock_mono_ms() < until; sleep_ms(10))
        s = job_status(&d, job);
    assert_int_equal(n, s->n_incident);
    if (!strstr(s->incident[i].seen, a) || !strstr(s->incident[i].seen, b))
        fail_msg("the incident does not contain '%s' and '%s': %s", a, b, s->incident[i].seen);
}

/* Waits, because rank 0 may complete a step before the others have written their GPUs to the file. */
static void expect_seen(int n, const char *what)
{
    for (int64_t until = clock_mono_ms() + 10000; seen(what) < n && clock_mono_ms() < until;)
        sleep_ms(10);
    assert_int_equal(n, seen(what));
}

static void wait_file(const char *name)
{
    for (int64_t until = clock_mono_ms() + 20000; access(path_of(name), F_OK); sleep_ms(10))
        if (clock_mono_ms() > until)
            fail_msg("there is no file %s", name);
}

/* Waits until control has read the health that was in the file at the call: the next check starts after the output of
 * the previous one was read. */
static void wait_health_read(void)
{
    for (int i = 0; i < 3; i++) {
        unlink(path_of("health.printed"));
        wait_file("health.printed");
    }
}

TEST(a_gpu_becomes_sick_under_a_job)
{
    char job[32];
    start_watched(3, "50");
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    int other = job_status(&d, job)->worker[0].pid;
    write_sick(3, 2);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 1 on 2");
    expect_seen(2, "1 0 on 0");
    assert_int_equal(other, job_status(&d, job)->worker[0].pid); /* this worker was not restarted */
    expect_incident(job, 1, 0, "worker rank 1 (pid", "GPU 1 of node-1 has uncorrectable memory errors (1)");
    assert_int_equal(1, job_status(&d, job)->restarts);
    expect_node(2, 0);
    expect_warning("GPU 1 is not used: it has uncorrectable memory errors (1)");
    wait_health_read();
    assert_int_equal(1, logged("GPU 1 is not used"));
    refused(spec("b", 3, 5, ""), "need 3 GPUs, but node-1 has 2", "");
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_job_waits_when_no_gpu_is_left)
{
    char a[32], b[32];
    start_watched(2, "50");
    job_submit(&d, spec("a", 2, 100000, "restarts: 1"), a);
    job_wait_step(&d, a, 1, 2, 20000);
    write_sick(2, 1);
    expect_reason(
        a, "it needs 2 GPUs: node-1 has 1 of 1 free (GPU 0 is not used: it has uncorrectable memory errors (1))");
    expect_incident(a, 1, 0, "worker rank 0 (pid", "GPU 0 of node-1 has uncorrectable memory errors (1)");
    assert_int_equal(1, job_status(&d, a)->restarts);
    job_submit(&d, spec("b", 1, 3, ""), b); /* uses the healthy GPU */
    job_wait(&d, b, "done", 20000);
    expect_seen(1, "2 0 on 1");
    assert_string_equal("recovering", job_status(&d, a)->state);
    write_sick(2, 0); /* as if the GPU had been reset; a new dtd runs the probe again */
    assert_int_equal(0, dtd_down(&d));
    dtd_start(&d, "state");
    job_wait_step(&d, a, 2, 2, 20000);
    expect_seen(2, "1 0 on 0");
    assert_int_equal(0, dtd_down(&d));
}

/* Two workers share the GPU, and both are killed. */
TEST(a_sick_gpu_may_have_been_shared)
{
    char job[32];
    start_watched(3, "50");
    job_submit(&d, spec("a", 4, 100000, "workers_per_gpu: 2"), job);
    job_wait_step(&d, job, 1, 2, 20000);
    write_sick(3, 1);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 0 on 2");
    expect_seen(1, "1 1 on 2");
    expect_seen(2, "1 2 on 1");
    assert_int_equal(1, job_status(&d, job)->restarts);
    assert_int_equal(0, dtd_down(&d));
}

/* There are no periodic health checks here. The exit of a worker starts one, and its GPU is assigned again only after
 * that check. */
TEST(the_end_of_a_worker_waits_for_its_gpus_health)
{
    char job[32];
    start_watched(3, "10000000");
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    kill(job_status(&d, job)->worker[1].pid, SIGKILL);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(2, "1 1 on 1"); /* the GPU is healthy and is used again */
    expect_incident(job, 1, 0, "was killed by signal 9 (Killed)", "");
    assert_null(strstr(job_status(&d, job)->incident[0].seen, "GPU"));
    write_sick(3, 2);
    kill(job_status(&d, job)->worker[1].pid, SIGTERM);
    job_wait_step(&d, job, 3, 2, 20000);
    expect_seen(2, "1 1 on 1");
    expect_seen(1, "1 1 on 2");
    assert_int_equal(2, job_status(&d, job)->restarts);
    expect_incident(job, 2, 1, "was killed by signal 15", "GPU 1 of node-1 has uncorrectable memory errors (1)");
    assert_int_equal(0, dtd_down(&d));
}

/* The worker reports a failure and is killed for it; the incident names the defect of its GPU as the cause. */
TEST(a_worker_that_fails_may_have_had_a_sick_gpu)
{
    char job[32], env[600];
    start_watched(3, "10000000");
    write_sick(3, 2);
    snprintf(env, sizeof(env), "DOUBLE_FAIL: 1, DOUBLE_DEVICES: %s", path_of("devices"));
    job_submit(&d, spec_text("a", 2, 100000, env, "device: cuda"), job);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 1 on 1");
    expect_seen(1, "1 1 on 2");
    expect_incident(job, 1, 0, "was killed by dtd with signal 9",
                    "GPU 1 of node-1 has uncorrectable memory errors (1)");
    assert_int_equal(1, job_status(&d, job)->restarts);
    assert_int_equal(0, dtd_down(&d));
}

/* A health check without output, or with invalid output, affects no job; a warning is shown until one succeeds. */
TEST(failed_health_check_affects_no_job)
{
    char job[32];
    setenv("DTD_PROBE_LIMIT_MS", "5000", 1);
    start_watched(2, "50");
    job_submit(&d, spec("a", 2, 1000000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    int pid = job_status(&d, job)->worker[1].pid;
    write_health("these are no words\n");
    expect_warning("the health of the GPUs is not known: the output of the probe is not JSON");
    wait_health_read(); /* further checks fail as well */
    write_sick(2, 0);
    expect_warning("");
    write_health("{\"gpus\": [], \"gpu_missing\": \"the driver sees no device\"}");
    expect_warning("not known: the driver sees no device");
    write_sick(2, 0);
    expect_warning("");
    write_health("hangs\n");
    wait_file("health.hangs");
    kill(job_status(&d, job)->worker[0].pid, SIGKILL); /* its exit does not wait for the hanging check */
    job_wait_step(&d, job, 2, 2, 20000);
    expect_warning("`dt-worker --health` did not end within 5 s: the driver may hang");
    kill(job_status(&d, job)->worker[0].pid, SIGKILL); /* while the warning is shown, the exit starts no check */
    job_wait_step(&d, job, 3, 2, 20000);
    expect_seen(3, "1 0 on 0");
    assert_int_equal(pid, job_status(&d, job)->worker[1].pid);
    write_sick(2, 0);
    expect_warning("");
    assert_int_equal(3, logged("the health of the GPUs is not known:")); /* one line for each series of failures */
    expect_node(2, 0);
    assert_int_equal(0, dtd_down(&d));
}

/* The probe of an earlier control exits unreported; the supervisor reports it to the new control, which waits for its
 * own probe. */
TEST(end_of_an_earlier_probe_is_ignored)
{
    int pid = 0;
    write_text("probe", "hangs\n");
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    dtd_start(&d, "state");
    for (wait_file("probe.hangs"); pid == 0; sleep_ms(10)) {
        char *text = read_text(path_of("probe.hangs"));
        pid = atoi(text);
        free(text);
    }
    int control = control_pid();
    kill(control, SIGSTOP);
    write_text("probe", "{\"gpus\": [{\"index\": 0, \"model\": \"T\"}]}");
    kill(pid, SIGKILL);
    while (kill(pid, 0) == 0) /* until the supervisor has collected it */
        sleep_ms(10);
    kill(control, SIGKILL);
    expect_node(1, 1);
    assert_int_equal(0, dtd_down(&d));
}

/* An earlier control had started a check; the new control does not use its output. */
TEST(health_check_runs_again_after_control_was_killed)
{
    char job[32];
    start_watched(3, "50");
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    write_health("hangs\n");
    wait_file("health.hangs");
    int control = control_pid();
    kill(control, SIGSTOP);
    write_sick(3, 1);
    kill(control, SIGKILL);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 0 on 2");
    expect_incident(job, 1, 0, "worker rank 0 (pid", "GPU 0 of node-1 has uncorrectable memory errors (1)");
    assert_int_equal(0, dtd_down(&d));
}

/* The probe of a new control reports the sick GPU again, and the worker on it is killed. */
TEST(a_new_control_finds_a_sick_gpu_in_use)
{
    char job[32];
    start_watched(2, "10000000");
    job_submit(&d, spec("a", 1, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    write_text("probe",
               "{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-0\", \"health\": {\"remapped_rows\": {\"failed\": 1}}}, "
               "{\"index\": 1, \"uuid\": \"GPU-1\", \"health\": {}}]}");
    kill(control_pid(), SIGKILL);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 0 on 1");
    expect_incident(job, 1, 0, "GPU 0 of node-1 has rows of memory that could not be replaced (1)", "");
    assert_int_equal(0, dtd_down(&d));
}

/* The worker's exit and the GPU's defect both happen while control does not run. */
static void lose_a_worker_and_control(int n, char job[32])
{
    char text[512];
    start_watched(n, "10000000");
    job_submit(&d, spec("a", 1, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    int worker = job_status(&d, job)->worker[0].pid, control = control_pid();
    kill(control, SIGSTOP);
    sprintf(text, "{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-0\", \"health\": {\"retired_pages\": 64}}%s]}",
            n > 1 ? ", {\"index\": 1, \"uuid\": \"GPU-1\", \"health\": {}}" : "");
    write_text("probe", text);
    kill(worker, SIGKILL);
    while (kill(worker, 0) == 0)
        sleep_ms(10);
    kill(control, SIGKILL);
}

TEST(new_control_starts_no_worker_on_a_sick_gpu)
{
    char job[32];
    lose_a_worker_and_control(2, job);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 0 on 0");
    expect_seen(1, "1 0 on 1");
    assert_int_equal(1, job_status(&d, job)->restarts);
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_new_control_has_nowhere_to_start)
{
    char job[32];
    lose_a_worker_and_control(1, job);
    expect_reason(job,
                  "it needs 1 GPU: node-1 has none of 0 free (GPU 0 is not used: it has retired pages of memory (64))");
    assert_string_equal("recovering", job_status(&d, job)->state);
    expect_seen(1, "1 0 on 0");
    assert_int_equal(0, dtd_down(&d));
}

/* A lost GPU has no uuid in the output: it is the one that is missing from the list. */
TEST(a_lost_gpu_is_left)
{
    char job[32];
    start_watched(2, "50");
    job_submit(&d, spec("a", 1, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    wait_health_read(); /* control has seen both GPUs */
    write_health(
        "{\"gpus\": [{\"lost\": true, \"error\": \"GPU is lost (code 15)\"}, {\"uuid\": \"GPU-1\", \"health\": {}}]}");
    job_wait_step(&d, job, 2, 2, 20000);
    expect_seen(1, "1 0 on 1");
    expect_incident(job, 1, 0, "GPU 0 of node-1 is lost: the driver does not reach it any more", "");
    assert_int_equal(0, dtd_down(&d));
}

/* ---- NUMA nodes: half of this machine's cores appear to be on another socket ---- */

static char node_cores[2][256];

static void start_on_two_nodes(const int *numa_node, int n_gpus)
{
    uint8_t mine[CHANNEL_MAX_CPUS / 8], half[2][CHANNEL_MAX_CPUS / 8] = {0};
    char text[1024], *at = text + sprintf(text, "{\"gpus\": [");
    int n = cpus_usable(mine, CHANNEL_MAX_CPUS);
    if (n < 2)
        TEST_SKIP("there is one core");
    for (int c = 0, seen = 0; c < CHANNEL_MAX_CPUS; c++)
        if (cpus_has(mine, c))
            cpus_add(half[seen++ >= n / 2], c);
    for (int i = 0; i < 2; i++)
        cpus_print(half[i], CHANNEL_MAX_CPUS, node_cores[i], sizeof(node_cores[i]));
    const struct sysfs_tree tree = {1, 0, {{0, node_cores[0], "10 21"}, {1, node_cores[1], "21 10"}}};
    setenv("DTD_SYSFS", sysfs_tree_write(&tree, "sys"), 1);
    for (int i = 0; i < n_gpus; i++)
        at += sprintf(at, "%s{\"index\": %d, \"uuid\": \"GPU-%d\", \"health\": {}, \"numa_node\": %d}", i ? ", " : "",
                      i, i, numa_node[i]);
    sprintf(at, "]}");
    write_text("probe", text);
    write_sick(n_gpus, 0);
    setenv("DOUBLE_PROBE", path_of("probe"), 1);
    setenv("DOUBLE_HEALTH", path_of("health"), 1);
    setenv("DTD_HEALTH_MS", "50", 1);
    dtd_start(&d, "state");
}

static void expect_bound(const char *job, int rank, const char *cores)
{
    char list[256];
    cpu_set_t set;
    uint8_t cpus[CHANNEL_MAX_CPUS / 8] = {0};
    assert_int_equal(0, sched_getaffinity(job_status(&d, job)->worker[rank].pid, sizeof(set), &set));
    for (int c = 0; c < CHANNEL_MAX_CPUS; c++)
        if (CPU_ISSET(c, &set))
            cpus_add(cpus, c);
    cpus_print(cpus, CHANNEL_MAX_CPUS, list, sizeof(list));
    assert_string_equal(cores, list);
}

TEST(workers_are_bound_beside_their_gpus)
{
    const int numa_node[] = {1, 0, 1};
    char job[32];
    struct client_node node;
    struct why why = {""};
    start_on_two_nodes(numa_node, 3);
    expect_node(3, 3);
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    expect_bound(job, 0, node_cores[1]);
    expect_bound(job, 1, node_cores[0]);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    assert_int_equal(2, node.n_numa_node);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(i, node.numa_node[i].number);
        assert_string_equal(node_cores[i], node.numa_node[i].cores);
        assert_int_equal(1 + i, node.numa_node[i].n_gpu);
        assert_int_equal(1 - i, node.numa_node[i].gpu[0]);
    }
    assert_int_equal(2, node.numa_node[1].gpu[1]);
    client_node_fini(&node);
    assert_int_equal(0, logged("which has no more"));
    assert_int_equal(0, dtd_down(&d));
}

static void expect_next(const char *name, const char *cores)
{
    char job[32];
    job_submit(&d, spec_text(name, 1, 100000, "", "threads: 1"), job);
    job_wait_step(&d, job, 1, 2, 20000);
    expect_bound(job, 0, cores);
}

/* The cores of the slot's previous process are near a GPU that is now sick. */
TEST(cores_follow_a_worker_to_another_gpu)
{
    const int numa_node[] = {0, 1};
    char job[32];
    start_on_two_nodes(numa_node, 2);
    job_submit(&d, spec("a", 1, 100000, "threads: 1"), job);
    job_wait_step(&d, job, 1, 2, 20000);
    char first[8] = "", second[8] = "";
    sscanf(node_cores[0], "%7[0-9]", first);
    sscanf(node_cores[1], "%7[0-9]", second);
    expect_bound(job, 0, first);
    kill(job_status(&d, job)->worker[0].pid, SIGKILL);
    job_wait_step(&d, job, 2, 2, 20000);
    expect_bound(job, 0, first); /* the same cores again */
    write_sick(2, 1);
    job_wait_step(&d, job, 3, 2, 20000);
    expect_seen(1, "1 0 on 1");
    expect_bound(job, 0, second);
    if (cpus_usable(NULL, 0) == 2) { /* b gets the core that was returned; then both cores have one user */
        expect_next("b", first);
        expect_next("c", first);
        expect_next("d", second);
    }
    assert_int_equal(0, dtd_down(&d));
}

TEST(cores_of_another_node_are_logged)
{
    const int numa_node[] = {0, 0};
    char job[32];
    start_on_two_nodes(numa_node, 2);
    job_submit(&d, spec("a", 2, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    expect_bound(job, 0, node_cores[0]);
    expect_bound(job, 1, node_cores[1]);
    assert_int_equal(
        1, logged("some cores are outside the GPU's NUMA node, which has too few job=1 slot=1 gpu=1 numa_node=0"));
    assert_int_equal(0, dtd_down(&d));
}
