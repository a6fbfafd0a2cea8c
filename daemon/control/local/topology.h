/* Where the CPUs that this process may use lie: in which NUMA node, and which of them are threads of one physical core
 * (SMT siblings). Read from sysfs once, before the loop runs; a constant from then on. Owned by whoever embeds it. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_TOPOLOGY_H
#define DTD_DAEMON_CONTROL_LOCAL_TOPOLOGY_H

#include "common/base/err.h"
#include "daemon/supervisor/channel.h"

#include <stdint.h>

/* Linux on x86 has room for 64 nodes unless it is built for more; the largest machines have 32 sockets of 2 nodes, and
 * a GPU whose memory the processor addresses brings up to 9 nodes without a CPU. */
#define TOPOLOGY_MAX_NODES 128

struct topology {
    int n_cpus;
    struct topology_cpu {
        int number;          /* the kernel's */
        int node;            /* index into `node` */
        int core;            /* index into `cpu`: the first thread of the same physical core */
    } cpu[CHANNEL_MAX_CPUS]; /* ascending by number */
    int n_nodes, n_cpu_nodes;
    int node[TOPOLOGY_MAX_NODES];                             /* the kernel's numbers, ascending; CPUs of ours or not */
    uint8_t distance[TOPOLOGY_MAX_NODES][TOPOLOGY_MAX_NODES]; /* as firmware tells; 10: the node itself */
};

/* What is assumed of a machine that tells nothing: one node 0, and each CPU of `cpus` a core of its own. */
void topology_init(struct topology *t, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
/* What `sysfs` (path_sysfs) says of the CPUs of `t`. A CPU without a list of siblings is a core of its own; a node
 * without distances is equally far from all others. ERR_NOTFOUND: nothing about nodes is there; ERR_CORRUPT and
 * ERR_LIMIT with a sentence: what it says is of no use. Then `t` has not changed. Blocks on the files. */
NODISCARD err_t topology_read(struct topology *t, const char *sysfs, struct why *why);
/* The text of a node's `distance`, "10 21 31 31\n": numbers from 10 to 255, one for each of the n nodes that are
 * online, ascending by their numbers. ERR_CORRUPT: it is something else, and `ret` (n bytes) has not changed. */
NODISCARD err_t topology_parse_distances(const char *text, int n, uint8_t *ret);
/* Index of the node with the kernel's number; -1: there is none. */
int topology_find(const struct topology *t, int number);
/* The CPUs of ours that lie in node index `node`. */
void topology_node_cpus(const struct topology *t, int node, uint8_t ret[CHANNEL_MAX_CPUS / 8]);

#endif
