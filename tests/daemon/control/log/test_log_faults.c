/* A disk that fails: the operations of the log on its files, one after the other. What was acknowledged is there after
 * a restart, whatever the disk does with the last write. */
#include "tests/daemon/control/log/disk_faults.h"

#include "common/base/clock.h"
#include "tests/daemon/control/log/log_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#define SOON_MS 5000 /* the time in which a log has to report that its disk fails */
#define PATIENCE_MS 20000

static char dir[300];

static void open_with_records(struct fixture *f, uint64_t n)
{
    snprintf(dir, sizeof(dir), "%s/state", test_tmpdir());
    fixture_open(f, dir);
    assert_ok(f->ready_err);
    for (uint64_t i = 1; i <= n; i++)
        assert_ok(fixture_propose(f, i, 1000));
    fixture_pump_ms(f, 300);
    assert_int_equal(f->done, n);
    snprintf(disk_faults->folder, sizeof(disk_faults->folder), "%s", dir);
}

static void mend(void)
{
    disk_faults->folder[0] = '\0';
    disk_faults->sync = disk_faults->write = disk_faults->allocate = disk_faults->open = disk_faults->cut =
        disk_faults->setup = disk_faults->hangs = 0;
}

static bool has_warning(struct fixture *f)
{
    return log_warning(f->log) != NULL;
}

static bool is_closed(struct fixture *f)
{
    return strcmp(log_state(f->log), "unavailable") == 0;
}

static bool is_well(struct fixture *f)
{
    return !log_warning(f->log) && strcmp(log_state(f->log), "leader") == 0;
}

static int answers;

static bool has_answers(struct fixture *f)
{
    return f->done + f->canceled >= answers;
}

/* Proposes until the log reports that its disk fails, as far as the disk still takes records. */
static void use_until_warning(struct fixture *f)
{
    int64_t until = clock_mono_ms() + PATIENCE_MS;
    while (!has_warning(f) && clock_mono_ms() < until) {
        answers = f->done + f->canceled + 1;
        int64_t since = clock_mono_ms();
        err_t err = fixture_propose(f, f->machine.count + 1, 60000);
        if (!err && !fixture_pump(f, has_answers, SOON_MS))
            fail_msg("a record has no answer after %d ms", (int)(clock_mono_ms() - since));
        fixture_pump_ms(f, err ? 10 : 0);
    }
    assert_non_null(log_warning(f->log));
}

/* The log has failed for good: it refuses proposals at once, keeps its state, and does not touch the disk again. */
static void is_broken(struct fixture *f, const char *why)
{
    assert_true(fixture_pump(f, is_closed, SOON_MS));
    assert_err(ERR_IO, fixture_propose(f, 1, 0));
    if (!strstr(log_warning(f->log), why) || !strstr(log_warning(f->log), "restart dtd"))
        fail_msg("the warning is \"%s\"", log_warning(f->log));
    fixture_pump_ms(f, 300);
    int calls = disk_faults->calls;
    fixture_pump_ms(f, 2500);
    assert_int_equal(disk_faults->calls, calls);
    assert_err(ERR_IO, fixture_propose(f, 1, 0));
}

/* All acknowledged records are there after a restart. One more may be, whose write was reported as failed. */
static void restart(struct fixture *f)
{
    struct fixture g = {0};
    uint64_t n = f->machine.count;
    fixture_close(f);
    mend();
    fixture_open(&g, dir);
    assert_ok(g.ready_err);
    assert_true(g.machine.count == n || g.machine.count == n + 1);
    assert_int_equal(g.machine.hash, machine_hash_of(1, g.machine.count));
    answers = 1;
    assert_ok(fixture_propose(&g, g.machine.count + 1, 1000));
    assert_true(fixture_pump(&g, has_answers, SOON_MS));
    assert_int_equal(g.done, 1);
    fixture_close(&g);
}

TEST(a_write_fails)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->write = EIO;
    use_until_warning(&f);
    is_broken(&f, "an entry cannot be written: Input/output error");
    assert_int_equal(f.machine.count, 10);
    restart(&f);
}

TEST(a_write_to_a_disk_that_became_read_only_fails)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->write = disk_faults->open = EROFS;
    use_until_warning(&f);
    is_broken(&f, "Read-only file system");
    restart(&f);
}

TEST(a_segment_cannot_be_allocated)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->allocate = EIO;
    use_until_warning(&f);
    is_broken(&f, "allocating a file: Input/output error");
    assert_true(f.machine.count > 10); /* in the segments that existed */
    restart(&f);
}

TEST(a_sync_fails)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->sync = EIO;
    use_until_warning(&f);
    is_broken(&f, "a full segment cannot be closed: fsync: i/o error");
    restart(&f);
}

TEST(a_segment_cannot_be_created)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->open = EROFS;
    use_until_warning(&f);
    is_broken(&f, "read-only file system");
    restart(&f);
}

