/* Usage on the leader: reports of ranks become windows, slow ranks are named, and the file stays bounded. Expected
 * values are computed by hand. */
#include "common/base/file.h"
#include "daemon/control/job/stragglers.h"
#include "daemon/control/job/usage_file.h"
#include "daemon/control/job/usage_windows.h"
#include "daemon/control/local/pool.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void assert_near(double expected, double is)
{
    if (!(fabs(expected - is) <= 1e-5 * fabs(expected)))
        fail_msg("expected %.12g, is %.12g", expected, is);
}

/* ---- windows ---- */

static struct usage_report report_of(int64_t step, int64_t steps, double step_s, double compute_s)
{
    struct usage_report r = {
        .window_ms = (int64_t)((double)steps * step_s * 1000), .steps = steps, .step = step, .usage = usage_none};
    r.usage.step_s = step_s;
    r.usage.compute_s = compute_s;
    return r;
}

/* Adds a report; returns the number of ranks of the window that it completes, 0: none. */
static int add(struct usage_windows *w, uint64_t epoch, int ranks, int rank, struct usage_report r,
               struct usage_sample *ret)
{
    assert_ok(usage_windows_add(w, epoch, ranks, rank, &r, ret));
    return ret->ranks;
}

TEST(a_window_is_complete_when_all_ranks_have_reported)
{
    struct usage_windows w = {0};
    struct usage_sample s;
    assert_int_equal(0, add(&w, 1, 3, 2, report_of(20, 20, 0.1, 0.08), &s));
    assert_int_equal(0, add(&w, 1, 3, 0, report_of(20, 20, 0.1, 0.06), &s));
    assert_int_equal(3, add(&w, 1, 3, 1, report_of(21, 21, 0.1, 0.07), &s));
    assert_near(0.06, *usage_at(&s, USAGE_compute_s, 0));
    assert_near(0.07, *usage_at(&s, USAGE_compute_s, 1));
    assert_near(0.08, *usage_at(&s, USAGE_compute_s, 2));
    assert_int_equal(21, s.step);
    assert_int_equal(2100, s.window_ms);
    usage_sample_fini(&s);
    assert_int_equal(0, add(&w, 1, 3, 1, report_of(40, 20, 0.1, 0.07), &s)); /* the next one is empty again */
    usage_windows_fini(&w);
}

/* 20 steps with 0.05 s and 10 steps with 0.08 s: 1.8 s in 30 steps. */
TEST(a_rank_that_reports_twice_is_joined)
{
    struct usage_windows w = {0};
    struct usage_sample s;
    assert_int_equal(0, add(&w, 1, 2, 0, report_of(20, 20, 0.1, 0.05), &s));
    assert_int_equal(0, add(&w, 1, 2, 0, report_of(30, 10, 0.2, 0.08), &s));
    assert_int_equal(2, add(&w, 1, 2, 1, report_of(30, 30, 4.0 / 30, 0.1), &s));
    assert_near(0.06, *usage_at(&s, USAGE_compute_s, 0));
    assert_near(4.0 / 30, *usage_at(&s, USAGE_step_s, 0));
    usage_sample_fini(&s);
    usage_windows_fini(&w);
}

TEST(missing_reports_hold_up_nothing)
{
    struct usage_windows w = {0};
    struct usage_sample s;
    assert_int_equal(0, add(&w, 1, 2, 0, report_of(20, 20, 0.1, 0.05), &s));
    assert_int_equal(0, add(&w, 1, 2, 0, report_of(40, 20, 0.1, 0.05), &s));
    assert_int_equal(2, add(&w, 1, 2, 0, report_of(60, 20, 0.1, 0.09), &s)); /* belongs to the next window */
    assert_near(0.05, *usage_at(&s, USAGE_compute_s, 0));
    assert_true(isnan(*usage_at(&s, USAGE_compute_s, 1)));
    assert_int_equal(40, s.step);
    usage_sample_fini(&s);
    assert_int_equal(2, add(&w, 1, 2, 1, report_of(60, 60, 0.1, 0.04), &s));
    assert_near(0.09, *usage_at(&s, USAGE_compute_s, 0));
    usage_sample_fini(&s);
    usage_windows_fini(&w);
}

