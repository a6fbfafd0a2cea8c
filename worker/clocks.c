/* Every rank reads its clock before it enters a barrier and after it has left it. No rank leaves before all have
 * entered, so this rank's clock is ahead of rank 0's by
 *
 *     at least  (this rank enters) - (rank 0 leaves)
 *     at most   (this rank leaves) - (rank 0 enters)
 *
 * whatever the network does. The barriers follow each other at once, so that the ranks wait in them and do not sleep;
 * the luckiest of them give the bounds. The middle is the best value: a message takes about as long in both
 * directions. */
#include "worker/clocks.h"

#include "common/base/clock.h"

#include <time.h>

#define ROUNDS 64 /* a barrier takes microseconds on a node and a fraction of a millisecond between nodes */

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

/* Sends rank 0's number to all ranks. */
static err_t share(struct comm_group *all, int rank, int64_t mine, int64_t *ret)
{
    *ret = rank == 0 ? mine : INT64_MIN;
    return comm_agree(all, ret, REDUCE_MAX);
}

err_t clocks_measure(struct comm_group *all, int rank, const struct clocks *c, struct recorded_clock *ret)
{
    struct recorded_clock r = {.lo = INT64_MIN, .hi = INT64_MAX};
    int64_t enters[ROUNDS] = {0}, leaves[ROUNDS] = {0}, first_enters = 0, first_leaves = 0;
    err_t err = OK;
    for (int i = 0; !err && i < ROUNDS; i++) {
        enters[i] = c->mono(c->arg);
        err = comm_barrier(all);
        leaves[i] = c->mono(c->arg);
    }
    for (int i = 0; !err && i < ROUNDS; i++) {
        err = share(all, rank, enters[i], &first_enters);
        err = err ? err : share(all, rank, leaves[i], &first_leaves);
        if (enters[i] - first_leaves > r.lo)
            r.lo = enters[i] - first_leaves;
        if (leaves[i] - first_enters < r.hi)
            r.hi = leaves[i] - first_enters;
    }
    if (err)
        return err;
    if (rank == 0)
        r.lo = r.hi = 0;
    r.best = r.lo + (r.hi - r.lo) / 2;
    r.at = c->mono(c->arg);
    r.wall = c->wall(c->arg);
    *ret = r;
    return OK;
}
