/* Faults of voters (schedule.h describes when they happen). */
#ifndef DTD_TESTS_SIM_FAULTS_H
#define DTD_TESTS_SIM_FAULTS_H

#include "tests/sim/world.h"

#include <stdbool.h>

void faults_start(bool disks_fail);
void faults_end(void); /* repairs everything and starts all hosts */

#endif
