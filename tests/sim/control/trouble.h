/* Faults of the whole cluster (schedule.h describes when they happen). */
#ifndef DTD_TESTS_SIM_CONTROL_TROUBLE_H
#define DTD_TESTS_SIM_CONTROL_TROUBLE_H

#include <stdbool.h>

void trouble_start(bool disks_fail);
void trouble_end(void); /* repairs everything permanently */

#endif
