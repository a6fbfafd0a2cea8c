/* A curve file is a pyramid of points over the rows that metrics_load returns.
 *
 *   header | point of rows 0..31 | rows 32..63 | .. | rows 992..1023 | rows 0..1023 | rows 1024..1055 | ..
 *
 * Level 0 has points of FACTOR rows, level k of FACTOR points of level k - 1. A point follows the last point that it is
 * made of, so the file only grows, and to return to an earlier row is to truncate it: a row of an earlier step (a new
 * epoch that resumed from a checkpoint) truncates the file behind the last point that has only steps before it. Each
 * point has the offsets of its lines in the metrics file, so that the rows of a point that is removed partly are read
 * again, and the file can be extended at any time.
 *
 * The metrics file is the truth. A point is used only if its checksum is right, and if the metrics file has the last
 * row of the last point at that point's offset. Otherwise the file is cut there or made again. Nothing is synced to
 * disk.
 *
 * Writers exclude each other by flock. A file that cannot be written (the disk is full) is replaced by an anonymous one
 * in memory for the time of the call. */
#include "daemon/control/job/curve.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/rpc/metric_line.h"
#include "daemon/control/job/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FACTOR 32 /* the file has about a tenth of the size of the metrics file */
#define LEVELS 5  /* 32^5 rows: enough for one in a point of the highest level */
#define VERSION 1
#define READ_BYTES ((size_t)1 << 20) /* some 10 ms of parsing, after which a call may be stopped */
#define LOCK_WAIT_MS 5

struct record {
    uint64_t sum;             /* of the rest */
    int64_t begin, last, end; /* in the metrics file: offsets of the first row, the last row, and behind it */
    int64_t first_step;
    struct metric_point point;
};

/* A row behind the last whole point, with its line. */
struct tail_row {
    struct metric row;
    int64_t at, end;
};

struct curve {
    int rows, fd; /* the metrics file and the curve file */
    const atomic_bool *stop;
    bool view;  /* nothing is written any more; the tail has any number of rows */
    int64_t n;  /* points of level 0 */
    int64_t at; /* end of the last line of the metrics file that was read */
    struct tail_row *tail;
    size_t n_tail, cap_tail;
};

/* ---- points in the file ---- */

/* Number of points of all levels that n points of level 0 make. */
static int64_t points_of(int64_t n)
{
    int64_t sum = 0;
    for (int k = 0; k < LEVELS; k++, n /= FACTOR)
        sum += n;
    return sum;
}

static int64_t rows_of(int level)
{
    int64_t rows = FACTOR;
    while (level-- > 0)
        rows *= FACTOR;
    return rows;
}

/* The header has the place of one point. */
static off_t offset_of(int level, int64_t i)
{
    const int64_t last = (i + 1) * (rows_of(level) / FACTOR) - 1; /* the point of level 0 before it */
    return (off_t)((1 + points_of(last) + level) * (int64_t)sizeof(struct record));
}

static off_t file_end(int64_t n)
{
    return (off_t)((1 + points_of(n)) * (int64_t)sizeof(struct record));
}

static uint64_t sum_of(const struct record *r)
{
    struct hash h;
    hash_init(&h);
    hash_add(&h, (const char *)r + sizeof(r->sum), sizeof(*r) - sizeof(r->sum));
    return hash_end(&h);
}

static err_t record_read(const struct curve *c, int level, int64_t i, struct record *ret)
{
    err_t err = file_pread_all(c->fd, ret, sizeof(*ret), offset_of(level, i));
    return !err && ret->sum != sum_of(ret) ? ERR_CORRUPT : err;
}

static err_t record_write(const struct curve *c, int level, int64_t i, struct record *r)
{
    r->sum = sum_of(r);
    return file_pwrite_all(c->fd, r, sizeof(*r), offset_of(level, i));
}

/* `to` precedes `r`. */
static void record_merge(struct record *to, const struct record *r)
{
    to->last = r->last;
    to->end = r->end;
    metric_point_merge(&to->point, &r->point);
}

