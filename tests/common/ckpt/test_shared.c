/* Markers in a shared checkpoint directory: their bytes, the owner of the directory, indexes of parts, the outcome of a
 * save; and the fence against a committer of an older epoch, at the moment of its rename. */
#include "tests/common/ckpt/ckpt_fixture.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/marker.h"
#include "common/ckpt/part.h"
#include "common/ckpt/sums.h"
#include "tests/common/ckpt/golden.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

/* ---- what happens right before or after a rename of the committer ---- */

static void (*before_rename)(const char *from), (*after_rename)(void);

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __wrap_rename(const char *from, const char *to)
{
    void (*before)(const char *) = before_rename, (*after)(void) = after_rename;
    before_rename = NULL;
    after_rename = NULL;
    if (before)
        before(from);
    int status = __real_rename(from, to), saved = errno;
    if (after)
        after();
    errno = saved;
    return status;
}

/* ---- helpers ---- */

static char root[300];

static void root_make(void)
{
    snprintf(root, sizeof(root), "%s/ckpt", test_tmpdir());
}

static struct ckpt_writer_id writer_id(uint64_t epoch, uint64_t writer)
{
    return (struct ckpt_writer_id){.job = "7", .submitted_ms = 1000, .epoch = epoch, .writer = writer};
}

static struct ckpt_shared_save save_of(uint64_t epoch, int64_t step)
{
    return (struct ckpt_shared_save){.root = root, .me = writer_id(epoch, 1), .step = step, .world = 2};
}

static struct fixture model(void)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 2);
    return f;
}

static err_t commit_as(const struct ckpt_writer_id *me, int64_t step, struct ckpt_part *const *parts, struct why *why)
{
    const struct ckpt_commit c = {.root = root, .step = step, .epoch = me->epoch, .loss = 1, .me = me};
    return ckpt_commit(&c, parts, 2, why);
}

static bool exists(const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", root, name);
    return lstat(path, &st) == 0;
}

/* The name of the folder of an open save of job 7. */
static const char *open_name(int64_t step, uint64_t epoch, const char *kind)
{
    static char names[2][CKPT_OPEN_NAME];
    static int at;
    struct ckpt_writer_id id = writer_id(epoch, 1);
    at = !at;
    ckpt_open_name(step, &id, kind, names[at]);
    return names[at];
}

