/* dtctl plan --calibrate: the machine file of this node, what it refuses, and that the planner uses the file. The speed
 * of this machine is not known beforehand, so numbers are compared with ranges and with a second measurement. */
#include "common/conf/machine.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A second run is within this factor; a busy machine gets some tries. */
#define NEAR 1.3
#define TRIES 3

static const char job[] =
    "name: j\nmodel: {arch: llama, dim: 64, layers: 2, heads: 2, kv_heads: 1, ffn: 128, vocab: 256}\n"
    "data: {train: [/usr/share/common-licenses/GPL-3], tokenizer: bytes}\n"
    "train: {steps: 3, seq: 32, global_batch: 8, micro_batch: 1}\n";

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static void machine_of(const char *name, struct machine *ret)
{
    struct why why = {0};
    if (machine_read(path_of(name), NULL, 0, ret, &why))
        fail_msg("%s", why.text);
}

static void expect_between(const char *name, double low, double x, double high)
{
    if (!(low <= x && x <= high))
        fail_msg("%s is %g, which is not between %g and %g", name, x, low, high);
}

static void expect_sane(const struct machine *m)
{
    const double product = m->device.product;
    assert_int_equal(m->nodes, 1);
    assert_int_equal(m->device.units, 1);
    assert_true(m->device.one_thread);
    expect_between("per_node", 1, (double)m->device.per_node, (double)sysconf(_SC_NPROCESSORS_ONLN));
    /* The parts of all cores are the memory of the node. */
    expect_between("memory", 0.99,
                   m->device.memory_gib * (double)m->device.per_node * (1 << 30) /
                       ((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE)),
                   1.01);
    /* A core of any year: 0.1 to 1000 GFLOP/s; with a sanitizer much less. */
    expect_between("f32_tflops", 1e-6, m->device.f32_tflops, 1);
    expect_between("bf16_tflops", 1e-6, m->device.bf16_tflops, 8);
    expect_between("f64_tflops", 1e-6, m->device.f64_tflops, 1);
    expect_between("product", 0.01, product, 1);
    expect_between("bandwidth_gb", 0.01, m->device.bandwidth_gb, 1000);
    expect_between("launch_us", 0.001, m->device.launch_us, 1000);
    expect_between("link.bandwidth_gb", 0.001, m->link.bandwidth_gb, 1000);
    expect_between("link.latency_us", 0.01, m->link.latency_us, 1e5);
    expect_between("storage.bandwidth_gb", 0.001, m->storage.bandwidth_gb, 1000);
    expect_between("storage.copy_gb", 0.01, m->storage.copy_gb, 1000);
}

static bool near(double a, double b)
{
    return a < NEAR * b && b < NEAR * a;
}

TEST(a_machine_file_is_written_and_a_second_one_is_like_it)
{
    struct run_result r;
    struct machine a = {0}, b = {0};
    bool alike = false;
    run_write("one.yaml", "the file of last year\n");
    run_expect(&r, 0, "dtctl plan --calibrate one.yaml --brief");
    expect_text(r.out, "measured 20");
    machine_of("one.yaml", &a);
    expect_sane(&a);
    expect_text(a.source, " by dtd " DTD_VERSION);
    assert_int_not_equal(access(path_of("one.yaml.tmp"), F_OK), 0); /* replaced at once, from a file beside it */
    for (int i = 0; i < TRIES && !alike; i++) {
        run_expect(&r, 0, "dtctl plan --calibrate two.yaml --brief -o json");
        expect_text(r.out, "\"product_float32\"");
        machine_of("two.yaml", &b);
        alike = near(a.device.f32_tflops * a.device.product, b.device.f32_tflops * b.device.product) &&
                near(a.device.bf16_tflops * a.device.product, b.device.bf16_tflops * b.device.product) &&
                near(a.device.bandwidth_gb, b.device.bandwidth_gb);
        machine_fini(&b);
    }
    machine_fini(&a);
    assert_true(alike);
}

TEST(a_folder_that_cannot_be_written_is_named_before_anything_is_measured)
{
    struct run_result r;
    run_expect(&r, 3, "dtctl plan --calibrate nowhere/machine.yaml");
    expect_text(r.err, "cannot write nowhere/machine.yaml: folder nowhere: No such file or directory");
    run_shell(&r, "unset XDG_CONFIG_HOME HOME; dtctl plan --calibrate");
    assert_int_equal(r.code, 2);
    expect_text(r.err, "name the machine file");
    run_shell(&r, "dtctl plan --calibrate --machine h100");
    assert_int_equal(r.code, 2);
    expect_text(r.err, "--calibrate plans nothing");
}

