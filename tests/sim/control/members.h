/* --members: during faults, nodes leave the cluster, are removed while they are down, or are evicted, and join again
 * under their names, while the cluster's key is rotated. */
#ifndef DTD_TESTS_SIM_CONTROL_MEMBERS_H
#define DTD_TESTS_SIM_CONTROL_MEMBERS_H

#include <stdbool.h>

/* Ends when all nodes are in the cluster. `disks_fail` as for trouble_start. */
void members_run(bool disks_fail);

#endif