/* Writes the points of higher levels that are complete with point n - 1 of level 0. */
static err_t write_higher(const struct curve *c)
{
    err_t err = OK;
    int64_t n = c->n;
    for (int k = 1; k < LEVELS && !err && n % FACTOR == 0; k++) {
        struct record sum, r;
        n /= FACTOR;
        err = record_read(c, k - 1, (n - 1) * FACTOR, &sum);
        for (int64_t i = 1; i < FACTOR && !err; i++) {
            err = record_read(c, k - 1, (n - 1) * FACTOR + i, &r);
            if (!err)
                record_merge(&sum, &r);
        }
        err = err ? err : record_write(c, k, n - 1, &sum);
    }
    return err;
}

/* Moves the rows of the tail into a point. */
static err_t write_point(struct curve *c)
{
    struct record r, one;
    memset(&r, 0, sizeof(r)); /* padding is in the checksum */
    memset(&one, 0, sizeof(one));
    for (size_t i = 0; i < c->n_tail; i++) {
        one.begin = one.last = c->tail[i].at;
        one.end = c->tail[i].end;
        one.first_step = c->tail[i].row.step;
        metric_point_set(&one.point, &c->tail[i].row);
        if (i == 0)
            r = one;
        else
            record_merge(&r, &one);
    }
    err_t err = record_write(c, 0, c->n, &r);
    if (err)
        return err;
    c->n++;
    c->n_tail = 0;
    return write_higher(c);
}

/* ---- rows ---- */

static err_t read_rows(struct curve *c, int64_t from, int64_t end, int64_t before, int64_t *ret_at);

static err_t tail_add(struct curve *c, const struct metric *row, int64_t at, int64_t end)
{
    if (c->n_tail == c->cap_tail) {
        size_t cap = c->cap_tail ? 2 * c->cap_tail : FACTOR;
        struct tail_row *p = realloc(c->tail, cap * sizeof(*p));
        if (!p)
            return ERR_NOMEM;
        c->tail = p;
        c->cap_tail = cap;
    }
    c->tail[c->n_tail++] = (struct tail_row){*row, at, end};
    return OK;
}

static void tail_pop(struct curve *c, int64_t step)
{
    while (c->n_tail && c->tail[c->n_tail - 1].row.step >= step)
        c->n_tail--;
}

/* Removes the rows of this and later steps, which are of an earlier epoch. Of a point that has some of them, the rows
 * before the step are read again: they become the tail. */
static err_t rows_pop(struct curve *c, int64_t step)
{
    struct record r = {.point.last.step = -1};
    const int64_t n = c->n;
    err_t err = OK;
    tail_pop(c, step);
    if (c->n_tail || !c->n)
        return OK;
    while (!err && c->n > 0) {
        err = record_read(c, 0, c->n - 1, &r);
        if (err || r.point.last.step < step)
            break;
        c->n--;
        if (r.first_step < step)
            break;
    }
    if (err || c->n == n)
        return err;
    if (!c->view && ftruncate(c->fd, file_end(c->n)))
        return err_from_errno(errno);
    int64_t at;
    return r.first_step < step && r.point.last.step >= step ? read_rows(c, r.begin, c->at, step, &at) : OK;
}

static err_t row_take(struct curve *c, const struct metric *row, int64_t at, int64_t end)
{
    err_t err = rows_pop(c, row->step);
    err = err ? err : tail_add(c, row, at, end);
    return !err && !c->view && c->n_tail == FACTOR ? write_point(c) : err;
}

static bool stopped(const struct curve *c)
{
    return c->stop && atomic_load(c->stop);
}

/* Takes the complete lines of `text`, which is at this offset of the metrics file. `before` >= 0: reads rows again for
 * the tail, and leaves out steps from there on. *ret_used: length of the lines. */
