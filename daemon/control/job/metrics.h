/* A job's metrics: one JSON line per step in metrics/ID.jsonl. A state directory that is full stops nobody: lines
 * wait in memory (bounded, the oldest go first) and are written when there is space again. Loop thread, except
 * metrics_load. */
#ifndef DTD_DAEMON_CONTROL_JOB_METRICS_H
#define DTD_DAEMON_CONTROL_JOB_METRICS_H

#include "common/base/buf.h"
#include "common/rpc/metric.h"

#include <stdbool.h>
#include <stdint.h>

struct metrics {
    char *path;
    int fd; /* -1: not open */
    struct buf pending;
    bool held;                /* lines of before are still to come: what is new waits behind them */
    size_t older;             /* bytes at the beginning of `pending` that are such lines */
    uint64_t failed, dropped; /* writes that failed, lines that were given up */
    err_t err;                /* of the last write; OK when all is on disk */
    bool has_last;
    struct metric last;
};

/* Remembers the path and reads the last line, if there is one; a torn last line is cut off. Opens lazily. */
NODISCARD err_t metrics_init(struct metrics *m, const char *path);
void metrics_fini(struct metrics *m);
/* Never fails: what cannot be written now waits. */
void metrics_append(struct metrics *m, const struct metric *row);
/* What was made elsewhere before is added now: until metrics_release what is appended waits in memory, so that the file
 * is always whole up to its last line. */
void metrics_hold(struct metrics *m);
void metrics_before(struct metrics *m, const struct metric *row);
void metrics_release(struct metrics *m);
/* Tries to write what waits. */
void metrics_flush(struct metrics *m);

/* A line with its newline, appended to ret. NaN and infinities become null, which is read back as NaN. */
NODISCARD err_t metrics_format(const struct metric *row, struct buf *ret);
NODISCARD err_t metrics_parse(const char *line, size_t len, struct metric *ret);

struct metric_rows {
    struct metric *row;
    size_t n, cap;
};
NODISCARD err_t metric_rows_add(struct metric_rows *rows, const struct metric *row);
/* Reads the file and, behind it, `more` (lines that are not in it yet): ascending by step, the newest epoch's line for
 * each; lines of steps that a later epoch has gone back over are left out. Any thread; a missing file has no rows. Free
 * ret->row. */
NODISCARD err_t metrics_load(const char *path, const struct buf *more, int64_t from_step, struct metric_rows *ret);

#endif
