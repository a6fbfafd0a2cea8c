/* The comm interface and the shm backend: the cases of collectives.h, in place and in private memory, canonical sums,
 * and the beginning and end of epochs. A few cases run ranks as threads. */
#include "tests/lib/test.h"
#include "tests/worker/collectives.h"
#include "worker/comm/shm/shm.h"

#include <pthread.h>
#include <stdatomic.h>

TEST(all_reduce_matches_the_oracle)
{
    ranks_run_worlds(case_all_reduce_everything);
}

TEST(a_nan_on_any_rank_is_a_nan_on_all)
{
    ranks_run_worlds(case_nan);
}

TEST(all_gather_matches_the_oracle)
{
    ranks_run_worlds(case_gather_everything);
}

static int gather_in_place(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t counts[16], at = 0, skip = 0;
    float *x = comm_shared(c);
    for (int r = 0; r < world; r++) {
        counts[r] = 1000 + 17 * r;
        skip += r < rank ? counts[r] : 0;
    }
    ranks_fill(x + skip, counts[rank], DT_F32, rank);
    CHECK(comm_all_gather(all, ranks_stream, x + skip, x, counts, DT_F32) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK((double)x[at] == ranks_value(r, i, DT_F32));
    return 0;
}

TEST(all_gather_in_place)
{
    ranks_run_worlds(gather_in_place);
}

TEST(reduce_scatter_matches_the_oracle)
{
    ranks_run_worlds(case_scatter_everything);
}

/* ---- NUMA nodes ---- */

/* The oracle adds in the order of the ranks: the bits do not depend on the nodes. */
TEST(all_reduce_over_numa_nodes)
{
    ranks_run_numa_nodes(case_all_reduce_everything);
}

TEST(reduce_scatter_over_numa_nodes)
{
    ranks_run_numa_nodes(case_scatter_everything);
}

TEST(buffers_lie_anywhere_over_numa_nodes)
{
    ranks_run_numa((const int[]){0, 0, 1, 1}, 4, case_places);
}

TEST(any_group_over_numa_nodes)
{
    ranks_run_numa((const int[]){0, 0, 1, 1, 1}, 5, case_groups);
}

/* Bytes between nodes that all ranks have moved since the last call. */
static int64_t border_bytes(struct comm *c, struct comm_group *all, int64_t *seen)
{
    int64_t bytes = ((struct shm_comm *)c)->border_bytes - *seen;
    *seen += bytes;
    return comm_agree(all, &bytes, REDUCE_SUM) ? -1 : bytes;
}

/* The formulas of nodes.h, for four ranks in two nodes of two and a buffer of S bytes: 2 (K - 1) S = 2 S, and
 * (K - 1) (1 + 1/K) S = 3/2 S; in nodes that do not lie together 2 (n - n/K) S = 4 S, and 2 S. */
static int count_border(struct comm *c, struct comm_group *all, int rank, int world, int64_t halves_reduce,
                        int64_t halves_scatter)
{
    enum { N = 1 << 17 };
    float *x = comm_shared(c);
    const int64_t counts[] = {N / 4, N / 4, N / 4, N / 4}, bytes = (int64_t)N * 4;
    int64_t seen = 0;
    ranks_fill(x, N, DT_F32, rank);
    CHECK(border_bytes(c, all, &seen) == 0);
    CHECK(comm_reduce_scatter(all, NULL, x, x + N, counts, DT_F32, REDUCE_SUM) == OK);
    CHECK(border_bytes(c, all, &seen) == halves_scatter * bytes / 2);
    CHECK(comm_all_reduce(all, NULL, x, N, DT_F32, REDUCE_SUM) == OK);
    CHECK(border_bytes(c, all, &seen) == halves_reduce * bytes / 2);
    for (int64_t i = 0; i < N; i++)
        CHECK((double)x[i] == ranks_oracle(ranks_everybody, world, i, DT_F32, REDUCE_SUM));
    return 0;
}

static int count_divided(struct comm *c, struct comm_group *all, int rank, int world)
{
    return count_border(c, all, rank, world, 4, 3);
}

static int count_mixed(struct comm *c, struct comm_group *all, int rank, int world)
{
    return count_border(c, all, rank, world, 8, 4);
}

static int count_none(struct comm *c, struct comm_group *all, int rank, int world)
{
    return count_border(c, all, rank, world, 0, 0);
}

TEST(sums_cross_the_border_of_numa_nodes_once)
{
    ranks_run_numa((const int[]){0, 0, 1, 1}, 4, count_divided);
    ranks_run_numa((const int[]){0, 1, 0, 1}, 4, count_mixed);
    ranks_run_numa((const int[]){0, 0, -1, -1}, 4, count_mixed); /* where the others are is not known */
    ranks_run_numa((const int[]){3, 3, 3, 3}, 4, count_none);
}

TEST(broadcast_matches_the_oracle)
{
    ranks_run_worlds(case_broadcast_everything);
}

TEST(any_group_of_ranks)
{
    ranks_run_worlds(case_groups);
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
    int fd = ranks_segment();
    for (uint64_t epoch = 1; epoch <= 20; epoch++) /* more than there are control blocks */
        ranks_run_forked(fd, epoch, 1 + (int)(epoch % 3), zero_case);
    close(fd);
}

/* ---- the canonical tree ---- */

#define TREE_N 40003 /* more than a block */

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

/* Distributes the tree: a node is either held by one rank or divided further. `salt` selects the distribution. */
static int distribute_tree(int64_t lo, int64_t hi, int salt, int world, int rank, struct comm_tree_node *mine, int n)
{
    uint64_t h = ((uint64_t)lo * 131 + (uint64_t)hi * 31 + (uint64_t)salt) * 0x9e3779b97f4a7c15u >> 33;
    if (hi - lo > 1 && h % 3 != 0) {
        n = distribute_tree(lo, tree_middle(lo, hi), salt, world, rank, mine, n);
        return distribute_tree(tree_middle(lo, hi), hi, salt, world, rank, mine, n);
    }
    if ((int)(h / 3 % (unsigned)world) == rank)
        mine[n++] = (struct comm_tree_node){lo, hi, 0};
    return n;
}

static int tree_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    float *private = malloc(TREE_N * sizeof(float));
    CHECK(private);
    for (int salt = 0; salt < 12; salt++) {
        struct comm_tree_node mine[32];
        int64_t before = comm_group_bytes(all),
                own = TREE_N * (int64_t)(rank + 1) / world - TREE_N * (int64_t)rank / world;
        int64_t leaves = 1 + salt * 2 % 17;
        int n = distribute_tree(0, leaves, salt, world, rank, mine, 0);
        float *shared = comm_shared(c), *at = shared + TREE_N + 64 * (rank + 1);
        float *out = (salt + rank) % 3 && salt % 4 ? private : shared + 16 * rank; /* anywhere */
        if (salt == 8 && n > 0)
            out = at; /* the first node itself */
        for (int k = 0; k < n; k++, at += TREE_N + 5) {
            mine[k].offset = (size_t)((char *)at - (char *)shared);
            for (int64_t i = 0; i < TREE_N; i++)
                at[i] = tree_node(mine[k].lo, mine[k].hi, i);
        }
        CHECK(comm_tree_reduce(all, mine, n, leaves, out, TREE_N, DT_F32) == OK);
        for (int64_t i = 0; i < TREE_N; i++)
            CHECK(out[i] == tree_node(0, leaves, i));
        CHECK(comm_group_bytes(all) - before == (n + 1) * (TREE_N - own) * 4);
        CHECK(comm_barrier(all) == OK);
    }
    free(private);
    return 0;
}

