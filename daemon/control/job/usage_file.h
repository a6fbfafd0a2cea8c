/* A job's usage: one JSON line per window in metrics/ID.usage.jsonl. The file is bounded: when it has reached its
 * limit, a thread of a pool joins neighbouring lines to half as many, and new windows are twice as long from then on.
 * Lines that arrive in the meantime, or while the disk is full, wait in memory. Loop thread, except
 * usage_file_load. */
#ifndef DTD_DAEMON_CONTROL_JOB_USAGE_FILE_H
#define DTD_DAEMON_CONTROL_JOB_USAGE_FILE_H

#include "common/base/buf.h"
#include "common/rpc/usage.h"

#include <stdatomic.h>
#include <sys/types.h>

struct pool;
struct usage_halving; /* usage_file.c: the work of the thread */

struct usage_file {
    char *path;
    int fd; /* -1: not open */
    off_t size;
    off_t limit;                   /* bytes above which lines are joined */
    struct buf older, pending;     /* whole lines that are not in the file yet */
    struct usage_sample open;      /* ranks 0: none; shorter than a window of the file */
    int64_t window_ms;             /* of the lines that are written */
    uint64_t dropped;              /* lines */
    bool failed;                   /* the last write */
    bool held;                     /* older lines are still to come */
    int64_t last_ms;               /* wall_ms of the last line of the file; 0: none, or not known */
    struct usage_halving *halving; /* NULL: none runs */
    struct pool *pool;
    uint64_t key; /* for the pool: the job's user */
};

#define USAGE_FILE_BYTES (8 << 20) /* 9 hours in windows of 2 s for two ranks, before the first joining */

/* Stores the path; touches no file. `pool` must outlive it; NULL: lines are not joined, for tests. */
NODISCARD err_t usage_file_init(struct usage_file *f, const char *path, struct pool *pool, uint64_t key);
void usage_file_fini(struct usage_file *f); /* what cannot be written is lost */
/* Adds a window. If it completes a line, the line is appended to *ret_line, too; NULL: it is not wanted. */
void usage_file_add(struct usage_file *f, const struct usage_sample *sample, struct buf *ret_line);
/* The epoch or the job has ended: writes the open line, although its window is shorter than others. */
void usage_file_close_window(struct usage_file *f, struct buf *ret_line);
/* Tries to write the waiting lines. */
void usage_file_flush(struct usage_file *f);

/* For a new leader, which first fetches the lines that other leaders wrote. usage_file_hold reads the last line of the
 * file; new lines wait until usage_file_release. usage_file_before adds an older line, unless the file has it;
 * usage_file_flush writes it. */
void usage_file_hold(struct usage_file *f);
void usage_file_before(struct usage_file *f, const char *line, size_t len);
void usage_file_release(struct usage_file *f);

struct usage_samples {
    struct usage_sample *sample;
    size_t n, cap;
};
/* Appends the lines that are not in the file yet, and that of the window that is still open. */
NODISCARD err_t usage_file_rest(const struct usage_file *f, struct buf *ret);

/* Takes over the contents of `s`, also after an error. */
NODISCARD err_t usage_samples_add(struct usage_samples *list, struct usage_sample *s);
void usage_samples_fini(struct usage_samples *list);
/* Reads the file and then `more`, lines that are not in the file yet: samples that end at `from_ms` or later,
 * ascending. A missing file has none. Ends with ERR_CANCELED soon after *stop becomes true. Any thread. */
NODISCARD err_t usage_file_load(const char *path, const struct buf *more, int64_t from_ms, const atomic_bool *stop,
                                struct usage_samples *ret);
/* Doubles *window_ms, and joins neighbours that are shorter, until the lines have at most `max_bytes`; if that does not
 * suffice, because there are too many epochs, drops the oldest lines. */
NODISCARD err_t usage_samples_halve(struct usage_samples *list, size_t max_bytes, int64_t *window_ms,
                                    struct buf *ret_lines);

#endif
