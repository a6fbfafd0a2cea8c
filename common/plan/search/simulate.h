/* A training step of every rank of a large job, each with its own speed and its own jitter, at the level of a
 * schedule's slots. Where no transfer waits for another one, a step is a longest path: the end of a slot is the latest
 * of its inputs and of its rank's slot before, plus its duration. So no event queue is needed, and a step of 100,000
 * ranks takes a fraction of a second. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_SIMULATE_H
#define DTD_COMMON_PLAN_SEARCH_SIMULATE_H

#include "common/plan/schedule/schedule.h"

#include <stdint.h>

/* Standard deviations relative to the duration. */
struct plan_noise {
    double spread; /* between devices, the same in all steps: chips of one kind differ by some percent */
    double jitter; /* of every slot of a rank */
    uint64_t seed;
};

struct plan_step {
    const struct schedule *schedule; /* checked */
    struct schedule_cost cost;
    int64_t replicas; /* pipelines; they meet once at the end of the step */
    int64_t peers;    /* ranks that share each slot and wait for the slowest of them: tp x cp */
    double end_s;     /* after the replicas have met: sums of gradients, update */
};

struct plan_step_result {
    double seconds;                /* of the step: the slowest replica, and end_s */
    double quiet;                  /* without noise */
    double fastest, mean, slowest; /* of the replicas */
    int64_t slots;                 /* slots of ranks that were computed */
};

/* ERR_NOMEM; ERR_INVALID for a schedule that was not checked. */
NODISCARD err_t plan_simulate(const struct plan_step *step, const struct plan_noise *noise,
                              struct plan_step_result *ret, struct why *why);

#endif
