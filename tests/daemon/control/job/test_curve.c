/* Curves: every point has what a loop over all rows finds, whatever was rolled back, cut off, damaged or not writable.
 */
#include "common/base/file.h"
#include "common/rpc/metric_line.h"
#include "daemon/control/job/curve.h"
#include "daemon/control/job/metrics.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD_LEAST 500 /* a point in the file is larger */

static const struct buf nothing;

/* The rows that survive: what the test itself keeps of what it wrote. */
struct kept {
    struct metric *row;
    size_t n;
    uint64_t random;
    uint64_t epoch;
    int fd; /* the metrics file, written without the code under test */
};

static const char *file_path(const char *end)
{
    static char path[2][512];
    static int turn;
    char *ret = path[turn ^= 1];
    snprintf(ret, sizeof(path[0]), "%s/7.%s", test_tmpdir(), end);
    return ret;
}

static uint64_t pick(struct kept *k, uint64_t below)
{
    k->random = k->random * 6364136223846793005u + 1442695040888963407u;
    return (k->random >> 33) % below;
}

static void kept_init(struct kept *k, size_t cap, uint64_t seed)
{
    *k = (struct kept){.row = calloc(cap, sizeof(*k->row)), .random = seed, .epoch = 1};
    assert_non_null(k->row);
    k->fd = open(file_path("jsonl"), O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0600);
    assert_true(k->fd >= 0);
}

static void kept_fini(struct kept *k)
{
    close(k->fd);
    free(k->row);
}

static struct metric row_of(struct kept *k, int64_t step)
{
    struct metric m = metric_none;
    m.step = step;
    m.loss = pick(k, 50) ? (double)pick(k, 100000) / 1000 - 20 : NAN;
    m.grad_norm = (double)pick(k, 1000);
    m.lr = 1e-3;
    m.tokens_per_s = (double)pick(k, 5000);
    m.step_s = 0.25 + (double)pick(k, 100);
    m.targets = pick(k, 2) ? (int64_t)pick(k, 900) : -1;
    m.valid_loss = pick(k, 10) ? NAN : (double)pick(k, 100);
    m.workers = 2;
    m.epoch = k->epoch;
    m.skipped = pick(k, 40) == 0;
    m.wall_ms = 1700000000000 + step;
    return m;
}

/* Adds a line to `to` (NULL: to the file), and the row to those that are kept. */
static void kept_add(struct kept *k, int64_t step, struct buf *to)
{
    struct buf line = {0};
    const struct metric m = row_of(k, step);
    assert_ok(metric_line_format(&m, &line));
    assert_ok(to ? buf_append(to, line.data, line.len) : file_write_all(k->fd, line.data, line.len));
    buf_fini(&line);
    while (k->n && k->row[k->n - 1].step >= step)
        k->n--;
    k->row[k->n++] = m;
}

static void kept_run(struct kept *k, int64_t steps, struct buf *to)
{
    for (int64_t i = 0; i < steps; i++)
        kept_add(k, k->n ? k->row[k->n - 1].step + 1 : 1, to);
}

/* A new epoch resumes from one of the last `most` steps. */
static void kept_back(struct kept *k, uint64_t most, struct buf *to)
{
    k->epoch++;
    k->n -= k->n ? pick(k, most < k->n ? most : k->n) : 0;
    kept_run(k, 1, to);
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

static void expect_spread(const struct metric_point *p, const char *name, const struct metric *row, size_t n)
{
    const struct field *f = field_find(&metric_fields, name);
    const struct metric_spread *s = &p->of[f - metric_fields.field];
    double min = INFINITY, max = -INFINITY, sum = 0;
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct field_value v = field_get(f, &row[i]);
        const double x = f->kind == FIELD_REAL ? v.real : v.whole < 0 ? NAN : (double)v.whole;
        if (isnan(x))
            continue;
        min = x < min ? x : min;
        max = x > max ? x : max;
        sum += x;
        count++;
    }
    assert_int_equal(count, s->n);
    assert_true(!count ||
                (min == s->min && max == s->max && fabs(sum - s->sum) <= 1e-9 * (fabs(sum) + (double)count * 100)));
}

