/* Writes folders that imitate /sys of other machines, with the files that daemon/control/local/topology.c reads. */
#ifndef DTD_TESTS_DAEMON_CONTROL_LOCAL_SYSFS_TREE_H
#define DTD_TESTS_DAEMON_CONTROL_LOCAL_SYSFS_TREE_H

#include "daemon/control/local/topology.h"

#define SYSFS_TREE_NODES 40

struct sysfs_tree {
    int threads; /* number of threads of a physical core */
    int apart;   /* difference between the numbers of its threads: 1: 0,1 2,3 ..; otherwise c, c + apart, .. */
    struct sysfs_tree_node {
        int number;
        const char *cpus, *distance; /* the files' text without the newline; distance NULL: no such file */
    } node[SYSFS_TREE_NODES];        /* the first one with `cpus` NULL ends the list */
};

/* Machines, from the output of `lscpu` and `numactl -H`. */
extern const struct sysfs_tree sysfs_one;          /* 8 cores, no SMT */
extern const struct sysfs_tree sysfs_one_smt;      /* a desktop: 4 cores of 2 threads */
extern const struct sysfs_tree sysfs_two_sockets;  /* 0-15,32-47 and 16-31,48-63 */
extern const struct sysfs_tree sysfs_four_nodes;   /* 4 nodes per socket: 2 EPYC of 64 cores, NPS4 */
extern const struct sysfs_tree sysfs_four_sockets; /* 64 cores without SMT, numbered across the sockets in turn */
extern const struct sysfs_tree sysfs_memory_only;  /* GH200: 72 cores, the GPU's memory as nodes 1 to 8 */
extern const struct sysfs_tree sysfs_gaps;         /* POWER9: nodes 0, 8, 252 to 255; 4 consecutive threads per core */
extern const struct sysfs_tree sysfs_offline;      /* sysfs_two_sockets without 8-15,40-47 and 24; 56 is online */
extern const struct sysfs_tree sysfs_large;        /* 1,152 CPUs in 8 nodes */

/* Writes a file of such a folder: a line of text in root/devices/system/folder/file. */
void sysfs_tree_write_line(const char *root, const char *folder, const char *file, const char *text);
/* Writes the tree into test_tmpdir()/name and returns that path, which the next call overwrites. */
const char *sysfs_tree_write(const struct sysfs_tree *t, const char *name);
/* The topology of the CPUs in a list ("": all CPUs of the tree) on such a machine; fails the test on an error. */
void sysfs_tree_read(const struct sysfs_tree *t, const char *mine, struct topology *ret);

#endif
