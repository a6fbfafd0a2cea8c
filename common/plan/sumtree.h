/* The fixed binary tree of canonical sums: node [lo, hi) splits at lo + the largest power of two below hi - lo; the
 * root is [0, n). A rank computes a contiguous range of leaves in ascending order and keeps a stack of finished nodes:
 * after each leaf the top two merge while they are siblings. What stays is the range's maximal nodes, left to right;
 * comm_tree_reduce adds those of all ranks. The sum is therefore the same for every way of dealing the leaves. Pure. */
#ifndef DTD_COMMON_PLAN_SUMTREE_H
#define DTD_COMMON_PLAN_SUMTREE_H

#include <stdint.h>

/* More than any stack needs: at most two nodes per level of a tree with 2^62 leaves. */
#define SUMTREE_MAX_NODES 128

struct sumtree_node {
    int64_t lo, hi;
};

/* The nodes on the stack after leaves first .. end-1 of n, bottom (left) first; returns their number. */
int sumtree_nodes(int64_t n, int64_t first, int64_t end, struct sumtree_node ret[SUMTREE_MAX_NODES]);
/* Nodes on the stack just before leaf `leaf` joins; first <= leaf < n. */
int sumtree_height(int64_t n, int64_t first, int64_t leaf);
/* Merges that the arrival of `leaf` sets off; 0: it stays on the stack by itself. */
int sumtree_merges(int64_t n, int64_t first, int64_t leaf);
/* The largest height the stack reaches, merges done: instances of a gradient-sized buffer. 0 for an empty range. */
int sumtree_depth(int64_t n, int64_t first, int64_t end);

#endif
