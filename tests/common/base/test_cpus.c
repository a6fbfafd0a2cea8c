/* Lists of CPUs, and the affinity on a machine whose kernel wants a larger mask than glibc's. */
#include "common/base/cpus.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <sched.h>

#define MAX 1024

static uint8_t set[MAX / 8];

static void expect(const char *text, const char *list)
{
    char again[64];
    assert_ok(cpus_parse(text, strlen(text), MAX, set));
    cpus_print(set, MAX, again, sizeof(again));
    assert_string_equal(list, again);
}

TEST(lists_are_read)
{
    expect("0-15,32-47\n", "0-15,32-47");
    expect("0\n", "0");
    expect("", "");
    expect("\n", "");
    expect("7,5-6,1", "1,5-7");
    expect("0-1023", "0-1023");
    expect("8,8-9,9", "8-9");
}

/* A machine may have more than we can bind to: they are left out, and the list is none the worse. */
TEST(numbers_that_are_too_large_are_left_out)
{
    expect("1000-1151\n", "1000-1023");
    expect("1024-1151\n", "");
    expect("3,999999999", "3");
}

TEST(what_is_no_list_is_refused)
{
    static const char *const bad[] = {",",  "0,",       "0-",    "-1",   "3-1",   "a",   "0 ",
                                      " 0", "0-31:1/2", "0\n\n", "1,,2", "0-1-2", "0x1", "12345678901"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (cpus_parse(bad[i], strlen(bad[i]), MAX, set) != ERR_CORRUPT)
            fail_msg("'%s' is taken", bad[i]);
    assert_err(ERR_CORRUPT, cpus_parse("0\0001", 3, MAX, set));
}

TEST(a_list_that_is_too_long_is_cut)
{
    char text[12];
    assert_ok(cpus_parse("0-3,8,10,12,14", 14, MAX, set));
    cpus_print(set, MAX, text, sizeof(text));
    assert_string_equal("0-3,8,10,..", text);
}

/* ---- affinity: the kernel is played below ---- */

static size_t least_bytes; /* of its own mask */
static int refusals;

int __real_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *ret);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *ret);

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *ret)
{
    if (!least_bytes)
        return __real_sched_getaffinity(pid, bytes, ret);
    if (bytes < least_bytes) {
        refusals++;
        errno = EINVAL;
        return -1;
    }
    memset(ret, 0, bytes);
    CPU_SET_S(3, bytes, ret);
    CPU_SET_S(1023, bytes, ret);
    CPU_SET_S(1151, bytes, ret);
    return 0;
}

TEST(the_usable_ones_are_those_of_the_affinity)
{
    cpu_set_t own;
    assert_int_equal(0, __real_sched_getaffinity(0, sizeof(own), &own));
    assert_int_equal(CPU_COUNT(&own), cpus_usable(set, MAX));
    for (int c = 0; c < MAX; c++)
        assert_int_equal(CPU_ISSET(c, &own) != 0, cpus_has(set, c));
    assert_int_equal(CPU_COUNT(&own), cpus_usable(NULL, 0));
}

TEST(a_machine_may_have_more_than_1024)
{
    char text[64];
    least_bytes = 5120 / 8;
    assert_int_equal(3, cpus_usable(set, MAX));
    assert_int_equal(3, refusals); /* 1,024, 2,048, 4,096 */
    cpus_print(set, MAX, text, sizeof(text));
    assert_string_equal("3,1023", text);
    least_bytes = 1 << 20; /* no mask is large enough */
    assert_int_equal(0, cpus_usable(set, MAX));
}
