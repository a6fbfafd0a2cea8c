/* Guarantees of the log: records are applied in order, each proposal has one answer, acknowledged records survive every
 * exit, and damage is reported. */
#include "common/base/clock.h"
#include "tests/daemon/control/log/log_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int wanted;

static bool all_answered(struct fixture *f)
{
    return f->done + f->canceled >= wanted;
}

/* Proposes first..last, at most 64 at a time. */
static void propose_range(struct fixture *f, uint64_t first, uint64_t last)
{
    int base = f->done + f->canceled;
    for (uint64_t i = first; i <= last; i++) {
        assert_ok(fixture_propose(f, i, 100));
        wanted = base + (int)(i - first + 1) - (i < last ? 64 : 0);
        if (!fixture_pump(f, all_answered, 30000))
            fail_msg("proposal %d has no answer after 30 s", (int)i);
    }
}

TEST(records_come_back_in_order)
{
    struct fixture f = {0}, g = {0};
    fixture_open(&f, test_tmpdir());
    assert_ok(f.ready_err);
    assert_string_equal(log_state(f.log), "leader");
    propose_range(&f, 1, 500);
    assert_int_equal(f.done, 500);
    assert_int_equal(f.last_result, 500);
    assert_int_equal(f.machine.hash, machine_hash_of(1, 500));
    assert_true(log_index(f.log) >= 500 && log_term(f.log) >= 1);
    fixture_close(&f);
    fixture_open(&g, test_tmpdir());
    assert_memory_equal(&g.machine, &f.machine, sizeof(f.machine));
    propose_range(&g, 501, 510);
    assert_int_equal(g.machine.hash, machine_hash_of(1, 510));
    fixture_close(&g);
}

static bool has_snapshots(struct fixture *f)
{
    return f->snapshots >= 3;
}

TEST(snapshots_replace_the_prefix)
{
    struct fixture f = {.threshold = 64}, g = {.threshold = 64};
    fixture_open(&f, test_tmpdir());
    for (uint64_t i = 0; i < 10; i++)
        propose_range(&f, 1 + 64 * i, 64 * (i + 1));
    assert_true(fixture_pump(&f, has_snapshots, 30000));
    fixture_close(&f);
    fixture_open(&g, test_tmpdir());
    assert_int_equal(g.restores, 1);
    assert_int_equal(g.machine.count, 640);
    assert_int_equal(g.machine.hash, machine_hash_of(1, 640));
    fixture_close(&g);
}

TEST(sizes_and_states_are_refused_at_once)
{
    struct fixture f = {0};
    static char big[4 << 20];
    fixture_start(&f, test_tmpdir());
    assert_err(ERR_AGAIN, fixture_propose(&f, 1, 0));
    assert_true(fixture_pump(&f, fixture_is_ready, 30000));
    assert_err(ERR_LIMIT, log_propose(f.log, big, sizeof(big), NULL, NULL));
    int err = OK;
    int taken = 0;
    for (int i = 0; i <= LOG_MAX_PENDING && !err; i++) {
        err = fixture_propose(&f, (uint64_t)i, 0);
        taken += !err;
    }
    assert_err(ERR_LIMIT, err);
    assert_int_equal(taken, LOG_MAX_PENDING);
    fixture_close(&f);
    assert_int_equal(f.done + f.canceled, LOG_MAX_PENDING);
}

TEST(closing_at_any_time_answers_once)
{
    for (int ms = 0; ms < 12; ms++) {
        struct fixture f = {0};
        char dir[300];
        snprintf(dir, sizeof(dir), "%s/%d", test_tmpdir(), ms % 3); /* some folders are new, some have a log */
        fixture_start(&f, dir);
        fixture_pump_ms(&f, ms * 2);
        int taken = 0;
        for (uint64_t i = 0; i < 20; i++)
            taken += fixture_propose(&f, i, 0) == OK;
        fixture_close(&f);
        assert_int_equal(f.done + f.canceled, taken);
    }
}

/* ---- kill -9 ---- */

struct shared {
    volatile uint64_t acknowledged; /* all numbers up to this one are acknowledged */
    volatile int failed;
    volatile int starts;
};

static struct shared *shared;

static void serve_forever(const char *dir)
{
    struct fixture f = {.threshold = 200};
    fixture_open(&f, dir);
    shared->starts++;
    /* The machine may be ahead of the acknowledged records by those that were under way at the kill; never behind. */
    if (f.machine.last < shared->acknowledged || f.machine.count != f.machine.last ||
        f.machine.hash != machine_hash_of(1, f.machine.last)) {
        shared->failed = 1;
        _exit(1);
    }
    for (uint64_t next = f.machine.last + 1;; next++) {
        while (fixture_propose(&f, next, next % 3000))
            fixture_pump_ms(&f, 1);
        uv_run(&f.loop, next % 16 ? UV_RUN_NOWAIT : UV_RUN_ONCE);
        shared->acknowledged = f.last_result > shared->acknowledged ? f.last_result : shared->acknowledged;
    }
}

