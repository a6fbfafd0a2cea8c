/* Gathers and scatters of units over NCCL, with parts of every shape. The values are small integers, so sums are exact
 * in any order and every type. */
#include "tests/worker/comm/nccl/ranks.h"

#define PARTS 5
enum { EVEN, UNEVEN, NOTHING, MIXED, PATTERNS };

/* Each rank has different gaps and a different order of pieces. */
struct nccl_unit {
    struct comm_group *g;
    enum dtype dtype;
    size_t size;
    int64_t counts[PARTS][RANKS_MAX];
    struct comm_part parts[PARTS];
    int64_t local, pieces; /* elements of the buffers */
};

static int64_t part_count(int pattern, int k, int member)
{
    switch (pattern) {
    case EVEN:
        return 200 * (k + 1);
    case UNEVEN:
        return (k * 79 + member * 1047) % 301 * ((k + member) % 3 != 0);
    case MIXED:
        return k % 2 ? 60 + k : 9000 * (member == k % 3);
    default:
        return 0;
    }
}

static int64_t before(const struct nccl_unit *u, int k, int member)
{
    int64_t sum = 0;
    for (int i = 0; i < member; i++)
        sum += u->counts[k][i];
    return sum;
}

static struct nccl_unit make_unit(struct comm_group *g, int pattern, enum dtype dtype)
{
    struct nccl_unit u = {.g = g, .dtype = dtype, .size = dtype_bytes(dtype)};
    for (int k = 0; k < PARTS; k++) {
        for (int i = 0; i < g->n; i++)
            u.counts[k][i] = part_count(pattern, k, i);
        u.parts[k].local = u.local;
        u.local += before(&u, k, g->n) + (g->me + k) % 3;
    }
    for (int k = PARTS - 1; k >= 0; k--) {
        u.parts[k].piece = u.pieces;
        u.pieces += u.counts[k][g->me] + (g->me * 3 + k) % 5;
    }
    return u;
}

/* The lists point into their own struct. */
static void point(struct nccl_unit *u)
{
    for (int k = 0; k < PARTS; k++)
        u->parts[k].counts = u->counts[k];
}

static double value(int member, int k, int64_t i)
{
    return (double)((i * 7 + member * 5 + k * 3) % 23 - 11);
}

static void put(const struct nccl_unit *u, uint8_t *x, int64_t i, double v)
{
    float f = (float)v;
    if (u->dtype == DT_BF16)
        memcpy(x + 2 * i, (const uint8_t *)&f + 2, 2);
    else if (u->dtype == DT_F32)
        memcpy(x + 4 * i, &f, 4);
    else
        memcpy(x + 8 * i, &v, 8);
}

static double get(const struct nccl_unit *u, const uint8_t *x, int64_t i)
{
    float f = 0;
    double v = 0;
    if (u->dtype == DT_BF16)
        memcpy((uint8_t *)&f + 2, x + 2 * i, 2);
    else if (u->dtype == DT_F32)
        memcpy(&f, x + 4 * i, 4);
    else
        memcpy(&v, x + 8 * i, 8);
    return u->dtype == DT_F64 ? v : (double)f;
}

#define GAP 77.0

static uint8_t *fresh(const struct nccl_unit *u, int64_t n)
{
    uint8_t *x = malloc((size_t)n * u->size + 8);
    for (int64_t i = 0; x && i < n; i++)
        put(u, x, i, GAP);
    return x;
}

static void fill_pieces(const struct nccl_unit *u, uint8_t *x)
{
    for (int k = 0; k < PARTS; k++)
        for (int64_t i = 0; i < u->counts[k][u->g->me]; i++)
            put(u, x, u->parts[k].piece + i, value(u->g->me, k, i));
}

static int check_gather(struct rank *r, struct comm_group *g, int pattern, enum dtype dtype)
{
    struct nccl_unit u = make_unit(g, pattern, dtype);
    size_t local_bytes = (size_t)u.local * u.size + 8, piece_bytes = (size_t)u.pieces * u.size + 8;
    uint8_t *pieces = fresh(&u, u.pieces), *local = fresh(&u, u.local), *expected = fresh(&u, u.local);
    point(&u);
    CHECK(pieces && local && expected);
    fill_pieces(&u, pieces);
    for (int k = 0; k < PARTS; k++)
        for (int m = 0; m < g->n; m++)
            for (int64_t i = 0; i < u.counts[k][m]; i++)
                put(&u, expected, u.parts[k].local + before(&u, k, m) + i, value(m, k, i));
    void *from = rank_upload(r, pieces, piece_bytes), *to = rank_upload(r, local, local_bytes);
    CHECK(from && to);
    CHECK(comm_unit_gather(g, r->stream, from, to, u.parts, PARTS, dtype) == OK);
    CHECK(rank_download(r, local, to, local_bytes) == OK);
    CHECK(memcmp(local, expected, (size_t)u.local * u.size) == 0);
    dev_free(r->dev, from, piece_bytes);
    dev_free(r->dev, to, local_bytes);
    free(pieces);
    free(local);
    free(expected);
    return 0;
}

static double sum_at(const struct nccl_unit *u, int k, int64_t i)
{
    double sum = 0;
    for (int m = 0; m < u->g->n; m++)
        sum += value(m, k, i);
    return sum;
}

