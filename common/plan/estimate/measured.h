/* The timeline of one measured step: the actions of each rank with their times, in the shape of a forecast, so that
 * both are summed and drawn by the same code. A worker writes its own file (run.timeline_step); `dtctl plan --measured`
 * reads the files of all ranks.
 *
 *     dtd timeline 1 step 3 epoch 1 rank 0 world 2
 *     0 begin -1 0 compute 1042 5310            index of the action, kind, microbatch, chunk, stream, begin, end
 *     ..
 *
 * Times are nanoseconds since the begin of the step on rank 0, the same moment on all ranks. Pure, except for the FILE.
 */
#ifndef DTD_COMMON_PLAN_ESTIMATE_MEASURED_H
#define DTD_COMMON_PLAN_ESTIMATE_MEASURED_H

#include "common/plan/estimate/forecast.h"

/* Limits for a file that may come from another machine: millions of lines, and more ranks than any job has. */
#define MEASURED_MAX_BYTES ((size_t)256 << 20)
#define MEASURED_MAX_WORLD 65536

struct measured {
    int64_t step;
    uint64_t epoch;
    int rank, world;
    struct forecast_rank did; /* boxes in the order of the program's ops, and of time on each stream */
};

void measured_print(const struct measured *m, FILE *out);
/* `name` begins error messages, as in "NAME:LINE: ...". ERR_INVALID, ERR_LIMIT, ERR_NOMEM. Freed by measured_fini. */
NODISCARD err_t measured_read(const char *text, size_t len, const char *name, struct measured *ret, struct why *why);
void measured_fini(struct measured *m); /* legal on a zeroed one */
/* "FOLDER/timeline/rank-3", the file of a rank beside the job's checkpoints; "FOLDER/timeline" for rank -1. False when
 * it does not fit. */
bool measured_path(const char *folder, int rank, char *ret, size_t size);

const char *stream_name(enum op_stream stream);

#endif
