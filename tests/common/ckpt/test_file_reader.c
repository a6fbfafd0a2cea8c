/* Files of random bytes, read in all ways that the kernel and the file system leave, equal the bytes in memory. */
#include "common/ckpt/file_reader.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#define MIB ((uint64_t)1 << 20)
#define MAX_BYTES (40 * MIB)
#define MAX_TEST_FILES 40

/* ---- a kernel without io_uring, and file systems without O_DIRECT ---- */

static enum { OPEN_TAKES, OPEN_REFUSES, READ_REFUSES } direct;
static bool ring = true;
static int direct_reads;

int __real_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags);
int __real_io_uring_submit(struct io_uring *r);
int __wrap_io_uring_submit(struct io_uring *r);
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags)
{
    return ring ? __real_io_uring_queue_init(entries, r, flags) : -EPERM;
}

/* An offset that is not aligned makes the file system refuse the read with EINVAL. */
int __wrap_io_uring_submit(struct io_uring *r)
{
    for (unsigned i = r->sq.sqe_head; i != r->sq.sqe_tail; i++) {
        direct_reads++;
        if (direct == READ_REFUSES)
            r->sq.sqes[i & *r->sq.kring_mask].off += 1;
    }
    return __real_io_uring_submit(r);
}

int __wrap_fcntl(int fd, int command, ...)
{
    va_list ap;
    va_start(ap, command);
    int flags = va_arg(ap, int);
    va_end(ap);
    if (command == F_SETFL && direct == OPEN_REFUSES && flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return __real_fcntl(fd, command, flags);
}

/* ---- files ---- */

static uint8_t *content;
static const char *dir;
static const struct manifest_file some_sums; /* the reader only checks that there are sums */
static struct ckpt_file files[MAX_TEST_FILES];
static char names[MAX_TEST_FILES][16];
static int n_files;

static uint32_t number(uint64_t seed, uint64_t n)
{
    uint32_t r[4];
    rng_at(seed, 0, n, r);
    return r[0];
}

static void path_of_file(int i, char path[300])
{
    snprintf(path, 300, "%s/%s", dir, names[i]);
}

/* File i has the bytes of `content` from i on. Nothing of it is in the page cache. */
static void file_add(uint64_t size, bool sums)
{
    char path[300];
    int i = n_files++;
    snprintf(names[i], sizeof(names[i]), "file-%d", i);
    files[i] = (struct ckpt_file){names[i], size, sums ? &some_sums : NULL};
    path_of_file(i, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(file_write_all(fd, content + i, (size_t)size));
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static void cache_file(int i)
{
    char path[300];
    struct buf b = {0};
    path_of_file(i, path);
    assert_ok(file_read(path, MAX_BYTES, &b));
    buf_fini(&b);
}

static void setup_in(const char *where)
{
    dir = where;
    content = malloc(MAX_BYTES + MAX_TEST_FILES);
    assert_non_null(content);
    for (uint64_t i = 0; i < MAX_BYTES / 4; i++)
        memcpy(content + 4 * i, &(uint32_t){number(7, i)}, 4);
}

static void setup(void)
{
    setup_in(test_tmpdir());
}

static bool has_page_cache_of_its_own(void)
{
    struct statfs st;
    return statfs(dir, &st) == 0 && st.f_type != TMPFS_MAGIC && st.f_type != OVERLAYFS_SUPER_MAGIC;
}

static int open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- reading ---- */

static void check_window(const struct file_window *w, int i, uint64_t from)
{
    uint64_t grain = file_reader_grain(&files[i]);
    assert_true(w->at <= from && from - w->at < w->len && w->at + w->len <= files[i].size);
    assert_true(w->at % grain == 0 && ((w->at + w->len) % grain == 0 || w->at + w->len == files[i].size));
    assert_memory_equal(w->data, content + i + w->at, w->len);
}

static void read_range(struct file_reader *r, int i, uint64_t from, uint64_t to)
{
    struct file_window w;
    assert_ok(file_reader_open(r, &files[i], NULL));
    for (uint64_t at = from; at < to; at = w.at + w.len) {
        assert_ok(file_reader_get(r, &files[i], at, to, &w, NULL));
        check_window(&w, i, at);
    }
}

/* Reads all files, one after another; returns the number of bytes that the reader has read. */
static int64_t read_all(struct read_claims *claims)
{
    struct file_range ranges[MAX_TEST_FILES];
    struct file_reader *r;
    assert_ok(file_reader_new(dir, claims, &r));
    for (int i = 0; i < n_files; i++)
        ranges[i] = (struct file_range){&files[i], 0, files[i].size};
    file_reader_expect(r, ranges, (size_t)n_files);
    for (int i = 0; i < n_files; i++)
        read_range(r, i, 0, files[i].size);
    int64_t bytes = file_reader_bytes(r);
    file_reader_free(r);
    return bytes;
}

static int64_t add_files(void)
{
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 65535, MIB, MIB + 1, 5 * MIB + 13, 33 * MIB + 4097};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int sums = 0; sums < 2; sums++) {
            file_add(sizes[i], sums);
            bytes += (int64_t)sizes[i];
        }
    return bytes;
}

TEST(all_bytes_of_files_on_the_disk)
{
    setup();
    int64_t bytes = add_files();
    int before = open_descriptors();
    assert_int_equal(read_all(NULL), bytes);
    assert_int_equal(open_descriptors(), before);
    if (!has_page_cache_of_its_own())
        TEST_SKIP("whether files are in the page cache is not known here");
    if (!direct_reads)
        TEST_SKIP("this kernel has no io_uring for us");
    assert_int_equal(direct_reads, 2 * (1 + 1 + 5 + 33)); /* the ends of these files are less than 64 KiB */
    free(content);
}

TEST(files_in_the_page_cache_are_not_read_from_the_disk)
{
    setup();
    int64_t bytes = add_files();
    for (int i = 0; i < n_files; i++)
        cache_file(i);
    assert_int_equal(read_all(NULL), bytes);
    assert_int_equal(direct_reads, 0);
    free(content);
}

TEST(without_io_uring)
{
    setup();
    ring = false;
    int64_t bytes = add_files();
    assert_int_equal(read_all(NULL), bytes);
    assert_int_equal(direct_reads, 0);
    free(content);
}

/* Reads everything with log lines of level debug in `ret`. */
static void read_logged(char *ret, size_t size)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    int saved = dup(2), fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    setenv("DTD_LOG", "debug", 1);
    log_init("test");
    assert_true(saved >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    int64_t bytes = add_files();
    int64_t got = read_all(NULL);
    dup2(saved, 2);
    assert_int_equal(got, bytes);
    ssize_t n = pread(fd, ret, size - 1, 0);
    ret[n < 0 ? 0 : n] = '\0';
    close(saved);
    close(fd);
}

static void check_log(const char *log, const char *why)
{
    char expected[400];
    snprintf(expected, sizeof(expected), "reads through the page cache path=%s/%s why=\"%s\"", dir, names[n_files - 1],
             why);
    if (!strstr(log, expected) || !strstr(log, " debug "))
        fail_msg("there is no line %s in:\n%s", expected, log);
}

static char log_text[65536];

TEST(where_a_file_cannot_be_opened_for_direct_reads)
{
    setup();
    direct = OPEN_REFUSES;
    read_logged(log_text, sizeof(log_text));
    assert_int_equal(direct_reads, 0);
    if (has_page_cache_of_its_own())
        check_log(log_text, "Invalid argument");
    free(content);
}

TEST(where_a_direct_read_is_refused)
{
    setup();
    direct = READ_REFUSES;
    read_logged(log_text, sizeof(log_text));
    if (has_page_cache_of_its_own() && direct_reads)
        check_log(log_text, "the file system refuses a direct read");
    free(content);
}

TEST(on_a_tmpfs)
{
    char folder[] = "/dev/shm/dtd-test-XXXXXX";
    struct statfs st;
    if (statfs("/dev/shm", &st) || st.f_type != TMPFS_MAGIC || !mkdtemp(folder))
        TEST_SKIP("/dev/shm is no tmpfs");
    setup_in(folder);
    int64_t bytes = add_files();
    int64_t got = read_all(NULL);
    assert_ok(file_remove_tree(folder));
    assert_int_equal(got, bytes);
    assert_int_equal(direct_reads, 0); /* its pages are the page cache */
    free(content);
}

/* ---- other orders ---- */

/* Expectations that are wrong, in any order and of files that are not read, change nothing. */
TEST(random_reads_against_random_expectations)
{
    setup();
    for (int i = 0; i < 4; i++)
        file_add(20 * MIB + 77, i % 2);
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct file_range ranges[8];
        struct file_reader *r;
        assert_ok(file_reader_new(dir, NULL, &r));
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t from = number(seed, 3 * i) % (20 * MIB);
            ranges[i] = (struct file_range){&files[number(seed, 3 * i + 1) % 4], from,
                                            from + number(seed, 3 * i + 2) % (9 * MIB)};
        }
        file_reader_expect(r, ranges, seed % 9);
        for (uint64_t i = 100; i < 120; i++) {
            uint64_t from = number(seed, 3 * i) % (20 * MIB), to = from + number(seed, 3 * i + 1) % (3 * MIB);
            read_range(r, (int)(number(seed, 3 * i + 2) % 4), from, to < 20 * MIB ? to : 20 * MIB);
        }
        file_reader_free(r);
    }
    free(content);
}

