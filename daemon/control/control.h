/* dtd-control: the struct that owns everything, and its start and end.
 *
 *   configuration -> log (replay, then ready) -> supervisor's list -> jobs adopted -> control.sock is served
 *
 * Nothing is served before the jobs are adopted, so that no answer is made from half a state; who connects earlier
 * waits in the listener's backlog. One loop, one thread. */
#ifndef DTD_DAEMON_CONTROL_CONTROL_H
#define DTD_DAEMON_CONTROL_CONTROL_H

#include "common/base/paths.h"
#include "common/conf/node.h"
#include "common/rpc/methods.h"
#include "daemon/control/job/node_view.h"
#include "daemon/control/local/heartbeat.h"
#include "daemon/control/local/processes.h"
#include "daemon/control/local/health.h"
#include "daemon/control/job/job.h"
#include "daemon/control/log/log.h"
#include "daemon/control/state/outbox.h"
#include "daemon/control/local/probe.h"
#include "daemon/control/state/state.h"
#include "daemon/control/c10d/owners.h"
#include "daemon/control/local/supervisor_link.h"

#include <sys/queue.h>
#include <uv.h>

#define NODE_TICK_MS 50

struct node {
    uv_loop_t loop;
    struct node_conf conf;
    char dir[PATH_STATE_DIR_MAX + 1];
    bool system;        /* serves all users of the machine */
    const char *config; /* the file, read again on a reload; NULL: none */
    struct beat beat;
    struct sup sup;
    struct state *state;
    struct log *log;
    struct state_result applied; /* the last record's answer, what log callbacks point to */
    bool log_warned;             /* its disk is full, and jobs have been told */
    struct outbox outbox;
    struct children children;       /* processes of this node */
    struct agent self, *agents;     /* nodes, ours among them: what a leader decides by */
    struct stores stores;           /* c10d stores and ways to them, of this node */
    struct store_names store_names; /* leading: whose node has which */
    struct probe probe;
    struct health health;
    struct held_submit *held_submits;            /* rpc_client.c's: they wait for the probe */
    struct rpc_method methods[RPC_METHOD_COUNT]; /* for who connects here */
    struct rpc_method served[RPC_METHOD_COUNT];  /* the same, answered by us in any case: we lead */
    bool leads, listed;                          /* we decide; the supervisor has said what lives here */
    int64_t lists_due_ms;                        /* leading: when the other nodes' lists are late; 0: all came */
    uint64_t state_index;                        /* leading: of the log, that agents and jobs have been brought up to */
    struct cluster *cluster;
    struct rpc_conn *leader;       /* following: to the node that leads; NULL: not now */
    int64_t attend_ms;             /* following: when it is attended again; 0: it is, or cannot be */
    int reports;                   /* to it, and not answered */
    bool list_due;                 /* it is to be told all that lives here, when there is room */
    struct rpc_listener *listener; /* NULL until served */
    LIST_HEAD(, peer) peers;       /* rpc_server.c's: every connection */
    struct job *jobs;              /* ascending by id */
    uv_timer_t timer;
    uv_signal_t sigterm;
    int64_t retry_ms; /* when the outbox and the metrics try again */
    bool stopping, ended;
    bool leaving;     /* stopping, and other nodes go on with the jobs */
    int64_t leave_ms; /* ... when it is over, whatever still lives here */
};

/* Starts everything; failures after that end the process with a line in the log. */
NODISCARD err_t node_start(struct node *n, struct why *why);
struct job *node_job(struct node *n, uint64_t id);
/* A job that the log has just taken. */
NODISCARD err_t node_job_add(struct node *n, const struct state_job *s);
/* Ticks the jobs; called after anything has happened to one that others may wait for. */
void node_tick(struct node *n);
/* The supervisor's word on a process of a job. */
void node_child(struct node *n, const struct channel_msg *m);
/* The probe is over. */
void node_gpus_known(struct node *n);
/* Jobs save and leave, then the supervisor is told to end everything; where there are other nodes jobs leave this one
 * only, and somebody else leads. Idempotent. */
void node_stop(struct node *n);
/* One record at once: says it to the log. */
NODISCARD err_t node_propose(struct node *n, const struct record *r, log_callback cb, void *arg);

#endif
