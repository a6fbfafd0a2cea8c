/* Jobs for GPUs: who gets which, who waits, who is refused. The worker double plays the probe: what it says stands in a
 * file. */
#include "tests/daemon/harness.h"

#include "common/base/clock.h"
#include "common/base/file.h"

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
        fail_msg("the refusal lacks '%s' or '%s': %s", a, b, why.text);
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
    assert_int_equal(2, seen("2 1 on 3")); /* the same one again */
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_job_waits_for_gpus)
{
    char a[32], b[32], c[32];
    start_with(2);
    job_submit(&d, spec("a", 1, 100000, ""), a);
    job_wait_step(&d, a, 1, 2, 20000);
    job_submit(&d, spec("b", 2, 3, ""), b);
    job_submit(&d, spec_text("c", 2, 3, "", ""), c); /* on processors, and behind b all the same */
    sleep_ms(200);
    const struct client_job *s = job_status(&d, b);
    assert_string_equal("pending", s->state);
    if (!strstr(s->reason, "waits for 2 GPUs: node-1 has 1 of 2 free"))
        fail_msg("the reason says something else: %s", s->reason);
    assert_string_equal("pending", job_status(&d, c)->state);
    expect_node(2, 1);
    struct why why = {""};
    uint8_t id[16];
    struct client_job canceled;
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, a, false, &canceled, &why));
    client_job_fini(&canceled);
    job_wait(&d, b, "done", 20000);
    job_wait(&d, c, "done", 20000);
    expect_node(2, 2);
    assert_int_equal(0, dtd_down(&d));
}

TEST(too_few_gpus_are_said_at_once)
{
    start_with(2);
    refused(spec("a", 3, 5, ""), "take 3 GPUs, and node-1 has 2", "share a GPU");
    refused(spec("a", 9, 5, "workers_per_gpu: 4"), "take 3 GPUs, and node-1 has 2", "fewer workers");
    assert_int_equal(0, dtd_down(&d));
}

TEST(no_gpu_names_the_probes_reason)
{
    start_with(0);
    expect_node(0, 0);
    refused(spec("a", 1, 5, ""), "no driver: libcuda.so.1 was not found", "run.device: cpu");
    assert_int_equal(0, dtd_down(&d));
}

/* The first submit comes while the probe is still under way: it waits with its answer. */
TEST(a_probe_that_hangs_hangs_nobody)
{
    char job[32];
    start_with(1);
    expect_node(1, 1);
    setenv("DOUBLE_PROBE_HANGS", "1", 1);
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
    kill(control_pid(), SIGKILL); /* the next one finds the probe of this one */
    refused(spec("a", 1, 5, ""), "did not end within 20 s", "run.device: cpu");
    assert_in_range(clock_mono_ms() - start, 10000, 40000);
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
    refused(spec("a", 1, 5, ""), "no JSON", "dt-worker --probe");
    assert_int_equal(0, dtd_down(&d));
}

/* The driver says that a GPU has lost data: it is given to nobody, and people are told. */
TEST(a_sick_gpu_is_given_to_nobody)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    write_text("words",
               "{\"gpus\": [{\"index\": 0, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 3}}, "
               "{\"index\": 1, \"model\": \"H200\", \"health\": {\"ecc_uncorrected_volatile\": 0}}]}");
    setenv("DOUBLE_PROBE", path_of("words"), 1);
    dtd_start(&d, "state");
    refused(spec("a", 2, 5, ""), "take 2 GPUs", "");
    expect_node(1, 1);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    if (!strstr(node.warning, "GPU 0 is not used (uncorrectable memory errors: 3)"))
        fail_msg("nobody is told: %s", node.warning);
    client_node_fini(&node);
    job_submit(&d, spec("b", 1, 100000, ""), job);
    job_wait_step(&d, job, 1, 2, 20000);
    assert_int_equal(1, seen("1 0 on 1"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(gpus_are_known_after_control_died)
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
    kill(victim, SIGKILL); /* nobody hears of it before the next control */
    sleep_ms(100);
    kill(control, SIGKILL);
    job_wait_step(&d, a, 2, 2, 20000);
    assert_int_equal(2, seen("1 0 on 0"));
    assert_int_equal(2, seen("1 1 on 1"));
    assert_int_equal(1, seen("2 0 on 2"));
    expect_node(3, 0);
    assert_int_equal(0, dtd_down(&d));
}

TEST(the_configuration_says_how_many)
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
