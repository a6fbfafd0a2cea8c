/* A snapshot that is sent to another voter: which file it is, that damage is found, and that sending it needs no memory
 * of its size. The memory is counted in /proc/self/smaps, never by time. */
#include "daemon/control/log/internal.h"
#include "daemon/control/log/sum.h"
#include "tests/lib/test.h"

#include <endian.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* Just what the file's functions use of a log. */
static struct fixture_read {
    uv_loop_t loop;
    struct log log;
    char dir[400];
    struct raft_snapshot *snapshot;
    int status, calls;
} f;

static void write_file(const char *name, const void *data, size_t len)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", f.dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal((ssize_t)len, write(fd, data, len));
    close(fd);
}

static void write_meta(const char *name, uint64_t index)
{
    struct raft_configuration c;
    struct raft_buffer bytes;
    uint8_t file[1000];
    raft_configuration_init(&c);
    assert_int_equal(0, raft_configuration_add(&c, 1, "node-1", RAFT_VOTER));
    assert_int_equal(0, raft_configuration_encode(&c, &bytes));
    uint64_t head[4] = {htole64(1), 0, htole64(index), htole64(bytes.len)};
    head[1] = htole64(log_crc(log_crc(0, &head[2], 16), bytes.base, bytes.len));
    memcpy(file, head, sizeof(head));
    memcpy(file + sizeof(head), bytes.base, bytes.len);
    write_file(name, file, sizeof(head) + bytes.len);
    raft_free(bytes.base);
    raft_configuration_close(&c);
}

static char byte_at(size_t at)
{
    return (char)(at * 7 + at / 4096);
}

/* The content of a snapshot of `len` bytes, with its length and its sum. The caller frees it. */
static char *make_content(size_t len, size_t *ret_len)
{
    size_t bytes = (8 + len + 7) / 8 * 8;
    char *content = calloc(1, bytes + LOG_SUM_BYTES);
    assert_non_null(content);
    uint64_t head = htole64(len);
    memcpy(content, &head, sizeof(head));
    for (size_t i = 0; i < len; i++)
        content[8 + i] = byte_at(i);
    log_sum_make(content, bytes, (uint8_t *)content + bytes);
    *ret_len = bytes + LOG_SUM_BYTES;
    return content;
}

/* Both files of a snapshot; `damage`: a byte of the content is changed. */
static void write_snapshot(uint64_t term, uint64_t index, uint64_t time, size_t len, bool damage)
{
    char name[100], meta[110];
    size_t bytes;
    char *content = make_content(len, &bytes);
    snprintf(name, sizeof(name), "snapshot-%d-%d-%d", (int)term, (int)index, (int)time);
    snprintf(meta, sizeof(meta), "%s.meta", name);
    content[8 + len / 2] ^= damage;
    write_file(name, content, bytes);
    write_meta(meta, index);
    free(content);
}

static void setup(const char *name)
{
    snprintf(f.dir, sizeof(f.dir), "%s/%s", test_tmpdir(), name);
    assert_int_equal(0, mkdir(f.dir, 0700));
    assert_int_equal(0, uv_loop_init(&f.loop));
    f.log.config.loop = &f.loop;
    f.log.raft_dir = f.dir;
    log_snapshot_file_install(&f.log.io);
}

static void teardown(void)
{
    assert_int_equal(0, uv_loop_close(&f.loop));
}

static void was_read(struct raft_io_snapshot_get *req, struct raft_snapshot *snapshot, int status)
{
    assert_ptr_equal(&f, req->data);
    f.snapshot = snapshot;
    f.status = status;
    f.calls++;
}

static void read_snapshot(void)
{
    struct raft_io_snapshot_get req = {.data = &f};
    f.calls = 0;
    assert_int_equal(0, f.log.io.snapshot_get(&f.log.io, &req, was_read));
    assert_int_equal(0, f.calls); /* never within the call */
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(1, f.calls);
}

/* As libraft does when the snapshot has been sent. */
static void free_snapshot(void)
{
    raft_free(f.snapshot->bufs[0].base);
    raft_free(f.snapshot->bufs);
    raft_configuration_close(&f.snapshot->configuration);
    raft_free(f.snapshot);
}

