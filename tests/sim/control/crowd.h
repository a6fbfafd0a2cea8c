/* Nodes of a large cluster that are not simulated in full: each calls the leader as a follower does (Join, Hello,
 * Commands, Report, Beat), by the real common/rpc, but has no control, no log and no jobs, and of the view it keeps the
 * hash. None of them must become a voter, so there have to be enough nodes with control and a smaller number. */
#ifndef DTD_TESTS_SIM_CONTROL_CROWD_H
#define DTD_TESTS_SIM_CONTROL_CROWD_H

#include "tests/sim/world.h"

/* Nodes with the numbers `first` to `last`, after the computers with a control. They connect to nodes 1 to `doors`. */
void crowd_init(int first, int last, int doors);
/* All begin to join within `within_us`. */
void crowd_start(int64_t within_us);
/* The first of them is of a version without changes of the view; it begins to join at once. */
void crowd_has_old_node(void);
/* The node loses its power. */
void crowd_kill(int id);
int crowd_following(int leader); /* number of nodes that follow it */

#endif
