/* Cores, and how many slots a node has. */
#include "daemon/control/slots.h"
#include "tests/lib/test.h"

static struct slots four_cores(void)
{
    return (struct slots){.n_cores = 4, .core = {1, 3, 8, 9}};
}

static int count(const uint8_t *cpus)
{
    int n = 0;
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        n += __builtin_popcount(cpus[i]);
    return n;
}

TEST(cores_are_shared_out)
{
    struct slots s = four_cores();
    uint8_t a[CHANNEL_MAX_CPUS / 8], b[CHANNEL_MAX_CPUS / 8], both[CHANNEL_MAX_CPUS / 8];
    slots_bind(&s, 2, 0, a);
    slots_bind(&s, 2, 0, b);
    assert_int_equal(2, count(a));
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        both[i] = a[i] | b[i];
    assert_int_equal(4, count(both)); /* no core twice */
    slots_unbind(&s, a);
    slots_bind(&s, 4, 1, both); /* the ones that were given back */
    assert_int_equal(1, count(both));
    assert_true(both[0] & a[0]);
}

TEST(too_many_workers_are_not_bound)
{
    struct slots s = four_cores();
    uint8_t a[CHANNEL_MAX_CPUS / 8];
    slots_bind(&s, 5, 0, a);
    assert_int_equal(0, count(a));
    slots_bind(&s, 1, 9, a);
    assert_int_equal(0, count(a));
}

TEST(default_is_generous)
{
    struct slots s;
    slots_init(&s);
    assert_true(s.n_cores >= 1 && slots_default(&s) >= 16 && slots_default(&s) >= s.n_cores);
}

/* What a new control finds bound counts like what it bound itself. */
TEST(found_workers_keep_their_cores)
{
    struct slots s = four_cores(), t = four_cores();
    uint8_t a[CHANNEL_MAX_CPUS / 8], b[CHANNEL_MAX_CPUS / 8];
    slots_bind(&s, 2, 0, a);
    slots_use(&t, a);
    assert_memory_equal(s.users, t.users, sizeof(s.users));
    slots_bind(&t, 2, 0, b);
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        assert_int_equal(0, a[i] & b[i]);
    slots_unbind(&t, a);
    slots_unbind(&t, b);
    assert_memory_equal(t.users, four_cores().users, sizeof(t.users));
}
