/* dtd-control: the struct that owns all its parts, and their start and shutdown.
 *
 *   configuration -> log (replay, then ready) -> supervisor's list -> jobs adopted -> control.sock is served
 *
 * Nothing is served before the jobs are adopted, so that no answer is based on an incomplete state. Earlier connections
 * wait in the listener's backlog. One loop, one thread. */
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
    const char *config; /* configuration file, read again on a reload; NULL: none */
    struct heartbeat heartbeat;
    struct shares descriptors; /* of the users of a system-wide dtd */
    /* One member for each folder; each may use only the members above it. */
    struct replica replica;
    struct state_clock clock;
    struct local local;
    struct cluster *cluster;
    struct jobs jobs;
    struct c10d_registry c10d;      /* this node's c10d stores and its tunnels to those of other nodes */
    struct c10d_owners c10d_owners; /* leader only: which node has which store */
    struct rpc_server rpc;
    bool log_warned;               /* the log's disk is full, and an incident reports it */
    bool listed;                   /* the supervisor has sent the list of processes */
    void (*log_closed)(void *arg); /* called when the log has been closed for the cluster; NULL: it is not asked to */
    void *log_closed_arg;
    uv_timer_t timer, lead_timer, tick_timer;
    bool begins; /* to lead: it makes the jobs that it will lead */
    uv_signal_t sigterm;
    int64_t retry_ms; /* when the outbox and the metrics are retried */
    bool ended;
    int64_t leave_ms; /* jobs.leaving: deadline, whatever processes are still alive here */
};

/* Starts all parts. A failure after that ends the process with a line in the log. */
NODISCARD err_t control_start(struct control *n, struct why *why);
/* Shuts down: jobs save and leave, then the supervisor is asked to end every process. If there are other nodes, jobs
 * leave this node only, and another node takes over as leader. Idempotent. */
void control_stop(struct control *n);

#endif