/* A rank joins (3 ranks), then two leave (1 rank). What was half complete is dropped. */
TEST(a_new_epoch_begins_a_new_window)
{
    struct usage_windows w = {0};
    struct usage_sample s;
    assert_int_equal(0, add(&w, 1, 2, 0, report_of(20, 20, 0.1, 0.05), &s));
    assert_int_equal(0, add(&w, 2, 3, 1, report_of(20, 20, 0.1, 0.05), &s));
    assert_int_equal(0, add(&w, 2, 3, 2, report_of(20, 20, 0.1, 0.05), &s));
    assert_int_equal(3, add(&w, 2, 3, 0, report_of(20, 20, 0.1, 0.07), &s));
    assert_int_equal(2, s.epoch);
    assert_near(0.07, *usage_at(&s, USAGE_compute_s, 0));
    usage_sample_fini(&s);
    assert_int_equal(1, add(&w, 3, 1, 0, report_of(40, 20, 0.1, 0.06), &s));
    assert_int_equal(3, s.epoch);
    usage_sample_fini(&s);
    assert_int_equal(0, add(&w, 3, 2, 0, report_of(40, 20, 0.1, 0.06), &s));
    assert_int_equal(0, add(&w, 4, 2, 1, report_of(40, 20, 0.1, 0.06), &s)); /* as many ranks as before */
    assert_int_equal(2, add(&w, 4, 2, 0, report_of(40, 20, 0.1, 0.08), &s));
    assert_near(0.08, *usage_at(&s, USAGE_compute_s, 0));
    usage_sample_fini(&s);
    usage_windows_fini(&w);
}

/* ---- stragglers ---- */

#define RANKS 4

/* Adds a window of 10 s and 10 steps per rank in which the ranks compute so long. */
static bool window(struct stragglers *s, int64_t n, const double compute_s[RANKS])
{
    struct usage_sample w;
    bool changed;
    assert_ok(usage_sample_init(&w, RANKS));
    w.epoch = 1;
    w.window_ms = 10000;
    w.wall_ms = n * 10000;
    for (int r = 0; r < RANKS; r++) {
        *usage_at(&w, USAGE_step_s, r) = 1; /* the same for all: they wait for each other */
        *usage_at(&w, USAGE_compute_s, r) = compute_s[r] + (double)n * 1e-9; /* never the same number again */
        *usage_at(&w, USAGE_planned_flop, r) = 1e9;
    }
    assert_ok(stragglers_add(s, &w, &changed));
    usage_sample_fini(&w);
    return changed;
}

static int count(const struct stragglers *s)
{
    return stragglers_list(s, NULL, 0);
}

TEST(a_slow_rank_is_named_after_three_windows)
{
    static const double slow[RANKS] = {0.5, 0.5, 0.5, 0.59};
    struct stragglers s = {0};
    struct straggler one;
    assert_false(window(&s, 1, slow));
    assert_false(window(&s, 2, slow));
    assert_int_equal(0, count(&s));
    assert_true(window(&s, 3, slow));
    assert_int_equal(1, stragglers_list(&s, &one, 1));
    assert_int_equal(3, one.rank);
    assert_near(1.18, one.ratio);
    assert_int_equal(0, one.since_ms);
    assert_false(window(&s, 4, slow));
    stragglers_fini(&s);
}

TEST(equal_ranks_name_none)
{
    static const double equal[RANKS] = {0.50, 0.52, 0.54, 0.49};
    struct stragglers s = {0};
    for (int i = 1; i < 20; i++)
        assert_false(window(&s, i, equal));
    assert_int_equal(0, count(&s));
    stragglers_fini(&s);
}

TEST(one_slow_window_names_none)
{
    static const double equal[RANKS] = {0.5, 0.5, 0.5, 0.5}, slow[RANKS] = {0.5, 5, 0.5, 0.5};
    struct stragglers s = {0};
    for (int i = 1; i < 20; i++)
        assert_false(window(&s, i, i % 3 == 0 ? equal : slow)); /* two in a row at most */
    stragglers_fini(&s);
}

