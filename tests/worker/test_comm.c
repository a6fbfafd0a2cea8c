/* Collectives against an oracle that every rank computes for itself: the inputs of all ranks are functions of rank and
 * index, so no second channel is needed. Ranks are forked processes, as in production; a few cases run ranks as
 * threads. The backends take the same cases; "staged" runs over the processor as a device. */
#include "tests/lib/test.h"

#include "common/base/clock.h"
#include "worker/comm/comm.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

typedef int (*rank_fn)(struct comm *c, struct comm_group *all, int rank, int world);

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, rank, world, #condition); \
            return 1;                                                                                   \
        }                                                                                               \
    } while (0)

#define SHARED_BYTES ((size_t)4 << 20)

static const char *backend = "shm"; /* of the case */
static struct kern_stream *stream;  /* of the rank; NULL for shm */

static int segment(void)
{
    int fd = memfd_create("test-comm", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int run_rank(int fd, uint64_t epoch, int rank, int world, rank_fn fn)
{
    struct dev *dev = NULL;
    if (strcmp(backend, "staged") == 0 &&
        (dev_open("cpu", 0, &dev, NULL) || dev_stream_new(dev, 1, true, &stream, NULL)))
        return 4;
    struct comm_config config = {.backend = backend,
                                 .fd = fd,
                                 .dev = dev,
                                 .rank = rank,
                                 .world = world,
                                 .epoch = epoch,
                                 .shared_bytes = SHARED_BYTES,
                                 .timeout_ms = 20000};
    struct comm *c = NULL;
    struct comm_group *all = NULL;
    struct why why = {""};
    int ranks[16];
    for (int i = 0; i < world; i++)
        ranks[i] = i;
    if (comm_open(&config, &c, &why)) {
        fprintf(stderr, "rank %d: %s\n", rank, why.text);
        return 2;
    }
    int rc = comm_group_new(c, ranks, world, &all) ? 3 : fn(c, all, rank, world);
    if (rc)
        comm_abort(c); /* the others must not wait for a rank that has failed */
    comm_group_free(all);
    comm_close(c);
    dev_stream_free(dev ? stream : NULL);
    dev_close(dev);
    return rc;
}

static void run_forked(int fd, uint64_t epoch, int world, rank_fn fn)
{
    pid_t pid[16];
    int failed = 0;
    for (int r = 0; r < world; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0)
            _exit(run_rank(fd, epoch, r, world, fn));
    }
    for (int r = 0; r < world; r++) {
        int status;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    assert_int_equal(failed, 0);
}

static void run_worlds(rank_fn fn)
{
    for (int world = 1; world <= 5; world++) {
        int fd = segment();
        run_forked(fd, 1, world, fn);
        close(fd);
    }
}

/* ---- values ---- */

static double value_at(int rank, int64_t i, enum dtype dtype)
{
    int64_t k = (i * 37 + rank * 101) % 1009 - 504;
    return dtype == DT_F32 ? (double)((float)k / 7.0f) : dtype == DT_F64 ? (double)k / 7.0 : (double)(k * 1001);
}

static void put(void *x, int64_t i, enum dtype dtype, double v)
{
    switch (dtype) {
    case DT_F32:
        ((float *)x)[i] = (float)v;
        break;
    case DT_F64:
        ((double *)x)[i] = v;
        break;
    case DT_I32:
        ((int32_t *)x)[i] = (int32_t)v;
        break;
    default:
        ((int64_t *)x)[i] = (int64_t)v;
        break;
    }
}

static double get(const void *x, int64_t i, enum dtype dtype)
{
    switch (dtype) {
    case DT_F32:
        return (double)((const float *)x)[i];
    case DT_F64:
        return ((const double *)x)[i];
    case DT_I32:
        return ((const int32_t *)x)[i];
    default:
        return (double)((const int64_t *)x)[i];
    }
}

/* In the order of the ranks, rounded to the type after each step. */
static double oracle(const int *ranks, int n, int64_t i, enum dtype dtype, enum reduce_op op)
{
    double acc = value_at(ranks[0], i, dtype);
    for (int r = 1; r < n; r++) {
        double x = value_at(ranks[r], i, dtype);
        acc = op == REDUCE_MIN ? fmin(acc, x) : op == REDUCE_MAX ? fmax(acc, x) : acc + x;
        acc = dtype == DT_F32 ? (double)(float)acc : acc;
    }
    if (op == REDUCE_AVG)
        acc = dtype == DT_F32 ? (double)((float)acc / (float)n) : dtype == DT_F64 ? acc / n : trunc(acc / n);
    return acc;
}

static void fill(void *x, int64_t n, enum dtype dtype, int rank)
{
    for (int64_t i = 0; i < n; i++)
        put(x, i, dtype, value_at(rank, i, dtype));
}

static const enum dtype dtypes[] = {DT_F32, DT_F64, DT_I32, DT_I64};
static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG};
static const int64_t sizes[] = {0, 1, 3, 511, 1025, 33000, 100003}; /* tiny, slices with nothing, several blocks */
static const int everybody[] = {0, 1, 2, 3, 4};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* ---- all-reduce ---- */

static int all_reduce_case(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op, int rank,
                           int world)
{
    fill(x, n, dtype, rank);
    CHECK(comm_all_reduce(g, stream, x, n, dtype, op) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(get(x, i, dtype) == oracle(everybody, world, i, dtype, op));
    return 0;
}

static int all_reduce_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    void *private = malloc(100003 * 8);
    int rc = private == NULL;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t o = 0; o < COUNT(ops); o++)
            for (size_t s = 0; s < COUNT(sizes); s++) {
                rc = rc ? rc : all_reduce_case(all, private, sizes[s], dtypes[d], ops[o], rank, world);
                if (!rc && comm_shared(c))
                    rc = all_reduce_case(all, (char *)comm_shared(c) + 4096, sizes[s], dtypes[d], ops[o], rank, world);
            }
    free(private);
    return rc;
}

