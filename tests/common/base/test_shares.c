/* Shares of users in a limited number. */
#include "common/base/shares.h"
#include "tests/lib/test.h"

static int64_t take_all(struct shares *s, uint32_t uid, int64_t max_user)
{
    int64_t n = 0;
    while (shares_take(s, uid, max_user))
        n++;
    return n;
}

static void give_all(struct shares *s, uint32_t uid)
{
    while (shares_of(s, uid))
        shares_give(s, uid);
}

TEST(a_user_gets_his_maximum)
{
    struct shares s;
    shares_init(&s, 1000);
    assert_int_equal(take_all(&s, 7, 100), 100);
    shares_give(&s, 7);
    assert_int_equal(shares_of(&s, 7), 99);
    assert_int_equal(take_all(&s, 7, 100), 1);
    give_all(&s, 7);
    assert_int_equal(s.all, 0);
    assert_true(LIST_EMPTY(&s.users));
}

/* 1000, of which the first leaves half, the second a half of that, and so on. */
TEST(something_is_left_for_the_next_user)
{
    struct shares s;
    shares_init(&s, 1000);
    assert_int_equal(take_all(&s, 1, INT64_MAX), 500);
    assert_int_equal(take_all(&s, 2, INT64_MAX), 250);
    assert_int_equal(take_all(&s, 3, INT64_MAX), 125);
    assert_int_equal(take_all(&s, 4, INT64_MAX), 63);
    assert_int_equal(take_all(&s, 1, INT64_MAX), 0);
    for (uint32_t uid = 1; uid <= 4; uid++)
        give_all(&s, uid);
    assert_int_equal(take_all(&s, 5, INT64_MAX), 500);
    give_all(&s, 5);
}

TEST(root_is_never_refused)
{
    struct shares s;
    shares_init(&s, 2);
    assert_int_equal(take_all(&s, 1, INT64_MAX), 1);
    for (int i = 0; i < 10; i++)
        assert_true(shares_take(&s, 0, 0));
    assert_false(shares_take(&s, 2, INT64_MAX));
    give_all(&s, 0);
    give_all(&s, 1);
}
