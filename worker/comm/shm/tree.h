/* The tree of a canonical sum over the leaves 0 .. n-1 (comm_tree_reduce), and its evaluation for a block of elements.
 * The backend for several nodes (worker/comm/hier) uses it as well. All state is in the caller's struct shm_tree. */
#ifndef DTD_WORKER_COMM_SHM_TREE_H
#define DTD_WORKER_COMM_SHM_TREE_H

#include "worker/comm/shm/shm.h"

#define SHM_TREE_BLOCK 2048 /* elements evaluated at once */
#define SHM_TREE_DEPTH 63   /* the tree's greatest depth: leaf numbers are int64_t */

/* A finished node [lo, hi) and the address of its elements, beginning with element 0. */
struct shm_held {
    int64_t lo, hi;
    const uint8_t *data;
};

struct shm_tree {
    struct shm_held *nodes; /* of all ranks, sorted by lo */
    int n_nodes;
    enum dtype dtype;
    int64_t at, m;  /* the block to evaluate: elements [at, at + m) */
    uint8_t *stack; /* SHM_TREE_DEPTH blocks of SHM_TREE_BLOCK elements, eight bytes each */
};

/* Where node [lo, hi) is split into its two children. */
int64_t shm_tree_middle(int64_t lo, int64_t hi);
void shm_tree_sort(struct shm_tree *t);
/* Whether node [lo, hi) can be built from the held nodes; adds the number of held nodes that it uses to *used. */
bool shm_tree_covered(const struct shm_tree *t, int64_t lo, int64_t hi, int *used);
/* Returns the block of node [lo, hi): the held elements, or a result computed in level `depth` of the stack. */
const uint8_t *shm_tree_evaluate(const struct shm_tree *t, int64_t lo, int64_t hi, int depth);

#endif
