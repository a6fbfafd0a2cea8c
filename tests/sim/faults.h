/* What goes wrong: a table of faults, each with its chance per seed and its end. A seed takes some of them, so that a
 * run may be all about disks, or all about the network. */
#ifndef DTD_TESTS_SIM_FAULTS_H
#define DTD_TESTS_SIM_FAULTS_H

#include "tests/sim/world.h"

void faults_start(void);
void faults_end(void); /* everything is whole again, and everybody up */
uint64_t faults_happened(void);

#endif
