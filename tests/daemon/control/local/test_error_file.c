#include "daemon/control/local/error_file.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static err_t parse(const char *json, struct error_file *ret)
{
    return error_file_parse(json, strlen(json), ret);
}

TEST(message_traceback_and_time)
{
    struct error_file e;
    assert_ok(parse("{\"message\": {\"message\": \"ValueError: x\", \"extraInfo\": {\"py_callstack\": "
                    "\"Traceback:\\n  File \\\"a.py\\\"\\nValueError: x\\n\", \"timestamp\": \"1700000000\"}}}",
                    &e));
    assert_string_equal(e.text, "ValueError: x\nTraceback:\n  File \"a.py\"\nValueError: x");
    assert_int_equal(e.when_s, 1700000000);
    assert_ok(parse("{\"message\": \"short\", \"timestamp\": 17}", &e));
    assert_string_equal(e.text, "short");
    assert_int_equal(e.when_s, 17);
    assert_ok(parse("{\"message\": {\"message\": \"bare\"}}", &e));
    assert_string_equal(e.text, "bare");
    assert_int_equal(e.when_s, 0);
}

TEST(a_long_traceback_keeps_its_last_lines)
{
    struct error_file e;
    char json[8192] = "{\"message\": {\"message\": \"E\", \"extraInfo\": {\"py_callstack\": \"";
    for (int i = 0; i < 400; i++)
        snprintf(json + strlen(json), sizeof(json) - strlen(json), "line %03d\\n", i);
    strcat(json, "\", \"timestamp\": \"1\"}}}");
    assert_ok(parse(json, &e));
    assert_true(strlen(e.text) <= ERROR_FILE_TEXT && strlen(e.text) > ERROR_FILE_TEXT - 16);
    assert_memory_equal(e.text, "E\nline ", 7);
    assert_string_equal(e.text + strlen(e.text) - 9, "\nline 399");
}

TEST(a_long_message_is_cut_between_characters)
{
    struct error_file e;
    char json[4096] = "{\"message\": \"x";
    for (int i = 0; i < 600; i++)
        strcat(json, "\xc3\xbc");
    strcat(json, "\"}");
    assert_ok(parse(json, &e));
    assert_int_equal(strlen(e.text), 511); /* 512 would end within a character */
}

TEST(control_characters_do_not_reach_a_terminal)
{
    struct error_file e;
    assert_ok(parse("{\"message\": \"a\\u001b[2Jb\\tc\\u007f\"}", &e));
    assert_string_equal(e.text, "a?[2Jb\tc?");
}

TEST(other_content_is_refused)
{
    static const char *const texts[] = {
        "{", "[]", "{}", "{\"message\": 3}", "{\"message\": {\"extraInfo\": {}}}", "{\"message\": \"a\\u0000b\"}"};
    struct error_file e;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(parse(texts[i], &e), ERR_CORRUPT);
}

TEST(its_age_is_never_negative)
{
    const int64_t now_s = (int64_t)time(NULL);
    struct error_file e = {.when_s = now_s - 100};
    assert_in_range(error_file_age_ms(&e), 100000, 160000);
    e.when_s = now_s + 1000;
    assert_int_equal(0, error_file_age_ms(&e));
    e.when_s = 0;
    assert_int_equal(-1, error_file_age_ms(&e));
    e.when_s = INT64_MAX; /* the user's file may have any number */
    assert_int_equal(-1, error_file_age_ms(&e));
}
