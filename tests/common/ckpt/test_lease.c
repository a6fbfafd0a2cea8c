/* The lease of a checkpoint directory: taking, renewing, releasing, and what another job observes. Two owners are two
 * structs here; what differs between processes and machines is only when they read and write. */
#include "tests/common/ckpt/ckpt_fixture.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/lease.h"
#include "common/ckpt/marker.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define RENEW_MS 20 /* a stale lease is then one after 0.3 s */

static char root[300];
static const struct ckpt_writer_id job_a = {.job = "1", .submitted_ms = 1000, .epoch = 1, .writer = 11};
static const struct ckpt_writer_id job_b = {.job = "1", .submitted_ms = 2000, .epoch = 1, .writer = 22};

static void root_make(void)
{
    snprintf(root, sizeof(root), "%s/ckpt", test_tmpdir());
    assert_ok(file_make_dirs(root, 0777));
}

static struct ckpt_lease_info mine(const struct ckpt_writer_id *by)
{
    return (struct ckpt_lease_info){.by = *by, .renew_ms = RENEW_MS, .pid = 4711, .host = "n7", .dtd_dir = "/x/dtd"};
}

static struct ckpt_lease take(const struct ckpt_writer_id *by, uint64_t after)
{
    const struct ckpt_lease_info info = mine(by);
    struct ckpt_lease l;
    struct why why = {""};
    if (ckpt_lease_take(root, &info, after, &l, &why))
        fail_msg("%s", why.text);
    return l;
}

static enum ckpt_lease_state look(const struct ckpt_writer_id *me, uint64_t take_over, struct ckpt_lease_watch *w)
{
    struct ckpt_lease_info info;
    enum ckpt_lease_state state;
    struct why why = {""};
    if (ckpt_lease_look(root, me, take_over, w, &state, &info, &why))
        fail_msg("%s", why.text);
    return state;
}

static char *path_of(uint64_t generation)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" CKPT_LEASE_PREFIX "%llu", root, (unsigned long long)generation);
    return path;
}

static bool there(uint64_t generation)
{
    struct stat st;
    return lstat(path_of(generation), &st) == 0;
}

/* ---- one owner after the other ---- */

TEST(free_taken_released_taken)
{
    struct ckpt_lease_watch w = {0};
    struct why why;
    root_make();
    assert_int_equal(look(&job_a, 0, &w), CKPT_LEASE_FREE);
    assert_ok(ckpt_lease_check(root, &job_a, &why)); /* no lease: written by an earlier version */
    struct ckpt_lease a = take(&job_a, w.generation);
    assert_true(there(1));
    assert_ok(ckpt_lease_check(root, &job_a, &why));
    assert_err(ERR_OWNED, ckpt_lease_check(root, &job_b, &why));
    assert_ok(ckpt_lease_renew(root, &a, &why));
    assert_ok(ckpt_lease_release(&a, &why));
    assert_true(there(1)); /* or a late process could take generation 1 again */
    w = (struct ckpt_lease_watch){0};
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_FREE);
    struct ckpt_lease b = take(&job_b, w.generation);
    assert_true(there(2));
    assert_false(there(1));
    assert_ok(ckpt_lease_check(root, &job_b, &why));
    assert_err(ERR_OWNED, ckpt_lease_check(root, &job_a, &why));
    ckpt_lease_drop(&b);
}

TEST(names_the_owner)
{
    struct ckpt_lease_watch w = {0};
    struct ckpt_lease_info info;
    enum ckpt_lease_state state;
    struct why why;
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    a.since_ms -= 25 * 60 * 1000;
    assert_ok(ckpt_lease_renew(root, &a, &why));
    assert_ok(ckpt_lease_look(root, &job_b, 0, &w, &state, &info, &why));
    assert_err(ERR_OWNED, ckpt_lease_refuse(root, &info, true, &why));
    assert_non_null(strstr(why.text, root));
    assert_non_null(strstr(why.text, "job 1 on host n7 (pid 4711, DTD_DIR /x/dtd), which has held it for 25 min"));
    assert_non_null(strstr(why.text, "--take-over"));
    ckpt_lease_drop(&a);
}

/* ---- what another job observes ---- */

TEST(living_after_one_renewal)
{
    struct ckpt_lease_watch w = {0};
    struct why why;
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_WAIT);
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_WAIT);
    assert_ok(ckpt_lease_renew(root, &a, &why));
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_LIVING);
    ckpt_lease_drop(&a);
}

