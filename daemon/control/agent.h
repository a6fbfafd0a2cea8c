/* A node as the one that decides sees it: what it has, whether it is there, and what may be asked of its supervisor.
 * The leader has one for every node, its own included; the jobs speak to agents only, and never ask where they are.
 *
 *   ABSENT (in the log, never seen by this leader) -> UP <-> AWAY (its connection has gone) -> LOST -> UP ...
 *
 * For our own node an agent speaks to the supervisor (sup.c); for another it speaks by that node's Attend
 * (proto/peer.proto), where the same calls meet the same code. What happens to processes comes back as agent_child.
 * Loop thread. */
#ifndef DTD_DAEMON_CONTROL_AGENT_H
#define DTD_DAEMON_CONTROL_AGENT_H

#include "daemon/control/gpus.h"
#include "daemon/control/slots.h"
#include "daemon/supervisor/channel.h"

struct node;
struct rpc_call;

enum agent_state { AGENT_ABSENT, AGENT_UP, AGENT_AWAY, AGENT_LOST };

struct agent {
    struct agent *next; /* ascending by name */
    char *name;
    enum agent_state state;
    bool is_self;
    char *drained;      /* why nothing new starts there; NULL: it may */
    struct slots slots; /* how many and who uses them; which cores is decided on the node itself */
    struct gpus gpus;
    struct rpc_call *attend; /* of another node: where commands are said; NULL: cannot be reached */
    int64_t heard_ms;
};

struct agent_spawn {
    uint64_t job;
    int slot, slots; /* on that node: 0 .. slots-1, or CHANNEL_SLOT_IO */
    int device;      /* a worker's GPU; -1: none */
    int threads;     /* cores that a worker wants; 0: its share */
    uint32_t uid;    /* whose process it is */
    const uint8_t *token;
    char *const *env; /* "KEY=VALUE" */
    int n_env;
};

/* ERR_CLOSED: the node cannot be reached. The answer is an agent_child. */
NODISCARD err_t agent_spawn(struct agent *a, struct node *n, const struct agent_spawn *x);
NODISCARD err_t agent_kill(struct agent *a, struct node *n, uint64_t job, int slot, int sig);
/* The job has nothing more to do there: its arenas, segment and socket go. */
NODISCARD err_t agent_release(struct agent *a, struct node *n, uint64_t job);

#endif