TEST(all_reduce_matches_the_oracle)
{
    run_worlds(all_reduce_everything);
}

static int nan_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    (void)c;
    float x[2000];
    for (size_t o = 0; o < COUNT(ops); o++) {
        fill(x, 2000, DT_F32, rank);
        if (rank == world - 1)
            x[1234] = NAN;
        CHECK(comm_all_reduce(all, stream, x, 2000, DT_F32, ops[o]) == OK);
        CHECK(isnan(x[1234]) && !isnan(x[1233]));
    }
    return 0;
}

TEST(a_nan_on_any_rank_is_a_nan_on_all)
{
    run_worlds(nan_case);
}

/* ---- the others ---- */

static int64_t make_counts(int pattern, int world, int64_t *counts)
{
    int64_t total = 0;
    for (int i = 0; i < world; i++) {
        counts[i] = pattern == 0 ? 1000 : pattern == 1 ? (i * 7919) % 5000 : i == world - 1 ? 70001 : 0;
        total += counts[i];
    }
    return total;
}

static int gather_case(struct comm *c, struct comm_group *all, int pattern, bool shared, enum dtype dtype, int rank,
                       int world)
{
    int64_t counts[16], total = make_counts(pattern, world, counts), at = 0;
    void *dst = malloc((size_t)(total + 1) * 8);
    void *src = shared ? comm_shared(c) : malloc((size_t)(counts[rank] + 1) * 8);
    CHECK(dst && src);
    fill(src, counts[rank], dtype, rank);
    CHECK(comm_all_gather(all, stream, src, dst, counts, dtype) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK(get(dst, at, dtype) == value_at(r, i, dtype));
    free(dst);
    if (!shared)
        free(src);
    return 0;
}

static int gather_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = 0;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int pattern = 0; pattern < 3; pattern++)
            for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++)
                rc = rc ? rc : gather_case(c, all, pattern, shared, dtypes[d], rank, world);
    return rc;
}

TEST(all_gather_matches_the_oracle)
{
    run_worlds(gather_everything);
}

