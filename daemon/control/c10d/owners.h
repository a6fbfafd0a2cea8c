/* Which node has the store of a name: the word of the node that leads, so that a user's name is one store in the whole
 * cluster. In memory alone, as the stores are: a new leader hears from every node, when it attends, what it has, and
 * gives no name away before all have been heard or are lost. A lost node's stores are gone; the others are told to
 * close their ports to them. Loop thread; owned by the node. */
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
    struct jobs *jobs; /* which nodes there are */
    struct c10d_registry *c10d;
    /* Closes a store of another node, or the port to it there; `commands` is where that node takes commands. */
    err_t (*close_there)(struct rpc_call *commands, uint32_t uid, const char *name);
    SLIST_HEAD(, c10d_owner) names;
};

/* Leading: the node that has it, which is `asks` if nobody had. ERR_AGAIN: not all nodes have been heard. */
NODISCARD err_t c10d_owners_claim(struct c10d_owners *names, const struct node_view *asks, uint32_t uid,
                                  const char *name, const char **ret_node);
/* It is closed, everywhere. ERR_NOTFOUND: there is none. */
NODISCARD err_t c10d_owners_close(struct c10d_owners *names, uint32_t uid, const char *name);
/* A node has come up, and these are all it has. */
struct c10d_owner_report {
    uint32_t uid;
    const char *name;
};
void c10d_owners_reported(struct c10d_owners *names, struct node_view *a, const struct c10d_owner_report *said,
                          int count);
/* This node begins to decide; it decides no more. */
void c10d_owners_begin(struct c10d_owners *names);
void c10d_owners_end(struct c10d_owners *names);
void c10d_owners_lost(struct c10d_owners *names, const struct node_view *a);

#endif
