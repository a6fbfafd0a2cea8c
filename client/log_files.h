/* Files of the workers' output: DIR/attempt-A/rank-R.log (dtctl run --log-dir). */
#ifndef DTD_CLIENT_LOG_FILES_H
#define DTD_CLIENT_LOG_FILES_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct log_file {
    int attempt; /* of the text that comes next; -1: unknown until a mark */
    int written; /* newest attempt that a file was written for; -1: none */
    bool later;  /* the text comes from a log that another attempt may have begun: skip up to an attempt > written */
};

struct log_files {
    const char *dir;
    struct log_file *rank;
    int n;
};

/* Creates `dir` (kept by reference), which may exist. */
NODISCARD err_t log_files_init(struct log_files *l, const char *dir, struct why *why);
void log_files_fini(struct log_files *l);
/* Appends text of a rank, which begins at the start of a line or behind a \r. `moved`: it is the first text of another
 * log; `begins`: it is the start of that log. ERR_IO with errno set when a file cannot be written. */
NODISCARD err_t log_files_write(struct log_files *l, int rank, bool moved, bool begins, const char *text, size_t len);

#endif