/* Nothing but the time for which the observer saw no change counts: the file's times are as wrong as they can be. */
TEST(stale_after_missed_renewals)
{
    static const struct timespec far[2] = {{4000000000, 0}, {4000000000, 0}};
    struct ckpt_lease_watch w = {0};
    enum ckpt_lease_state state;
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(utimensat(AT_FDCWD, path_of(1), far, 0), 0);
    int64_t began = clock_mono_ms();
    while ((state = look(&job_b, 0, &w)) == CKPT_LEASE_WAIT)
        usleep(RENEW_MS * 500);
    assert_int_equal(state, CKPT_LEASE_FREE);
    assert_true(clock_mono_ms() - began >= RENEW_MS * CKPT_LEASE_MISSED);
    struct ckpt_lease b = take(&job_b, w.generation);
    struct why why;
    assert_err(ERR_OWNED, ckpt_lease_renew(root, &a, &why)); /* it had only paused */
    assert_non_null(strstr(why.text, "was taken over by job 1 on host n7"));
    assert_err(ERR_OWNED, ckpt_lease_renew(root, &a, &why));
    assert_ok(ckpt_lease_release(&a, &why));
    assert_ok(ckpt_lease_check(root, &job_b, &why));
    assert_ok(ckpt_lease_renew(root, &b, &why));
    ckpt_lease_drop(&b);
}

/* An observer that was stopped for long has read twice only, and cannot decide whether the owner was stopped too. */
TEST(a_pause_of_the_observer_counts_as_one_renewal)
{
    struct ckpt_lease_watch w = {0};
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_WAIT);
    w.looked_ms -= 3600 * 1000;
    assert_int_equal(look(&job_b, 0, &w), CKPT_LEASE_WAIT);
    assert_true(w.quiet_ms <= RENEW_MS);
    ckpt_lease_drop(&a);
}

TEST(a_later_epoch_does_not_wait)
{
    struct ckpt_lease_watch w = {0};
    struct ckpt_writer_id later = job_a;
    struct why why;
    root_make();
    later.epoch = 2;
    later.writer = 12;
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(look(&later, 0, &w), CKPT_LEASE_OWN_JOB);
    struct ckpt_lease b = take(&later, w.generation);
    assert_err(ERR_STALE, ckpt_lease_renew(root, &a, &why));
    assert_non_null(strstr(why.text, "epoch 2 of this job"));
    assert_ok(ckpt_lease_renew(root, &b, &why));
    assert_ok(ckpt_lease_check(root, &job_a, &why)); /* .dtd.epoch distinguishes epochs of one job */
    ckpt_lease_drop(&a);
    ckpt_lease_drop(&b);
}

/* --take-over names the job that the user saw. It does not apply to a job that came after that one. */
TEST(take_over_of_a_named_job)
{
    struct ckpt_lease_watch w = {0};
    const struct ckpt_writer_id job_c = {.job = "9", .submitted_ms = 3000, .epoch = 1, .writer = 33};
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(look(&job_b, ckpt_incarnation(&job_c), &w), CKPT_LEASE_WAIT);
    assert_int_equal(look(&job_b, ckpt_incarnation(&job_a), &w), CKPT_LEASE_FREE);
    struct ckpt_lease b = take(&job_b, w.generation);
    w = (struct ckpt_lease_watch){0};
    assert_int_equal(look(&job_c, ckpt_incarnation(&job_a), &w), CKPT_LEASE_WAIT);
    ckpt_lease_drop(&a);
    ckpt_lease_drop(&b);
}

/* ---- several at once ---- */

/* It found generation 1 free. Meanwhile others took generation 2 and 3, and removed what was older. */
TEST(a_late_process_takes_nothing)
{
    const struct ckpt_lease_info info = mine(&job_a);
    struct ckpt_lease l;
    struct why why;
    root_make();
    struct ckpt_lease one = take(&job_a, 0);
    assert_ok(ckpt_lease_release(&one, &why));
    struct ckpt_lease two = take(&job_b, 1), three = take(&job_b, 2);
    assert_false(there(2));
    assert_err(ERR_AGAIN, ckpt_lease_take(root, &info, 1, &l, &why));
    assert_false(there(2));
    assert_ok(ckpt_lease_renew(root, &three, &why));
    assert_err(ERR_AGAIN, ckpt_lease_take(root, &info, 2, &l, &why)); /* it exists */
    assert_ok(ckpt_lease_renew(root, &three, &why));
    ckpt_lease_drop(&two);
    ckpt_lease_drop(&three);
}

#define N_RACERS 8
#define N_ROUNDS 50

struct racer {
    pthread_barrier_t *barrier;
    struct ckpt_writer_id id;
    uint64_t after;
    struct ckpt_lease lease;
    err_t err;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    const struct ckpt_lease_info info = mine(&r->id);
    pthread_barrier_wait(r->barrier);
    r->err = ckpt_lease_take(root, &info, r->after, &r->lease, NULL);
    return NULL;
}

