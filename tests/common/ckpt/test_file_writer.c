/* Files of random parts, written in all ways that the kernel and the file system leave, equal the bytes that were put
 * together in memory. */
#include "common/ckpt/file_writer.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define MAX_BYTES (24 * MIB)

/* ---- a kernel without io_uring, and file systems without O_DIRECT ---- */

static enum { OPEN_TAKES, OPEN_REFUSES, WRITE_REFUSES } direct;
static bool ring = true;
static int submits, writes;
static bool is_direct;

int __real_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags);
int __real_io_uring_submit(struct io_uring *r);
int __wrap_io_uring_submit(struct io_uring *r);
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
ssize_t __real_pwrite(int fd, const void *data, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at);

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *r, unsigned flags)
{
    return ring ? __real_io_uring_queue_init(entries, r, flags) : -EPERM;
}

int __wrap_io_uring_submit(struct io_uring *r)
{
    submits++;
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
    if (command == F_SETFL)
        is_direct = flags & O_DIRECT;
    return __real_fcntl(fd, command, flags);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at)
{
    writes++;
    if (direct == WRITE_REFUSES && is_direct) {
        errno = EINVAL;
        return -1;
    }
    return __real_pwrite(fd, data, len, at);
}

/* ---- files ---- */

static uint8_t *memory, *expected, *got;

static uint64_t number(uint64_t seed, uint64_t n)
{
    uint32_t r[4];
    rng_at(seed, 0, n, r);
    return (uint64_t)r[0] << 32 | r[1];
}

static const char *folder; /* NULL: test_tmpdir() */

static int file_new(char path[300])
{
    snprintf(path, 300, "%s/file", folder ? folder : test_tmpdir());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void check_file(const char *path, size_t bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(st.st_size, bytes);
    assert_ok(file_pread_all(fd, got, bytes, 0));
    assert_memory_equal(got, expected, bytes);
    close(fd);
}

/* Parts of 0 to 9 MiB; a third of them aligned in the file, half of those in memory too. */
static size_t write_parts(struct file_writer *w, uint64_t seed)
{
    size_t bytes = 0;
    for (uint64_t n = 0;; n++) {
        uint64_t r = number(seed, n);
        size_t len = (size_t)(r >> 8) % (r & 1 ? 9 * MIB : r & 2 ? 100000 : 500), from = (size_t)(r >> 40) % MIB;
        size_t pad = r % 3 ? 0 : (0 - bytes) & (FILE_WRITER_ALIGN - 1);
        from = r % 6 ? from : from & ~(size_t)(FILE_WRITER_ALIGN - 1);
        if (bytes + pad + len > MAX_BYTES)
            return bytes;
        memset(expected + bytes, 0, pad);
        assert_ok(file_writer_copy(w, expected + bytes, pad));
        memcpy(expected + bytes + pad, memory + from, len);
        assert_ok(r & 4 ? file_writer_put(w, memory + from, len) : file_writer_copy(w, memory + from, len));
        bytes += pad + len;
    }
}

/* Huge parts after a held header of random length, which is replaced when some parts have followed it. */
static size_t write_held(struct file_writer *w, uint64_t seed)
{
    size_t bytes = 0;
    for (uint64_t n = 0; bytes < 16 * MIB; n++) {
        uint64_t r = number(seed, n);
        size_t lead = (size_t)r % (3 * MIB), len = 1 + (size_t)(r >> 32) % FILE_WRITER_ALIGN;
        lead += (0 - (bytes + lead + len)) & (FILE_WRITER_ALIGN - 1);
        memcpy(expected + bytes, memory, lead);
        assert_ok(file_writer_copy(w, memory, lead));
        bytes += lead;
        assert_true(file_writer_hold(w, memory + 77, len));
        assert_false(file_writer_hold(w, memory + 77, FILE_WRITER_ALIGN)); /* one at a time */
        memcpy(expected + bytes, memory + 1000, len);
        bytes += len;
        memcpy(expected + bytes, memory, 2 * MIB + 5);
        assert_ok(file_writer_put(w, memory, 2 * MIB + 5));
        bytes += 2 * MIB + 5;
        assert_false(file_writer_hold(w, memory, 77)); /* does not end at a boundary */
        assert_ok(file_writer_release(w, memory + 1000));
    }
    return bytes;
}

static void write_files(void)
{
    char path[300];
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct file_writer *w;
        int fd = file_new(path);
        assert_ok(file_writer_new(fd, path, &w));
        size_t bytes = seed % 3 ? write_parts(w, seed) : write_held(w, seed);
        assert_ok(file_writer_end(w));
        file_writer_free(w);
        close(fd);
        check_file(path, bytes);
    }
}

