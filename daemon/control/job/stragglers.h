/* Finds ranks that compute longer than their peers. Ranks of a step wait for each other, so that all of them have the
 * same step time; only the time in which a rank computes shows which one is slow. Embedded in its owner; loop
 * thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_STRAGGLERS_H
#define DTD_DAEMON_CONTROL_JOB_STRAGGLERS_H

#include "common/rpc/usage.h"

struct straggler {
    int rank;
    double ratio; /* its compute time over the median */
    int64_t since_ms;
};

struct straggler_rank {
    int windows;             /* in a row, in which it was slow */
    int64_t since_ms;        /* beginning of the first of them */
    double compute_s, ratio; /* in the newest */
    bool named;
};

struct stragglers {
    uint64_t epoch;
    int ranks;
    struct straggler_rank *rank; /* NULL: none yet */
};

void stragglers_fini(struct stragglers *s);
/* Takes the next window. A rank is compared with the ranks whose plans have the same work. It is a straggler after
 * three windows in a row of more than 1.10 times the median of them, the first of which began 30 s ago or earlier,
 * until a window of less than 1.05 times. A window without numbers of it changes nothing. The median of an even number
 * of ranks is the smaller of both middles, so that the slower of two ranks can be found. True: a rank has become a
 * straggler, or is none any more. */
NODISCARD err_t stragglers_add(struct stragglers *s, const struct usage_sample *window, bool *ret_changed);
/* Fills up to `max` stragglers, ascending by rank; returns how many there are. */
int stragglers_list(const struct stragglers *s, struct straggler *ret, int max);

#endif
