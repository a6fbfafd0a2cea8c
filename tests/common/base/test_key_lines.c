/* Lines KEY=VALUE: each kind of value with its bounds, and every wrong text with its message. */
#include "common/base/key_lines.h"
#include "tests/lib/test.h"

struct values {
    char text[4];
    uint32_t small;
    int64_t large;
    uint8_t bytes[2];
    bool flag;
};

#define FIELD(name) KEY_LINE_FIELD(struct values, name)
static const struct key_line keys[] = {
    {"text", key_line_text, FIELD(text)},     {"small", key_line_number, FIELD(small)},
    {"large", key_line_number, FIELD(large)}, {"bytes", key_line_hex, FIELD(bytes)},
    {"flag", key_line_flag, FIELD(flag)},
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static err_t parse(const char *text, size_t len, struct values *ret, uint32_t *ret_seen, struct why *why)
{
    *ret = (struct values){.small = 7};
    return key_lines_parse("file", text, len, keys, N_KEYS, ret, ret_seen, why);
}

TEST(each_kind_of_value)
{
    const char *text = "flag=1\ntext=a=b\nsmall=4294967295\nlarge=9223372036854775807\nbytes=0af9\n";
    struct values v;
    uint32_t seen;
    struct why why;
    assert_ok(parse(text, strlen(text), &v, &seen, &why));
    assert_int_equal(seen, 0x1f);
    assert_string_equal(v.text, "a=b");
    assert_true(v.small == UINT32_MAX && v.large == INT64_MAX && v.bytes[0] == 0x0a && v.bytes[1] == 0xf9 && v.flag);
}

TEST(absent_keys_are_not_seen)
{
    struct values v;
    uint32_t seen;
    struct why why;
    assert_ok(parse("text=\nflag=0\n", 13, &v, &seen, &why));
    assert_int_equal(seen, 0x11);
    assert_true(v.small == 7 && !v.flag && !v.text[0]);
    assert_ok(parse("", 0, &v, &seen, &why));
    assert_int_equal(seen, 0);
}

TEST(wrong_texts_are_refused)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"text=abcd\n", "file:1: invalid value of text"},
        {"flag=1\nsmall=4294967296\n", "file:2: invalid value of small"},
        {"small=\n", "file:1: invalid value of small"},
        {"small=-1\n", "file:1: invalid value of small"},
        {"small= 1\n", "file:1: invalid value of small"},
        {"large=9223372036854775808\n", "file:1: invalid value of large"},
        {"large=10000000000000000000\n", "file:1: invalid value of large"},
        {"bytes=0a\n", "file:1: invalid value of bytes"},
        {"bytes=0AF9\n", "file:1: invalid value of bytes"},
        {"flag=2\n", "file:1: invalid value of flag"},
        {"flag=10\n", "file:1: invalid value of flag"},
        {"flag=1\nflag=1\n", "file:2: duplicate key flag"},
        {"new=1\n", "file:1: unknown key. This file is written by dtd and not edited by hand"},
        {"flag\n", "file:1: unknown key. This file is written by dtd and not edited by hand"},
        {"\n", "file:1: unknown key. This file is written by dtd and not edited by hand"},
        {"flag=1", "file: too long, or not lines of text"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct values v;
        uint32_t seen;
        struct why why = {""};
        assert_err(ERR_CORRUPT, parse(rows[i].text, strlen(rows[i].text), &v, &seen, &why));
        assert_string_equal(why.text, rows[i].message);
    }
}

TEST(the_length_is_bounded)
{
    char text[KEY_LINES_MAX + 1];
    struct values v;
    uint32_t seen;
    struct why why;
    memset(text, '\n', sizeof(text));
    assert_err(ERR_CORRUPT, parse(text, sizeof(text), &v, &seen, &why));
    assert_non_null(strstr(why.text, "too long"));
    assert_err(ERR_CORRUPT, parse("flag=1\0\n", 8, &v, &seen, &why));
    assert_non_null(strstr(why.text, "not lines of text"));
}
