/* Gathers and scatters of units against an oracle that every rank computes itself: parts of every shape, all
 * combinations of buffers in private and shared memory, different lists on each rank. Sums have the bits of an
 * all-reduce. */
#include "tests/lib/test.h"
#include "tests/worker/collectives.h"

#include <pthread.h>
#include <signal.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* ---- units ---- */

enum { EVEN, UNEVEN, ONE_HAS_ALL, NOTHING, LARGE, MANY, PATTERNS };
#define MAX_PARTS 1100

/* `counts` are the counts of all members; each rank has its own gaps and order of pieces. */
struct test_unit {
    int n, world, rank;
    int64_t counts[MAX_PARTS][6];
    struct comm_part parts[MAX_PARTS];
    int64_t local, pieces; /* number of elements of the buffers */
};

static int64_t part_count(int pattern, int k, int member, int world)
{
    switch (pattern) {
    case EVEN:
        return 700 * (k + 1);
    case UNEVEN:
        return (k * 7919 + member * 104729) % 3001 * ((k + member) % 4 != 0);
    case ONE_HAS_ALL:
        return member == (k + world - 1) % world ? 9001 : 0;
    case LARGE:
        return 3000 + 2001 * member + 13 * k;
    case MANY:
        return (k + member) % 3;
    default:
        return 0;
    }
}

static int64_t total(const struct test_unit *u, int k)
{
    int64_t sum = 0;
    for (int i = 0; i < u->world; i++)
        sum += u->counts[k][i];
    return sum;
}

static int64_t before(const struct test_unit *u, int k, int member)
{
    int64_t sum = 0;
    for (int i = 0; i < member; i++)
        sum += u->counts[k][i];
    return sum;
}

static struct test_unit *make_unit(int pattern, int rank, int world)
{
    struct test_unit *u = calloc(1, sizeof(*u));
    if (!u)
        abort();
    u->n = pattern == MANY ? MAX_PARTS : 5;
    u->world = world;
    u->rank = rank;
    for (int k = 0; k < u->n; k++) {
        for (int i = 0; i < world; i++)
            u->counts[k][i] = part_count(pattern, k, i, world);
        u->parts[k] = (struct comm_part){.local = u->local, .counts = u->counts[k]};
        u->local += total(u, k) + (rank + k) % 3;
    }
    for (int k = u->n - 1; k >= 0; k--) {
        u->parts[k].piece = u->pieces;
        u->pieces += u->counts[k][rank] + (rank * 3 + k) % 5;
    }
    return u;
}

/* Two buffers of one rank, each in private or in shared memory, at an offset that no other rank uses. */
struct buffers {
    uint8_t *local, *pieces, *private[2];
};

static int make_buffers(struct comm *c, const struct test_unit *u, bool local_shared, bool pieces_shared, int rank,
                        struct buffers *ret)
{
    int world = u->world;
    uint8_t *shared = comm_shared(c);
    size_t local = (size_t)u->local * 8, pieces = (size_t)u->pieces * 8;
    *ret = (struct buffers){.private = {malloc(local + 8), malloc(pieces + 8)}};
    CHECK(ret->private[0] && ret->private[1]);
    CHECK(!shared || local + pieces + 8000 < SHARED_BYTES);
    ret->local = shared && local_shared ? shared + 1000 * (size_t)rank : ret->private[0];
    ret->pieces = shared && pieces_shared ? shared + local + 1000 * (size_t)(rank + 1) + 8 : ret->private[1];
    return 0;
}

static void drop_buffers(struct buffers *b)
{
    free(b->private[0]);
    free(b->private[1]);
}

static void put(uint8_t *x, int64_t at, enum dtype dtype, int who, int64_t i)
{
    double v = ranks_value(who, i, dtype);
    if (dtype == DT_F32)
        ((float *)(void *)x)[at] = (float)v;
    else if (dtype == DT_F64)
        ((double *)(void *)x)[at] = v;
    else if (dtype == DT_I64)
        ((int64_t *)(void *)x)[at] = (int64_t)v;
    else
        memcpy(x + 2 * at, &(const uint16_t){(uint16_t)(int64_t)(v * 7)}, 2);
}

/* ---- gather ---- */

