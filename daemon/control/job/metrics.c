/* Each line is appended by one write before control acknowledges the worker's report, so that no acknowledged line is
 * lost when control is killed. After a short write, the file is truncated to its last complete line. */
#include "daemon/control/job/metrics.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PENDING_BYTES (4u << 20)
/* A line has at most about 900 bytes today, 420 of them for traffic. The rest is space for more metrics. */
#define MAX_LINE_BYTES 4096
#define LOAD_BYTES ((size_t)1 << 20) /* some 10 ms of parsing, after which a load may be stopped */

/* ---- lines ---- */

static err_t put_field(struct buf *b, const struct field *f, const struct metric *m)
{
    const struct field_value v = field_get(f, m);
    const char *comma = b->len && b->data[b->len - 1] != '{' ? ", " : "";
    if (f->presence != FIELD_REQUIRED && field_absent(f, m))
        return OK;
    switch (f->kind) {
    case FIELD_REAL:
        return isfinite(v.real) ? buf_printf(b, "%s\"%s\": %.17g", comma, f->name, v.real)
                                : buf_printf(b, "%s\"%s\": null", comma, f->name);
    case FIELD_BOOL:
        return buf_printf(b, "%s\"%s\": %s", comma, f->name, v.whole ? "true" : "false");
    case FIELD_INT:
    case FIELD_UINT:
    case FIELD_TEXT: /* no metric is a text */
        break;
    }
    return buf_printf(b, "%s\"%s\": %" PRId64, comma, f->name, v.whole);
}

/* , "bytes": {"dp": 123, "tp": 456} */
static err_t put_traffic(struct buf *b, const struct traffic *t)
{
    char axes[MESH_AXES_NAME];
    err_t err = t->n ? buf_printf(b, ", \"bytes\": {") : OK;
    for (int i = 0; !err && i < t->n; i++)
        err = buf_printf(b, "%s\"%s\": %" PRId64, i ? ", " : "", mesh_axes_name(t->axes[i], axes), t->bytes[i]);
    return !err && t->n ? buf_printf(b, "}") : err;
}

err_t metrics_format(const struct metric *m, struct buf *ret)
{
    const size_t start = ret->len;
    err_t err = buf_printf(ret, "{");
    for (int i = 0; !err && i < metric_fields.n; i++)
        err = put_field(ret, &metric_fields.field[i], m);
    err = err ? err : put_traffic(ret, &m->traffic);
    err = err ? err : buf_printf(ret, "}\n");
    if (err)
        ret->len = start;
    return err;
}

/* A missing required field is 0, or NaN if it is a real: lines of older versions do not have every field. */
static struct field_value value_of(const json_t *v)
{
    return (struct field_value){.whole = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v),
                                .real = json_is_number(v) ? json_number_value(v) : NAN};
}

static void get_traffic(const json_t *o, struct traffic *ret)
{
    const json_t *bytes = json_object_get(o, "bytes");
    char name[MESH_AXES_NAME];
    for (unsigned axes = 1; axes < 1u << AXIS_COUNT; axes++)
        traffic_add(ret, axes, json_integer_value(json_object_get(bytes, mesh_axes_name(axes, name))));
}

err_t metrics_parse(const char *line, size_t len, struct metric *ret)
{
    if (len > MAX_LINE_BYTES)
        return ERR_LIMIT;
    json_t *o = json_loadb(line, len, 0, NULL);
    struct metric m = metric_none;
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *f = &metric_fields.field[i];
        const json_t *v = json_object_get(o, f->name);
        if (v || f->presence == FIELD_REQUIRED)
            field_set(f, &m, value_of(v));
    }
    get_traffic(o, &m.traffic);
    bool valid =
        json_is_integer(json_object_get(o, "step")) && m.workers >= 0 && m.workers <= INT_MAX && m.epoch <= INT64_MAX;
    json_decref(o);
    if (!valid)
        return ERR_CORRUPT;
    *ret = m;
    return OK;
}

/* ---- the file being written ---- */

static void read_last(struct metrics *m)
{
    char tail[2 * MAX_LINE_BYTES];
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
            m->has_last = whole > from && metrics_parse(tail + from, whole - from, &m->last) == OK;
        }
    }
    close(fd);
}

err_t metrics_init(struct metrics *m, const char *path)
{
    *m = (struct metrics){.fd = -1, .path = strdup(path)};
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
    if (metrics_format(row, &m->pending))
        m->dropped++;
    drop_oldest(m);
    if (!m->err) /* otherwise the timer tries again, so that a full disk does not cost a write per step */
        metrics_flush(m);
}

/* ---- older lines ---- */

void metrics_hold(struct metrics *m)
{
    m->held = true;
}

void metrics_before(struct metrics *m, const struct metric *row)
{
    struct buf line = {0};
    if (metrics_format(row, &line) || buf_append(&m->pending, line.data, line.len)) {
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
        if (metrics_parse(p, (size_t)(nl - p), &row) == OK)
            err = take_row(rows, from_step, &row);
        p = nl + 1;
    }
    *ret_used = (size_t)(p - text);
    return err;
}

/* A line that fills the block is none of metrics_format. Its two parts are not JSON, so no row is made from them. */
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