static int gather_in_place(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t counts[16], at = 0, skip = 0;
    float *x = comm_shared(c);
    for (int r = 0; r < world; r++) {
        counts[r] = 1000 + 17 * r;
        skip += r < rank ? counts[r] : 0;
    }
    fill(x + skip, counts[rank], DT_F32, rank);
    CHECK(comm_all_gather(all, stream, x + skip, x, counts, DT_F32) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK((double)x[at] == value_at(r, i, DT_F32));
    return 0;
}

TEST(all_gather_in_place)
{
    run_worlds(gather_in_place);
}

static int scatter_case(struct comm *c, struct comm_group *all, int pattern, bool shared, enum dtype dtype,
                        enum reduce_op op, int rank, int world)
{
    int64_t counts[16], total = make_counts(pattern, world, counts), skip = 0;
    void *src = shared ? comm_shared(c) : malloc((size_t)(total + 1) * 8);
    void *dst = malloc((size_t)(counts[rank] + 1) * 8);
    CHECK(dst && src);
    for (int r = 0; r < rank; r++)
        skip += counts[r];
    fill(src, total, dtype, rank);
    CHECK(comm_reduce_scatter(all, stream, src, dst, counts, dtype, op) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(get(dst, i, dtype) == oracle(everybody, world, skip + i, dtype, op));
    free(dst);
    if (!shared)
        free(src);
    return 0;
}

static int scatter_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = 0;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t o = 0; o < COUNT(ops); o++)
            for (int pattern = 0; pattern < 3; pattern++)
                for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++)
                    rc = rc ? rc : scatter_case(c, all, pattern, shared, dtypes[d], ops[o], rank, world);
    return rc;
}

TEST(reduce_scatter_matches_the_oracle)
{
    run_worlds(scatter_everything);
}

static int broadcast_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t private[400001];
    const int64_t lengths[] = {0, 1, 4097, 400001};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (int root = 0; root < world; root++)
            for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++) {
                uint8_t *x = shared ? comm_shared(c) : private;
                for (int64_t i = 0; i < lengths[l]; i++)
                    x[i] = rank == root ? (uint8_t)(i * 31 + root) : 0xee;
                CHECK(comm_broadcast(all, stream, x, lengths[l], root) == OK);
                for (int64_t i = 0; i < lengths[l]; i++)
                    CHECK(x[i] == (uint8_t)(i * 31 + root));
            }
    return 0;
}

TEST(broadcast_matches_the_oracle)
{
    run_worlds(broadcast_everything);
}

/* Every group of two or more of five ranks; a rank uses those that it belongs to, between collectives of all. */
static int groups_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    for (int mask = 1; mask < 1 << world; mask++) {
        int ranks[5], n = 0;
        struct comm_group *g;
        float x[3000];
        for (int r = 0; r < world; r++)
            if (mask & 1 << r)
                ranks[n++] = r;
        CHECK(comm_group_new(c, ranks, n, &g) == OK);
        fill(x, 3000, DT_F32, rank);
        if (mask & 1 << rank) {
            CHECK(comm_all_reduce(g, stream, x, 3000, DT_F32, REDUCE_SUM) == OK);
            for (int i = 0; i < 3000; i++)
                CHECK((double)x[i] == oracle(ranks, n, i, DT_F32, REDUCE_SUM));
        }
        comm_group_free(g);
        if (mask % 7 == 0)
            CHECK(all_reduce_case(all, x, 3000, DT_F32, REDUCE_MAX, rank, world) == 0);
    }
    return 0;
}

TEST(any_group_of_ranks)
{
    run_worlds(groups_case);
}

static int zero_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    const uint8_t *x = comm_shared(c);
    CHECK(((uintptr_t)x & 4095) == 0);
    for (size_t i = 0; i < SHARED_BYTES; i++)
        CHECK(x[i] == 0);
    memset(comm_shared(c), 0xff, SHARED_BYTES);
    return comm_barrier(all);
}

TEST(shared_bytes_are_zero_in_every_epoch)
{
    int fd = segment();
    for (uint64_t epoch = 1; epoch <= 20; epoch++) /* more than there are control blocks */
        run_forked(fd, epoch, 1 + (int)(epoch % 3), zero_case);
    close(fd);
}

/* ---- the canonical tree ---- */

#define TREE_N 5003

static int64_t tree_middle(int64_t lo, int64_t hi)
{
    int64_t p = 1;
    while (p * 2 < hi - lo)
        p *= 2;
    return lo + p;
}

static float tree_leaf(int64_t leaf, int64_t i)
{
    return (float)(((i * 2654435761u) ^ (uint64_t)leaf * 40503u) % 100003) / 997.0f * (leaf % 2 ? 1.0f : -1e-3f);
}

static float tree_node(int64_t lo, int64_t hi, int64_t i)
{
    if (hi - lo == 1)
        return tree_leaf(lo, i);
    int64_t mid = tree_middle(lo, hi);
    return tree_node(lo, mid, i) + tree_node(mid, hi, i);
}