static const char *in_folder(const char *folder, const char *name)
{
    static char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void parts_write(const struct fixture *f, int64_t step, uint64_t epoch, struct ckpt_part **parts)
{
    struct ckpt_writer_id id = writer_id(epoch, 1);
    fixture_write_parts_of(f, root, step, &id, 2, parts);
}

static void put_file(const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    assert_ok(file_replace(path, data, len, 0666));
}

static void parts_free(struct ckpt_part **parts)
{
    for (int r = 0; r < 2; r++)
        ckpt_part_free(parts[r]);
}

/* ---- bytes ---- */

static const struct marker failed = {.kind = MARKER_FAILED,
                                     .by = {.job = "7", .submitted_ms = 1700000000000, .epoch = 3, .writer = 0x1122},
                                     .step = 200,
                                     .rank = 1,
                                     .world = 2,
                                     .code = ERR_NOSPACE,
                                     .body = "no space",
                                     .body_bytes = 8};

TEST(bytes_of_a_word)
{
    struct buf b = {0}, golden;
    struct marker w;
    golden_read("word", &golden);
    assert_ok(marker_encode(&failed, &b));
    assert_int_equal(b.len, golden.len);
    assert_memory_equal(b.data, golden.data, golden.len);
    buf_fini(&golden);
    assert_ok(marker_decode(b.data, b.len, &w));
    assert_int_equal(w.kind, MARKER_FAILED);
    assert_int_equal(w.code, ERR_NOSPACE);
    assert_int_equal(w.step, 200);
    assert_int_equal(w.rank, 1);
    assert_int_equal(w.world, 2);
    assert_string_equal(w.by.job, "7");
    assert_int_equal(w.by.submitted_ms, 1700000000000);
    assert_int_equal(w.by.epoch, 3);
    assert_int_equal(w.by.writer, 0x1122);
    assert_memory_equal(w.body, "no space", 8);
    buf_fini(&b);
}

TEST(every_flipped_bit_and_every_cut_is_refused)
{
    struct buf b = {0};
    struct marker w;
    assert_ok(marker_encode(&failed, &b));
    for (size_t i = 0; i < b.len; i++) {
        assert_err(ERR_CORRUPT, marker_decode(b.data, i, &w));
        for (int bit = 0; bit < 8; bit++) {
            b.data[i] ^= (uint8_t)(1 << bit);
            assert_err(ERR_CORRUPT, marker_decode(b.data, b.len, &w));
            b.data[i] ^= (uint8_t)(1 << bit);
        }
    }
    buf_fini(&b);
}

/* The checksum is right, but the fields are illegal. */
TEST(illegal_words)
{
    static const struct {
        size_t at;
        uint32_t value;
        err_t err;
    } cases[] = {
        {8, 2, ERR_UNSUPPORTED}, /* version */
        {12, 0, ERR_CORRUPT},    /* kind */
        {12, 6, ERR_CORRUPT},
        {12, MARKER_PART, ERR_CORRUPT},  /* with an error's code */
        {12, MARKER_READY, ERR_CORRUPT}, /* with a rank */
        {16, 0, ERR_CORRUPT},            /* a failure with code 0 */
        {16, 65, ERR_CORRUPT},
        {20, 2, ERR_CORRUPT}, /* rank 2 of 2 */
        {20, UINT32_MAX - 1, ERR_CORRUPT},
        {24, 0, ERR_CORRUPT}, /* world */
        {24, UINT32_MAX, ERR_CORRUPT},
        {28, 32, ERR_CORRUPT}, /* bytes of the job id */
        {28, UINT32_MAX, ERR_CORRUPT},
        {60, UINT32_MAX, ERR_CORRUPT}, /* step, high half */
        {64, UINT32_MAX, ERR_CORRUPT}, /* bytes of the body */
        {68, UINT32_MAX, ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};
        struct marker w;
        assert_ok(marker_encode(&failed, &b));
        for (int k = 0; k < 4; k++)
            b.data[cases[i].at + (size_t)k] = (uint8_t)(cases[i].value >> (8 * k));
        uint32_t crc = sums_crc32c(0, b.data, b.len - 4);
        for (int k = 0; k < 4; k++)
            b.data[b.len - 4 + (size_t)k] = (uint8_t)(crc >> (8 * k));
        if (marker_decode(b.data, b.len, &w) != cases[i].err)
            fail_msg("case %zu", i);
        buf_fini(&b);
    }
}

/* ---- the owner of the directory ---- */

TEST(prepare_and_the_others)
{
    struct ckpt_writer_id a = writer_id(2, 1), b = writer_id(2, 2), next = writer_id(3, 3);
    struct why why;
    root_make();
    assert_err(ERR_AGAIN, ckpt_prepared(root, &b, &why)); /* no directory */
    assert_ok(ckpt_held(root, &a, &why));                 /* no owner */
    assert_ok(ckpt_prepare(root, &a, 0, &why));
    assert_ok(ckpt_prepared(root, &b, &why));
    assert_err(ERR_AGAIN, ckpt_prepared(root, &next, &why));
    assert_non_null(strstr(why.text, "belongs to epoch 2 of job 7"));
    assert_ok(ckpt_held(root, &a, &why));
    assert_err(ERR_STALE, ckpt_held(root, &b, &why)); /* another process of the same epoch */
    assert_ok(ckpt_prepare(root, &a, 0, &why));       /* again */
    assert_ok(ckpt_prepare(root, &b, 0, &why));       /* by another process, which then owns it */
    assert_err(ERR_STALE, ckpt_held(root, &a, &why));
    assert_ok(ckpt_prepare(root, &next, 0, &why));
    assert_err(ERR_STALE, ckpt_prepared(root, &b, &why));
    assert_err(ERR_STALE, ckpt_held(root, &b, &why));
    assert_err(ERR_STALE, ckpt_prepare(root, &b, 0, &why)); /* an older epoch cannot take it back */
    assert_non_null(strstr(why.text, "remove"));
    assert_non_null(strstr(why.text, CKPT_EPOCH_FILE));
}

TEST(prepare_while_it_is_being_prepared)
{
    struct ckpt_writer_id a = writer_id(2, 1), b = writer_id(2, 2);
    const struct marker half = {.kind = MARKER_PREPARING, .by = a};
    struct why why;
    root_make();
    assert_ok(file_make_dirs(root, 0777));
    assert_ok(marker_write(root, NULL, CKPT_EPOCH_FILE, &half, &why));
    assert_err(ERR_AGAIN, ckpt_prepared(root, &b, &why));
    assert_ok(ckpt_prepare(root, &a, 0, &why));
    assert_ok(ckpt_prepared(root, &b, &why));
}

/* Epoch numbers of another job's folders cannot be compared, so all of them are removed; folders of this job's epoch
 * stay.
 */
TEST(prepare_takes_over)
{
    struct ckpt_writer_id theirs = {.job = "5", .submitted_ms = 1000, .epoch = 9, .writer = 4}, me = writer_id(1, 1);
    struct ckpt_shared_save old = {.root = root, .me = theirs, .step = 5, .world = 2}, mine = save_of(1, 6);
    char name[CKPT_OPEN_NAME];
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &theirs, 0, &why));
    fixture_write_parts_of(&f, root, 5, &theirs, 2, parts);
    assert_ok(ckpt_index_put(&old, parts[1], &why));
    assert_err(ERR_AGAIN, ckpt_prepared(root, &me, &why));
    assert_ok(ckpt_prepare(root, &me, 0, &why));
    ckpt_open_name(5, &theirs, "partial", name);
    assert_false(exists(name));
    ckpt_open_name(5, &theirs, "index", name);
    assert_false(exists(name));
    assert_err(ERR_STALE, commit_as(&theirs, 5, parts, &why) == ERR_NOTFOUND ? ckpt_held(root, &theirs, &why) : OK);
    assert_non_null(strstr(why.text, "now belongs to job 7"));
    parts_free(parts);
    parts_write(&f, 6, 1, parts);
    assert_ok(ckpt_index_put(&mine, parts[1], &why));
    assert_ok(ckpt_prepare(root, &me, 0, &why));
    assert_true(exists(open_name(6, 1, "partial")) && exists(open_name(6, 1, "index")));
    parts_free(parts);
    fixture_free(&f);
}

