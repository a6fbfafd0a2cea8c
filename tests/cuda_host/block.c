/* Runs the threads of a block as fibres. (threads.c uses system threads.)
 *
 * The threads of a block start one after another on one stack as long as they need not wait. A thread that waits keeps
 * the stack, and the next thread starts on another. So a kernel without barriers runs as a loop. A word per warp has a
 * bit for each lane that can continue. A waiting thread switches directly to the next such lane, first of its own warp,
 * in an order that is drawn at random for each launch.
 *
 * Invariants: a thread is in exactly one of the states below. `ready` has bits exactly for threads in THREAD_NEW and
 * THREAD_READY, except the one that runs. When no thread is ready and not all are done, the block is stuck; the thread
 * that detects this reports it. */
#include "tests/cuda_host/block.h"

#include "tests/cuda_host/fibre.h"
#include "tests/cuda_host/inner.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024
#define MAX_WARPS (MAX_THREADS / CUDA_HOST_WARP)
#define STACK_BYTES ((size_t)256 << 10)

enum thread_state { THREAD_NEW, THREAD_READY, THREAD_AT_BARRIER, THREAD_AT_WARP, THREAD_DONE };

struct host_thread {
    struct cuda_host_thread pub;
    enum thread_state state;
    struct fibre *fibre;
};

struct warp {
    uint32_t ready, whole; /* lanes that can continue; lanes that exist */
    uint32_t arrived;      /* lanes that have reached the operation below */
    int lanes_done;
    enum cuda_host_op op;
    size_t bytes;
    unsigned turn; /* which of the two sets of values is being filled; a lane may still read the other */
    alignas(16) uint32_t value[2][CUDA_HOST_WARP * CUDA_HOST_EXCHANGE_BYTES / 4]; /* of any type */
};

static struct {
    const struct cuda_host_launch *launch;
    int n, n_warps, n_done, n_at_barrier;
    bool backwards; /* lanes and warps run from the last to the first */
    struct host_thread thread[MAX_THREADS];
    struct warp warp[MAX_WARPS];
    struct fibre stack[MAX_THREADS];
    int n_stacks, n_free;
    struct fibre *free[MAX_THREADS];
    struct fibre main;
} g;

struct cuda_host_thread *cuda_host_self;

static struct host_thread *self(void)
{
    return (struct host_thread *)cuda_host_self;
}

/* ---- the next thread ---- */

static struct host_thread *next_in(int w)
{
    uint32_t ready = g.warp[w].ready;
    if (!ready)
        return NULL;
    return &g.thread[w * CUDA_HOST_WARP + (g.backwards ? 31 - __builtin_clz(ready) : __builtin_ctz(ready))];
}

static struct host_thread *next_from(int w)
{
    struct host_thread *t = next_in(w);
    for (int i = 1; !t && i < g.n_warps; i++)
        t = next_in((g.backwards ? w + g.n_warps - i : w + i) % g.n_warps);
    return t;
}

static void set_ready(struct host_thread *t, bool yes)
{
    uint32_t bit = 1u << t->pub.index % CUDA_HOST_WARP, *ready = &g.warp[t->pub.index / CUDA_HOST_WARP].ready;
    *ready = yes ? *ready | bit : *ready & ~bit;
}

static const char *const state_text[] = {"has not started", "could continue", "waits at a barrier",
                                         "waits for its warp at a shuffle or vote", "has ended"};

static void stuck(void)
{
    int count[5] = {0};
    const struct host_thread *waits = NULL;
    for (int i = 0; i < g.n; i++) {
        count[g.thread[i].state]++;
        if (!waits && (g.thread[i].state == THREAD_AT_BARRIER || g.thread[i].state == THREAD_AT_WARP))
            waits = &g.thread[i];
    }
    cuda_host_self = (struct cuda_host_thread *)&waits->pub;
    cuda_host_fail(
        "%s, and not all threads arrive: %d of %d threads wait at a barrier, %d at a shuffle or vote, %d have ended",
        state_text[waits->state], count[THREAD_AT_BARRIER], g.n, count[THREAD_AT_WARP], count[THREAD_DONE]);
}

/* ---- running ---- */

static void entry(void);

static struct fibre *take_stack(void)
{
    if (g.n_free)
        return g.free[--g.n_free];
    fibre_init(&g.stack[g.n_stacks], STACK_BYTES, entry);
    return &g.stack[g.n_stacks++];
}

static void run_on(struct host_thread *t, struct fibre *f)
{
    t->fibre = f;
    t->state = THREAD_READY;
    set_ready(t, false);
    cuda_host_self = &t->pub;
    g.launch->body(g.launch->args);
    t = self();
    t->state = THREAD_DONE;
    g.warp[t->pub.index / CUDA_HOST_WARP].lanes_done++;
    g.n_done++;
}

/* Resumes `t`, which is ready and has a stack. */
static void resume(struct fibre *from, struct host_thread *t)
{
    set_ready(t, false);
    cuda_host_self = &t->pub;
    fibre_switch(from, t->fibre);
}

/* The loop of a stack: it runs thread after thread until it switches to a thread with its own stack. Then this stack is
 * free, and cuda_host_self enters it again with a new thread. */
