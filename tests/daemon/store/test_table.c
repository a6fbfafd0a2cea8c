/* Keys, queues and waiters: each rule separately, and random operations compared with the oracle. */
#include "daemon/store/siphash.h"
#include "daemon/store/table.h"
#include "tests/daemon/store/oracle.h"
#include "tests/lib/test.h"

#include <inttypes.h>

#define WAITERS 16

static struct budget budget = {.max = 64u << 20};
static struct store_table *t;
static struct table_waiter waiters[WAITERS];
static int woken[256], n_woken;

static void on_woken(struct table_waiter *w)
{
    woken[n_woken++] = (int)(w - waiters);
}

static void setup(void)
{
    const uint64_t seed[2] = {1, 2};
    assert_ok(table_new(&budget, seed, &t));
    memset(waiters, 0, sizeof(waiters));
    for (int i = 0; i < WAITERS; i++)
        waiters[i].woken = on_woken;
    n_woken = 0;
}

static void teardown(void)
{
    for (int i = 0; i < WAITERS; i++)
        table_wait_cancel(t, &waiters[i]);
    table_free(t);
    assert_int_equal(0, budget.used);
}

static struct byte_view text(const char *s)
{
    return (struct byte_view){(const uint8_t *)s, strlen(s)};
}

static void expect_span(const char *expected, struct byte_view found)
{
    assert_int_equal(strlen(expected), found.len);
    if (found.len)
        assert_memory_equal(expected, found.data, found.len);
}

static void expect_held(const char *key, const char *expected)
{
    struct byte_view found;
    assert_true(table_get(t, text(key), &found));
    expect_span(expected, found);
}

static bool wait_for(int who, const char *const *keys, int n)
{
    assert_ok(table_wait_begin(t, &waiters[who]));
    for (int i = 0; i < n; i++)
        assert_ok(table_wait_key(t, &waiters[who], text(keys[i])));
    return table_wait_end(t, &waiters[who]);
}

static bool wait_one(int who, const char *key)
{
    return wait_for(who, &key, 1);
}

static void expect_woken(int n, ...)
{
    va_list ap;
    va_start(ap, n);
    assert_int_equal(n, n_woken);
    for (int i = 0; i < n; i++)
        assert_int_equal(va_arg(ap, int), woken[i]);
    va_end(ap);
    n_woken = 0;
}

static int64_t add(const char *key, int64_t delta)
{
    int64_t sum;
    assert_ok(table_add(t, text(key), delta, &sum));
    return sum;
}

