/* The metrics file: rows are read back as written, the newest epoch wins, and incomplete lines or a full disk lose
 * nothing else. */
#include "common/base/file.h"
#include "common/rpc/metric_line.h"
#include "daemon/control/job/metrics.h"
#include "tests/lib/test.h"

#include <math.h>
#include <sys/stat.h>

static const struct buf nothing;

static const char *metrics_path(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", test_tmpdir());
    return path;
}

static void append_row(struct metrics *m, uint64_t epoch, int64_t step)
{
    const struct metric row = {.step = step,
                               .epoch = epoch,
                               .loss = (double)step / 3,
                               .grad_norm = INFINITY,
                               .lr = 1e-4,
                               .tokens_per_s = 1,
                               .step_s = 2,
                               .workers = 4,
                               .wall_ms = 99};
    metrics_append(m, &row);
}

static void expect_steps(int64_t from, const int64_t *steps, const uint64_t *epochs, size_t n, const struct buf *more)
{
    struct metric_rows rows;
    assert_ok(metrics_load(metrics_path(), more, from, NULL, &rows));
    assert_int_equal(n, rows.n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(steps[i], rows.row[i].step);
        assert_int_equal(epochs[i], rows.row[i].epoch);
    }
    free(rows.row);
}

TEST(line_is_read_back)
{
    struct buf line = {0};
    struct metric in = {.step = 7,
                        .loss = 1.25,
                        .grad_norm = NAN,
                        .lr = 1e-5,
                        .tokens_per_s = 123.5,
                        .step_s = 0.5,
                        .workers = 3,
                        .epoch = 2,
                        .valid_loss = 2.5,
                        .test_loss = 2.75,
                        .wall_ms = 1234567890123,
                        .skipped = true,
                        .traffic = {2, {2, 20}, {1234567890123456, 5}}}; /* dp, fsdp x tp */
    struct metric out;
    assert_ok(metric_line_format(&in, &line));
    assert_ok(metric_line_parse((const char *)line.data, line.len, &out));
    assert_true(isnan(out.grad_norm));
    in.grad_norm = out.grad_norm = 0;
    assert_memory_equal(&in.step, &out.step, sizeof(in.step));
    assert_true(in.loss == out.loss && in.lr == out.lr && in.step_s == out.step_s && in.valid_loss == out.valid_loss);
    assert_true(in.test_loss == out.test_loss);
    assert_non_null(strstr((char *)line.data, "\"bytes\": {\"dp\": 1234567890123456, \"fsdp x tp\": 5}"));
    assert_true(out.skipped && out.traffic.n == 2 && out.traffic.axes[1] == 20 && out.traffic.bytes[1] == 5);
    assert_true(out.traffic.axes[0] == 2 && out.traffic.bytes[0] == 1234567890123456);
    assert_true(out.workers == 3 && out.epoch == 2 && out.wall_ms == in.wall_ms);
    buf_fini(&line);
}

TEST(newest_epoch_wins)
{
    struct metrics m;
    assert_ok(metrics_init(&m, metrics_path()));
    for (int64_t step = 1; step <= 5; step++)
        append_row(&m, 1, step);
    append_row(&m, 2, 3); /* resumed from step 2, and has not reached 5 again */
    append_row(&m, 2, 4);
    const int64_t steps[] = {1, 2, 3, 4};
    const uint64_t epochs[] = {1, 1, 2, 2};
    expect_steps(0, steps, epochs, 4, &nothing);
    expect_steps(2, steps + 1, epochs + 1, 3, &nothing);
    metrics_fini(&m);
    assert_ok(metrics_init(&m, metrics_path()));
    assert_true(m.has_last);
    assert_int_equal(4, m.last.step);
    metrics_fini(&m);
}

TEST(incomplete_line_is_cut_off)
{
    struct metrics m;
    assert_ok(metrics_init(&m, metrics_path()));
    append_row(&m, 1, 1);
    assert_ok(file_write_all(m.fd, "{\"step\": 2, \"lo", 15));
    metrics_fini(&m);
    assert_ok(metrics_init(&m, metrics_path()));
    assert_int_equal(1, m.last.step);
    append_row(&m, 1, 2);
    expect_steps(0, (const int64_t[]){1, 2}, (const uint64_t[]){1, 1}, 2, &nothing);
    metrics_fini(&m);
}

static void add_older(struct metrics *m, uint64_t epoch, int64_t step)
{
    const struct metric row = {.step = step, .epoch = epoch, .loss = 1, .workers = 4, .wall_ms = 99};
    metrics_before(m, &row);
}

/* Lines that another leader received precede those that arrive meanwhile, and an interruption leaves no gap. */
TEST(older_lines_come_first)
{
    struct metrics m;
    assert_ok(metrics_init(&m, metrics_path()));
    metrics_hold(&m);
    append_row(&m, 2, 11);
    add_older(&m, 1, 1);
    add_older(&m, 1, 2);
    metrics_flush(&m);
    append_row(&m, 2, 12);
    add_older(&m, 1, 10);
    expect_steps(0, (int64_t[]){1, 2}, (uint64_t[]){1, 1}, 2, &nothing);
    expect_steps(0, (int64_t[]){1, 2, 10, 11, 12}, (uint64_t[]){1, 1, 1, 2, 2}, 5, &m.pending);
    metrics_flush(&m);
    metrics_fini(&m); /* the node stops leading */
    expect_steps(0, (int64_t[]){1, 2, 10}, (uint64_t[]){1, 1, 1}, 3, &nothing);
    assert_ok(metrics_init(&m, metrics_path()));
    assert_int_equal(10, m.last.step);
    metrics_hold(&m);
    append_row(&m, 2, 13);
    add_older(&m, 2, 11);
    add_older(&m, 2, 12);
    metrics_release(&m);
    append_row(&m, 2, 14);
    metrics_fini(&m);
    expect_steps(0, (int64_t[]){1, 2, 10, 11, 12, 13, 14}, (uint64_t[]){1, 1, 1, 2, 2, 2, 2}, 7, &nothing);
}

/* Lines that cannot be written are kept, counted, and written later. */
TEST(lines_wait_in_memory)
{
    struct metrics m;
    char folder[600];
    snprintf(folder, sizeof(folder), "%s/later", test_tmpdir());
    char path[700];
    snprintf(path, sizeof(path), "%s/metrics/1.jsonl", folder); /* metrics_append creates `metrics`, but not `later` */
    assert_ok(metrics_init(&m, path));
    append_row(&m, 1, 1);
    append_row(&m, 1, 2);
    assert_int_equal(ERR_NOTFOUND, m.err);
    assert_true(m.failed >= 1 && m.dropped == 0);
    struct metric_rows rows;
    assert_ok(metrics_load(path, &m.pending, 0, NULL, &rows));
    assert_int_equal(2, rows.n);
    free(rows.row);
    assert_int_equal(0, mkdir(folder, 0700));
    metrics_flush(&m);
    assert_int_equal(OK, m.err);
    assert_int_equal(0, m.pending.len);
    assert_ok(metrics_load(path, &nothing, 0, NULL, &rows));
    assert_int_equal(2, rows.n);
    free(rows.row);
    metrics_fini(&m);
}
