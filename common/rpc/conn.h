/* What conn.c, call.c and server.c share: the inside of a connection. Nobody else includes this but tests. */
#ifndef DTD_COMMON_RPC_CONN_H
#define DTD_COMMON_RPC_CONN_H

#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"

#include <sys/queue.h>

#define RPC_SCRATCH_BYTES (64u << 10)
#define RPC_STREAM_HIGH_BYTES (256u << 10) /* rpc_item refuses from here */
#define RPC_STREAM_LOW_BYTES (64u << 10)   /* on_drain below here */
#define RPC_FORWARDED_BYTES (64u << 20)    /* of items on the way to all readers behind a connection, ... */
#define RPC_FORWARDED_LEAST (16u << 10)    /* ... but each may have so many */
#define RPC_PAUSE_BYTES (4u << 20)         /* the peer is not read while it has this much to take */
#define RPC_QUEUE_MAX_BYTES (64u << 20)    /* rpc_send refuses from here */
#define RPC_STALL_MS 30000
#define RPC_FINISH_MS 5000
#define RPC_ERROR_BODY_BYTES 4096

/* A request that we sent and whose last answer has not come. */
struct rpc_out {
    TAILQ_ENTRY(rpc_out) link;
    uint64_t id, due; /* due: loop time in ms, UINT64_MAX for never */
    err_t ending;     /* what to say when due: ERR_TIMEOUT, or ERR_CANCELED after rpc_cancel */
    const struct rpc_method *method;
    rpc_callback cb;
    void *arg;
};

/* A request that we received and have not answered to the end. */
struct rpc_call {
    TAILQ_ENTRY(rpc_call) link;
    struct rpc_conn *conn; /* NULL: gone */
    uint64_t id, due;
    const struct rpc_method *method;
    bool abandoned; /* nobody waits for the answer: no frame is sent for it */
    void (*on_cancel)(void *arg), *cancel_arg;
    void (*on_drain)(void *arg), *drain_arg;
    /* A call that was forwarded to us (forward.c): it is in no list, and answers through `outer`, which has it as
     * `inner`. */
    bool is_inner;
    struct rpc_call *outer, *inner;
    void *data;
    size_t on_the_way; /* bytes of items that its reader has not taken */
};

/* Bytes that a forwarded stream may have on the way: fewer where there are many streams, so that slow readers take a
 * bounded memory of the node between. */
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
    uv_timer_t timer; /* the earliest of all deadlines */
    uint64_t timer_due;
    int open_handles;
    enum conn_state state;
    uint32_t roles;
    void *data;
    struct rpc_peer peer;
    uint8_t version; /* the lower of ours and the peer's */

    /* reading: header bytes, then body bytes */
    uint8_t header[RPC_HEADER_BYTES];
    size_t header_len;
    struct frame frame;
    enum body_fate fate;
    uint8_t *body;
    size_t body_len;
    bool paused;
    uint64_t stalled_since; /* loop time of the last progress of a paused connection */
    size_t stalled_bytes;

    TAILQ_HEAD(, rpc_out) outs;
    TAILQ_HEAD(, rpc_call) calls;
    int n_outs, n_calls;
    uint64_t last_out_id, last_call_id;
    struct rpc_conn_stats stats;
    void (*link_closed)(void *link, struct rpc_conn *conn); /* link.c's, before config.on_close */
    void *link;
    uint8_t scratch[RPC_SCRATCH_BYTES];
};

/* conn.c */
err_t rpc_err_from_uv(int status);
void rpc_peer_of(int fd, struct rpc_peer *ret);
const struct rpc_method *rpc_conn_method(const struct rpc_conn *conn, uint16_t id);
int rpc_conn_max_calls(const struct rpc_conn *conn);
/* Queues a frame; `body` may be NULL for one without. Its length is checked by the caller. */
err_t rpc_conn_write(struct rpc_conn *conn, struct frame frame, const ProtobufCMessage *body);
/* Logs the one line and closes. */
void rpc_conn_break(struct rpc_conn *conn, const char *reason);
/* The timer will have run by `due`. */
void rpc_conn_wake_at(struct rpc_conn *conn, uint64_t due);
/* Bytes as they come from the socket; the fuzzer's way in. Stops when the connection closes. */
void rpc_conn_feed(struct rpc_conn *conn, const uint8_t *data, size_t len);

/* listen.c: a Unix socket connects at once or not at all; ERR_AGAIN when the backlog is full. */
err_t rpc_connect_unix_now(const char *path, int *ret_fd);

/* server.c: requests and cancels. The admit functions see a header only, and either say what becomes of the body or
 * return a reason to close; the take functions get the body. */
const char *rpc_server_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret);
const char *rpc_server_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body);
void rpc_call_abandon(struct rpc_call *call);
void rpc_call_free(struct rpc_call *call);
/* rpc_item without its mark: for items of which only so many can come. */
err_t rpc_call_item(struct rpc_call *call, const ProtobufCMessage *item);
uint64_t rpc_server_expire(struct rpc_conn *conn, uint64_t now); /* returns the next due time */
void rpc_server_drained(struct rpc_conn *conn);
void rpc_server_closed(struct rpc_conn *conn);

/* forward.c: an answer of a call that was forwarded to us; `body` NULL where there is none. The last one ends `outer`.
 */
err_t rpc_forwarded_say(struct rpc_call *inner, enum rpc_kind kind, const ProtobufCMessage *body, err_t err,
                        const char *text);

/* call.c: replies, items, ends, errors */
const char *rpc_client_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret);
const char *rpc_client_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body);
uint64_t rpc_client_expire(struct rpc_conn *conn, uint64_t now);
void rpc_client_closed(struct rpc_conn *conn);

#endif
