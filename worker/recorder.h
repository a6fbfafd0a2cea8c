/* Records some steps of this rank for `dtctl profile` (common/plan/estimate/recorded.h). A step without a recording
 * costs nothing. All memory is allocated, and the file is written, between two steps. Compute thread. */
#ifndef DTD_WORKER_RECORDER_H
#define DTD_WORKER_RECORDER_H

#include "worker/clocks.h"
#include "worker/step/engine.h"

struct recorder {
    bool on;         /* steps are being recorded on all ranks, also on one that has no memory for it */
    uint64_t served; /* id of the newest recording that has begun */
    int64_t last;    /* number of the last step to record */
    struct engine_profile profile;
    struct engine_record record;
    struct recorded to;
    int *first_call;
    int64_t step_begin_ns;
    struct why why; /* why there will be no file; "": none */
};

struct recorder_place {
    const char *job;
    uint64_t epoch;
    int rank, world;
    const int *node_of; /* as in comm_config */
    const char *folder; /* the job's checkpoint.dir */
};

/* Called before the first step of a recording; collective over `all`. An error means that the collective failed. */
NODISCARD err_t recorder_begin(struct recorder *r, struct engine *e, struct comm_group *all, uint64_t id, int steps,
                               const struct recorder_place *place, struct why *why);
/* Around a step and what belongs to it. */
void recorder_step_begin(struct recorder *r);
void recorder_step_end(struct recorder *r, const struct engine *e);
/* The time now, for recorder_host, if a recording is on; else 0. */
int64_t recorder_now(const struct recorder *r);
/* Adds work of the step `step` that is not an op, from recorder_now until now. */
void recorder_host(struct recorder *r, enum recorded_host_kind kind, int64_t step, int64_t from_ns);
/* Called after the last step; collective over `all`. Writes the file; r->why has the reason if it does not. An error
 * means that the collective failed. */
NODISCARD err_t recorder_end(struct recorder *r, struct engine *e, struct comm_group *all,
                             const struct recorder_place *place, struct why *why);
/* Frees the memory of a recording; `served` remains. */
void recorder_drop(struct recorder *r, struct engine *e);

#endif
