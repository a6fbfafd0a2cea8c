/* The queue of jobs that wait for slots: their order, and which of them may start before the first. Pure functions.
 *
 * Users take turns: the next job is one of the user with the fewest slots, counting those of his running jobs and of
 * his jobs further ahead in the queue. So a user with a thousand waiting jobs delays another one by a single job.
 * Among the jobs of one user, run.priority decides, then the order of submission.
 *
 * A later job may start first if that does not delay the first one (EASY backfill; Lifka, JSSPP 1995). It has to fit
 * now. If the run.max_seconds of the running jobs determine when the first job can start, the later one has to end
 * before, or the first has to fit beside it then. Otherwise the first job has to fit beside it and all other jobs that
 * were submitted after the first, once those that were submitted before have ended: else a stream of small jobs could
 * take each slot that becomes free. */
#ifndef DTD_DAEMON_CONTROL_JOB_QUEUE_H
#define DTD_DAEMON_CONTROL_JOB_QUEUE_H

#include "common/base/err.h"
#include "daemon/control/job/placement.h"

#include <stdint.h>

struct job;

struct queue_job {
    struct job *job; /* the caller's */
    uint64_t id;
    uint32_t uid;
    int64_t priority;
    int workers; /* the least that it can start with */
};

struct queue_user {
    uint32_t uid;
    int64_t slots; /* of the running jobs */
};

/* A user who is missing has none. */
int64_t queue_slots_of(const struct queue_user *users, int n, uint32_t uid);
/* Sorts n waiting jobs, in any order, into the order in which they get slots. `users`: those with slots; a user who is
 * missing has none. Time n log n. ERR_NOMEM: nothing has changed. */
NODISCARD err_t queue_sort(struct queue_job *jobs, int n, const struct queue_user *users, int n_users);

/* The slots of a running job. */
struct queue_running {
    int64_t ends_ms;           /* at the latest; INT64_MAX: it has no limit */
    bool is_later;             /* it was submitted after the first job, so it may have overtaken it */
    const int *workers, *gpus; /* on each node */
};

struct queue_claim {
    struct placement_want want;
    int64_t limit_ms; /* how long it may run; 0: no limit */
};

/* Whether `later` may start now although `first` waits. `nodes` have the slots of all `running` jobs as used. */
NODISCARD err_t queue_may_overtake(const struct placement_node *nodes, int n, const struct queue_running *running,
                                   int n_running, const struct queue_claim *first, const struct queue_claim *later,
                                   int64_t now_ms, bool *ret);

#endif
