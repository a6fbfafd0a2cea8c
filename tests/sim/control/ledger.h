/* The history of jobs, from committed records, from commands that processes received, and from answers to clients. It
 * is separate from control's own state, and the checks compare the two. docs/internals/simulation.md lists the checks.
 * Each branch of the log (check.h) has a history of its own, and each computer is in one (control/branches.h). */
#ifndef DTD_TESTS_SIM_CONTROL_LEDGER_H
#define DTD_TESTS_SIM_CONTROL_LEDGER_H

#include "tests/sim/check.h"
#include "tests/sim/control/machine.h"

/* run.max_seconds of some jobs, in seconds: longer than a run, and much shorter than a step of a wall clock. */
#define LEDGER_LIMIT_TEXT "20000"

void ledger_init(void);
/* Called by the checks for the first time that a record is applied on any host. */
void ledger_record(int branch, uint64_t index, const struct record *record, const struct state_result *result);
/* A branch is made of `from`: between the two calls its records go to ledger_record again. `to` may be `from`. */
void ledger_fork_begin(int from);
void ledger_fork_end(int to);

/* A worker has started an epoch as this rank; has left it or exited; has finished the last step. */
void ledger_begun(uint64_t job, int pid, uint64_t epoch, int rank, const struct machine *m, int slot, int64_t step);
void ledger_left(uint64_t job, int pid);
void ledger_done(uint64_t job, uint64_t epoch, int rank, const struct machine *m);

/* Answers that a client got on m. `asked_us` is the time of its request. */
void ledger_answered_submitted(const struct machine *m, uint64_t request, uint64_t job);
void ledger_answered_refused(const struct machine *m, uint64_t request, const char *text);
void ledger_answered_canceled(const struct machine *m, uint64_t job);
void ledger_answered_status(const struct machine *m, uint64_t job, const char *state, int64_t asked_us);
void ledger_answered_no_job(const struct machine *m, uint64_t job, int64_t asked_us);

/* Control on m, which leads, kills a process of the job. */
void ledger_killed(const struct machine *m, uint64_t job);

/* The following are of the newest branch. */
uint64_t ledger_jobs(void);           /* how many there are */
uint64_t ledger_number(uint64_t nth); /* of the first job (1), the second, .. */
/* Which job of its computer's branch this is: 1 for the first. The same in all branches that have the job. */
uint64_t ledger_nth(const struct machine *m, uint64_t job);
bool ledger_is_drained(int node);
bool ledger_all_ended(void);
void ledger_print(void); /* prints the jobs that have not ended */
/* Called periodically. */
void ledger_tick(void);

#endif
