/* Every collective of the NCCL backend on every kind of group against an oracle that each rank computes itself: the
 * inputs are functions of rank and index. Values are small integers, so sums are exact in any order and every type. */
#include "tests/worker/comm/nccl/ranks.h"

#include <math.h>

static const enum dtype dtypes[] = {DT_F32, DT_F64, DT_I32, DT_I64, DT_BF16};
static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG};
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))
#define N_OPS (sizeof(ops) / sizeof(ops[0]))

/* ---- values ---- */

static double value_at(int rank, int64_t i)
{
    return (double)((i * 7 + rank * 5) % 23 - 11);
}

static void put(void *x, int64_t i, enum dtype dtype, double v)
{
    float f = (float)v;
    uint32_t bits;
    switch (dtype) {
    case DT_F32:
        ((float *)x)[i] = f;
        break;
    case DT_F64:
        ((double *)x)[i] = v;
        break;
    case DT_I32:
        ((int32_t *)x)[i] = (int32_t)v;
        break;
    case DT_BF16:
        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
        break;
    case DT_U8:
        ((uint8_t *)x)[i] = (uint8_t)(int)v;
        break;
    default:
        ((int64_t *)x)[i] = (int64_t)v;
        break;
    }
}

static double get(const void *x, int64_t i, enum dtype dtype)
{
    float f;
    uint32_t bits;
    switch (dtype) {
    case DT_F32:
        return (double)((const float *)x)[i];
    case DT_F64:
        return ((const double *)x)[i];
    case DT_I32:
        return ((const int32_t *)x)[i];
    case DT_BF16:
        bits = (uint32_t)((const uint16_t *)x)[i] << 16;
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    case DT_U8:
        return (int8_t)((const uint8_t *)x)[i];
    default:
        return (double)((const int64_t *)x)[i];
    }
}

static void *host_values(int rank, int64_t from, int64_t n, enum dtype dtype)
{
    uint8_t *x = malloc((size_t)n * dtype_bytes(dtype) + 1);
    for (int64_t i = 0; x && i < n; i++)
        put(x, i, dtype, value_at(rank, from + i));
    return x;
}

static double oracle(const struct comm_group *g, int64_t i, enum dtype dtype, enum reduce_op op)
{
    double acc = value_at(g->ranks[0], i);
    for (int r = 1; r < g->n; r++) {
        double x = value_at(g->ranks[r], i);
        acc = op == REDUCE_MIN ? fmin(acc, x) : op == REDUCE_MAX ? fmax(acc, x) : acc + x;
    }
    if (op == REDUCE_AVG)
        acc = dtype == DT_I32 || dtype == DT_I64 ? trunc(acc / g->n) : acc / g->n;
    return acc;
}

/* NCCL may round means in any way, but all ranks must have the same result. */
static bool near(double a, double b, enum dtype dtype, enum reduce_op op)
{
    double slack = dtype == DT_BF16 ? 0x1p-6 : dtype == DT_F64 ? 1e-14 : 1e-6;
    return op == REDUCE_AVG ? fabs(a - b) <= slack * fmax(1.0, fabs(b)) : a == b;
}

/* ---- all_reduce ---- */

static int check_all_reduce(struct rank *r, struct comm_group *g, int64_t n, enum dtype dtype, enum reduce_op op)
{
    size_t bytes = (size_t)n * dtype_bytes(dtype);
    void *host = host_values(r->rank, 0, n, dtype), *x = rank_upload(r, host, bytes);
    CHECK(host && x);
    CHECK(comm_all_reduce(g, r->stream, x, n, dtype, op) == OK);
    CHECK(rank_download(r, host, x, bytes) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(near(get(host, i, dtype), oracle(g, i, dtype, op), dtype, op));
    dev_free(r->dev, x, bytes);
    free(host);
    return 0;
}

static int sums(struct rank *r)
{
    int rc = 0;
    for (size_t t = 0; t < N_DTYPES; t++)
        for (size_t o = 0; o < N_OPS; o++)
            rc |= check_all_reduce(r, r->all, 1 + (int64_t)(t * 31 + o * 7), dtypes[t], ops[o]);
    rc |= check_all_reduce(r, r->all, 100003, DT_F32, REDUCE_SUM);
    CHECK(comm_all_reduce(r->all, r->stream, NULL, 0, DT_F32, REDUCE_SUM) == OK);
    return rc;
}

TEST(all_reduce_matches_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, sums);
}

/* ---- gather and scatter ---- */

