/* Reads the measured timelines of all ranks of a job (run.timeline_step). Blocking; needs no daemon. */
#ifndef DTD_CLIENT_MEASURED_H
#define DTD_CLIENT_MEASURED_H

#include "common/plan/estimate/measured.h"

struct measured_step {
    int64_t step;
    uint64_t epoch;
    struct forecast did; /* the measured boxes of every rank; without traffic */
};

/* `folder`: the job's checkpoint.dir. ERR_NOTFOUND: the job has timed no step. ERR_INVALID: the ranks' files belong to
 * different steps. The caller frees *ret with measured_step_fini. */
NODISCARD err_t measured_load(const char *folder, struct measured_step *ret, struct why *why);
void measured_step_fini(struct measured_step *m); /* a zeroed struct is allowed */

#endif
