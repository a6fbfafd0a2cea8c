/* Nodes of a large cluster that are not simulated in full: each calls the leader as a follower does (Join, Hello,
 * Commands, Report, Beat), by the real common/rpc, and fetches and serves the view, but has no control, no log and no
 * jobs. Nodes with the same view share it. None of them must become a voter, so there have to be enough nodes with
 * control and a smaller number. */
#ifndef DTD_TESTS_SIM_CONTROL_CROWD_H
#define DTD_TESTS_SIM_CONTROL_CROWD_H

#include "tests/sim/world.h"

/* Nodes with the numbers `first` to `last`, after the computers with a control. They connect to nodes 1 to `doors`. */
void crowd_init(int first, int last, int doors);
/* All begin to join within `within_us`. */
void crowd_start(int64_t within_us);
/* The first of them is of version 1, without changes of the view; it begins to join at once. */
void crowd_has_old_node(void);
/* Each second one serves a false view. */
void crowd_has_liars(void);
struct cluster;
bool crowd_is_deceived(const struct cluster *c); /* it has taken one */
/* The node loses its power. */
void crowd_kill(int id);
int crowd_following(int leader); /* number of nodes that follow it */
int crowd_having(uint64_t hash); /* number of those with the view of this hash */

#endif
