/* Two jobs and one checkpoint directory: the dtd-io of each, with the lease between them. The jobs have the same
 * number, as the first jobs of two clusters do, and were submitted at different times. */
#include "tests/daemon/io/io_harness.h"

#include "common/base/file.h"
#include "common/ckpt/lease.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define COMMITTED DTD__IO_REPORT__KIND__COMMITTED
#define SCANNED DTD__IO_REPORT__KIND__SCANNED
#define LOST DTD__IO_REPORT__KIND__LOST
#define FIRST_MS 1700000000000
#define SECOND_MS 1700000000001

static const char *const fast[] = {"--lease-ms", "40", NULL}; /* stale after 0.6 s */
/* Stale after 75 s, longer than any test here waits: what does not wait for that was not held up by the lease. */
static const char *const slow[] = {"--lease-ms", "5000", NULL};

struct two_jobs {
    struct io_test t[2];
    struct io_worker w[2];
    struct fixture f;
    int seen[2]; /* number of reports that the test has looked at */
};

static void two_start(struct two_jobs *j, const char *const *args)
{
    *j = (struct two_jobs){.f = {.tensors = fixture_model, .n_tensors = fixture_n_model}};
    fixture_shard(&j->f, 1);
    io_test_start_with(&j->t[0], 1, 1 * MIB, args);
    io_test_join(&j->t[1], &j->t[0], 1);
    for (int k = 0; k < 2; k++)
        io_worker_open(&j->w[k], &j->t[k], 0);
}

static void two_stop(struct two_jobs *j)
{
    for (int k = 0; k < 2; k++)
        io_worker_close(&j->w[k]);
    for (int k = 1; k >= 0; k--)
        io_test_stop(&j->t[k]);
    fixture_free(&j->f);
}

static int64_t submitted(int k)
{
    return k ? SECOND_MS : FIRST_MS;
}

static struct ckpt_writer_id id_of(int k)
{
    return (struct ckpt_writer_id){.job = "7", .submitted_ms = submitted(k), .epoch = 1};
}

/* The text of SCANNED: "", or why the job cannot run. */
static const char *scan(struct two_jobs *j, int k)
{
    io_say_scan(&j->t[k], submitted(k));
    return io_report_wait(&j->t[k], SCANNED, &j->seen[k], 20000)->text;
}

static void epoch(struct two_jobs *j, int k, uint64_t number, int64_t step)
{
    const struct io_part_of alone = {.committer = true, .n_ios = 1, .submitted_ms = submitted(k)};
    io_say_share(&j->t[k], number, step, &alone);
}

static void begin(struct two_jobs *j, int k)
{
    assert_string_equal(scan(j, k), "");
    epoch(j, k, 1, 0);
}

static void save(struct two_jobs *j, int k, uint64_t number, int64_t step, err_t err)
{
    struct io_op op;
    io_save(&j->w[k], &j->f, number, step, 0, 1, &op);
    io_until(&j->t[0], &op.done, 20000, "the end of the save");
    if (op.err != err)
        print_error("text: %s\n", op.text);
    assert_err(err, op.err);
}

static bool exists(const struct two_jobs *j, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", j->t[0].root, name);
    return lstat(path, &st) == 0;
}

static void verify(const struct two_jobs *j, int64_t step)
{
    char path[PATH_MAX];
    struct why why = {""};
    assert_ok(ckpt_step_dir(j->t[0].root, step, path, sizeof(path)));
    if (ckpt_verify(path, NULL, NULL, &why))
        fail_msg("%s", why.text);
}

/* Names, sizes and times of everything in the directory except the lease, which its owner renews. */
static void listing(const struct two_jobs *j, struct buf *ret)
{
    struct dirent **names;
    int n = scandir(j->t[0].root, &names, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        char line[PATH_MAX];
        struct stat st;
        snprintf(line, sizeof(line), "%s/%s", j->t[0].root, names[i]->d_name);
        bool lease = strncmp(names[i]->d_name, CKPT_LEASE_PREFIX, strlen(CKPT_LEASE_PREFIX)) == 0;
        if (strcmp(names[i]->d_name, "..") != 0 && !lstat(line, &st)) {
            snprintf(line, sizeof(line), "%s %lld %lld.%09ld\n", names[i]->d_name, lease ? 0 : (long long)st.st_size,
                     lease ? 0 : (long long)st.st_mtim.tv_sec, lease ? 0 : st.st_mtim.tv_nsec);
            assert_ok(buf_append(ret, line, strlen(line)));
        }
        free(names[i]);
    }
    free(names);
}

