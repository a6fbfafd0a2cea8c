/* One step as it went: what each rank did when, by the clock, in the shape of a forecast, so that both are added up and
 * drawn alike. A worker writes its own into a file (run.timeline_step), `dtctl plan --measured` reads those of all
 * ranks.
 *
 *     dtd timeline 1 step 3 epoch 1 rank 0 world 2
 *     0 begin -1 0 compute 1042 5310            index of the action, kind, microbatch, chunk, stream, from, to
 *     ..
 *
 * Times are nanoseconds from one moment that all ranks agree on, the step's begin on rank 0. Pure, but for the FILE. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_MEASURED_H
#define DTD_COMMON_PLAN_ESTIMATE_MEASURED_H

#include "common/plan/estimate/forecast.h"

#define MEASURED_MAX_BYTES ((size_t)256 << 20)
#define MEASURED_MAX_WORLD 65536

struct measured {
    int64_t step;
    uint64_t epoch;
    int rank, world;
    struct forecast_rank did; /* boxes in the order of the program's ops, per stream in that of time */
};

void measured_print(const struct measured *m, FILE *out);
/* `name` goes before errors, as in "NAME:LINE: ...". ERR_INVALID, ERR_LIMIT, ERR_NOMEM. Freed by measured_fini. */
NODISCARD err_t measured_read(const char *text, size_t len, const char *name, struct measured *ret, struct why *why);
void measured_fini(struct measured *m); /* legal on a zeroed one */
/* "FOLDER/timeline/rank-3", the file of a rank beside the job's checkpoints; "FOLDER/timeline" for rank -1. False when
 * it does not fit. */
bool measured_path(const char *folder, int rank, char *ret, size_t size);

const char *stream_name(enum op_stream stream);

#endif
