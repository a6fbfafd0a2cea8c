/* Remote procedure calls over a stream socket: framing, dispatch by a method table over protobuf-c's generated
 * descriptors, streamed replies, deadlines. docs/formats/wire.md specifies every byte of the format.
 *
 * Frame: 24-byte little-endian header {magic u32, version u8, kind u8, method u16, call u64, deadline_ms u32, length
 * u32}, then a protobuf message. The method table has the permitted roles and sizes, which are checked before any
 * memory is allocated; the memory for unpacking is bounded. A malformed, oversized or truncated frame closes its
 * connection and writes one log line; other connections are not affected. Everything runs on the thread of the
 * connection's uv loop.
 *
 * A connection can carry calls in both directions. Callbacks never run inside the function that starts them. */
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
#define RPC_VERSION_OLDEST 1 /* still served; will be RPC_VERSION - 1 once there is a second version */
#define RPC_HEADER_BYTES 24
#define RPC_MAX_BODY_BYTES \
    ((16u << 20) + RPC_FORWARD_BYTES) /* of any frame; the method table has a lower limit for most methods */
#define RPC_FORWARD_BYTES (4u << 10)  /* the most that Peer.Forward adds to the body that it carries */
#define RPC_MAX_CALLS 256             /* outstanding on a connection, in each direction */
#define RPC_PEER_MAX_CALLS 8192       /* ... between nodes, where all clients and processes of a node share one */

enum rpc_kind { RPC_REQUEST = 1, RPC_REPLY, RPC_ITEM, RPC_END, RPC_ERROR, RPC_CANCEL };

/* Bit mask: the roles that may call a method, and the roles of a connection. The owner of the listener assigns roles at
 * accept (peer credentials) and after the Hello (token). */
enum rpc_role {
    RPC_ROLE_ANY = 1,
    RPC_ROLE_CLIENT = 2,
    RPC_ROLE_WORKER = 4,
    RPC_ROLE_IO = 8,
    RPC_ROLE_PEER = 16,
    RPC_ROLE_JOIN = 32, /* authenticated by a join token: may only join the cluster */
    RPC_ROLE_WEB = 64,  /* a client that logged in with a token of the web page: may look, and cancel */
    RPC_CLIENTS = RPC_ROLE_CLIENT | RPC_ROLE_WEB,
};

struct rpc_account; /* account.h */
struct rpc_conn;
struct rpc_call; /* one incoming request that has not been answered completely */

/* A handler answers with rpc_reply, with any number of rpc_item and rpc_end, or with rpc_fail, now or later, exactly
 * once. `request` is freed after it returns. A call whose caller has gone remains valid until the handler answers it
 * (the answer is discarded) or, after rpc_call_on_cancel, until that callback. */
typedef void (*rpc_handler)(void *owner, struct rpc_call *call, const ProtobufCMessage *request);

struct rpc_method {
    uint16_t id;      /* on the wire: never renumbered */
    const char *name; /* "Client.Submit" */
    uint32_t roles;
    uint32_t max_request_bytes;
    uint32_t max_reply_bytes;                          /* of REPLY, and of each ITEM */
    const ProtobufCMessageDescriptor *request, *reply; /* reply: of REPLY and ITEM */
    bool stream;                                       /* answered by ITEM frames and END */
    rpc_handler handler;                               /* NULL: the program does not serve this method */
};

/* ---- connections ---- */

struct rpc_conn_config {
    uv_loop_t *loop;
    const struct rpc_method *methods; /* methods of both directions, ascending by id; not copied */
    int n_methods;
    void *owner; /* first argument of handlers and of on_close */
    /* Called exactly once, after every outstanding call that was sent has failed with ERR_CLOSED. The memory of `conn`
     * is freed after it returns. */
    void (*on_close)(void *owner, struct rpc_conn *conn);
    int max_calls;               /* outstanding, in each direction; 0: RPC_MAX_CALLS */
    struct rpc_account *account; /* of the peer's user; NULL: only the limits of one connection hold */
    uint64_t message_ms;         /* for a peer to complete a message that it has begun; 0: RPC_MESSAGE_MS */
};

/* Takes over a connected socket, also on an error. */
NODISCARD err_t rpc_conn_open(const struct rpc_conn_config *config, int fd, uint32_t roles, struct rpc_conn **ret);
void rpc_conn_close(struct rpc_conn *conn); /* idempotent; drops queued output; on_close is called later */
/* Stops reading and closes the connection when the socket has accepted all queued output, or after 5 s. */
void rpc_conn_finish(struct rpc_conn *conn);
void rpc_conn_set_roles(struct rpc_conn *conn, uint32_t roles);
/* Above so many requests a second, after `burst` at once, the peer is read more slowly. */
void rpc_conn_set_rate(struct rpc_conn *conn, int per_second, int burst);
void rpc_conn_set_data(struct rpc_conn *conn, void *data);
void *rpc_conn_data(struct rpc_conn *conn);
pid_t rpc_conn_peer_pid(const struct rpc_conn *conn); /* SO_PEERCRED */
uid_t rpc_conn_peer_uid(const struct rpc_conn *conn);

/* Connects to a Unix socket; the descriptor is meant for rpc_conn_open. Blocks only while the listener's backlog is
 * full. common/rpc/link.h has a connection that is re-established automatically. */
NODISCARD err_t rpc_connect_unix(const char *path, int *ret_fd);

