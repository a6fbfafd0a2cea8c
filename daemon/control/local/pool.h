/* Threads for work that may take long: reading files of jobs, parsing them, asking the name service. The log writes
 * with libuv's threads, so nothing else may occupy these (uv_queue_work); such work runs here.
 *
 * Each task has a key, the user for whom it runs. Users are served in turn, and one user's tasks never occupy all
 * threads, so that a user with many or slow tasks does not stop those of others.
 *
 * Embedded in its owner. The functions are called on the loop's thread. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_POOL_H
#define DTD_DAEMON_CONTROL_LOCAL_POOL_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

struct pool_user; /* pool.c */

/* Embedded in the operation; it must exist until `done`. */
struct pool_task {
    void (*run)(struct pool_task *task);  /* on a thread of the pool */
    void (*done)(struct pool_task *task); /* on the loop's thread, once, after `run`; may free the task */
    struct pool_user *user;               /* set by the pool */
    STAILQ_ENTRY(pool_task) link;
};

STAILQ_HEAD(pool_tasks, pool_task);

struct pool_config {
    uv_loop_t *loop;
    int threads;
    int user_threads; /* the tasks of one key run on at most this many threads */
    int user_waiting; /* so many tasks of one key may wait for a thread */
};

struct pool {
    struct pool_config config;
    uv_async_t ended; /* a thread has ended a task */
    /* `lock` protects what follows. */
    uv_mutex_t lock;
    uv_cond_t added;
    TAILQ_HEAD(, pool_user) users; /* in the order in which they are served; only those with tasks */
    struct pool_tasks done;
    int n_threads, n_idle;
    int n_waiting; /* tasks of all users */
    bool refused;  /* the last attempt to start a thread failed */
};

/* Starts the first thread, so that the pool always works: without any, a job would wait for ever. Threads inherit the
 * restrictions of common/base/confine.h, so it comes first. */
NODISCARD err_t pool_init(struct pool *pool, const struct pool_config *config);
/* Checks that this process may start so many more threads: libuv aborts the process if it cannot start its own. */
NODISCARD err_t pool_check_threads(int threads);
/* Runs the task. ERR_BUSY: as many tasks of this key wait as may. After any error `done` is not called. */
NODISCARD err_t pool_add(struct pool *pool, struct pool_task *task, uint64_t key);

#endif
