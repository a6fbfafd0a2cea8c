/* daemon/control/local/pool.h without threads: a task runs and is done in a later turn of its host's loop. */
#include "daemon/control/local/pool.h"

#include <stdlib.h>

struct queued {
    uv_work_t work;
    struct pool_task *task;
};

static void run_task(uv_work_t *work)
{
    struct queued *q = work->data;
    q->task->run(q->task);
}

static void task_done(uv_work_t *work, int status)
{
    struct queued *q = work->data;
    struct pool_task *task = q->task;
    (void)status;
    free(q);
    task->done(task);
}

err_t pool_check_threads(int threads)
{
    (void)threads;
    return OK;
}

err_t pool_init(struct pool *pool, const struct pool_config *config)
{
    *pool = (struct pool){.config = *config};
    return OK;
}

err_t pool_add(struct pool *pool, struct pool_task *task, uint64_t key)
{
    struct queued *q = calloc(1, sizeof(*q));
    (void)key;
    if (!q)
        return ERR_NOMEM;
    q->task = task;
    q->work.data = q;
    return uv_queue_work(pool->config.loop, &q->work, run_task, task_done) ? ERR_NOMEM : OK;
}