/* libraft ignores this, and closes the segments that follow: it could not read them after a restart. */
TEST(a_segment_cannot_be_closed)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->cut = EIO;
    use_until_warning(&f);
    is_broken(&f, "a full segment cannot be closed: ");
    restart(&f);
}

/* Gives the oldest closed segment the name and size that it had while it was open. */
static void leave_oldest_open(void)
{
    struct dirent **names;
    char folder[320], from[700], to[400];
    snprintf(folder, sizeof(folder), "%s/log", dir);
    int n = scandir(folder, &names, NULL, alphasort), at = 0;
    while (at < n && !strchr("0", names[at]->d_name[0]))
        at++;
    assert_true(at < n);
    snprintf(from, sizeof(from), "%s/%s", folder, names[at]->d_name);
    snprintf(to, sizeof(to), "%s/open-1", folder);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(truncate(to, FIXTURE_SEGMENT), 0);
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* The process ended after the failure, before it could close the segment. */
TEST(a_segment_that_was_left_open)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    for (uint64_t i = 11; i <= 30; i++) {
        answers = (int)i;
        assert_ok(fixture_propose(&f, i, 60000));
        assert_true(fixture_pump(&f, has_answers, SOON_MS));
    }
    uint64_t n = f.machine.count;
    fixture_close(&f);
    leave_oldest_open();
    f = (struct fixture){0};
    fixture_open(&f, dir);
    assert_ok(f.ready_err);
    assert_int_equal(f.machine.count, n);
    assert_int_equal(f.machine.hash, machine_hash_of(1, n));
    fixture_close(&f);
}

TEST(a_snapshot_cannot_be_synced)
{
    struct fixture f = {.threshold = 64};
    open_with_records(&f, 10);
    disk_faults->sync = EIO;
    for (uint64_t i = 11; i <= 80; i++) {
        answers = (int)i;
        assert_ok(fixture_propose(&f, i, 10));
        assert_true(fixture_pump(&f, has_answers, SOON_MS));
    }
    assert_true(f.snapshots > 0);
    assert_true(fixture_pump(&f, has_warning, PATIENCE_MS));
    is_broken(&f, "syncing a file: Input/output error");
    restart(&f);
}

TEST(the_term_cannot_be_synced_at_the_start)
{
    struct fixture f = {0}, g = {0};
    open_with_records(&f, 10);
    fixture_close(&f);
    disk_faults->sync = EIO;
    fixture_open(&g, dir);
    assert_err(ERR_IO, g.ready_err);
    assert_non_null(strstr(g.why, "marks"));
    g.machine = f.machine;
    restart(&g);
}

/* ---- what passes ---- */

TEST(a_disk_that_hangs_and_answers_again)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    for (int round = 0; round < 2; round++) {
        uint64_t n = f.machine.count;
        disk_faults->hangs = 1;
        use_until_warning(&f);
        assert_non_null(strstr(log_warning(f.log), "has not answered for 4 s"));
        assert_err(ERR_TIMEOUT, fixture_propose(&f, 1, 0));
        assert_int_equal(f.machine.count, n);
        disk_faults->hangs = 0;
        assert_true(fixture_pump(&f, is_well, SOON_MS));
        answers = f.done + f.canceled + 1;
        assert_ok(fixture_propose(&f, n + 2, 1000)); /* n + 1 was canceled, and recorded when the disk answered */
        assert_true(fixture_pump(&f, has_answers, SOON_MS));
        assert_int_equal(f.machine.hash, machine_hash_of(1, n + 2));
    }
    restart(&f);
}

/* libraft needs descriptors to close a full segment, to create the next one and to be opened. */
TEST(no_descriptors_for_a_time)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    for (int round = 0; round < 3; round++) {
        disk_faults->open = EMFILE;
        use_until_warning(&f);
        fixture_pump_ms(&f, 2500);
        assert_err(ERR_AGAIN, fixture_propose(&f, 1, 0));
        disk_faults->open = 0;
        assert_true(fixture_pump(&f, is_well, SOON_MS));
        assert_int_equal(f.machine.hash, machine_hash_of(1, f.machine.count));
    }
    restart(&f);
}

/* The kernel does not give libraft what it needs for writing to its next segment. */
TEST(no_requests_of_the_kernel_for_a_time)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->setup = EAGAIN;
    use_until_warning(&f);
    disk_faults->setup = 0;
    assert_true(fixture_pump(&f, is_well, SOON_MS));
    restart(&f);
}

/* A file system that does not keep the space of a segment reports in the middle of one that it is full. */
TEST(a_write_finds_no_space)
{
    struct fixture f = {0};
    open_with_records(&f, 10);
    disk_faults->write = ENOSPC;
    use_until_warning(&f);
    assert_non_null(strstr(log_warning(f.log), "full"));
    assert_err(ERR_NOSPACE, fixture_propose(&f, 1, 0));
    disk_faults->write = 0;
    assert_true(fixture_pump(&f, is_well, SOON_MS));
    restart(&f);
}