static err_t lines_take(struct curve *c, const char *text, size_t len, int64_t offset, int64_t before, size_t *ret_used)
{
    const char *p = text, *end = text + len, *nl;
    err_t err = OK;
    while (!err && p < end && (nl = memchr(p, '\n', (size_t)(end - p)))) {
        struct metric row;
        const int64_t at = offset + (p - text), behind = offset + (nl + 1 - text);
        const bool valid = metric_line_parse(p, (size_t)(nl - p), &row) == OK;
        p = nl + 1;
        if (before < 0) {
            err = valid ? row_take(c, &row, at, behind) : OK;
            c->at = c->view ? c->at : behind; /* the lines of a view are in no file */
        } else if (valid && row.step < before) {
            tail_pop(c, row.step);
            err = tail_add(c, &row, at, behind);
        }
    }
    *ret_used = (size_t)(p - text);
    return err;
}

/* A line that fills the block is none of metric_line_format, and neither are its parts. */
static err_t read_rows(struct curve *c, int64_t from, int64_t end, int64_t before, int64_t *ret_at)
{
    char *block = malloc(READ_BYTES);
    err_t err = block ? OK : ERR_NOMEM;
    *ret_at = from;
    while (!err && *ret_at < end) {
        const size_t want = end - *ret_at < (int64_t)READ_BYTES ? (size_t)(end - *ret_at) : READ_BYTES;
        ssize_t got = pread(c->rows, block, want, *ret_at);
        size_t used = 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            err = got ? err_from_errno(errno) : OK;
            break;
        }
        err = lines_take(c, block, (size_t)got, *ret_at, before, &used);
        if (!used && (size_t)got < READ_BYTES)
            break; /* an incomplete line at the end */
        *ret_at += (int64_t)(used ? used : (size_t)got);
        if (!err && stopped(c))
            err = ERR_CANCELED;
    }
    free(block);
    return err;
}

/* ---- opening ---- */

/* The first bytes of the file. A table of metrics that has changed makes another file. */
static struct record header(void)
{
    struct record r;
    struct hash h;
    memset(&r, 0, sizeof(r));
    hash_init(&h);
    for (int i = 0; i < metric_fields.n; i++) {
        char row[96] = {0};
        const struct field *f = &metric_fields.field[i];
        snprintf(row, sizeof(row), "%s %d %d %zu", f->name, f->kind, f->presence, f->offset);
        hash_add(&h, row, sizeof(row));
    }
    r.begin = (int64_t)hash_end(&h);
    r.last = VERSION;
    r.end = FACTOR;
    r.first_step = (int64_t)sizeof(r);
    r.sum = sum_of(&r);
    return r;
}

static bool is_header(const struct record *r)
{
    const struct record right = header();
    return r->begin == right.begin && r->last == right.last && r->end == right.end && r->first_step == right.first_step;
}

/* A new file begins with its header. */
static err_t start_empty(struct curve *c)
{
    const struct record r = header();
    c->n = 0;
    c->at = 0;
    c->n_tail = 0;
    if (ftruncate(c->fd, 0))
        return err_from_errno(errno);
    return file_pwrite_all(c->fd, &r, sizeof(r), 0);
}

/* Whether the metrics file has the last row of the point at the point's offset. */
static bool row_is_there(const struct curve *c, const struct record *r)
{
    char line[METRIC_LINE_BYTES + 2];
    struct metric row;
    const int64_t len = r->end - r->last;
    if (r->last < 0 || r->begin > r->last || len < 2 || len > (int64_t)METRIC_LINE_BYTES + 1 ||
        file_pread_all(c->rows, line, (size_t)len, r->last) || line[len - 1] != '\n')
        return false;
    return metric_line_parse(line, (size_t)len - 1, &row) == OK && row.step == r->point.last.step &&
           row.epoch == r->point.last.epoch && row.wall_ms == r->point.last.wall_ms;
}

/* The points that are complete with point n - 1 of level 0 are whole. */
static bool points_are_whole(const struct curve *c, int64_t n, struct record *ret)
{
    struct record r;
    bool whole = record_read(c, 0, n - 1, ret) == OK;
    int64_t i = n;
    for (int k = 1; whole && k < LEVELS && i % FACTOR == 0; k++) {
        i /= FACTOR;
        whole = record_read(c, k, i - 1, &r) == OK;
    }
    return whole;
}