static void same_listing(const struct two_jobs *j, struct buf *before)
{
    struct buf after = {0};
    listing(j, &after);
    assert_ok(buf_append(before, "", 1));
    assert_ok(buf_append(&after, "", 1));
    assert_string_equal(before->data, after.data);
    buf_fini(before);
    buf_fini(&after);
}

static struct ckpt_lease_info newest(const struct two_jobs *j)
{
    struct ckpt_lease_watch w = {0};
    struct ckpt_lease_info l;
    enum ckpt_lease_state state;
    assert_ok(ckpt_lease_look(j->t[0].root, NULL, 0, &w, &state, &l, NULL));
    return l;
}

/* ---- */

TEST(second_job_is_refused)
{
    struct two_jobs j;
    struct buf before = {0};
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    listing(&j, &before);
    const char *text = scan(&j, 1);
    assert_non_null(strstr(text, " is in use by job 7 on host "));
    assert_non_null(strstr(text, j.t[0].dir)); /* the DTD_DIR of the owner */
    assert_non_null(strstr(text, "--take-over"));
    same_listing(&j, &before);
    save(&j, 0, 1, 6, OK);
    verify(&j, 6);
    two_stop(&j);
}

/* A job that sends no SCAN, as after the loss of the report: EPOCH takes no lease of a living owner either. */
TEST(epoch_without_scan_is_refused)
{
    struct two_jobs j;
    struct buf before = {0};
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    listing(&j, &before);
    epoch(&j, 1, 1, 0);
    assert_non_null(strstr(io_report_wait(&j.t[1], LOST, &j.seen[1], 20000)->text, " is in use by job 7 on host "));
    save(&j, 1, 1, 6, ERR_OWNED);
    io_say(&j.t[1], DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{}\n");
    io_say(&j.t[1], DTD__IO_COMMAND__KIND__REMOVE, 0, 5, "");
    io_say(&j.t[1], DTD__IO_COMMAND__KIND__QUIT, 0, 0, "");
    assert_int_equal(io_wait_exit(&j.t[1], 20000), 0);
    same_listing(&j, &before);
    save(&j, 0, 1, 6, OK);
    verify(&j, 6);
    two_stop(&j);
}

TEST(killed_owner_is_succeeded)
{
    struct two_jobs j;
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    io_kill(&j.t[0]);
    assert_int_equal(newest(&j).generation, 1);
    epoch(&j, 1, 1, 5);
    assert_string_equal(scan(&j, 1), "");
    save(&j, 1, 1, 6, OK);
    assert_int_equal(newest(&j).generation, 2);
    verify(&j, 6);
    two_stop(&j);
}

TEST(owner_that_exits_releases)
{
    struct two_jobs j;
    two_start(&j, slow);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    assert_false(newest(&j).released);
    io_say(&j.t[0], DTD__IO_COMMAND__KIND__QUIT, 0, 0, "");
    assert_int_equal(io_wait_exit(&j.t[0], 20000), 0);
    assert_true(newest(&j).released);
    begin(&j, 1);
    save(&j, 1, 1, 6, OK);
    two_stop(&j);
}

/* The same job in a new process, in the same epoch and in a later one. */
TEST(restart_does_not_wait)
{
    struct two_jobs j;
    two_start(&j, slow);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    for (uint64_t number = 1; number <= 2; number++) {
        io_kill(&j.t[0]);
        io_until(&j.t[0], &j.w[0].closed, 5000, "close");
        io_spawn(&j.t[0], 0);
        io_worker_open(&j.w[0], &j.t[0], 0);
        assert_string_equal(scan(&j, 0), "");
        epoch(&j, 0, number, 5);
        save(&j, 0, number, 5 + (int64_t)number, OK);
        assert_int_equal(newest(&j).by.epoch, number);
        assert_int_equal(newest(&j).generation, 1 + number);
    }
    two_stop(&j);
}

/* The process of an earlier epoch, on a node that could not be reached: it commits nothing, and is no error of the job.
 * SCAN alone replaces nothing, because a leader without a majority may send it. */
TEST(later_epoch_elsewhere)
{
    struct two_jobs j;
    const struct io_part_of same = {.committer = true, .n_ios = 1, .submitted_ms = FIRST_MS};
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    io_say_scan(&j.t[1], FIRST_MS);
    assert_string_equal(io_report_wait(&j.t[1], SCANNED, &j.seen[1], 20000)->text, "");
    assert_int_equal(newest(&j).generation, 1);
    save(&j, 0, 1, 6, OK);
    io_say_share(&j.t[1], 2, 6, &same);
    save(&j, 1, 2, 7, OK);
    assert_int_equal(newest(&j).generation, 2);
    save(&j, 0, 1, 9, ERR_STALE);
    io_run_ms(&j.t[0], 300);
    for (int i = 0; i < j.t[0].n_reports; i++)
        assert_int_not_equal(j.t[0].reports[i].kind, LOST);
    save(&j, 1, 2, 8, OK);
    verify(&j, 7);
    two_stop(&j);
}

/* Makes the job of dtd-io 1 one that takes over from the job of dtd-io 0. */
static void name_owner(struct two_jobs *j)
{
    const struct ckpt_writer_id owner = id_of(0);
    char *at = strstr(j->t[1].yaml, "}\nrun:"), rest[200];
    snprintf(rest, sizeof(rest), "%s", at);
    sprintf(at, ", take_over: \"%016" PRIx64 "\"%s", ckpt_incarnation(&owner), rest);
}

static bool in_folder(const struct two_jobs *j, const char *ending)
{
    bool found = false;
    DIR *d = opendir(j->t[0].root);
    for (struct dirent *e; (e = readdir(d));)
        found = found || strstr(e->d_name, ending);
    closedir(d);
    return found;
}

TEST(take_over)
{
    struct two_jobs j;
    struct io_op op;
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    name_owner(&j);
    assert_string_equal(scan(&j, 1), "");
    const struct io_seen *lost = io_report_wait(&j.t[0], LOST, &j.seen[0], 20000);
    assert_non_null(strstr(lost->text, " was taken over by job 7 on host "));
    assert_non_null(strstr(lost->text, j.t[1].dir));
    save(&j, 0, 1, 6, ERR_OWNED);
    epoch(&j, 1, 1, 5);
    save(&j, 1, 1, 6, OK);
    verify(&j, 6);
    io_save(&j.w[0], &j.f, 1, 6, 0, 1, &op); /* repeated, as after a lost connection */
    io_until(&j.t[0], &op.done, 20000, "the end of the save");
    assert_err(ERR_OWNED, op.err);
    assert_false(in_folder(&j, ".partial"));
    int n = 0;
    for (int i = 0; i < j.t[0].n_reports; i++)
        n += j.t[0].reports[i].kind == LOST;
    assert_int_equal(n, 1);
    two_stop(&j);
}

/* The owner stops for longer than its lease lasts, with a save under way, and continues when another job has saved. */
TEST(owner_that_paused)
{
    struct two_jobs j;
    struct io_op op;
    two_start(&j, fast);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    kill(j.t[0].pid, SIGSTOP);
    io_save(&j.w[0], &j.f, 1, 6, 0, 1, &op);
    assert_string_equal(scan(&j, 1), "");
    epoch(&j, 1, 1, 5);
    save(&j, 1, 1, 6, OK);
    save(&j, 1, 1, 7, OK);
    kill(j.t[0].pid, SIGCONT);
    io_until(&j.t[0], &op.done, 20000, "the end of the save");
    assert_err(ERR_OWNED, op.err);
    assert_non_null(strstr(op.text, " was taken over by job 7"));
    io_report_wait(&j.t[0], LOST, &j.seen[0], 20000);
    save(&j, 1, 1, 8, OK);
    for (int step = 6; step <= 8; step++)
        verify(&j, step);
    assert_false(exists(&j, "step-6.e1"));
    two_stop(&j);
}

/* Two dtd-ios find the same lease released. One gets it; the other observes that one. */
TEST(two_start_at_once)
{
    struct two_jobs j;
    two_start(&j, fast);
    for (int k = 0; k < 2; k++)
        io_say_scan(&j.t[k], submitted(k));
    int refused = 0, winner = 0;
    for (int k = 0; k < 2; k++) {
        bool in_use = strstr(io_report_wait(&j.t[k], SCANNED, &j.seen[k], 20000)->text, "is in use by") != NULL;
        refused += in_use;
        winner = in_use ? winner : k;
    }
    assert_int_equal(refused, 1);
    epoch(&j, winner, 1, 0);
    save(&j, winner, 1, 5, OK);
    two_stop(&j);
}

/* While it waits for a lease to become stale, dtd-io serves control: SCAN again, and QUIT. */
TEST(quit_while_it_waits)
{
    struct two_jobs j;
    two_start(&j, slow);
    begin(&j, 0);
    save(&j, 0, 1, 5, OK);
    io_kill(&j.t[0]);
    io_say_scan(&j.t[1], SECOND_MS);
    io_say_scan(&j.t[1], SECOND_MS);
    io_run_ms(&j.t[1], 700);
    assert_int_equal(j.t[1].n_reports, 0);
    io_say(&j.t[1], DTD__IO_COMMAND__KIND__QUIT, 0, 0, "");
    assert_int_equal(io_wait_exit(&j.t[1], 20000), 0);
    assert_int_equal(newest(&j).generation, 1);
    two_stop(&j);
}
