/* A full disk: the tests fill and empty a small tmpfs in a mount namespace of this process. */
#include "common/base/clock.h"
#include "tests/daemon/control/log/log_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define DISK_BYTES "size=8m"
#define PATIENCE_MS 30000 /* for a busy machine; otherwise these waits take one to four seconds */

static char dir[300], filler[400];

static void mount_small_disk(void)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        TEST_SKIP("needs a mount namespace of its own (root): %s", strerror(errno));
    snprintf(dir, sizeof(dir), "%s/disk", test_tmpdir());
    assert_int_equal(mkdir(dir, 0700), 0);
    if (mount("tmpfs", dir, "tmpfs", 0, DISK_BYTES))
        TEST_SKIP("tmpfs cannot be mounted: %s", strerror(errno));
    snprintf(filler, sizeof(filler), "%s/filler", dir);
    snprintf(dir, sizeof(dir), "%s/disk/state", test_tmpdir());
}

static uint64_t free_bytes(void)
{
    struct statvfs st;
    char mnt[300];
    snprintf(mnt, sizeof(mnt), "%s/disk", test_tmpdir());
    assert_int_equal(statvfs(mnt, &st), 0);
    return (uint64_t)st.f_bavail * st.f_frsize;
}

/* Leaves `left` bytes free. The log prepares segments in the background, so the free space may shrink meanwhile. */
static void fill_disk(uint64_t left)
{
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), rc = ENOSPC;
    struct stat st;
    assert_true(fd >= 0);
    for (int i = 0; i < 10 && rc == ENOSPC && free_bytes() > left; i++) {
        assert_int_equal(fstat(fd, &st), 0);
        rc = posix_fallocate(fd, st.st_size, (off_t)(free_bytes() - left));
    }
    assert_true(rc == 0 || free_bytes() <= left);
    close(fd);
}

static void unmount(void)
{
    char mnt[300];
    snprintf(mnt, sizeof(mnt), "%s/disk", test_tmpdir());
    umount2(mnt, MNT_DETACH);
}

static int answers;

static bool has_answers(struct fixture *f)
{
    return f->done + f->canceled >= answers;
}

static void propose_and_wait(struct fixture *f, uint64_t number)
{
    answers = f->done + f->canceled + 1;
    assert_ok(fixture_propose(f, number, 1000));
    assert_true(fixture_pump(f, has_answers, PATIENCE_MS));
}

static bool takes_again(struct fixture *f)
{
    return !log_warning(f->log) && strcmp(log_state(f->log), "leader") == 0;
}

static bool is_closed(struct fixture *f)
{
    return strcmp(log_state(f->log), "unavailable") == 0;
}

/* Proposes records until the log refuses them for lack of space; fills what it frees. */
static void use_up(struct fixture *f)
{
    int64_t until = clock_mono_ms() + PATIENCE_MS;
    for (err_t err = OK; err != ERR_NOSPACE;) {
        fill_disk(0);
        answers = f->done + f->canceled + 1;
        err = fixture_propose(f, f->machine.count + 1, 1000);
        if (!err && !fixture_pump(f, has_answers, PATIENCE_MS))
            fail_msg("a record has no answer");
        assert_true(clock_mono_ms() < until);
    }
}

/* The segments that exist take records although nothing is free, and after that the reserve. */
TEST(full_disk_takes_records_from_the_reserve)
{
    struct fixture f = {0}, g = {0};
    const uint64_t n = (2 * FIXTURE_SEGMENT + FIXTURE_RESERVE) / 1100;
    mount_small_disk();
    fixture_open(&f, dir);
    fixture_pump_ms(&f, 300);
    fill_disk(0);
    for (uint64_t i = 1; i <= n; i++) {
        propose_and_wait(&f, i);
        assert_null(log_warning(f.log));
    }
    assert_int_equal(f.canceled, 0);
    assert_int_equal(unlink(filler), 0);
    fixture_pump_ms(&f, 1500);
    fill_disk(0); /* the reserve was created again: the same once more */
    for (uint64_t i = n + 1; i <= 2 * n; i++)
        propose_and_wait(&f, i);
    fixture_close(&f);
    assert_int_equal(unlink(filler), 0);
    fixture_open(&g, dir);
    assert_int_equal(g.machine.hash, machine_hash_of(1, 2 * n));
    fixture_close(&g);
    unmount();
}

/* The disk is full for a moment, again and again, as a log that grows fast and is cut makes it. */
TEST(short_moments_without_space_refuse_nothing)
{
    struct fixture f = {0};
    mount_small_disk();
    fixture_open(&f, dir);
    for (uint64_t i = 1; i <= 20; i++) {
        fill_disk(0);
        for (int k = 0; k < 50; k++)
            propose_and_wait(&f, 50 * (i - 1) + (uint64_t)k + 1);
        assert_int_equal(unlink(filler), 0);
        fixture_pump_ms(&f, 150);
    }
    assert_int_equal(f.machine.hash, machine_hash_of(1, 1000));
    assert_int_equal(f.warnings, 0);
    fixture_close(&f);
    unmount();
}

