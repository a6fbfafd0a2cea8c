/* The step that a job's workers have timed (run.timeline_step), of all ranks. Blocking; needs no daemon. */
#ifndef DTD_CLIENT_MEASURED_H
#define DTD_CLIENT_MEASURED_H

#include "common/plan/measured.h"

struct measured_step {
    int64_t step;
    uint64_t epoch;
    struct forecast did; /* without bytes */
};

/* `folder`: the job's checkpoint.dir. ERR_NOTFOUND: nothing was timed there; ERR_INVALID: the ranks' files are not of
 * one step. Freed by measured_step_fini. */
NODISCARD err_t measured_load(const char *folder, struct measured_step *ret, struct why *why);
void measured_step_fini(struct measured_step *m); /* legal on a zeroed one */

#endif
