/* A node as the one that decides sees it: what it has, whether it is there, and what may be asked of its supervisor.
 * The leader has one for every node, its own included; the jobs speak to agents only, and never ask where they are.
 *
 *   ABSENT (in the log, never seen by this leader) -> UP <-> AWAY (its connection has gone) -> LOST -> UP ...
 *
 * For our own node an agent speaks to children.c; for another it speaks by that node's Attend (proto/peer.proto), where
 * the same calls meet the same code. What happens to processes comes back as node_view_child. Loop thread. */
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
    bool listed;             /* what lives there has been said since it came up */
    char address[264];       /* host on which its workers are reached from other nodes; "": not known */
    char drained[128];       /* why nothing new starts there; "": it may */
    bool leaving;            /* its dtd is told to end */
    int slots, used;         /* workers that may run there at once, and those of jobs that have their place */
    struct gpus *gpus;       /* and which job has which; of our own node local.h's, else the agent's own */
    struct rpc_conn *conn;   /* of another node; NULL: none */
    struct rpc_call *attend; /* of another node: where commands are said; NULL: cannot be reached */
    LIST_HEAD(node_view_peers, peer) peers; /* of rpc/peer.c: those there on whose behalf it has forwarded calls */
    uint64_t incarnation;                   /* counts its coming up: what it does not name in its list then has gone */
    int64_t heard_ms;
    double silent_ms; /* LOST: for how long it had been silent when it was given up */
};

/* Our own node; the first of jobs->nodes, and for ever. */
void node_view_self_init(struct jobs *jobs, const char *name, int slots);
/* Of the nodes that are known; NULL: none of them. */
struct node_view *node_view_find(struct jobs *jobs, const char *name);
struct node_view *node_view_by_conn(struct jobs *jobs, const struct rpc_conn *conn);
/* The same, and one that is not known yet is ABSENT from now on; NULL: no memory. */
struct node_view *node_find_or_add(struct jobs *jobs, const char *name);
/* This node begins to decide: nobody has been heard, nothing is taken. And it does no more: only its own is left. */
void node_views_begin(struct jobs *jobs);
void node_views_end(struct jobs *jobs);
/* Another node attends, and has this; its list comes next. */
void node_view_up(struct node_view *a, struct rpc_call *attend);
void node_view_away(struct node_view *a);
/* Everything there counts as ended, with the sentence `seen`. */
void node_view_lost(struct jobs *jobs, struct node_view *a, int64_t silent_ms, const char *seen);

/* ERR_CLOSED: the node cannot be reached. The answer is an node_view_child. */
NODISCARD err_t node_view_spawn(struct node_view *a, struct jobs *jobs, const struct process_spawn *x);
NODISCARD err_t node_view_kill(struct node_view *a, struct jobs *jobs, uint64_t job, int slot, int sig);
/* Says again what lives there, and what it does (child.proc). */
NODISCARD err_t node_view_look(struct node_view *a, struct jobs *jobs);
/* The job has nothing more to do there: its arenas, segment and socket go. */
NODISCARD err_t node_view_release(struct node_view *a, struct jobs *jobs, uint64_t job);

/* What another node has, all of it: slots, and GPUs with those that cannot be used. */
struct node_view_facts {
    int slots, gpus;   /* -1: not known yet */
    const int *broken; /* indices of those that cannot be opened, or are sick */
    int n_broken;
    const struct node_view_sick {
        int gpu;
        const char *what; /* as gpus_sick */
    } * sick;
    int n_sick;
    const char *model, *missing; /* never NULL */
    bool leaving;
};
void node_view_set_facts(struct node_view *a, const struct node_view_facts *f);

/* A process there has been started, has ended, or was refused; also each of the list of what lives there.
 * `c->when_ns` is in our own clock. */
void node_view_child(struct jobs *jobs, struct node_view *a, const struct child *c);
/* The list has ended. */
void node_view_listed(struct jobs *jobs, struct node_view *a);

/* Why no job may be there: "is lost", "is drained (...)"; NULL: it may. Jobs that are there go elsewhere. */
const char *node_unavailable_reason(const struct node_view *a);
/* As placement sees it; what `job` itself has there, `mine` slots and its GPUs, counts as free. */
void node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret);

#endif