/* The result of CPython 3.11: PYTHONHASHSEED=0 python3 -c 'print(hex(hash(b"a") & 2**64 - 1))'. */
TEST(hash_of_known_bytes)
{
    const uint64_t seed[2] = {0, 0};
    const struct {
        const char *bytes;
        uint64_t hash;
    } known[] = {{"a", 0x407448d2b89b1813u},
                 {"12345678", 0x3489982430560a87u},
                 {"/default_pg/0//cpu//0/1", 0x7c45301da649a352u}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_true(siphash(seed, (const uint8_t *)known[i].bytes, strlen(known[i].bytes)) == known[i].hash);
}

TEST(values)
{
    struct byte_view found;
    setup();
    assert_false(table_get(t, text("k"), &found));
    assert_false(table_has(t, text("k")));
    assert_ok(table_set(t, text("k"), text("one")));
    expect_held("k", "one");
    assert_ok(table_set(t, text("k"), text("")));
    expect_held("k", "");
    assert_true(table_has(t, text("k")));
    assert_ok(table_append(t, text("k"), text("ab")));
    assert_ok(table_append(t, text("k"), text("")));
    assert_ok(table_append(t, text("k"), text("a tail longer than what small values have room for")));
    expect_held("k", "aba tail longer than what small values have room for");
    assert_ok(table_append(t, text("new"), text("x")));
    expect_held("new", "x");
    assert_ok(table_set(t, text(""), text("of the empty key")));
    expect_held("", "of the empty key");
    assert_int_equal(3, table_keys(t));
    assert_int_equal(4, table_key_bytes(t));
    assert_true(table_delete(t, text("k")));
    assert_false(table_delete(t, text("k")));
    assert_false(table_get(t, text("k"), &found));
    assert_int_equal(2, table_keys(t));
    assert_int_equal(3, table_key_bytes(t));
    teardown();
}

static void compare_set(const char *key, const char *expected, const char *desired, const char *answer)
{
    struct byte_view found;
    assert_ok(table_compare_set(t, text(key), text(expected), text(desired), &found));
    expect_span(answer, found);
}

TEST(compare_and_set_in_every_branch)
{
    struct byte_view found;
    setup();
    compare_set("k", "old", "new", "old"); /* missing: returns the expected value, stores nothing */
    assert_false(table_get(t, text("k"), &found));
    compare_set("k", "", "first", "first");
    compare_set("k", "", "second", "first");
    compare_set("k", "other", "second", "first");
    compare_set("k", "firs", "second", "first");
    compare_set("k", "first", "second", "second");
    expect_held("k", "second");
    compare_set("k", "second", "", "");
    compare_set("k", "", "again", "again"); /* exists and is empty */
    expect_held("k", "again");
    teardown();
}

TEST(numbers)
{
    const struct {
        const char *was;
        bool number;
        int64_t delta, sum;
    } cases[] = {
        {"5", true, 2, 7},
        {"-2", true, 1, -1},
        {"+3", true, 0, 3},
        {" \t\n\v\f\r 12 apples", true, 1, 13},
        {"007", true, 1, 8},
        {"9223372036854775807", true, 1, INT64_MIN},
        {"-9223372036854775808", true, -1, INT64_MAX},
        {"9223372036854775808", false, 0, 0},
        {"-9223372036854775809", false, 0, 0},
        {"99999999999999999999", false, 0, 0},
        {"", false, 0, 0},
        {"x", false, 0, 0},
        {"-", false, 0, 0},
        {"- 1", false, 0, 0},
        {"--1", false, 0, 0},
    };
    setup();
    assert_int_equal(5, add("n", 5));
    expect_held("n", "5");
    assert_int_equal(-2, add("n", -7));
    expect_held("n", "-2");
    assert_int_equal(-2, add("n", 0));
    assert_int_equal(INT64_MIN, add("least", INT64_MIN));
    expect_held("least", "-9223372036854775808");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t sum;
        assert_ok(table_set(t, text("k"), text(cases[i].was)));
        assert_err(cases[i].number ? OK : ERR_INVALID, table_add(t, text("k"), cases[i].delta, &sum));
        if (cases[i].number)
            assert_true(sum == cases[i].sum);
        else
            expect_held("k", cases[i].was);
    }
    teardown();
}

TEST(a_wait_ends_with_its_last_key)
{
    const char *const two[] = {"a", "b"}, *const twice[] = {"a", "a", "b"}, *const none[1] = {NULL};
    setup();
    assert_true(wait_for(0, none, 0));
    assert_false(wait_for(0, two, 2));
    assert_false(wait_for(1, twice, 3));
    assert_false(wait_one(2, "a"));
    assert_err(ERR_PROTO, table_wait_begin(t, &waiters[2]));
    assert_ok(table_set(t, text("a"), text("")));
    expect_woken(1, 2);
    assert_ok(table_set(t, text("a"), text("again")));
    expect_woken(0);
    assert_true(wait_one(2, "a"));
    assert_int_equal(1, add("b", 1));
    expect_woken(2, 0, 1);
    assert_true(wait_for(0, two, 2));
    assert_true(table_delete(t, text("a")));
    assert_false(wait_for(0, two, 2));
    compare_set("a", "x", "y", "x"); /* nothing has come */
    expect_woken(0);
    compare_set("a", "", "y", "y");
    expect_woken(1, 0);
    assert_false(wait_one(3, "c"));
    assert_ok(table_append(t, text("c"), text("x")));
    expect_woken(1, 3);
    teardown();
}

