/* Chooses the voters of the replicated log: one below 3 nodes, 3 from 3 nodes on, 5 from 17 on. They are spread over
 * failure domains, a drained node is a voter only if no other can be, and a dead voter is replaced. Pure functions:
 * from the leader's knowledge of the nodes to the next change, if one is needed. Changes are made one at a time. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_VOTERS_H
#define DTD_DAEMON_CONTROL_CLUSTER_VOTERS_H

#include "daemon/control/log/log.h"

#include <stdbool.h>
#include <stdint.h>

#define VOTERS_DEAD_MS 5000 /* a voter that has been away for so long is replaced */

struct voters_node {
    uint64_t id;
    bool listed; /* a node of the cluster; false: only an id in the log's configuration, whose node has left */
    bool in_log; /* in the log's configuration, as `role` */
    enum log_role role;
    bool self; /* the leader */
    bool up, drained;
    int64_t away_ms;    /* for how long it has not been up */
    const char *domain; /* "": none */
};

enum voters_step { VOTERS_NOTHING, VOTERS_ADD, VOTERS_PROMOTE, VOTERS_REMOVE, VOTERS_HAND_OVER };
struct voters_change {
    enum voters_step step;
    uint64_t id;
};

int voters_wanted(int nodes);
/* Is there a successor of the leader: another voter that is up, or a node that can be made a voter? */
bool voters_have_successor(const struct voters_node *nodes, int n);
struct voters_change voters_next(const struct voters_node *nodes, int n);

#endif
