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

/* Called for the first time that a record is applied on any host, in the order of the log. */
typedef void (*check_record_fn)(uint64_t index, const struct record *record, const struct state_result *result);
void check_init(check_record_fn on_record);
void check_event(struct host *host); /* after each event of a host */
void check_applied(struct voter *v, uint64_t index, const void *bytes, size_t len, const struct record *record,
                   const struct state_result *result);
void check_restored(struct voter *v);
/* A voter has on its disk the entries that it reports to the leader. */
void check_sent(const struct host *host, const struct raft_message *message);
/* NULL: not committed */
const struct fact *check_fact(uint64_t index);
uint64_t check_committed(void); /* the last committed index */
uint64_t check_records(void);   /* the last committed index that is a record */
/* Prints the log of every voter, as that voter has it. */
void check_print(void);

#endif
