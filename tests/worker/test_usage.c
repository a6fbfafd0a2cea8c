/* The meter of a worker, with times that the test gives: what it reports, and when. Expected values are computed by
 * hand. */
#include "common/base/clock.h"
#include "tests/lib/test.h"
#include "worker/usage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000LL

static void assert_near(double expected, double is)
{
    if (!(fabs(expected - is) <= 1e-9 * fabs(expected)))
        fail_msg("expected %.12g, is %.12g", expected, is);
}

static struct engine engine_of(struct dev *dev, struct dev_ops *ops, bool host_memory)
{
    *ops = (struct dev_ops){.host_memory = host_memory};
    *dev = (struct dev){.ops = ops};
    return (struct engine){.config = {.dev = dev}};
}

/* A step of 100 ms with 30 ms of communication, 10 ms of it after the engine's part, 5 ms of data, 20 ms of a save. */
static bool step(struct usage_meter *m, int64_t now_ns, struct usage_report *ret)
{
    usage_meter_before(m);
    m->config.engine->spent.comm_ns += 20 * MS;
    m->config.engine->spent.part_ns[TRAFFIC_TP] += 12 * MS;
    m->config.engine->spent.part_ns[TRAFFIC_GRADS] += 8 * MS;
    m->config.engine->spent.update_ns += 7 * MS;
    m->config.engine->spent.data_ns += 5 * MS;
    m->config.engine->step++;
    usage_meter_after(m);
    return usage_meter_add_at(m, &(struct usage_step){100 * MS, 10 * MS, 20 * MS}, now_ns, ret);
}

TEST(parts_of_a_step_add_up)
{
    struct dev dev;
    struct dev_ops ops;
    struct engine e = engine_of(&dev, &ops, true);
    struct usage_meter m;
    struct usage_report r;
    int steps = 0;
    usage_meter_init(&m, &(struct usage_config){.engine = &e, .ranks = 2, .planned_bytes = 12345});
    const int64_t begin = m.begin_ns;
    do
        steps++;
    while (!step(&m, begin + steps * 100 * MS, &r));
    assert_int_equal(20, steps); /* 2 s */
    assert_int_equal(20, r.steps);
    assert_int_equal(20, r.step);
    assert_int_equal(2000, r.window_ms);
    assert_near(0.1, r.usage.step_s);
    assert_near(0.03, r.usage.comm_s);
    assert_near(0.005, r.usage.data_s);
    assert_near(0.02, r.usage.save_s);
    assert_near(0.045, r.usage.compute_s);
    assert_near(0.012, r.usage.tp_s);
    assert_near(0.008, r.usage.grads_s);
    assert_near(0.007, r.usage.update_s);
    assert_true(isnan(r.usage.pp_s) && isnan(r.usage.params_s)); /* the rank has no such communication */
    assert_near(12345, r.usage.planned_bytes);
    assert_true(isnan(r.usage.gpu_util) && isnan(r.usage.gpu_watts));
    steps = 0;
    do
        steps++;
    while (!step(&m, begin + 2000 * MS + steps * 1500 * MS, &r)); /* the next window begins where the last one ended */
    assert_int_equal(2, steps);
    assert_int_equal(3000, r.window_ms);
    assert_near(0.1, r.usage.step_s);
    usage_meter_fini(&m);
}

TEST(the_process_is_measured)
{
    struct dev dev;
    struct dev_ops ops;
    struct engine e = engine_of(&dev, &ops, true);
    struct usage_meter m;
    struct usage_report r;
    const size_t bytes = 64 << 20;
    volatile unsigned sum = 0;
    char *memory = malloc(bytes);
    assert_non_null(memory);
    usage_meter_init(&m, &(struct usage_config){.engine = &e, .ranks = 1});
    memset(memory, 1, bytes);
    const int64_t end = m.at_begin.cpu_ns + 300 * MS;
    struct timespec used;
    do {
        for (int i = 0; i < 1000000; i++)
            sum += (unsigned)memory[i];
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    } while (used.tv_sec * 1000 * MS + used.tv_nsec < end);
    assert_true(step(&m, m.begin_ns + 3000 * MS, &r)); /* as if 3 s had passed: 0.3 s of them on a core */
    assert_true(r.usage.cpu > 0.09 && r.usage.cpu < 0.3);
    assert_true(r.usage.rss_bytes > 64e6 && r.usage.rss_bytes < 1e9);
    assert_true(!(r.usage.read_bytes_per_s < 0) && !(r.usage.write_bytes_per_s < 0));
    usage_meter_fini(&m);
    free(memory);
}