/* Equal counts, uneven counts, some empty, one member with everything. */
static void counts_of(int kind, int n, int64_t *ret)
{
    for (int i = 0; i < n; i++)
        ret[i] = kind == 0 ? 1000 : kind == 1 ? 100 + 37 * i : kind == 2 ? (i % 2) * 513 : i == n - 1 ? 7 : 0;
}

static int64_t total_of(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int check_gather(struct rank *r, struct comm_group *g, int kind, enum dtype dtype, bool in_place)
{
    int64_t counts[RANKS_MAX], total, at = 0;
    size_t size = dtype_bytes(dtype);
    counts_of(kind, g->n, counts);
    total = total_of(counts, g->n);
    int64_t before = total_of(counts, g->me), mine = counts[g->me];
    void *host = host_values(r->rank, 0, mine, dtype), *got = malloc((size_t)total * size + 1);
    uint8_t *dst = rank_upload(r, NULL, (size_t)total * size + 1), *src = dst + (size_t)before * size;
    if (!in_place)
        src = rank_upload(r, host, (size_t)mine * size + 1);
    else
        CHECK(!mine || dev_copy(r->stream, src, host, (size_t)mine * size) == OK);
    CHECK(dst && src && got);
    CHECK(comm_all_gather(g, r->stream, src, dst, counts, dtype) == OK);
    CHECK(rank_download(r, got, dst, (size_t)total * size + 1) == OK);
    for (int k = 0; k < g->n; k++)
        for (int64_t i = 0; i < counts[k]; i++, at++)
            CHECK(get(got, at, dtype) == value_at(g->ranks[k], i));
    if (!in_place)
        dev_free(r->dev, src, (size_t)mine * size + 1);
    dev_free(r->dev, dst, (size_t)total * size + 1);
    free(got);
    free(host);
    return 0;
}

static int check_scatter(struct rank *r, struct comm_group *g, int kind, enum dtype dtype, enum reduce_op op)
{
    int64_t counts[RANKS_MAX], total;
    size_t size = dtype_bytes(dtype);
    counts_of(kind, g->n, counts);
    total = total_of(counts, g->n);
    int64_t before = total_of(counts, g->me), mine = counts[g->me];
    void *host = host_values(r->rank, 0, total, dtype), *src = rank_upload(r, host, (size_t)total * size + 1);
    void *dst = rank_upload(r, NULL, (size_t)mine * size + 1);
    CHECK(host && src && dst);
    CHECK(comm_reduce_scatter(g, r->stream, src, dst, counts, dtype, op) == OK);
    CHECK(rank_download(r, host, dst, (size_t)mine * size + 1) == OK);
    for (int64_t i = 0; i < mine; i++)
        CHECK(near(get(host, i, dtype), oracle(g, before + i, dtype, op), dtype, op));
    dev_free(r->dev, dst, (size_t)mine * size + 1);
    dev_free(r->dev, src, (size_t)total * size + 1);
    free(host);
    return 0;
}

static int gathers(struct rank *r)
{
    int rc = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int in_place = 0; in_place < 2; in_place++)
            rc |= check_gather(r, r->all, kind, in_place ? DT_BF16 : DT_F32, in_place) |
                  check_gather(r, r->all, kind, DT_U8, in_place) | check_gather(r, r->all, kind, DT_I64, in_place);
    return rc;
}

TEST(all_gather_matches_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, gathers);
}

static int scatters(struct rank *r)
{
    int rc = 0;
    for (int kind = 0; kind < 4; kind++)
        for (size_t t = 0; t < N_DTYPES; t++)
            rc |= check_scatter(r, r->all, kind, dtypes[t], ops[(t + (size_t)kind) % N_OPS]);
    return rc | check_scatter(r, r->all, 1, DT_F32, REDUCE_SUM) | check_scatter(r, r->all, 0, DT_F32, REDUCE_AVG);
}

TEST(reduce_scatter_matches_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, scatters);
}

/* ---- broadcast, barrier, agree ---- */

static int broadcasts(struct rank *r)
{
    for (int root = 0; root < r->world; root++) {
        int64_t n = 4099 * (root + 1);
        void *host = host_values(r->rank, 0, n, DT_U8), *x = rank_upload(r, host, (size_t)n);
        CHECK(host && x);
        CHECK(comm_broadcast(r->all, r->stream, x, n, root) == OK);
        CHECK(rank_download(r, host, x, (size_t)n) == OK);
        for (int64_t i = 0; i < n; i++)
            CHECK(get(host, i, DT_U8) == value_at(root, i));
        dev_free(r->dev, x, (size_t)n);
        free(host);
    }
    return 0;
}

