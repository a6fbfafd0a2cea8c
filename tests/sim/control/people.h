/* Clients of the simulated cluster. Each sends requests to any daemon's control.sock and repeats an unanswered one, at
 * some daemon, under the same request id. */
#ifndef DTD_TESTS_SIM_CONTROL_PEOPLE_H
#define DTD_TESTS_SIM_CONTROL_PEOPLE_H

#include "tests/sim/world.h"

/* `commands`: some of the jobs are commands. */
void people_start(int n, bool commands);
/* Sends only requests that are still unanswered, then undrains all nodes, then submits a job that needs all slots. */
void people_finish(void);
bool people_are_done(void);
uint64_t people_answered(void);

#endif
