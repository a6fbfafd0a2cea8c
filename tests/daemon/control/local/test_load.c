#include "common/base/file.h"
#include "daemon/control/local/gpus.h"
#include "daemon/control/local/load.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool near(double expected, double x)
{
    return fabs(expected - x) < 1e-9;
}

/* Writes a file of a folder that imitates /sys. */
static void tree_write(const char *folder, const char *file, const char *text)
{
    char path[500];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), folder);
    assert_int_equal(OK, file_make_dirs(path, 0777));
    snprintf(path, sizeof(path), "%s/%s/%s", test_tmpdir(), folder, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The kernel counts guests in `user` and `nice` already, and the wait for disks as idle time. */
TEST(processors_are_busy_without_idle_and_waiting)
{
    struct load_counters c = {0};
    assert_true(load_read_cpu("cpu  100 20 30 4000 50 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n", &c));
    assert_int_equal(100 + 20 + 30 + 6 + 7 + 8, c.busy);
    assert_int_equal(171 + 4000 + 50, c.all);
    assert_false(load_read_cpu("", &c));
    assert_false(load_read_cpu("intr 1 2 3 4 5 6 7 8\n", &c));
}

static const char dev[] =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls\n"
    "    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n"
    "  eth0: 1000 9 0 0 0 0 0 0 2000 9 0 0 0 0 0 0\n"
    "  ens1:5000 9 0 0 0 0 0 0 7000 9 0 0 0 0 0 0\n"
    " bond0: 6000 9 0 0 0 0 0 0 9000 9 0 0 0 0 0 0\n";

/* A bond repeats the bytes of its members. In a container no interface has a device. */
TEST(interfaces_with_a_device_count_else_all_but_loopback)
{
    struct load_counters c = {0};
    load_read_network(dev, test_tmpdir(), &c);
    assert_int_equal(12000, c.received);
    assert_int_equal(18000, c.sent);
    tree_write("class/net/eth0/device", "vendor", "0x1af4");
    tree_write("class/net/ens1/device", "vendor", "0x15b3");
    load_read_network(dev, test_tmpdir(), &c);
    assert_int_equal(6000, c.received);
    assert_int_equal(9000, c.sent);
}

TEST(rates_are_differences_over_time)
{
    const struct load_counters a = {1000, 8000, 500, 700}, b = {1300, 9200, 10500, 300};
    struct node_load l = node_load_none;
    load_rates(&a, &b, 5, 8, &l);
    assert_true(near(300.0 / 1200 * 8, l.cores_used));
    assert_true(near(2000, l.received_bytes_per_s));
    assert_true(isnan(l.sent_bytes_per_s)); /* the counter went back */
}

/* coretemp reports thousandths of a degree; a disk's sensor is none of the processor's. */
TEST(the_hottest_processor_counts)
{
    struct load l;
    struct gpus g = {0};
    tree_write("class/hwmon/hwmon0", "name", "nvme\n");
    tree_write("class/hwmon/hwmon0", "temp1_input", "90000\n");
    tree_write("class/hwmon/hwmon1", "name", "coretemp\n");
    tree_write("class/hwmon/hwmon1", "temp1_input", "51500\n");
    tree_write("class/hwmon/hwmon2", "name", "coretemp\n");
    tree_write("class/hwmon/hwmon2", "temp1_input", "63000\n");
    setenv("DTD_SYSFS", test_tmpdir(), 1);
    load_init(&l);
    assert_int_equal(2, l.n_sensors);
    assert_true(load_tick(&l, &g));
    assert_true(near(63, l.now.temperature_c));
    assert_false(load_tick(&l, &g)); /* the next measurement is due in 5 s */
    assert_true(l.now.memory_bytes > l.now.memory_used_bytes && l.now.memory_used_bytes > 0);
    assert_true(isnan(l.now.cores_used)); /* one measurement has no rate */
}

TEST(gpus_have_the_numbers_of_the_last_health_check)
{
    static const char probe[] =
        "{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-a\", \"model\": \"H100\", \"memory_bytes\": 85520809984}]}";
    static const char check[] =
        "{\"gpus\": [{\"uuid\": \"GPU-a\", \"health\": {\"lost\": false, \"temperature_c\": 61, \"power_mw\": 512300,"
        " \"power_limit_mw\": 700000, \"busy_percent\": 97, \"memory_used_bytes\": null}}]}";
    struct gpus g = {0};
    struct load l = {0};
    struct why why;
    uint64_t sick;
    assert_int_equal(OK, gpus_read(&g, probe, strlen(probe), &why));
    assert_int_equal(OK, gpus_health_read(&g, check, strlen(check), &sick, &why));
    load_init(&l);
    assert_true(load_tick(&l, &g));
    assert_int_equal(1, l.now.n_gpu);
    assert_int_equal(0, l.now.gpu[0].gpu);
    assert_true(near(61, l.now.gpu[0].temperature_c));
    assert_true(near(512.3, l.now.gpu[0].power_w));
    assert_true(near(700, l.now.gpu[0].power_limit_w));
    assert_true(near(0.97, l.now.gpu[0].busy));
    assert_int_equal(85520809984, l.now.gpu[0].memory_bytes);
    assert_int_equal(-1, l.now.gpu[0].memory_used_bytes);
}
