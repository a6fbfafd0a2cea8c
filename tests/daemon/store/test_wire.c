/* The parser: the captured bytes, every operation, every cut, every limit. */
#include "tests/daemon/store/say.h"
#include "tests/lib/test.h"

static struct budget budget = {.max = SIZE_MAX / 4};
static struct wire_parser w;

static void fresh(void)
{
    wire_fini(&w);
    assert_int_equal(0, budget.used);
    wire_init(&w, &budget);
}

static void put_span(struct buf *b, const char *name, struct byte_view s)
{
    assert_ok(buf_printf(b, " %s[%zu]=", name, s.len));
    for (size_t i = 0; i < s.len && i < 64; i++)
        assert_ok(buf_printf(b, "%02x", s.data[i]));
}

/* One line per part, with all its fields. */
static void note(struct buf *b, const struct wire_request *r)
{
    assert_ok(buf_printf(b, "%s head=%d left=%u number=%lld nonce=%x", wire_op_name(r->op), r->head, r->left,
                         (long long)r->number, r->nonce));
    put_span(b, "key", r->key);
    put_span(b, "value", r->value);
    put_span(b, "desired", r->desired);
    assert_ok(buf_printf(b, "\n"));
}

/* The input is in a separate allocation, so that a sanitizer detects a view that outlives it. */
static enum wire_result feed(const uint8_t *data, size_t len, struct buf *notes)
{
    uint8_t *copy = malloc(len ? len : 1);
    struct wire_request r;
    enum wire_result result;
    memcpy(copy, data, len);
    struct byte_view in = {copy, len};
    while ((result = wire_next(&w, &in, &r)) == WIRE_REQUEST)
        note(notes, &r);
    if (result == WIRE_MORE)
        assert_int_equal(0, in.len);
    free(copy);
    return result;
}

/* Parses a conversation that begins with VALIDATE and returns its notes; expects no error. */
static void expect(const struct buf *said, const char *notes)
{
    struct buf found = {0};
    fresh();
    assert_int_equal(WIRE_MORE, feed(said->data, said->len, &found));
    assert_ok(buf_append(&found, "", 1));
    assert_string_equal(notes, (char *)found.data);
    buf_fini(&found);
}

static void expect_hex(const char *hex, const char *notes)
{
    struct buf said = {0}, all = {0};
    say_hello(&said);
    say_hex(&said, hex);
    assert_ok(buf_printf(&all, "VALIDATE head=0 left=0 number=0 nonce=0 key[0]= value[0]= desired[0]=\n%s", notes));
    expect(&said, (char *)all.data);
    buf_fini(&said);
    buf_fini(&all);
}

static void expect_broken(const struct buf *said, const char *reason)
{
    struct buf found = {0};
    fresh();
    assert_int_equal(WIRE_BROKEN, feed(said->data, said->len, &found));
    assert_string_equal(reason, w.reason);
    assert_int_equal(WIRE_BROKEN, feed((const uint8_t *)"\x07", 1, &found)); /* permanently */
    buf_fini(&found);
}

TEST(the_captured_bytes)
{
    struct buf said = {0};
    say_hex(&said, "00cef7853c 0d6f1b0000 04 0500000000000000 696e69742f 0100000000000000");
    expect(&said, "VALIDATE head=0 left=0 number=0 nonce=0 key[0]= value[0]= desired[0]=\n"
                  "PING head=0 left=0 number=0 nonce=1b6f key[0]= value[0]= desired[0]=\n"
                  "ADD head=0 left=0 number=1 nonce=0 key[5]=696e69742f value[0]= desired[0]=\n");
    expect_hex("01 0200000000000000 2f6b 0100000000000000 76",
               "SET head=0 left=0 number=0 nonce=0 key[2]=2f6b value[1]=76 desired[0]=\n");
    expect_hex("06 0100000000000000 0200000000000000 2f6b",
               "WAIT head=1 left=1 number=0 nonce=0 key[0]= value[0]= desired[0]=\n"
               "WAIT head=0 left=0 number=0 nonce=0 key[2]=2f6b value[0]= desired[0]=\n");
    expect_hex("03 0200000000000000 2f6b", "GET head=0 left=0 number=0 nonce=0 key[2]=2f6b value[0]= desired[0]=\n");
    expect_hex("02 0200000000000000 2f6b 0100000000000000 6f 0100000000000000 6e",
               "COMPARE_SET head=0 left=0 number=0 nonce=0 key[2]=2f6b value[1]=6f desired[1]=6e\n");
    expect_hex("05 0200000000000000 0200000000000000 2f6b 0200000000000000 2f7a",
               "CHECK head=1 left=2 number=0 nonce=0 key[0]= value[0]= desired[0]=\n"
               "CHECK head=0 left=1 number=0 nonce=0 key[2]=2f6b value[0]= desired[0]=\n"
               "CHECK head=0 left=0 number=0 nonce=0 key[2]=2f7a value[0]= desired[0]=\n");
    expect_hex("12 0200000000000000 2f62 0200000000000000",
               "BARRIER head=0 left=0 number=2 nonce=0 key[2]=2f62 value[0]= desired[0]=\n");
    buf_fini(&said);
}

