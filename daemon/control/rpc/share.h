/* What one user may use of control: connections, memory and time of the loop (common/rpc/account.h), and places in the
 * list of jobs and in the log. Only in a system-wide dtd; a private one serves a single user. Root and dtd's own user
 * have no limits, so that root can always look and cancel. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_SHARE_H
#define DTD_DAEMON_CONTROL_RPC_SHARE_H

#include "common/base/err.h"
#include "common/rpc/account.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct rpc_server;

struct rpc_conn;
struct rpc_waiting; /* turn.c */

/* A user with connections to this node, or with calls that other nodes forward to it. */
struct rpc_user {
    LIST_ENTRY(rpc_user) link;
    uint32_t uid;
    struct rpc_account account;
    TAILQ_HEAD(, rpc_waiting) waiting; /* forwarded calls that wait for their turn */
    size_t waiting_bytes;
    struct rpc_conn
        *answered_by;     /* turn.c: the node's connection with the last answer to a forwarded call; never read */
    uint64_t answered_at; /* the bytes of the connection up to the end of that answer */
};

/* A record that a user's call has proposed, or waits to propose, and that is not applied yet. */
struct rpc_proposal {
    LIST_ENTRY(rpc_proposal) link;
    uint32_t uid;
    bool is_submit;
    size_t bytes; /* of the job file */
};

/* NULL: the user has no limits, or there is no memory. Valid until the loop's next event. */
struct rpc_user *rpc_share_user(struct rpc_server *server, uint32_t uid);
/* A program of this user has connected. False: he has all the connections that he may have. Otherwise the owner of the
 * connection calls rpc_share_disconnected when it has closed; *ret_account is NULL if the user has no limits. */
bool rpc_share_connected(struct rpc_server *server, uint32_t uid, struct rpc_account **ret_account);
void rpc_share_disconnected(struct rpc_server *server, uint32_t uid);

/* Whether a user may propose one more record. */
NODISCARD err_t rpc_share_proposes(const struct rpc_server *server, uint32_t uid, struct why *why);
/* Whether a user may submit one more job with a job file of so many bytes. Removes his oldest jobs that have ended, if
 * the job files of his jobs have more than users.job_mib otherwise. */
NODISCARD err_t rpc_share_submits(struct rpc_server *server, uint32_t uid, size_t bytes, struct why *why);

#endif