/* The clock of the host does not see what happens on a GPU. */
TEST(a_gpu_without_a_sample_has_no_compute_time)
{
    struct dev dev;
    struct dev_ops ops;
    struct engine e = engine_of(&dev, &ops, false);
    struct usage_meter m;
    struct usage_report r;
    usage_meter_init(&m, &(struct usage_config){.engine = &e, .ranks = 1});
    assert_true(step(&m, m.begin_ns + 2000 * MS, &r));
    assert_true(isnan(r.usage.compute_s) && isnan(r.usage.comm_s));
    assert_near(0.1, r.usage.step_s);
    m.compute_s = 0.06; /* a sample */
    m.comm_s = 0.01;
    assert_true(step(&m, m.begin_ns + 2000 * MS, &r));
    assert_near(0.06, r.usage.compute_s);
    assert_near(0.04, r.usage.comm_s); /* with what the host has waited for others */
    usage_meter_fini(&m);
}

/* The driver is asked on another thread, so its first answer comes some time after the start. */
TEST(the_driver_is_asked_for_the_gpu)
{
    struct usage_gpu *g = usage_gpu_start("GPU-fake-1");
    struct usage u = usage_none;
    assert_non_null(g);
    for (int i = 0; i < 500 && isnan(u.gpu_util); i++) {
        usleep(10000);
        usage_gpu_fill(g, &u);
    }
    assert_near(0.73, u.gpu_util);
    assert_near(21474836480.0, u.gpu_bytes);
    assert_near(41, u.gpu_celsius);
    assert_near(98.765, u.gpu_watts);
    usage_gpu_stop(g);
    u = usage_none;
    g = usage_gpu_start("GPU-fake-99"); /* there is no such GPU */
    usleep(100000);
    usage_gpu_fill(g, &u);
    assert_true(isnan(u.gpu_util) && isnan(u.gpu_bytes) && isnan(u.gpu_celsius) && isnan(u.gpu_watts));
    usage_gpu_stop(g);
}

TEST(a_large_job_has_longer_windows)
{
    struct dev dev;
    struct dev_ops ops;
    struct engine e = engine_of(&dev, &ops, true);
    struct usage_meter m;
    struct usage_report r;
    usage_meter_init(&m, &(struct usage_config){.engine = &e, .ranks = 1000});
    assert_false(step(&m, m.begin_ns + 9999 * MS, &r));
    assert_true(step(&m, m.begin_ns + 10000 * MS, &r));
    usage_meter_fini(&m);
}

static err_t no_event(struct dev *d, bool timed, struct dev_event **ret)
{
    (void)d, (void)timed;
    *ret = NULL;
    return OK;
}

/* Steps 2, 4, 8, 16, 32, 64, 128, then every hundredth: 228. */
TEST(samples_become_rarer)
{
    struct dev dev;
    struct dev_ops ops;
    struct engine e = engine_of(&dev, &ops, false);
    struct usage_meter m;
    struct usage_report r;
    int taken[16], n = 0;
    static const int expected[] = {2, 4, 8, 16, 32, 64, 128, 228, 328};
    ops.event_new = no_event;
    usage_meter_init(&m, &(struct usage_config){.engine = &e, .ranks = 1, .sample_every = 100});
    for (int i = 1; i <= 400; i++) {
        usage_meter_before(&m);
        if (m.sampling)
            taken[n++] = i;
        usage_meter_after(&m);
        usage_meter_add_at(&m, &(struct usage_step){100 * MS, 0, 0}, m.begin_ns, &r);
    }
    assert_int_equal(sizeof(expected) / sizeof(expected[0]), n);
    assert_memory_equal(expected, taken, sizeof(expected));
    assert_true(m.compute_s == 0); /* the engine of the test has no ops */
    usage_meter_fini(&m);
}