TEST(tree_sums_have_the_same_bits_however_dealt)
{
    ranks_run_worlds(tree_case);
}

static int bad_tree_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    float *out = comm_shared(c);
    struct comm_tree_node node = {
        0, 2, 4096}; /* every rank holds leaves 0 and 1, no rank the others; and 1..3 is not a node */
    CHECK(comm_tree_reduce(all, &node, 1, 4, out, 100, DT_F32) == ERR_INVALID);
    node = (struct comm_tree_node){1, 3, 4096};
    CHECK(comm_tree_reduce(all, &node, rank == 0, 4, out, 100, DT_F32) == ERR_INVALID);
    node = (struct comm_tree_node){0, 4, 4096};
    CHECK(comm_tree_reduce(all, &node, rank == world - 1, 4, out, 100, DT_F32) == OK);
    return 0;
}

TEST(lists_that_form_no_tree_are_refused_on_all_ranks)
{
    ranks_run_worlds(bad_tree_case);
}

TEST(buffers_lie_anywhere)
{
    ranks_run_worlds(case_places);
}

TEST(bytes_of_a_group_are_those_of_the_formulas)
{
    ranks_run_worlds(case_bytes);
}

TEST(a_killed_rank_hangs_no_rank)
{
    ranks_killed(case_killed);
}

/* ---- several nodes: the same cases, with the same bits over every wire ---- */

static int all_reduces(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = case_all_reduce_everything(c, all, rank, world);
    return rc ? rc : case_nan(c, all, rank, world);
}

static int groups(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = case_groups(c, all, rank, world);
    return rc ? rc : case_agree(c, all, rank, world);
}

static int gathers(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = case_gather_everything(c, all, rank, world);
    rc = rc ? rc : gather_in_place(c, all, rank, world);
    return rc ? rc : case_broadcast_everything(c, all, rank, world);
}

static int sums_and_bytes(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = case_bytes(c, all, rank, world);
    return rc ? rc : case_scatter_everything(c, all, rank, world);
}

