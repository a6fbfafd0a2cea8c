/* A job's metrics: one JSON line per step in metrics/ID.jsonl, of older steps fewer in a long job (metrics_limit.h).
 * While the disk of the state directory is full, lines wait in memory, at most 4 MiB; then the oldest are dropped. Loop
 * thread, except metrics_load. */
#ifndef DTD_DAEMON_CONTROL_JOB_METRICS_H
#define DTD_DAEMON_CONTROL_JOB_METRICS_H

#include "common/base/buf.h"
#include "common/rpc/metric.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct metrics {
    char *path;
    int fd; /* -1: not open */
    struct buf pending;
    bool held;                /* older lines are still to come: new lines wait in `pending` behind them */
    size_t older;             /* number of bytes at the beginning of `pending` that are older lines */
    uint64_t failed, dropped; /* number of failed writes, and of lines that were dropped */
    err_t err;                /* of the last write; OK: all lines are on disk */
    bool has_last;
    struct metric last;
    int unread;   /* number of lines since metrics_curve_due returned true */
    int64_t size; /* of the file */
    /* For metrics_limit.c: the file is not thinned out again before it has `thin_at` bytes; its size when those of its
     * user were added up. */
    int64_t thin_at, looked_at;
};

/* Stores the path and reads the last line of the file, if it exists. Cuts off an incomplete last line. The file is
 * opened for writing by the first append. */
NODISCARD err_t metrics_init(struct metrics *m, const char *path);
void metrics_fini(struct metrics *m);
/* A line that cannot be written now waits in memory. */
void metrics_append(struct metrics *m, const struct metric *row);
/* For a new leader, which first fetches the lines that other leaders received. metrics_hold: lines that are appended
 * wait in memory until metrics_release, so that the file never has a gap. metrics_before: adds an older line before
 * them. */
void metrics_hold(struct metrics *m);
void metrics_before(struct metrics *m, const struct metric *row);
void metrics_release(struct metrics *m);
/* Tries to write the waiting lines. */
void metrics_flush(struct metrics *m);

/* Replaces the file by the file `thinned`, which has fewer lines in the place of the first `size` bytes; what follows
 * them is copied. */
NODISCARD err_t metrics_replace(struct metrics *m, const char *thinned, int64_t size);

/* Whether enough lines have been appended since the last time for curve_update (curve.h); first true for a file of an
 * earlier run. */
bool metrics_curve_due(struct metrics *m);

struct metric_rows {
    struct metric *row;
    size_t n, cap;
};
NODISCARD err_t metric_rows_add(struct metric_rows *rows, const struct metric *row);
/* Reads the file and then `more`, lines that are not in the file yet. Returns the rows ascending by step. For a step
 * that a later epoch repeated, only the newest row is returned; rows of steps that the newest epoch has not reached
 * again are left out. A missing file has no rows. The caller frees ret->row. Takes seconds for a long job. Ends with
 * ERR_CANCELED soon after *stop becomes true (NULL: never). Any thread. */
NODISCARD err_t metrics_load(const char *path, const struct buf *more, int64_t from_step, const atomic_bool *stop,
                             struct metric_rows *ret);
/* The last `n` of the rows that metrics_load returns; reads the file from its end. */
NODISCARD err_t metrics_load_last(const char *path, const struct buf *more, int64_t n, const atomic_bool *stop,
                                  struct metric_rows *ret);

#endif