/* Elements between the tensors do not change. */
static int gather_case(struct comm *c, struct comm_group *g, int pattern, int mixture, enum dtype dtype, int rank,
                       int world)
{
    struct test_unit *u = make_unit(pattern, rank, world);
    struct buffers b;
    size_t bytes = (size_t)u->local * dtype_bytes(dtype);
    uint8_t *expected = malloc(bytes + 8);
    CHECK(make_buffers(c, u, mixture >> (rank + 1) % world & 1, mixture >> rank & 1, rank, &b) == 0 && expected);
    memset(expected, 0x5a, bytes);
    memset(b.local, 0x5a, bytes);
    for (int k = 0; k < u->n; k++) {
        for (int i = 0; i < world; i++)
            for (int64_t e = 0; e < u->counts[k][i]; e++)
                put(expected, u->parts[k].local + before(u, k, i) + e, dtype, i, e + 100 * k);
        for (int64_t e = 0; e < u->counts[k][rank]; e++)
            put(b.pieces, u->parts[k].piece + e, dtype, rank, e + 100 * k);
    }
    CHECK(comm_unit_gather(g, ranks_stream, b.pieces, b.local, u->parts, u->n, dtype) == OK);
    CHECK(memcmp(b.local, expected, bytes) == 0);
    CHECK(comm_barrier(g) == OK); /* the next case overwrites memory that others read */
    drop_buffers(&b);
    free(expected);
    free(u);
    return 0;
}

static int mixtures(const struct comm *c, int pattern, int world)
{
    if (!comm_shared((struct comm *)c))
        return 1;
    return pattern == LARGE ? 3 : ranks_on_nodes() ? 5 : 1 << world;
}

static int gather_units(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const enum dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_I64};
    int rc = 0;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int mixture = 0; mixture < mixtures(c, pattern, world); mixture++)
            rc = rc ? rc : gather_case(c, all, pattern, mixture, types[(pattern + mixture) % 4], rank, world);
    return rc;
}

TEST(gathers_of_units_match_the_oracle)
{
    ranks_run_worlds(gather_units);
}

/* The rank's piece is already in place in the local tensor. */
static int gather_in_place(struct comm *c, struct comm_group *all, int rank, int world)
{
    for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++) {
        struct test_unit *u = make_unit(UNEVEN, rank, world);
        struct buffers b;
        CHECK(make_buffers(c, u, shared, false, rank, &b) == 0);
        memset(b.local, 0x5a, (size_t)u->local * 8);
        for (int k = 0; k < u->n; k++) {
            u->parts[k].piece = u->parts[k].local + before(u, k, rank);
            for (int64_t e = 0; e < u->counts[k][rank]; e++)
                put(b.local, u->parts[k].piece + e, DT_F64, rank, e);
        }
        CHECK(comm_unit_gather(all, ranks_stream, b.local, b.local, u->parts, u->n, DT_F64) == OK);
        for (int k = 0; k < u->n; k++)
            for (int i = 0; i < world; i++)
                for (int64_t e = 0; e < u->counts[k][i]; e++)
                    CHECK(ranks_get(b.local, u->parts[k].local + before(u, k, i) + e, DT_F64) ==
                          ranks_value(i, e, DT_F64));
        CHECK(comm_barrier(all) == OK);
        drop_buffers(&b);
        free(u);
    }
    return 0;
}

TEST(pieces_may_be_parts_of_the_local_tensors)
{
    ranks_run_worlds(gather_in_place);
}

/* ---- scatter ---- */

/* `sum`: the result of an all-reduce of the local buffer. The pieces get its bits, or with `add` the sum of those and
 * the previous contents. */
static int check_pieces(const struct test_unit *u, const uint8_t *before_it, const uint8_t *sum, const uint8_t *pieces,
                        enum dtype dtype, bool add, int rank, int world)
{
    size_t size = dtype_bytes(dtype), bytes = (size_t)u->pieces * size;
    uint8_t *expected = malloc(bytes + 8);
    CHECK(expected);
    memcpy(expected, before_it, bytes);
    for (int k = 0; k < u->n; k++)
        for (int64_t e = 0; e < u->counts[k][rank]; e++) {
            size_t from = (size_t)(u->parts[k].local + before(u, k, rank) + e), to = (size_t)(u->parts[k].piece + e);
            if (!add)
                memcpy(expected + to * size, sum + from * size, size);
            else if (dtype == DT_F32)
                ((float *)(void *)expected)[to] += ((const float *)(const void *)sum)[from];
            else if (dtype == DT_F64)
                ((double *)(void *)expected)[to] += ((const double *)(const void *)sum)[from];
            else
                ((int64_t *)(void *)expected)[to] += ((const int64_t *)(const void *)sum)[from];
        }
    CHECK(memcmp(pieces, expected, bytes) == 0);
    free(expected);
    return 0;
}

