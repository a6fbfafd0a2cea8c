/* The plan of an exchange of rows, for 100,000 loads: usual, adversarial, with ranks without tokens. Its promises are
 * counted here from the definition, row by row. */
#include "common/base/rng.h"
#include "common/mesh/mesh.h"
#include "common/plan/exchange.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

#define MAX_MEMBERS 9
#define MAX_EXPERTS 40

struct load {
    int members;
    int64_t experts;
    int32_t offsets[MAX_MEMBERS * (MAX_EXPERTS + 1)];
    int64_t rows; /* of all members */
};

/* The number of rows of a sender for an expert. A kind is a shape of loads: even; heavy tails; all to one expert; all
 * to the experts of one rank; few senders. */
static int64_t rows_of(uint64_t seed, int kind, const struct load *l, int sender, int64_t expert)
{
    const double u = rng_uniform(seed, 7, (uint64_t)(sender * 1000 + expert));
    const int64_t n = (l->experts + l->members - 1) / l->members, hot = (int64_t)(seed % (uint64_t)l->experts);
    switch (kind) {
    case 0:
        return (int64_t)(u * 9);
    case 1:
        return (int64_t)(exp(6 * u * u * u) - 1);
    case 2:
        return expert == hot ? 1 + (int64_t)(u * 50) : 0;
    case 3:
        return expert / n == hot / n ? (int64_t)(u * 50) : 0;
    default:
        return sender == hot % l->members ? (int64_t)(u * 30) : 0;
    }
}

static void draw(uint64_t seed, struct load *l)
{
    l->members = 1 + (int)(rng_uniform(seed, 1, 0) * MAX_MEMBERS);
    l->experts = l->members + (int64_t)(rng_uniform(seed, 2, 0) * (MAX_EXPERTS - l->members + 1));
    l->rows = 0;
    for (int i = 0; i < l->members; i++) {
        int32_t *of = l->offsets + i * (l->experts + 1);
        const bool none = rng_uniform(seed, 3, (uint64_t)i) < 0.1;
        of[0] = 0;
        for (int64_t e = 0; e < l->experts; e++)
            of[e + 1] = of[e] + (none ? 0 : (int32_t)rows_of(seed, (int)(seed % 5), l, i, e));
        l->rows += of[l->experts];
    }
}

static int64_t sent(const struct load *l, int from, int64_t expert)
{
    const int32_t *of = l->offsets + from * (l->experts + 1);
    return of[expert + 1] - of[expert];
}

static int home_of(const struct load *l, int64_t expert)
{
    for (int i = 0;; i++) {
        int64_t lo, hi;
        layout_split(l->experts, l->members, i, &lo, &hi);
        if (expert < hi)
            return i;
    }
}

/* Every row of every expert is computed once; own experts come first; borrowed ones are those of one rank, in ascending
 * order, in no more slots than there are. */
static void check_shares(const struct load *l, const struct exchange *x)
{
    static uint8_t taken[MAX_EXPERTS][1 << 16];
    for (int64_t e = 0; e < l->experts; e++)
        memset(taken[e], 0, (size_t)l->rows + 1);
    for (int i = 0; i < l->members; i++) {
        const struct exchange_share *s = exchange_shares(x, i);
        int64_t lo, hi, rows = 0;
        layout_split(l->experts, l->members, i, &lo, &hi);
        assert_in_range(x->shares[i], hi - lo, hi - lo + exchange_slots(l->members, l->experts, i));
        for (int64_t k = 0; k < x->shares[i]; k++) {
            rows += s[k].rows;
            if (k < hi - lo)
                assert_int_equal(s[k].expert, lo + k);
            else
                assert_true(s[k].rows > 0 && home_of(l, s[k].expert) == x->lender[i] && x->lender[i] != i);
            if (k > hi - lo)
                assert_true(s[k].expert > s[k - 1].expert);
            for (int64_t r = s[k].first; r < s[k].first + s[k].rows; r++)
                assert_int_equal(taken[s[k].expert][r]++, 0);
        }
        assert_int_equal(rows, x->rows[i]);
    }
    for (int64_t e = 0; e < l->experts; e++) {
        int64_t n = 0;
        for (int i = 0; i < l->members; i++)
            n += sent(l, i, e);
        for (int64_t r = 0; r < n; r++)
            assert_int_equal(taken[e][r], 1);
        assert_int_equal(taken[e][n], 0);
    }
}

