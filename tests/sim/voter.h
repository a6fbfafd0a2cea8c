/* A voter: the log of daemon/control on a host, driving the real replicated state. Faults start, stop and kill it. */
#ifndef DTD_TESTS_SIM_VOTER_H
#define DTD_TESTS_SIM_VOTER_H

#include "daemon/control/log/internal.h"
#include "daemon/control/state/state.h"
#include "tests/sim/world.h"

struct voter {
    struct host *host;
    uv_loop_t loop;
    struct log *log; /* NULL: no process, or closed */
    struct state *state;
    uint64_t applied; /* index of the last applied record, and the hash of all records up to it */
    uint64_t chain;
    bool is_ready, is_stopping;
    uint64_t commit_checked, term_checked, lead_checked;
    const void *opening; /* the opening of the log to which commit_checked belongs */
    int branch;          /* of the log, check.h */
};
extern struct voter voters[MAX_HOSTS + 1];

/* The header that the test puts in front of a snapshot. */
struct voter_mark {
    uint64_t applied, chain;
};

void voter_start(struct host *host);
void voter_kill(struct host *host);
void voter_stop(struct host *host); /* an orderly stop; calls world.on_death at its end */
/* Returns true if the log is open and neither closing nor dying, so that its functions may be called. */
bool voter_is_open(const struct voter *voter);

#endif
