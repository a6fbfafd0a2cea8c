/* Sums over several NUMA nodes of one machine, with one crossing of each border instead of one per member.
 *
 * A group is divided into nodes if its members lie in several NUMA nodes, each node has equally many of them, at least
 * two, and they are consecutive. Member i of node k is member k * per + i of the group. Members with the same i form a
 * column. A column sums one part of the elements: its member in node 0 adds the buffers of that node, its member in
 * node 1 continues with the partial sum, and so on. The sum so has the order of the ranks and the bits of any other
 * form. The elements are cut into blocks, which follow each other through the nodes; a barrier ends each step.
 *
 * Bytes over borders, for n members, K nodes and a buffer of S bytes on each member:
 *
 *                       each member reads all others    through the nodes
 *     all-reduce        2 (n - n/K) S                   2 (K - 1) S
 *     reduce-scatter      (n - n/K) S                     (K - 1) (1 + 1/K) S
 */
#ifndef DTD_WORKER_COMM_SHM_NODES_H
#define DTD_WORKER_COMM_SHM_NODES_H

#include "worker/comm/shm/shm.h"

/* Whether a sum of n elements per column goes through the nodes: the group is divided, and there are enough blocks to
 * keep all nodes busy. All buffers must be shared. */
bool shm_nodes_pay(const struct comm_group *g, int64_t n, enum dtype dtype);
/* Elements of a block: of those that a column processes in a step. */
int64_t shm_nodes_block(int64_t n, enum dtype dtype);
/* The partial sum of this rank in this step, and of the member of its column in the node before in the last step. */
uint8_t *shm_nodes_partial(const struct comm_group *g, int64_t step);
const uint8_t *shm_nodes_partial_before(const struct comm_group *g, int64_t step, int node);
/* Adds the sources of this node's members to the partial sum of the node before (none in node 0), from element `at` of
 * this rank's partial sum on. */
void shm_nodes_add(const struct comm_group *g, int64_t step, int64_t at, const void *const *src, int64_t n,
                   enum dtype dtype, enum reduce_op op);
/* The same sum in all members' buffers of n elements. */
err_t shm_nodes_all_reduce(struct comm_group *g, uint8_t *x, int64_t n, enum dtype dtype, enum reduce_op op);

#endif