/* A step of another job with a higher epoch, newer than the step from which this job resumes, is set aside: this job's
 * save of that step would otherwise find it and count as committed. */
TEST(prepare_sets_steps_of_another_job_aside)
{
    struct ckpt_writer_id theirs = {.job = "5", .submitted_ms = 1000, .epoch = 9, .writer = 4}, me = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &theirs, 0, &why));
    for (int step = 5; step <= 6; step++) {
        fixture_write_parts_of(&f, root, step, &theirs, 2, parts);
        assert_ok(commit_as(&theirs, step, parts, &why));
        parts_free(parts);
    }
    assert_ok(ckpt_prepare(root, &me, 5, &why));
    assert_true(exists("step-5") && exists("step-6.e9"));
    assert_false(exists("step-6"));
    fixture_free(&f);
}

/* A process of another job that still runs when this job owns the directory writes into a folder of its own, which the
 * owner's next sweep removes. */
TEST(late_part_of_another_job)
{
    struct ckpt_writer_id theirs = {.job = "5", .submitted_ms = 1000, .epoch = 1, .writer = 4}, me = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2], *late[2];
    char name[CKPT_OPEN_NAME];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &theirs, 0, &why));
    assert_ok(ckpt_prepare(root, &me, 0, &why));
    parts_write(&f, 5, 1, parts);
    fixture_write_parts_of(&f, root, 5, &theirs, 2, late);
    ckpt_open_name(5, &theirs, "partial", name);
    assert_true(exists(name) && strcmp(name, open_name(5, 1, "partial")) != 0);
    assert_err(ERR_STALE, commit_as(&theirs, 5, late, &why));
    assert_ok(ckpt_collect(root, 1, ckpt_incarnation(&me), &why));
    assert_false(exists(name));
    assert_ok(commit_as(&me, 5, parts, &why));
    assert_true(exists("step-5"));
    parts_free(parts);
    parts_free(late);
    fixture_free(&f);
}

