/* All four functions run the same stack, so the worker and the plan cannot count differently. siblings() walks from the
 * root, at most 62 steps. */
#include "common/plan/sumtree.h"

#include <assert.h>
#include <stdbool.h>

/* lo + the largest power of two below hi - lo; hi - lo >= 2. */
static int64_t split(int64_t lo, int64_t hi)
{
    int64_t half = 1;
    while (half * 2 < hi - lo)
        half *= 2;
    return lo + half;
}

/* Whether [a, m) and [m, b) are the two halves of a node. */
static bool siblings(int64_t n, int64_t a, int64_t m, int64_t b)
{
    int64_t lo = 0, hi = n;
    while (hi - lo >= b - a && hi - lo > 1) {
        int64_t mid = split(lo, hi);
        if (lo == a && hi == b)
            return mid == m;
        if (b <= mid)
            hi = mid;
        else if (a >= mid)
            lo = mid;
        else
            return false;
    }
    return false;
}

/* Returns the number of merges. */
static int push_leaf(int64_t n, int64_t leaf, struct sumtree_node *stack, int *height)
{
    int merges = 0;
    assert(*height < SUMTREE_MAX_NODES);
    stack[(*height)++] = (struct sumtree_node){leaf, leaf + 1};
    while (*height >= 2) {
        struct sumtree_node *left = &stack[*height - 2], *right = &stack[*height - 1];
        if (!siblings(n, left->lo, right->lo, right->hi))
            break;
        left->hi = right->hi;
        (*height)--;
        merges++;
    }
    return merges;
}

int sumtree_nodes(int64_t n, int64_t first, int64_t end, struct sumtree_node ret[SUMTREE_MAX_NODES])
{
    int height = 0;
    for (int64_t leaf = first; leaf < end; leaf++)
        push_leaf(n, leaf, ret, &height);
    return height;
}

int sumtree_height(int64_t n, int64_t first, int64_t leaf)
{
    struct sumtree_node stack[SUMTREE_MAX_NODES];
    return sumtree_nodes(n, first, leaf, stack);
}

int sumtree_merges(int64_t n, int64_t first, int64_t leaf)
{
    struct sumtree_node stack[SUMTREE_MAX_NODES];
    int height = sumtree_nodes(n, first, leaf, stack);
    return push_leaf(n, leaf, stack, &height);
}

int sumtree_depth(int64_t n, int64_t first, int64_t end)
{
    struct sumtree_node stack[SUMTREE_MAX_NODES];
    int height = 0, depth = 0;
    for (int64_t leaf = first; leaf < end; leaf++) {
        push_leaf(n, leaf, stack, &height);
        depth = height > depth ? height : depth;
    }
    return depth;
}
