/* Who votes in the replicated log: one voter below 3 nodes, 3 from 3 on, 5 from 17 on, spread over what fails together,
 * never somebody who is drained if another can do it, and a dead voter replaced. Pure: from what the leader knows to
 * the next change, if there is one to make; changes are made one at a time. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_VOTERS_H
#define DTD_DAEMON_CONTROL_CLUSTER_VOTERS_H

#include "daemon/control/log/log.h"

#include <stdbool.h>
#include <stdint.h>

#define VOTERS_DEAD_MS 5000 /* a voter that is away for so long is replaced */

struct voters_node {
    uint64_t id;
    bool listed; /* a node of the cluster; else only a number in the log's configuration, whose node has left */
    bool in_log; /* in the log's configuration, as `role` */
    enum log_role role;
    bool self; /* the leader */
    bool up, drained;
    int64_t away_ms;    /* since when it is not up */
    const char *domain; /* "": none */
};

enum voters_step { VOTERS_NOTHING, VOTERS_ADD, VOTERS_PROMOTE, VOTERS_REMOVE, VOTERS_HAND_OVER };
struct voters_change {
    enum voters_step step;
    uint64_t id;
};

int voters_wanted(int nodes);
/* Somebody could lead instead of the one that does: a voter that is there, or a node that can be made one. */
bool voters_have_heir(const struct voters_node *nodes, int n);
struct voters_change voters_next(const struct voters_node *nodes, int n);

#endif
