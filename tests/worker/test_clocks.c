/* Clocks of ranks that differ by known amounts: the bounds contain the truth, over one node and over several. */
#include "tests/lib/test.h"
#include "tests/worker/collectives.h"

#include "common/base/clock.h"
#include "worker/clocks.h"

#define SECOND ((int64_t)1000000000)

/* Rank 0's clock is ahead of the system's too. */
static int64_t ahead_of(int rank)
{
    static const int64_t ahead[] = {5 * SECOND, 0, 70000 * SECOND, 5 * SECOND + 12345, -3 * SECOND, 1};
    return ahead[rank % 6];
}

static int64_t skewed(void *arg)
{
    return clock_mono_ns() + *(const int64_t *)arg;
}

static int64_t wall(void *arg)
{
    (void)arg;
    return 42;
}

static int case_skewed(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t ahead = ahead_of(rank);
    const struct clocks clocks = {skewed, wall, &ahead};
    const int64_t truth = ahead - ahead_of(0), before = clock_mono_ns() + ahead;
    struct recorded_clock r;
    (void)c;
    CHECK(clocks_measure(all, rank, &clocks, &r) == OK);
    CHECK(r.lo <= truth && truth <= r.hi);
    CHECK(r.lo <= r.best && r.best <= r.hi);
    CHECK(r.hi - r.lo < 60 * SECOND);
    CHECK(r.at >= before && r.at <= clock_mono_ns() + ahead && r.wall == 42);
    CHECK(rank || (r.lo == 0 && r.hi == 0));
    return 0;
}

TEST(bounds_contain_the_difference_of_the_clocks)
{
    ranks_run_worlds(case_skewed);
}

TEST(bounds_over_nodes)
{
    ranks_run_nodes("stream", case_skewed);
}

static int case_aborted(struct comm *c, struct comm_group *all, int rank, int world)
{
    struct recorded_clock r = {.at = 7};
    err_t err = comm_barrier(all); /* all ranks have their groups; some may not have left yet */
    CHECK(err == OK || (rank && ranks_ended(err)));
    if (rank == 0) {
        comm_abort(c);
        return 0;
    }
    CHECK(clocks_measure(all, rank, &clocks_of_system, &r) != OK && r.at == 7);
    return 0;
}

TEST(the_end_of_the_epoch_ends_a_measurement)
{
    const int fd = ranks_segment();
    ranks_run_forked(fd, 1, 3, case_aborted);
    close(fd);
}
