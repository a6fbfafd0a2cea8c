/* Every rank reads its clock before it enters a barrier and after it has left it. No rank leaves before all have
 * entered, so this rank's clock is ahead of rank 0's by
 *
 *     at least  (this rank enters) - (rank 0 leaves)
 *     at most   (this rank leaves) - (rank 0 enters)
 *
 * whatever the network does. Several rounds narrow the bounds. The ranks leave a barrier almost at the same time, so
 * the median of the differences between these moments is the best value within them. */
#include "worker/clocks.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <time.h>

#define ROUNDS 16 /* a barrier takes microseconds on a node and a fraction of a millisecond between nodes */

static int64_t system_mono(void *arg)
{
    (void)arg;
    return clock_mono_ns();
}

static int64_t system_wall(void *arg)
{
    struct timespec t;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

const struct clocks clocks_of_system = {system_mono, system_wall, NULL};

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sends rank 0's number to all ranks. */
static err_t share(struct comm_group *all, int rank, int64_t mine, int64_t *ret)
{
    *ret = rank == 0 ? mine : INT64_MIN;
    return comm_agree(all, ret, REDUCE_MAX);
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

err_t clocks_measure(struct comm_group *all, int rank, const struct clocks *c, struct recorded_clock *ret)
{
    struct recorded_clock r = {.lo = INT64_MIN, .hi = INT64_MAX};
    int64_t ahead[ROUNDS] = {0}, first_enters = 0, first_leaves = 0;
    err_t err = OK;
    for (int i = 0; !err && i < ROUNDS; i++) {
        const int64_t enters = c->mono(c->arg);
        err = comm_barrier(all);
        const int64_t leaves = c->mono(c->arg);
        err = err ? err : share(all, rank, enters, &first_enters);
        err = err ? err : share(all, rank, leaves, &first_leaves);
        if (enters - first_leaves > r.lo)
            r.lo = enters - first_leaves;
        if (leaves - first_enters < r.hi)
            r.hi = leaves - first_enters;
        ahead[i] = leaves - first_leaves;
    }
    if (err)
        return err;
    qsort(ahead, ROUNDS, sizeof(ahead[0]), by_size);
    r.best = clamp(ahead[ROUNDS / 2], r.lo, r.hi);
    if (rank == 0)
        r.lo = r.best = r.hi = 0;
    r.at = c->mono(c->arg);
    r.wall = c->wall(c->arg);
    *ret = r;
    return OK;
}
