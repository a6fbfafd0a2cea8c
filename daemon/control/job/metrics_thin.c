/* The file is read in blocks, and at most one row waits for its neighbour, so that memory does not grow with the file.
 * A pair never spans a return to an earlier step: both rows of it are of one epoch. */
#include "daemon/control/job/metrics_thin.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/rpc/metric_line.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)1 << 20)
#define WHOLE_PART 4 /* the newest quarter stays whole */

struct thin {
    int to;
    struct buf out; /* not written yet */
    bool has_row;   /* a row waits for its neighbour: */
    struct metric row;
    char line[METRIC_LINE_BYTES + 1];
    size_t line_len;
    int64_t last_step; /* of the row that was read last */
    struct metrics_thinned n;
};

static err_t flush(struct thin *t)
{
    err_t err = file_write_all(t->to, t->out.data, t->out.len);
    t->n.bytes += (int64_t)t->out.len;
    t->out.len = 0;
    return err;
}

static err_t put_line(struct thin *t, const char *line, size_t len)
{
    err_t err = buf_append(&t->out, line, len);
    return !err && t->out.len >= BLOCK_BYTES ? flush(t) : err;
}

static err_t keep_line(struct thin *t, const char *line, size_t len)
{
    t->n.kept++;
    t->has_row = false;
    return put_line(t, line, len);
}

static err_t keep_waiting(struct thin *t)
{
    return t->has_row ? keep_line(t, t->line, t->line_len) : OK;
}

static void let_wait(struct thin *t, const struct metric *row, const char *line, size_t len)
{
    t->has_row = true;
    t->row = *row;
    memcpy(t->line, line, len);
    t->line_len = len;
}

static int count_values(const struct metric *row)
{
    int n = 0;
    for (int i = 0; i < metric_fields.n; i++)
        n += !field_absent(&metric_fields.field[i], row);
    return n;
}

/* A line of the older part, with its newline. */
static err_t take_line(struct thin *t, const char *line, size_t len)
{
    struct metric row;
    if (len > sizeof(t->line) || metric_line_parse(line, len - 1, &row))
        return OK;
    const bool returns = row.step <= t->last_step;
    t->last_step = row.step;
    t->n.rows++;
    if (returns) {
        err_t err = keep_waiting(t);
        return err ? err : keep_line(t, line, len);
    }
    if (t->has_row)
        return count_values(&t->row) > count_values(&row) ? keep_waiting(t) : keep_line(t, line, len);
    let_wait(t, &row, line, len);
    return OK;
}

/* Takes the complete lines of a block that begins at `offset`; those that begin at `whole` or later stay. */
static err_t take_lines(struct thin *t, const char *text, size_t len, int64_t offset, int64_t whole, size_t *ret_used)
{
    const char *p = text, *end = text + len, *nl;
    err_t err = OK;
    while (!err && p < end && (nl = memchr(p, '\n', (size_t)(end - p)))) {
        const size_t n = (size_t)(nl + 1 - p);
        const bool stays = offset + (p - text) >= whole;
        err = stays ? keep_waiting(t) : OK;
        if (!err)
            err = stays ? put_line(t, p, n) : take_line(t, p, n);
        p = nl + 1;
    }
    *ret_used = (size_t)(p - text);
    return err;
}

/* A line that fills the block is none of metric_line_format, and neither are its parts. */
static err_t take_file(struct thin *t, int from, int64_t size, char *block)
{
    const int64_t whole = size - size / WHOLE_PART;
    err_t err = OK;
    for (int64_t at = 0; !err && at < size;) {
        const size_t want = size - at < (int64_t)BLOCK_BYTES ? (size_t)(size - at) : BLOCK_BYTES;
        size_t used = 0;
        err = file_pread_all(from, block, want, at);
        err = err ? err : take_lines(t, block, want, at, whole, &used);
        if (!err && !used && want < BLOCK_BYTES)
            break; /* an incomplete line at the end */
        at += (int64_t)(used ? used : want);
    }
    return err;
}

err_t metrics_thin(int from, int64_t size, int to, struct metrics_thinned *ret)
{
    char *block = malloc(BLOCK_BYTES);
    struct thin *t = calloc(1, sizeof(*t));
    err_t err = block && t ? OK : ERR_NOMEM;
    if (!err) {
        t->to = to;
        t->last_step = INT64_MAX; /* the first row stays */
        err = take_file(t, from, size, block);
    }
    err = err ? err : keep_waiting(t);
    err = err ? err : flush(t);
    if (!err && fsync(to)) /* or the file that replaces the old one may be empty after a power failure */
        err = err_from_errno(errno);
    if (!err)
        *ret = t->n;
    if (t)
        buf_fini(&t->out);
    free(t);
    free(block);
    return err;
}
