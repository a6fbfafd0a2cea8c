/* Records on their way into the log, in order, each until it is there: a full disk, a log that is not ready or one that
 * was reopened only delays them. What must be answered at once (submit, cancel) goes to node_propose instead. Loop
 * thread. */
#ifndef DTD_DAEMON_CONTROL_STATE_OUTBOX_H
#define DTD_DAEMON_CONTROL_STATE_OUTBOX_H

#include "daemon/control/state/record.h"

#include <stdbool.h>

struct node;
struct state_result;
struct outbox_item;

/* Once, when the record has been applied; `result` is the state's answer to it. */
typedef void (*outbox_cb)(struct node *node, uint64_t job, const struct state_result *result);

struct outbox {
    struct node *node;
    struct outbox_item *head, **tail;
    bool in_flight; /* the head is proposed */
    int n;
    err_t err; /* of the last attempt that was put off */
};

void outbox_init(struct outbox *o, struct node *node);
void outbox_fini(struct outbox *o);
/* `cb` may be NULL. ERR_LIMIT: too many wait already. */
NODISCARD err_t outbox_add(struct outbox *o, const struct record *record, outbox_cb cb);
/* Proposes the head again, if it was put off. */
void outbox_retry(struct outbox *o);

#endif
