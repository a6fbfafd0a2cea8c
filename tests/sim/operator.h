/* Who decides which hosts vote: it asks the leader for one change after another until the members are as wanted. */
#ifndef DTD_TESTS_SIM_OPERATOR_H
#define DTD_TESTS_SIM_OPERATOR_H

#include "daemon/control/log/log.h"
#include "tests/sim/world.h"

enum wanted { WANTED_GONE, WANTED_STANDBY, WANTED_VOTER };
extern enum wanted wanted[MAX_HOSTS + 1];

void operator_start(void);
void operator_want_all(void); /* everybody votes, or, from the sixth on, stands by */
void operator_transfer(void); /* the next change is of who leads */
bool operator_is_content(void);
int operator_leader(void); /* the host that leads by its own word, in the newest term; 0: none */

#endif