/* Every rank computes its part of all rows, and no rank that borrows lends what it has borrowed. */
static void check_balanced(const struct load *l, const struct exchange *x)
{
    int moves = 0;
    for (int i = 0; i < l->members; i++) {
        int64_t lo, hi;
        layout_split(l->rows, l->members, i, &lo, &hi);
        assert_int_equal(x->rows[i], hi - lo);
        moves += x->lender[i] >= 0;
    }
    assert_in_range(moves, 0, l->members - 1);
}

/* Follows every row by hand: a sender's rows carry (sender, expert, row of the sender for the expert); what arrives at
 * each rank, put into the order of `index`, must be its shares in their order. */
static void check_orders(const struct load *l, struct exchange *x)
{
    enum { MOST = 1 << 16 };
    static struct row {
        int from;
        int64_t expert, row;
    } home[MAX_MEMBERS][MOST], arrived[MOST];
    static int32_t moved[MOST], index[MOST], inverse[MOST], offsets[2 * MAX_EXPERTS + 2];
    for (int i = 0; i < l->members; i++) {
        x->me = i;
        exchange_home(x, moved);
        for (int64_t e = 0, r = 0; e < l->experts; e++)
            for (int64_t k = 0; k < sent(l, i, e); k++, r++)
                home[i][moved[r]] = (struct row){i, e, k};
    }
    for (int to = 0; to < l->members; to++) {
        int64_t n = 0, at = 0, lo, hi;
        for (int from = 0; from < l->members; from++) {
            int64_t first = 0, rows = exchange_rows(x, from, to);
            for (int k = 0; k < to; k++)
                first += exchange_rows(x, from, k);
            for (int64_t r = 0; r < rows; r++)
                arrived[n++] = home[from][first + r];
        }
        assert_int_equal(n, x->rows[to]);
        x->me = to;
        exchange_order(x, index, inverse, offsets);
        layout_split(l->experts, l->members, to, &lo, &hi);
        const int64_t all = hi - lo + exchange_slots(l->members, l->experts, to);
        for (int64_t k = 0; k < all; k++) {
            const struct exchange_share *s = &exchange_shares(x, to)[k];
            const bool there = k < x->shares[to];
            assert_int_equal(offsets[k], at);
            for (int64_t r = 0; there && r < s->rows; r++, at++) {
                const struct row *row = &arrived[index[at]];
                int64_t before = 0;
                for (int from = 0; from < row->from; from++)
                    before += sent(l, from, s->expert);
                assert_int_equal(row->expert, s->expert);
                assert_int_equal(before + row->row, s->first + r);
                assert_int_equal(inverse[index[at]], at);
            }
        }
        assert_int_equal(offsets[all], at);
        assert_int_equal(at, n);
    }
}

/* Rounds of `rows` rows: what each rank computes of its rows, in their order, and where the home rows of a round stand:
 * behind those of all rounds before it, for one rank after another. */
static void check_rounds(const struct load *l, struct exchange *x, bool balanced, int64_t rows)
{
    enum { MOST = 1 << 16 };
    static int32_t moved[MOST];
    static uint8_t met[MOST];
    for (int me = 0; me < l->members; me++) {
        int64_t before = 0, all = 0;
        memset(met, 0, sizeof(met));
        x->me = me;
        exchange_plan(x, l->offsets, balanced);
        for (int i = 0; i < l->members; i++)
            all = x->rows[i] > all ? x->rows[i] : all;
        for (int64_t first = 0; first < all + rows; first += rows) {
            exchange_plan(x, l->offsets, balanced);
            int64_t whole = x->rows[me], expected = whole < first ? 0 : whole - first < rows ? whole - first : rows;
            exchange_round(x, first, rows);
            assert_int_equal(x->rows[me], expected);
            assert_int_equal(x->before, before);
            memset(moved, -1, sizeof(moved));
            exchange_home(x, moved);
            for (int to = 0; to < l->members; to++)
                before += exchange_rows(x, me, to);
            for (int64_t r = 0; r < exchange_home_rows(x, me); r++)
                if (moved[r] >= 0) {
                    assert_in_range(moved[r], x->before, before - 1);
                    assert_int_equal(met[moved[r]]++, 0);
                }
        }
        assert_int_equal(before, exchange_home_rows(x, me));
    }
}

