/* What goes wrong with voters (schedule.h says how). */
#ifndef DTD_TESTS_SIM_FAULTS_H
#define DTD_TESTS_SIM_FAULTS_H

#include "tests/sim/world.h"

void faults_start(void);
void faults_end(void); /* everything is whole again, and everybody up */

#endif