static void expect_point(const struct metric_point *p, const struct metric *row, size_t n)
{
    static const char *const names[] = {"loss", "grad_norm", "tokens_per_s", "step_s", "targets", "valid_loss"};
    const struct metric *last = &row[n - 1];
    double valid = NAN;
    bool skipped = false;
    for (size_t i = 0; i < n; i++) {
        valid = isnan(row[i].valid_loss) ? valid : row[i].valid_loss;
        skipped = skipped || row[i].skipped;
    }
    assert_int_equal(n, p->steps);
    assert_true(p->last.step == last->step && p->last.epoch == last->epoch && same(p->last.loss, last->loss));
    assert_true(p->last.wall_ms == last->wall_ms && p->last.step_s == last->step_s);
    assert_true(same(valid, p->last.valid_loss) && skipped == p->last.skipped);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        expect_spread(p, names[i], row, n);
}

static void expect_curve(const struct kept *k, const struct buf *more, int64_t max)
{
    struct metric_points points;
    size_t at = 0;
    assert_ok(curve_load(file_path("jsonl"), more, max, NULL, &points));
    assert_true((int64_t)points.n <= max);
    assert_true(2 * (int64_t)points.n >= max || points.n == k->n);
    for (size_t i = 0; i < points.n; i++) {
        const size_t n = (size_t)points.point[i].steps;
        assert_true(n <= k->n - at && (i + 1 == points.n || n == (size_t)points.point[0].steps));
        expect_point(&points.point[i], &k->row[at], n);
        at += n;
    }
    assert_int_equal(k->n, at);
    free(points.point);
}

static off_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? -1 : st.st_size;
}

TEST(no_rows)
{
    struct kept k;
    struct metric_points points;
    assert_ok(curve_load(file_path("jsonl"), &nothing, 5, NULL, &points));
    assert_int_equal(0, points.n);
    free(points.point);
    assert_ok(curve_update(file_path("jsonl"), NULL));
    assert_true(size_of(file_path("curve")) < 0); /* a job without metrics has no curve */
    kept_init(&k, 10, 1);
    expect_curve(&k, &nothing, 5);
    kept_run(&k, 3, NULL);
    expect_curve(&k, &nothing, 5);
    kept_fini(&k);
}

/* Three levels of points. The curve is extended at random times. */
TEST(random_roll_backs)
{
    struct kept k;
    kept_init(&k, 60000, 2);
    for (int i = 0; i < 120; i++) {
        kept_run(&k, (int64_t)pick(&k, 600), NULL);
        if (pick(&k, 3) == 0)
            kept_back(&k, pick(&k, 8) ? 200 : 3000, NULL);
        if (pick(&k, 2))
            assert_ok(curve_update(file_path("jsonl"), NULL));
        if (pick(&k, 8) == 0)
            expect_curve(&k, &nothing, 1 + (int64_t)pick(&k, 300));
    }
    while (k.n < 34000)
        kept_run(&k, 1, NULL);
    const int64_t max[] = {1, 2, 7, 33, 100, 600, 1000, 1062, 1063, 5000, 10000};
    for (size_t i = 0; i < sizeof(max) / sizeof(max[0]); i++)
        expect_curve(&k, &nothing, max[i]);
    kept_back(&k, 30000, NULL);
    expect_curve(&k, &nothing, 50);
    k.n = 0; /* the first step again */
    kept_run(&k, 100, NULL);
    expect_curve(&k, &nothing, 2);
    kept_fini(&k);
}

/* Lines that wait in memory may roll rows of the file back. */
TEST(lines_in_memory)
{
    for (uint64_t seed = 1; seed < 12; seed++) {
        struct kept k;
        struct buf more = {0};
        kept_init(&k, 5000, seed);
        kept_run(&k, 2000, NULL);
        kept_back(&k, 500, NULL);
        kept_run(&k, (int64_t)pick(&k, 300), NULL);
        kept_run(&k, (int64_t)pick(&k, 100), &more);
        kept_back(&k, seed % 2 ? 20 : 1200, &more);
        kept_run(&k, (int64_t)pick(&k, 100), &more);
        kept_back(&k, 40, &more);
        expect_curve(&k, &more, 20);
        expect_curve(&k, &more, 300);
        buf_fini(&more);
        kept_fini(&k);
    }
}

/* The lines were written, and others after them, before a thread read the file: those reach the client as new rows. */
TEST(lines_in_memory_are_in_the_file_too)
{
    struct kept k;
    struct buf more = {0};
    kept_init(&k, 5000, 10);
    kept_run(&k, 2000, NULL);
    kept_run(&k, 20, &more);
    kept_back(&k, 500, &more);
    kept_run(&k, 7, &more);
    assert_ok(file_write_all(k.fd, more.data, more.len));
    struct kept later = k;
    later.row = calloc(5000, sizeof(*later.row));
    memcpy(later.row, k.row, k.n * sizeof(*k.row));
    kept_run(&later, 100, NULL);
    expect_curve(&k, &more, 20);
    expect_curve(&k, &more, 1000);
    free(later.row);
    buf_fini(&more);
    kept_fini(&k);
}

