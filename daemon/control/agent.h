/* A node as the one that decides sees it: what it has, whether it is there, and what may be asked of its supervisor.
 * The leader has one for every node, its own included; the jobs speak to agents only, and never ask where they are.
 *
 *   ABSENT (in the log, never seen by this leader) -> UP <-> AWAY (its connection has gone) -> LOST -> UP ...
 *
 * For our own node an agent speaks to children.c; for another it speaks by that node's Attend (proto/peer.proto), where
 * the same calls meet the same code. What happens to processes comes back as agent_child. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_AGENT_H
#define DTD_DAEMON_CONTROL_AGENT_H

#include "daemon/control/children.h"
#include "daemon/control/gpus.h"

struct node;
struct placement_node;
struct rpc_call;

enum agent_state { AGENT_ABSENT, AGENT_UP, AGENT_AWAY, AGENT_LOST };

struct agent {
    struct agent *next; /* ascending by name */
    const char *name;
    enum agent_state state;
    bool is_self;
    bool listed;             /* what lives there has been said since it came up */
    char drained[128];       /* why nothing new starts there; "": it may */
    int slots, used;         /* workers that may run there at once, and those of jobs that have their place */
    struct gpus gpus;        /* and which job has which */
    struct rpc_call *attend; /* of another node: where commands are said; NULL: cannot be reached */
    int64_t heard_ms;
};

struct agent_spawn {
    uint64_t job;
    int slot,
        slots;    /* on that node: 0 .. slots-1, or CHANNEL_SLOT_IO; `slots` is the same as long as the job is there */
    int workers;  /* of the job on that node at this time: they share its cores */
    int device;   /* a worker's GPU; -1: none */
    int threads;  /* cores that a worker wants; 0: its share */
    uint32_t uid; /* whose process it is */
    const uint8_t *token;
    char *const *env; /* "KEY=VALUE" */
    int n_env;
    const char *workdir; /* of a worker; NULL or not absolute: none */
};

/* Our own node; the first of node->agents, and for ever. */
void agent_self_init(struct node *n, const char *name);
/* Of the nodes that are known; NULL: none of them. */
struct agent *agent_find(struct node *n, const char *name);

/* ERR_CLOSED: the node cannot be reached. The answer is an agent_child. */
NODISCARD err_t agent_spawn(struct agent *a, struct node *n, const struct agent_spawn *x);
NODISCARD err_t agent_kill(struct agent *a, struct node *n, uint64_t job, int slot, int sig);
/* The job has nothing more to do there: its arenas, segment and socket go. */
NODISCARD err_t agent_release(struct agent *a, struct node *n, uint64_t job);

/* A process there has been started, has ended, or was refused; also each of the list of what lives there.
 * `c->when_ns` is in our own clock. */
void agent_child(struct node *n, struct agent *a, const struct child *c);
/* The list has ended. */
void agent_listed(struct node *n, struct agent *a);

/* As placement sees it; what `job` itself has there, `mine` slots and its GPUs, counts as free. */
void agent_room(const struct agent *a, uint64_t job, int mine, struct placement_node *ret);

#endif
