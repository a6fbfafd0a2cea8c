/* Barriers that a killed rank cannot hang.
 *
 * One counter and one generation word per group. The last to arrive resets the counter and moves the generation on by
 * two; the others wait for it to change: a short spin (the usual case: equal work), some yields, then a futex, since
 * ranks may outnumber cores. Bit 0 of the generation says that the epoch is dead. It lies in the word that waiters
 * sleep on, so that no waiter can miss it between looking and sleeping. Once set it stays: the control block is never
 * used again. */
#include "worker/comm/shm/shm.h"

#include "common/base/cpu_relax.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define YIELDS 100 /* where ranks outnumber cores: cheaper than a sleep and a waking, if the others are at work */

void shm_futex_wait(_Atomic uint32_t *word, uint32_t seen, int timeout_ms)
{
    struct timespec t = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void shm_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool shm_idle(const struct shm_comm *s, int turn)
{
    if (turn < s->spins)
        relax();
    else if (turn < s->spins + YIELDS)
        sched_yield();
    else
        return false;
    return true;
}

static bool spin(const struct shm_comm *s, const _Atomic uint32_t *gen, uint32_t seen)
{
    for (int turn = 0;; turn++) {
        if (atomic_load_explicit(gen, memory_order_acquire) != seen)
            return true;
        if (!shm_idle(s, turn))
            return false;
    }
}

void shm_sleep(const struct shm_comm *s, _Atomic uint32_t *word, uint32_t seen)
{
    shm_futex_wait(word, seen, s->watch ? SHM_WATCH_MS : 1000);
    if (s->watch)
        s->watch(s->watch_arg);
}

static void sleep_until_moved(const struct shm_comm *s, struct shm_barrier *b, uint32_t seen)
{
    atomic_fetch_add(&b->sleepers, 1);
    while (atomic_load(&b->gen) == seen)
        shm_sleep(s, &b->gen, seen);
    atomic_fetch_sub(&b->sleepers, 1);
}

err_t shm_barrier(struct comm_group *g)
{
    struct shm_comm *s = shm_of(g);
    struct shm_barrier *b = ((struct shm_group *)g)->barrier;
    uint32_t seen = atomic_load_explicit(&b->gen, memory_order_acquire);
    if (seen & 1)
        return ERR_CANCELED;
    if (atomic_fetch_add(&b->arrived, 1) + 1 == (uint32_t)g->n) {
        atomic_store(&b->arrived, 0);
        atomic_fetch_add(&b->gen, 2); /* keeps a dead bit that came meanwhile */
        if (atomic_load(&b->sleepers) > 0)
            shm_futex_wake(&b->gen);
        return atomic_load(&b->gen) & 1 ? ERR_CANCELED : OK;
    }
    if (!spin(s, &b->gen, seen))
        sleep_until_moved(s, b, seen);
    return atomic_load(&b->gen) & 1 ? ERR_CANCELED : OK;
}

void shm_ctl_kill(struct shm_ctl *ctl)
{
    atomic_fetch_or(&ctl->joined, SHM_DEAD);
    shm_futex_wake(&ctl->joined);
    for (int i = 0; i < SHM_MAX_GROUPS; i++) {
        atomic_fetch_or(&ctl->barrier[i].gen, 1);
        if (atomic_load(&ctl->barrier[i].sleepers) > 0)
            shm_futex_wake(&ctl->barrier[i].gen);
    }
    for (int i = 0; i < SHM_MAX_WORLD; i++) {
        atomic_fetch_or(&ctl->bell[i].rung, 1);
        if (atomic_load(&ctl->bell[i].asleep))
            shm_futex_wake(&ctl->bell[i].rung);
    }
}

void shm_abort(struct comm *c)
{
    shm_ctl_kill(((struct shm_comm *)c)->ctl);
}