/* Finds the points that can be used, and cuts off the rest. */
static err_t find_end(struct curve *c)
{
    struct record r;
    struct stat st, rows;
    if (fstat(c->fd, &st) || fstat(c->rows, &rows))
        return err_from_errno(errno);
    if (st.st_size < (off_t)sizeof(r) || file_pread_all(c->fd, &r, sizeof(r), 0) || !is_header(&r))
        return start_empty(c);
    c->n = (int64_t)st.st_size / (int64_t)sizeof(r);
    while (c->n && file_end(c->n) > st.st_size)
        c->n--;
    while (c->n && (!points_are_whole(c, c->n, &r) || r.end > rows.st_size))
        c->n--;
    if (c->n && !row_is_there(c, &r))
        return start_empty(c);
    c->at = c->n ? r.end : 0;
    return ftruncate(c->fd, file_end(c->n)) ? err_from_errno(errno) : OK;
}

/* Other threads may hold the lock for the time of a call. */
static err_t lock(struct curve *c)
{
    const struct timespec wait = {.tv_nsec = LOCK_WAIT_MS * 1000000};
    while (flock(c->fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_from_errno(errno);
        if (stopped(c))
            return ERR_CANCELED;
        nanosleep(&wait, NULL);
    }
    return OK;
}

err_t curve_path(const char *metrics_path, char *ret, size_t bytes)
{
    static const char old[] = ".jsonl";
    size_t n = strlen(metrics_path);
    if (n >= sizeof(old) - 1 && strcmp(metrics_path + n - (sizeof(old) - 1), old) == 0)
        n -= sizeof(old) - 1;
    return (size_t)snprintf(ret, bytes, "%.*s.curve", (int)n, metrics_path) < bytes ? OK : ERR_LIMIT;
}

static err_t open_file(struct curve *c, const char *metrics_path)
{
    char path[PATH_MAX];
    struct stat st;
    err_t err = curve_path(metrics_path, path, sizeof(path));
    if (err)
        return err;
    c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->fd < 0)
        return err_from_errno(errno);
    if (fstat(c->rows, &st) == 0 && st.st_nlink == 0) /* the job was forgotten meanwhile */
        (void)unlink(path);
    err = lock(c);
    return err ? err : find_end(c);
}

static err_t extend(struct curve *c)
{
    int64_t at;
    return read_rows(c, c->at, INT64_MAX, -1, &at);
}

static void curve_close(struct curve *c)
{
    if (c->fd >= 0)
        close(c->fd);
    if (c->rows >= 0)
        close(c->rows);
    free(c->tail);
}

static err_t make_again(struct curve *c)
{
    err_t err = start_empty(c);
    return err ? err : extend(c);
}

static err_t open_and_extend(struct curve *c, const char *metrics_path)
{
    err_t err = open_file(c, metrics_path);
    err = err ? err : extend(c);
    return err == ERR_CORRUPT ? make_again(c) : err;
}

err_t curve_update(const char *metrics_path, const atomic_bool *stop)
{
    struct curve c = {.rows = open(metrics_path, O_RDONLY | O_CLOEXEC), .fd = -1, .stop = stop};
    if (c.rows < 0)
        return errno == ENOENT ? OK : err_from_errno(errno);
    err_t err = open_and_extend(&c, metrics_path);
    curve_close(&c);
    return err;
}

/* ---- points for a reader ---- */

/* The last point takes rows until it has `per` of them. */
static err_t put(struct metric_points *to, int64_t per, const struct metric_point *p)
{
    if (to->n && to->point[to->n - 1].steps < per) {
        metric_point_merge(&to->point[to->n - 1], p);
        return OK;
    }
    return metric_points_add(to, p);
}

static err_t put_row(struct metric_points *to, int64_t per, const struct metric *row)
{
    struct metric_point p;
    metric_point_set(&p, row);
    return put(to, per, &p);
}

/* The points of the file, the largest that fit, and the tail. Lines of the metrics file are in the order of the points,
 * or the file has points of two states. */