/* Every operation, lists of 0, 1 and 3, empty strings. */
static void say_all(struct buf *b)
{
    say(b, WIRE_PING, "w", 0xdeadbeefu);
    say(b, WIRE_SET, "ss", "key", "value");
    say(b, WIRE_SET, "ss", "", "");
    say(b, WIRE_COMPARE_SET, "sss", "c", "old", "newer");
    say(b, WIRE_COMPARE_SET, "sss", "c", "", "x");
    say(b, WIRE_GET, "s", "key");
    say(b, WIRE_ADD, "sn", "n", (uint64_t)-5);
    say(b, WIRE_CHECK, "n", (uint64_t)0);
    say(b, WIRE_CHECK, "ns", (uint64_t)1, "a");
    say(b, WIRE_WAIT, "nsss", (uint64_t)3, "a", "", "ccc");
    say(b, WIRE_GETNUMKEYS, "");
    say(b, WIRE_DELETE_KEY, "s", "key");
    say(b, WIRE_APPEND, "ss", "key", "tail");
    say(b, WIRE_MULTI_GET, "nss", (uint64_t)2, "a", "b");
    say(b, WIRE_MULTI_GET, "n", (uint64_t)0);
    say(b, WIRE_MULTI_SET, "nssss", (uint64_t)2, "a", "1", "b", "22");
    say(b, WIRE_MULTI_SET, "n", (uint64_t)0);
    say(b, WIRE_CANCEL_WAIT, "");
    say(b, WIRE_QUEUE_PUSH, "ss", "q", "item");
    say(b, WIRE_QUEUE_POP, "s", "q");
    say(b, WIRE_QUEUE_LEN, "s", "q");
    say(b, WIRE_LIST_KEYS, "");
    say(b, WIRE_BARRIER, "sn", "b", (uint64_t)2);
    say(b, WIRE_PING, "w", 7u);
}

static void transcript(const struct buf *said, struct buf *ret)
{
    fresh();
    assert_int_equal(WIRE_MORE, feed(said->data, said->len, ret));
}

TEST(every_operation_is_understood)
{
    struct buf said = {0}, notes = {0};
    say_hello(&said);
    say_all(&said);
    transcript(&said, &notes);
    assert_ok(buf_append(&notes, "", 1));
    for (int op = 0; op < WIRE_OPS; op++) {
        char line[32];
        snprintf(line, sizeof(line), "%s%s head", op ? "\n" : "", wire_op_name(op));
        assert_non_null(strstr((char *)notes.data, line));
    }
    assert_non_null(strstr((char *)notes.data, "\nADD head=0 left=0 number=-5 "));
    assert_non_null(strstr((char *)notes.data, "\nMULTI_SET head=0 left=0 number=0 nonce=0 key[1]=62 value[2]=3232 "));
    assert_non_null(strstr((char *)notes.data, "\nWAIT head=0 left=1 number=0 nonce=0 key[0]= "));
    buf_fini(&said);
    buf_fini(&notes);
    wire_fini(&w);
    assert_int_equal(0, budget.used);
}

/* Fed in two parts, cut at each byte, and one byte at a time. */
static void cut_everywhere(const struct buf *said)
{
    struct buf whole = {0}, cut = {0};
    transcript(said, &whole);
    for (size_t at = 0; at <= said->len; at++) {
        fresh();
        cut.len = 0;
        assert_int_equal(WIRE_MORE, feed(said->data, at, &cut));
        assert_int_equal(WIRE_MORE, feed(said->data + at, said->len - at, &cut));
        assert_int_equal(whole.len, cut.len);
        assert_memory_equal(whole.data, cut.data, cut.len);
    }
    for (size_t step = 1; step < 12; step++) {
        fresh();
        cut.len = 0;
        for (size_t at = 0; at < said->len; at += step)
            assert_int_equal(WIRE_MORE, feed(said->data + at, said->len - at < step ? said->len - at : step, &cut));
        assert_int_equal(whole.len, cut.len);
        assert_memory_equal(whole.data, cut.data, cut.len);
    }
    buf_fini(&whole);
    buf_fini(&cut);
}