/* From 1.10 on it is slow, below 1.05 it is not any more; in between, it stays what it was. */
TEST(a_straggler_ends_below_a_lower_limit)
{
    static const double slow[RANKS] = {0.6, 0.5, 0.5, 0.5}, between[RANKS] = {0.54, 0.5, 0.5, 0.5},
                        fast[RANKS] = {0.52, 0.5, 0.5, 0.5};
    struct stragglers s = {0};
    for (int i = 1; i < 10; i++)
        assert_false(window(&s, i, between));
    for (int i = 10; i < 13; i++)
        window(&s, i, slow);
    assert_int_equal(1, count(&s));
    assert_false(window(&s, 13, between));
    assert_int_equal(1, count(&s));
    assert_true(window(&s, 14, fast));
    assert_int_equal(0, count(&s));
    stragglers_fini(&s);
}

TEST(the_slower_of_two_ranks_is_found_and_absent_ones_do_not_count)
{
    static const double two[RANKS] = {0.5, 0.65, NAN, NAN};
    struct stragglers s = {0};
    struct straggler one;
    for (int i = 1; i < 4; i++)
        window(&s, i, two);
    assert_int_equal(1, stragglers_list(&s, &one, 1));
    assert_int_equal(1, one.rank);
    assert_near(1.3, one.ratio);
    stragglers_fini(&s);
}

/* Three windows of 4 s are not enough. */
TEST(windows_must_have_some_time)
{
    struct stragglers s = {0};
    bool changed = false;
    int needed = 0;
    for (int i = 1; !changed; i++) {
        struct usage_sample w;
        assert_ok(usage_sample_init(&w, 3));
        w.epoch = 1;
        w.window_ms = 4000;
        w.wall_ms = 4000 * i;
        for (int r = 0; r < 3; r++) {
            *usage_at(&w, USAGE_step_s, r) = 4;
            *usage_at(&w, USAGE_compute_s, r) = (r == 1 ? 3 : 2) + i * 1e-9;
        }
        assert_ok(stragglers_add(&s, &w, &changed));
        usage_sample_fini(&w);
        needed = i;
    }
    assert_int_equal(8, needed); /* 8 x 4 s = 32 s */
    stragglers_fini(&s);
}

/* The stages of a pipeline have different work; a rank is compared with those of its stage. */
TEST(ranks_with_other_work_are_no_measure)
{
    struct stragglers s = {0};
    struct straggler one;
    bool changed;
    static const double compute_s[6] = {0.2, 0.2, 0.2, 0.4, 0.4, 0.5};
    for (int i = 1; i <= 3; i++) {
        struct usage_sample w;
        assert_ok(usage_sample_init(&w, 6));
        w.epoch = 1;
        w.window_ms = 10000;
        w.wall_ms = 10000 * i;
        for (int r = 0; r < 6; r++) {
            *usage_at(&w, USAGE_step_s, r) = 0.5;
            *usage_at(&w, USAGE_compute_s, r) = compute_s[r] + i * 1e-9;
            *usage_at(&w, USAGE_planned_flop, r) = r < 3 ? 1e9 : 2e9;
        }
        assert_ok(stragglers_add(&s, &w, &changed));
        usage_sample_fini(&w);
    }
    assert_int_equal(1, stragglers_list(&s, &one, 1));
    assert_int_equal(5, one.rank);
    assert_near(1.25, one.ratio);
    stragglers_fini(&s);
}

/* One slow step of a GPU that was measured is reported in ten windows. */
TEST(a_number_that_is_repeated_is_no_news)
{
    struct stragglers s = {0};
    bool changed;
    for (int i = 1; i <= 33; i++) {
        struct usage_sample w;
        assert_ok(usage_sample_init(&w, 3));
        w.epoch = 1;
        w.window_ms = 10000;
        w.wall_ms = 10000 * i;
        for (int r = 0; r < 3; r++)
            *usage_at(&w, USAGE_compute_s, r) = r == 2 ? 0.6 + (i - 1) / 10 * 1e-6 : 0.5;
        assert_ok(stragglers_add(&s, &w, &changed));
        usage_sample_fini(&w);
        assert_int_equal(i == 21, changed); /* the third number */
    }
    stragglers_fini(&s);
}

/* ---- the file ---- */

static const char *usage_path(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/metrics/1.usage.jsonl", test_tmpdir());
    return path;
}

