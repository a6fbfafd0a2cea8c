/* Clusters with dtds of two versions (--mixed): which computer has which, and the takeovers between them. */
#ifndef DTD_TESTS_SIM_CONTROL_VERSIONS_H
#define DTD_TESTS_SIM_CONTROL_VERSIONS_H

#include "tests/sim/control/machine.h"
#include "tests/sim/runner.h"

/* Without `mixed`, all computers have the present version. */
void versions_init(bool mixed);
bool versions_are_mixed(void);
/* In some seeds the new key of the job file reaches the log too early, as by a defect or a step back of dtd. */
bool versions_slip(void);
/* Exchanges the dtd of a computer; one of them keeps the older version until versions_finish. */
void versions_exchange(struct machine *m);
/* All computers get the newer version. */
void versions_finish(void);
/* All computers have the newest cluster version. */
bool versions_are_even(void);
/* Whether control on this computer can read a job with the new key. */
bool versions_can_read(const struct machine *m);
/* False: some dtds have version 1, in which limits of time follow the date. */
bool versions_have_clock(void);
/* Called after each event. */
void versions_count(void);
void versions_report(struct summary *ret);

#endif