/* In KiB: of the memory of this process that begins at `base`, what is in its page tables; -1: it is not mapped. */
static long resident_kib(const void *base)
{
    char line[300], wanted[40];
    long kib = -1;
    bool is_it = false;
    snprintf(wanted, sizeof(wanted), "%lx-", (unsigned long)(uintptr_t)base);
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    while (kib < 0 && fgets(line, sizeof(line), file)) {
        if (strncmp(line, wanted, strlen(wanted)) == 0)
            is_it = true;
        if (is_it && strncmp(line, "Rss:", 4) == 0)
            kib = atol(line + 4);
    }
    fclose(file);
    return kib;
}

/* The newest is the one of the highest term, then index, then time, all compared as numbers. */
TEST(the_newest_complete_snapshot_is_sent)
{
    setup("newest");
    write_snapshot(2, 900, 10, 100, false);
    write_snapshot(2, 1000, 9, 200, false);
    write_snapshot(2, 1000, 10, 300, false);
    write_meta("snapshot-2-1001-10.meta", 1001); /* its content is not there yet */
    write_meta("snapshot-2-1002-10.meta", 1002);
    write_file("snapshot-2-1002-10", "", 0);
    write_file("snapshot-2-1003-10", "no meta", 7);
    read_snapshot();
    assert_int_equal(0, f.status);
    assert_int_equal(2, f.snapshot->term);
    assert_int_equal(1000, f.snapshot->index);
    assert_int_equal(1000, f.snapshot->configuration_index);
    assert_int_equal(1, f.snapshot->configuration.n);
    assert_string_equal("node-1", f.snapshot->configuration.servers[0].address);
    size_t len;
    char *expected = make_content(300, &len);
    assert_int_equal(1, f.snapshot->n_bufs);
    assert_int_equal(len, f.snapshot->bufs[0].len);
    assert_memory_equal(expected, f.snapshot->bufs[0].base, len);
    free(expected);
    free_snapshot();
    teardown();
}

static void expect_failure(void)
{
    read_snapshot();
    assert_int_not_equal(0, f.status);
    assert_null(f.snapshot);
}

TEST(a_damaged_snapshot_is_not_sent)
{
    setup("damaged");
    expect_failure(); /* there is none */
    write_snapshot(1, 100, 1, 600000, true);
    expect_failure();
    write_snapshot(1, 100, 1, 600000, false);
    read_snapshot();
    assert_int_equal(0, f.status);
    free_snapshot();
    write_snapshot(1, 101, 1, 100, false);
    write_file("snapshot-1-101-1.meta", "0123456789012345678901234567890123456789", 40);
    expect_failure();
    write_snapshot(1, 102, 1, 100, false);
    write_file("snapshot-1-102-1", "12345678", 8); /* a content that was cut */
    expect_failure();
    teardown();
}

/* The bytes go through a pipe, as they go through a socket to another voter. Without the trim all of them count as
 * memory of this process at the end; in a copy, from the beginning. */
TEST(sending_takes_no_memory_of_the_snapshots_size)
{
    int fds[2];
    char *part = malloc(MIB);
    setup("sending");
    write_snapshot(1, 100, 1, 64 * MIB, false);
    assert_int_equal(0, pipe2(fds, O_NONBLOCK | O_CLOEXEC));
    read_snapshot();
    assert_int_equal(0, f.status);
    const struct raft_buffer sent = f.snapshot->bufs[0];
    long most = resident_kib(sent.base);
    assert_true(most >= 0 && most < 64); /* in memory of malloc: -1, or all of it */
    uint64_t now_ms = 1000;
    for (size_t at = 0; at < sent.len;) {
        ssize_t n = write(fds[1], (const char *)sent.base + at, sent.len - at);
        assert_true(n > 0);
        assert_int_equal(n, read(fds[0], part, MIB));
        assert_memory_equal((const char *)sent.base + at, part, (size_t)n);
        at += (size_t)n;
        log_snapshot_file_trim(now_ms += 10);
        if (at / MIB % 8 == 0) {
            long kib = resident_kib(sent.base);
            most = kib > most ? kib : most;
        }
    }
    assert_true(most < 2048);
    free_snapshot();
    assert_int_equal(-1, resident_kib(sent.base)); /* libraft has freed it */
    close(fds[0]);
    close(fds[1]);
    free(part);
    teardown();
}
