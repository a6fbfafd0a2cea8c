/* Runs each thread of a block as a system thread, for the thread sanitizer, which detects accesses that no barrier
 * orders.
 *
 * A shuffle or a vote moves values between lanes and, according to the vendor, orders no memory; only __syncthreads and
 * __syncwarp do. So lanes exchange values by relaxed atomics, which the sanitizer does not treat as ordering either,
 * and wait with futexes, which it does not see. */
#include "tests/cuda_host/inner.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define WORDS (CUDA_HOST_EXCHANGE_BYTES / 4)
#define PATIENCE_S 60 /* after this time the other threads are assumed never to arrive */

/* A meeting point of n threads. */
struct thread_meeting {
    _Atomic int arrived;
    _Atomic int generation;
};

struct host_thread {
    struct cuda_host_thread pub;
    pthread_t id;
    unsigned turn;
    alignas(16) uint32_t got[CUDA_HOST_WARP * WORDS]; /* values of any type */
};

static struct {
    const struct cuda_host_launch *launch;
    int n;
    _Atomic int n_done;
    struct thread_meeting block, warp[MAX_THREADS / CUDA_HOST_WARP];
    _Atomic uint32_t value[MAX_THREADS / CUDA_HOST_WARP][2][CUDA_HOST_WARP][WORDS];
    _Atomic uint32_t kind[MAX_THREADS / CUDA_HOST_WARP][2][CUDA_HOST_WARP];
    struct host_thread thread[MAX_THREADS];
} g;

__thread struct cuda_host_thread *cuda_host_self;

static void sleep_while(struct thread_meeting *m, int generation)
{
    const struct timespec limit = {.tv_sec = PATIENCE_S};
    while (atomic_load_explicit(&m->generation, memory_order_relaxed) == generation)
        if (syscall(SYS_futex, &m->generation, FUTEX_WAIT_PRIVATE, generation, &limit, NULL, 0) && errno == ETIMEDOUT)
            cuda_host_fail("waits for its block or warp, and not all threads arrive: %d of %d threads have ended",
                           g.n_done, g.n);
}

/* For the processor only: relaxed atomics are really unordered on some processors. */
static void fence(void)
{
#ifdef __aarch64__
    __asm__ volatile("dmb ish" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* `order`: writes of all threads before the meeting are visible to all threads after it. */
static void meet(struct thread_meeting *m, int n, bool order)
{
    memory_order take = order ? memory_order_acq_rel : memory_order_relaxed;
    int generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
    fence();
    if (atomic_fetch_add_explicit(&m->arrived, 1, take) + 1 == n) {
        atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&m->generation, 1, order ? memory_order_release : memory_order_relaxed);
        syscall(SYS_futex, &m->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    } else {
        sleep_while(m, generation);
    }
    fence();
    if (order)
        (void)atomic_load_explicit(&m->generation, memory_order_acquire);
}

void cuda_host_barrier(void)
{
    if (g.n_done)
        cuda_host_fail("a barrier that %d of %d threads did not reach: they have ended", g.n_done, g.n);
    meet(&g.block, g.n, true);
}

const void *cuda_host_warp_exchange(enum cuda_host_op op, unsigned mask, const void *value, size_t bytes)
{
    struct host_thread *t = (struct host_thread *)cuda_host_self;
    int w = t->pub.index / CUDA_HOST_WARP, lane = t->pub.index % CUDA_HOST_WARP;
    uint32_t kind = (uint32_t)op << 16 | (uint32_t)bytes;
    if (mask != 0xffffffffu || g.n - w * CUDA_HOST_WARP < CUDA_HOST_WARP)
        cuda_host_fail("a warp operation of mask %08x, or in a warp that is not whole", mask);
    unsigned turn = t->turn;
    t->turn ^= 1;
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)value + 4 * i, 4);
        atomic_store_explicit(&g.value[w][turn][lane][i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&g.kind[w][turn][lane], kind, memory_order_relaxed);
    meet(&g.warp[w], CUDA_HOST_WARP, op == HOST_SYNCWARP);
    for (int j = 0; j < CUDA_HOST_WARP; j++) {
        if (atomic_load_explicit(&g.kind[w][turn][j], memory_order_relaxed) != kind)
            cuda_host_fail("lanes of one warp meet in different operations");
        for (size_t i = 0; i < bytes / 4; i++)
            t->got[(size_t)j * (bytes / 4) + i] = atomic_load_explicit(&g.value[w][turn][j][i], memory_order_relaxed);
    }
    return t->got;
}

static void *thread_main(void *arg)
{
    struct host_thread *t = arg;
    cuda_host_self = &t->pub;
    g.launch->body(g.launch->args);
    atomic_fetch_add_explicit(&g.n_done, 1, memory_order_relaxed);
    return NULL;
}

void host_block_run(const struct cuda_host_launch *l, uint3 block, void *shared, bool backwards)
{
    pthread_attr_t attr;
    g.launch = l;
    g.n = (int)(l->block.x * l->block.y * l->block.z);
    g.n_done = 0;
    memset(&g.block, 0, sizeof(g.block));
    memset(g.warp, 0, sizeof(g.warp));
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 << 10);
    for (int k = 0; k < g.n; k++) {
        struct host_thread *t = &g.thread[backwards ? g.n - 1 - k : k];
        t->pub = host_thread_of(l, block, (int)(t - g.thread), shared);
        t->turn = 0;
        if (pthread_create(&t->id, &attr, thread_main, t))
            cuda_host_fail("%s: no system thread for thread %d of %d", l->name, k, g.n);
    }
    for (int i = 0; i < g.n; i++)
        pthread_join(g.thread[i].id, NULL);
    pthread_attr_destroy(&attr);
}
