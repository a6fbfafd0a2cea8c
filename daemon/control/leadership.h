/* What dtd-control does on becoming leader, while leading, on stepping down, and while following. It turns the events
 * of cluster/cluster.h into changes of jobs and node views.
 *
 *   follower -> leader: create the jobs of the log; every node lists its live processes; then the jobs continue
 *   leader -> follower: discard jobs and node views; no process is touched
 *
 * A follower forwards the calls of processes and clients to the leader (rpc/server.c). When the leader changes, every
 * node drops the connections of its processes; they reconnect, which shows the new leader the epoch of each. Loop
 * thread. */
#ifndef DTD_DAEMON_CONTROL_LEADERSHIP_H
#define DTD_DAEMON_CONTROL_LEADERSHIP_H

#include "common/base/err.h"
#include "daemon/control/cluster/cluster.h"

struct control;

extern const struct cluster_events leadership_events;

/* The supervisor has listed all live processes of this node. */
void leadership_listed(struct control *n);
/* The supervisor has reported a change of one of this node's processes. */
struct child;
void leadership_child(struct control *n, const struct child *c);
/* This node's properties have changed: its GPUs are known, or it is shutting down. Reports them to the leader. */
void leadership_facts(struct control *n);
/* This node has measured its load: reports it to the leader. */
void leadership_load(struct control *n);
/* Begins the shutdown of this node while other nodes continue. */
void leadership_leave(struct control *n);
/* Called on every tick: retries this node's registration with the leader and ends the wait for the nodes' lists. */
void leadership_tick(struct control *n);

#endif