static void cut_and_expect(const struct kept *k, off_t size, const uint8_t *whole, size_t len)
{
    assert_int_equal(0, truncate(file_path("curve"), size));
    expect_curve(k, &nothing, 9);
    struct buf again = {0};
    assert_ok(file_read(file_path("curve"), 1 << 24, &again));
    assert_true(again.len == len && memcmp(again.data, whole, len) == 0);
    buf_fini(&again);
}

/* The file is as before, wherever it was cut. */
TEST(curve_cut_at_each_byte)
{
    struct kept k;
    struct buf whole = {0};
    kept_init(&k, 1100, 3);
    kept_run(&k, 32 * 32, NULL);
    expect_curve(&k, &nothing, 9);
    assert_ok(file_read(file_path("curve"), 1 << 24, &whole));
    assert_true(whole.len > 34 * RECORD_LEAST);
    for (size_t cut = whole.len - 1; cut > whole.len - 2500; cut--) /* the last two points */
        cut_and_expect(&k, (off_t)cut, whole.data, whole.len);
    for (size_t cut = 0; cut < 2500; cut += 61)
        cut_and_expect(&k, (off_t)cut, whole.data, whole.len);
    buf_fini(&whole);
    kept_fini(&k);
}

/* A metrics file that became shorter, or is another one. */
TEST(metrics_cut_at_each_byte)
{
    struct kept k;
    struct buf all = {0};
    kept_init(&k, 200, 4);
    kept_run(&k, 100, NULL);
    expect_curve(&k, &nothing, 3);
    assert_ok(file_read(file_path("jsonl"), 1 << 24, &all));
    const size_t least = all.len - 3000;
    for (size_t cut = all.len; cut > least; cut--) {
        if (all.data[cut - 1] == '\n' && cut < all.len)
            k.n--;
        assert_int_equal(0, truncate(file_path("jsonl"), (off_t)cut - 1));
        struct kept shown = k;
        shown.n = k.n - 1; /* the line of the byte that is cut off */
        expect_curve(&shown, &nothing, 3);
    }
    buf_fini(&all);
    kept_fini(&k);
    kept_init(&k, 200, 5); /* other rows at other offsets */
    kept_run(&k, 150, NULL);
    expect_curve(&k, &nothing, 3);
    kept_fini(&k);
}

TEST(damaged_curve_is_made_again)
{
    struct kept k;
    struct buf whole = {0};
    kept_init(&k, 4000, 6);
    kept_run(&k, 3500, NULL);
    expect_curve(&k, &nothing, 40);
    assert_ok(file_read(file_path("curve"), 1 << 24, &whole));
    for (int i = 0; i < 60; i++) {
        const off_t at = (off_t)pick(&k, whole.len);
        const uint8_t other = whole.data[at] ^ (uint8_t)(1 + pick(&k, 255));
        int fd = open(file_path("curve"), O_WRONLY);
        assert_ok(file_pwrite_all(fd, &other, 1, at));
        close(fd);
        expect_curve(&k, &nothing, 3 + (int64_t)pick(&k, 200));
    }
    for (int i = 0; i < 8; i++) { /* another version: each number of the header */
        const uint64_t other = 77;
        int fd = open(file_path("curve"), O_WRONLY);
        assert_ok(file_pwrite_all(fd, &other, 8, i < 4 ? 8 + 8 * i : 8));
        close(fd);
        expect_curve(&k, &nothing, 40);
    }
    buf_fini(&whole);
    kept_fini(&k);
}

/* Without a place for the file, the points are the same. */
TEST(full_disk)
{
    struct kept k;
    kept_init(&k, 4000, 7);
    kept_run(&k, 3500, NULL);
    assert_int_equal(0, symlink("/dev/full", file_path("curve")));
    assert_true(curve_update(file_path("jsonl"), NULL) != OK);
    expect_curve(&k, &nothing, 40);
    assert_int_equal(0, unlink(file_path("curve")));
    assert_int_equal(0, mkdir(file_path("curve"), 0700));
    expect_curve(&k, &nothing, 40);
    assert_int_equal(0, rmdir(file_path("curve")));
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t space = 100; space < 120000; space += 9973) { /* it is full at some byte */
        struct rlimit limit, old;
        assert_int_equal(0, getrlimit(RLIMIT_FSIZE, &old));
        limit = (struct rlimit){space, old.rlim_max};
        assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &limit));
        const err_t err = curve_update(file_path("jsonl"), NULL);
        assert_int_equal(0, setrlimit(RLIMIT_FSIZE, &old));
        assert_true(err != OK || size_of(file_path("curve")) <= (off_t)space);
        expect_curve(&k, &nothing, 40);
        assert_int_equal(0, unlink(file_path("curve")));
    }
    kept_fini(&k);
}