TEST(a_key_that_comes_while_keys_are_named)
{
    setup();
    assert_ok(table_wait_begin(t, &waiters[0]));
    assert_ok(table_wait_key(t, &waiters[0], text("a")));
    assert_ok(table_set(t, text("a"), text("1")));
    expect_woken(0); /* not before the last key has been named */
    assert_ok(table_wait_key(t, &waiters[0], text("b")));
    assert_false(table_wait_end(t, &waiters[0]));
    assert_ok(table_set(t, text("b"), text("1")));
    expect_woken(1, 0);
    assert_ok(table_wait_begin(t, &waiters[0]));
    assert_ok(table_wait_key(t, &waiters[0], text("c")));
    assert_ok(table_set(t, text("c"), text("1")));
    assert_true(table_wait_end(t, &waiters[0]));
    expect_woken(0);
    teardown();
}

TEST(who_cancels_is_not_woken)
{
    const char *const keys[] = {"a", "b", "c"};
    setup();
    size_t before = budget.used;
    assert_false(wait_for(0, keys, 3));
    assert_false(wait_one(1, "b"));
    assert_true(budget.used > before);
    table_wait_cancel(t, &waiters[0]);
    table_wait_cancel(t, &waiters[0]);
    assert_ok(table_set(t, text("b"), text("1")));
    expect_woken(1, 1);
    assert_true(table_delete(t, text("b")));
    assert_int_equal(before, budget.used); /* entries without waiters have been freed */
    teardown();
}

static void push(const char *key, const char *item)
{
    assert_ok(table_queue_push(t, text(key), text(item)));
}

static void expect_pop(int who, const char *key, size_t before, const char *expected)
{
    struct table_item *item = NULL;
    assert_int_equal(before, table_queue_pop(t, text(key), &waiters[who], &item));
    if (!before)
        return;
    expect_span(expected, (struct byte_view){item->bytes, item->len});
    table_item_free(t, item);
}

TEST(queues)
{
    struct byte_view found;
    setup();
    expect_pop(0, "q", 0, NULL);
    push("q", "one");
    push("q", "");
    push("q", "three");
    assert_int_equal(3, table_queue_len(t, text("q")));
    assert_true(table_has(t, text("q")));
    assert_false(table_get(t, text("q"), &found)); /* apart from values */
    assert_int_equal(0, table_keys(t));
    assert_false(table_delete(t, text("q")));
    assert_ok(table_set(t, text("q"), text("value")));
    expect_pop(0, "q", 3, "one");
    expect_pop(0, "q", 2, "");
    expect_held("q", "value");
    expect_pop(0, "q", 1, "three");
    expect_pop(0, "q", 0, NULL);
    assert_int_equal(0, table_queue_len(t, text("q")));
    push("left over", "is freed with the table");
    teardown();
}

TEST(an_item_wakes_the_first_in_line)
{
    const char *const two[] = {"q", "other"}, *const twice[] = {"q", "q"};
    setup();
    assert_false(wait_for(0, twice, 2));
    assert_false(wait_one(1, "q"));
    push("q", "a");
    expect_woken(1, 0);
    push("q", "b");
    expect_woken(1, 1);
    expect_pop(0, "q", 2, "a");
    expect_pop(1, "q", 1, "b");
    /* A waiter with further keys is satisfied for this key and does not block the next waiter. */
    assert_false(wait_for(2, two, 2));
    assert_false(wait_one(3, "q"));
    push("q", "c");
    expect_woken(1, 3);
    assert_ok(table_set(t, text("other"), text("")));
    expect_woken(1, 2);
    /* A value wakes all waiters. */
    expect_pop(3, "q", 1, "c");
    assert_false(wait_one(0, "q"));
    assert_false(wait_one(1, "q"));
    assert_ok(table_set(t, text("q"), text("")));
    expect_woken(2, 0, 1);
    teardown();
}