static void check_load(uint64_t seed, bool balanced)
{
    static struct load l;
    struct exchange x;
    draw(seed, &l);
    assert_in_range(l.rows, 0, (1 << 16) - 1);
    assert_ok(exchange_init(&x, l.members, l.experts));
    exchange_plan(&x, l.offsets, balanced);
    if (seed / 5 % 10 == 0)
        check_shares(&l, &x);
    if (balanced)
        check_balanced(&l, &x);
    else
        for (int i = 0; i < l.members; i++)
            assert_int_equal(x.lender[i], -1);
    if (seed / 5 % 20 == 0)
        check_orders(&l, &x);
    if (seed / 5 % 50 == 0)
        check_rounds(&l, &x, balanced, 1 + (int64_t)(seed % 37) * 8);
    exchange_fini(&x);
}

TEST(balanced_ranks_compute_equally_many_rows)
{
    for (uint64_t seed = 0; seed < 100000; seed++)
        check_load(seed, true);
}

TEST(routed_rows_go_to_the_ranks_of_their_experts)
{
    for (uint64_t seed = 0; seed < 10000; seed++)
        check_load(seed, false);
}

/* By hand: ranks of two experts with 8, 0 and 1 rows. Rank 1 lacks most, 3 rows, and takes them from the expert with 6;
 * rank 2 lacks 2 and takes them from the same one, which has 3 left, more than the 2 of the other. */
TEST(a_load_of_three_ranks)
{
    const int32_t offsets[] = {0, 3, 4, 4, 4, 4, 5, 0, 3, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0};
    struct exchange x;
    assert_ok(exchange_init(&x, 3, 6));
    exchange_plan(&x, offsets, true);
    const struct exchange_share expected[3][3] = {
        {{0, 0, 1}, {1, 0, 2}}, {{2, 0, 0}, {3, 0, 0}, {0, 3, 3}}, {{4, 0, 0}, {5, 0, 1}, {0, 1, 2}}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(x.rows[i], 3);
        assert_int_equal(x.shares[i], i ? 3 : 2);
        assert_int_equal(x.lender[i], i ? 0 : -1);
        for (int64_t k = 0; k < x.shares[i]; k++)
            assert_memory_equal(&exchange_shares(&x, i)[k], &expected[i][k], sizeof(expected[i][k]));
    }
    exchange_fini(&x);
}

/* By hand: rank 0 has five rows of expert 0, the first three its own, and two of expert 1, both of rank 1. In rounds of
 * three it computes its own rows of expert 0; then those of rank 1, and one of expert 1; then the other one. */
TEST(rounds_of_a_rank)
{
    const int32_t offsets[] = {0, 3, 3, 4, 4, 0, 2, 4, 4, 4};
    const struct exchange_share expected[3][2] = {
        {{0, 0, 3}, {1, 0, 0}}, {{0, 3, 2}, {1, 0, 1}}, {{0, 5, 0}, {1, 1, 1}}};
    const int64_t before[] = {0, 0, 3}; /* of rank 1 */
    struct exchange x;
    assert_ok(exchange_init(&x, 2, 4));
    x.me = 1;
    for (int round = 0; round < 3; round++) {
        exchange_plan(&x, offsets, false);
        exchange_round(&x, 3 * round, 3);
        assert_memory_equal(exchange_shares(&x, 0), expected[round], sizeof(expected[round]));
        assert_int_equal(x.rows[0], round < 2 ? 3 : 1);
        assert_int_equal(x.rows[1], round ? 0 : 1);
        assert_int_equal(x.before, before[round]);
    }
    exchange_fini(&x);
}

/* Of equally empty ranks the lower one is first, and of experts with equally many rows. */
TEST(ties_go_to_the_lower)
{
    const int32_t ranks[] = {0, 6, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0};
    const int32_t experts[] = {0, 4, 8, 8, 8, 0, 0, 0, 0, 0};
    struct exchange x;
    assert_ok(exchange_init(&x, 3, 3));
    exchange_plan(&x, ranks, true);
    assert_int_equal(exchange_shares(&x, 1)[1].first, 4);
    assert_int_equal(exchange_shares(&x, 2)[1].first, 2);
    exchange_fini(&x);
    assert_ok(exchange_init(&x, 2, 4));
    exchange_plan(&x, experts, true);
    assert_int_equal(x.shares[1], 3);
    assert_int_equal(exchange_shares(&x, 1)[2].expert, 0);
    assert_int_equal(exchange_shares(&x, 1)[2].rows, 4);
    exchange_fini(&x);
}
