/* Writes a job's metrics for other programs: dtctl metrics --to. Blocking. */
#ifndef DTD_CLIENT_EXPORT_H
#define DTD_CLIENT_EXPORT_H

#include "client/client.h"
#include "common/base/buf.h"

enum export_kind { EXPORT_NONE, EXPORT_TENSORBOARD, EXPORT_WANDB, EXPORT_CSV };
/* By the name of an option: "tensorboard". EXPORT_NONE: there is no such kind. */
enum export_kind export_kind_of(const char *name);

struct export_result {
    char *path;   /* of the folder or file; NULL: standard output */
    size_t steps; /* number of the job's steps */
    size_t added; /* steps that were not there before */
};
/* `rows` are ascending by step. `dir` NULL: the folder of the job file's key, else "runs" (TensorBoard), the current
 * one (W&B) or standard output (CSV). Exporting again adds only what is missing. */
NODISCARD err_t export_write(enum export_kind kind, const struct client_job *job, const struct metric *rows, size_t n,
                             const char *dir, struct export_result *ret, struct why *why);
/* The table of `dtctl metrics --to csv`, appended to ret. */
NODISCARD err_t export_csv_format(const struct metric *rows, size_t n, struct buf *ret);
/* The command that shows the result; NULL: none. */
const char *export_viewer(enum export_kind kind);

#endif
