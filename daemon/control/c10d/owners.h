/* Which node has the store of a name: the word of the node that leads, so that a user's name is one store in the whole
 * cluster. In memory alone, as the stores are: a new leader hears from every node, when it attends, what it has, and
 * gives no name away before all have been heard or are lost. A lost node's stores are gone; the others are told to
 * close their ports to them. Loop thread; owned by the node. */
#ifndef DTD_DAEMON_CONTROL_C10D_OWNERS_H
#define DTD_DAEMON_CONTROL_C10D_OWNERS_H

#include "common/base/err.h"
#include "daemon/control/c10d/stores.h"

struct agent;
struct jobs;
struct rpc_call;

struct store_name {
    SLIST_ENTRY(store_name) link;
    uint32_t uid;
    char name[STORES_NAME_MAX + 1];
    char node[NODE_NAME_MAX + 1];
};

struct store_names {
    struct jobs *jobs; /* which nodes there are */
    struct stores *stores;
    /* Closes a store of another node, or the port to it there; `commands` is where that node takes commands. */
    err_t (*close_there)(struct rpc_call *commands, uint32_t uid, const char *name);
    SLIST_HEAD(, store_name) names;
};

/* Leading: the node that has it, which is `asks` if nobody had. ERR_AGAIN: not all nodes have been heard. */
NODISCARD err_t store_names_claim(struct store_names *names, const struct agent *asks, uint32_t uid, const char *name,
                                  const char **ret_node);
/* It is closed, everywhere. ERR_NOTFOUND: there is none. */
NODISCARD err_t store_names_close(struct store_names *names, uint32_t uid, const char *name);
/* A node has come up, and these are all it has. */
struct store_said {
    uint32_t uid;
    const char *name;
};
void store_names_said(struct store_names *names, struct agent *a, const struct store_said *said, int count);
/* This node begins to decide; it decides no more. */
void store_names_begin(struct store_names *names);
void store_names_end(struct store_names *names);
void store_names_lost(struct store_names *names, const struct agent *a);

#endif
