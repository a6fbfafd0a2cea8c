/* Each line is appended by one write before control acknowledges the worker's report, so that no acknowledged line is
 * lost when control is killed. After a short write, the file is truncated to its last complete line. */
#include "daemon/control/job/metrics.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/rpc/metric_line.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PENDING_BYTES (4u << 20)
#define LOAD_BYTES ((size_t)1 << 20)  /* some 10 ms of parsing, after which a load may be stopped */
#define LAST_BYTES ((size_t)64 << 10) /* over a hundred lines; most callers want one */
/* A page or `dtctl metrics --points` parses at most so many lines, in some 30 ms, and a curve file grows by a hundred
 * points at once. */
#define CURVE_LINES 4096

/* ---- the file being written ---- */

static void read_last(struct metrics *m)
{
    char tail[2 * METRIC_LINE_BYTES];
    struct stat st;
    int fd = open(m->path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        off_t at = st.st_size > (off_t)sizeof(tail) ? st.st_size - (off_t)sizeof(tail) : 0;
        size_t n = (size_t)(st.st_size - at);
        if (file_pread_all(fd, tail, n, at) == OK) {
            const char *end = memrchr(tail, '\n', n);
            size_t whole = end ? (size_t)(end - tail) + 1 : 0;
            if (whole < n && ftruncate(fd, at + (off_t)whole))
                log_warn("incomplete line not cut off path=%s error=%s", m->path, strerror(errno));
            const char *begin = whole > 1 ? memrchr(tail, '\n', whole - 1) : NULL;
            size_t from = begin ? (size_t)(begin - tail) + 1 : 0;
            m->has_last = whole > from && metric_line_parse(tail + from, whole - from, &m->last) == OK;
            m->size = at + (off_t)whole;
        }
    }
    close(fd);
}

err_t metrics_init(struct metrics *m, const char *path)
{
    *m = (struct metrics){.fd = -1, .path = strdup(path), .unread = CURVE_LINES};
    if (!m->path)
        return ERR_NOMEM;
    read_last(m);
    return OK;
}

void metrics_fini(struct metrics *m)
{
    if (m->path && m->fd >= 0)
        close(m->fd);
    buf_fini(&m->pending);
    free(m->path);
    *m = (struct metrics){.fd = -1};
}

static size_t writable(const struct metrics *m)
{
    return m->held ? m->older : m->pending.len;
}

