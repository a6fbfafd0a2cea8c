/* Clients of the simulated cluster. Each sends requests to any daemon's control.sock and repeats an unanswered one, at
 * some daemon, under the same request id. */
#ifndef DTD_TESTS_SIM_CONTROL_PEOPLE_H
#define DTD_TESTS_SIM_CONTROL_PEOPLE_H

#include "tests/sim/world.h"

/* `commands`: some of the jobs are commands. */
void people_start(int n, bool commands);
/* Sends only requests that are still unanswered, then undrains all nodes, then submits a job that needs all slots. */
void people_finish(void);
/* One of them submits a job for all slots, which may run with fewer. */
void people_submit_wide(void);
/* Keys are rotated, too. */
void people_rotate(void);
/* Nodes are not drained: each can be a voter. */
void people_never_drain(void);
/* One of them removes this node, although it is up. */
void people_evict(int id);
bool people_have_evicted(void);
bool people_are_done(void);
uint64_t people_answered(void);

#endif