static pid_t spawn_server(const char *dir)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        serve_forever(dir);
        _exit(0);
    }
    return pid;
}

static void kill_server(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    if (shared->failed)
        fail_msg("a restarted log had lost acknowledged records (%d acknowledged)", (int)shared->acknowledged);
}

static void share(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    *shared = (struct shared){0};
}

static void verify_all(const char *dir)
{
    struct fixture f = {.threshold = 200};
    fixture_open(&f, dir);
    assert_ok(f.ready_err);
    if (f.machine.last < shared->acknowledged)
        fail_msg("%d records are acknowledged, the log has %d", (int)shared->acknowledged, (int)f.machine.last);
    assert_int_equal(f.machine.hash, machine_hash_of(1, f.machine.last));
    fixture_close(&f);
}

TEST(kill_9_loses_nothing_acknowledged)
{
    const char *dir = test_tmpdir();
    share();
    for (int i = 0; i < 20; i++) {
        uint64_t before = shared->acknowledged;
        pid_t pid = spawn_server(dir);
        int64_t end = clock_mono_ms() + 30000;
        while (shared->acknowledged == before && !shared->failed && clock_mono_ms() < end)
            usleep(500);
        usleep((useconds_t)(i * 1700 % 20000));
        kill_server(pid);
        assert_true(shared->acknowledged > before);
    }
    assert_int_equal(shared->starts, 20);
    verify_all(dir);
}

TEST(kill_9_while_the_log_is_created)
{
    share();
    for (int i = 0; i < 12; i++) {
        char dir[300];
        snprintf(dir, sizeof(dir), "%s/%d", test_tmpdir(), i % 6); /* each folder twice */
        pid_t pid = spawn_server(dir);
        usleep((useconds_t)(500 + i * 900));
        kill_server(pid);
    }
    for (int i = 0; i < 6; i++) {
        char dir[300];
        struct fixture f = {.threshold = 200};
        snprintf(dir, sizeof(dir), "%s/%d", test_tmpdir(), i);
        fixture_open(&f, dir);
        assert_ok(f.ready_err);
        fixture_close(&f);
    }
}

/* ---- damaged files ---- */

/* The first (or last, by name) file of the raft folder with this prefix. */
static void find_file(const char *dir, const char *prefix, char ret[600])
{
    char folder[300], best[256] = "";
    snprintf(folder, sizeof(folder), "%s/log", dir);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0 && (!best[0] || strcmp(e->d_name, best) < 0))
            snprintf(best, sizeof(best), "%s", e->d_name);
    closedir(d);
    if (!best[0])
        fail_msg("no file %s* in %s", prefix, folder);
    snprintf(ret, 600, "%s/%s", folder, best);
}

static off_t last_used_byte(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    for (off_t at = st.st_size - 1; at >= 0; at--) {
        char c;
        assert_int_equal(pread(fd, &c, 1, at), 1);
        if (c)
            return at;
    }
    return -1;
}

TEST(torn_tail_is_cut_off)
{
    const char *dir = test_tmpdir();
    char path[600];
    share();
    pid_t pid = spawn_server(dir);
    int64_t end = clock_mono_ms() + 30000;
    while (shared->acknowledged < 20 && clock_mono_ms() < end)
        usleep(500);
    kill_server(pid);
    find_file(dir, "open-", path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    char garbage[300];
    memset(garbage, 0xa5, sizeof(garbage));
    assert_int_equal(pwrite(fd, garbage, sizeof(garbage), last_used_byte(fd) + 9), sizeof(garbage));
    close(fd);
    verify_all(dir);
    verify_all(dir);
}

TEST(flipped_bit_stops_the_start)
{
    struct fixture f = {0}, g = {0};
    char path[600];
    fixture_open(&f, test_tmpdir());
    propose_range(&f, 1, 100);
    fixture_close(&f);
    find_file(test_tmpdir(), "0000000000000002-", path);
    int fd = open(path, O_RDWR);
    char c;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, 2000), 1);
    c ^= 4;
    assert_int_equal(pwrite(fd, &c, 1, 2000), 1);
    close(fd);
    fixture_open(&g, test_tmpdir());
    assert_err(ERR_CORRUPT, g.ready_err);
    assert_non_null(strstr(g.why, test_tmpdir()));
    assert_err(ERR_AGAIN, fixture_propose(&g, 1, 0));
    fixture_close(&g);
}

