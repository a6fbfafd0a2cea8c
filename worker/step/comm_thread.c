/* The queue is a ring that one thread fills and the other empties, so two counters that only increase are enough to
 * coordinate them.
 *
 * A waiting thread polls the counter for a while, then sets `awaited` and sleeps under the mutex. The thread that
 * advances the counter reads `awaited` afterwards. All four accesses are sequentially consistent: either the advancing
 * thread sees `awaited` and takes the mutex to wake the other, or the waiting thread has seen the new value. */
#include "worker/step/comm_thread.h"

#include "common/base/cpu_relax.h"
#include "common/base/cpus.h"

#include <stdlib.h>
#include <string.h>

#define SPINS 2000 /* 10 to 100 us, which is about the cost of sleeping and waking */

/* On a single core the other thread cannot run while this one polls. */
static int choose_spins(void)
{
    return cpus_usable(NULL, 0) == 1 ? 0 : SPINS;
}

static void sleep_until(struct comm_thread *t, struct comm_count *c, uint64_t n)
{
    pthread_mutex_lock(&t->mu);
    atomic_store(&c->awaited, true);
    while (atomic_load(&c->n) < n)
        pthread_cond_wait(&c->grown, &t->mu);
    atomic_store(&c->awaited, false);
    pthread_mutex_unlock(&t->mu);
}

static void wait_until(struct comm_thread *t, struct comm_count *c, uint64_t n)
{
    for (int i = 0; i <= t->spins; i++) {
        if (atomic_load_explicit(&c->n, memory_order_acquire) >= n)
            return;
        cpu_relax();
    }
    sleep_until(t, c, n);
}

static void advance(struct comm_thread *t, struct comm_count *c, uint64_t n)
{
    atomic_store(&c->n, n);
    if (!atomic_load(&c->awaited))
        return;
    pthread_mutex_lock(&t->mu);
    pthread_cond_signal(&c->grown);
    pthread_mutex_unlock(&t->mu);
}

/* ---- the thread ---- */

static void run_entry(struct comm_thread *t, const struct comm_entry *e)
{
    if (atomic_load_explicit(&t->skips, memory_order_relaxed))
        return;
    err_t err = run_op_now(&e->run, e->op, e->fn, e->span);
    if (!err)
        return;
    t->failure = (struct comm_failure){err, e->run, e->op};
    atomic_store(&t->skips, true);
}

static void *thread_main(void *arg)
{
    struct comm_thread *t = arg;
    for (uint64_t ticket = 1;; ticket++) {
        wait_until(t, &t->queued, ticket);
        const struct comm_entry *e = &t->entries[ticket % COMM_QUEUE];
        if (!e->fn)
            return NULL;
        run_entry(t, e);
        advance(t, &t->over, ticket);
    }
}

err_t comm_thread_new(struct comm_thread **ret, struct why *why)
{
    struct comm_thread *t = aligned_alloc(_Alignof(struct comm_thread), sizeof(*t));
    if (!t)
        return why_set(why, ERR_NOMEM, "out of memory");
    memset(t, 0, sizeof(*t));
    t->spins = choose_spins();
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->queued.grown, NULL);
    pthread_cond_init(&t->over.grown, NULL);
    int rc = pthread_create(&t->thread, NULL, thread_main, t);
    if (rc) {
        free(t);
        return why_set(why, ERR_NOMEM, "cannot start the communication thread: %s; set run.comm_thread to off",
                       strerror(rc));
    }
    *ret = t;
    return OK;
}

/* ---- the compute thread ---- */

void comm_thread_free(struct comm_thread *t)
{
    if (!t)
        return;
    comm_thread_queue(t, &(struct run){0}, NULL, NULL, NULL);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->over.grown);
    pthread_cond_destroy(&t->queued.grown);
    pthread_mutex_destroy(&t->mu);
    free(t);
}

static uint64_t last_ticket(const struct comm_thread *t)
{
    return atomic_load_explicit(&t->queued.n, memory_order_relaxed); /* only this thread writes it */
}

uint64_t comm_thread_queue(struct comm_thread *t, const struct run *r, const struct op *op, run_op_fn fn,
                           struct op_span *span)
{
    const uint64_t ticket = last_ticket(t) + 1;
    if (ticket > COMM_QUEUE)
        wait_until(t, &t->over, ticket - COMM_QUEUE);
    t->entries[ticket % COMM_QUEUE] = (struct comm_entry){*r, op, fn, span};
    advance(t, &t->queued, ticket);
    return ticket;
}

bool comm_thread_failed(const struct comm_thread *t)
{
    return atomic_load_explicit(&t->skips, memory_order_acquire);
}

bool comm_thread_wait(struct comm_thread *t, uint64_t ticket)
{
    wait_until(t, &t->over, ticket);
    return !comm_thread_failed(t);
}

struct comm_failure comm_thread_finish(struct comm_thread *t, bool skip)
{
    if (skip)
        atomic_store(&t->skips, true);
    wait_until(t, &t->over, last_ticket(t));
    struct comm_failure failure = t->failure;
    t->failure = (struct comm_failure){.err = OK};
    atomic_store(&t->skips, false);
    return failure;
}
