/* The fixed binary tree of canonical sums. Node [lo, hi) splits at lo + the largest power of two below hi - lo; the
 * root is [0, n):
 *
 *   n = 6:            [0,6)
 *                  /         \
 *               [0,4)       [4,6)
 *              /     \      /    \
 *           [0,2)  [2,4)  [4,5) [5,6)
 *
 * A rank computes a contiguous range of leaves in ascending order and keeps a stack of finished nodes: after each leaf
 * the top two nodes merge while they are siblings. The nodes that remain are the largest ones in the range, left to
 * right, and comm_tree_reduce adds those of all ranks. Every distribution of the leaves therefore gives the same sum,
 * bit by bit. Pure. */
#ifndef DTD_COMMON_PLAN_SUMTREE_H
#define DTD_COMMON_PLAN_SUMTREE_H

#include <stdint.h>

/* A stack holds at most two nodes per level, and a tree of 2^62 leaves has 62 levels below its root. */
#define SUMTREE_MAX_NODES 128

struct sumtree_node {
    int64_t lo, hi;
};

/* The nodes on the stack after leaves first .. end-1 of n, bottom (left) first. Returns their number. */
int sumtree_nodes(int64_t n, int64_t first, int64_t end, struct sumtree_node ret[SUMTREE_MAX_NODES]);
/* Nodes on the stack just before `leaf` is pushed; first <= leaf < n. */
int sumtree_height(int64_t n, int64_t first, int64_t leaf);
/* Merges after `leaf` is pushed; 0: it stays on the stack by itself. */
int sumtree_merges(int64_t n, int64_t first, int64_t leaf);
/* The largest height of the stack after merges, which is the number of gradient-sized buffers that a rank needs. 0 for
 * an empty range. */
int sumtree_depth(int64_t n, int64_t first, int64_t end);

#endif