/* An unreadable marker does not block a job: the preparing process replaces it. */
TEST(damaged_epoch_word)
{
    struct ckpt_writer_id a = writer_id(2, 1), b = writer_id(2, 2);
    char target[PATH_MAX], link[PATH_MAX];
    struct why why;
    struct stat before, after;
    root_make();
    assert_ok(file_make_dirs(root, 0777));
    put_file(CKPT_EPOCH_FILE, "rubbish", 7);
    assert_err(ERR_CORRUPT, ckpt_prepared(root, &b, &why));
    assert_non_null(strstr(why.text, "/" CKPT_EPOCH_FILE));
    assert_ok(ckpt_prepare(root, &a, 0, &why));
    assert_ok(ckpt_prepared(root, &b, &why));
    snprintf(target, sizeof(target), "%s/precious", test_tmpdir());
    snprintf(link, sizeof(link), "%s/%s", root, CKPT_EPOCH_FILE);
    assert_int_equal(rename(link, target), 0); /* a complete marker, but elsewhere */
    assert_int_equal(stat(target, &before), 0);
    assert_int_equal(symlink(target, link), 0);
    assert_err(ERR_CORRUPT, ckpt_prepared(root, &b, &why));
    assert_err(ERR_CORRUPT, ckpt_held(root, &a, &why));
    assert_ok(ckpt_prepare(root, &a, 0, &why));
    assert_int_equal(stat(target, &after), 0); /* the link is replaced, not its target */
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    assert_ok(ckpt_prepared(root, &b, &why));
}

/* ---- the fence ---- */

TEST(commit_of_an_old_epoch)
{
    struct ckpt_writer_id old = writer_id(1, 1);
    const struct marker newer = {.kind = MARKER_PREPARING, .by = writer_id(2, 2)};
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &old, 0, &why));
    parts_write(&f, 5, 1, parts);
    assert_ok(marker_write(root, NULL, CKPT_EPOCH_FILE, &newer, &why)); /* has started, but not swept yet */
    assert_err(ERR_STALE, commit_as(&old, 5, parts, &why));
    assert_false(exists("step-5"));
    parts_free(parts);
    fixture_free(&f);
}

/* This node's clock is two days slow. A checkpoint that is older than its job would count as another job's. */
TEST(commit_by_a_slow_clock)
{
    struct ckpt_writer_id me = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct ckpt_info info;
    struct why why;
    char dir[PATH_MAX];
    root_make();
    me.submitted_ms = clock_wall_ms() + 2 * 86400 * INT64_C(1000);
    assert_ok(ckpt_prepare(root, &me, 0, &why));
    fixture_write_parts_of(&f, root, 5, &me, 2, parts);
    assert_ok(commit_as(&me, 5, parts, &why));
    assert_ok(ckpt_step_dir(root, 5, dir, sizeof(dir)));
    assert_ok(ckpt_info(dir, &info, &why));
    assert_int_equal(me.submitted_ms, info.committed_ms);
    parts_free(parts);
    fixture_free(&f);
}

static void newer_prepares(void)
{
    struct ckpt_writer_id next = writer_id(2, 2);
    struct why why;
    assert_ok(ckpt_prepare(root, &next, 0, &why));
}

static void newer_prepares_before(const char *from)
{
    newer_prepares();
}

/* The old committer checked its marker and then paused while the next epoch prepared the directory. */
TEST(prepared_between_look_and_rename)
{
    struct ckpt_writer_id old = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &old, 0, &why));
    parts_write(&f, 5, 1, parts);
    before_rename = newer_prepares_before;
    assert_err(ERR_NOTFOUND, commit_as(&old, 5, parts, &why));
    assert_false(exists("step-5") || exists(open_name(5, 1, "partial")));
    parts_free(parts);
    fixture_free(&f);
}