TEST(cut_at_every_byte)
{
    struct buf said = {0};
    say_hello(&said);
    say_all(&said);
    cut_everywhere(&said);
    buf_fini(&said);
    wire_fini(&w);
}

static void say_old(struct buf *b, int op)
{
    b->data[b->len - 1] = (uint8_t)op;
}

TEST(version_2_1_by_its_numbers)
{
    struct buf said = {0}, notes = {0};
    const struct {
        int op;
        const char *fields;
    } first[] = {
        {WIRE_SET, "ss"}, {WIRE_COMPARE_SET, "sss"}, {WIRE_GET, "s"}, {WIRE_APPEND, "ss"}, {WIRE_DELETE_KEY, "s"}};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        said.len = notes.len = 0;
        say(&said, first[i].op, first[i].fields, "key", "value", "third");
        said.data[0]--;
        size_t at = said.len;
        say(&said, WIRE_GETNUMKEYS, "");
        said.data[at] = 6;
        say(&said, WIRE_CANCEL_WAIT, "");
        say_old(&said, 11);
        transcript(&said, &notes);
        assert_true(w.legacy);
        assert_ok(buf_append(&notes, "", 1));
        char line[64];
        snprintf(line, sizeof(line), "%s head=0 left=0 number=0 nonce=0 key[3]=6b6579 ", wire_op_name(first[i].op));
        assert_int_equal(0, strncmp(line, (char *)notes.data, strlen(line)));
        assert_non_null(strstr((char *)notes.data, "\nGETNUMKEYS "));
        assert_non_null(strstr((char *)notes.data, "\nCANCEL_WAIT "));
        cut_everywhere(&said);
    }
    said.len = 0;
    say(&said, WIRE_GETNUMKEYS, ""); /* this request has only one byte: the parser must not wait for more */
    said.data[0] = 6;
    notes.len = 0;
    transcript(&said, &notes);
    assert_int_equal(0, strncmp("GETNUMKEYS ", (char *)notes.data, 11));
    say(&said, 12, "");
    expect_broken(&said, "an unknown operation");
    buf_fini(&said);
    buf_fini(&notes);
    wire_fini(&w);
}

TEST(strangers_are_refused_by_their_first_bytes)
{
    const char *const first[] = {"47 45 54 20", "16 03 01", "0c", "0d 01000000", "12", "ff"};
    struct buf said = {0};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        said.len = 0;
        say_hex(&said, first[i]);
        expect_broken(&said, "not a TCPStore client");
    }
    said.len = 0;
    say_hex(&said, "00 cef7853d 00000000"); /* almost the magic: then it is the length of a key */
    expect_broken(&said, "a key of more than 8 KiB");
    said.len = 0;
    say_hello(&said);
    say_hello(&said);
    expect_broken(&said, "a second VALIDATE");
    said.len = 0;
    say_hello(&said);
    say(&said, WIRE_OPS, "");
    expect_broken(&said, "an unknown operation");
    buf_fini(&said);
    wire_fini(&w);
}

/* A length above the limit is refused before the bytes arrive; the largest permitted length is accepted and allocates
 * nothing yet. */
static void limit_of(const char *before, uint64_t most, const char *reason)
{
    struct buf said = {0};
    for (int over = 0; over < 2; over++) {
        uint64_t n = most + (uint64_t)over;
        said.len = 0;
        say_hello(&said);
        say_hex(&said, before);
        assert_ok(buf_append(&said, &n, sizeof(n)));
        if (over) {
            expect_broken(&said, reason);
            continue;
        }
        struct buf notes = {0};
        transcript(&said, &notes);
        assert_in_range(budget.used, 0, 1024);
        buf_fini(&notes);
    }
    said.len = 0;
    say_hello(&said);
    say_hex(&said, before);
    say_hex(&said, "ffffffffffffffff");
    expect_broken(&said, reason);
    buf_fini(&said);
    wire_fini(&w);
}

