/* The table of commands, and the completions that repeat it. */
#include "client/commands.h"
#include "common/base/file.h"
#include "tests/lib/test.h"

#include <ctype.h>

static char *source_read(const char *name)
{
    char path[PATH_MAX];
    struct buf text = {0};
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set: run me by ctest");
    snprintf(path, sizeof(path), "%s/%s", source, name);
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    return (char *)text.data;
}

/* Whether `word` occurs as a word of its own. */
static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p++)
        if ((p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '-')) && !isalnum((unsigned char)p[n]) &&
            p[n] != '-')
            return true;
    return false;
}

static void all_named(const char *file, const char *before, const char *after)
{
    char *text = source_read(file), wanted[128];
    for (int i = 0; i < n_commands; i++) {
        snprintf(wanted, sizeof(wanted), "%s%s%s", before, commands[i].name, after);
        if (!strstr(text, wanted) && !(before[0] == '\0' && has_word(text, commands[i].name))) {
            print_error("%s does not name the command %s (looked for \"%s\")\n", file, commands[i].name, wanted);
            fail();
        }
    }
    free(text);
}

TEST(bash_completes_every_command)
{
    char *text = source_read("deploy/completions/dtctl.bash"), *line = strstr(text, "local commands=\"");
    assert_non_null(line);
    *strchr(line, '\n') = '\0';
    for (int i = 0; i < n_commands; i++)
        if (!has_word(line, commands[i].name)) {
            print_error("deploy/completions/dtctl.bash does not know %s\n", commands[i].name);
            fail();
        }
    free(text);
}

TEST(zsh_completes_every_command)
{
    all_named("deploy/completions/_dtctl", "    '", ":");
}

TEST(names_are_distinct_and_summaries_are_there)
{
    for (int i = 0; i < n_commands; i++) {
        assert_true(commands[i].summary[0] && commands[i].run);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(commands[i].name, commands[j].name);
    }
}

TEST(nearest)
{
    assert_string_equal(command_nearest(commands, n_commands, "stauts"), "status");
    assert_string_equal(command_nearest(commands, n_commands, "submti"), "submit");
    assert_string_equal(command_nearest(commands, n_commands, "log"), "logs");
    assert_null(command_nearest(commands, n_commands, "frobnicate"));
    assert_null(command_nearest(commands, n_commands, "this-is-much-longer-than-any-command-there-is"));
}

TEST(numbers)
{
    int64_t v = -1;
    assert_true(arg_number("0", 10, &v) && v == 0);
    assert_true(arg_number("10", 10, &v) && v == 10);
    assert_true(arg_number("9223372036854775807", INT64_MAX, &v) && v == INT64_MAX);
    assert_false(arg_number("11", 10, &v));
    assert_false(arg_number("9223372036854775808", INT64_MAX, &v));
    assert_false(arg_number("", 10, &v));
    assert_false(arg_number("-1", 10, &v));
    assert_false(arg_number("1x", 10, &v));
    assert_false(arg_number(" 1", 10, &v));
}

TEST(exit_codes)
{
    const struct {
        err_t err;
        int fail, refuse;
    } table[] = {{ERR_INVALID, 2, 2}, {ERR_NOTFOUND, 3, 2}, {ERR_CLOSED, 75, 2}, {ERR_TIMEOUT, 75, 2},
                 {ERR_IO, 1, 2},      {ERR_NOMEM, 1, 1},    {ERR_CORRUPT, 1, 2}, {ERR_EXISTS, 2, 2}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(command_fail(table[i].err, NULL), table[i].fail);
        assert_int_equal(command_refuse(table[i].err, NULL), table[i].refuse);
    }
}
