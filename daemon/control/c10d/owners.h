/* Which node has the store of a name: the word of the node that leads, so that a user's name is one store in the whole
 * cluster. In memory alone, as the stores are: a new leader hears from every node, when it attends, what it has, and
 * gives no name away before all have been heard or are lost. A lost node's stores are gone; the others are told to
 * close their ports to them. Loop thread; owned by the node. */
#ifndef DTD_DAEMON_CONTROL_C10D_OWNERS_H
#define DTD_DAEMON_CONTROL_C10D_OWNERS_H

#include "common/base/err.h"
#include "daemon/control/c10d/stores.h"

struct agent;

struct store_name {
    SLIST_ENTRY(store_name) link;
    uint32_t uid;
    char name[STORES_NAME_MAX + 1];
    char node[NODE_NAME_MAX + 1];
};
SLIST_HEAD(store_names, store_name);

/* Leading: the node that has it, which is `asks` if nobody had. ERR_AGAIN: not all nodes have been heard. */
NODISCARD err_t store_names_claim(struct node *n, const struct agent *asks, uint32_t uid, const char *name,
                                  const char **ret_node);
/* It is closed, everywhere. ERR_NOTFOUND: there is none. */
NODISCARD err_t store_names_close(struct node *n, uint32_t uid, const char *name);
/* A node has come up, and these are all it has. */
struct store_said {
    uint32_t uid;
    const char *name;
};
void store_names_said(struct node *n, struct agent *a, const struct store_said *said, int count);
/* This node begins to decide; it decides no more. */
void store_names_begin(struct node *n);
void store_names_end(struct node *n);
void store_names_lost(struct node *n, const struct agent *a);

#endif