static int scatter_case(struct comm *c, struct comm_group *g, int pattern, int mixture, enum dtype dtype, bool add,
                        int rank, int world)
{
    struct test_unit *u = make_unit(pattern, rank, world);
    struct buffers b;
    size_t size = dtype_bytes(dtype), bytes = (size_t)u->local * size;
    uint8_t *sum = malloc(bytes + 8), *old = malloc((size_t)u->pieces * 8 + 8);
    CHECK(make_buffers(c, u, mixture >> rank & 1, mixture >> (rank + 1) % world & 1, rank, &b) == 0 && sum && old);
    for (int64_t i = 0; i < u->pieces; i++)
        put(old, i, dtype, 17, i);
    memcpy(b.pieces, old, (size_t)u->pieces * size);
    memset(b.local, 0x5a, bytes);
    for (int k = 0; k < u->n; k++)
        for (int64_t e = 0; e < total(u, k); e++)
            put(b.local, u->parts[k].local + e, dtype, rank, e + 100 * k);
    memcpy(sum, b.local, bytes);
    for (int k = 0; k < u->n; k++) /* gaps differ, so compare tensor by tensor */
        CHECK(pattern == MANY || comm_all_reduce(g, ranks_stream, sum + (size_t)u->parts[k].local * size, total(u, k),
                                                 dtype, REDUCE_SUM) == OK);
    for (int k = 0; k < u->n; k++)
        for (int64_t e = 0; e < total(u, k) && pattern == MANY; e++) {
            double v = ranks_oracle(ranks_everybody, world, e + 100 * k, dtype, REDUCE_SUM);
            dtype == DT_F32 ? (void)(((float *)(void *)sum)[u->parts[k].local + e] = (float)v)
                            : (void)(((double *)(void *)sum)[u->parts[k].local + e] = v);
        }
    CHECK(comm_unit_scatter(g, ranks_stream, b.local, b.pieces, u->parts, u->n, dtype, add) == OK);
    CHECK(check_pieces(u, old, sum, b.pieces, dtype, add, rank, world) == 0);
    CHECK(ranks_get(sum, 0, dtype) == 0 || u->local == 0 || pattern == NOTHING || total(u, 0) == 0 ||
          ranks_get(sum, 0, dtype) == ranks_oracle(ranks_everybody, world, 0, dtype, REDUCE_SUM));
    CHECK(comm_barrier(g) == OK);
    drop_buffers(&b);
    free(old);
    free(sum);
    free(u);
    return 0;
}

static int scatter_units(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const enum dtype types[] = {DT_F32, DT_F64, DT_I64};
    int rc = 0;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int mixture = 0; mixture < mixtures(c, pattern, world); mixture++)
            for (int add = 0; add < 2; add++) {
                enum dtype dtype = types[pattern == MANY ? mixture % 2 : (pattern + mixture) % 3];
                rc = rc ? rc : scatter_case(c, all, pattern, mixture, dtype, add, rank, world);
            }
    return rc;
}

TEST(scatters_of_units_have_the_bits_of_an_all_reduce)
{
    ranks_run_worlds(scatter_units);
}

TEST(scatters_of_units_over_numa_nodes)
{
    ranks_run_numa((const int[]){0, 0, 1, 1}, 4, scatter_units);
    ranks_run_numa((const int[]){1, 1, 0, 0, 2, 2}, 6, scatter_units);
}

/* ---- groups ---- */

static int some_of_five(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const int members[][3] = {{0, 2, 4}, {1, 3, -1}, {3, 4, -1}, {2, -1, -1}};
    for (size_t m = 0; m < COUNT(members) && world == 5; m++) {
        int n = 0, me = -1;
        struct comm_group *g;
        while (n < 3 && members[m][n] >= 0)
            me = members[m][n] == rank ? n : me, n++;
        CHECK(comm_group_new(c, members[m], n, &g) == OK);
        /* In the cases, member numbers stand for ranks: they determine values, not positions. */
        for (int mixture = 0; mixture < 1 << n && me >= 0; mixture++)
            CHECK(gather_case(c, g, UNEVEN, mixture, DT_F32, me, n) == 0 &&
                  scatter_case(c, g, UNEVEN, mixture, DT_F32, true, me, n) == 0);
        comm_group_free(g);
    }
    return comm_barrier(all);
}

