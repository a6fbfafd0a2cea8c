/* The operator, who chooses which hosts vote: it requests one change after another from the leader until the members
 * are as wanted. */
#ifndef DTD_TESTS_SIM_OPERATOR_H
#define DTD_TESTS_SIM_OPERATOR_H

#include "daemon/control/log/log.h"
#include "tests/sim/world.h"

enum wanted { WANTED_GONE, WANTED_STANDBY, WANTED_VOTER };
extern enum wanted wanted[MAX_HOSTS + 1];

void operator_start(void);
void operator_want_all(void); /* all hosts become voters; from the sixth on they become standbys */
void operator_transfer(void); /* the next change is a transfer of the leadership */
bool operator_is_content(void);
int operator_leader(void); /* the host that reports itself leader, of the newest term; 0: none */

#endif
