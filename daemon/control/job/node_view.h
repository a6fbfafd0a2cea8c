/* The leader's view of one node: its capacity, whether it is alive, and the commands it accepts. The leader has a view
 * of every node, its own included. Jobs use views only and need not know whether a node is the leader's own.
 *
 *   ABSENT (in the log, never connected to this leader) -> UP <-> AWAY (its connection is lost) -> LOST -> UP ...
 *
 * A command for the leader's own node goes to local/processes.c. For another node it is sent on that node's Attend call
 * (proto/peer.proto), and the same code carries it out there. Changes of processes are reported by node_view_child.
 * Loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_NODE_VIEW_H
#define DTD_DAEMON_CONTROL_JOB_NODE_VIEW_H

#include "daemon/control/local/gpus.h"
#include "daemon/control/local/processes.h"

#include <sys/queue.h>

struct jobs;
struct placement_node;
struct peer;
struct rpc_call;
struct rpc_conn;

enum node_view_state { NODE_ABSENT, NODE_UP, NODE_AWAY, NODE_LOST };

struct node_view {
    struct node_view *next; /* ascending by name */
    const char *name;
    enum node_view_state state;
    bool is_self;
    bool listed;             /* it has listed its live processes since it came up */
    char address[264];       /* host at which other nodes reach its workers; "": unknown */
    char drained[128];       /* why no new process may start there; "": not drained */
    bool leaving;            /* its dtd is shutting down */
    bool disk_full;          /* the disk of its state directory is full: no new job may start there */
    bool log_failed;         /* its log's disk has failed: it must not be a voter */
    char log_warning[300];   /* of its log; "": none. Own node: log_warning */
    int slots, used;         /* workers that may run there at once; slots that are allocated to jobs */
    struct gpus *gpus;       /* with the job that holds each; own node: local.h's, else owned by the view */
    struct rpc_conn *conn;   /* of another node; NULL: none */
    struct rpc_call *attend; /* of another node: call on which commands are sent; NULL: unreachable */
    LIST_HEAD(node_view_peers, peer) peers; /* of rpc/peer.c: callers there whose calls it forwarded */
    uint64_t incarnation;  /* incremented on each reconnect; processes missing from the list that follows have ended */
    int64_t heard_ms;      /* when it last connected or reported */
    struct node_load load; /* of another node: its last report */
    double silent_ms;      /* LOST: time since its last heartbeat when it was declared lost */
};

/* A power of two, some times the largest number of nodes: of two with the same hash, one is searched in the list. */
#define NODE_INDEX_CONNS 65536

/* Finds one of many node views. */
struct node_index {
    struct node_view **by_name; /* ascending, without the leader's own; n of them */
    int n, cap;
    struct node_view **by_conn; /* the last one found for each hash of a connection; NULL: not allocated yet */
};

/* The leader's own node. */
void node_view_self_init(struct jobs *jobs, const char *name, int slots);
/* NULL: there is no view of this node. */
struct node_view *node_view_find(struct jobs *jobs, const char *name);
struct node_view *node_view_by_conn(struct jobs *jobs, const struct rpc_conn *conn);
/* Another node has connected. */
void node_view_connected(struct jobs *jobs, struct node_view *a, struct rpc_conn *conn);
/* Adds a view in state ABSENT if there is none; NULL: no memory. */
struct node_view *node_find_or_add(struct jobs *jobs, const char *name);
/* Begin: this node becomes leader; no node has reported and no slot is allocated. End: it stepped down; only the view
 * of its own node remains. */
void node_views_begin(struct jobs *jobs);
void node_views_end(struct jobs *jobs);
/* Another node has opened its Attend call; its list of processes follows. */
void node_view_up(struct node_view *a, struct rpc_call *attend);
void node_view_away(struct node_view *a);
/* Treats every process there as ended; `seen` is the sentence for the incidents. */
void node_view_lost(struct jobs *jobs, struct node_view *a, int64_t silent_ms, const char *seen);

/* ERR_CLOSED: the node is unreachable. The result arrives by node_view_child. */
NODISCARD err_t node_view_spawn(struct node_view *a, struct jobs *jobs, const struct process_spawn *x);
NODISCARD err_t node_view_kill(struct node_view *a, struct jobs *jobs, uint64_t job, int slot, int sig);
/* Asks the node to report its processes again, with their /proc state (child.proc). */
NODISCARD err_t node_view_look(struct node_view *a, struct jobs *jobs);
/* The job has left the node, which removes its arenas, segment and socket; `remove`: also its logs and metrics. */
NODISCARD err_t node_view_release(struct node_view *a, struct jobs *jobs, uint64_t job, bool remove);

/* Total capacity of another node: slots, and GPUs with those that are unusable. */
struct node_view_facts {
    int slots, gpus;   /* -1: unknown yet */
    const int *broken; /* indices of GPUs that cannot be opened or are unhealthy */
    int n_broken;
    const struct node_view_sick {
        int gpu;
        const char *what; /* as gpus_sick */
    } * sick;
    int n_sick;
    const char *model, *missing; /* never NULL */
    bool leaving, disk_full, log_failed;
    const char *log_warning; /* never NULL */
};
void node_view_set_facts(struct node_view *a, const struct node_view_facts *f);

/* A process there has started, has ended or was refused; also called for each entry of the node's list. `c->when_ns` is
 * in the leader's own clock. */
void node_view_child(struct jobs *jobs, struct node_view *a, const struct child *c);
/* The node's list is complete. */
void node_view_listed(struct jobs *jobs, struct node_view *a);

/* Why no job may run there: "is lost", "is drained (...)"; NULL: available. Its jobs move to other nodes. */
const char *node_unavailable_reason(const struct node_view *a);
/* The node's capacity for placement.h. The slots (`mine`) and GPUs that `job` itself holds there count as free. */
void node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret);

#endif
