/* Threads beside the loop: a task that hangs occupies only its user's share of them. Tasks wait for a semaphore, so no
 * case depends on time. */
#include "daemon/control/local/pool.h"
#include "tests/lib/test.h"

#include <semaphore.h>
#include <stdatomic.h>

#define THREADS 4
#define PER_USER 2
#define WAITING 8

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