/* Deals the tree: a node is either one rank's as a whole, or cut. `salt` chooses. */
static int deal(int64_t lo, int64_t hi, int salt, int world, int rank, struct comm_tree_node *mine, int n)
{
    uint64_t h = ((uint64_t)lo * 131 + (uint64_t)hi * 31 + (uint64_t)salt) * 0x9e3779b97f4a7c15u >> 33;
    if (hi - lo > 1 && h % 3 != 0) {
        n = deal(lo, tree_middle(lo, hi), salt, world, rank, mine, n);
        return deal(tree_middle(lo, hi), hi, salt, world, rank, mine, n);
    }
    if ((int)(h / 3 % (unsigned)world) == rank)
        mine[n++] = (struct comm_tree_node){lo, hi, 0};
    return n;
}

static int tree_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    for (int salt = 0; salt < 12; salt++) {
        struct comm_tree_node mine[32];
        int64_t leaves = 1 + salt * 2 % 17;
        int n = deal(0, leaves, salt, world, rank, mine, 0);
        float *out = comm_shared(c), *at = out + 8192;
        for (int k = 0; k < n; k++, at += 8192) {
            mine[k].offset = (size_t)((char *)at - (char *)out);
            for (int64_t i = 0; i < TREE_N; i++)
                at[i] = tree_node(mine[k].lo, mine[k].hi, i);
        }
        CHECK(comm_tree_reduce(all, mine, n, leaves, out, TREE_N, DT_F32) == OK);
        for (int64_t i = 0; i < TREE_N; i++)
            CHECK(out[i] == tree_node(0, leaves, i));
        CHECK(comm_barrier(all) == OK);
    }
    return 0;
}

TEST(tree_sums_have_the_same_bits_however_dealt)
{
    run_worlds(tree_case);
}

static int bad_tree_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    float *out = comm_shared(c);
    struct comm_tree_node node = {0, 2,
                                  4096}; /* everybody holds leaves 0 and 1, nobody the rest; and 1..3 is no node */
    CHECK(comm_tree_reduce(all, &node, 1, 4, out, 100, DT_F32) == ERR_INVALID);
    node = (struct comm_tree_node){1, 3, 4096};
    CHECK(comm_tree_reduce(all, &node, rank == 0, 4, out, 100, DT_F32) == ERR_INVALID);
    node = (struct comm_tree_node){0, 4, 4096};
    CHECK(comm_tree_reduce(all, &node, rank == world - 1, 4, out, 100, DT_F32) == OK);
    return 0;
}

TEST(tree_lists_that_make_no_tree_are_refused_on_all_ranks)
{
    run_worlds(bad_tree_case);
}

/* ---- ends ---- */

static void *abort_later(void *c)
{
    usleep(100000);
    comm_abort(c);
    return NULL;
}

/* The last rank is killed; the others wait for it in a collective until another thread aborts. */
static int killed_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    pthread_t thread;
    float x[100] = {0};
    if (rank == world - 1)
        kill(getpid(), SIGKILL);
    if (rank == 0)
        CHECK(pthread_create(&thread, NULL, abort_later, c) == 0);
    CHECK(comm_all_reduce(all, stream, x, 100, DT_F32, REDUCE_SUM) == ERR_CANCELED);
    CHECK(comm_barrier(all) == ERR_CANCELED);
    if (rank == 0)
        pthread_join(thread, NULL);
    return 0;
}

