#include "daemon/control/local/health.h"
#include "tests/lib/test.h"

#define GIB ((int64_t)1 << 30)

TEST(numbers_are_found_by_their_whole_key)
{
    const char *meminfo = "MemTotal:       24000 kB\nMemFree:         100 kB\nMemAvailable:   1200 kB\n";
    assert_int_equal(24000, health_number(meminfo, "MemTotal"));
    assert_int_equal(1200, health_number(meminfo, "MemAvailable"));
    assert_int_equal(-1, health_number(meminfo, "Mem"));
    assert_int_equal(-1, health_number("", "MemTotal"));
    assert_int_equal(3, health_number("oom_kill_other 9\noom_kill 3\n", "oom_kill"));
}

TEST(low_space_is_reported)
{
    char text[200];
    health_warn(50 * GIB, 100 * GIB, 8 * GIB, 24 * GIB, text, sizeof(text));
    assert_string_equal("", text);
    health_warn(2 * GIB, 100 * GIB, 8 * GIB, 24 * GIB, text, sizeof(text)); /* 2 %, but more than 1 GiB */
    assert_string_equal("", text);
    health_warn(GIB / 2, 100 * GIB, 8 * GIB, 24 * GIB, text, sizeof(text));
    assert_string_equal("the state directory's disk is low: 512 MiB free of 102400", text);
    health_warn(GIB / 2, 100 * GIB, GIB, 24 * GIB, text, sizeof(text));
    assert_string_equal("the state directory's disk is low: 512 MiB free of 102400; memory is low: 1024 MiB available "
                        "of 24576",
                        text);
    health_warn(-1, -1, -1024, -1024, text, sizeof(text)); /* the sizes are not known */
    assert_string_equal("", text);
}

/* Records as /dev/kmsg of Linux 6.1 returns them. */
TEST(only_the_kernels_own_records_name_a_killed_process)
{
    assert_int_equal(4711,
                     health_killed_pid("3,1209,8231456,-;Out of memory: Killed process 4711 (python3) total-vm:9000kB, "
                                       "anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:52kB "
                                       "oom_score_adj:0\n"));
    assert_int_equal(17,
                     health_killed_pid("3,1300,9231456,-;Memory cgroup out of memory: Killed process 17 (dt-worker) "
                                       "total-vm:9000kB\n SUBSYSTEM=x\n"));
    assert_int_equal(
        0, health_killed_pid("6,1208,8231400,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=4711\n"));
    assert_int_equal(0, health_killed_pid("6,1,2,-;user text: Out of memory: Killed process 4711 (python3)\n"));
    assert_int_equal(0, health_killed_pid("6,1,2,-;sim[3414]: segfault at 14528\n"));
    assert_int_equal(0, health_killed_pid(""));
}
