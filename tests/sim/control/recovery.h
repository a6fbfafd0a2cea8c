/* --recover: the majority of the voters is lost, an administrator recovers the cluster on one that is left, and the
 * lost voters come back later, with their logs. */
#ifndef DTD_TESTS_SIM_CONTROL_RECOVERY_H
#define DTD_TESTS_SIM_CONTROL_RECOVERY_H

#include <stdbool.h>

/* Ends when all nodes are in the recovered cluster. `disks_fail` as for trouble_start. */
void recovery_run(bool disks_fail);

#endif