static int trees(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = tree_case(c, all, rank, world);
    return rc ? rc : bad_tree_case(c, all, rank, world);
}

TEST(all_reduce_over_stream)
{
    ranks_run_nodes("stream", all_reduces);
}

TEST(any_group_over_stream)
{
    ranks_run_nodes("stream", groups);
}

TEST(gather_and_broadcast_over_stream)
{
    ranks_run_nodes("stream", gathers);
}

TEST(reduce_scatter_over_stream)
{
    ranks_run_nodes("stream", sums_and_bytes);
}

TEST(buffers_lie_anywhere_over_stream)
{
    ranks_run_nodes("stream", case_places);
}

TEST(tree_sums_over_stream)
{
    ranks_run_nodes("stream", trees);
}

TEST(a_killed_rank_hangs_no_rank_over_stream)
{
    ranks_killed_on_nodes("stream", case_killed);
}

TEST(all_reduce_over_ucx)
{
    ranks_run_nodes("ucx", all_reduces);
}

TEST(any_group_over_ucx)
{
    ranks_run_nodes("ucx", groups);
}

TEST(gather_and_broadcast_over_ucx)
{
    ranks_run_nodes("ucx", gathers);
}

TEST(reduce_scatter_over_ucx)
{
    ranks_run_nodes("ucx", sums_and_bytes);
}

TEST(buffers_lie_anywhere_over_ucx)
{
    ranks_run_nodes("ucx", case_places);
}

TEST(tree_sums_over_ucx)
{
    ranks_run_nodes("ucx", trees);
}

TEST(a_killed_rank_hangs_no_rank_over_ucx)
{
    ranks_killed_on_nodes("ucx", case_killed);
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
    int fd = ranks_segment();
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
    int fd = ranks_segment(), rank = 0;
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

TEST(missing_ranks_are_named)
{
    int fd = ranks_segment();
    struct comm *c;
    struct why why;
    assert_err(ERR_TIMEOUT, open_one(fd, 1, 1, 3, 50, NULL, &c, &why));
    assert_non_null(strstr(why.text, "rank 0 2 did not join"));
    close(fd);
}

TEST(waiting_for_ranks_can_be_canceled)
{
    int fd = ranks_segment();
    struct comm *c;
    struct why why;
    _Atomic int cancel = 1;
    assert_err(ERR_CANCELED, open_one(fd, 1, 0, 2, 10000, &cancel, &c, &why));
    close(fd);
}

TEST(worlds_of_different_sizes_do_not_mix)
{
    int fd = ranks_segment();
    struct comm *c;
    struct why why;
    assert_err(ERR_TIMEOUT, open_one(fd, 1, 0, 2, 20, NULL, &c, &why));
    assert_err(ERR_INVALID, open_one(fd, 1, 1, 3, 20, NULL, &c, &why));
    close(fd);
}

TEST(shared_memory_does_not_reach_other_nodes)
{
    struct comm_config config = {.backend = "shm", .world = 2, .node_of = (const int[]){0, 1}};
    struct comm *c;
    struct why why;
    assert_err(ERR_UNSUPPORTED, comm_open(&config, &c, &why));
    assert_non_null(strstr(why.text, "use stream or auto"));
}

TEST(an_unknown_backend_is_refused)
{
    struct comm_config config = {.backend = "smoke", .rank = 0, .world = 1};
    struct comm *c;
    struct why why;
    assert_err(ERR_UNSUPPORTED, comm_open(&config, &c, &why));
}

/* ---- ranks as threads, for the thread sanitizer ---- */

struct thread_rank {
    int fd, rank, world, rc;
    rank_fn fn;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;
    t->rc = ranks_run_one(t->fd, 1, t->rank, t->world, t->fn);
    return NULL;
}

TEST(ranks_may_be_threads)
{
    struct thread_rank t[3];
    pthread_t thread[3];
    int fd = ranks_segment();
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

/* Every byte arrives, and none beside them changes, wherever the lines of a cache begin. */
TEST(bytes_pass_as_a_copy_whatever_their_place)
{
    enum { SPACE = 3 * 4096 };
    static const size_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 4160, 4223, 8191};
    static uint8_t from[SPACE], to[SPACE], expected[SPACE];
    for (int i = 0; i < SPACE; i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    for (int spins = 0; spins <= 1; spins++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
            for (size_t at = 0; at < 130; at++) {
                const struct shm_comm s = {.spins = spins};
                memset(to, 0xaa, sizeof(to));
                memset(expected, 0xaa, sizeof(expected));
                memcpy(expected + at, from + at / 2, sizes[k]);
                shm_pass(&s, to + at, from + at / 2, sizes[k]);
                assert_memory_equal(to, expected, sizeof(to));
            }
}

TEST(ranks_agree_on_a_number)
{
    ranks_run_worlds(case_agree);
}
