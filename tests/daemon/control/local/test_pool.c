/* Threads beside the loop: a task that hangs occupies only its user's share of them. Tasks wait for a semaphore, so no
 * case depends on time. */
#include "daemon/control/local/pool.h"
#include "tests/lib/test.h"

#include <semaphore.h>
#include <stdatomic.h>

#define THREADS 4
#define PER_USER 2
#define WAITING 8

static int allowed_threads = 1000; /* so many more can be started: as with a limit of processes */

int __real_uv_thread_create(uv_thread_t *id, uv_thread_cb entry, void *arg);
int __wrap_uv_thread_create(uv_thread_t *id, uv_thread_cb entry, void *arg);

int __wrap_uv_thread_create(uv_thread_t *id, uv_thread_cb entry, void *arg)
{
    return allowed_threads-- > 0 ? __real_uv_thread_create(id, entry, arg) : UV_EAGAIN;
}

static uv_loop_t loop;
static struct pool pool;
static sem_t gate;
static atomic_int running, most_running;

struct item {
    struct pool_task task;
    bool hangs;
    int done;
    int order; /* the number of items that were done before */
};

static int n_done;

static void item_run(struct pool_task *task)
{
    const struct item *item = (struct item *)task;
    if (!item->hangs)
        return;
    int now = atomic_fetch_add(&running, 1) + 1, most = atomic_load(&most_running);
    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now))
        ;
    while (sem_wait(&gate))
        ;
    atomic_fetch_sub(&running, 1);
}

static void item_done(struct pool_task *task)
{
    struct item *item = (struct item *)task;
    item->done++;
    item->order = n_done++;
}

static void begin(void)
{
    assert_int_equal(0, uv_loop_init(&loop));
    assert_int_equal(0, sem_init(&gate, 0, 0));
    const struct pool_config config = {
        .loop = &loop, .threads = THREADS, .user_threads = PER_USER, .user_waiting = WAITING};
    assert_ok(pool_init(&pool, &config));
}

static err_t add(struct item *item, bool hangs, uint64_t user)
{
    *item = (struct item){.task = {.run = item_run, .done = item_done}, .hangs = hangs};
    return pool_add(&pool, &item->task, user);
}

static void await(int count)
{
    while (n_done < count)
        uv_run(&loop, UV_RUN_ONCE);
}

static void await_running(int count)
{
    while (atomic_load(&running) < count)
        usleep(1000);
}

TEST(each_task_is_done_once)
{
    static struct item items[WAITING];
    begin();
    for (int round = 1; round <= 50; round++) {
        for (int i = 0; i < WAITING; i++)
            assert_ok(add(&items[i], false, (uint64_t)i % 3));
        await(round * WAITING);
        for (int i = 0; i < WAITING; i++)
            assert_int_equal(1, items[i].done);
    }
    assert_true(TAILQ_EMPTY(&pool.users));
}

TEST(a_user_that_hangs_leaves_threads_to_others)
{
    static struct item hung[6], other;
    begin();
    for (int i = 0; i < 6; i++)
        assert_ok(add(&hung[i], true, 1));
    await_running(PER_USER);
    assert_ok(add(&other, false, 2));
    await(1);
    assert_int_equal(1, other.done);
    assert_int_equal(PER_USER, atomic_load(&running));
    for (int i = 0; i < 6; i++)
        sem_post(&gate);
    await(7);
    assert_int_equal(PER_USER, atomic_load(&most_running));
}

/* Two users fill all threads and have two more tasks each. The task of a third one, added last, waits for one of each
 * of them; in the order of their arrival it would wait for all four. */
TEST(users_are_served_in_turn)
{
    static struct item first[2][4], last;
    begin();
    for (int u = 0; u < 2; u++)
        for (int i = 0; i < PER_USER; i++)
            assert_ok(add(&first[u][i], true, (uint64_t)u));
    await_running(THREADS);
    for (int u = 0; u < 2; u++)
        for (int i = PER_USER; i < 4; i++)
            assert_ok(add(&first[u][i], true, (uint64_t)u));
    assert_ok(add(&last, false, 2));
    for (int i = 0; i < 3; i++) /* threads become free */
        sem_post(&gate);
    await(4);
    assert_int_equal(1, last.done);
    for (int i = 0; i < 5; i++)
        sem_post(&gate);
    await(9);
}

TEST(too_many_waiting_tasks_are_refused)
{
    static struct item items[PER_USER + WAITING], more;
    begin();
    for (int i = 0; i < PER_USER; i++)
        assert_ok(add(&items[i], true, 1));
    await_running(PER_USER);
    for (int i = PER_USER; i < PER_USER + WAITING; i++)
        assert_ok(add(&items[i], true, 1));
    assert_err(ERR_BUSY, add(&more, false, 1));
    assert_ok(add(&more, false, 2));
    for (int i = 0; i < PER_USER + WAITING; i++)
        sem_post(&gate);
    await(PER_USER + WAITING + 1);
    assert_ok(add(&more, false, 1));
    await(PER_USER + WAITING + 2);
}

static bool is_idle(void)
{
    uv_mutex_lock(&pool.lock);
    bool idle = pool.n_idle == 1;
    uv_mutex_unlock(&pool.lock);
    return idle;
}

/* The idle thread wakes after all of them were added. */
TEST(tasks_added_at_once_have_a_thread_each)
{
    static struct item items[THREADS];
    begin();
    while (!is_idle())
        usleep(1000);
    for (int i = 0; i < THREADS; i++)
        assert_ok(add(&items[i], true, (uint64_t)i % 2));
    assert_int_equal(pool.n_threads, THREADS);
    await_running(THREADS);
    for (int i = 0; i < THREADS; i++)
        sem_post(&gate);
    await(THREADS);
    assert_int_equal(pool.n_waiting, 0);
}

TEST(one_thread_does_all_tasks_where_no_other_can_be_started)
{
    static struct item items[WAITING];
    allowed_threads = 1;
    begin();
    for (int i = 0; i < WAITING; i++)
        assert_ok(add(&items[i], false, (uint64_t)i % 3));
    await(WAITING);
    assert_true(pool.refused);
    assert_int_equal(pool.n_threads, 1);
}

TEST(without_a_thread_there_is_no_pool)
{
    const struct pool_config config = {.loop = &loop, .threads = 1, .user_threads = 1, .user_waiting = 1};
    allowed_threads = 0;
    assert_int_equal(0, uv_loop_init(&loop));
    assert_int_equal(pool_init(&pool, &config), ERR_AGAIN);
}

TEST(threads_are_counted_before_they_are_needed)
{
    assert_ok(pool_check_threads(8));
    allowed_threads = 7;
    assert_int_equal(pool_check_threads(8), ERR_AGAIN);
}