TEST(one_of_many_wins)
{
    pthread_barrier_t barrier;
    root_make();
    pthread_barrier_init(&barrier, NULL, N_RACERS);
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        struct racer r[N_RACERS];
        pthread_t threads[N_RACERS];
        int won = 0;
        for (int i = 0; i < N_RACERS; i++) {
            r[i] = (struct racer){.barrier = &barrier, .id = job_a, .after = round};
            r[i].id.submitted_ms += i;
            assert_int_equal(pthread_create(&threads[i], NULL, race, &r[i]), 0);
        }
        for (int i = 0; i < N_RACERS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < N_RACERS; i++) {
            won += r[i].err == OK;
            assert_true(r[i].err == OK || r[i].err == ERR_AGAIN);
            if (r[i].err == OK) {
                assert_ok(ckpt_lease_check(root, &r[i].id, NULL));
                ckpt_lease_drop(&r[i].lease);
            }
        }
        assert_int_equal(won, 1);
    }
    pthread_barrier_destroy(&barrier);
}

/* ---- damage ---- */

/* A file that is not a lease, or the empty one of a process that was killed between two system calls, holds the
 * directory as long as a stale lease. */
TEST(a_damaged_lease_gets_stale)
{
    struct ckpt_lease_watch w = {0};
    struct ckpt_lease_info info;
    enum ckpt_lease_state state;
    struct why why;
    root_make();
    assert_ok(file_replace(path_of(3), "", 0, 0666));
    assert_err(ERR_CORRUPT, ckpt_lease_check(root, &job_a, &why));
    assert_non_null(strstr(why.text, "remove it"));
    assert_ok(ckpt_lease_look(root, &job_a, 0, &w, &state, &info, &why));
    assert_int_equal(state, CKPT_LEASE_WAIT);
    assert_false(info.known);
    for (int i = 0; i < CKPT_LEASE_MISSED; i++) {
        w.looked_ms -= CKPT_LEASE_RENEW_MS;
        state = look(&job_a, 0, &w);
    }
    assert_int_equal(state, CKPT_LEASE_FREE);
    struct ckpt_lease a = take(&job_a, w.generation);
    assert_true(there(4));
    assert_false(there(3));
    ckpt_lease_drop(&a);
}

TEST(a_link_is_no_lease)
{
    struct ckpt_lease_watch w = {0};
    char target[PATH_MAX];
    struct why why;
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    snprintf(target, sizeof(target), "%s/precious", test_tmpdir());
    assert_int_equal(rename(path_of(1), target), 0);
    assert_int_equal(symlink(target, path_of(1)), 0);
    assert_err(ERR_CORRUPT, ckpt_lease_check(root, &job_a, &why));
    assert_int_equal(look(&job_a, 0, &w), CKPT_LEASE_WAIT);
    assert_int_equal(symlink(target, path_of(2)), 0);
    const struct ckpt_lease_info info = mine(&job_b);
    struct ckpt_lease b;
    assert_err(ERR_AGAIN, ckpt_lease_take(root, &info, 1, &b, &why)); /* not written through the link */
    ckpt_lease_drop(&a);
}

/* A user removes the file: the owner writes it again. */
TEST(a_removed_lease_comes_back)
{
    struct why why;
    root_make();
    struct ckpt_lease a = take(&job_a, 0);
    assert_int_equal(unlink(path_of(1)), 0);
    assert_ok(ckpt_lease_check(root, &job_a, &why));
    assert_ok(ckpt_lease_renew(root, &a, &why));
    assert_true(there(1));
    assert_err(ERR_OWNED, ckpt_lease_check(root, &job_b, &why));
    ckpt_lease_drop(&a);
}

TEST(illegal_bodies)
{
    struct ckpt_lease_info l = mine(&job_a), back;
    struct buf b = {0};
    assert_ok(ckpt_lease_encode(&l, &b));
    assert_int_equal(b.len, 2 * 8 + 5 * 4 + strlen("n7") + strlen("/x/dtd"));
    assert_ok(ckpt_lease_decode(b.data, b.len, &back));
    assert_string_equal(back.host, "n7");
    assert_string_equal(back.dtd_dir, "/x/dtd");
    assert_int_equal(back.renew_ms, RENEW_MS);
    for (size_t n = 0; n < b.len; n++)
        assert_err(ERR_CORRUPT, ckpt_lease_decode(b.data, n, &back));
    static const struct {
        size_t at;
        uint8_t value;
    } cases[] = {{15, 0x80} /* held_ms < 0 */,
                 {24, 2} /* flags */,
                 {28, 255} /* host */,
                 {32, 255} /* dtd_dir */,
                 {36, 0} /* a zero in the host */};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t before = b.data[cases[i].at];
        b.data[cases[i].at] = cases[i].value;
        if (ckpt_lease_decode(b.data, b.len, &back) != ERR_CORRUPT)
            fail_msg("case %zu", i);
        b.data[cases[i].at] = before;
    }
    buf_fini(&b);
}