TEST(broadcast_matches_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, broadcasts);
}

static int barriers(struct rank *r)
{
    for (int i = 0; i < 30; i++) {
        if (r->rank == i % r->world)
            usleep(1000);
        atomic_fetch_add(&r->shared->counter[0], 1);
        CHECK(comm_barrier(r->all) == OK);
        CHECK(atomic_load(&r->shared->counter[0]) >= (int64_t)(i + 1) * r->world);
    }
    return 0;
}

TEST(a_barrier_waits_for_all)
{
    ranks_need_device();
    ranks_run_open(3, barriers);
}

static int agreements(struct rank *r)
{
    int64_t big = (int64_t)1 << 60, x = r->rank + big;
    CHECK(comm_agree(r->all, &x, REDUCE_MAX) == OK && x == big + r->world - 1);
    x = r->rank - big;
    CHECK(comm_agree(r->all, &x, REDUCE_MIN) == OK && x == -big);
    for (int i = 0; i < 20; i++) {
        x = r->rank * 3 + i;
        CHECK(comm_agree(r->all, &x, REDUCE_SUM) == OK);
        CHECK(x == (int64_t)r->world * i + 3 * r->world * (r->world - 1) / 2);
    }
    return 0;
}

TEST(ranks_agree_on_a_number)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, agreements);
}

/* comm_agree between collectives that no rank has waited for: the device runs all in one order. */
static int mixed(struct rank *r)
{
    int64_t n = 5000;
    void *host = host_values(r->rank, 0, n, DT_F64), *x = rank_upload(r, host, (size_t)n * 8);
    CHECK(host && x);
    for (int i = 0; i < 10; i++) {
        int64_t number = 1;
        CHECK(comm_all_reduce(r->all, r->stream, x, n, DT_F64, i ? REDUCE_MAX : REDUCE_SUM) == OK);
        CHECK(comm_agree(r->all, &number, REDUCE_SUM) == OK && number == r->world);
    }
    CHECK(rank_download(r, host, x, (size_t)n * 8) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(get(host, i, DT_F64) == oracle(r->all, i, DT_F64, REDUCE_SUM));
    CHECK(comm_bytes_moved(r->comm) >= (r->world > 1 ? n * 8 : 0));
    dev_free(r->dev, x, (size_t)n * 8);
    free(host);
    return 0;
}

TEST(numbers_and_collectives_keep_their_order)
{
    ranks_need_device();
    ranks_run_open(3, mixed);
}

/* ---- groups ---- */

static int on_groups(struct rank *r)
{
    static const struct {
        int ranks[4], n;
    } wanted[] = {{{0, 1}, 2}, {{2, 3}, 2}, {{1, 2}, 2}, {{0, 2, 3}, 3}, {{2}, 1}, {{0, 1, 2, 3}, 4}};
    struct comm_group *g[6];
    int rc = 0;
    for (int i = 0; i < 6; i++)
        CHECK(comm_group_new(r->comm, wanted[i].ranks, wanted[i].n, &g[i]) == OK);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 6; i++)
            if (g[i]->me >= 0)
                rc |= check_all_reduce(r, g[i], 777, dtypes[i % 5], ops[i % 4]) |
                      check_gather(r, g[i], i % 4, DT_F32, false) | check_scatter(r, g[i], i % 3, DT_F64, REDUCE_SUM);
    for (int i = 0; i < 6; i++) {
        int64_t x = 1;
        if (g[i]->me >= 0)
            CHECK(comm_agree(g[i], &x, REDUCE_SUM) == OK && x == wanted[i].n);
    }
    for (int i = 5; i >= 0; i--)
        comm_group_free(g[i]);
    return rc;
}

TEST(any_group_of_ranks)
{
    ranks_need_device();
    ranks_run_open(4, on_groups);
}

TEST(ranks_may_be_threads)
{
    setenv("DTD_CUDA_HOST_DEVICES", "4", 1);
    ranks_run_threads(4, on_groups);
}

static int no_tree(struct rank *r)
{
    const struct comm_tree_node node = {0, 1, 0};
    float x = 0;
    CHECK(comm_tree_reduce(r->all, &node, 1, 1, &x, 1, DT_F32) == ERR_UNSUPPORTED);
    CHECK(strstr(comm_why(r->comm), "run.device cpu"));
    CHECK(comm_shared(r->comm) == NULL);
    return 0;
}

TEST(canonical_sums_are_refused)
{
    ranks_need_device();
    ranks_run_open(1, no_tree);
}
