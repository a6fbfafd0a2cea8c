/* The canonical tree: a rank's stack against the definition of the tree, and the ranks' sum against one worker's. */
#include "common/base/rng.h"
#include "common/mesh/mesh.h"
#include "tests/common/plan/plan_fixture.h"

#define MAX_LEAVES 40

static int64_t half_of(int64_t n)
{
    int64_t p = 1;
    while (2 * p < n)
        p *= 2;
    return p;
}

/* The oracle: the largest nodes of [first, end) inside node [lo, hi), left to right. */
static int oracle(int64_t lo, int64_t hi, int64_t first, int64_t end, struct sumtree_node *ret)
{
    if (first <= lo && hi <= end) {
        ret[0] = (struct sumtree_node){lo, hi};
        return 1;
    }
    if (hi <= first || end <= lo)
        return 0;
    int64_t mid = lo + half_of(hi - lo);
    int n = oracle(lo, mid, first, end, ret);
    return n + oracle(mid, hi, first, end, ret + n);
}

/* Whether two nodes are the halves of one node, by a search of all nodes. */
static bool are_halves(int64_t lo, int64_t hi, struct sumtree_node a, struct sumtree_node b)
{
    if (hi - lo < 2)
        return false;
    int64_t mid = lo + half_of(hi - lo);
    if (a.lo == lo && a.hi == mid && b.lo == mid && b.hi == hi)
        return true;
    return are_halves(lo, mid, a, b) || are_halves(mid, hi, a, b);
}

TEST(the_stack_is_the_maximal_nodes)
{
    for (int64_t n = 1; n <= MAX_LEAVES; n++)
        for (int64_t first = 0; first < n; first++)
            for (int64_t end = first; end <= n; end++) {
                struct sumtree_node got[SUMTREE_MAX_NODES], want[SUMTREE_MAX_NODES];
                int k = sumtree_nodes(n, first, end, got);
                assert_int_equal(k, first == end ? 0 : oracle(0, n, first, end, want));
                for (int i = 0; i < k; i++)
                    if (got[i].lo != want[i].lo || got[i].hi != want[i].hi)
                        fail_msg("leaves %d to %d of %d: node %d is [%d, %d), not [%d, %d)", (int)first, (int)end,
                                 (int)n, i, (int)got[i].lo, (int)got[i].hi, (int)want[i].lo, (int)want[i].hi);
            }
}

/* The worker's use of height and merges, on nodes instead of numbers. */
TEST(merges_join_siblings_only)
{
    for (int64_t n = 1; n <= MAX_LEAVES; n++)
        for (int64_t first = 0; first < n; first++) {
            struct sumtree_node stack[SUMTREE_MAX_NODES];
            int deepest = 0;
            for (int64_t leaf = first; leaf < n; leaf++) {
                int height = sumtree_height(n, first, leaf), merges = sumtree_merges(n, first, leaf);
                struct sumtree_node right = {leaf, leaf + 1};
                assert_true(merges <= height);
                for (int m = 0; m < merges; m++) {
                    struct sumtree_node left = stack[--height];
                    assert_true(are_halves(0, n, left, right));
                    right = (struct sumtree_node){left.lo, right.hi};
                }
                stack[height++] = right;
                deepest = height > deepest ? height : deepest;
                assert_int_equal(sumtree_depth(n, first, leaf + 1), deepest);
            }
        }
}

static double leaf_value(int64_t i)
{
    return (double)(float)rng_normal(1, 2, (uint64_t)i);
}

/* The definition: the sum along the tree in float32. */
static float tree_sum(int64_t lo, int64_t hi)
{
    if (hi - lo == 1)
        return (float)leaf_value(lo);
    int64_t mid = lo + half_of(hi - lo);
    return tree_sum(lo, mid) + tree_sum(mid, hi);
}

struct held {
    struct sumtree_node node;
    float sum;
};

/* Adds the nodes of all ranks along the tree. */
static float join(int64_t lo, int64_t hi, const struct held *held, int n)
{
    for (int i = 0; i < n; i++)
        if (held[i].node.lo == lo && held[i].node.hi == hi)
            return held[i].sum;
    assert_true(hi - lo >= 2);
    int64_t mid = lo + half_of(hi - lo);
    return join(lo, mid, held, n) + join(mid, hi, held, n);
}

TEST(any_number_of_ranks_gets_the_same_bits)
{
    for (int64_t n = 1; n <= MAX_LEAVES; n += 3)
        for (int ranks = 1; ranks <= 9; ranks++) {
            struct held held[16 * 9];
            int n_held = 0;
            for (int r = 0; r < ranks; r++) {
                int64_t first, end;
                layout_split(n, ranks, r, &first, &end);
                float stack[SUMTREE_MAX_NODES];
                struct sumtree_node nodes[SUMTREE_MAX_NODES];
                for (int64_t leaf = first; leaf < end; leaf++) {
                    int h = sumtree_height(n, first, leaf), c = sumtree_merges(n, first, leaf);
                    float x = (float)leaf_value(leaf);
                    if (c == 0)
                        stack[h] = x;
                    else
                        stack[h - 1] += x;
                    for (int k = 1; k < c; k++)
                        stack[h - 1 - k] += stack[h - k];
                }
                int k = sumtree_nodes(n, first, end, nodes);
                for (int i = 0; i < k; i++)
                    held[n_held++] = (struct held){nodes[i], stack[i]};
            }
            assert_true(join(0, n, held, n_held) == tree_sum(0, n));
        }
}

TEST(depth_grows_with_the_logarithm)
{
    assert_int_equal(sumtree_depth(8, 0, 8), 3);
    assert_int_equal(sumtree_depth(1, 0, 1), 1);
    assert_int_equal(sumtree_depth(8, 4, 4), 0);
    assert_int_equal(sumtree_depth(1 << 12, 0, 1 << 12), 12);
    assert_true(sumtree_depth(1000, 333, 667) <= 2 * 10);
}