static void setup(void)
{
    memory = aligned_alloc(FILE_WRITER_ALIGN, 10 * MIB);
    expected = malloc(MAX_BYTES);
    got = malloc(MAX_BYTES);
    assert_true(memory && expected && got);
    for (size_t i = 0; i < 10 * MIB / 8; i++)
        ((uint64_t *)memory)[i] = number(7, i);
}

static void teardown(void)
{
    free(memory);
    free(expected);
    free(got);
}

TEST(all_parts_are_in_the_file)
{
    setup();
    write_files();
    if (!submits)
        TEST_SKIP("this kernel has no io_uring for us");
    assert_int_equal(writes, 0); /* the kernel has written all that it was given */
    teardown();
}

TEST(without_io_uring)
{
    setup();
    ring = false;
    write_files();
    assert_int_equal(submits, 0);
    assert_true(writes > 0);
    teardown();
}

/* write_files; its log must have this reason, at level debug. */
static void write_files_logged(const char *why)
{
    static char log[65536];
    char path[300], expected_line[400];
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    int saved = dup(2), fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    setenv("DTD_LOG", "debug", 1);
    log_init("test");
    assert_true(saved >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    write_files();
    dup2(saved, 2);
    ssize_t n = pread(fd, log, sizeof(log) - 1, 0);
    log[n < 0 ? 0 : n] = '\0';
    snprintf(expected_line, sizeof(expected_line), "writes through the page cache path=%s/file why=\"%s\"",
             test_tmpdir(), why);
    if (!strstr(log, expected_line) || !strstr(log, " debug "))
        fail_msg("there is no line %s in:\n%s", expected_line, log);
    close(saved);
    close(fd);
}

TEST(without_direct_writes)
{
    setup();
    direct = OPEN_REFUSES;
    write_files_logged("Invalid argument");
    assert_false(is_direct);
    teardown();
}

TEST(on_a_tmpfs)
{
    char shm[] = "/dev/shm/dtd-test-XXXXXX";
    struct statfs st;
    if (statfs("/dev/shm", &st) || st.f_type != TMPFS_MAGIC || !mkdtemp(shm))
        TEST_SKIP("/dev/shm is no tmpfs");
    setup();
    folder = shm;
    write_files();
    assert_ok(file_remove_tree(shm));
    teardown();
}

TEST(where_a_direct_write_is_refused)
{
    setup();
    ring = false;
    direct = WRITE_REFUSES;
    write_files_logged("the file system refuses a direct write");
    assert_false(is_direct);
    teardown();
}

TEST(an_empty_file)
{
    char path[300];
    struct file_writer *w;
    setup();
    int fd = file_new(path);
    assert_ok(file_writer_new(fd, path, &w));
    assert_ok(file_writer_end(w));
    file_writer_free(w);
    close(fd);
    check_file(path, 0);
    teardown();
}

/* The error of a write in flight is that of the file. */
static void limited(void)
{
    char path[300];
    struct file_writer *w;
    const struct rlimit limit = {6 * MIB, 6 * MIB};
    setup();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int fd = file_new(path);
    assert_ok(file_writer_new(fd, path, &w));
    err_t err = file_writer_put(w, memory, 10 * MIB);
    err_t end = file_writer_end(w);
    assert_int_equal(end, ERR_LIMIT);
    assert_true(err == OK || err == end);
    assert_int_equal(file_writer_copy(w, memory, 1), end);
    file_writer_free(w);
    close(fd);
    teardown();
}

TEST(beyond_the_limit_of_a_file)
{
    limited();
}

TEST(beyond_the_limit_of_a_file_without_io_uring)
{
    ring = false;
    limited();
}