TEST(an_item_that_is_not_taken_wakes_the_next)
{
    setup();
    for (int i = 0; i < 4; i++)
        assert_false(wait_one(i, "q"));
    push("q", "a");
    expect_woken(1, 0);
    table_wait_cancel(t, &waiters[0]); /* canceled, or closed */
    expect_woken(1, 1);
    assert_false(wait_one(1, "elsewhere")); /* it starts another wait instead of a pop */
    expect_woken(1, 2);
    expect_pop(2, "q", 1, "a");
    table_wait_cancel(t, &waiters[2]);
    expect_woken(0); /* the item has been popped */
    push("q", "b");
    expect_woken(1, 3);
    expect_pop(5, "q", 1, "b"); /* another client has popped the first item */
    table_wait_cancel(t, &waiters[3]);
    expect_woken(0);
    teardown();
}

TEST(who_has_taken_its_item_owes_nothing)
{
    setup();
    for (int i = 0; i < 3; i++)
        assert_false(wait_one(i, "q"));
    push("q", "a");
    push("q", "b");
    expect_woken(2, 0, 1);
    expect_pop(0, "q", 2, "a");
    table_wait_cancel(t, &waiters[0]);
    expect_woken(0); /* the remaining item is for the other waiter */
    table_wait_cancel(t, &waiters[1]);
    expect_woken(1, 2);
    teardown();
}

static bool barrier(int who, const char *key, int64_t world)
{
    bool ready;
    assert_ok(table_barrier(t, text(key), world, &waiters[who], &ready));
    return ready;
}

TEST(barriers)
{
    bool ready;
    setup();
    assert_true(barrier(0, "one", 1));
    assert_true(barrier(0, "none", 0));
    assert_true(barrier(0, "fewer", -3));
    assert_false(barrier(0, "b", 3));
    assert_err(ERR_PROTO, table_barrier(t, text("b"), 3, &waiters[0], &ready));
    expect_held("b", "1");
    assert_false(barrier(1, "b", 3));
    expect_woken(0);
    assert_true(barrier(2, "b", 3));
    expect_woken(2, 0, 1);
    assert_true(barrier(0, "b", 3)); /* and from then on */
    expect_held("b", "4");
    /* A waiter for the key itself is woken by the first client that enters. */
    assert_false(wait_one(0, "c"));
    assert_false(barrier(1, "c", 2));
    expect_woken(1, 0);
    /* A client that cancels remains counted. */
    table_wait_cancel(t, &waiters[1]);
    assert_true(barrier(2, "c", 2));
    expect_woken(0);
    /* Clients without the operation BARRIER add to the key and wait for it. */
    assert_false(barrier(0, "d", 3));
    assert_false(barrier(1, "d", 4));
    assert_int_equal(3, add("d", 1));
    expect_woken(1, 0);
    assert_ok(table_set(t, text("d"), text("no number")));
    expect_woken(0);
    assert_ok(table_set(t, text("d"), text("4")));
    expect_woken(1, 1);
    assert_ok(table_set(t, text("d"), text("no number")));
    assert_err(ERR_INVALID, table_barrier(t, text("d"), 1, &waiters[0], &ready));
    /* A negative number, and a world of 0. */
    assert_ok(table_set(t, text("e"), text("-2")));
    assert_false(barrier(0, "e", 0));
    assert_true(barrier(1, "e", 0));
    expect_woken(1, 0);
    teardown();
}

static void count_bytes(void *arg, struct byte_view key)
{
    *(size_t *)arg += key.len;
}