TEST(full_disk_refuses_and_recovers)
{
    struct fixture f = {.threshold = 64}, g = {.threshold = 64};
    uint64_t n = 100;
    mount_small_disk();
    fixture_open(&f, dir);
    for (uint64_t i = 1; i <= n; i++)
        propose_and_wait(&f, i);
    for (uint64_t round = 0; round < 3; round++) {
        use_up(&f);
        n = f.machine.count;
        assert_non_null(log_warning(f.log));
        assert_non_null(strstr(log_warning(f.log), "full"));
        assert_true(fixture_pump(&f, is_closed, PATIENCE_MS));
        fill_disk(0); /* including the space that closing has freed */
        fixture_pump_ms(&f, 1500);
        assert_err(ERR_NOSPACE, fixture_propose(&f, 1, 0));
        assert_int_equal(f.machine.count, n); /* the state can still be read */
        assert_int_equal(unlink(filler), 0);
        if (!fixture_pump(&f, takes_again, PATIENCE_MS))
            fail_msg("the log is not open again long after there was space: %s", log_warning(f.log));
        n = f.machine.count + 1; /* a canceled record may be in the log */
        propose_and_wait(&f, n);
        assert_int_equal(f.machine.hash, machine_hash_of(1, n)); /* no record was applied twice */
    }
    assert_int_equal(f.ready_calls, 1);
    assert_true(f.warnings >= 3);
    fixture_close(&f);
    fixture_open(&g, dir);
    assert_int_equal(g.machine.hash, machine_hash_of(1, n));
    fixture_close(&g);
    unmount();
}

/* The disk becomes full between the check and libraft's allocation of segments for accepted proposals. These proposals
 * are canceled, the log opens again, and it contains exactly the applied records. */
TEST(disk_fills_under_way)
{
    struct fixture f = {0}, g = {0};
    mount_small_disk();
    fixture_open(&f, dir);
    for (uint64_t i = 1; i <= 40; i++)
        assert_ok(fixture_propose(&f, i, 60000));
    fill_disk(0);
    answers = 40;
    if (!fixture_pump(&f, has_answers, PATIENCE_MS))
        fail_msg("%d of 40 proposals have no answer", 40 - f.done - f.canceled);
    assert_true(f.canceled > 0);
    assert_true(f.machine.count >= (uint64_t)f.done);
    assert_err(ERR_NOSPACE, fixture_propose(&f, 41, 0));
    unlink(filler);
    assert_true(fixture_pump(&f, takes_again, PATIENCE_MS));
    uint64_t count = f.machine.count;
    assert_int_equal(f.machine.hash, machine_hash_of(1, count));
    propose_and_wait(&f, count + 1);
    assert_int_equal(f.last_result, count + 1);
    fixture_close(&f);
    fixture_open(&g, dir);
    assert_memory_equal(&g.machine, &f.machine, sizeof(f.machine));
    fixture_close(&g);
    unmount();
}

TEST(starts_on_a_full_disk)
{
    struct fixture f = {0}, g = {0}, h = {0};
    mount_small_disk();
    fixture_open(&f, dir);
    for (uint64_t i = 1; i <= 10; i++)
        propose_and_wait(&f, i);
    fixture_close(&f);
    /* With its reserve the log opens and takes records. */
    fill_disk(0);
    fixture_open(&g, dir);
    assert_ok(g.ready_err);
    assert_int_equal(g.machine.count, 10);
    propose_and_wait(&g, 11);
    fixture_close(&g);
    /* Without any space it waits with a warning, and opens when there is space. */
    fill_disk(0);
    fixture_start(&h, dir);
    fixture_pump_ms(&h, 3000);
    assert_int_equal(h.ready_calls, 0);
    assert_err(ERR_NOSPACE, fixture_propose(&h, 12, 0));
    assert_non_null(log_warning(h.log));
    unlink(filler);
    assert_true(fixture_pump(&h, fixture_is_ready, PATIENCE_MS));
    assert_int_equal(h.machine.count, 11);
    propose_and_wait(&h, 12);
    fixture_close(&h);
    unmount();
}

static void flip_a_bit(void)
{
    char path[600], c;
    snprintf(path, sizeof(path), "%s/log/0000000000000002-0000000000000012", dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, 2000), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, 2000), 1);
    close(fd);
}

TEST(damaged_log_on_a_full_disk_reports_damage_once_there_is_space)
{
    struct fixture f = {0}, g = {0};
    mount_small_disk();
    fixture_open(&f, dir);
    for (uint64_t i = 1; i <= 10; i++)
        propose_and_wait(&f, i);
    fixture_close(&f);
    flip_a_bit();
    fill_disk(16384);
    fixture_start(&g, dir);
    fixture_pump_ms(&g, 1500);
    assert_int_equal(g.ready_calls, 0);
    unlink(filler);
    assert_true(fixture_pump(&g, fixture_is_answered, PATIENCE_MS));
    assert_err(ERR_CORRUPT, g.ready_err);
    fixture_close(&g);
    unmount();
}

TEST(first_start_on_a_full_disk_waits)
{
    struct fixture f = {0};
    mount_small_disk();
    fill_disk(8192);
    fixture_start(&f, dir);
    fixture_pump_ms(&f, 1500);
    assert_int_equal(f.ready_calls, 0);
    assert_non_null(log_warning(f.log));
    unlink(filler);
    assert_true(fixture_pump(&f, fixture_is_ready, PATIENCE_MS));
    propose_and_wait(&f, 1);
    fixture_close(&f);
    unmount();
}