static void file_add(struct usage_file *f, uint64_t epoch, int i, double step_s, struct buf *line)
{
    struct usage_sample s;
    assert_ok(usage_sample_init(&s, 1));
    assert_ok(usage_sample_set_node(&s, 0, "a"));
    s.epoch = epoch;
    s.wall_ms = 2000 * i;
    s.window_ms = 2000;
    s.step = i;
    *usage_at(&s, USAGE_step_s, 0) = step_s;
    usage_file_add(f, &s, line);
    usage_sample_fini(&s);
}

static struct usage_samples load(const struct buf *more, int64_t from_ms)
{
    struct usage_samples list;
    assert_ok(usage_file_load(usage_path(), more, from_ms, NULL, &list));
    return list;
}

TEST(samples_are_read_back)
{
    struct usage_file f;
    struct buf lines = {0};
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    for (int i = 1; i <= 5; i++)
        file_add(&f, 1, i, 0.1 * i, &lines);
    assert_int_equal(5, (int)(lines.len > 0) * 5);
    struct usage_samples list = load(NULL, 4001);
    assert_int_equal(3, list.n);
    assert_int_equal(6000, list.sample[0].wall_ms);
    assert_near(0.3, *usage_at(&list.sample[0], USAGE_step_s, 0));
    usage_samples_fini(&list);
    usage_file_fini(&f);
    struct buf file = {0};
    assert_ok(file_read(usage_path(), 1 << 20, &file));
    assert_int_equal(lines.len, file.len); /* what goes beside the checkpoints is the same */
    assert_memory_equal(lines.data, file.data, file.len);
    buf_fini(&file);
    buf_fini(&lines);
}

TEST(longer_windows_wait_until_they_are_complete)
{
    struct usage_file f;
    struct buf rest = {0};
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    f.window_ms = 4000;
    for (int i = 1; i <= 5; i++)
        file_add(&f, 1, i, i == 3 ? 0.4 : 0.1, NULL);
    struct usage_samples list = load(NULL, 0);
    assert_int_equal(2, list.n);
    assert_int_equal(4000, list.sample[1].window_ms);
    assert_near(4.0 / 25, *usage_at(&list.sample[1], USAGE_step_s, 0)); /* 5 and 20 steps */
    usage_samples_fini(&list);
    assert_ok(usage_file_rest(&f, &rest));
    list = load(&rest, 0);
    assert_int_equal(3, list.n);
    assert_int_equal(2000, list.sample[2].window_ms);
    usage_samples_fini(&list);
    file_add(&f, 2, 6, 0.1, NULL); /* another epoch: the open window ends early */
    list = load(NULL, 0);
    assert_int_equal(3, list.n);
    usage_samples_fini(&list);
    usage_file_fini(&f);
    list = load(NULL, 0);
    assert_int_equal(4, list.n);
    usage_samples_fini(&list);
    buf_fini(&rest);
}

TEST(a_torn_line_is_skipped)
{
    struct usage_file f;
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    file_add(&f, 1, 1, 0.1, NULL);
    usage_file_fini(&f);
    int fd = open(usage_path(), O_WRONLY | O_APPEND);
    assert_ok(file_write_all(fd, "{\"wall_ms\": 4", 13));
    close(fd);
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    file_add(&f, 1, 3, 0.1, NULL);
    usage_file_fini(&f);
    struct usage_samples list = load(NULL, 0);
    assert_int_equal(2, list.n);
    assert_int_equal(6000, list.sample[1].wall_ms);
    usage_samples_fini(&list);
}

/* Lines of an earlier leader come before those that have arrived here, and none comes twice. */
TEST(a_new_leader_fills_the_gap)
{
    struct usage_file f;
    struct buf lines = {0};
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    for (int i = 1; i <= 4; i++) {
        file_add(&f, 1, i, 0.1, &lines);
        if (i == 2) { /* the file of this node ends here */
            usage_file_fini(&f);
            assert_ok(usage_file_init(&f, "/dev/null/not/there", NULL, 0));
        }
    }
    usage_file_fini(&f);
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    usage_file_hold(&f);
    file_add(&f, 1, 5, 0.1, NULL);
    const char *line = (const char *)lines.data, *end = line + lines.len, *nl;
    for (; line < end && (nl = memchr(line, '\n', (size_t)(end - line))); line = nl + 1)
        usage_file_before(&f, line, (size_t)(nl - line));
    usage_file_release(&f);
    struct usage_samples list = load(NULL, 0);
    assert_int_equal(5, list.n);
    for (int i = 0; i < 5; i++)
        assert_int_equal(2000 * (i + 1), list.sample[i].wall_ms);
    usage_samples_fini(&list);
    usage_file_fini(&f);
    buf_fini(&lines);
}

