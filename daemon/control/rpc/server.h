/* control.sock and what its connections are, and the calls that other nodes forward. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_SERVER_H
#define DTD_DAEMON_CONTROL_RPC_SERVER_H

#include "common/rpc/methods.h"
#include "daemon/control/c10d/owners.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/job/jobs.h"

#include <sys/queue.h>

struct held_submit; /* client.c */

/* A connection of this node, or one of another node whose calls come to us because we lead. It is a client's until a
 * Hello with a process's token makes it that process's. */
struct peer {
    struct rpc_server *server;
    LIST_ENTRY(peer) link;
    struct rpc_conn *conn;
    const char *from; /* the node that it is connected to; NULL: ours */
    uint64_t job;     /* 0: a client */
    int slot;
    uint32_t uid; /* of a client */
};

/* Owned by the daemon (control.h). */
struct rpc_server {
    /* The rooms that the handlers work on. */
    uv_loop_t *loop;
    struct local *local;
    struct replica *replica;
    struct cluster *cluster;
    struct jobs *jobs;
    struct c10d_registry *c10d;
    struct c10d_owners *c10d_owners;
    bool system;               /* dtd serves all users of the machine */
    void (*stop)(void *owner); /* this dtd is to end */
    void *owner;

    struct rpc_method methods[RPC_METHOD_COUNT]; /* for those who connect to this node */
    struct rpc_method
        served[RPC_METHOD_COUNT];     /* the same, each answered here: for calls that nodes forward to the leader */
    struct rpc_listener *listener;    /* NULL: not served */
    LIST_HEAD(, peer) peers;          /* every connection */
    struct held_submit *held_submits; /* they wait for the probe */
    struct rpc_conn *leader;          /* following: to the leader; NULL: not now */
    int64_t attend_ms; /* following: when the leader is asked for commands again; 0: it has been, or cannot be */
    int reports;       /* sent to the leader and not answered */
    bool list_due;     /* the leader is to get the list of all processes here, when there is room */
};

/* Fills the tables of methods. */
void rpc_server_bind(struct rpc_server *s);
NODISCARD err_t rpc_server_start(struct rpc_server *s, int fd);
/* No new connections. */
void rpc_server_finish(struct rpc_server *s);
void rpc_server_drop(struct peer *peer);
/* Passes a call to the leader, or refuses it; takes the call over. */
void rpc_server_pass_on(struct rpc_server *s, struct rpc_call *call, const ProtobufCMessage *request);
/* Nobody can answer the call now: it stays without an answer until its connection goes. */
void rpc_server_park(struct rpc_call *call);

/* For the Hellos, here and of processes at other nodes: checks the token where the process is and makes the connection
 * the process's, then asks the leader. Answers the call. */
struct hello {
    const char *job;
    int slot;
    const void *token;
    size_t token_bytes;
    uint64_t epoch; /* that the process is in; 0: none */
    uint32_t role;
};
void rpc_server_hello(struct rpc_server *s, struct rpc_call *call, const ProtobufCMessage *request,
                      const struct hello *h);

#endif
