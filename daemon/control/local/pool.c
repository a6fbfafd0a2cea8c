/* A task that hangs (a name service that does not answer, a dead network file system) occupies its thread for good.
 * So threads are never joined: the process ends without them. */
#include "daemon/control/local/pool.h"

#include "common/base/log.h"

#include <assert.h>
#include <stdlib.h>

/* Bounds one turn of the loop: `done` of a task takes some 10 us. */
#define DONE_PER_TURN 64

struct pool_user {
    TAILQ_ENTRY(pool_user) link;
    uint64_t key;
    struct pool_tasks waiting;
    int n_waiting, n_running;
};

/* ---- on the threads, and with the lock ---- */

/* The first task of the first user that may use another thread. That user then is the last one. */
static struct pool_task *next_task(struct pool *pool)
{
    struct pool_user *u;
    TAILQ_FOREACH(u, &pool->users, link)
    if (u->n_waiting && u->n_running < pool->config.user_threads)
        break;
    if (!u)
        return NULL;
    struct pool_task *task = STAILQ_FIRST(&u->waiting);
    STAILQ_REMOVE_HEAD(&u->waiting, link);
    u->n_waiting--;
    pool->n_waiting--;
    u->n_running++;
    TAILQ_REMOVE(&pool->users, u, link);
    TAILQ_INSERT_TAIL(&pool->users, u, link);
    return task;
}

static void task_ended(struct pool *pool, struct pool_task *task)
{
    struct pool_user *u = task->user;
    task->user = NULL;
    u->n_running--;
    if (!u->n_running && !u->n_waiting) {
        TAILQ_REMOVE(&pool->users, u, link);
        free(u);
    }
    STAILQ_INSERT_TAIL(&pool->done, task, link);
}

static void thread_run(void *arg)
{
    struct pool *pool = arg;
    uv_mutex_lock(&pool->lock);
    for (;;) {
        struct pool_task *task = next_task(pool);
        if (!task) {
            pool->n_idle++;
            uv_cond_wait(&pool->added, &pool->lock);
            pool->n_idle--;
            continue;
        }
        uv_mutex_unlock(&pool->lock);
        task->run(task);
        uv_mutex_lock(&pool->lock);
        task_ended(pool, task);
        (void)uv_async_send(&pool->ended); /* fails only for a handle of another type */
    }
}

/* ---- on the loop's thread ---- */

static void on_ended(uv_async_t *ended)
{
    struct pool *pool = ended->data;
    struct pool_task *task;
    for (int n = 0;; n++) {
        uv_mutex_lock(&pool->lock);
        task = n < DONE_PER_TURN ? STAILQ_FIRST(&pool->done) : NULL;
        if (task)
            STAILQ_REMOVE_HEAD(&pool->done, link);
        else if (!STAILQ_EMPTY(&pool->done))
            (void)uv_async_send(ended);
        uv_mutex_unlock(&pool->lock);
        if (!task)
            return;
        task->done(task);
    }
}

/* ---- starting threads ---- */

static void wait_for_all(void *lock)
{
    uv_mutex_lock(lock);
    uv_mutex_unlock(lock);
}

err_t pool_check_threads(int threads)
{
    uv_mutex_t lock;
    uv_thread_t *ids = calloc((size_t)threads + 1, sizeof(*ids));
    int n = 0, rc = ids ? uv_mutex_init(&lock) : UV_ENOMEM;
    if (rc) {
        free(ids);
        return err_from_errno(-rc);
    }
    uv_mutex_lock(&lock);
    while (n < threads && !rc) {
        rc = uv_thread_create(&ids[n], wait_for_all, &lock);
        n += rc == 0;
    }
    uv_mutex_unlock(&lock);
    while (n > 0)
        uv_thread_join(&ids[--n]);
    uv_mutex_destroy(&lock);
    free(ids);
    return rc ? err_from_errno(-rc) : OK;
}

/* Logs only the first failure in a row. */
static err_t start_thread(struct pool *pool)
{
    uv_thread_t id;
    int rc = uv_thread_create(&id, thread_run, pool);
    if (rc && !pool->refused)
        log_warn("thread not started threads=%d why=\"%s\"", pool->n_threads, uv_strerror(rc));
    pool->refused = rc != 0;
    pool->n_threads += rc == 0;
    return rc ? err_from_errno(-rc) : OK;
}

err_t pool_init(struct pool *pool, const struct pool_config *config)
{
    *pool = (struct pool){.config = *config};
    TAILQ_INIT(&pool->users);
    STAILQ_INIT(&pool->done);
    int rc = uv_mutex_init(&pool->lock);
    if (!rc)
        rc = uv_cond_init(&pool->added);
    if (!rc)
        rc = uv_async_init(config->loop, &pool->ended, on_ended);
    if (rc)
        return err_from_errno(-rc);
    pool->ended.data = pool;
    uv_mutex_lock(&pool->lock);
    err_t err = start_thread(pool);
    uv_mutex_unlock(&pool->lock);
    return err;
}

static struct pool_user *find_user(struct pool *pool, uint64_t key)
{
    struct pool_user *u;
    TAILQ_FOREACH(u, &pool->users, link)
    if (u->key == key)
        return u;
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->key = key;
    STAILQ_INIT(&u->waiting);
    TAILQ_INSERT_TAIL(&pool->users, u, link);
    return u;
}

err_t pool_add(struct pool *pool, struct pool_task *task, uint64_t key)
{
    assert(task->run && task->done);
    uv_mutex_lock(&pool->lock);
    /* An idle thread may have been woken for a task that it has not taken yet. */
    if (pool->n_idle <= pool->n_waiting && pool->n_threads < pool->config.threads)
        (void)start_thread(pool); /* the pool works with those that it has, only slower */
    struct pool_user *u = find_user(pool, key);
    err_t err = !u ? ERR_NOMEM : u->n_waiting >= pool->config.user_waiting ? ERR_BUSY : OK;
    if (!err) {
        task->user = u;
        STAILQ_INSERT_TAIL(&u->waiting, task, link);
        u->n_waiting++;
        pool->n_waiting++;
        uv_cond_signal(&pool->added);
    }
    uv_mutex_unlock(&pool->lock);
    return err;
}
