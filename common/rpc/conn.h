/* Internals of a connection, shared by conn.c, call.c, server.c, forward.c, link.c and the tests. */
#ifndef DTD_COMMON_RPC_CONN_H
#define DTD_COMMON_RPC_CONN_H

#include "common/rpc/account.h"
#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"

#include <sys/queue.h>

#define RPC_SCRATCH_BYTES (64u << 10)      /* the usual size of one read from a socket; larger bodies bypass it */
#define RPC_STREAM_HIGH_BYTES (256u << 10) /* rpc_item returns ERR_LIMIT from here on */
#define RPC_STREAM_LOW_BYTES (64u << 10)   /* on_drain is called below this; the gap avoids a callback per item */
#define RPC_FORWARDED_BYTES (64u << 20)    /* items in flight to all readers behind one connection, together, ... */
#define RPC_FORWARDED_LEAST (16u << 10)    /* ... but each reader may always have this many */
#define RPC_PAUSE_BYTES (4u << 20)         /* a peer with this much unread output is not read */
#define RPC_QUEUE_MAX_BYTES (64u << 20)    /* rpc_send returns ERR_LIMIT from here on */
#define RPC_STALL_MS 30000                 /* a paused peer that reads nothing for this long is disconnected */
#define RPC_STALL_FULL_MS 5000             /* the same, if its user's connections hold too much together */
#define RPC_MESSAGE_MS 30000               /* from the first byte of a message to its last one, ... */
#define RPC_SLOWEST_BYTES_PER_MS 64        /* ... and more for a long one: no network of a cluster is slower */
#define RPC_FINISH_MS 5000                 /* for rpc_conn_finish to send what is queued */
#define RPC_ERROR_BODY_BYTES 4096          /* an error frame has a code and one message of at most 1023 bytes */

/* A request that was sent and whose last answer has not been received. */
struct rpc_out {
    TAILQ_ENTRY(rpc_out) link;
    uint64_t id, due; /* due: loop time in ms, UINT64_MAX: never */
    err_t ending;     /* the result when due: ERR_TIMEOUT, or ERR_CANCELED after rpc_cancel */
    const struct rpc_method *method;
    rpc_callback cb;
    void *arg;
};

/* A request that was received and has not been answered completely. */
struct rpc_call {
    TAILQ_ENTRY(rpc_call) link;
    struct rpc_conn *conn; /* NULL: closed */
    uint64_t id, due;
    const struct rpc_method *method;
    bool abandoned;              /* the caller no longer waits: no frames are sent for this call */
    struct rpc_account *account; /* the call counts there; NULL: nowhere */
    void (*on_cancel)(void *arg), *cancel_arg;
    void (*on_drain)(void *arg), *drain_arg;
    /* A call that was forwarded to this program (forward.c) is the `inner` call of its Peer.Forward, the `outer` call.
     * It is in no list, and its answers are sent through `outer`. */
    bool is_inner;
    struct rpc_call *outer, *inner;
    void *data;
    size_t in_flight; /* bytes of items that its reader has not consumed */
};

/* Bytes of items that one forwarded stream may have in flight. The window shrinks with the number of streams, so that
 * slow readers occupy a bounded amount of memory in the forwarding node. */
static inline size_t rpc_stream_window(int streams)
{
    size_t share = RPC_FORWARDED_BYTES / (size_t)(streams > 0 ? streams : 1);
    return share < RPC_FORWARDED_LEAST     ? RPC_FORWARDED_LEAST
           : share < RPC_STREAM_HIGH_BYTES ? share
                                           : RPC_STREAM_HIGH_BYTES;
}

enum conn_state { CONN_OPEN, CONN_FINISHING, CONN_CLOSING };
enum body_fate { BODY_KEEP, BODY_SKIP };

struct rpc_conn {
    struct rpc_conn_config config;
    union {
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    };
    uv_timer_t timer; /* due at the earliest of all deadlines */
    uint64_t timer_due;
    int open_handles;
    enum conn_state state;
    uint32_t roles;
    void *data;
    struct rpc_peer peer;
    uint8_t version; /* the lower of RPC_VERSION and the peer's version */

