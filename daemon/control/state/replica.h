/* The replicated log and the state that it makes, as the rooms above use them: they read the state, and propose
 * records. Owned by the daemon (control.h); loop thread. */
#ifndef DTD_DAEMON_CONTROL_STATE_REPLICA_H
#define DTD_DAEMON_CONTROL_STATE_REPLICA_H

#include "daemon/control/log/log.h"
#include "daemon/control/state/clock.h"
#include "daemon/control/state/state.h"

struct replica {
    struct state *state;
    struct log *log; /* NULL before it has been started and after it has been closed */
    struct state_clock *clock;
};

/* The state as the log's state machine; `r` must outlive the log. */
struct log_machine replica_machine(struct replica *r);
/* As record_encode, with this node's reading of the cluster's clock. ERR_UNSUPPORTED: some node's dtd may not have this
 * kind of record (features.h). */
NODISCARD err_t replica_encode(const struct replica *r, const struct record *record, struct buf *ret);
/* Proposes one record. For what must be answered at once (submit, cancel); other records go through the outbox. The
 * callback and its errors are those of log_propose. */
NODISCARD err_t replica_propose(const struct replica *r, const struct record *record, log_callback cb, void *arg);
/* Time since a record that has these readings, at least 0. In a cluster it is by the cluster's clock, since another
 * node's date may have been recorded; time during which no node ran is missing then. By this node's date where there is
 * no other node, or an older version wrote the record (clock_ms 0). */
int64_t replica_age_ms(const struct replica *r, int64_t wall_ms, int64_t clock_ms);

#endif
