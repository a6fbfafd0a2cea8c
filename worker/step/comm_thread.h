/* A thread for collectives and messages, for devices whose streams are the compute thread itself. Ops of the comm
 * stream run on it one at a time, in the order in which they were queued, while the compute thread continues.
 *
 * Each op has a ticket; tickets increase. The compute thread queues an op only after finishing everything that the op
 * needs from it, so the communication thread never waits for the compute thread. Only the compute thread waits, for
 * tickets. A waiting thread polls for a short time and then sleeps. When all tickets are complete, the compute thread
 * may use the comm until it queues the next op.
 *
 * Created and freed by engine.c, used by run.c; the compute thread makes all calls. */
#ifndef DTD_WORKER_STEP_COMM_THREAD_H
#define DTD_WORKER_STEP_COMM_THREAD_H

#include "worker/step/run.h"

#include <pthread.h>
#include <stdatomic.h>

#define COMM_QUEUE 256 /* largest number of queued ops; the compute thread waits while the queue is full */

/* A counter that one thread advances and the other waits for. */
struct comm_count {
    _Alignas(64) _Atomic uint64_t n;
    _Atomic bool awaited; /* the other thread sleeps, or is about to */
    pthread_cond_t grown;
};

struct comm_entry {
    struct run run;
    const struct op *op;
    run_op_fn fn;         /* NULL: the thread exits */
    struct op_span *span; /* of profile.c; NULL: not measured */
};

/* The first queued op that failed. */
struct comm_failure {
    err_t err; /* OK: no op failed */
    struct run run;
    const struct op *op;
};

struct comm_thread {
    pthread_t thread;
    pthread_mutex_t mu; /* only for sleeping and waking */
    int spins;
    struct comm_count queued, over; /* last ticket issued; last ticket completed */
    _Atomic bool skips;             /* skip ops that have not started */
    struct comm_failure failure; /* written by the communication thread; others read it when all tickets are complete */
    struct comm_entry entries[COMM_QUEUE];
};

NODISCARD err_t comm_thread_new(struct comm_thread **ret, struct why *why);
/* Call when all tickets are complete; NULL is legal. */
void comm_thread_free(struct comm_thread *t);

/* Queues `fn` on a copy of `r`, to be run by run_op_now; waits while the queue is full. Returns its ticket, which is
 * not 0. */
uint64_t comm_thread_queue(struct comm_thread *t, const struct run *r, const struct op *op, run_op_fn fn,
                           struct op_span *span);
/* Waits until this ticket and all earlier ones are complete; returns at once for ticket 0. False when an op has failed:
 * the op of this ticket may not have run. */
bool comm_thread_wait(struct comm_thread *t, uint64_t ticket);
/* Whether an op has failed, so that later ops are skipped. */
bool comm_thread_failed(const struct comm_thread *t);
/* Waits until all tickets are complete and returns the first failure; with `skip`, ops that have not started are
 * skipped. Afterwards the thread accepts ops again. */
struct comm_failure comm_thread_finish(struct comm_thread *t, bool skip);

#endif
