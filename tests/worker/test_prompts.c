/* Files of prompts, and the messages for wrong ones. */
#include "tests/lib/test.h"

#include "worker/prompts.h"

static err_t read_text(const char *text, struct prompts *ret, struct why *why)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/prompts", test_tmpdir());
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return prompts_read(path, ret, why);
}

static void check(const char *text, const char *const *want)
{
    struct prompts p;
    struct why why = {""};
    int n = 0;
    assert_ok(read_text(text, &p, &why));
    for (; want[n]; n++)
        assert_string_equal(n < p.n ? p.text[n] : "(none)", want[n]);
    assert_int_equal(p.n, n);
    prompts_fini(&p);
}

#define P(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(a_line_is_a_prompt)
{
    check("one\n\n two words \nlast without end", P("one", " two words ", "last without end"));
    check("a [\"list\"]\n\"quoted\" text\n", P("a [\"list\"]", "\"quoted\" text"));
}

TEST(lines_of_json_have_prompts)
{
    check("{\"prompt\": \"a\\nb\", \"id\": 7}\n\"c \\u00e9\"\n{\"prompt\": \"\"}\n", P("a\nb", "c \xc3\xa9", ""));
}

TEST(wrong_files_are_refused)
{
    static const char *const rows[][2] = {{"", "has no prompt"},
                                          {"\n\n", "has no prompt"},
                                          {"\"a\"\nb\n", "line 2: "},
                                          {"{\"text\": \"a\"}", "line 1: there is no prompt"},
                                          {"\"a\"\n\"b\\u0000c\"", "line 2: "},
                                          {"{\"prompt\": 3}", "there is no prompt"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct prompts p;
        struct why why = {""};
        assert_int_equal(read_text(rows[i][0], &p, &why), ERR_INVALID);
        if (!strstr(why.text, rows[i][1]))
            fail_msg("file %zu: %s", i, why.text);
    }
}
