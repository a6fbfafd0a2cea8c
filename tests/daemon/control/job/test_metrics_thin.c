/* A metrics file that is thinned out: the newest rows, rare values and the newest epochs remain. The oracle is
 * metrics_load of the file before. */
#include "common/base/file.h"
#include "common/rpc/metric_line.h"
#include "daemon/control/job/curve.h"
#include "daemon/control/job/metrics.h"
#include "daemon/control/job/metrics_thin.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct buf nothing;

static const char *path_of(const char *name)
{
    static char path[2][512];
    static int i;
    i ^= 1;
    snprintf(path[i], sizeof(path[i]), "%s/%s", test_tmpdir(), name);
    return path[i];
}

static void append_row(struct metrics *m, uint64_t epoch, int64_t step, double valid_loss)
{
    struct metric row = metric_none;
    row.step = step;
    row.epoch = epoch;
    row.loss = (double)epoch + 1.0 / (double)(step + 1);
    row.grad_norm = row.lr = row.tokens_per_s = row.step_s = 1;
    row.workers = 2;
    row.wall_ms = 1000 + step;
    row.valid_loss = valid_loss;
    metrics_append(m, &row);
}

/* Thins out the first `size` bytes of "rows.jsonl" to "thin.jsonl"; 0: all. */
static struct metrics_thinned thin_out(int64_t size)
{
    struct stat st;
    struct metrics_thinned n;
    int from = open(path_of("rows.jsonl"), O_RDONLY),
        to = open(path_of("thin.jsonl"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(from >= 0 && to >= 0);
    assert_int_equal(0, fstat(from, &st));
    assert_ok(metrics_thin(from, size ? size : st.st_size, to, &n));
    assert_int_equal(0, fstat(to, &st));
    assert_int_equal(st.st_size, n.bytes);
    close(from);
    close(to);
    return n;
}

static struct metric_rows load(const char *name)
{
    struct metric_rows rows;
    assert_ok(metrics_load(path_of(name), &nothing, 0, NULL, &rows));
    return rows;
}

static const struct metric *find(const struct metric_rows *rows, int64_t step)
{
    for (size_t i = 0; i < rows->n; i++)
        if (rows->row[i].step == step)
            return &rows->row[i];
    return NULL;
}

/* All lines have nearly equal lengths here, so three quarters of the bytes are three quarters of the rows. */
TEST(every_second_row_of_the_older_part_remains)
{
    enum { ROWS = 4000 };
    struct metrics m;
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    for (int64_t step = 0; step < ROWS; step++)
        append_row(&m, 1, step, NAN);
    metrics_fini(&m);
    struct metrics_thinned n = thin_out(0);
    struct metric_rows rows = load("thin.jsonl");
    assert_in_range(n.rows, ROWS * 74 / 100, ROWS * 76 / 100);
    assert_in_range(n.kept, n.rows / 2, n.rows / 2 + 1);
    assert_int_equal(n.kept + ROWS - n.rows, rows.n);
    for (int64_t step = n.rows; step < ROWS; step++)
        assert_non_null(find(&rows, step));
    assert_int_equal(0, rows.row[0].step);
    for (size_t i = 2; i < (size_t)n.kept - 1; i++)
        assert_int_equal(2, rows.row[i].step - rows.row[i - 1].step);
    free(rows.row);
}

/* A validation every 16 steps: after four times, these rows are left of the oldest ones. */
TEST(rows_with_more_values_outlive_others)
{
    struct metrics m;
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    for (int64_t step = 1; step <= 4096; step++)
        append_row(&m, 1, step, step % 16 == 3 ? 0.5 : NAN);
    metrics_fini(&m);
    for (int i = 0; i < 4; i++) {
        (void)thin_out(0);
        assert_int_equal(0, rename(path_of("thin.jsonl"), path_of("rows.jsonl")));
    }
    struct metric_rows rows = load("rows.jsonl");
    for (int64_t step = 3; step <= 4096; step += 16)
        assert_non_null(find(&rows, step));
    int rare = 0;
    for (size_t i = 0; i < rows.n && rows.row[i].step < 512; i++)
        rare += !isnan(rows.row[i].valid_loss);
    assert_int_equal(512 / 16, rare);
    assert_int_equal(1, rows.row[0].step);
    assert_non_null(find(&rows, 4096));
    assert_true(rows.n < 4096 / 3);
    free(rows.row);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Epochs of random lengths, each of which resumes at a random earlier step. */
static void write_history(uint64_t *state, int epochs)
{
    struct metrics m;
    int64_t step = 0;
    (void)unlink(path_of("rows.jsonl"));
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    for (uint64_t epoch = 1; epoch <= (uint64_t)epochs; epoch++) {
        int64_t until = step + 1 + (int64_t)(next_random(state) % 60);
        for (; step < until; step++)
            append_row(&m, epoch, step, next_random(state) % 5 ? NAN : 0.5);
        step -= (int64_t)(next_random(state) % 40);
        step = step < 0 ? 0 : step;
    }
    metrics_fini(&m);
}

/* No row of an earlier epoch appears again, and no step of the newest quarter goes. */
TEST(no_overtaken_row_returns)
{
    uint64_t state = 88172645463325252u;
    for (int history = 0; history < 30; history++) {
        write_history(&state, 12);
        struct metric_rows before = load("rows.jsonl");
        const int64_t last = before.row[before.n - 1].step;
        for (int round = 0; round < 6; round++) {
            (void)thin_out(0);
            assert_int_equal(0, rename(path_of("thin.jsonl"), path_of("rows.jsonl")));
            struct metric_rows after = load("rows.jsonl");
            assert_true(after.n <= before.n);
            assert_int_equal(last, after.row[after.n - 1].step);
            for (size_t i = 0; i < after.n; i++) {
                const struct metric *old = find(&before, after.row[i].step);
                assert_non_null(old);
                assert_int_equal(old->epoch, after.row[i].epoch);
            }
            free(after.row);
        }
        free(before.row);
    }
}

static void add_text(const char *text)
{
    int fd = open(path_of("rows.jsonl"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    assert_ok(file_write_all(fd, text, strlen(text)));
    close(fd);
}

/* A worker cannot keep the file large with lines that are no rows, or with one line without an end. */
TEST(lines_that_are_no_rows_go)
{
    struct metrics m;
    static char text[3 << 20];
    memset(text, 'x', sizeof(text) - 2);
    text[sizeof(text) - 2] = '\n';
    add_text("{}\n");
    add_text(text);
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    for (int64_t step = 1; step <= 8; step++)
        append_row(&m, 1, step, NAN);
    metrics_fini(&m);
    struct metrics_thinned n = thin_out(0);
    assert_true(n.bytes < 8192);
    struct metric_rows rows = load("thin.jsonl");
    assert_int_equal(8, rows.row[rows.n - 1].step);
    free(rows.row);
}

/* Lines that are appended while the file is thinned out follow in the new file, and the curve is made again. */
TEST(lines_that_come_meanwhile_are_kept)
{
    struct metrics m;
    struct metric_points points;
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    for (int64_t step = 1; step <= 400; step++)
        append_row(&m, 1, step, NAN);
    assert_ok(curve_load(path_of("rows.jsonl"), &nothing, 10, NULL, &points));
    free(points.point);
    const int64_t size = m.size;
    append_row(&m, 1, 401, NAN);
    struct metrics_thinned n = thin_out(size);
    append_row(&m, 1, 402, NAN);
    assert_ok(metrics_replace(&m, path_of("thin.jsonl"), size));
    append_row(&m, 1, 403, NAN);
    struct stat st;
    assert_int_equal(0, stat(path_of("rows.jsonl"), &st));
    assert_int_equal(st.st_size, m.size);
    struct metric_rows rows = load("rows.jsonl");
    assert_int_equal(n.kept + 400 - n.rows + 3, rows.n);
    for (int64_t step = 399; step <= 403; step++)
        assert_non_null(find(&rows, step));
    assert_ok(curve_load(path_of("rows.jsonl"), &nothing, 10, NULL, &points));
    int64_t steps = 0;
    for (size_t i = 0; i < points.n; i++)
        steps += points.point[i].steps;
    assert_int_equal(rows.n, steps);
    assert_int_equal(403, points.point[points.n - 1].last.step);
    free(points.point);
    free(rows.row);
    metrics_fini(&m);
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    assert_int_equal(st.st_size, m.size);
    assert_int_equal(403, m.last.step);
    metrics_fini(&m);
}

/* A file that cannot be replaced stays as it is. */
TEST(a_missing_file_replaces_nothing)
{
    struct metrics m;
    assert_ok(metrics_init(&m, path_of("rows.jsonl")));
    append_row(&m, 1, 1, NAN);
    assert_int_equal(ERR_NOTFOUND, metrics_replace(&m, path_of("missing"), m.size));
    append_row(&m, 1, 2, NAN);
    struct metric_rows rows = load("rows.jsonl");
    assert_int_equal(2, rows.n);
    free(rows.row);
    metrics_fini(&m);
}
