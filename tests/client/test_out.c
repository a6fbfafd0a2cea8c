#include "client/out.h"
#include "tests/lib/test.h"

#include <math.h>
#include <pty.h>

TEST(bytes)
{
    char n[OUT_NUMBER];
    assert_string_equal(out_bytes(0, n), "0 B");
    assert_string_equal(out_bytes(1023, n), "1023 B");
    assert_string_equal(out_bytes(1024, n), "1.0 KiB");
    assert_string_equal(out_bytes(1536, n), "1.5 KiB");
    assert_string_equal(out_bytes(1048575, n), "1.0 MiB");
    assert_string_equal(out_bytes(INT64_MAX, n), "8.0 EiB");
}

TEST(counts)
{
    char n[OUT_NUMBER];
    assert_string_equal(out_count(3.14159, n), "3.1");
    assert_string_equal(out_count(999, n), "999");
    assert_string_equal(out_count(999.96, n), "1.0k");
    assert_string_equal(out_count(12345, n), "12.3k");
    assert_string_equal(out_count(124e6, n), "124.0M");
    assert_string_equal(out_count(NAN, n), "-");
}

TEST(durations)
{
    char n[OUT_NUMBER];
    assert_string_equal(out_duration(0, n), "0s");
    assert_string_equal(out_duration(59.4, n), "59s");
    assert_string_equal(out_duration(59.6, n), "1m 00s");
    assert_string_equal(out_duration(3599, n), "59m 59s");
    assert_string_equal(out_duration(3600, n), "1h 00m");
    assert_string_equal(out_duration(86400 * 3 + 7200, n), "3d 02h");
    assert_string_equal(out_duration(-1, n), "-");
    assert_string_equal(out_duration(NAN, n), "-");
    assert_string_equal(out_duration(INFINITY, n), "-");
}

static char *printed(const struct out_table *t)
{
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    out_table_print(t, f, 1);
    fclose(f);
    return text;
}

TEST(table_columns_fit_their_widest_cell)
{
    static const struct out_column columns[] = {{"JOB", true, 0}, {"NAME", false, 0}, {"X", false, 0}};
    struct out_table t;
    out_table_init(&t, columns, 3);
    for (int i = 0; i < 40; i++)
        out_table_row(&t);
    out_table_set(&t, 0, 0, "%d", 12345);
    out_table_set(&t, 0, 1, "a");
    out_table_set(&t, 1, 1, "%s", "sch\xc3\xb6n"); /* five columns, six bytes */
    char *text = printed(&t);
    assert_memory_equal(text, "  JOB  NAME   X\n12345  a      -\n    -  sch\xc3\xb6n  -\n    -  -      -\n", 60);
    free(text);
    out_table_fini(&t);
}

TEST(bar)
{
    char b[32];
    out_bar(0, 12, b, sizeof(b));
    assert_string_equal(b, "[----------]");
    out_bar(0.5, 12, b, sizeof(b));
    assert_string_equal(b, "[#####-----]");
    out_bar(7, 12, b, sizeof(b));
    assert_string_equal(b, "[##########]");
    out_bar(NAN, 12, b, sizeof(b));
    assert_string_equal(b, "[----------]");
    out_bar(1, 40, b, sizeof(b));
    assert_string_equal(b, "");
}

TEST(json_has_no_nan_and_loses_no_bit)
{
    json_t *v = out_json_real(NAN);
    assert_true(json_is_null(v));
    json_decref(v);
    for (double x = 0.1; x < 1e12; x *= 7.3) {
        v = out_json_real(x);
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        json_t *back = json_loads(text, JSON_DECODE_ANY, NULL);
        assert_true(json_real_value(back) == x);
        free(text);
        json_decref(back);
        json_decref(v);
    }
}

TEST(pipes_get_neither_colours_nor_redraws)
{
    FILE *f = tmpfile();
    struct out_progress p;
    char text[64] = "";
    out_progress_init(&p, f);
    assert_false(out_progress_due(&p, 1000000));
    out_progress_draw(&p, 1, "one");
    out_progress_clear(&p);
    out_progress_draw(&p, 2, "two");
    out_progress_end(&p);
    rewind(f);
    assert_int_equal(fread(text, 1, sizeof(text) - 1, f), 8);
    assert_string_equal(text, "one\ntwo\n");
    assert_string_equal(out_color(f, OUT_RED), "");
    fclose(f);
}

TEST(formats)
{
    enum out_format f = OUT_TEXT;
    assert_true(out_format_parse("jsonl", &f) && f == OUT_JSONL);
    assert_true(out_format_parse("json", &f) && f == OUT_JSON);
    assert_false(out_format_parse("yaml", &f));
    assert_int_equal(f, OUT_JSON);
}

/* Opens a terminal of 40 columns; terminal_read returns what was written to it. */
static FILE *terminal_open(int *ret_master)
{
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    int slave;
    if (openpty(ret_master, &slave, NULL, NULL, &size))
        TEST_SKIP("no pseudo terminals here");
    return fdopen(slave, "w");
}

static void terminal_read(int master, char *ret, size_t size)
{
    ssize_t n = read(master, ret, size - 1);
    assert_true(n >= 0);
    ret[n] = '\0';
}

TEST(terminals_get_one_line_that_fits)
{
    struct out_progress p;
    char text[512];
    int master;
    FILE *f = terminal_open(&master);
    out_progress_init(&p, f);
    assert_true(out_progress_due(&p, 1000));
    out_progress_draw(&p, 1000, "sch\xc3\xb6n, and much longer than the forty columns that there are");
    assert_false(out_progress_due(&p, 1199));
    assert_true(out_progress_due(&p, 1200)); /* five times a second */
    terminal_read(master, text, sizeof(text));
    assert_string_equal(text, "\rsch\xc3\xb6n, and much longer than the forty c\033[K"); /* 39 columns */
    out_progress_clear(&p);
    terminal_read(master, text, sizeof(text));
    assert_string_equal(text, "\r\033[K");
    fclose(f);
    close(master);
}

TEST(colours_are_for_terminals_that_want_them)
{
    int master;
    FILE *f = terminal_open(&master);
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    assert_string_equal(out_color(f, OUT_RED), "\033[31m");
    setenv("NO_COLOR", "1", 1);
    assert_string_equal(out_color(f, OUT_RED), "");
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_string_equal(out_color(f, OUT_RED), "");
    fclose(f);
    close(master);
}

/* A shell reads each quoted word back as it was. */
TEST(quoted_words_can_be_pasted)
{
    static const char *const words[] = {"plain",     "/a/b-1.txt", "with space", "it's", "",  "$HOME", "a;b|c", "\"x\"",
                                        "new\nline", "*.txt",      "-x",         "~",    "#", "'",     "''a'"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char line[200], read[100] = "";
        char *quoted = out_quoted(words[i]);
        assert_non_null(quoted);
        snprintf(line, sizeof(line), "printf '%%s' %s", quoted);
        FILE *f = popen(line, "r");
        assert_non_null(f);
        read[fread(read, 1, sizeof(read) - 1, f)] = '\0';
        pclose(f);
        assert_string_equal(read, words[i]);
        free(quoted);
    }
    char *bare = out_quoted("/a/b-1.txt");
    assert_string_equal(bare, "/a/b-1.txt");
    free(bare);
}
