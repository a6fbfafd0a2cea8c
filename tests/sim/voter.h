/* A voter: the log of daemon/control on a host, driving the real replicated state. Started, stopped and killed by
 * faults. */
#ifndef DTD_TESTS_SIM_VOTER_H
#define DTD_TESTS_SIM_VOTER_H

#include "daemon/control/log/internal.h"
#include "daemon/control/state/state.h"
#include "tests/sim/world.h"

struct voter {
    struct host *host;
    uv_loop_t loop;
    struct log *log; /* NULL: no process, or it has closed */
    struct state *state;
    uint64_t applied; /* index of the last record, and the hash of all up to it */
    uint64_t chain;
    bool is_ready, is_stopping;
    uint64_t commit_checked, term_checked, lead_checked;
    const void *opening; /* which of the log's openings commit_checked is of */
};
extern struct voter voters[MAX_HOSTS + 1];

/* What a snapshot begins with. */
struct voter_mark {
    uint64_t applied, chain;
};

void voter_start(struct host *host);
void voter_kill(struct host *host);
void voter_stop(struct host *host); /* as it ends when it is asked to; then world.on_death */
/* Opened, not closing, not dying: its log may be asked. */
bool voter_is_open(const struct voter *voter);

#endif