TEST(units_of_any_group)
{
    ranks_run_worlds(some_of_five);
}

/* ---- ends ---- */

static void *abort_later(void *c)
{
    usleep(100000);
    comm_abort(c);
    return NULL;
}

/* The last rank is killed between two scatters. The others are about to enter the second one, or over nodes about to
 * leave the first. */
static int killed_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    struct test_unit *u = make_unit(LARGE, rank, world);
    struct buffers b;
    pthread_t thread;
    err_t err = OK;
    CHECK(make_buffers(c, u, rank % 2, rank / 2 % 2, rank, &b) == 0);
    memset(b.local, 0, (size_t)u->local * 4);
    err = comm_unit_scatter(all, ranks_stream, b.local, b.pieces, u->parts, u->n, DT_F32, false);
    CHECK(err == OK || (ranks_on_nodes() && ranks_ended(err)));
    if (rank == world - 1)
        kill(getpid(), SIGKILL);
    if (rank == 0)
        CHECK(pthread_create(&thread, NULL, abort_later, c) == 0);
    err = comm_unit_scatter(all, ranks_stream, b.local, b.pieces, u->parts, u->n, DT_F32, false);
    CHECK(ranks_ended(err));
    CHECK(comm_unit_gather(all, ranks_stream, b.pieces, b.local, u->parts, u->n, DT_F32) == ERR_CANCELED);
    if (rank == 0)
        pthread_join(thread, NULL);
    drop_buffers(&b);
    free(u);
    return 0;
}

TEST(a_killed_rank_hangs_no_unit)
{
    ranks_killed(killed_case);
}

/* ---- nodes ---- */

static int gathers(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = gather_units(c, all, rank, world);
    return rc ? rc : gather_in_place(c, all, rank, world);
}

static int scatters(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = scatter_units(c, all, rank, world);
    return rc ? rc : some_of_five(c, all, rank, world);
}

TEST(gathers_of_units_over_stream)
{
    ranks_run_nodes("stream", gathers);
}

TEST(gathers_of_units_over_ucx)
{
    ranks_run_nodes("ucx", gathers);
}

TEST(scatters_of_units_over_stream)
{
    ranks_run_nodes("stream", scatters);
}

TEST(scatters_of_units_over_ucx)
{
    ranks_run_nodes("ucx", scatters);
}

TEST(a_killed_rank_hangs_no_unit_over_stream)
{
    ranks_killed_on_nodes("stream", killed_case);
}

TEST(a_killed_rank_hangs_no_unit_over_ucx)
{
    ranks_killed_on_nodes("ucx", killed_case);
}

/* ---- ranks as threads ---- */

struct thread_rank {
    int fd, rank, rc;
    uint64_t epoch;
    rank_fn fn;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;
    t->rc = ranks_run_one(t->fd, t->epoch, t->rank, 3, t->fn);
    return NULL;
}

static void run_threads(int fd, uint64_t epoch, rank_fn fn)
{
    struct thread_rank t[3];
    pthread_t thread[3];
    for (int r = 0; r < 3; r++) {
        t[r] = (struct thread_rank){fd, r, 0, epoch, fn};
        assert_int_equal(pthread_create(&thread[r], NULL, thread_main, &t[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(t[r].rc, 0);
    }
}

TEST(ranks_may_be_threads)
{
    int fd = ranks_segment();
    run_threads(fd, 1, gather_units);
    run_threads(fd, 2, scatter_units);
    close(fd);
}

/* ---- staged ---- */

static void run_staged(rank_fn fn)
{
    ranks_backend = "staged";
    ranks_run_worlds(fn);
    ranks_backend = "shm";
}

TEST(staged_gathers_of_units_match_the_oracle)
{
    run_staged(gather_units);
    run_staged(gather_in_place);
}

TEST(staged_scatters_of_units_have_the_bits_of_an_all_reduce)
{
    run_staged(scatter_units);
    run_staged(some_of_five);
}
