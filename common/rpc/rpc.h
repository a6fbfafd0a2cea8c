/* Calls over a stream socket: framing, dispatch by a table over protobuf-c's generated descriptors, streamed replies,
 * deadlines. docs/wire.md is the byte-exact format.
 *
 * Frame: 24-byte little-endian header {magic u32, version u8, kind u8, method u16, call u64, deadline_ms u32, length
 * u32}, then a protobuf message. Role and size are columns of the method table and are checked before anything is
 * allocated; the unpacker's memory is bounded. A malformed, oversized or truncated frame closes its connection with a
 * log line and nothing else notices. Everything here lives on the thread of the uv loop that it was given.
 *
 * The same connection may carry calls in both directions. Callbacks never run inside the call that starts them. */
#ifndef DTD_COMMON_RPC_RPC_H
#define DTD_COMMON_RPC_RPC_H

#include "common/base/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define RPC_MAGIC 0x31445444u /* "DTD1" */
#define RPC_VERSION 1
#define RPC_VERSION_OLDEST 1 /* still served: one major version back, once there is one */
#define RPC_HEADER_BYTES 24
#define RPC_MAX_BODY_BYTES \
    ((16u << 20) + RPC_FORWARD_BYTES) /* of any frame; the method table says less for each method */
#define RPC_FORWARD_BYTES (4u << 10)  /* what Peer.Forward adds to the body that it carries */
#define RPC_MAX_CALLS 256             /* outstanding on a connection, each way */
#define RPC_PEER_MAX_CALLS 8192       /* ... between nodes: a node's clients and processes share one */

enum rpc_kind { RPC_REQUEST = 1, RPC_REPLY, RPC_ITEM, RPC_END, RPC_ERROR, RPC_CANCEL };

/* Who may call a method; a connection's roles are decided by the listener's owner at accept (peer credentials) and by
 * its Hello (token). A bit mask. */
enum rpc_role {
    RPC_ROLE_ANY = 1,
    RPC_ROLE_CLIENT = 2,
    RPC_ROLE_WORKER = 4,
    RPC_ROLE_IO = 8,
    RPC_ROLE_PEER = 16,
    RPC_ROLE_JOIN = 32, /* came by a join token: may join, and nothing else */
};

struct rpc_conn;
struct rpc_call; /* one incoming request that has not been answered to the end */

/* Answers with rpc_reply, rpc_item.. + rpc_end, or rpc_fail, now or later, exactly once. `request` is freed after
 * return. A call that lost its caller stays valid until it is answered (the answer goes nowhere) or, with
 * rpc_call_on_cancel, until that callback. */
typedef void (*rpc_handler)(void *owner, struct rpc_call *call, const ProtobufCMessage *request);

struct rpc_method {
    uint16_t id;      /* on the wire: never renumbered */
    const char *name; /* "Client.Submit" */
    uint32_t roles;
    uint32_t max_request_bytes;
    uint32_t max_reply_bytes;                          /* of REPLY, and of each ITEM */
    const ProtobufCMessageDescriptor *request, *reply; /* reply: of REPLY and ITEM */
    bool stream;                                       /* answered by items and an end */
    rpc_handler handler;                               /* NULL in a client's table */
};

/* ---- connections ---- */

struct rpc_conn_config {
    uv_loop_t *loop;
    const struct rpc_method *methods; /* what the other side may call and what we call, ascending by id; not copied */
    int n_methods;
    void *owner; /* first argument of handlers and of on_close */
    /* Exactly once, after every outstanding call of ours has been failed with ERR_CLOSED; memory of the conn is gone
     * after it. */
    void (*on_close)(void *owner, struct rpc_conn *conn);
    int max_calls; /* outstanding, each way; 0: RPC_MAX_CALLS */
};

/* Takes over a connected socket (also on error). */
NODISCARD err_t rpc_conn_open(const struct rpc_conn_config *config, int fd, uint32_t roles, struct rpc_conn **ret);
void rpc_conn_close(struct rpc_conn *conn); /* idempotent; on_close comes later; what is still queued is dropped */
/* Reads no more, and closes when all that is queued has been taken by the socket (or after 5 s). */
void rpc_conn_finish(struct rpc_conn *conn);
void rpc_conn_set_roles(struct rpc_conn *conn, uint32_t roles);
void rpc_conn_set_data(struct rpc_conn *conn, void *data);
void *rpc_conn_data(struct rpc_conn *conn);
pid_t rpc_conn_peer_pid(const struct rpc_conn *conn); /* SO_PEERCRED */
uid_t rpc_conn_peer_uid(const struct rpc_conn *conn);

/* Connect to a Unix socket; fd to be given to rpc_conn_open. Waits only while the listener's backlog is full. For a
 * connection that comes back by itself see common/rpc/link.h. */
NODISCARD err_t rpc_connect_unix(const char *path, int *ret_fd);

