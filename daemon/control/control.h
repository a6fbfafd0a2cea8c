/* dtd-control: the struct that owns everything, and its start and end.
 *
 *   configuration -> log (replay, then ready) -> supervisor's list -> jobs adopted -> control.sock is served
 *
 * Nothing is served before the jobs are adopted, so that no answer is made from half a state; who connects earlier
 * waits in the listener's backlog. One loop, one thread. */
#ifndef DTD_DAEMON_CONTROL_CONTROL_H
#define DTD_DAEMON_CONTROL_CONTROL_H

#include "common/base/paths.h"
#include "daemon/control/heartbeat.h"
#include "daemon/control/rpc/server.h"

#define CONTROL_TICK_MS 50

struct control {
    uv_loop_t loop;
    struct node_conf conf;
    char dir[PATH_STATE_DIR_MAX + 1];
    bool system;        /* serves all users of the machine */
    const char *config; /* the file, read again on a reload; NULL: none */
    struct heartbeat heartbeat;
    /* The rooms, each of which knows those above it alone. */
    struct replica replica;
    struct local local;
    struct cluster *cluster;
    struct jobs jobs;
    struct c10d_registry c10d;      /* c10d stores and ways to them, of this node */
    struct c10d_owners c10d_owners; /* leading: which node has which store */
    struct rpc_server rpc;
    bool log_warned;               /* the log's disk is full, and jobs have been told */
    bool listed;                   /* the supervisor has sent the list of processes */
    void (*log_closed)(void *arg); /* called when the log has been closed for the cluster */
    void *log_closed_arg;
    uv_timer_t timer;
    uv_signal_t sigterm;
    int64_t retry_ms; /* when the outbox and the metrics try again */
    bool ended;
    int64_t leave_ms; /* jobs.leaving: when it is over, whatever still lives here */
};

/* Starts everything; failures after that end the process with a line in the log. */
NODISCARD err_t control_start(struct control *n, struct why *why);
/* Jobs save and leave, then the supervisor is told to end everything; where there are other nodes jobs leave this one
 * only, and another one leads. Idempotent. */
void control_stop(struct control *n);

#endif
