#include "daemon/control/local/log_sizes.h"

#include "tests/lib/test.h"

#define MIB (1ll << 20)

TEST(nothing_is_cut_while_there_is_space)
{
    struct log_size logs[2] = {{.used = 100 * MIB}, {.used = 50 * MIB}};
    log_sizes_choose(logs, 2, 0);
    log_sizes_choose(logs, 2, -5);
    assert_int_equal(logs[0].keep, 0);
    assert_int_equal(logs[1].keep, 0);
}

TEST(the_largest_are_halved_until_there_is_enough)
{
    struct log_size logs[3] = {{.used = 40 * MIB}, {.used = 100 * MIB}, {.used = 60 * MIB}};
    log_sizes_choose(logs, 3, 1);
    assert_int_equal(logs[0].keep, 0);
    assert_int_equal(logs[1].keep, 50 * MIB);
    assert_int_equal(logs[2].keep, 0);
    log_sizes_choose(logs, 3, 60 * MIB); /* 50 of the one, 30 of the other */
    assert_int_equal(logs[0].keep, 0);
    assert_int_equal(logs[1].keep, 50 * MIB);
    assert_int_equal(logs[2].keep, 30 * MIB);
}

TEST(small_logs_are_left)
{
    struct log_size logs[2] = {{.used = LOG_SIZES_LEAST_BYTES}, {.used = 16 * MIB}};
    log_sizes_choose(logs, 2, 1000 * MIB);
    assert_int_equal(logs[0].keep, 0);
    assert_int_equal(logs[1].keep, LOG_SIZES_LEAST_BYTES);
}
