/* Clients of the simulated cluster: each asks any daemon by control.sock, and asks again, somewhere, under the same
 * request id until it has an answer. */
#ifndef DTD_TESTS_SIM_CONTROL_PEOPLE_H
#define DTD_TESTS_SIM_CONTROL_PEOPLE_H

#include "tests/sim/world.h"

/* `commands`: a part of the jobs are commands. */
void people_start(int n, bool commands);
/* Nothing new but what is left to be answered; nodes are not drained any more; at last a job that needs all slots. */
void people_finish(void);
bool people_are_done(void);
uint64_t people_answered(void);

#endif
