/* A step as it would run on cores that nothing else uses, from the recorded processor time of its operations.
 *
 * Programs beside a job hold up its ranks, so a clock measures mostly how long a step waited for a core. Processor time
 * does not contain these waits. Each operation takes the median of its times over the steps. A collective takes the
 * lower quartile of the times of the rank that arrived last, since the others wait in it. Then the step is played as a
 * forecast is (common/plan/estimate/forecast.h), in which ranks wait for each other as their programs require. It lacks
 * the time between operations, and messages between stages take the given link. One thread. */
#ifndef DTD_WORKER_REPLAY_H
#define DTD_WORKER_REPLAY_H

#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/recorded.h"
#include "common/plan/graph.h"

#include <stddef.h>

#define REPLAY_RANKS 8

/* Seconds of the call c of rank r in step s: at[r][c * stride + s]. */
struct replay_times {
    const float *at[REPLAY_RANKS];
    size_t calls, stride; /* for how many calls there is room */
    int steps;            /* at most `stride` */
};

struct replay {
    int world;
    struct program programs[REPLAY_RANKS];
    struct recorded calls[REPLAY_RANKS]; /* what the programs call */
    int *first_call[REPLAY_RANKS];       /* by action */
    double *seconds[REPLAY_RANKS];       /* by call */
};

/* Compiles the programs of the job, which has at most REPLAY_RANKS workers. Freed by replay_fini in any case. */
NODISCARD err_t replay_init(struct replay *r, const struct job_spec *job, const struct graph *g, struct why *why);
void replay_fini(struct replay *r);
/* Reduces the times to one for each call. ERR_LIMIT: a program has more calls than there are times. */
NODISCARD err_t replay_reduce(struct replay *r, const struct replay_times *times, struct why *why);
/* The op that a rank runs in this call. */
const struct op *replay_op(const struct replay *r, int rank, int call);
/* Seconds of the step. `rates`: those of messages. */
NODISCARD err_t replay_step(struct replay *r, const struct plan_rates *rates, double *ret, struct why *why);

#endif