TEST(stops)
{
    struct kept k;
    struct metric_points points;
    atomic_bool stop = true;
    kept_init(&k, 9000, 8);
    kept_run(&k, 8000, NULL);
    assert_int_equal(ERR_CANCELED, curve_update(file_path("jsonl"), &stop));
    assert_int_equal(ERR_CANCELED, curve_load(file_path("jsonl"), &nothing, 3, &stop, &points));
    expect_curve(&k, &nothing, 3);
    kept_fini(&k);
}

struct reader {
    const char *path;
    int wrong;
};

static void *load_often(void *arg)
{
    struct reader *r = arg;
    for (int i = 0; i < 20; i++) {
        struct metric_points points = {0};
        r->wrong += curve_load(r->path, &nothing, 20, NULL, &points) != OK;
        int64_t step = 0;
        for (size_t p = 0; p < points.n; p++) {
            r->wrong += step + points.point[p].steps != points.point[p].last.step; /* a row is missing */
            step = points.point[p].last.step;
        }
        free(points.point);
    }
    return NULL;
}

/* Calls at once, while lines arrive. */
TEST(several_readers)
{
    struct kept k;
    pthread_t threads[3];
    struct reader readers[3] = {{0}};
    kept_init(&k, 9000, 9);
    const char *path = strdup(file_path("jsonl"));
    for (int i = 0; i < 3; i++) {
        readers[i].path = path;
        assert_int_equal(0, pthread_create(&threads[i], NULL, load_often, &readers[i]));
    }
    for (int i = 0; i < 20; i++) {
        kept_run(&k, 400, NULL);
        kept_back(&k, 300, NULL);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(0, readers[i].wrong);
    }
    expect_curve(&k, &nothing, 20);
    free((void *)path);
    kept_fini(&k);
}

static void expect_last(const struct kept *k, const struct buf *more, int64_t n)
{
    struct metric_rows rows;
    const size_t want = (size_t)n < k->n ? (size_t)n : k->n;
    assert_ok(metrics_load_last(file_path("jsonl"), more, n, NULL, &rows));
    assert_int_equal(want, rows.n);
    for (size_t i = 0; i < want; i++) {
        const struct metric *right = &k->row[k->n - want + i];
        assert_true(rows.row[i].step == right->step && rows.row[i].epoch == right->epoch);
        assert_true(same(rows.row[i].loss, right->loss));
    }
    free(rows.row);
}

TEST(last_rows)
{
    static const int64_t n[] = {1, 2, 10, 100, 999, 5000};
    for (uint64_t seed = 1; seed < 8; seed++) {
        struct kept k;
        struct buf more = {0};
        kept_init(&k, 5000, seed);
        expect_last(&k, &nothing, 3);
        for (int i = 0; i < 6; i++) {
            kept_run(&k, (int64_t)pick(&k, 300), NULL);
            kept_back(&k, 200, NULL);
            for (size_t j = 0; j < sizeof(n) / sizeof(n[0]); j++)
                expect_last(&k, &nothing, n[j]);
        }
        kept_run(&k, (int64_t)pick(&k, 20), &more);
        kept_back(&k, 60, &more);
        for (size_t j = 0; j < sizeof(n) / sizeof(n[0]); j++)
            expect_last(&k, &more, n[j]);
        assert_ok(file_write_all(k.fd, "{\"step\": 2, \"lo", 15)); /* a line that is being written */
        expect_last(&k, &more, 10);
        buf_fini(&more);
        kept_fini(&k);
    }
}

/* A long line is none of dtd's; the rows around it count. */
TEST(last_rows_around_a_long_line)
{
    struct kept k;
    char *line = malloc(200001);
    assert_non_null(line);
    memset(line, 'x', 200000);
    line[200000] = '\n';
    kept_init(&k, 100, 1);
    kept_run(&k, 5, NULL);
    assert_ok(file_write_all(k.fd, line, 200001));
    kept_run(&k, 5, NULL);
    expect_last(&k, &nothing, 7);
    expect_curve(&k, &nothing, 4);
    free(line);
    kept_fini(&k);
}
