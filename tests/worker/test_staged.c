/* Collectives of the staged backend on the CPU device: the cases of shm, several rounds, in place; and the errors of a
 * backend that cannot be opened. */
#include "tests/lib/test.h"
#include "tests/worker/collectives.h"

/* More data than a half holds, so that rounds overlap; parts of very different sizes. */
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
    CHECK(case_all_reduce(all, x, n, DT_F64, REDUCE_SUM, rank, world) == 0);
    ranks_fill(x, counts[rank], DT_F64, rank);
    CHECK(comm_all_gather(all, ranks_stream, x, y, counts, DT_F64) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK(y[at] == ranks_value(r, i, DT_F64));
    ranks_fill(x, n, DT_F64, rank);
    CHECK(comm_reduce_scatter(all, ranks_stream, x, y, counts, DT_F64, REDUCE_SUM) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(y[i] == ranks_oracle(ranks_everybody, world, skip + i, DT_F64, REDUCE_SUM));
    ranks_fill(x, n, DT_F64, rank == 0 ? 7 : rank);
    CHECK(comm_broadcast(all, ranks_stream, x, n * 8, 0) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(x[i] == ranks_value(7, i, DT_F64));
    free(x);
    free(y);
    return 0;
}

/* In place, and with nothing to move. */
static int staged_in_place(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t counts[16] = {0}, skip = 0, n = 0;
    static float x[5 * 40000];
    (void)c;
    for (int r = 0; r < world; r++) {
        counts[r] = 1000 + 7000 * r;
        skip += r < rank ? counts[r] : 0;
        n += counts[r];
    }
    ranks_fill(x + skip, counts[rank], DT_F32, rank);
    CHECK(comm_all_gather(all, ranks_stream, x + skip, x, counts, DT_F32) == OK);
    for (int64_t r = 0, at = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK((double)x[at] == ranks_value((int)r, i, DT_F32));
    ranks_fill(x, n, DT_F32, rank);
    CHECK(comm_reduce_scatter(all, ranks_stream, x, x + skip, counts, DT_F32, REDUCE_SUM) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK((double)x[skip + i] == ranks_oracle(ranks_everybody, world, skip + i, DT_F32, REDUCE_SUM));
    memset(counts, 0, sizeof(counts));
    CHECK(comm_all_gather(all, ranks_stream, x, x, counts, DT_F32) == OK);
    CHECK(comm_reduce_scatter(all, ranks_stream, x, x, counts, DT_F32, REDUCE_SUM) == OK);
    CHECK(comm_all_reduce(all, ranks_stream, x, 0, DT_F32, REDUCE_SUM) == OK);
    return comm_barrier(all);
}

static void run_staged(rank_fn fn)
{
    ranks_backend = "staged";
    ranks_run_worlds(fn);
    ranks_backend = "shm";
}

TEST(staged_collectives_match_the_oracle)
{
    run_staged(case_all_reduce_everything);
    run_staged(case_gather_everything);
    run_staged(case_scatter_everything);
    run_staged(case_broadcast_everything);
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
    run_staged(case_groups);
    run_staged(case_nan);
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

TEST(staged_bytes_of_a_group_are_those_of_the_formulas)
{
    run_staged(case_bytes);
}

TEST(staged_ranks_agree_on_a_number)
{
    run_staged(case_agree);
}

TEST(a_killed_rank_hangs_no_staged_collective)
{
    ranks_backend = "staged";
    ranks_killed(case_killed);
    ranks_backend = "shm";
}

static int over_nodes(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = case_all_reduce_everything(c, all, rank, world);
    rc = rc ? rc : case_gather_everything(c, all, rank, world);
    return rc ? rc : staged_in_place(c, all, rank, world);
}

TEST(staged_collectives_between_nodes)
{
    ranks_run_nodes("staged", over_nodes);
}

TEST(staged_needs_a_device)
{
    struct comm_config config = {.backend = "staged", .rank = 0, .world = 1};
    struct comm *c;
    struct why why;
    assert_err(ERR_INVALID, comm_open(&config, &c, &why));
    assert_non_null(strstr(why.text, "device"));
}

/* The error for a missing module names the paths that were tried. */
TEST(nccl_without_its_module_names_the_searched_paths)
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
        assert_true(why.text[0]); /* found; it needs a device */
}
