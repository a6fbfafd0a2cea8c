#include "common/base/log_cut.h"

#include "common/base/file.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ll << 20)

static bool has_holes = true; /* false: as on a file system that cannot free blocks within a file */

int __real_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);

int __wrap_fallocate(int fd, int mode, off_t offset, off_t len)
{
    errno = EOPNOTSUPP;
    return has_holes ? __real_fallocate(fd, mode, offset, len) : -1;
}

static char path[300];
static int writer; /* as a worker has it: for appending */
static long next_line;

static int64_t size_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_size;
}

/* Lines "line 1", "line 2", .. of 32 bytes. */
static void write_lines(int64_t bytes)
{
    char text[64];
    for (int64_t n = 0; n < bytes; n += 32) {
        snprintf(text, sizeof(text), "line %-26ld\n", ++next_line);
        assert_ok(file_write_all(writer, text, 32));
    }
}

static int open_log(int64_t bytes)
{
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    writer = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(writer >= 0 && fd >= 0);
    next_line = 0;
    write_lines(bytes);
    return fd;
}

/* Every line is whole; the numbers grow by one, but for one gap at the note, which names its bytes. */
static void check_lines(int fd)
{
    int64_t size = size_of(fd), bytes = 0, at = 0;
    long expected = 1, notes = 0;
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_ok(file_pread_all(fd, text, (size_t)size, 0));
    while (at < size) {
        int64_t left = size - at < LOG_CUT_NOTE_BYTES ? size - at : LOG_CUT_NOTE_BYTES;
        if (log_cut_note(text + at, (size_t)left, &bytes) == text + at) {
            for (int64_t k = at + LOG_CUT_NOTE_BYTES; k < at + bytes; k++)
                assert_int_equal(text[k], 0);
            assert_int_equal(bytes % 32, 0);
            expected += bytes / 32;
            at += bytes;
            notes++;
            continue;
        }
        assert_int_equal(strncmp(text + at, "line ", 5), 0);
        assert_int_equal(atol(text + at + 5), expected);
        assert_int_equal(text[at + 31], '\n');
        expected++;
        at += 32;
    }
    assert_int_equal(notes, 1);
    assert_int_equal(expected, next_line + 1);
    free(text);
}

TEST(keeps_the_beginning_and_the_end)
{
    struct stat st;
    struct log_cut cut;
    int fd = open_log(40 * MIB);
    for (int round = 0; round < 4; round++) {
        assert_true(log_cut_find(fd, size_of(fd), 8 * MIB, &cut));
        assert_int_equal(log_cut(fd, &cut), 0);
        check_lines(fd);
        assert_int_equal(fstat(fd, &st), 0);
        if ((int64_t)st.st_blocks * 512 > 9 * MIB)
            TEST_SKIP("this file system does not free blocks within a file");
        write_lines(5 * MIB); /* the writer continues at the end */
        check_lines(fd);
    }
    close(fd);
    close(writer);
}

TEST(small_logs_are_left_as_they_are)
{
    struct log_cut cut;
    int fd = open_log(9 * MIB);
    assert_false(log_cut_find(fd, size_of(fd), 9 * MIB, &cut));
    assert_false(log_cut_find(fd, size_of(fd), 8 * MIB + MIB / 2, &cut));
    assert_true(log_cut_find(fd, size_of(fd), 4 * MIB, &cut));
    assert_int_equal(log_cut(fd, &cut), 0);
    assert_false(log_cut_find(fd, size_of(fd), 4 * MIB, &cut)); /* not again before it has grown */
    close(fd);
    close(writer);
}

/* The user's process may truncate the file between the search and the cut. */
TEST(a_file_that_has_changed_is_not_cut)
{
    struct log_cut cut;
    int fd = open_log(20 * MIB);
    assert_true(log_cut_find(fd, size_of(fd), 4 * MIB, &cut));
    assert_int_equal(ftruncate(fd, MIB), 0);
    assert_int_equal(log_cut(fd, &cut), EINVAL);
    assert_int_equal(size_of(fd), MIB);
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    assert_int_equal(log_cut(pair[1], &cut), EINVAL);
    close(fd);
    close(writer);
}

TEST(notes_in_text)
{
    int64_t bytes = 0;
    char text[400];
    memset(text, 'x', sizeof(text));
    assert_null(log_cut_note(text, sizeof(text), &bytes));
    int n = snprintf(text + 100, 200,
                     "--- dtd left out 4096 bytes here: the log reached its limit (run.log_bytes), or "
                     "the disk was full ---");
    memset(text + 100 + n, ' ', (size_t)(LOG_CUT_NOTE_BYTES - n));
    assert_null(log_cut_note(text, sizeof(text), &bytes)); /* without its newline */
    text[100 + LOG_CUT_NOTE_BYTES - 1] = '\n';
    assert_ptr_equal(log_cut_note(text, sizeof(text), &bytes), text + 100);
    assert_int_equal(bytes, 4096);
    assert_null(log_cut_note(text, 100 + LOG_CUT_NOTE_BYTES - 1, &bytes)); /* not complete */
}

TEST(is_truncated_where_blocks_cannot_be_freed)
{
    struct log_cut cut;
    char text[64];
    int64_t bytes;
    char note[LOG_CUT_NOTE_BYTES];
    int fd = open_log(20 * MIB);
    has_holes = false;
    assert_true(log_cut_find(fd, size_of(fd), 8 * MIB, &cut));
    assert_int_equal(log_cut(fd, &cut), 0);
    assert_int_equal(size_of(fd), cut.from + LOG_CUT_NOTE_BYTES);
    assert_ok(file_pread_all(fd, note, sizeof(note), cut.from));
    assert_ptr_equal(log_cut_note(note, sizeof(note), &bytes), note);
    assert_int_equal(bytes, 20 * MIB - cut.from);
    write_lines(32); /* the writer continues behind the note */
    assert_ok(file_pread_all(fd, text, 32, cut.from + LOG_CUT_NOTE_BYTES));
    assert_int_equal(atol(text + 5), next_line);
    close(fd);
    close(writer);
}