TEST(more_files_than_units)
{
    setup();
    for (int i = 0; i < MAX_TEST_FILES; i++)
        file_add(100000 + (uint64_t)i, i % 2);
    int before = open_descriptors();
    (void)read_all(NULL);
    assert_int_equal(open_descriptors(), before);
    free(content);
}

TEST(a_file_that_has_become_shorter)
{
    char path[300];
    struct file_reader *r;
    struct file_window w;
    struct why why = {{0}};
    setup();
    file_add(3 * MIB, true);
    path_of_file(0, path);
    assert_int_equal(truncate(path, (off_t)(2 * MIB + 5)), 0);
    const struct file_range all = {&files[0], 0, 3 * MIB};
    assert_ok(file_reader_new(dir, NULL, &r));
    file_reader_expect(r, &all, 1);
    read_range(r, 0, 0, 2 * MIB);
    assert_err(ERR_CORRUPT, file_reader_get(r, &files[0], 2 * MIB, 3 * MIB, &w, &why));
    assert_non_null(strstr(why.text, "file-0"));
    file_reader_free(r);
    free(content);
}

/* ---- several readers ---- */

/* Two readers of the same file, in turns: the first units that meet make both use the page cache. */
TEST(replicas_read_through_the_page_cache)
{
    struct read_claims claims;
    struct file_reader *r[2];
    setup();
    assert_ok(read_claims_init(&claims));
    file_add(40 * MIB, true);
    const struct file_range all = {&files[0], 0, files[0].size};
    for (int k = 0; k < 2; k++) {
        assert_ok(file_reader_new(dir, &claims, &r[k]));
        file_reader_expect(r[k], &all, 1);
    }
    for (uint64_t at = 0; at < files[0].size; at += MIB)
        for (int k = 0; k < 2; k++)
            read_range(r[k], 0, at, at + MIB);
    for (int k = 0; k < 2; k++)
        file_reader_free(r[k]);
    assert_true(direct_reads <= 16); /* what the first reader had begun */
    assert_null(claims.first);
    read_claims_fini(&claims);
    free(content);
}

TEST(shards_of_a_file_are_read_past_the_page_cache)
{
    struct read_claims claims;
    struct file_reader *r[2];
    setup();
    assert_ok(read_claims_init(&claims));
    file_add(40 * MIB, true);
    const struct file_range half[] = {{&files[0], 0, 20 * MIB}, {&files[0], 20 * MIB, 40 * MIB}};
    for (int k = 0; k < 2; k++) {
        assert_ok(file_reader_new(dir, &claims, &r[k]));
        file_reader_expect(r[k], &half[k], 1);
    }
    for (uint64_t at = 0; at < 20 * MIB; at += MIB)
        for (uint64_t k = 0; k < 2; k++)
            read_range(r[k], 0, k * 20 * MIB + at, k * 20 * MIB + at + MIB);
    for (int k = 0; k < 2; k++)
        file_reader_free(r[k]);
    if (has_page_cache_of_its_own() && direct_reads)
        assert_int_equal(direct_reads, 40);
    read_claims_fini(&claims);
    free(content);
}