/* A file as --calibrate writes it, in the place where it writes it. */
TEST(the_planner_uses_the_file_of_this_node)
{
    struct run_result r;
    run_write("job.yaml", job);
    run_expect(&r, 0, "dtctl plan job.yaml --search");
    expect_text(r.out, "rates: assumed, not measured (dtctl plan --calibrate measures them)");
    run_expect(&r, 2, "dtctl plan job.yaml --search --machine here");
    expect_text(r.err, "config/dtd/machine.yaml is missing; `dtctl plan --calibrate` writes it");
    run_expect(&r, 0, "mkdir -p config/dtd");
    run_write("config/dtd/machine.yaml",
              "name: here\nsource: measured 2026-11-27 on a test\nnodes: 1\ndevice: {per_node: 2, memory_gib: 4, "
              "bandwidth_gb: 10, bf16_tflops: 0.1, f32_tflops: 0.1, one_thread: true}\nlink: {bandwidth_gb: 5}\n"
              "network: {bandwidth_gb: 0}\n");
    static const char *const lines[] = {"--search", "--search --machine here", "--strategies", "--nodes 1:1",
                                        "--days 1"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char line[128];
        snprintf(line, sizeof(line), "dtctl plan job.yaml %s", lines[i]);
        run_expect(&r, 0, line);
        expect_text(r.out, "measured 2026-11-27 on a test");
    }
    run_write("config/dtd/machine.yaml", "name: here\n");
    run_expect(&r, 2, "dtctl plan job.yaml --search");
    expect_text(r.err, "config/dtd/machine.yaml");
}

/* A product of the job takes 1 ms, whatever its size is, and nothing else takes any time. */
TEST(a_plan_is_forecast_with_the_times_of_this_node)
{
    struct run_result r;
    static const char machine[] =
        "name: here\nsource: measured 2026-11-27 on a test\ntimes: here.times\nnodes: 1\ndevice: {per_node: 2, "
        "memory_gib: 4, bandwidth_gb: 100000, bf16_tflops: 100000, f32_tflops: 100000, one_thread: true}\n"
        "link: {bandwidth_gb: 100000, latency_us: 0}\nnetwork: {bandwidth_gb: 0}\n";
    run_expect(&r, 0, "mkdir -p config/dtd");
    run_write("job.yaml", job);
    run_write("config/dtd/machine.yaml", machine);
    run_expect(&r, 2, "dtctl plan job.yaml");
    expect_text(r.err, "config/dtd/here.times: not found; `dtctl plan --calibrate` writes it");
    run_write("config/dtd/here.times", "dtd times 1\nadamw float32 - 1  100 0 0  0 0 0\n");
    run_expect(&r, 2, "dtctl plan job.yaml");
    expect_text(r.err, "config/dtd/here.times:2: the three times must be above 0");
    /* 8 microbatches of 32 tokens: the loss reads and writes 32 x 256 logits, and reads 32 targets of 4 bytes. */
    run_write("config/dtd/here.times", "dtd times 1\ncross_entropy float32 - 1  65664 0 0  0.001 0.0005 0.002\n");
    run_expect(&r, 0, "dtctl plan job.yaml");
    expect_text(r.out, "Forecast   0.008");
    expect_text(r.out, " s (0.004");
    expect_text(r.out, "Rates      measured 2026-11-27 on a test");
    expect_text(r.out, "100 % of the operations' time is from measured times\n");
    run_expect(&r, 0, "dtctl plan job.yaml -o json");
    expect_text(r.out, "\"high_s\": 0.016");
    run_expect(&r, 0, "dtctl plan job.yaml --machine here");
    expect_text(r.out, "100 % of the operations' time is from measured times\n");
    run_expect(&r, 0, "dtctl plan job.yaml --machine config/dtd/machine.yaml");
    expect_text(r.out, "100 % of the operations' time is from measured times\n");
    run_expect(&r, 0, "dtctl plan job.yaml --machine h100"); /* without such times: whether it fits there */
    expect_text(r.out, "fits on h100");
    expect_text(r.out, "Rates      ");
    assert_null(strstr(r.out, "measured times"));
}

TEST(a_node_with_gpus_is_refused)
{
    struct run_result r;
    char line[1024];
    const char *folder = getenv("STAND_INS");
    snprintf(line, sizeof(line), "%s/dtd-cuda.so", folder ? folder : "");
    if (!folder || access(line, F_OK))
        TEST_SKIP("the stand-in of the CUDA module is not built");
    snprintf(line, sizeof(line), "DTD_MODULE_DIR='%s' dtctl plan --calibrate x.yaml", folder);
    run_expect(&r, 2, line);
    expect_text(r.err, "only processors are measured yet");
    assert_int_not_equal(access(path_of("x.yaml"), F_OK), 0);
}