/* Every bucket is split many times, with deletions in between; no key is lost. */
TEST(a_hundred_thousand_keys)
{
    enum { N = 100000 };
    char key[32], value[32];
    size_t bytes = 0, listed = 0;
    setup();
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "key/%d", i);
        snprintf(value, sizeof(value), "%d", i * 7);
        assert_ok(table_set(t, text(key), text(value)));
        bytes += strlen(key);
        if (i % 3 == 2) {
            snprintf(key, sizeof(key), "key/%d", i - 1);
            assert_true(table_delete(t, text(key)));
            bytes -= strlen(key);
        }
    }
    assert_int_equal(N - N / 3, table_keys(t));
    assert_int_equal(bytes, table_key_bytes(t));
    for (int i = 0; i < N; i++) {
        struct byte_view found;
        snprintf(key, sizeof(key), "key/%d", i);
        snprintf(value, sizeof(value), "%d", i * 7);
        bool deleted = i % 3 == 1 && i + 1 < N;
        assert_int_equal(!deleted, table_get(t, text(key), &found));
        if (!deleted)
            expect_span(value, found);
    }
    table_each(t, count_bytes, &listed);
    assert_int_equal(bytes, listed);
    teardown();
}

/* Every operation with every insufficient amount of memory fails and changes nothing. */
static err_t one_operation(int i, int64_t *sum)
{
    struct byte_view found;
    bool ready;
    switch (i) {
    case 0:
        return table_set(t, text("a new key"), text("a value that has no room in what small ones have"));
    case 1:
        return table_set(t, text("k"), text("a value that has no room in what small ones have"));
    case 2:
        return table_append(t, text("k"), text("a tail that has no room in what small values have"));
    case 3:
        return table_append(t, text("a new key"), text("tail"));
    case 4:
        return table_compare_set(t, text("a new key"), text(""), text("x"), &found);
    case 5:
        return table_add(t, text("a new key"), 1, sum);
    case 6:
        return table_queue_push(t, text("a new key"), text("item"));
    case 7:
        return table_barrier(t, text("a new key"), 2, &waiters[0], &ready);
    default: {
        err_t err = table_wait_begin(t, &waiters[0]);
        if (!err)
            err = table_wait_key(t, &waiters[0], text("a new key"));
        if (!err)
            err = table_wait_key(t, &waiters[0], text("another new key"));
        if (!err)
            table_wait_end(t, &waiters[0]);
        return err;
    }
    }
}

TEST(a_full_store_refuses_and_is_as_it_was)
{
    const size_t most = budget.max;
    for (int i = 0; i < 9; i++) {
        int refused = 0;
        int64_t sum;
        setup();
        assert_ok(table_set(t, text("k"), text("v")));
        size_t before = budget.used;
        for (budget.max = before; one_operation(i, &sum); budget.max++, refused++) {
            assert_int_equal(before, budget.used);
            expect_held("k", "v");
            assert_int_equal(1, table_keys(t));
            assert_false(table_has(t, text("a new key")));
            assert_false(waiters[0].waiting);
        }
        assert_true(refused > 10);
        budget.max = most;
        teardown();
    }
}

/* ---- at random ---- */

static struct oracle o;
static uint64_t state;

