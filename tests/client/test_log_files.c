/* The files of --log-dir: attempts are separated by the marks of a slot's log. */
#include "client/log_files.h"
#include "common/base/log_mark.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#define MARK(n) "\n--- started again at 2026-01-31T12:04:31Z, attempt " #n " ---\n"

static void expect_file(const char *dir, const char *name, const char *want)
{
    char path[PATH_MAX], text[1000];
    assert_in_range(snprintf(path, sizeof(path), "%s/%s", dir, name), 1, sizeof(path) - 1);
    int fd = open(path, O_RDONLY);
    if (fd < 0 && !want)
        return;
    if (fd < 0)
        fail_msg("%s is missing", name);
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
    if (!want)
        fail_msg("%s exists: %s", name, text);
    assert_string_equal(text, want);
}

static void give(struct log_files *l, int rank, bool moved, bool begins, const char *text)
{
    assert_ok(log_files_write(l, rank, moved, begins, text, strlen(text)));
}

TEST(attempts_are_separated)
{
    struct log_files l;
    struct why why;
    char dir[1024];
    snprintf(dir, sizeof(dir), "%s/a/logs", test_tmpdir());
    for (int run = 0; run < 2; run++) { /* the second run replaces the files */
        assert_ok(log_files_init(&l, dir, &why));
        give(&l, 0, true, true, "one\n 10%\r");
        give(&l, 0, false, false, " 20%\r\ntwo" MARK(1) "three\n");
        give(&l, 1, true, true, "other\n");
        give(&l, 0, false, false, MARK(2));
        give(&l, 0, false, false, "\n--- started again at noon, attempt 3 ---\nfour\n");
        log_files_fini(&l);
    }
    expect_file(dir, "attempt-0/rank-0.log", "one\n 10%\r 20%\r\ntwo");
    expect_file(dir, "attempt-1/rank-0.log", "three\n");
    expect_file(dir, "attempt-2/rank-0.log", "\n--- started again at noon, attempt 3 ---\nfour\n");
    expect_file(dir, "attempt-0/rank-1.log", "other\n");
    expect_file(dir, "attempt-3/rank-0.log", NULL);
}

/* Another rank had the slot in attempts 0 and 1. */
TEST(a_rank_that_moves_has_no_lines_of_others)
{
    struct log_files l;
    struct why why;
    char dir[1024];
    snprintf(dir, sizeof(dir), "%s/b", test_tmpdir());
    assert_ok(log_files_init(&l, dir, &why));
    give(&l, 1, true, true, "mine 0\n");
    give(&l, 1, true, true, "its 0\n" MARK(1) "mine 1\n");
    give(&l, 1, true, false, "its 0\n" MARK(1) "its 1\n" MARK(2) "mine 2\n");
    give(&l, 1, false, false, "more 2\n");
    log_files_fini(&l);
    expect_file(dir, "attempt-0/rank-1.log", "mine 0\n");
    expect_file(dir, "attempt-1/rank-1.log", "mine 1\n");
    expect_file(dir, "attempt-2/rank-1.log", "mine 2\nmore 2\n");
}

/* What the supervisor writes is read back: no mark before the first process, unless attempts are missing in the log. */
TEST(marks_are_read_back)
{
    char path[1024], text[400] = "";
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    log_mark_write(fd, -1);
    log_mark_write(fd, 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    log_mark_write(fd, 12);
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    assert_true(n > 1 && text[0] == '\n');
    assert_int_equal(log_mark_attempt(text + 1, (size_t)n - 2), 12);
    log_mark_write(fd, -1);
    ssize_t all = pread(fd, text, sizeof(text) - 1, 0);
    assert_true(all > n);
    assert_memory_equal(text + n, LOG_MARK, strlen(LOG_MARK));
    assert_int_equal(log_mark_attempt(text + n + 1, (size_t)(all - n) - 2), -1);
    close(fd);
}

TEST(a_folder_that_cannot_be_created)
{
    struct log_files l;
    struct why why = {0};
    assert_int_equal(log_files_init(&l, "/dev/null/logs", &why), ERR_INVALID);
    assert_string_equal(why.text, "--log-dir /dev/null/logs: Not a directory");
}
