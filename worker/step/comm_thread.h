/* A thread for what ranks exchange, where the streams of a device are the thread itself: ops of the comm stream run on
 * it in the order in which they were queued, one after another, while the compute thread goes on.
 *
 * Each op has a ticket, a number that grows. The compute thread queues an op only when everything that the op needs of
 * it is done, so that the communication thread never waits for it; only the compute thread waits, for tickets. Whoever
 * waits looks again for a moment, then sleeps. Between a wait and the next op that is queued the comm is the compute
 * thread's, as far as all tickets are over.
 *
 * Made and freed by engine.c, used by run.c; all calls come from the compute thread. */
#ifndef DTD_WORKER_STEP_COMM_THREAD_H
#define DTD_WORKER_STEP_COMM_THREAD_H

#include "worker/step/run.h"

#include <pthread.h>
#include <stdatomic.h>

#define COMM_QUEUE 256 /* ops that are queued at most; who queues more waits */

/* A number that one thread makes grow and the other waits for. */
struct comm_count {
    _Alignas(64) _Atomic uint64_t n;
    _Atomic bool awaited; /* the other sleeps, or is about to */
    pthread_cond_t grown;
};

struct comm_entry {
    struct run run;
    const struct op *op;
    run_op_fn fn;      /* NULL: the end of the thread */
    struct span *span; /* profile.c's; NULL: nobody measures */
};

/* The first queued op that failed. */
struct comm_failure {
    err_t err; /* OK: none did */
    struct run run;
    const struct op *op;
};

struct comm_thread {
    pthread_t thread;
    pthread_mutex_t mu; /* only to sleep and wake */
    int spins;
    struct comm_count queued, over; /* tickets that were given; that are over */
    _Atomic bool skips;             /* what has not begun is passed over */
    struct comm_failure failure;    /* the thread's until all is over */
    struct comm_entry entries[COMM_QUEUE];
};

NODISCARD err_t comm_thread_new(struct comm_thread **ret, struct why *why);
/* When all is over; NULL is legal. */
void comm_thread_free(struct comm_thread *t);

/* Queues `fn` on a copy of `r`, by run_op_now; waits while the queue is full. Returns its ticket, which is not 0. */
uint64_t comm_thread_queue(struct comm_thread *t, const struct run *r, const struct op *op, run_op_fn fn,
                           struct span *span);
/* Returns when the ticket and all before it are over; 0 is. False when an op has failed: then it may not have run. */
bool comm_thread_wait(struct comm_thread *t, uint64_t ticket);
/* Whether an op has failed, so that those behind it do not run. */
bool comm_thread_failed(const struct comm_thread *t);
/* Returns when all is over, without what has not begun where `skip` says so. The next op begins afresh. */
struct comm_failure comm_thread_finish(struct comm_thread *t, bool skip);

#endif
