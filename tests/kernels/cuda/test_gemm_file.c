/* Tests the algorithm file alone (kernels/cuda/gemm_file.h): damaged lines, files of another GPU, truncated files, a
 * full disk, and processes that write at the same time. */
#include "kernels/cuda/gemm_file.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define GPU "some GPU, 7 processors"
#define LIBRARY 130001

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static struct gemm_choice choice(int64_t m, uint64_t algo)
{
    struct gemm_choice c;
    memset(&c, 0, sizeof(c));
    c.key = (struct gemm_key){.m = m, .n = 7, .k = 9, .lda = 9, .ldb = 7, .ldc = 7, .epilogue = 1, .a_align = 256};
    c.algo[0] = algo;
    c.algo[7] = ~algo;
    c.us = 12.25;
    return c;
}

static struct gemm_file *file_open(const char *path)
{
    struct gemm_file *f;
    struct why why = {""};
    if (gemm_file_open(path, GPU, LIBRARY, &f, &why))
        fail_msg("%s", why.text);
    return f;
}

static void text_read(const char *path, char *ret, size_t size)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    ret[fread(ret, 1, size - 1, f)] = '\0';
    fclose(f);
}

static void text_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static uint64_t found(struct gemm_file *f, int64_t m)
{
    struct gemm_choice wanted = choice(m, 0), *c = gemm_file_find(f, &wanted.key);
    return c ? c->algo[0] : 0;
}

/* A file of choices for m = 1 to 3, whose algorithms are 11, 12 and 13. */
static const char *file_of_three(const char *name)
{
    const char *path = path_of(name);
    struct gemm_file *f = file_open(path);
    for (int m = 1; m <= 3; m++) {
        struct gemm_choice c = choice(m, 10 + (uint64_t)m);
        assert_true(gemm_file_add(f, &c));
    }
    gemm_file_close(f);
    return path;
}

/* Redirects the log to a file and returns its text afterwards. */
static int saved_stderr;
static char log_path[512];

static void log_begin(void)
{
    snprintf(log_path, sizeof(log_path), "%s/log", test_tmpdir());
    int fd = open(log_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    saved_stderr = dup(2);
    dup2(fd, 2);
    close(fd);
}

static const char *log_end(void)
{
    static char text[4096];
    dup2(saved_stderr, 2);
    close(saved_stderr);
    text_read(log_path, text, sizeof(text));
    return text;
}

TEST(a_choice_is_what_its_line_says)
{
    struct gemm_choice c = choice(1, 5), again;
    char line[GEMM_LINE_BYTES];
    memset(&c.key, 0x7f, sizeof(c.key)); /* the longest numbers */
    c.key.zero = 0;
    c.us = 999999999999.125;
    memset(c.algo, 0xff, sizeof(c.algo));
    assert_true(gemm_choice_print(&c, line) < GEMM_LINE_BYTES - 2);
    assert_true(gemm_choice_parse(line, &again));
    assert_memory_equal(&again, &c, sizeof(c));
    c.apart = true;
    memset(c.algo, 0, sizeof(c.algo));
    gemm_choice_print(&c, line);
    assert_true(gemm_choice_parse(line, &again));
    assert_memory_equal(&again, &c, sizeof(c));
}

/* Any byte of a line is changed, removed or duplicated. */
TEST(a_line_that_differs_in_a_byte_is_refused)
{
    struct gemm_choice c = choice(1234, 0xfeed), ret;
    char line[GEMM_LINE_BYTES], bad[GEMM_LINE_BYTES + 1];
    size_t n = gemm_choice_print(&c, line);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, line, n + 1);
            bad[i] = (char)(bad[i] ^ 1 << bit);
            if (bad[i])
                assert_false(gemm_choice_parse(bad, &ret));
        }
        snprintf(bad, sizeof(bad), "%.*s%s", (int)i, line, line + i + 1);
        assert_false(gemm_choice_parse(bad, &ret));
        snprintf(bad, sizeof(bad), "%.*s%s", (int)i + 1, line, line + i);
        assert_true(line[i] == '\0' || !gemm_choice_parse(bad, &ret));
    }
    assert_true(gemm_choice_parse(line, &ret));
}

