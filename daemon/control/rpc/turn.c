/* See turn.h. A waiting call is a copy of its request. It leaves the queue when it is handled, or when its caller goes.
 */
#include "daemon/control/rpc/turn.h"

#include "proto/peer.pb-c.h"

#include <stdlib.h>

/* Unsent bytes of a node's connection, from which on a user waits who has an answer among them. The answers of all
 * others follow them: to send so many takes some milliseconds. */
#define UNSENT_BYTES (256u << 10)

struct rpc_waiting {
    TAILQ_ENTRY(rpc_waiting) link;
    struct rpc_server *server;
    struct rpc_user *user;
    struct rpc_call *call;
    Dtd__ForwardRequest *request;
    size_t bytes;
    rpc_turn_cb cb;
};

static void waiting_free(struct rpc_waiting *w)
{
    TAILQ_REMOVE(&w->user->waiting, w, link);
    w->user->waiting_bytes -= w->bytes;
    dtd__forward_request__free_unpacked(w->request, NULL);
    free(w);
}

static void caller_gone(void *arg)
{
    waiting_free(arg);
}

static void handle(struct rpc_server *server, struct rpc_user *u, struct rpc_call *call,
                   const ProtobufCMessage *request, rpc_turn_cb cb)
{
    uint64_t begin = uv_hrtime();
    struct rpc_conn *conn = rpc_call_conn(call);
    struct rpc_conn_stats stats;
    cb(server, call, request);
    rpc_account_spend(&u->account, begin, uv_now(server->loop));
    rpc_conn_stats(conn, &stats);
    u->answered_by = conn;
    u->answered_at = stats.bytes_out;
}

/* An answer of the user waits in a long queue of this connection. */
static bool has_unsent(const struct rpc_user *u, const struct rpc_conn *conn)
{
    struct rpc_conn_stats stats;
    size_t unsent = rpc_conn_queued(conn);
    if (unsent < UNSENT_BYTES || u->answered_by != conn)
        return false;
    rpc_conn_stats(conn, &stats);
    return stats.bytes_out - unsent < u->answered_at;
}

/* The user may get more of the loop's time only when it has been through everything else. */
static bool may_run(struct rpc_server *server, struct rpc_user *u, struct rpc_call *call)
{
    return !rpc_account_rests(&u->account, uv_now(server->loop)) && !has_unsent(u, rpc_call_conn(call));
}

static void run_waiting(struct rpc_server *server, struct rpc_user *u)
{
    struct rpc_waiting *w;
    while ((w = TAILQ_FIRST(&u->waiting)) && may_run(server, u, w->call)) {
        Dtd__ForwardRequest *request = w->request;
        struct rpc_call *call = w->call;
        rpc_turn_cb cb = w->cb;
        w->request = NULL;
        rpc_call_on_cancel(call, NULL, NULL);
        waiting_free(w);
        handle(server, u, call, &request->base, cb);
        dtd__forward_request__free_unpacked(request, NULL);
    }
}

void rpc_turn_tick(struct rpc_server *server)
{
    struct rpc_user *u;
    LIST_FOREACH(u, &server->users, link)
    run_waiting(server, u);
}

static err_t wait_for_turn(struct rpc_server *server, struct rpc_user *u, struct rpc_call *call,
                           const ProtobufCMessage *request, rpc_turn_cb cb)
{
    size_t bytes = protobuf_c_message_get_packed_size(request);
    if (bytes > u->account.max_bytes / 2 - u->waiting_bytes)
        return ERR_LIMIT;
    struct rpc_waiting *w = calloc(1, sizeof(*w));
    uint8_t *packed = malloc(bytes + 1);
    if (w && packed)
        w->request = dtd__forward_request__unpack(NULL, protobuf_c_message_pack(request, packed), packed);
    free(packed);
    if (!w || !w->request) {
        free(w);
        return ERR_NOMEM;
    }
    w->server = server;
    w->user = u;
    w->call = call;
    w->bytes = bytes;
    w->cb = cb;
    u->waiting_bytes += bytes;
    TAILQ_INSERT_TAIL(&u->waiting, w, link);
    rpc_call_on_cancel(call, caller_gone, w);
    return OK;
}

void rpc_turn_take(struct rpc_server *server, uint32_t uid, struct rpc_call *call, const ProtobufCMessage *request,
                   rpc_turn_cb cb)
{
    struct rpc_user *u = rpc_share_user(server, uid);
    if (!u) {
        cb(server, call, request);
        return;
    }
    run_waiting(server, u);
    if (TAILQ_EMPTY(&u->waiting) && may_run(server, u, call)) {
        handle(server, u, call, request, cb);
        return;
    }
    err_t err = wait_for_turn(server, u, call, request, cb);
    if (err)
        rpc_fail(call, err, "%s",
                 err == ERR_LIMIT ? "too many of your requests wait for the leader (users.buffer_mib): try again"
                                  : err_text(err));
}
