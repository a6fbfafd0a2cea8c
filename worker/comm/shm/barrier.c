/* Barriers that return with an error when a rank is killed.
 *
 * Each group has a counter and a generation word. The last rank to arrive resets the counter and advances the
 * generation by two. The others wait until the generation changes: they spin briefly (enough when ranks have equal
 * work), then yield, then sleep on a futex, because there may be more ranks than cores. Bit 0 of the generation is set
 * when the epoch is dead. The bit lies in the word on which waiters sleep, so a waiter cannot miss it between its check
 * and its sleep. Once set it stays set: the control block is not used again. */
#include "worker/comm/shm/shm.h"

#include "common/base/cpu_relax.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* With more ranks than cores, yielding is cheaper than sleeping and waking while the other ranks make progress. */
#define YIELDS 100

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
        cpu_relax();
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
        atomic_fetch_add(&b->gen, 2); /* keeps bit 0, which another rank may have set meanwhile */
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