static int check_pieces(struct rank *r, const struct nccl_unit *u, const uint8_t *pieces, bool add)
{
    uint8_t *expected = fresh(u, u->pieces);
    CHECK(expected);
    fill_pieces(u, expected);
    for (int k = 0; k < PARTS; k++)
        for (int64_t i = 0; i < u->counts[k][u->g->me]; i++) {
            double old = add ? value(u->g->me, k, i) : 0;
            put(u, expected, u->parts[k].piece + i, old + sum_at(u, k, before(u, k, u->g->me) + i));
        }
    for (int64_t i = 0; i < u->pieces; i++)
        CHECK(get(u, pieces, i) == get(u, expected, i));
    free(expected);
    return 0;
}

/* Twice with `add`, so that scratch memory is reused while the first call may still be running. */
static int check_scatter(struct rank *r, struct comm_group *g, int pattern, enum dtype dtype, bool add)
{
    struct nccl_unit u = make_unit(g, pattern, dtype);
    size_t local_bytes = (size_t)u.local * u.size + 8, piece_bytes = (size_t)u.pieces * u.size + 8;
    uint8_t *pieces = fresh(&u, u.pieces), *local = fresh(&u, u.local);
    point(&u);
    CHECK(pieces && local);
    fill_pieces(&u, pieces);
    for (int k = 0; k < PARTS; k++)
        for (int64_t i = 0; i < before(&u, k, g->n); i++)
            put(&u, local, u.parts[k].local + i, value(g->me, k, i));
    void *from = rank_upload(r, local, local_bytes), *to = rank_upload(r, pieces, piece_bytes),
         *other = rank_upload(r, pieces, piece_bytes);
    CHECK(from && to && other);
    CHECK(comm_unit_scatter(g, r->stream, from, to, u.parts, PARTS, dtype, add) == OK);
    CHECK(comm_unit_scatter(g, r->stream, from, other, u.parts, PARTS, dtype, add) == OK);
    CHECK(rank_download(r, pieces, to, piece_bytes) == OK && check_pieces(r, &u, pieces, add) == 0);
    CHECK(rank_download(r, pieces, other, piece_bytes) == OK && check_pieces(r, &u, pieces, add) == 0);
    dev_free(r->dev, from, local_bytes);
    dev_free(r->dev, to, piece_bytes);
    dev_free(r->dev, other, piece_bytes);
    free(pieces);
    free(local);
    return 0;
}

static int gathers(struct rank *r)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F64};
    int rc = 0;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int t = 0; t < 3; t++)
            rc = rc ? rc : check_gather(r, r->all, pattern, types[t]);
    return rc;
}

TEST(gathers_of_units_match_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, gathers);
}

/* There are no kernels for float64, so a scatter cannot add. */
static int scatters(struct rank *r)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F64};
    int rc = 0;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int t = 0; t < 3; t++)
            for (int add = 0; add < (types[t] == DT_F64 ? 1 : 2); add++)
                rc = rc ? rc : check_scatter(r, r->all, pattern, types[t], add);
    return rc;
}

TEST(scatters_of_units_match_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, scatters);
}

static int on_groups(struct rank *r)
{
    static const struct {
        int ranks[3], n;
    } wanted[] = {{{0, 2}, 2}, {{1, 2, 3}, 3}, {{3}, 1}};
    struct comm_group *g[3];
    int rc = 0;
    for (int i = 0; i < 3; i++)
        CHECK(comm_group_new(r->comm, wanted[i].ranks, wanted[i].n, &g[i]) == OK);
    for (int i = 0; i < 3; i++)
        if (g[i]->me >= 0 && !rc)
            rc = check_gather(r, g[i], MIXED, DT_F32) || check_scatter(r, g[i], MIXED, DT_F32, true) ||
                 check_scatter(r, g[i], UNEVEN, DT_BF16, true);
    for (int i = 2; i >= 0; i--)
        comm_group_free(g[i]);
    return rc;
}

TEST(units_of_any_group)
{
    ranks_need_device();
    ranks_run_open(4, on_groups);
}

/* Scratch memory is freed. */
static int reopen(struct rank *r)
{
    int64_t comms, allocations, comms_before, allocations_before;
    bool counted = ranks_count_live(&comms_before, &allocations_before);
    for (uint64_t epoch = 1; epoch <= 4; epoch++) {
        CHECK(rank_open(r, epoch, 20000) == OK);
        CHECK(check_scatter(r, r->all, UNEVEN, DT_F32, true) == 0);
        CHECK(check_scatter(r, r->all, MIXED, DT_F32, true) == 0);
        if (epoch % 2) {
            CHECK(comm_barrier(r->all) == OK);
            comm_abort(r->comm);
            CHECK(comm_unit_gather(r->all, r->stream, NULL, NULL, NULL, 0, DT_F32) == OK);
        }
        rank_close(r);
        CHECK(!counted || ranks_count_live(&comms, &allocations));
        CHECK(!counted || (comms == comms_before && allocations == allocations_before));
    }
    return 0;
}

TEST(scratch_memory_ends_with_its_comm)
{
    ranks_need_device();
    ranks_run(2, reopen);
}