/* ---- one changed bit in any file ---- */

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *fmt, ...)
{
    char command[2000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof(command), fmt, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static void flip_bit(const char *path, off_t at, int bit)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Opens DIR/flipped and closes it. Returns the error; without one, all acknowledged records must be there. */
static err_t open_flipped(const char *dir, const char *file, off_t at, uint64_t term)
{
    struct fixture f = {.threshold = 200};
    char flipped[400];
    snprintf(flipped, sizeof(flipped), "%s/flipped", dir);
    fixture_open(&f, flipped);
    if (!f.ready_err && (f.machine.last < shared->acknowledged || f.machine.hash != machine_hash_of(1, f.machine.last)))
        fail_msg("%s byte %ld: %d records are acknowledged, the log has %d, with hash %s", file, (long)at,
                 (int)shared->acknowledged, (int)f.machine.last,
                 f.machine.hash == machine_hash_of(1, f.machine.last) ? "right" : "wrong");
    if (!f.ready_err && log_term(f.log) <= term)
        fail_msg("%s byte %ld: term %d after term %d", file, (long)at, (int)log_term(f.log), (int)term);
    fixture_close(&f);
    return f.ready_err;
}

/* A log with a flipped bit must be whole, or refused; in a refused one nothing else is lost. Returns whether it was
 * refused. */
static bool try_flip(const char *dir, const char *file, off_t at, uint64_t term)
{
    char path[1000];
    snprintf(path, sizeof(path), "%s/flipped/%s", dir, file);
    shell("cd %s && rm -rf flipped && cp -a whole flipped", dir);
    flip_bit(path, at, (int)(at % 8));
    err_t err = open_flipped(dir, file, at, term);
    if (err && err != ERR_CORRUPT && err != ERR_IO)
        fail_msg("%s byte %ld: error %s", file, (long)at, err_name(err));
    if (err) {
        flip_bit(path, at, (int)(at % 8));
        assert_ok(open_flipped(dir, file, at, term));
    }
    return err;
}

/* Names and sizes of the files of DIR/whole and DIR/whole/log, as `find` reports them. */
static FILE *list_files(const char *dir)
{
    char command[600];
    snprintf(command, sizeof(command),
             "cd %s/whole && find . -type f ! -name reserve -size +0 -printf '%%P %%s\\n' | sort", dir);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    return list;
}

/* Each file is flipped at about this many places, those of small files at each 7th byte. */
#define PLACES 24

static void flip_everywhere(const char *dir, uint64_t term)
{
    char name[300], path[1000];
    long size;
    int n_files = 0, n_refused = 0;
    FILE *list = list_files(dir);
    for (; fscanf(list, "%299s %ld", name, &size) == 2; n_files++) {
        snprintf(path, sizeof(path), "%s/whole/%s", dir, name);
        int fd = open(path, O_RDONLY);
        off_t used = last_used_byte(fd) + 1;
        close(fd);
        off_t step = used / PLACES > 7 ? used / PLACES : 7;
        for (off_t at = step / 2; at < used; at += step)
            n_refused += try_flip(dir, name, at, term);
    }
    pclose(list);
    assert_true(n_files >= 5);
    assert_true(n_refused >= 2 * PLACES);
}

/* After kill -9 the newest entries are in an open segment. */
TEST(a_flipped_bit_never_loses_acknowledged_records)
{
    char whole[300];
    snprintf(whole, sizeof(whole), "%s/whole", test_tmpdir());
    share();
    pid_t pid = spawn_server(whole);
    int64_t end = clock_mono_ms() + 30000;
    while (shared->acknowledged < 650 && clock_mono_ms() < end)
        usleep(500);
    kill_server(pid);
    assert_true(shared->acknowledged >= 650);
    flip_everywhere(test_tmpdir(), 1);
}

/* A batch in front of sound ones was not the last write, even if the file of marks is missing. */
TEST(damage_in_front_of_sound_batches_is_told_from_a_cut_write)
{
    char path[600];
    struct fixture f = {.threshold = 200};
    share();
    pid_t pid = spawn_server(test_tmpdir());
    int64_t end = clock_mono_ms() + 30000;
    while (shared->acknowledged < 100 && clock_mono_ms() < end)
        usleep(500);
    kill_server(pid);
    shell("rm %s/log/marks", test_tmpdir());
    find_file(test_tmpdir(), "open-", path);
    flip_bit(path, 3000, 3);
    fixture_open(&f, test_tmpdir());
    assert_err(ERR_CORRUPT, f.ready_err);
    assert_non_null(strstr(f.why, path));
    assert_non_null(strstr(f.why, "behind byte"));
    fixture_close(&f);
}