/* Counts since the connection was opened. `body_bytes` counts the bodies for which memory was allocated: refused calls
 * add nothing. */
struct rpc_conn_stats {
    uint64_t frames_in, frames_out, bytes_in, bytes_out, refused, body_bytes;
};
void rpc_conn_stats(const struct rpc_conn *conn, struct rpc_conn_stats *ret);

/* ---- listening ---- */

struct rpc_listener;
struct rpc_peer { /* as reported by the kernel (SO_PEERCRED); -1 if the socket is not a Unix socket */
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
/* The callback owns `fd`: it calls rpc_conn_open with the roles of this peer, or closes it. */
typedef void (*rpc_accept_cb)(void *owner, int fd, const struct rpc_peer *peer);
/* `fd` already listens, is set non-blocking and remains the caller's. */
NODISCARD err_t rpc_listen(uv_loop_t *loop, int fd, rpc_accept_cb cb, void *owner, struct rpc_listener **ret);
/* The callback is not called any more. The memory is freed by the loop's next turn. */
void rpc_listener_close(struct rpc_listener *listener);

/* ---- outgoing calls ---- */

struct rpc_result {
    err_t err;                     /* OK: REPLY, ITEM or END; ERR_TIMEOUT, ERR_CANCELED, ERR_CLOSED: set locally */
    bool last;                     /* this is the last callback of the call */
    const ProtobufCMessage *reply; /* NULL on an error and on END; freed after the callback */
    const char *text;              /* on an error: the other side's error message; else "" */
};
typedef void (*rpc_callback)(void *arg, const struct rpc_result *result);

/* Sends a request. deadline_ms 0: no deadline. If rpc_send returns OK, `cb` is called one or more times, the last time
 * with `last` set. *ret_call (ret_call may be NULL) is the id for rpc_cancel. */
NODISCARD err_t rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
                         rpc_callback cb, void *arg, uint64_t *ret_call);
void rpc_cancel(struct rpc_conn *conn, uint64_t call);
/* Bytes that are queued and that the socket has not accepted yet. rpc_item and rpc_call_on_drain limit them for
 * streams. A peer that sends calls without reading the answers is not read until it reads them, and its connection is
 * closed after 30 s without progress. */
size_t rpc_conn_queued(const struct rpc_conn *conn);

/* ---- incoming calls ---- */

/* The connection of the call, or of the Peer.Forward that carries it. NULL: it has closed. */
struct rpc_conn *rpc_call_conn(struct rpc_call *call);
/* The data of the connection, or for a forwarded call `data` of rpc_forwarded_start. NULL: the connection closed. */
void *rpc_call_data(struct rpc_call *call);
uint16_t rpc_call_method(const struct rpc_call *call);
/* `cb` is called at most once: if the caller cancels, its deadline passes or the connection closes. No answer may be
 * sent after it. */
void rpc_call_on_cancel(struct rpc_call *call, void (*cb)(void *arg), void *arg);
void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* ERR_LIMIT: too much output is queued (256 KiB); repeat after on_drain. ERR_CANCELED: the caller has gone.
 * ERR_INVALID: the item is larger than the method allows. The handler must still end the call after each of these
 * errors. */
NODISCARD err_t rpc_item(struct rpc_call *call, const ProtobufCMessage *item);
/* `cb` is called once when an rpc_item that returned ERR_LIMIT may be repeated. NULL removes the callback. */
void rpc_call_on_drain(struct rpc_call *call, void (*cb)(void *arg), void *arg);
void rpc_end(struct rpc_call *call);
void rpc_fail(struct rpc_call *call, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- forwarded calls ----
 *
 * A program that cannot answer a call can forward it, as Peer.Forward over another connection, to a program that can.
 * There the same handler serves it as if it had been called directly. Reply, items, end, error, cancel and the loss of
 * either connection are passed on, and a stream with a slow reader holds its writer back. */

/* Original caller of a forwarded call, as asserted by the forwarding node: a client, or a process of a job. */
struct rpc_origin {
    bool is_process;
    uid_t uid;        /* of a client */
    bool is_operator; /* a client of the web page who sees the jobs of all users */
    uint64_t job;     /* of a process */
    int slot;         /* of a process */
};

/* Takes the call over in every case; `request` is the request that its handler received. If the connection to the
 * answering program is lost, the call fails with ERR_AGAIN. With `hold` it instead remains unanswered until its own
 * connection closes: this is for callers that reconnect by themselves and would take the error for the answer. */
void rpc_forward(struct rpc_call *call, const ProtobufCMessage *request, struct rpc_conn *conn,
                 const struct rpc_origin *origin, bool hold);

/* For the handlers of PEER_FORWARD and PEER_WINDOW_UPDATE in the answering program. */
void rpc_forwarded_origin(const ProtobufCMessage *request, struct rpc_origin *ret);
struct rpc_forwarded {
    const struct rpc_method *methods; /* ascending by id */
    int n_methods;
    void *owner; /* first argument of handlers */
    uint32_t roles;
    void *data; /* rpc_call_data of the call */
};
/* Checks role and size like a direct call, unpacks the request and calls the handler. Answers `outer` in every case. */
void rpc_forwarded_start(struct rpc_call *outer, const ProtobufCMessage *request, const struct rpc_forwarded *config);
void rpc_forwarded_window_update(struct rpc_call *call, const ProtobufCMessage *request);

#endif
