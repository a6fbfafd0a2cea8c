/* Conditions that must hold after every event. The checks see all hosts at once and keep a ledger of committed entries,
 * in the order of the log. docs/internals/simulation.md lists them. */
#ifndef DTD_TESTS_SIM_CHECK_H
#define DTD_TESTS_SIM_CHECK_H

#include "tests/sim/voter.h"

/* A committed entry of the log. */
struct fact {
    raft_term term, committed_in; /* of the entry; of the leader that committed it */
    enum raft_entry_type type;
    uint64_t hash;
    const void *data;
    size_t len;
    bool is_applied; /* by some host; the fields below are valid then */
    uint64_t chain, state_hash;
    struct state_result result;
};

/* A recovery continues with one copy of the log, while the voters that had other copies may go on with theirs. So from
 * then on there are two logs, which have the entries of that copy in common: branches, each with a ledger of its own.
 * 0 is the first. */
#define CHECK_MAX_BRANCHES 6

/* Called for the first time that a record is applied on any host, in the order of the log of this branch. */
typedef void (*check_record_fn)(int branch, uint64_t index, const struct record *record,
                                const struct state_result *result);
void check_init(check_record_fn on_record);
/* The host of the voter with this id, as `v` has it; 0: not known. NULL: the id is the number of the host. */
extern int (*check_host_of)(const struct voter *v, raft_id id);
/* The voter, whose log is not open, continues alone with what is on its disk. Makes a branch of that, to which the
 * voter belongs from now on, and calls `on_record` again for the records in it that were applied. If the voter is alone
 * in its branch already, it stays there. Returns the branch. */
int check_fork(struct voter *v);
void check_event(struct host *host); /* after each event of a host */
void check_applied(struct voter *v, uint64_t index, const void *bytes, size_t len, const struct record *record,
                   const struct state_result *result);
void check_restored(struct voter *v);
/* A voter has on its disk the entries that it reports to the leader. */
void check_sent(const struct host *host, const struct raft_message *message);
/* The following are of the newest branch. NULL: not committed */
const struct fact *check_fact(uint64_t index);
uint64_t check_committed(void); /* the last committed index */
uint64_t check_records(void);   /* the last committed index that is a record */
/* Prints the log of every voter, as that voter has it. */
void check_print(void);

#endif