TEST(limits)
{
    limit_of("01", WIRE_KEY_MAX, "a key of more than 8 KiB");
    limit_of("12", WIRE_KEY_MAX, "a key of more than 8 KiB");
    limit_of("06 0100000000000000", WIRE_KEY_MAX, "a key of more than 8 KiB");
    limit_of("01 0100000000000000 61", WIRE_VALUE_MAX, "a value of more than 8 MiB");
    limit_of("09 0100000000000000 61", WIRE_VALUE_MAX, "a value of more than 8 MiB");
    limit_of("0e 0100000000000000 61", WIRE_VALUE_MAX, "a value of more than 8 MiB");
    limit_of("02 0100000000000000 61 0000000000000000", WIRE_VALUE_MAX, "a value of more than 8 MiB");
    limit_of("0b 0100000000000000 0100000000000000 61", WIRE_VALUE_MAX, "a value of more than 8 MiB");
    limit_of("05", WIRE_KEYS_MAX, "more than 131072 keys");
    limit_of("06", WIRE_KEYS_MAX, "more than 131072 keys");
    limit_of("0a", WIRE_KEYS_MAX, "more than 131072 keys");
    limit_of("0b", WIRE_KEYS_MAX, "more than 131072 keys");
}

TEST(the_longest_of_all)
{
    struct buf said = {0};
    static uint8_t key[WIRE_KEY_MAX], value[WIRE_VALUE_MAX];
    memset(key, 'k', sizeof(key));
    memset(value, 'v', sizeof(value));
    say_hello(&said);
    say(&said, WIRE_SET, "bb", key, sizeof(key), value, sizeof(value));
    for (size_t step = 1000; step <= said.len; step *= 100) {
        fresh();
        struct wire_request r;
        size_t found = 0;
        for (size_t at = 0; at < said.len; at += step) {
            struct byte_view in = {said.data + at, said.len - at < step ? said.len - at : step};
            for (; wire_next(&w, &in, &r) == WIRE_REQUEST; found++)
                if (found == 1) {
                    assert_int_equal(sizeof(key), r.key.len);
                    assert_memory_equal(key, r.key.data, sizeof(key));
                    assert_int_equal(sizeof(value), r.value.len);
                    assert_memory_equal(value, r.value.data, sizeof(value));
                }
            /* At most twice the bytes that have arrived. */
            assert_in_range(w.held.cap, 0, 2 * (at + step) + 256);
        }
        assert_int_equal(2, found);
    }
    buf_fini(&said);
    wire_fini(&w);
    assert_int_equal(0, budget.used);
}

/* A list of 131072 keys is never stored: each key is returned as it arrives. */
TEST(lists_are_not_collected)
{
    struct buf said = {0};
    const uint64_t n = WIRE_KEYS_MAX;
    struct wire_request r;
    uint32_t left = WIRE_KEYS_MAX;
    fresh();
    say_hello(&said);
    say(&said, WIRE_MULTI_SET, "n", n);
    for (struct byte_view in = {said.data, said.len}; wire_next(&w, &in, &r) == WIRE_REQUEST;)
        ;
    said.len = 0;
    say(&said, 0, "ss", "some/key", "some value");
    for (uint64_t i = 0; i < n; i++) {
        struct byte_view a = {said.data + 1, 5}, b = {said.data + 6, said.len - 6};
        assert_int_equal(WIRE_MORE, wire_next(&w, &a, &r));
        assert_int_equal(WIRE_REQUEST, wire_next(&w, &b, &r));
        assert_int_equal(--left, r.left);
        assert_int_equal(10, r.value.len);
        assert_in_range(budget.used, 0, 2048);
    }
    buf_fini(&said);
    wire_fini(&w);
}

TEST(a_full_store_ends_the_connection)
{
    struct buf said = {0}, notes = {0};
    static uint8_t value[100000];
    say_hello(&said);
    say(&said, WIRE_SET, "sb", "k", value, sizeof(value));
    fresh();
    budget.max = 50000;
    assert_int_equal(WIRE_MORE, feed(said.data, 20000, &notes));
    assert_int_equal(WIRE_BROKEN, feed(said.data + 20000, said.len - 20000, &notes));
    assert_string_equal("the store is full", w.reason);
    assert_in_range(budget.used, 20000, 50000);
    wire_fini(&w);
    assert_int_equal(0, budget.used);
    buf_fini(&said);
    buf_fini(&notes);
}