static err_t put_points(const struct curve *c, int64_t per, struct metric_points *to)
{
    struct record r;
    int64_t step = -1, end = 0;
    err_t err = OK;
    for (int64_t i = 0; i < c->n && !err && !stopped(c);) {
        int level = 0;
        while (level + 1 < LEVELS && per % rows_of(level + 1) == 0 && i % (rows_of(level + 1) / FACTOR) == 0 &&
               i + rows_of(level + 1) / FACTOR <= c->n)
            level++;
        const int64_t n = rows_of(level) / FACTOR;
        err = record_read(c, level, i / n, &r);
        if (!err && (r.first_step <= step || r.begin < end || r.point.steps != rows_of(level)))
            err = ERR_CORRUPT;
        err = err ? err : put(to, per, &r.point);
        step = r.point.last.step;
        end = r.end;
        i += n;
    }
    for (size_t i = 0; i < c->n_tail && !err; i++)
        err = put_row(to, per, &c->tail[i].row);
    return !err && stopped(c) ? ERR_CANCELED : err;
}

static err_t put_all_rows(const char *metrics_path, const struct buf *more, int64_t per, const atomic_bool *stop,
                          struct metric_points *to)
{
    struct metric_rows rows;
    err_t err = metrics_load(metrics_path, more, 0, stop, &rows);
    if (err)
        return err;
    for (size_t i = 0; i < rows.n && !err; i++)
        err = put_row(to, per, &rows.row[i]);
    free(rows.row);
    return err;
}

/* Rows in a point: a multiple of those of the largest point in the file that is not above twice the number for `max`
 * points; without such a point, rows are read. So at most 16 rows or 32 points of the file become one point. */
static err_t put_some(struct curve *c, const char *metrics_path, const struct buf *more, int64_t max,
                      struct metric_points *to)
{
    const int64_t rows = c->n * FACTOR + (int64_t)c->n_tail, least = (rows + max - 1) / max;
    int64_t unit = 1;
    for (int k = 0; k < LEVELS && rows_of(k) <= 2 * least; k++)
        unit = rows_of(k);
    const int64_t per = (least + unit - 1) / unit * unit;
    return unit == 1 ? put_all_rows(metrics_path, more, per, c->stop, to) : put_points(c, per, to);
}

static err_t load(struct curve *c, const char *metrics_path, const struct buf *more, int64_t max,
                  struct metric_points *to)
{
    size_t used;
    c->view = true;
    to->n = 0;
    err_t err = more->len ? lines_take(c, (const char *)more->data, more->len, c->at, -1, &used) : OK;
    return err ? err : put_some(c, metrics_path, more, max, to);
}

/* In memory, for this call: the curve file cannot be written. */
static err_t load_without_file(struct curve *c, const char *metrics_path, const struct buf *more, int64_t max,
                               struct metric_points *to)
{
    if (c->fd >= 0)
        close(c->fd);
    c->view = false;
    c->fd = memfd_create("curve", MFD_CLOEXEC);
    err_t err = c->fd < 0 ? err_from_errno(errno) : make_again(c);
    return err ? err : load(c, metrics_path, more, max, to);
}

err_t curve_load(const char *metrics_path, const struct buf *more, int64_t max, const atomic_bool *stop,
                 struct metric_points *ret)
{
    struct metric_points points = {0};
    struct curve c = {.rows = open(metrics_path, O_RDONLY | O_CLOEXEC), .fd = -1, .stop = stop};
    err_t err = c.rows >= 0 || errno == ENOENT ? OK : err_from_errno(errno);
    if (!err && c.rows < 0) {
        err = load(&c, metrics_path, more, max, &points);
    } else if (!err) {
        err = open_and_extend(&c, metrics_path);
        err = err ? err : load(&c, metrics_path, more, max, &points);
        if (err == ERR_CORRUPT) { /* a point within the file is damaged */
            c.view = false;
            err = make_again(&c);
            err = err ? err : load(&c, metrics_path, more, max, &points);
        }
        if (err && err != ERR_CANCELED && err != ERR_NOMEM)
            err = load_without_file(&c, metrics_path, more, max, &points);
    }
    curve_close(&c);
    if (err) {
        free(points.point);
        return err;
    }
    *ret = points;
    return OK;
}