/* Sixteen windows of 2 s; each line has some 90 bytes. Joined once they are eight of 4 s, twice four of 8 s. */
TEST(joining_doubles_the_window_until_the_lines_fit)
{
    struct usage_file f;
    struct buf lines = {0};
    int64_t window_ms = 2000;
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    for (int i = 1; i <= 16; i++)
        file_add(&f, 1, i, i <= 8 ? 0.1 : 0.2, NULL);
    usage_file_fini(&f);
    struct usage_samples list = load(NULL, 0);
    assert_int_equal(16, list.n);
    assert_ok(usage_samples_halve(&list, 500, &window_ms, &lines));
    assert_int_equal(4, list.n);
    assert_int_equal(8000, window_ms);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(8000, list.sample[i].window_ms);
        assert_int_equal(8000 * (i + 1), list.sample[i].wall_ms);
        assert_near(i < 2 ? 0.1 : 0.2, *usage_at(&list.sample[i], USAGE_step_s, 0));
    }
    assert_true(lines.len <= 500);
    usage_samples_fini(&list);
    buf_fini(&lines);
}

TEST(too_many_epochs_drop_the_oldest)
{
    struct usage_file f;
    struct buf lines = {0};
    struct usage_sample s;
    int64_t window_ms = 2000;
    assert_ok(usage_file_init(&f, usage_path(), NULL, 0));
    for (int i = 1; i <= 16; i++)
        file_add(&f, (uint64_t)i, i, 0.1, NULL);
    usage_file_fini(&f);
    struct usage_samples list = load(NULL, 0);
    assert_ok(usage_samples_halve(&list, 500, &window_ms, &lines));
    assert_true(lines.len <= 500 && lines.len > 300);
    const char *last = memrchr(lines.data, '\n', lines.len - 1);
    assert_ok(usage_line_parse(last + 1, lines.len - (size_t)(last + 1 - (char *)lines.data), &s));
    assert_int_equal(16, s.epoch);
    usage_sample_fini(&s);
    assert_ok(usage_line_parse((char *)lines.data,
                               (size_t)((uint8_t *)memchr(lines.data, '\n', lines.len) - lines.data), &s));
    usage_sample_fini(&s);
    usage_samples_fini(&list);
    buf_fini(&lines);
}

static void run_until_joined(uv_loop_t *loop, const struct usage_file *f)
{
    while (f->halving)
        uv_run(loop, UV_RUN_ONCE);
}

/* A thread joins the lines while new ones arrive; none is lost. */
TEST(the_file_stays_bounded)
{
    static uv_loop_t loop; /* the threads of a pool run until the process exits */
    static struct pool pool;
    struct usage_file f;
    struct stat st;
    assert_int_equal(0, uv_loop_init(&loop));
    assert_ok(
        pool_init(&pool, &(struct pool_config){.loop = &loop, .threads = 1, .user_threads = 1, .user_waiting = 4}));
    assert_ok(usage_file_init(&f, usage_path(), &pool, 1));
    f.limit = 20000;
    for (int i = 1; i <= 2000; i++) {
        file_add(&f, 1, i, 0.1, NULL);
        if (i % 100 == 0)
            run_until_joined(&loop, &f);
        assert_true(stat(usage_path(), &st) || st.st_size <= 40000);
    }
    run_until_joined(&loop, &f);
    assert_true(f.window_ms >= 16000); /* 2000 lines of some 90 bytes, in 20000 bytes */
    const struct usage_sample *open = &f.open;
    int64_t covered_ms = open->ranks ? open->window_ms : 0;
    struct usage_samples list = load(NULL, 0);
    for (size_t i = 0; i < list.n; i++)
        covered_ms += list.sample[i].window_ms;
    assert_int_equal(4000000, covered_ms);
    usage_samples_fini(&list);
    usage_file_fini(&f);
}