    /* reading: first the header, then the body */
    uint8_t header[RPC_HEADER_BYTES];
    size_t header_len;
    struct frame frame;
    enum body_fate fate;
    uint8_t *body;
    size_t body_len;
    uint64_t begun; /* loop time of the first byte of an incomplete frame; 0: there is none */

    /* Not reading, because the peer does not read, its account is used up, or it sends too many requests. */
    bool paused;
    bool is_full;           /* it has RPC_PAUSE_BYTES of unread output; until it has half of that */
    uint64_t rest_until;    /* loop time */
    uint64_t stalled_since; /* loop time of the last progress while paused */
    size_t stalled_bytes;
    uint8_t *rest; /* what had been read already: rest[rest_at .. rest_len) */
    size_t rest_at, rest_len;

    int n_writes; /* frames in the queue of the socket */
    TAILQ_ENTRY(rpc_conn) of_account;
    size_t answer_bytes, request_bytes; /* as counted by the account */
    /* The permitted rate of requests; request_us 0: any. rate_due: loop time for which the requests so far suffice. */
    uint64_t request_us, burst_us, rate_due;

    TAILQ_HEAD(, rpc_out) outs;
    TAILQ_HEAD(, rpc_call) calls;
    int n_outs, n_calls;
    uint64_t last_out_id, last_call_id;
    struct rpc_conn_stats stats;
    void (*link_closed)(void *link, struct rpc_conn *conn); /* set by link.c; called instead of config.on_close */
    void *link;
};

/* conn.c */
err_t rpc_err_from_uv(int status);
void rpc_peer_of(int fd, struct rpc_peer *ret);
const struct rpc_method *rpc_conn_method(const struct rpc_conn *conn, uint16_t id);
int rpc_conn_max_calls(const struct rpc_conn *conn);
/* Queues a frame; `body` NULL: without a body. The caller has checked the length of the body. */
err_t rpc_conn_write(struct rpc_conn *conn, struct frame frame, const ProtobufCMessage *body);
/* Logs one line with the reason and closes. */
void rpc_conn_break(struct rpc_conn *conn, const char *reason);
/* Makes the timer run at `due` or earlier. */
void rpc_conn_wake_at(struct rpc_conn *conn, uint64_t due);
/* Memory of the frames that the socket has not accepted yet. */
size_t rpc_conn_held(const struct rpc_conn *conn);
void rpc_conn_pause_if_due(struct rpc_conn *conn);
void rpc_conn_count_request(struct rpc_conn *conn);
/* Processes bytes that were read from the socket; the fuzzer calls it directly. Stops when the connection closes. */
void rpc_conn_feed(struct rpc_conn *conn, const uint8_t *data, size_t len);

/* listen.c: connects without blocking; ERR_AGAIN: the listener's backlog is full. */
err_t rpc_connect_unix_now(const char *path, int *ret_fd);

/* server.c: requests and cancels. The admit functions see only the header. They decide whether the body is kept, or
 * return a reason to close the connection. The take functions receive the body. */
const char *rpc_server_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret);
const char *rpc_server_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body);
void rpc_call_abandon(struct rpc_call *call);
void rpc_call_free(struct rpc_call *call);
/* rpc_item without its limit on queued bytes: for callers that bound the number of items themselves. */
err_t rpc_call_item(struct rpc_call *call, const ProtobufCMessage *item);
uint64_t rpc_server_expire(struct rpc_conn *conn, uint64_t now); /* returns the next due time */
void rpc_server_drained(struct rpc_conn *conn);
void rpc_server_closed(struct rpc_conn *conn);

/* forward.c: sends an answer of a forwarded call; `body` may be NULL. The last answer ends `outer`. */
err_t rpc_forwarded_send(struct rpc_call *inner, enum rpc_kind kind, const ProtobufCMessage *body, err_t err,
                         const char *text);

/* call.c: replies, items, ends, errors */
const char *rpc_client_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret);
const char *rpc_client_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body);
uint64_t rpc_client_expire(struct rpc_conn *conn, uint64_t now);
void rpc_client_closed(struct rpc_conn *conn);

#endif