static int below(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static const char *key_of(int i)
{
    static const char *const keys[ORACLE_KEYS] = {"", "a", "b", "c", "/some/key/with/a/long/name", "q"};
    return keys[i];
}

static const char *some_text(void)
{
    static const char *const texts[] = {"", "1", "2", "-1", "3 x", "word", "a longer text that is no number"};
    return texts[below(7)];
}

static void compare_woken(void)
{
    assert_int_equal(o.n_woken, n_woken);
    for (int i = 0; i < n_woken; i++)
        assert_int_equal(o.woken[i], woken[i]);
    o.n_woken = n_woken = 0;
}

static void compare_all(void)
{
    size_t n = 0;
    for (int k = 0; k < ORACLE_KEYS; k++) {
        struct byte_view found;
        assert_int_equal(o.present[k], table_get(t, text(key_of(k)), &found));
        if (o.present[k])
            expect_span(o.value[k], found);
        assert_int_equal(o.n_items[k], table_queue_len(t, text(key_of(k))));
        assert_int_equal(oracle_has(&o, k), table_has(t, text(key_of(k))));
        n += o.present[k];
    }
    assert_int_equal(n, table_keys(t));
    for (int w = 0; w < ORACLE_WAITERS; w++)
        assert_int_equal(o.waiters[w].waiting, waiters[w].waiting);
}

static void random_wait(int who)
{
    int keys[4], n = below(5);
    if (waiters[who].waiting) {
        assert_err(ERR_PROTO, table_wait_begin(t, &waiters[who]));
        return;
    }
    assert_ok(table_wait_begin(t, &waiters[who]));
    for (int i = 0; i < n; i++) {
        keys[i] = below(ORACLE_KEYS);
        assert_ok(table_wait_key(t, &waiters[who], text(key_of(keys[i]))));
    }
    assert_int_equal(oracle_wait(&o, who, keys, n), table_wait_end(t, &waiters[who]));
}

static void random_barrier(int who, int k)
{
    bool ready = false, expected = false;
    int64_t world = below(5) - 1;
    if (waiters[who].waiting) {
        assert_err(ERR_PROTO, table_barrier(t, text(key_of(k)), world, &waiters[who], &ready));
        return;
    }
    bool number = oracle_barrier(&o, k, world, who, &expected);
    assert_err(number ? OK : ERR_INVALID, table_barrier(t, text(key_of(k)), world, &waiters[who], &ready));
    assert_int_equal(expected, ready);
}

static void random_compare_set(int k)
{
    struct byte_view found;
    const char *expected = some_text(), *desired = some_text();
    assert_ok(table_compare_set(t, text(key_of(k)), text(expected), text(desired), &found));
    expect_span(oracle_compare_set(&o, k, expected, desired), found);
}

static void random_add(int k)
{
    int64_t sum = 0, expected = 0, delta = below(5) - 2;
    bool number = oracle_add(&o, k, delta, &expected);
    assert_err(number ? OK : ERR_INVALID, table_add(t, text(key_of(k)), delta, &sum));
    assert_true(expected == sum);
}

static void random_queue(int k, int who)
{
    char item[ORACLE_TEXT];
    if (o.n_items[k] < 4 && below(2)) {
        const char *word = some_text();
        oracle_push(&o, k, word);
        push(key_of(k), word);
    } else {
        int n = oracle_pop(&o, k, who, item);
        expect_pop(who, key_of(k), (size_t)n, item);
    }
}

static void random_value(int k)
{
    const char *word = some_text();
    if (below(3)) {
        oracle_set(&o, k, word);
        assert_ok(table_set(t, text(key_of(k)), text(word)));
    } else if (strlen(o.value[k]) + strlen(word) < ORACLE_TEXT - 1) {
        oracle_append(&o, k, word);
        assert_ok(table_append(t, text(key_of(k)), text(word)));
    }
}

static void random_step(void)
{
    int k = below(ORACLE_KEYS), who = below(ORACLE_WAITERS);
    switch (below(12)) {
    case 0:
        random_value(k);
        break;
    case 1:
    case 2:
        assert_int_equal(oracle_delete(&o, k), table_delete(t, text(key_of(k))));
        break;
    case 3:
        random_compare_set(k);
        break;
    case 4:
        random_add(k);
        break;
    case 5:
        random_barrier(who, k);
        break;
    case 6:
    case 7:
        random_queue(k, who);
        break;
    case 8:
        oracle_cancel(&o, who);
        table_wait_cancel(t, &waiters[who]);
        break;
    default:
        random_wait(who);
    }
}

TEST(at_random_beside_the_oracle)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        setup();
        memset(&o, 0, sizeof(o));
        state = seed;
        for (int i = 0; i < 1000; i++) {
            random_step();
            compare_woken();
            compare_all();
        }
        teardown();
    }
}