TEST(prepared_right_after_the_rename)
{
    struct ckpt_writer_id old = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &old, 0, &why));
    parts_write(&f, 5, 1, parts);
    after_rename = newer_prepares;
    (void)!commit_as(&old, 5, parts, &why);
    assert_false(exists("step-5"));
    assert_true(exists("step-5.e1")); /* it was complete, but on the abandoned branch */
    parts_free(parts);
    fixture_free(&f);
}

static void swept_and_made_anew(const char *from)
{
    char path[PATH_MAX];
    newer_prepares();
    assert_int_equal(mkdir(from, 0777), 0);
    snprintf(path, sizeof(path), "%s/__1_0.distcp", from);
    assert_ok(file_replace(path, "late", 4, 0666));
}

/* In addition, a writer of the old epoch has created the folder again, with only its own part. */
TEST(folder_made_anew_between_look_and_rename)
{
    struct ckpt_writer_id old = writer_id(1, 1);
    struct fixture f = model();
    struct ckpt_part *parts[2];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &old, 0, &why));
    parts_write(&f, 5, 1, parts);
    before_rename = swept_and_made_anew;
    assert_err(ERR_STALE, commit_as(&old, 5, parts, &why));
    assert_false(exists("step-5"));
    assert_true(exists(".trash-step-5"));
    parts_free(parts);
    fixture_free(&f);
}

/* ---- indexes ---- */

TEST(index_comes_back)
{
    struct fixture f = model();
    struct ckpt_part *parts[2], *back;
    struct ckpt_shared_save s = save_of(1, 5), other = save_of(1, 5);
    struct buf a = {0}, b = {0};
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &s.me, 0, &why));
    assert_err(ERR_AGAIN, ckpt_index_get(&s, 1, &back, &why));
    parts_write(&f, 5, 1, parts);
    assert_ok(ckpt_index_put(&s, parts[1], &why));
    assert_err(ERR_AGAIN, ckpt_index_get(&s, 0, &back, &why));
    other.me.writer = 77; /* read by another process */
    assert_ok(ckpt_index_get(&other, 1, &back, &why));
    assert_ok(ckpt_part_encode(parts[1], &a));
    assert_ok(ckpt_part_encode(back, &b));
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    ckpt_part_free(back);
    other.me.submitted_ms++; /* of another cluster's job 7 */
    assert_err(ERR_AGAIN, ckpt_index_get(&other, 1, &back, &why));
    other = save_of(1, 5);
    other.world = 3;
    assert_err(ERR_INVALID, ckpt_index_get(&other, 1, &back, &why));
    assert_non_null(strstr(why.text, "has 3 ranks on this node and 2 on"));
    assert_ok(ckpt_index_remove(&s, &why));
    assert_err(ERR_AGAIN, ckpt_index_get(&s, 1, &back, &why));
    buf_fini(&a);
    buf_fini(&b);
    parts_free(parts);
    fixture_free(&f);
}

/* A complete marker under the wrong name, or with a body that is not an index. */
TEST(index_that_does_not_fit)
{
    struct fixture f = model();
    struct ckpt_part *parts[2], *back;
    struct ckpt_shared_save s = save_of(1, 5);
    struct buf b = {0};
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &s.me, 0, &why));
    parts_write(&f, 5, 1, parts);
    assert_ok(ckpt_part_encode(parts[1], &b));
    const struct marker cases[] = {
        {.kind = MARKER_PART, .by = s.me, .step = 6, .rank = 1, .world = 2, .body = b.data, .body_bytes = b.len},
        {.kind = MARKER_PART, .by = s.me, .step = 5, .rank = 0, .world = 2, .body = b.data, .body_bytes = b.len},
        {.kind = MARKER_PART,
         .by = writer_id(2, 1),
         .step = 5,
         .rank = 1,
         .world = 2,
         .body = b.data,
         .body_bytes = b.len},
        {.kind = MARKER_PART, .by = s.me, .step = 5, .rank = 1, .world = 2, .body = b.data, .body_bytes = b.len - 1},
        {.kind = MARKER_READY, .by = s.me},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ok(ckpt_index_put(&s, parts[1], &why)); /* makes the folder */
        assert_ok(marker_write(root, open_name(5, 1, "index"), "__1_0.part", &cases[i], &why));
        if (ckpt_index_get(&s, 1, &back, &why) != ERR_CORRUPT)
            fail_msg("case %zu is taken", i);
        assert_non_null(strstr(why.text, "__1_0.part"));
    }
    buf_fini(&b);
    parts_free(parts);
    fixture_free(&f);
}

