/* The server of control.sock: its connections, and the calls that other nodes forward to this one. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_SERVER_H
#define DTD_DAEMON_CONTROL_RPC_SERVER_H

#include "common/base/log_limit.h"
#include "common/base/shares.h"
#include "common/rpc/methods.h"
#include "daemon/control/c10d/owners.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/job/jobs.h"
#include "daemon/control/local/names.h"
#include "daemon/control/local/pool.h"
#include "daemon/control/rpc/share.h"

#include <sys/queue.h>

struct event_stream; /* events.c */
struct held_submit;  /* client.c */
struct watch;        /* watch.h */

/* A connection to control.sock of this node, or, if this node leads, one to another node that forwards its calls. It
 * belongs to a client until a Hello with the token of a process assigns it to that process. */
struct peer {
    struct rpc_server *server;
    LIST_ENTRY(peer) link;
    struct rpc_conn *conn;
    const char *from; /* the node that it is connected to; NULL: this one */
    uint64_t job;     /* 0: a client */
    int slot;
    uint32_t uid;        /* the user, from the kernel, or of the token with which he logged in to the web page */
    uint32_t kernel_uid; /* the user whose descriptor it is */
    bool is_page;        /* it logged in with a token of the web page */
    bool is_operator;    /* of a forwarded call: the node that forwards it reports so */
};

/* Owned by the daemon (control.h). */
struct rpc_server {
    /* The rooms that the handlers use. */
    uv_loop_t *loop;
    struct local *local;
    struct replica *replica;
    struct cluster *cluster;
    struct jobs *jobs;
    struct c10d_registry *c10d;
    struct c10d_owners *c10d_owners;
    struct shares *descriptors; /* of the users */
    bool system;                /* dtd serves all users of the machine */
    void (*stop)(void *owner);  /* shut down this dtd */
    void *owner;

    /* Handlers for connections to this node; a follower forwards some of the calls to the leader. */
    struct rpc_method methods[RPC_METHOD_COUNT];
    /* The same methods for calls that other nodes forwarded: all are handled here. */
    struct rpc_method served[RPC_METHOD_COUNT];
    struct rpc_listener *listener;       /* NULL: no new connections are accepted */
    LIST_HEAD(, peer) peers;             /* all connections to this node */
    struct log_limit refusals;           /* log lines about connections and processes that were refused */
    struct held_submit *held_submits;    /* submits that wait for the probe */
    LIST_HEAD(, rpc_proposal) proposals; /* of clients' calls that wait for the log */
    LIST_HEAD(, rpc_user) users;         /* those with connections */
    struct rpc_conn *leader;             /* follower: connection to the leader; NULL: there is none now */
    int64_t attend_ms; /* follower: when to open the command stream; 0: it is open, or there is no leader */
    int reports;       /* number of reports to the leader that wait for an answer */
    bool list_due;     /* the list of all processes is to be sent when `reports` is 0 */

    int joins;                               /* records of joining nodes that are not applied yet */
    struct pool reads;                       /* short reads of log files; writes of the cluster's view */
    struct pool parses;                      /* files of metrics, which may take long */
    LIST_HEAD(, watch) watch_loads;          /* calls that have the content of a file in memory, or will have */
    bool extends_curve;                      /* a task of `parses` extends a curve file */
    LIST_HEAD(, event_stream) event_streams; /* Events calls */
    struct user_names names;
};

/* Fills the tables of methods. */
void rpc_server_bind(struct rpc_server *s);
/* Prepares the threads of the handlers; before the first call arrives. */
NODISCARD err_t rpc_server_init(struct rpc_server *s);
NODISCARD err_t rpc_server_start(struct rpc_server *s, int fd);
/* Accepts no more connections; existing ones remain. */
void rpc_server_finish(struct rpc_server *s);
/* Closes the connection of a process. */
void rpc_server_drop(struct peer *peer);
/* Forwards a call to the leader, or fails it if there is none. Takes over the call. */
void rpc_server_pass_on(struct rpc_server *s, struct rpc_call *call, const ProtobufCMessage *request);
/* Leaves the call without an answer until its connection is closed, because no node can answer it now. */
void rpc_server_park(struct rpc_call *call);

/* Handles the Hello of a process of this node or of another one, and answers the call. The process's own node checks
 * the token and assigns the connection to the process; then the leader checks the epoch. */
struct hello {
    const char *job;
    int slot;
    const void *token;
    size_t token_bytes;
    uint64_t epoch; /* the epoch that the process is in; 0: none */
    uint32_t role;
};
void rpc_server_hello(struct rpc_server *s, struct rpc_call *call, const ProtobufCMessage *request,
                      const struct hello *h);

#endif
