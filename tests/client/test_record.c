/* The forecast that goes into a job's file at its submission. Times are compared with arithmetic: on a machine whose
 * memory and links cost nothing, a step takes as long as its products. */
#include "client/planner/planner.h"
#include "common/conf/job.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORKERS 2

static const char text[] = "name: j\n"
                           "model: {arch: llama, dim: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 688, vocab: 256}\n"
                           "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: bytes}\n"
                           "train: {steps: 3, seq: 32, global_batch: 16, micro_batch: 4}\n";

static const char machine[] =
    "name: m\nsource: a test\n"
    "device: {per_node: 2, memory_gib: 4, bandwidth_gb: 100000, bf16_tflops: 0.1, f32_tflops: 0.1, product: 1,\n"
    "         copy: 1, launch_us: 0, call_us: 0, one_thread: true}\n"
    "link: {bandwidth_gb: 100000, latency_us: 0}\nnetwork: {bandwidth_gb: 0}\n";

static struct job_spec job_with(const char *sets[], int n)
{
    struct job_spec job = {0};
    struct why why = {""};
    if (job_parse("job.yaml", text, strlen(text), sets, n, &job, &why))
        fail_msg("%s", why.text);
    return job;
}

#define JOB(...) job_with((const char *[]){__VA_ARGS__}, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)))

static struct job_forecast recorded(struct job_spec *job)
{
    struct why why = {""};
    if (planner_record(job, &why))
        fail_msg("%s", why.text);
    return job->forecast;
}

/* A configuration without a calibrated file. */
static void empty_config(void)
{
    assert_int_equal(0, setenv("XDG_CONFIG_HOME", test_tmpdir(), 1));
}

static void write_machine(void)
{
    run_write("m.yaml", machine);
    assert_int_equal(0, chdir(test_tmpdir()));
}

TEST(a_step_takes_as_long_as_its_products)
{
    struct job_spec job = JOB("parallel.workers=2", "forecast.machine=./m.yaml");
    write_machine();
    const struct job_forecast f = recorded(&job);
    const double layer = 2.0 * 256 * 256 + 2.0 * 256 * 128 + 3.0 * 256 * 688, params = 4 * layer + 256.0 * 256;
    const double seconds = 6 * params * (16 * 32 / WORKERS) / 0.1e12;
    if (!(fabs(f.compute_s / seconds - 1) < 0.03)) /* attention and norms */
        fail_msg("computes %g s, not %g", f.compute_s, seconds);
    assert_int_equal(WORKERS, f.workers);
    assert_false(f.assumed);
    assert_string_equal("m: a test", f.source);
    assert_true(f.grads_s < 0.01 * seconds && f.tp_s == 0);
    job_fini(&job);
}

TEST(a_worker_has_a_share_of_the_cores)
{
    struct job_spec all = JOB("parallel.workers=1", "forecast.machine=./m.yaml"),
                    one = JOB("parallel.workers=1", "forecast.machine=./m.yaml", "run.threads=1"),
                    four = JOB("parallel.workers=4", "forecast.machine=./m.yaml");
    write_machine();
    const double two_cores = recorded(&all).compute_s;
    assert_true(fabs(recorded(&one).compute_s / two_cores - 2) < 0.01);
    /* A quarter of the batch on half a core. */
    assert_true(fabs(recorded(&four).compute_s / two_cores - 1) < 0.01);
    job_fini(&all);
    job_fini(&one);
    job_fini(&four);
}

TEST(the_calibrated_file_is_used)
{
    struct job_spec job = JOB("parallel.workers=2");
    char path[4096];
    struct why why;
    empty_config();
    const struct job_forecast before = recorded(&job);
    assert_true(before.assumed);
    expect_text(job.forecast.source, "assumed, not measured");
    assert_int_equal(OK, planner_calibrated_path(path, sizeof(path), &why));
    assert_int_equal(0, chdir(test_tmpdir()));
    assert_int_equal(0, mkdir("dtd", 0777));
    run_write("dtd/machine.yaml", machine);
    const struct job_forecast after = recorded(&job);
    assert_false(after.assumed);
    assert_string_equal("m: a test", after.source);
    job_fini(&job);
}

TEST(gpus_without_a_machine_have_assumed_rates)
{
    struct job_spec job = JOB("parallel.workers=2", "run.device=cuda");
    empty_config();
    const struct job_forecast f = recorded(&job);
    assert_true(f.assumed && f.compute_s > 0);
    job_fini(&job);
}

TEST(a_network_that_the_machine_does_not_name_is_assumed)
{
    struct job_spec job = JOB("parallel.workers=4", "run.nodes=2", "forecast.machine=./m.yaml");
    write_machine();
    const struct job_forecast f = recorded(&job);
    assert_true(f.assumed);
    assert_string_equal("m: a test; network assumed", f.source);
    assert_true(isfinite(f.grads_s) && f.grads_s > 1e-3); /* 2.8 MB of gradients twice over 1.25 GB/s */
    job_fini(&job);
}

TEST(an_unknown_machine_is_refused)
{
    struct job_spec job = JOB("forecast.machine=h999");
    struct why why = {""};
    assert_int_equal(ERR_NOTFOUND, planner_record(&job, &why));
    expect_text(why.text, "forecast.machine: ");
    expect_text(why.text, "h100");
    job_fini(&job);
}

/* The keys survive the file that control gets. */
TEST(a_forecast_is_in_the_printed_file)
{
    struct job_spec job = JOB("parallel.workers=2", "forecast.machine=./m.yaml"), again = {0};
    struct buf yaml = {0};
    struct why why = {""};
    write_machine();
    const struct job_forecast f = recorded(&job);
    assert_int_equal(OK, job_print(&job, &yaml));
    assert_int_equal(OK, job_parse("again", (const char *)yaml.data, yaml.len, NULL, 0, &again, &why));
    assert_true(again.forecast.compute_s == f.compute_s && again.forecast.update_s == f.update_s);
    assert_string_equal(f.source, again.forecast.source);
    assert_int_equal(f.workers, again.forecast.workers);
    job_fini(&job);
    job_fini(&again);
    buf_fini(&yaml);
}