/* The index folder is a link: nothing is read or written through it. */
TEST(index_folder_is_a_link)
{
    struct fixture f = model();
    struct ckpt_part *parts[2], *back;
    struct ckpt_shared_save s = save_of(1, 5);
    char target[PATH_MAX], link[PATH_MAX];
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &s.me, 0, &why));
    parts_write(&f, 5, 1, parts);
    snprintf(target, sizeof(target), "%s/elsewhere", test_tmpdir());
    snprintf(link, sizeof(link), "%s/%s", root, open_name(5, 1, "index"));
    assert_int_equal(mkdir(target, 0777), 0);
    assert_int_equal(symlink(target, link), 0);
    assert_true(ckpt_index_put(&s, parts[1], &why) != OK);
    assert_non_null(strstr(why.text, open_name(5, 1, "index")));
    assert_err(ERR_CORRUPT, ckpt_index_get(&s, 1, &back, &why));
    assert_int_equal(rmdir(target), 0); /* empty */
    parts_free(parts);
    fixture_free(&f);
}

/* ---- the outcome of a save ---- */

TEST(outcomes)
{
    struct fixture f = model();
    struct ckpt_part *parts[2], *back;
    struct ckpt_shared_save s = save_of(1, 5);
    struct why why;
    root_make();
    assert_ok(ckpt_prepare(root, &s.me, 0, &why));
    assert_err(ERR_CANCELED, ckpt_outcome(&s, &why)); /* no folder, no step */
    parts_write(&f, 5, 1, parts);
    assert_err(ERR_AGAIN, ckpt_outcome(&s, &why));
    assert_ok(ckpt_failed_get(&s, &why));
    assert_ok(ckpt_failed_put(&s, 1, ERR_NOSPACE, "rank 1 has no room", &why)); /* and its part is removed */
    assert_false(exists(in_folder(open_name(5, 1, "partial"), "__1_0.distcp")));
    assert_true(exists(in_folder(open_name(5, 1, "partial"), "__0_0.distcp")));
    assert_err(ERR_NOSPACE, ckpt_index_get(&s, 1, &back, &why));
    assert_string_equal(why.text, "rank 1 has no room");
    assert_err(ERR_AGAIN, ckpt_outcome(&s, &why)); /* rank 1 does not decide */
    assert_ok(ckpt_failed_put(&s, -1, ERR_TIMEOUT, "given up", &why));
    assert_err(ERR_TIMEOUT, ckpt_outcome(&s, &why));
    assert_string_equal(why.text, "given up");
    assert_err(ERR_TIMEOUT, ckpt_failed_get(&s, &why));
    parts_free(parts);
    s = save_of(1, 6);
    parts_write(&f, 6, 1, parts);
    assert_ok(commit_as(&s.me, 6, parts, &why));
    assert_ok(ckpt_outcome(&s, &why));
    parts_free(parts);
    s = save_of(1, 4);
    assert_ok(ckpt_outcome(&s, &why)); /* committed, and removed again after step 6 was committed */
    s = save_of(1, 7);
    parts_write(&f, 7, 1, parts);
    newer_prepares();
    assert_err(ERR_STALE, ckpt_outcome(&s, &why));
    parts_free(parts);
    s = save_of(2, 8);
    parts_write(&f, 8, 2, parts);
    s.me.writer = 2;
    assert_ok(commit_as(&s.me, 8, parts, &why));
    s.me.epoch = 1;
    assert_err(ERR_STALE, ckpt_outcome(&s, &why)); /* step 8 exists, but of a later epoch */
    parts_free(parts);
    fixture_free(&f);
}