static void killed_rank(void)
{
    int fd = segment();
    pid_t pid[4];
    int64_t start = clock_mono_ms();
    for (int r = 0; r < 4; r++)
        if ((pid[r] = fork()) == 0)
            _exit(run_rank(fd, 1, r, 4, killed_case));
    for (int r = 0; r < 4; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        assert_true(r == 3 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(clock_mono_ms() - start < 5000);
    run_forked(fd, 2, 3, all_reduce_everything); /* and the segment serves the next epoch */
    close(fd);
}

TEST(a_killed_rank_hangs_nobody)
{
    killed_rank();
}

static err_t open_one(int fd, uint64_t epoch, int rank, int world, int64_t timeout_ms, const _Atomic int *cancel,
                      struct comm **ret, struct why *why)
{
    struct comm_config config = {.backend = "shm",
                                 .fd = fd,
                                 .rank = rank,
                                 .world = world,
                                 .epoch = epoch,
                                 .shared_bytes = 100,
                                 .timeout_ms = timeout_ms,
                                 .cancel = cancel};
    return comm_open(&config, ret, why);
}

TEST(a_rank_of_an_older_epoch_is_refused)
{
    int fd = segment();
    struct comm *c, *d;
    struct why why;
    assert_ok(open_one(fd, 5, 0, 1, 1000, NULL, &c, &why));
    assert_err(ERR_STALE, open_one(fd, 4, 0, 1, 1000, NULL, &d, &why));
    assert_non_null(strstr(why.text, "epoch 4"));
    assert_err(ERR_EXISTS, open_one(fd, 5, 0, 1, 1000, NULL, &d, &why));
    comm_close(c);
    close(fd);
}

TEST(a_newer_epoch_ends_the_older)
{
    int fd = segment(), rank = 0;
    struct comm *c, *d;
    struct comm_group *g;
    struct why why;
    assert_ok(open_one(fd, 5, 0, 1, 1000, NULL, &c, &why));
    assert_ok(comm_group_new(c, &rank, 1, &g));
    assert_ok(comm_barrier(g));
    assert_ok(open_one(fd, 6, 0, 1, 1000, NULL, &d, &why));
    assert_err(ERR_CANCELED, comm_barrier(g));
    comm_group_free(g);
    comm_close(c);
    comm_close(d);
    close(fd);
}

TEST(who_does_not_come_is_named)
{
    int fd = segment();
    struct comm *c;
    struct why why;
    assert_err(ERR_TIMEOUT, open_one(fd, 1, 1, 3, 50, NULL, &c, &why));
    assert_non_null(strstr(why.text, "rank 0 2 did not come"));
    close(fd);
}

TEST(waiting_for_ranks_can_be_canceled)
{
    int fd = segment();
    struct comm *c;
    struct why why;
    _Atomic int cancel = 1;
    assert_err(ERR_CANCELED, open_one(fd, 1, 0, 2, 10000, &cancel, &c, &why));
    close(fd);
}

TEST(worlds_of_different_sizes_do_not_mix)
{
    int fd = segment();
    struct comm *c;
    struct why why;
    assert_err(ERR_TIMEOUT, open_one(fd, 1, 0, 2, 20, NULL, &c, &why));
    assert_err(ERR_INVALID, open_one(fd, 1, 1, 3, 20, NULL, &c, &why));
    close(fd);
}

TEST(an_unknown_backend_is_refused)
{
    struct comm_config config = {.backend = "smoke", .rank = 0, .world = 1};
    struct comm *c;
    struct why why;
    assert_err(ERR_UNSUPPORTED, comm_open(&config, &c, &why));
}

/* ---- staged ---- */

/* More than a half of the stage holds, so that rounds overlap; parts of very different length. */
static int staged_large(struct comm *c, struct comm_group *all, int rank, int world)
{
    const int64_t n = 1400003;
    int64_t counts[16], total = 0, at = 0, skip = 0;
    double *x = malloc((size_t)n * 8), *y = malloc((size_t)n * 8);
    CHECK(x && y && !comm_shared(c));
    for (int r = 0; r < world; r++) {
        counts[r] = r == world - 1 ? n - total : (n / (world + 1)) * (r % 2);
        skip += r < rank ? counts[r] : 0;
        total += counts[r];
    }
    CHECK(all_reduce_case(all, x, n, DT_F64, REDUCE_SUM, rank, world) == 0);
    fill(x, counts[rank], DT_F64, rank);
    CHECK(comm_all_gather(all, stream, x, y, counts, DT_F64) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK(y[at] == value_at(r, i, DT_F64));
    fill(x, n, DT_F64, rank);
    CHECK(comm_reduce_scatter(all, stream, x, y, counts, DT_F64, REDUCE_SUM) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(y[i] == oracle(everybody, world, skip + i, DT_F64, REDUCE_SUM));
    fill(x, n, DT_F64, rank == 0 ? 7 : rank);
    CHECK(comm_broadcast(all, stream, x, n * 8, 0) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(x[i] == value_at(7, i, DT_F64));
    free(x);
    free(y);
    return 0;
}

/* In place, and with nothing to move. */
static int staged_in_place(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t counts[16], skip = 0, n = 0;
    static float x[5 * 40000];
    (void)c;
    for (int r = 0; r < world; r++) {
        counts[r] = 1000 + 7000 * r;
        skip += r < rank ? counts[r] : 0;
        n += counts[r];
    }
    fill(x + skip, counts[rank], DT_F32, rank);
    CHECK(comm_all_gather(all, stream, x + skip, x, counts, DT_F32) == OK);
    for (int64_t r = 0, at = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK((double)x[at] == value_at((int)r, i, DT_F32));
    fill(x, n, DT_F32, rank);
    CHECK(comm_reduce_scatter(all, stream, x, x + skip, counts, DT_F32, REDUCE_SUM) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK((double)x[skip + i] == oracle(everybody, world, skip + i, DT_F32, REDUCE_SUM));
    memset(counts, 0, sizeof(counts));
    CHECK(comm_all_gather(all, stream, x, x, counts, DT_F32) == OK);
    CHECK(comm_reduce_scatter(all, stream, x, x, counts, DT_F32, REDUCE_SUM) == OK);
    CHECK(comm_all_reduce(all, stream, x, 0, DT_F32, REDUCE_SUM) == OK);
    return comm_barrier(all);
}

static void run_staged(rank_fn fn)
{
    backend = "staged";
    run_worlds(fn);
    backend = "shm";
}

TEST(staged_collectives_match_the_oracle)
{
    run_staged(all_reduce_everything);
    run_staged(gather_everything);
    run_staged(scatter_everything);
    run_staged(broadcast_everything);
}

TEST(staged_collectives_take_several_rounds)
{
    run_staged(staged_large);
}

TEST(staged_collectives_work_in_place)
{
    run_staged(staged_in_place);
}

TEST(staged_groups_of_any_ranks)
{
    run_staged(groups_case);
    run_staged(nan_case);
}

static int no_tree(struct comm *c, struct comm_group *all, int rank, int world)
{
    struct comm_tree_node node = {0, 1, 0};
    float x[4];
    (void)c;
    CHECK(comm_tree_reduce(all, &node, 1, 1, x, 4, DT_F32) == ERR_UNSUPPORTED);
    return 0;
}

TEST(staged_has_no_canonical_sums)
{
    run_staged(no_tree);
}

static int agree_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t most = rank * 3 - 1, least = 10 - rank, sum = rank + ((int64_t)1 << 40);
    (void)c;
    CHECK(comm_agree(all, &most, REDUCE_MAX) == OK && most == (world - 1) * 3 - 1);
    CHECK(comm_agree(all, &least, REDUCE_MIN) == OK && least == 11 - world);
    CHECK(comm_agree(all, &sum, REDUCE_SUM) == OK);
    CHECK(sum == ((int64_t)world << 40) + world * (world - 1) / 2);
    return 0;
}

TEST(ranks_agree_on_a_number)
{
    run_worlds(agree_case);
    run_staged(agree_case);
}

TEST(a_killed_rank_hangs_no_staged_collective)
{
    backend = "staged";
    killed_rank();
    backend = "shm";
}

TEST(staged_needs_a_device)
{
    struct comm_config config = {.backend = "staged", .rank = 0, .world = 1};
    struct comm *c;
    struct why why;
    assert_err(ERR_INVALID, comm_open(&config, &c, &why));
    assert_non_null(strstr(why.text, "device"));
}

/* The module's absence is told with the places that were looked at. */
TEST(nccl_without_its_module_says_where_it_was_sought)
{
    struct comm_config config = {.backend = "nccl", .rank = 0, .world = 1};
    struct comm *c;
    struct why why = {""};
    setenv("DTD_MODULE_DIR", "/no/such/folder", 1);
    err_t err = comm_open(&config, &c, &why);
    if (err == OK)
        comm_close(c); /* found beside the program */
    else if (err == ERR_UNSUPPORTED)
        assert_non_null(strstr(why.text, "dtd-nccl.so"));
    else
        assert_true(why.text[0]); /* found; it wants a device */
}

/* ---- ranks as threads, for the thread sanitizer ---- */

struct thread_rank {
    int fd, rank, world, rc;
    rank_fn fn;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;
    t->rc = run_rank(t->fd, 1, t->rank, t->world, t->fn);
    return NULL;
}

TEST(ranks_may_be_threads)
{
    struct thread_rank t[3];
    pthread_t thread[3];
    int fd = segment();
    for (int r = 0; r < 3; r++) {
        t[r] = (struct thread_rank){fd, r, 3, 0, tree_case};
        assert_int_equal(pthread_create(&thread[r], NULL, thread_main, &t[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(t[r].rc, 0);
    }
    close(fd);
}