TEST(choices_are_kept)
{
    const char *path = file_of_three("kept");
    struct gemm_file *f = file_open(path);
    assert_int_equal(found(f, 1), 11);
    assert_int_equal(found(f, 3), 13);
    assert_int_equal(found(f, 4), 0);
    gemm_file_close(f);
}

TEST(a_folder_has_a_file_for_each_gpu_and_library)
{
    struct gemm_file *f;
    struct why why = {""};
    const char *folder = test_tmpdir();
    assert_ok(gemm_file_open(folder, GPU, LIBRARY, &f, &why));
    assert_non_null(strstr(gemm_file_path(f), "/some-GPU--7-processors-cublaslt-130001.txt"));
    gemm_file_close(f);
    assert_ok(gemm_file_open(folder, GPU, LIBRARY + 1, &f, &why));
    assert_non_null(strstr(gemm_file_path(f), "/some-GPU--7-processors-cublaslt-130002.txt"));
    gemm_file_close(f);
}

TEST(a_damaged_line_is_named_and_left_out)
{
    const char *path = file_of_three("damaged");
    char text[4096];
    text_read(path, text, sizeof(text));
    char *second = strstr(text, "\n2 7 9 ");
    assert_non_null(second);
    second[1] = '4';
    text_write(path, text);
    log_begin();
    struct gemm_file *f = file_open(path);
    const char *log = log_end();
    assert_non_null(strstr(log, "damaged"));
    assert_non_null(strstr(log, "line=6")); /* m = 1 follows three lines of header and the names of the columns */
    assert_int_equal(found(f, 1), 11);
    assert_int_equal(found(f, 2), 0);
    assert_int_equal(found(f, 4), 0);
    struct gemm_choice c = choice(2, 22);
    assert_true(gemm_file_add(f, &c));
    assert_int_equal(found(f, 2), 22);
    gemm_file_close(f);
    f = file_open(path);
    assert_int_equal(found(f, 2), 22);
    gemm_file_close(f);
}

/* For every length of the file: whole lines are used, the partial line is never used, and an added line starts on a
 * line of its own. */
TEST(a_file_that_was_cut_off_goes_on)
{
    const char *path = file_of_three("cut");
    char text[4096];
    text_read(path, text, sizeof(text));
    const char *last = strstr(text, "\n3 7 9 ") + 1;
    for (const char *end = last; *end; end++) {
        assert_int_equal(truncate(path, end - text), 0);
        log_begin();
        struct gemm_file *f = file_open(path);
        const char *log = log_end();
        assert_true(end == last || end[1] == '\0' || strstr(log, "line=7"));
        assert_int_equal(found(f, 2), 12);
        struct gemm_choice c = choice(4, 14), d = choice(5, 15);
        log_begin();
        assert_true(gemm_file_add(f, &c) && gemm_file_add(f, &d));
        assert_string_equal(log_end(), ""); /* the damaged line was already logged */
        assert_int_equal(found(f, 5), 15);
        gemm_file_close(f);
        f = file_open(path);
        assert_int_equal(found(f, 4), 14);
        assert_int_equal(found(f, 5), 15);
        gemm_file_close(f);
        text_write(path, text);
    }
}

/* Expects that the file is refused and not changed. */
static void refused(const char *text, const char *gpu, uint64_t library, err_t expected)
{
    const char *path = path_of("refused");
    char after[4096];
    struct gemm_file *f;
    struct why why = {""};
    text_write(path, text);
    assert_err(expected, gemm_file_open(path, gpu, library, &f, &why));
    assert_non_null(strstr(why.text, path));
    text_read(path, after, sizeof(after));
    assert_string_equal(after, text);
}

TEST(another_files_header_is_refused)
{
    char text[4096];
    text_read(file_of_three("ours"), text, sizeof(text));
    refused(text, "some GPU, 8 processors", LIBRARY, ERR_STALE);
    refused(text, GPU, LIBRARY + 1, ERR_STALE);
    refused("some other text\n", GPU, LIBRARY, ERR_STALE);
    refused("\n", GPU, LIBRARY, ERR_STALE);
    text[20] = '\0';
    refused(text, GPU, LIBRARY, ERR_STALE);
}