static err_t open_file(struct metrics *m)
{
    char folder[PATH_MAX];
    if (m->fd >= 0)
        return OK;
    snprintf(folder, sizeof(folder), "%s", m->path);
    *strrchr(folder, '/') = '\0';
    if (mkdir(folder, 0700) && errno != EEXIST)
        return err_from_errno(errno);
    m->fd = open(m->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    return m->fd < 0 ? err_from_errno(errno) : OK;
}

/* The file ends with a complete line before and after, also if the write fails halfway. */
static err_t write_whole(struct metrics *m)
{
    struct stat st;
    err_t err = open_file(m);
    if (err)
        return err;
    if (fstat(m->fd, &st))
        return err_from_errno(errno);
    err = file_write_all(m->fd, m->pending.data, writable(m));
    if (err && ftruncate(m->fd, st.st_size))
        log_error("incomplete line not cut off path=%s error=%s", m->path, strerror(errno));
    m->size = (int64_t)st.st_size + (err ? 0 : (int64_t)writable(m));
    return err;
}

void metrics_flush(struct metrics *m)
{
    size_t len = writable(m);
    if (len == 0)
        return;
    err_t err = write_whole(m);
    if (err) {
        m->failed++;
        if (!m->err)
            log_warn("metrics wait in memory path=%s error=%s", m->path, err_text(err));
    } else {
        if (m->err)
            log_info("metrics are written again path=%s dropped=%" PRIu64, m->path, m->dropped);
        memmove(m->pending.data, m->pending.data + len, m->pending.len - len);
        m->pending.len -= len;
        m->older = 0;
    }
    m->err = err;
}

static void drop_oldest(struct metrics *m)
{
    while (m->pending.len > MAX_PENDING_BYTES) {
        const uint8_t *nl = memchr(m->pending.data, '\n', m->pending.len);
        size_t n = (size_t)(nl - m->pending.data) + 1;
        memmove(m->pending.data, m->pending.data + n, m->pending.len - n);
        m->pending.len -= n;
        m->older -= m->older < n ? m->older : n;
        m->dropped++;
    }
}

void metrics_append(struct metrics *m, const struct metric *row)
{
    m->last = *row;
    m->has_last = true;
    m->unread += m->unread < CURVE_LINES;
    if (metric_line_format(row, &m->pending))
        m->dropped++;
    drop_oldest(m);
    if (!m->err) /* otherwise the timer tries again, so that a full disk does not cost a write per step */
        metrics_flush(m);
}

bool metrics_curve_due(struct metrics *m)
{
    const bool due = m->unread >= CURVE_LINES && m->has_last;
    m->unread = due ? 0 : m->unread;
    return due;
}

/* ---- a shorter file in its place ---- */

static err_t append_tail(int from, int64_t at, int64_t end, int to)
{
    const size_t len = end > at ? (size_t)(end - at) : 0;
    char *tail = malloc(len + 1);
    err_t err = tail ? file_pread_all(from, tail, len, at) : ERR_NOMEM;
    err = err ? err : file_write_all(to, tail, len);
    free(tail);
    return err;
}

err_t metrics_replace(struct metrics *m, const char *thinned, int64_t size)
{
    struct stat st;
    int from = open(m->path, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(thinned, O_WRONLY | O_APPEND | O_CLOEXEC);
    err_t err = to < 0 ? err_from_errno(errno) : append_tail(from, size, m->size, to);
    if (!err && (fstat(to, &st) || rename(thinned, m->path)))
        err = err_from_errno(errno);
    if (from >= 0)
        close(from);
    if (err) {
        if (to >= 0)
            close(to);
        return err;
    }
    if (m->fd >= 0)
        close(m->fd);
    m->fd = to;
    m->size = (int64_t)st.st_size;
    m->thin_at = m->looked_at = 0;
    m->unread = CURVE_LINES; /* the curve has places in the old file */
    return OK;
}

/* ---- older lines ---- */

void metrics_hold(struct metrics *m)
{
    m->held = true;
}

void metrics_before(struct metrics *m, const struct metric *row)
{
    struct buf line = {0};
    if (metric_line_format(row, &line) || buf_append(&m->pending, line.data, line.len)) {
        m->dropped++;
    } else {
        memmove(m->pending.data + m->older + line.len, m->pending.data + m->older,
                m->pending.len - line.len - m->older);
        memcpy(m->pending.data + m->older, line.data, line.len);
        m->older += line.len;
        drop_oldest(m);
    }
    buf_fini(&line);
}

void metrics_release(struct metrics *m)
{
    m->held = false;
    m->older = 0;
    metrics_flush(m);
}

/* ---- the file being read ---- */

err_t metric_rows_add(struct metric_rows *rows, const struct metric *row)
{
    if (rows->n == rows->cap) {
        size_t cap = rows->cap ? 2 * rows->cap : 64;
        struct metric *p = realloc(rows->row, cap * sizeof(*p));
        if (!p)
            return ERR_NOMEM;
        rows->row = p;
        rows->cap = cap;
    }
    rows->row[rows->n++] = *row;
    return OK;
}

/* Rows of the same or a later step are of an earlier epoch. */
static err_t take_row(struct metric_rows *rows, int64_t from_step, const struct metric *row)
{
    while (rows->n && rows->row[rows->n - 1].step >= row->step)
        rows->n--;
    return row->step >= from_step ? metric_rows_add(rows, row) : OK;
}

/* Takes the complete lines; *ret_used: their length. */
static err_t take_lines(struct metric_rows *rows, int64_t from_step, const char *text, size_t len, size_t *ret_used)
{
    const char *p = text, *end = text + len, *nl;
    err_t err = OK;
    while (!err && p < end && (nl = memchr(p, '\n', (size_t)(end - p)))) {
        struct metric row;
        if (metric_line_parse(p, (size_t)(nl - p), &row) == OK)
            err = take_row(rows, from_step, &row);
        p = nl + 1;
    }
    *ret_used = (size_t)(p - text);
    return err;
}

/* A line that fills the block is none of metric_line_format. Its two parts are not JSON, so no row is made from them.
 */
static err_t take_file(struct metric_rows *rows, int64_t from_step, int fd, const atomic_bool *stop)
{
    char *block = malloc(LOAD_BYTES);
    size_t have = 0, used;
    err_t err = block ? OK : ERR_NOMEM;
    while (!err) {
        ssize_t got = read(fd, block + have, LOAD_BYTES - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            err = got ? err_from_errno(errno) : OK;
            break;
        }
        have += (size_t)got;
        err = take_lines(rows, from_step, block, have, &used);
        have -= used;
        memmove(block, block + used, have);
        have = have == LOAD_BYTES ? 0 : have;
        if (!err && stop && atomic_load(stop))
            err = ERR_CANCELED;
    }
    free(block);
    return err;
}

err_t metrics_load(const char *path, const struct buf *more, int64_t from_step, const atomic_bool *stop,
                   struct metric_rows *ret)
{
    struct metric_rows rows = {0};
    size_t used;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    err_t err = fd >= 0 ? take_file(&rows, from_step, fd, stop) : errno == ENOENT ? OK : err_from_errno(errno);
    if (fd >= 0)
        close(fd);
    if (!err && more->len)
        err = take_lines(&rows, from_step, (const char *)more->data, more->len, &used);
    if (err) {
        free(rows.row);
        return err;
    }
    *ret = rows;
    return OK;
}

/* ---- the end of the file ---- */

/* Takes the complete lines from the last to the first, until there are n rows. A row counts if its step is below those
 * of all later rows: others were repeated by a later epoch. *ret_begin: where the first line that was taken begins. A
 * line counts as complete at its beginning if `whole`, or if another line precedes it in the text. */
static err_t take_backwards(struct metric_rows *rows, int64_t n, const char *text, size_t len, bool whole,
                            size_t *ret_begin)
{
    const char *last = memrchr(text, '\n', len), *end = last ? last + 1 : text;
    err_t err = OK;
    while (!err && end > text && (int64_t)rows->n < n) {
        struct metric row;
        const char *nl = end - 1 > text ? memrchr(text, '\n', (size_t)(end - 1 - text)) : NULL;
        if (!nl && !whole)
            break;
        const char *begin = nl ? nl + 1 : text;
        const bool valid = metric_line_parse(begin, (size_t)(end - 1 - begin), &row) == OK;
        if (valid && (!rows->n || row.step < rows->row[rows->n - 1].step))
            err = metric_rows_add(rows, &row);
        end = begin;
    }
    *ret_begin = (size_t)(end - text);
    return err;
}

static err_t take_file_backwards(struct metric_rows *rows, int64_t n, int fd, const atomic_bool *stop)
{
    struct stat st;
    char *block = malloc(LAST_BYTES);
    err_t err = !block ? ERR_NOMEM : fstat(fd, &st) ? err_from_errno(errno) : OK;
    for (off_t end = err ? 0 : st.st_size; !err && end > 0 && (int64_t)rows->n < n;) {
        const size_t len = end < (off_t)LAST_BYTES ? (size_t)end : LAST_BYTES;
        size_t begin = 0;
        err = file_pread_all(fd, block, len, end - (off_t)len);
        err = err ? err : take_backwards(rows, n, block, len, end == (off_t)len, &begin);
        end = begin == len || begin == 0 ? end - (off_t)len : end - (off_t)(len - begin);
        if (!err && stop && atomic_load(stop))
            err = ERR_CANCELED;
    }
    free(block);
    return err;
}

err_t metrics_load_last(const char *path, const struct buf *more, int64_t n, const atomic_bool *stop,
                        struct metric_rows *ret)
{
    struct metric_rows rows = {0};
    size_t begin;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    err_t err = fd >= 0 || errno == ENOENT ? OK : err_from_errno(errno);
    if (!err && more->len)
        err = take_backwards(&rows, n, (const char *)more->data, more->len, true, &begin);
    if (!err && fd >= 0)
        err = take_file_backwards(&rows, n, fd, stop);
    if (fd >= 0)
        close(fd);
    if (err) {
        free(rows.row);
        return err;
    }
    for (size_t i = 0; i < rows.n / 2; i++) {
        const struct metric row = rows.row[i];
        rows.row[i] = rows.row[rows.n - 1 - i];
        rows.row[rows.n - 1 - i] = row;
    }
    *ret = rows;
    return OK;
}
