/* The measured timeline of one step (run.timeline_step): times of work on this rank's streams, from a moment that all
 * ranks agree on, into a file beside the checkpoints (common/plan/estimate/measured.h). Compute thread. */
#ifndef DTD_WORKER_TIMELINE_H
#define DTD_WORKER_TIMELINE_H

#include "worker/step/engine.h"

struct timeline {
    struct engine_profile profile;
    struct engine_trace trace;
    bool on;
};

/* Called before the step; collective over `all`, the group of all ranks. `node_of` as in comm_config. If a timeline is
 * not possible, the reason is logged and the step runs without one; an error means that the collective failed. */
NODISCARD err_t timeline_begin(struct timeline *t, struct engine *e, struct comm_group *all, int rank,
                               const int *node_of, struct why *why);
/* Called after the step, also if it failed: writes the file if `done` (a failure is logged) and frees everything.
 * `folder`: the job's checkpoint.dir. */
void timeline_end(struct timeline *t, struct engine *e, const char *folder, uint64_t epoch, int rank, int world,
                  bool done);

#endif
