/* Lines of workers: ends of lines, progress bars, chunks that were printed before. */
#include "client/worker_lines.h"
#include "tests/lib/test.h"

#include <stdlib.h>

static char *printed;
static size_t printed_len;

static void begin(struct worker_lines *l, bool prefix)
{
    FILE *out = open_memstream(&printed, &printed_len);
    assert_non_null(out);
    worker_lines_init(l, out, OUT_TEXT, prefix);
}

static void chunk(struct worker_lines *l, int rank, int64_t at, const char *text)
{
    const struct client_log c = {.rank = rank, .text = text, .len = strlen(text), .node = "n", .slot = rank, .at = at};
    assert_true(worker_lines_print(l, &c));
}

static void expect(struct worker_lines *l, const char *want)
{
    fclose(l->out);
    assert_string_equal(printed, want);
    free(printed);
    worker_lines_fini(l);
}

TEST(ends_of_lines)
{
    struct worker_lines l;
    begin(&l, true);
    chunk(&l, 0, 0, "one\ntwo\r\n\nthree\r"); /* \r\n is split between two chunks */
    chunk(&l, 0, 17, "\nfour");
    expect(&l, "[rank 0] one\n[rank 0] two\n[rank 0] \n[rank 0] three\r\n[rank 0] four\n");
}

/* The bytes of tqdm: \r precedes each update, and the last one ends with a new line. */
TEST(a_bar_in_a_pipe)
{
    struct worker_lines l;
    begin(&l, false);
    chunk(&l, 0, 0, "\r");
    chunk(&l, 0, 1, " 0%\r 50%\r");
    chunk(&l, 0, 10, "100%\n");
    expect(&l, " 0%\r 50%\r100%\n");
}

TEST(a_bar_on_a_terminal_is_kept)
{
    struct worker_lines l;
    begin(&l, true);
    l.keep_bar = true;
    chunk(&l, 1, 0, " 0%\r 50%\r");
    assert_string_equal(l.bar, "[rank 1]  50%");
    chunk(&l, 0, 0, "other\n");
    assert_string_equal(l.bar, "[rank 1]  50%");
    chunk(&l, 1, 9, "100%\n");
    assert_string_equal(l.bar, "");
    expect(&l, "[rank 0] other\n[rank 1] 100%\n");
}

TEST(what_was_printed_is_skipped_after_a_reconnection)
{
    struct worker_lines l;
    begin(&l, false);
    chunk(&l, 0, 0, "one\ntwo\n");
    worker_lines_again(&l);
    chunk(&l, 0, 0, "one\n");
    chunk(&l, 0, 4, "two\nthree\n");
    worker_lines_again(&l);
    chunk(&l, 0, -1, "(a line of control)\n");
    const struct client_log moved = {.text = "four\n", .len = 5, .node = "other"};
    assert_true(worker_lines_print(&l, &moved)); /* another file from its start */
    expect(&l, "one\ntwo\nthree\n(a line of control)\nfour\n");
}