/* ---- the write path ---- */

TEST(nothing_is_written_without_the_lease)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    struct ckpt_part *parts[2];
    struct stat st;
    char path[PATH_MAX];
    struct why why;
    root_make();
    fixture_shard(&f, 2);
    struct ckpt_lease a = take(&job_a, 0);
    assert_err(ERR_OWNED, ckpt_prepare(root, &job_b, 0, &why));
    snprintf(path, sizeof(path), "%s/" CKPT_EPOCH_FILE, root);
    assert_int_equal(stat(path, &st), -1);
    assert_ok(ckpt_prepare(root, &job_a, 0, &why));
    fixture_write_parts_of(&f, root, 5, &job_a, 2, parts);
    struct ckpt_lease b = take(&job_b, 1); /* the successor has not prepared the directory yet */
    const struct ckpt_commit c = {.root = root, .step = 5, .epoch = 1, .loss = 1, .me = &job_a};
    assert_err(ERR_OWNED, ckpt_commit(&c, parts, 2, &why));
    assert_non_null(strstr(why.text, "was taken over by job 1"));
    snprintf(path, sizeof(path), "%s/step-5", root);
    assert_int_equal(stat(path, &st), -1);
    for (int r = 0; r < 2; r++)
        ckpt_part_free(parts[r]);
    fixture_free(&f);
    ckpt_lease_drop(&a);
    ckpt_lease_drop(&b);
}

/* Both sides of a recovery continue the same job, with the same number and the same time of its submission. The epochs
 * of the lost voters' side may be higher. */
TEST(the_recovered_cluster_owns_its_job)
{
    const struct ckpt_writer_id before = {.job = "1", .submitted_ms = 1000, .epoch = 7, .writer = 11};
    const struct ckpt_writer_id after = {.job = "1", .submitted_ms = 1000, .epoch = 2, .writer = 33, .generation = 2};
    struct ckpt_lease_watch w = {0};
    struct why why = {""};
    root_make();
    struct ckpt_lease old = take(&before, 0);
    assert_int_equal(CKPT_LEASE_OWN_JOB, look(&after, 0, &w)); /* without a wait */
    struct ckpt_lease new = take(&after, w.generation);
    assert_err(ERR_OWNED, ckpt_lease_renew(root, &old, &why));
    assert_non_null(strstr(why.text, "was taken over by job 1 of the recovered cluster on host n7"));
    assert_err(ERR_OWNED, ckpt_lease_check(root, &before, &why));
    assert_ok(ckpt_lease_check(root, &after, &why));
    assert_int_equal(CKPT_LEASE_LIVING, look(&before, 0, &w));
    assert_int_equal(CKPT_LEASE_OWN_JOB, look(&after, 0, &w));
    ckpt_lease_drop(&old);
    /* Also while nothing of the recovered cluster runs. */
    assert_ok(ckpt_lease_release(&new, &why));
    assert_int_equal(CKPT_LEASE_LIVING, look(&before, 0, &w));
    assert_err(ERR_OWNED, ckpt_prepare(root, &before, 0, &why));
    assert_ok(ckpt_prepare(root, &after, 0, &why));
}

/* A running epoch continues in a recovered cluster: its lease gets the generation when it is renewed. */
TEST(a_renewal_carries_the_generation)
{
    struct ckpt_writer_id after = job_a;
    struct ckpt_lease_watch w = {0};
    struct why why = {""};
    root_make();
    struct ckpt_lease l = take(&job_a, 0);
    after.generation = l.info.by.generation = 3;
    assert_ok(ckpt_lease_renew(root, &l, &why));
    struct ckpt_writer_id next = job_a;
    next.epoch = 2; /* of the lost voters */
    assert_int_equal(CKPT_LEASE_LIVING, look(&next, 0, &w));
    assert_int_equal(CKPT_LEASE_OWN_JOB, look(&after, 0, &w));
    assert_int_equal(CKPT_LEASE_OWN_JOB, look(&job_a, 0, &w)); /* of this epoch, and has not received it yet */
    assert_ok(ckpt_lease_check(root, &job_a, &why));
    ckpt_lease_drop(&l);
}
