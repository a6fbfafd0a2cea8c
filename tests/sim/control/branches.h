/* Which branch of the log (check.h) each computer is in, when clusters are recovered. */
#ifndef DTD_TESTS_SIM_CONTROL_BRANCHES_H
#define DTD_TESTS_SIM_CONTROL_BRANCHES_H

#include "daemon/control/log/log.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/voter.h"

/* Voters have ids of their own, and there may be several branches. Without this call there is one. */
void branches_init(void);
/* The voter's log is about to be opened. */
void branch_open(struct voter *v, const struct log_config *config);
/* The record of this generation is in the branch. */
void branch_generation(int branch, uint64_t generation);
/* Called after each event of the computer. */
void branch_note(struct machine *m);
int branch_newest(void);
/* The computer whose voter has, or had, this id; 0: not known. */
int branch_host(int branch, uint64_t id);
/* The leader of the newest branch; NULL: there is none. */
struct machine *branch_leader(void);

#endif