/* Since the connection was opened. `body_bytes` are those that memory was allocated for: refused calls add nothing. */
struct rpc_conn_stats {
    uint64_t frames_in, frames_out, bytes_in, bytes_out, refused, body_bytes;
};
void rpc_conn_stats(const struct rpc_conn *conn, struct rpc_conn_stats *ret);

/* ---- listening ---- */

struct rpc_listener;
struct rpc_peer { /* the kernel's word (SO_PEERCRED); -1 where the socket is not a Unix one */
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
/* The callback owns fd: rpc_conn_open it, with the roles that this peer deserves, or close it. */
typedef void (*rpc_accept_cb)(void *owner, int fd, const struct rpc_peer *peer);
/* `fd` listens already and stays the caller's; it is set non-blocking. */
NODISCARD err_t rpc_listen(uv_loop_t *loop, int fd, rpc_accept_cb cb, void *owner, struct rpc_listener **ret);
void rpc_listener_close(
    struct rpc_listener *listener); /* no callback comes any more; memory goes with the loop's next turn */

/* ---- calls that we make ---- */

struct rpc_result {
    err_t err;                     /* OK for REPLY, ITEM, END; ERR_TIMEOUT, ERR_CANCELED, ERR_CLOSED are said here */
    bool last;                     /* no more callbacks of this call */
    const ProtobufCMessage *reply; /* NULL on error and END; freed after the callback */
    const char *text;              /* the other side's sentence on error, else "" */
};
typedef void (*rpc_callback)(void *arg, const struct rpc_result *result);

/* Sends a request. deadline_ms 0: none. Unless it fails here, `cb` is called until `last`. ret_call (may be NULL) is
 * the id for rpc_cancel. */
NODISCARD err_t rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
                         rpc_callback cb, void *arg, uint64_t *ret_call);
void rpc_cancel(struct rpc_conn *conn, uint64_t call);
/* Bytes queued and not yet taken by the socket. rpc_item and rpc_call_on_drain hold streams back; a peer that calls and
 * does not read its answers is read no more until it does, and closed after 30 s of that. */
size_t rpc_conn_queued(const struct rpc_conn *conn);

/* ---- calls that we answer ---- */

struct rpc_conn *
rpc_call_conn(struct rpc_call *call); /* NULL when it has gone; of a call that was forwarded: what brought it */
/* The connection's data; of a call that was forwarded: what rpc_forwarded_start was given. NULL when it has gone. */
void *rpc_call_data(struct rpc_call *call);
uint16_t rpc_call_method(const struct rpc_call *call);
/* Called at most once if the caller cancels, its deadline passes or the connection goes; no answer may follow. */
void rpc_call_on_cancel(struct rpc_call *call, void (*cb)(void *arg), void *arg);
void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* ERR_LIMIT: too much is queued (256 KiB), again after on_drain; ERR_CANCELED: nobody waits any more; ERR_INVALID:
 * larger than the method allows. The call is still to be ended in every case. */
NODISCARD err_t rpc_item(struct rpc_call *call, const ProtobufCMessage *item);
/* `cb` is called once when an rpc_item that said ERR_LIMIT may be repeated. NULL takes it back. */
void rpc_call_on_drain(struct rpc_call *call, void (*cb)(void *arg), void *arg);
void rpc_end(struct rpc_call *call);
void rpc_fail(struct rpc_call *call, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- calls that go on ----
 *
 * A program that cannot answer a call may forward it over another connection, as Peer.Forward, to one that can. There
 * it meets the same handler as a call that came directly; reply, items, end, error, cancel and the end of either
 * connection pass through, and a stream whose reader is slow holds its writer back. */

/* On whose behalf: a client's, or a process's of a job. The word of the program that forwards. */
struct rpc_origin {
    bool is_process;
    uid_t uid;    /* a client's */
    uint64_t job; /* a process's */
    int slot;
};

/* Takes the call over, in every case; `request` is what its handler was given. When the way to the answer is lost, the
 * call fails with ERR_AGAIN; with `hold` it stays without an answer until its own connection goes, for callers that
 * come back by themselves and would take an error for the answer. */
void rpc_forward(struct rpc_call *call, const ProtobufCMessage *request, struct rpc_conn *conn,
                 const struct rpc_origin *origin, bool hold);

/* For the handlers of PEER_FORWARD and PEER_TAKEN at the other end. */
void rpc_forwarded_origin(const ProtobufCMessage *request, struct rpc_origin *ret);
struct rpc_forwarded {
    const struct rpc_method *methods; /* ascending by id */
    int n_methods;
    void *owner; /* handlers' first argument */
    uint32_t roles;
    void *data; /* rpc_call_data of the call */
};
/* Checks role and size as admission does, unpacks and calls the handler. Answers `outer` in every case. */
void rpc_forwarded_start(struct rpc_call *outer, const ProtobufCMessage *request, const struct rpc_forwarded *config);
void rpc_forwarded_taken(struct rpc_call *call, const ProtobufCMessage *request);

#endif
