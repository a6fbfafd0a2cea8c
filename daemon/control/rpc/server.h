/* control.sock: who may come in, and what a connection is. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_SERVER_H
#define DTD_DAEMON_CONTROL_RPC_SERVER_H

#include "common/rpc/methods.h"

#include <sys/queue.h>

struct node;
struct job;
struct job_process;

/* Who calls: a connection of this node, or one of another node whose calls come to us because we lead. A client until a
 * Hello with a process's token makes it that process's. */
struct peer {
    struct node *node;
    LIST_ENTRY(peer) link;
    struct rpc_conn *conn;
    const char *from; /* the node that it is connected to; NULL: ours */
    uint64_t job;     /* 0: a client */
    int slot;
    uint32_t uid; /* of a client */
};

/* Who decides answers; or whoever is called does, whoever decides. */
struct rpc_server_row {
    enum { AT_LEADER, HERE } where;
    struct rpc_binding binding;
};
/* The cluster's own methods, of whichever cluster is linked in. */
const struct rpc_server_row *rpc_cluster_rows(int *ret_n);

/* Fills the node's method table. */
void rpc_server_bind(struct node *n);
NODISCARD err_t rpc_server_start(struct node *n, int fd);
/* No new connections. */
void rpc_server_finish(struct node *n);
/* The peer of a call's connection; NULL when it has gone. */
struct peer *rpc_server_peer(struct rpc_call *call);
/* The job and process that a call's connection belongs to; fails the call and returns NULL when there is none any more.
 */
struct job *rpc_server_job(struct rpc_call *call, struct job_process **ret);
/* For the Hellos, here and of processes at other nodes: checks the token where the process is and makes the connection
 * the process's, then asks who leads. Answers the call. */
struct hello {
    const char *job;
    int slot;
    const void *token;
    size_t token_bytes;
    uint64_t epoch; /* that the process is in; 0: none */
    uint32_t role;
};
void rpc_server_hello(struct node *n, struct rpc_call *call, const ProtobufCMessage *request, const struct hello *h);
/* Who calls; (uid_t)-1 when it has gone. */
uid_t rpc_server_uid(struct rpc_call *call);
/* Root and the user that dtd itself runs as; fails the call for anybody else. `what`: "stop dtd". */
bool rpc_server_is_admin(struct rpc_call *call, const char *what);
/* The user's name, or "uid 1234". */
const char *rpc_server_user(uid_t uid, char *ret, size_t size);
void rpc_server_drop(struct peer *peer);
/* To the node that leads, or a refusal; takes the call over. */
void rpc_server_pass_on(struct node *n, struct rpc_call *call, const ProtobufCMessage *request);
/* Nobody can answer it now: it stays without an answer until its connection goes. */
void rpc_server_park(struct rpc_call *call);

/* ---- handlers, one per method ---- */
#define RPC_HANDLER(where, id, handler) \
    void handler(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
RPC_CONTROL_METHODS(RPC_HANDLER)

/* Takes up the submits that have waited for it; on a tick, those that have waited long enough. */
void rpc_client_gpus_known(struct node *n);
void rpc_client_tick(struct node *n);
/* This node decides no more: those that wait are told to ask again. */
void rpc_client_forget(struct node *n);
/* Whether the caller may see and do everything with the job: its owner and root; with a private dtd all who come in. */
bool rpc_client_owns(const struct node *n, struct rpc_call *call, const struct job *j);
/* The job that a client names, or NULL after failing the call, also for a caller who does not own it. */
struct job *rpc_client_job(struct node *n, struct rpc_call *call, const char *id);

#endif