static void entry(void)
{
    struct fibre *f = self()->fibre;
    fibre_entered(f);
    for (;;) {
        run_on(self(), f);
        struct host_thread *t = next_from(self()->pub.index / CUDA_HOST_WARP);
        while (t && t->state == THREAD_NEW) {
            run_on(t, f);
            t = next_from(self()->pub.index / CUDA_HOST_WARP);
        }
        if (!t && g.n_done < g.n)
            stuck();
        g.free[g.n_free++] = f;
        if (t)
            resume(f, t);
        else
            fibre_switch(f, &g.main);
    }
}

/* Suspends the running thread, whose state gives the reason, until it is ready again. */
static void wait_here(void)
{
    struct host_thread *t = self(), *next = next_from(t->pub.index / CUDA_HOST_WARP);
    if (!next)
        stuck();
    if (next->state == THREAD_NEW) {
        next->fibre = take_stack();
        cuda_host_self = &next->pub;
        fibre_switch(t->fibre, next->fibre);
    } else {
        resume(t->fibre, next);
    }
    t->state = THREAD_READY;
}

void cuda_host_barrier(void)
{
    struct host_thread *t = self();
    if (g.n_done)
        cuda_host_fail("a barrier that %d of %d threads did not reach: they have ended", g.n_done, g.n);
    if (++g.n_at_barrier < g.n) {
        t->state = THREAD_AT_BARRIER;
        wait_here();
        return;
    }
    g.n_at_barrier = 0;
    for (int w = 0; w < g.n_warps; w++)
        g.warp[w].ready = g.warp[w].whole;
    for (int i = 0; i < g.n; i++)
        g.thread[i].state = THREAD_READY;
    set_ready(t, false);
}

static void check_exchange(const struct warp *w, enum cuda_host_op op, unsigned mask, size_t bytes)
{
    if (mask != 0xffffffffu || w->whole != 0xffffffffu)
        cuda_host_fail("a warp operation of mask %08x in a warp of lanes %08x: not whole", mask, w->whole);
    if (bytes > CUDA_HOST_EXCHANGE_BYTES || bytes % 4)
        cuda_host_fail("a warp exchanges %zu bytes", bytes);
    if (w->lanes_done)
        cuda_host_fail("a shuffle or vote that %d lanes did not reach: they have ended", w->lanes_done);
    if (w->arrived && (w->op != op || w->bytes != bytes))
        cuda_host_fail("lanes of one warp meet in different operations (%d of %zu bytes, %d of %zu bytes)", w->op,
                       w->bytes, op, bytes);
}

const void *cuda_host_warp_exchange(enum cuda_host_op op, unsigned mask, const void *value, size_t bytes)
{
    struct host_thread *t = self();
    struct warp *w = &g.warp[t->pub.index / CUDA_HOST_WARP];
    check_exchange(w, op, mask, bytes);
    w->op = op;
    w->bytes = bytes;
    unsigned turn = w->turn;
    int lane = t->pub.index % CUDA_HOST_WARP;
    if (bytes)
        memcpy((uint8_t *)w->value[turn] + (size_t)lane * bytes, value, bytes);
    w->arrived |= 1u << lane;
    if (w->arrived != w->whole) {
        t->state = THREAD_AT_WARP;
        wait_here();
        return w->value[turn];
    }
    w->arrived = 0;
    w->turn ^= 1;
    w->ready = w->whole & ~(1u << lane);
    for (int i = t->pub.index - lane, end = i + CUDA_HOST_WARP; i < end; i++)
        g.thread[i].state = THREAD_READY;
    return w->value[turn];
}

/* ---- a block ---- */

static void begin_block(const struct cuda_host_launch *l, uint3 block, void *shared)
{
    g.n_done = g.n_at_barrier = 0;
    for (int i = 0; i < g.n; i++) {
        struct host_thread *t = &g.thread[i];
        t->state = THREAD_NEW;
        t->pub = host_thread_of(l, block, i, shared);
    }
    for (int w = 0; w < g.n_warps; w++) {
        int lanes = g.n - w * CUDA_HOST_WARP < CUDA_HOST_WARP ? g.n - w * CUDA_HOST_WARP : CUDA_HOST_WARP;
        g.warp[w].whole = g.warp[w].ready = lanes == CUDA_HOST_WARP ? 0xffffffffu : (1u << lanes) - 1;
        g.warp[w].arrived = 0;
        g.warp[w].lanes_done = 0;
        g.warp[w].turn = 0;
    }
}

void host_block_run(const struct cuda_host_launch *l, uint3 block, void *shared, bool backwards)
{
    g.launch = l;
    g.n = (int)(l->block.x * l->block.y * l->block.z);
    g.n_warps = (g.n + CUDA_HOST_WARP - 1) / CUDA_HOST_WARP;
    g.backwards = backwards;
    begin_block(l, block, shared);
    fibre_init_self(&g.main);
    struct host_thread *t = next_from(backwards ? g.n_warps - 1 : 0);
    t->fibre = take_stack();
    cuda_host_self = &t->pub;
    fibre_switch(&g.main, t->fibre);
    cuda_host_self = NULL;
}
