/* What a node does that begins to decide, while it decides and when it does so no more, and what one does that follows:
 * the events of cluster.h, turned into jobs and agents.
 *
 *   follow -> LEAD: jobs from the log, adopting; every node says what lives there -> jobs go on
 *   LEAD -> follow: jobs and agents are forgotten, no process is touched
 *
 * A node that follows is a pipe: who is connected to it speaks, through it, to the one that leads (rpc_server.c). When
 * another one leads, processes are made to come back by themselves, since it does not know yet in which epoch they are.
 * Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LEADERSHIP_H
#define DTD_DAEMON_CONTROL_LEADERSHIP_H

#include "common/base/err.h"
#include "daemon/control/cluster/cluster.h"

struct control;

extern const struct cluster_events leadership_events;

/* The supervisor has said all that lives on this node. */
void leadership_listed(struct control *n);
/* What the supervisor says of one of this node's processes. */
struct child;
void leadership_child(struct control *n, const struct child *c);
/* The facts of this node have changed: its GPUs are known, or it goes down. */
void leadership_facts(struct control *n);
/* This node goes down, and others stay. */
void leadership_leave(struct control *n);
/* Now and then: deadlines of what the nodes have not said yet. */
void leadership_tick(struct control *n);

#endif
