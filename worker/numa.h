/* The NUMA nodes whose cores this worker may use. They are read once, when the process starts: its binding does not
 * change afterwards. */
#ifndef DTD_WORKER_NUMA_H
#define DTD_WORKER_NUMA_H

#include "common/base/err.h"

#include <stdint.h>

#define NUMA_MAX_NODES 1024 /* the most that Linux can be built for (CONFIG_NODES_SHIFT 10) */

struct numa {
    uint8_t nodes[NUMA_MAX_NODES / 8]; /* bit set of the kernel's numbers */
    int n_nodes;                       /* 0: sysfs has none */
    int home;                          /* the number of the only node; -1: several, or not known */
};

/* Reads the nodes of the calling thread's cores from sysfs (path_sysfs). Blocks on files. */
void numa_init(struct numa *n);
/* Takes pages that the calling thread, and threads it starts later, allocate from now on from all nodes of `n` in turn.
 * A page is otherwise taken from the node of the thread that writes it first: one thread would put all memory of a
 * worker of several nodes into one of them. No effect with less than two nodes. ERR_UNSUPPORTED: the operating system
 * does not permit it. */
NODISCARD err_t numa_interleave(const struct numa *n);

#endif
