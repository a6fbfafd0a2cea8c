/* The rendezvous of an epoch: keys are written once, waits end, everything is limited. */
#include "daemon/control/job/rendezvous.h"
#include "tests/lib/test.h"

struct waiter {
    struct rendezvous_wait wait; /* first */
    int calls;
    err_t err;
    char value[RENDEZVOUS_VALUE_MAX + 1];
};

static struct rendezvous s;

static struct rendezvous_bytes text(const char *t)
{
    return (struct rendezvous_bytes){t, strlen(t)};
}

static err_t put(const char *key, const char *value)
{
    return rendezvous_put(&s, text(key), text(value));
}

static void woken(struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value)
{
    struct waiter *x = (struct waiter *)w;
    x->calls++;
    x->err = err;
    if (value.len)
        memcpy(x->value, value.data, value.len);
    x->value[value.len] = '\0';
    memset(w, 0xee, sizeof(*w)); /* it belongs to the caller again */
}

static err_t wait_for(struct waiter *w, const char *key, int owner, int64_t deadline_ms)
{
    *w = (struct waiter){.wait = {.owner = owner, .deadline_ms = deadline_ms, .done = woken}};
    return rendezvous_wait(&s, text(key), &w->wait);
}

TEST(a_key_is_written_once)
{
    struct rendezvous_bytes v;
    rendezvous_init(&s);
    assert_err(ERR_NOTFOUND, rendezvous_get(&s, text("a"), &v));
    assert_ok(put("a", "1"));
    assert_ok(put("a", "1"));
    assert_err(ERR_EXISTS, put("a", "2"));
    assert_err(ERR_EXISTS, put("a", ""));
    assert_err(ERR_EXISTS, put("a", "11"));
    assert_ok(put("empty", ""));
    assert_ok(rendezvous_get(&s, text("a"), &v));
    assert_int_equal(1, v.len);
    assert_memory_equal("1", v.data, 1);
    assert_ok(rendezvous_get(&s, text("empty"), &v));
    assert_int_equal(0, v.len);
    assert_int_equal(2, s.n_keys);
    rendezvous_clear(&s, ERR_STALE);
    assert_err(ERR_NOTFOUND, rendezvous_get(&s, text("a"), &v));
    assert_ok(put("a", "2")); /* by the next epoch */
    rendezvous_clear(&s, ERR_STALE);
}

TEST(a_wait_ends_only_with_its_own_key)
{
    struct waiter a, b, c;
    rendezvous_init(&s);
    assert_ok(wait_for(&a, "key", 0, 100));
    assert_ok(wait_for(&b, "other", 0, 100));
    assert_ok(wait_for(&c, "key", 1, 100));
    assert_ok(put("ke", "no"));
    assert_int_equal(0, a.calls + b.calls + c.calls);
    assert_ok(put("key", "yes"));
    assert_int_equal(1, a.calls);
    assert_int_equal(1, c.calls);
    assert_int_equal(0, b.calls);
    assert_ok(a.err);
    assert_string_equal("yes", a.value);
    assert_string_equal("yes", c.value);
    assert_err(ERR_EXISTS, wait_for(&a, "key", 0, 100)); /* it exists: use rendezvous_get */
    rendezvous_clear(&s, ERR_STALE);
    assert_int_equal(1, b.calls);
    assert_err(ERR_STALE, b.err);
}

TEST(waits_expire)
{
    struct waiter a, b, c;
    rendezvous_init(&s);
    assert_ok(wait_for(&a, "a", 0, 100));
    assert_ok(wait_for(&b, "a", 0, 101));
    assert_ok(wait_for(&c, "c", 0, 50));
    rendezvous_expire(&s, 49);
    assert_int_equal(0, a.calls + b.calls + c.calls);
    rendezvous_expire(&s, 100);
    assert_int_equal(1, a.calls);
    assert_int_equal(1, c.calls);
    assert_err(ERR_TIMEOUT, a.err);
    rendezvous_wait_drop(&s, &b.wait);
    rendezvous_expire(&s, 1000);
    assert_ok(put("a", "late"));
    assert_int_equal(0, b.calls); /* dropped: its callback is not called */
    rendezvous_clear(&s, ERR_STALE);
}

TEST(everything_is_limited)
{
    static struct waiter w[RENDEZVOUS_WAITS_MAX + 2];
    char big[RENDEZVOUS_VALUE_MAX + 2], key[32];
    memset(big, 'x', sizeof(big));
    rendezvous_init(&s);
    assert_err(ERR_INVALID, put("", "1"));
    assert_err(ERR_INVALID, rendezvous_put(&s, (struct rendezvous_bytes){big, RENDEZVOUS_KEY_MAX + 1}, text("1")));
    assert_ok(rendezvous_put(&s, (struct rendezvous_bytes){big, RENDEZVOUS_KEY_MAX}, text("1")));
    assert_err(ERR_INVALID, rendezvous_put(&s, text("big"), (struct rendezvous_bytes){big, RENDEZVOUS_VALUE_MAX + 1}));
    assert_ok(rendezvous_put(&s, text("big"), (struct rendezvous_bytes){big, RENDEZVOUS_VALUE_MAX}));
    for (int i = 2; i < RENDEZVOUS_KEYS_MAX; i++) {
        snprintf(key, sizeof(key), "key %d", i);
        assert_ok(put(key, key));
    }
    assert_err(ERR_LIMIT, put("one more", "1"));
    assert_ok(put("key 2", "key 2")); /* not a new key */
    for (int i = 0; i < RENDEZVOUS_WAITS_MAX; i++)
        assert_ok(wait_for(&w[i], "never", 3, 100));
    assert_err(ERR_LIMIT, wait_for(&w[RENDEZVOUS_WAITS_MAX], "never", 3, 100));
    assert_ok(wait_for(&w[RENDEZVOUS_WAITS_MAX + 1], "never", 4, 100)); /* another owner */
    assert_err(ERR_INVALID, rendezvous_wait(&s, (struct rendezvous_bytes){big, RENDEZVOUS_KEY_MAX + 1}, &w[0].wait));
    rendezvous_expire(&s, 100);
    assert_ok(wait_for(&w[0], "never", 3, 200));
    for (int i = 2; i < RENDEZVOUS_KEYS_MAX; i++) {
        struct rendezvous_bytes v;
        snprintf(key, sizeof(key), "key %d", i);
        assert_ok(rendezvous_get(&s, text(key), &v));
        assert_int_equal(strlen(key), v.len);
        assert_memory_equal(key, v.data, v.len);
    }
    rendezvous_clear(&s, ERR_CLOSED);
    assert_err(ERR_CLOSED, w[0].err);
    assert_int_equal(0, s.n_keys);
}
