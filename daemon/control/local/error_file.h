/* The error file of a worker of `dtctl run`, which TORCHELASTIC_ERROR_FILE names. PyTorch's decorator `record`
 * (torch.distributed.elastic.multiprocessing.errors) writes the exception of a failed script into it, as JSON. The
 * supervisor creates the file, empty, because only it may write to the job's folder. A file per slot and epoch: an
 * attempt never reads the error of an earlier one. Pure functions and reads of small files; any thread. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_ERROR_FILE_H
#define DTD_DAEMON_CONTROL_LOCAL_ERROR_FILE_H

#include "common/base/err.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define ERROR_FILE_ENV "TORCHELASTIC_ERROR_FILE"
#define ERROR_FILE_TEXT 2048 /* room for a message and some 20 lines of a traceback; every node's log has it */
#define ERROR_FILE_MAX_BYTES (1 << 20) /* of the file, so that reading it does not delay the daemon's loop */

struct error_file {
    char text[ERROR_FILE_TEXT + 1]; /* UTF-8: the message, and below it the last lines of the traceback */
    int64_t when_s;                 /* of the exception, in seconds since 1970 by the date of its node; 0: unknown */
};

/* `dir`: the node's state directory. */
void error_file_path(const char *dir, uint64_t job, int slot, uint64_t epoch, char ret[PATH_MAX]);
/* ERR_NOTFOUND: the worker has written none. ERR_CORRUPT: the file is not what `record` writes. */
NODISCARD err_t error_file_parse(const char *json, size_t len, struct error_file *ret);
NODISCARD err_t error_file_read(const char *path, struct error_file *ret);
/* Time since the exception, by the date of this node, which wrote the file; -1: unknown. Nodes send each other ages,
 * because their dates may differ. */
int64_t error_file_age_ms(const struct error_file *e);

#endif
