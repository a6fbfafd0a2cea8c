/* A checkpoint directory: which folders are steps, and which are collected, removed or moved aside. */
#include "tests/common/ckpt/ckpt_fixture.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

static void save(int64_t step, uint64_t epoch)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 2);
    fixture_save(&f, test_tmpdir(), step, epoch, 2);
    fixture_free(&f);
}

static bool there(const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return stat(path, &st) == 0;
}

static void make(const char *name, const char *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    assert_ok(file_make_dirs(path, 0700));
    snprintf(path, sizeof(path), "%s/%s/%s", test_tmpdir(), name, file);
    assert_ok(file_replace(path, "x", 1, 0600));
}

/* "steps" as text: "2 10 ". */
static const char *steps(void)
{
    static char text[256];
    struct ckpt_info *infos;
    struct why why = {{0}};
    int n;
    size_t at = 0;
    text[0] = '\0';
    assert_ok(ckpt_scan(test_tmpdir(), &infos, &n, &why));
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%lld ", (long long)infos[i].step);
    free(infos);
    return text;
}

TEST(scan_finds_whole_steps_in_order)
{
    struct ckpt_info *infos;
    struct why why;
    int n;
    save(10, 1);
    save(2, 2);
    save(9, 3);
    make("step-5", "something");
    make("step-07", ".metadata");
    make("step-7.e1", ".metadata");
    make(".step-8.e1.partial", ".metadata");
    make("step-x", ".metadata");
    make("step--3", ".metadata");
    make("step-30", ".metadata"); /* as torch writes them */
    assert_string_equal(steps(), "2 9 10 30 ");
    assert_ok(ckpt_scan(test_tmpdir(), &infos, &n, &why));
    assert_int_equal(infos[0].epoch, 2);
    assert_true(infos[0].manifest && infos[0].bytes > 1000 && infos[0].loss == 2.25 && infos[0].committed_ms > 0);
    assert_false(infos[3].manifest);
    free(infos);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/step-9/__1_0.distcp", test_tmpdir());
    assert_int_equal(truncate(path, 100), 0);
    snprintf(path, sizeof(path), "%s/step-2/%s", test_tmpdir(), CKPT_MANIFEST);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(steps(), "10 30 ");
}

TEST(scan_of_nothing)
{
    struct ckpt_info *infos = NULL;
    struct why why;
    int n = 7;
    assert_ok(ckpt_scan("/nonexistent/folder", &infos, &n, &why));
    assert_int_equal(n, 0);
    free(infos);
}

TEST(info_of_one_folder)
{
    struct ckpt_info info;
    struct why why;
    char path[PATH_MAX];
    save(4, 6);
    assert_ok(ckpt_step_dir(test_tmpdir(), 4, path, sizeof(path)));
    assert_ok(ckpt_info(path, &info, &why));
    assert_int_equal(info.step, 4);
    assert_int_equal(info.epoch, 6);
    make("step-5", "something");
    assert_ok(ckpt_step_dir(test_tmpdir(), 5, path, sizeof(path)));
    assert_err(ERR_CORRUPT, ckpt_info(path, &info, &why));
    assert_err(ERR_NOTFOUND, ckpt_info("/nonexistent", &info, &why));
}

TEST(collect_takes_older_partials_and_trash)
{
    struct why why;
    save(1, 1);
    make(".step-2.e1.partial", "__0_0.distcp");
    make(".step-2.e2.partial", "__0_0.distcp");
    make(".step-2.e3.partial", "__0_0.distcp");
    make(".trash-step-0/deep/deeper", "file");
    make(".step-2.partial", "mine");
    assert_ok(ckpt_collect(test_tmpdir(), 3, 0, &why));
    assert_false(there(".step-2.e1.partial"));
    assert_false(there(".step-2.e2.partial"));
    assert_true(there(".step-2.e3.partial"));
    assert_false(there(".trash-step-0"));
    assert_true(there(".step-2.partial"));
    assert_string_equal(steps(), "1 ");
}

TEST(remove_one_step)
{
    struct why why;
    char link[PATH_MAX], outside[PATH_MAX];
    save(1, 1);
    save(2, 1);
    make("outside", "precious");
    snprintf(link, sizeof(link), "%s/step-1/link", test_tmpdir());
    snprintf(outside, sizeof(outside), "%s/outside", test_tmpdir());
    assert_int_equal(symlink(outside, link), 0);
    make(".trash-step-1", "of an earlier try");
    assert_ok(ckpt_remove(test_tmpdir(), 1, &why));
    assert_string_equal(steps(), "2 ");
    assert_false(there(".trash-step-1"));
    assert_true(there("outside/precious"));
    assert_err(ERR_NOTFOUND, ckpt_remove(test_tmpdir(), 1, &why));
    assert_non_null(strstr(why.text, "step-1"));
}

TEST(abandon_puts_newer_steps_of_older_epochs_aside)
{
    struct why why;
    save(10, 1);
    save(20, 1);
    save(30, 2);
    save(40, 3);
    assert_ok(ckpt_abandon_after(test_tmpdir(), 10, 3, &why));
    assert_string_equal(steps(), "10 40 ");
    assert_true(there("step-20.e1"));
    assert_true(there("step-30.e2"));
    save(20, 1);
    assert_ok(ckpt_abandon_after(test_tmpdir(), 10, 3, &why)); /* the name is in use, so another one is chosen */
    assert_true(there("step-20.e1.1"));
    assert_string_equal(steps(), "10 40 ");
}

/* Nothing is replaced: the second commit of a step fails, and the first stays unchanged. */
TEST(a_late_writer_replaces_nothing)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    struct ckpt_part *parts[2];
    struct why why;
    char path[PATH_MAX];
    struct stat before, after;
    fixture_shard(&f, 2);
    save(5, 1);
    snprintf(path, sizeof(path), "%s/step-5/%s", test_tmpdir(), CKPT_MANIFEST);
    assert_int_equal(stat(path, &before), 0);
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = 5, .epoch = 2, .loss = 1};
    fixture_write_parts(&f, test_tmpdir(), 5, 2, 2, parts);
    assert_err(ERR_EXISTS, ckpt_commit(&commit, parts, 2, &why));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    ckpt_part_free(parts[0]);
    ckpt_part_free(parts[1]);
    fixture_free(&f);
}

TEST(names)
{
    char name[64];
    assert_ok(ckpt_state_name(CKPT_PARAM, "w", name, sizeof(name)));
    assert_string_equal(name, "w");
    assert_ok(ckpt_state_name(CKPT_EXP_AVG, "w", name, sizeof(name)));
    assert_string_equal(name, "optimizer.state.w.exp_avg");
    assert_ok(ckpt_state_name(CKPT_EXP_AVG_SQ, "w", name, sizeof(name)));
    assert_string_equal(name, "optimizer.state.w.exp_avg_sq");
    assert_err(ERR_LIMIT, ckpt_state_name(CKPT_EXP_AVG, "w", name, 25));
}