TEST(a_path_that_is_not_a_file_is_refused)
{
    struct gemm_file *f;
    struct why why = {""};
    assert_err(ERR_NOTFOUND, gemm_file_open(path_of("missing/file"), GPU, LIBRARY, &f, &why));
    assert_err(ERR_INVALID, gemm_file_open("/dev/null", GPU, LIBRARY, &f, &why));
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    assert_err(ERR_INVALID, gemm_file_open(path_of("pipe"), GPU, LIBRARY, &f, &why));
}

TEST(two_openers_of_a_file_agree)
{
    const char *path = path_of("two");
    struct gemm_file *a = file_open(path), *b = file_open(path);
    struct gemm_choice first = choice(1, 11), second = choice(1, 12), other = choice(2, 20);
    assert_true(gemm_file_add(a, &first));
    assert_true(gemm_file_add(b, &second)); /* too late: the file has a choice */
    assert_int_equal(found(a, 1), 11);
    assert_int_equal(found(b, 1), 11);
    assert_true(gemm_file_add(b, &other));
    assert_int_equal(found(a, 2), 0);
    gemm_file_refresh(a);
    assert_int_equal(found(a, 2), 20);
    gemm_file_close(a);
    gemm_file_close(b);
}

/* A line that cuBLASLt cannot compute is skipped, and the next one for its key is used, in this process and after a
 * restart. */
TEST(a_refused_line_makes_room_for_another)
{
    const char *path = file_of_three("unusable");
    for (int start = 0; start < 2; start++) {
        struct gemm_file *f = file_open(path);
        struct gemm_choice wanted = choice(2, 0), more = choice(2, 99), *c = gemm_file_find(f, &wanted.key);
        log_begin();
        gemm_file_refuse(f, c, "not supported here");
        assert_non_null(strstr(log_end(), "line=6 why=\"not supported here\""));
        assert_int_equal(found(f, 2), start ? 99 : 0);
        assert_true(gemm_file_add(f, &more));
        assert_int_equal(found(f, 2), 99);
        gemm_file_close(f);
    }
}

/* The file reaches its size limit within a line: the partial line is removed, and nothing more is added. */
TEST(a_line_that_does_not_fit_on_the_disk_leaves_nothing)
{
    const char *path = file_of_three("full");
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    struct gemm_file *f = file_open(path);
    const struct rlimit limit = {(rlim_t)before.st_size + 10, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct gemm_choice c = choice(4, 14);
    bool added = gemm_file_add(f, &c);
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_false(added);
    assert_false(gemm_file_takes(f));
    assert_false(gemm_file_add(f, &c));
    assert_int_equal(found(f, 4), 0);
    assert_int_equal(found(f, 3), 13);
    gemm_file_close(f);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_size, after.st_size);
}

/* ---- several processes ---- */

enum { PROCESSES = 6, KEYS = 60 };

/* All processes start when `start` is closed and add the same keys in the same order with different algorithms; each
 * writes the choices that it finds to `to`. */
static void race(const char *path, int process, int start, int to)
{
    uint64_t got[KEYS];
    char c;
    if (read(start, &c, 1) != 0)
        _exit(1);
    struct gemm_file *f = file_open(path);
    for (int i = 0; i < KEYS; i++) {
        struct gemm_choice mine = choice(i, 1000 * (uint64_t)(process + 1) + (uint64_t)i);
        if (!gemm_file_add(f, &mine))
            _exit(1);
        got[i] = found(f, i);
    }
    _exit(write(to, got, sizeof(got)) != sizeof(got));
}

TEST(processes_that_write_at_once_have_the_same_choices)
{
    const char *path = path_of("race");
    uint64_t got[PROCESSES][KEYS];
    int pipes[2], start[2], lines = 0;
    static char text[1 << 16];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(pipe(start), 0);
    for (int i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            close(start[1]);
            race(path, i, start[0], pipes[1]);
        }
    close(start[1]);
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(read(pipes[0], got[i], sizeof(got[i])), sizeof(got[i]));
    }
    for (int i = 1; i < PROCESSES; i++)
        assert_memory_equal(got[0], got[i], sizeof(got[0]));
    text_read(path, text, sizeof(text));
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, 4 + KEYS);
}
