/* The limit of log lines: 20 at once, then one a second. */
#include "common/base/log_limit.h"
#include "tests/lib/test.h"

static int taken(struct log_limit *l, int n, int64_t now_ms)
{
    int lines = 0;
    for (int i = 0; i < n; i++)
        lines += log_limit_take(l, now_ms);
    return lines;
}

TEST(twenty_at_once_then_one_a_second)
{
    struct log_limit l = {0};
    assert_int_equal(20, taken(&l, 1000, 5000000));
    assert_int_equal(980, log_limit_left_out(&l));
    assert_int_equal(0, log_limit_left_out(&l));
    assert_int_equal(0, taken(&l, 10, 5000999));
    assert_int_equal(1, taken(&l, 10, 5001000));
    assert_int_equal(3, taken(&l, 10, 5004000));
    assert_int_equal(10 + 9 + 7, log_limit_left_out(&l));
    assert_int_equal(20, taken(&l, 1000, 6000000)); /* the credit does not grow further */
}

TEST(an_hour_of_attack)
{
    struct log_limit l = {0};
    int lines = 0;
    for (int64_t ms = 0; ms < 3600000; ms++)
        lines += log_limit_take(&l, ms);
    assert_in_range(lines, 3619, 3620);
    assert_int_equal(3600000 - lines, log_limit_left_out(&l));
}

TEST(a_slow_stream_is_logged_whole)
{
    struct log_limit l = {0};
    for (int64_t ms = 0; ms < 100000; ms += 1000)
        assert_true(log_limit_take(&l, ms));
    assert_int_equal(0, log_limit_left_out(&l));
}
