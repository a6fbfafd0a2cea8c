/* What happened to jobs, by what was committed, by what processes were told, and by what people were told: kept apart
 * from control's own state, and compared with what control does. docs/internals/simulation.md lists the promises. */
#ifndef DTD_TESTS_SIM_CONTROL_LEDGER_H
#define DTD_TESTS_SIM_CONTROL_LEDGER_H

#include "tests/sim/check.h"
#include "tests/sim/control/machine.h"

void ledger_init(void);
/* Of the checks: the first time that a record is applied anywhere. */
void ledger_record(uint64_t index, const struct record *record, const struct state_result *result);

/* A worker has begun an epoch as this rank; has left it, or is dead; has made the last step. */
void ledger_begun(uint64_t job, int pid, uint64_t epoch, int rank, const struct machine *m, int slot, int64_t step);
void ledger_left(uint64_t job, int pid);
void ledger_done(uint64_t job, uint64_t epoch, int rank);

/* What a person was told. `asked_us`: when the question was made. */
void ledger_told_submitted(uint64_t request, uint64_t job);
void ledger_told_refused(uint64_t request, const char *text);
void ledger_told_canceled(uint64_t job);
void ledger_told_status(uint64_t job, const char *state, int64_t asked_us);
void ledger_told_no_job(uint64_t job, int64_t asked_us);

uint64_t ledger_jobs(void); /* numbered from 1 */
bool ledger_is_drained(int node);
bool ledger_all_ended(void);
void ledger_say(void); /* of those that have not ended */
/* Now and then. */
void ledger_tick(void);

#endif
