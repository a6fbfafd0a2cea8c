/* The topology of the CPUs that this process may use: the NUMA node of each, and which of them are threads of one
 * physical core (SMT siblings). It is read from sysfs once, before the loop runs, and does not change afterwards. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_TOPOLOGY_H
#define DTD_DAEMON_CONTROL_LOCAL_TOPOLOGY_H

#include "common/base/err.h"
#include "daemon/supervisor/channel.h"

#include <stdint.h>

/* Linux on x86 supports 64 nodes in its usual build. The largest machines have 32 sockets of 2 nodes; a GPU whose
 * memory the processor can address adds up to 9 nodes without CPUs. */
#define TOPOLOGY_MAX_NODES 128

struct topology {
    int n_cpus;
    struct topology_cpu {
        int number;               /* the kernel's */
        int node;                 /* index into `node` */
        int core;                 /* index into `cpu`: the first thread of the same physical core */
    } cpu[CHANNEL_MAX_CPUS];      /* ascending by number */
    int n_nodes;                  /* online nodes, including those without any of our CPUs */
    int n_cpu_nodes;              /* nodes that contain at least one of our CPUs */
    int node[TOPOLOGY_MAX_NODES]; /* the kernel's numbers, ascending */
    uint8_t distance[TOPOLOGY_MAX_NODES][TOPOLOGY_MAX_NODES]; /* from the firmware; 10: the node itself */
};

/* The topology that is assumed without data from sysfs: one node 0, and each CPU of `cpus` is a physical core. */
void topology_init(struct topology *t, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
/* Reads the topology of the CPUs of `t` from the folder `sysfs` (path_sysfs). A CPU without a list of siblings is a
 * physical core of its own; a node without distances is equally far from all others. ERR_NOTFOUND: sysfs has no nodes;
 * ERR_CORRUPT, ERR_LIMIT: its files are not usable, and `why` names them. On an error `t` does not change. Blocks on
 * files. */
NODISCARD err_t topology_read(struct topology *t, const char *sysfs, struct why *why);
/* Parses the text of a node's `distance`, "10 21 31 31\n": numbers from 10 to 255, one for each of the n online nodes
 * in ascending order of their numbers. ERR_CORRUPT: the text is different; then `ret` (n bytes) does not change. */
NODISCARD err_t topology_parse_distances(const char *text, int n, uint8_t *ret);
/* The index of the node with this number of the kernel; -1: none. */
int topology_find(const struct topology *t, int number);
/* The CPUs of `t` in the node with index `node`. */
void topology_node_cpus(const struct topology *t, int node, uint8_t ret[CHANNEL_MAX_CPUS / 8]);

#endif
