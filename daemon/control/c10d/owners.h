/* The leader's table of c10d stores: which node has the store of a user's name. So a name means one store in the whole
 * cluster.
 *
 * The table is only in memory, like the stores. Each node reports its stores to a new leader when it opens the command
 * stream. A new leader assigns no name until all nodes have reported or are lost. The stores of a lost node no longer
 * exist; the leader orders the other nodes to close their ports to them. Loop thread; owned by the daemon. */
#ifndef DTD_DAEMON_CONTROL_C10D_OWNERS_H
#define DTD_DAEMON_CONTROL_C10D_OWNERS_H

#include "common/base/err.h"
#include "daemon/control/c10d/stores.h"

struct node_view;
struct jobs;
struct rpc_call;

struct c10d_owner {
    SLIST_ENTRY(c10d_owner) link;
    uint32_t uid;
    char name[C10D_NAME_MAX + 1];
    char node[NODE_NAME_MAX + 1];
};

struct c10d_owners {
    struct jobs *jobs; /* has the list of nodes */
    struct c10d_registry *c10d;
    /* Closes a store, or the port to it, on another node; `commands` is the command stream to that node. */
    err_t (*close_there)(struct rpc_call *commands, uint32_t uid, const char *name);
    SLIST_HEAD(, c10d_owner) names;
};

/* Leader: returns the node that has the store. If there is none, registers node `asks` and returns it. ERR_AGAIN: not
 * all nodes have reported their stores yet. */
NODISCARD err_t c10d_owners_claim(struct c10d_owners *names, const struct node_view *asks, uint32_t uid,
                                  const char *name, const char **ret_node);
/* Closes the store and all ports to it. ERR_NOTFOUND: no such store. */
NODISCARD err_t c10d_owners_close(struct c10d_owners *names, uint32_t uid, const char *name);
/* A node has opened its command stream and reports all its stores. */
struct c10d_owner_report {
    uint32_t uid;
    const char *name;
};
void c10d_owners_reported(struct c10d_owners *names, struct node_view *a, const struct c10d_owner_report *said,
                          int count);
/* This node becomes the leader; it is no longer the leader. */
void c10d_owners_begin(struct c10d_owners *names);
void c10d_owners_end(struct c10d_owners *names);
/* The leader declares a node lost. */
void c10d_owners_lost(struct c10d_owners *names, const struct node_view *a);

#endif
