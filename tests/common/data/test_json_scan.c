/* The scan of JSON beside jansson: what one accepts, the other accepts, with the same strings and integers. */
#include "common/data/json_scan.h"
#include "tests/common/data/files.h"

#include <jansson.h>

/* Reads the next value and compares it with jansson's. */
static void compare(struct json_scan *s, const json_t *value)
{
    struct buf decoded = {0};
    const uint8_t *text;
    size_t len, i = 0;
    int64_t number;
    int word;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        for (bool more = json_scan_enter(s, '{'); more; more = json_scan_more(s, '}'), i++) {
            assert_true(json_scan_key(s, &decoded, &text, &len));
            const json_t *item = json_object_getn(value, (const char *)text, len);
            assert_non_null(item);
            compare(s, item);
            decoded.len = 0;
        }
        assert_int_equal(i, json_object_size(value)); /* the texts have no key twice */
        break;
    case JSON_ARRAY:
        for (bool more = json_scan_enter(s, '['); more; more = json_scan_more(s, ']'))
            compare(s, json_array_get(value, i++));
        assert_int_equal(i, json_array_size(value));
        break;
    case JSON_STRING:
        assert_true(json_scan_string(s, &decoded, &text, &len));
        assert_int_equal(len, json_string_length(value));
        assert_memory_equal(text, json_string_value(value), len);
        break;
    case JSON_INTEGER:
        assert_true(json_scan_integer(s, &number));
        assert_int_equal(number, json_integer_value(value));
        break;
    case JSON_REAL:
        assert_true(json_scan_skip(s));
        break;
    default:
        assert_true(json_scan_word(s, &word));
        assert_int_equal(word, json_is_null(value) ? -1 : json_is_true(value));
    }
    buf_fini(&decoded);
}

static bool accepts(const char *text, size_t len)
{
    struct json_scan s;
    json_scan_init(&s, text, len);
    return json_scan_skip(&s) && json_scan_end(&s);
}

static void check(const char *text, size_t len)
{
    json_t *value = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (accepts(text, len) != (value != NULL))
        fail_msg("%.*s: jansson %s it", (int)len, text, value ? "accepts" : "refuses");
    json_t *unique = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    if (unique) {
        struct json_scan s;
        json_scan_init(&s, text, len);
        compare(&s, value);
        assert_true(json_scan_end(&s));
    }
    json_decref(value);
    json_decref(unique);
}

static const char *const texts[] = {"{}",
                                    "[]",
                                    " { } ",
                                    "{\"a\":1,\"b\":[true,false,null,-0,0,12,-7,1.5,1e3,-2.5E-2]}",
                                    "[[[[]]],{\"x\":{}}]",
                                    "\"\"",
                                    "\"plain text of more than eight bytes\"",
                                    "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
                                    "\"1234567\\n890\"",
                                    "\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\u0000\"",
                                    "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
                                    "9223372036854775807",
                                    "[1,]",
                                    "[,1]",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "{a:1}",
                                    "{\"a\":1,}",
                                    "[1 2]",
                                    "01",
                                    "-",
                                    "+1",
                                    "1.",
                                    ".5",
                                    "1e",
                                    "\"",
                                    "\"\\\"",
                                    "\"\\x\"",
                                    "\"\\u12\"",
                                    "\"\\u12g4\"",
                                    "\"a\tb\"",
                                    "\"a\nb\"",
                                    "tru",
                                    "nul",
                                    "truex",
                                    "\"a\"b",
                                    "",
                                    " ",
                                    "[",
                                    "{",
                                    "]",
                                    "{\"a\":1]",
                                    "[1}",
                                    "\"a\\",
                                    "[\"\\u00",
                                    "1e+",
                                    "-a"};

TEST(agrees_with_jansson)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        check(texts[i], strlen(texts[i]));
}

/* Any text with one or two bytes changed. Bytes are ASCII, and no exponents are added, because jansson alone checks
 * UTF-8 and the range of numbers. */
TEST(agrees_with_jansson_on_changed_texts)
{
    static const char bytes[] = " \t\r\n{}[]:,\"\\/+-.tfnulrsax\x01";
    uint64_t state = 7;
    for (int round = 0; round < 200000; round++) {
        char text[256];
        const char *from = texts[random_next(&state) % 11];
        size_t len = strlen(from);
        memcpy(text, from, len);
        if (memchr(text, 0xf0, len) || memchr(text, 0xc3, len) || strstr(from, "\\u") || !len)
            continue;
        for (int k = 0; k < 1 + round % 2; k++)
            text[random_next(&state) % len] = bytes[random_next(&state) % (sizeof(bytes) - 1)];
        check(text, random_next(&state) % 4 ? len : random_next(&state) % len);
    }
}

static void check_string(const char *json, const char *expected, size_t n)
{
    struct json_scan s;
    struct buf decoded = {0};
    const uint8_t *text;
    size_t len;
    json_scan_init(&s, json, strlen(json));
    assert_true(json_scan_string(&s, &decoded, &text, &len));
    assert_int_equal(len, n);
    assert_memory_equal(text, expected, n);
    buf_fini(&decoded);
}

/* jansson refuses these; data of users has them. */
/* Long strings with escapes at every place of a block; one in four has a byte that may not be there. */
TEST(agrees_with_jansson_on_long_strings)
{
    static const char *const parts[] = {"\\n", "\\\\", "\\\"", "\\u00e9", "\\t", "\\/", "/", "\x7f"};
    uint64_t state = 5;
    for (int i = 0; i < 20000; i++) {
        char text[700] = "\"";
        size_t n = 1, len = random_next(&state) % 400, density = 2 + random_next(&state) % 60;
        while (n < len) {
            const char *part = parts[random_next(&state) % 8];
            bool plain = random_next(&state) % density != 0;
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", plain ? "x" : part);
        }
        if (random_next(&state) % 4 == 0)
            text[random_next(&state) % n] = "\x1f\x01\"\\q"[random_next(&state) % 5];
        text[n++] = '"';
        check(text, n);
    }
}

TEST(surrogates_and_bytes_that_are_no_text)
{
    check_string("\"a\\ud800b\"",
                 "a\xef\xbf\xbd"
                 "b",
                 5);
    check_string("\"\\udc00\\ud83d\"", "\xef\xbf\xbd\xef\xbf\xbd", 6);
    check_string("\"\\ud83d\\u0041\"",
                 "\xef\xbf\xbd"
                 "A",
                 4);
    check_string("\"\\ud83d\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7);
    check_string("\"a\xff\xfe\"", "a\xff\xfe", 3);
}

TEST(numbers_at_their_limits)
{
    static const struct {
        const char *text;
        bool legal;
    } cases[] = {{"9223372036854775807", true},
                 {"9223372036854775808", false},
                 {"-9223372036854775807", true},
                 {"99999999999999999999999", false},
                 {"1.0", false},
                 {"1e2", false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_scan s;
        int64_t number;
        json_scan_init(&s, cases[i].text, strlen(cases[i].text));
        assert_int_equal(json_scan_integer(&s, &number), cases[i].legal);
    }
}

TEST(deep_nesting_is_refused)
{
    char text[JSON_SCAN_DEPTH + 2];
    struct json_scan s;
    memset(text, '[', sizeof(text));
    json_scan_init(&s, text, sizeof(text));
    assert_false(json_scan_skip(&s));
    assert_string_equal(s.error, "lists and objects are nested too deeply");
}
