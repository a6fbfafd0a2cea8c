/* Measures how far this rank's clock is ahead of rank 0's. Compute thread. */
#ifndef DTD_WORKER_CLOCKS_H
#define DTD_WORKER_CLOCKS_H

#include "common/plan/estimate/recorded.h"
#include "worker/comm/comm.h"

/* Nanoseconds of a monotonic clock and of a wall clock. Tests give every rank another one. */
struct clocks {
    int64_t (*mono)(void *arg);
    int64_t (*wall)(void *arg);
    void *arg;
};
extern const struct clocks clocks_of_system;

/* Collective over `all`. ret->at is a reading of `c`, not relative to anything. */
NODISCARD err_t clocks_measure(struct comm_group *all, int rank, const struct clocks *c, struct recorded_clock *ret);

#endif
