/* The canonical sum's tree over the leaves 0 .. n-1, and its evaluation for a block of elements: shared with the
 * backend that sums over several nodes (worker/comm/hier). No state of its own. */
#ifndef DTD_WORKER_COMM_SHM_TREE_H
#define DTD_WORKER_COMM_SHM_TREE_H

#include "worker/comm/shm/shm.h"

#define SHM_TREE_BLOCK 2048 /* elements that are evaluated at once */
#define SHM_TREE_DEPTH 63

/* A finished node [lo, hi) and where its elements are, from element 0 on. */
struct shm_held {
    int64_t lo, hi;
    const uint8_t *data;
};

struct shm_tree {
    struct shm_held *nodes; /* of all ranks, by lo */
    int n_nodes;
    enum dtype dtype;
    int64_t at, m;  /* the block: elements [at, at + m) */
    uint8_t *stack; /* SHM_TREE_DEPTH blocks of eight bytes an element */
};

int64_t shm_tree_middle(int64_t lo, int64_t hi);
void shm_tree_sort(struct shm_tree *t);
/* Whether [lo, hi) can be built; counts the held nodes it uses. */
bool shm_tree_covered(const struct shm_tree *t, int64_t lo, int64_t hi, int *used);
/* The block of node [lo, hi): where it is held, or computed into the stack's level `depth`. */
const uint8_t *shm_tree_evaluate(const struct shm_tree *t, int64_t lo, int64_t hi, int depth);

#endif
