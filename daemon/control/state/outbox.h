/* Queue of records for the log. They are proposed in order, up to OUTBOX_WINDOW at a time, each until it is applied: a
 * full disk, or a log that is not ready or is being reopened, only delays them. Requests that need a reply at once
 * (submit, cancel) use replica_propose instead. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_STATE_OUTBOX_H
#define DTD_DAEMON_CONTROL_STATE_OUTBOX_H

#include "daemon/control/state/replica.h"

#include <stdbool.h>

/* Records under way. With one at a time, the events of 1,000 lost nodes took 1,000 writes of the voters' disks one
 * after another. Far below LOG_MAX_PENDING, the rest of which is for requests of users. */
#define OUTBOX_WINDOW 64

struct outbox_item;

/* Called once, when the record has been applied; `result` is the state's answer. */
typedef void (*outbox_cb)(void *owner, uint64_t job, const struct state_result *result);

struct outbox {
    const struct replica *replica;
    void *owner; /* of the callbacks */
    struct outbox_item *head, **tail;
    struct outbox_item *next; /* the first that is not under way; NULL: all are */
    int n, n_flight;          /* in the queue; under way, which are the first ones */
    bool is_failing;          /* a proposal has failed: the others under way are awaited, then all are proposed again */
    err_t err;                /* of the last proposal that failed */
};

void outbox_init(struct outbox *o, const struct replica *replica, void *owner);
void outbox_fini(struct outbox *o);
/* Copies the record. `cb` may be NULL. ERR_LIMIT: 65536 records are waiting already. */
NODISCARD err_t outbox_add(struct outbox *o, const struct record *record, outbox_cb cb);
/* Proposes what is not under way. Called by the timer of control after a failure. */
void outbox_retry(struct outbox *o);

#endif
