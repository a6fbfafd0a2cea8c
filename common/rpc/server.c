/* Incoming calls. The header of a request decides whether memory is allocated for its body: number, method, role, size,
 * number of outstanding calls. A refused request is answered immediately by an error frame, and its body is skipped as
 * it arrives.
 *
 * A call is `abandoned` when its caller has gone (cancel, deadline, loss of the connection). With on_cancel it ends
 * there; without, it waits for the handler's answer and discards it. Until then it counts against the connection's
 * limit of calls, so that a peer cannot accumulate work by calling and canceling in a loop. */
#include "common/rpc/alloc.h"
#include "common/rpc/conn.h"
#include "proto/rpc.pb-c.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rpc_call *call_find(struct rpc_conn *conn, uint64_t id)
{
    struct rpc_call *call;
    TAILQ_FOREACH(call, &conn->calls, link)
    {
        if (call->id == id && !call->abandoned)
            return call;
    }
    return NULL;
}

void rpc_call_free(struct rpc_call *call)
{
    if (call->account)
        call->account->n_calls--;
    if (call->outer) {
        call->outer->inner = NULL;
    } else if (call->conn && !call->is_inner) {
        TAILQ_REMOVE(&call->conn->calls, call, link);
        call->conn->n_calls--;
    }
    free(call);
}

static void write_error(struct rpc_conn *conn, uint16_t method, uint64_t call, err_t err, const char *text)
{
    Dtd__RpcError e = DTD__RPC_ERROR__INIT;
    e.code = err;
    e.text = (char *)text;
    const struct frame frame = {.kind = RPC_ERROR, .method = method, .call = call};
    if (rpc_conn_write(conn, frame, &e.base) == ERR_NOMEM)
        rpc_conn_break(conn, "out of memory");
}

/* Sends one frame of an answer, or one event of it for a forwarded call. */
static err_t answer_send(struct rpc_call *call, enum rpc_kind kind, const ProtobufCMessage *body)
{
    if (call->is_inner)
        return rpc_forwarded_send(call, kind, body, OK, NULL);
    const struct frame frame = {.kind = kind, .method = call->method->id, .call = call->id};
    return rpc_conn_write(call->conn, frame, body);
}

static void answer_send_last(struct rpc_call *call, enum rpc_kind kind, const ProtobufCMessage *body)
{
    struct rpc_conn *conn = call->conn;
    if (!call->abandoned && answer_send(call, kind, body) == ERR_NOMEM)
        rpc_conn_break(conn, "out of memory");
    rpc_call_free(call);
}

void rpc_call_abandon(struct rpc_call *call)
{
    call->abandoned = true;
    call->due = UINT64_MAX;
    call->on_drain = NULL;
    if (call->on_cancel) {
        call->on_cancel(call->cancel_arg);
        rpc_call_free(call);
    }
}

/* ---- requests ---- */

static const char *request_refuse(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret, err_t err,
                                  const char *text)
{
    conn->stats.refused++;
    write_error(conn, frame->method, frame->call, err, text);
    *ret = BODY_SKIP;
    return NULL;
}

/* Calls of processes of jobs, and the Hello that makes a connection one of them, do not count: there are few processes
 * for each job. */
static struct rpc_account *account_of(const struct rpc_conn *conn, const struct rpc_method *m)
{
    return m->roles & RPC_ROLE_CLIENT ? conn->config.account : NULL;
}

static const char *admit_request(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret)
{
    if (frame->call <= conn->last_call_id)
        return "call numbers do not ascend";
    conn->last_call_id = frame->call;
    const struct rpc_method *m = rpc_conn_method(conn, frame->method);
    if (!m || !m->handler)
        return request_refuse(conn, frame, ret, ERR_UNSUPPORTED, "this program does not serve that method");
    if (frame->length > m->max_request_bytes)
        return "a request above its method's limit";
    if (!(conn->roles & m->roles))
        return request_refuse(conn, frame, ret, ERR_DENIED,
                              "the connection does not have the role that this method requires");
    if (conn->n_calls >= rpc_conn_max_calls(conn))
        return request_refuse(conn, frame, ret, ERR_LIMIT, "too many calls are outstanding on this connection");
    const struct rpc_account *a = account_of(conn, m);
    if (a && a->n_calls >= a->max_calls)
        return request_refuse(conn, frame, ret, ERR_LIMIT,
                              "your connections have the maximum of calls that wait for an answer (users.calls); end "
                              "some of your programs that watch dtd, or try again when they have their answers");
    if (conn->config.account && !rpc_account_take_request(conn->config.account, conn, frame->length))
        return request_refuse(conn, frame, ret, ERR_LIMIT,
                              "your connections are sending too much at the same time (users.buffer_mib): try again");
    *ret = BODY_KEEP;
    return NULL;
}

const char *rpc_server_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret)
{
    if (frame->kind == RPC_REQUEST)
        return admit_request(conn, frame, ret);
    *ret = BODY_KEEP;
    return frame->call > conn->last_call_id ? "a cancel for a call that was never made" : NULL;
}

static struct rpc_call *new_call(struct rpc_conn *conn, const struct frame *frame)
{
    struct rpc_call *call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->conn = conn;
    call->id = frame->call;
    call->method = rpc_conn_method(conn, frame->method);
    call->due = frame->deadline_ms ? uv_now(conn->config.loop) + frame->deadline_ms : UINT64_MAX;
    TAILQ_INSERT_TAIL(&conn->calls, call, link);
    conn->n_calls++;
    call->account = account_of(conn, call->method);
    if (call->account)
        call->account->n_calls++;
    rpc_conn_wake_at(conn, call->due);
    return call;
}

const char *rpc_server_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body)
{
    if (frame->kind == RPC_CANCEL) {
        struct rpc_call *canceled = call_find(conn, frame->call);
        if (canceled)
            rpc_call_abandon(canceled);
        return NULL;
    }
    rpc_conn_count_request(conn);
    struct rpc_alloc alloc;
    rpc_alloc_init(&alloc, frame->length);
    const struct rpc_method *m = rpc_conn_method(conn, frame->method);
    ProtobufCMessage *request = protobuf_c_message_unpack(m->request, &alloc.base, frame->length, body);
    if (!request)
        return "a request that cannot be unpacked";
    struct rpc_call *call = new_call(conn, frame);
    if (call)
        m->handler(conn->config.owner, call, request);
    protobuf_c_message_free_unpacked(request, &alloc.base);
    return call ? NULL : "out of memory";
}

/* ---- deadlines, drain, closing: a callback may change the list, so that each search starts again after it ---- */

uint64_t rpc_server_expire(struct rpc_conn *conn, uint64_t now)
{
    for (;;) {
        uint64_t next = UINT64_MAX;
        struct rpc_call *call, *due = NULL;
        TAILQ_FOREACH(call, &conn->calls, link)
        {
            if (call->due <= now)
                due = call;
            else if (call->due < next)
                next = call->due;
        }
        if (!due || conn->state == CONN_CLOSING)
            return next;
        write_error(conn, due->method->id, due->id, ERR_TIMEOUT, "");
        rpc_call_abandon(due);
    }
}

static bool is_low(const struct rpc_call *call)
{
    return call->in_flight < rpc_stream_window(call->conn->n_calls) / 4;
}

/* The call that may send items again: `call` itself, or the call that it carries. */
static struct rpc_call *drained(struct rpc_call *call)
{
    struct rpc_call *c = call->inner ? call->inner : call;
    return c->on_drain && is_low(c) ? c : NULL;
}

void rpc_server_drained(struct rpc_conn *conn)
{
    for (;;) {
        struct rpc_call *call, *c = NULL;
        TAILQ_FOREACH(call, &conn->calls, link)
        {
            c = drained(call);
            if (c)
                break;
        }
        if (!c || conn->state != CONN_OPEN || rpc_conn_queued(conn) >= RPC_STREAM_LOW_BYTES)
            return;
        void (*cb)(void *) = c->on_drain;
        c->on_drain = NULL;
        /* Moves the call to the end of the list, so that one busy stream does not starve the others. */
        TAILQ_REMOVE(&conn->calls, call, link);
        TAILQ_INSERT_TAIL(&conn->calls, call, link);
        cb(c->drain_arg);
    }
}

void rpc_server_closed(struct rpc_conn *conn)
{
    while (!TAILQ_EMPTY(&conn->calls)) {
        struct rpc_call *call = TAILQ_FIRST(&conn->calls);
        TAILQ_REMOVE(&conn->calls, call, link);
        conn->n_calls--;
        call->conn = NULL;
        if (!call->abandoned)
            rpc_call_abandon(call);
    }
}

/* ---- answering ---- */

struct rpc_conn *rpc_call_conn(struct rpc_call *call)
{
    return call->conn;
}

void *rpc_call_data(struct rpc_call *call)
{
    if (!call->conn)
        return NULL;
    return call->is_inner ? call->data : rpc_conn_data(call->conn);
}

uint16_t rpc_call_method(const struct rpc_call *call)
{
    return call->method->id;
}

void rpc_call_on_cancel(struct rpc_call *call, void (*cb)(void *arg), void *arg)
{
    call->on_cancel = cb;
    call->cancel_arg = arg;
}

void rpc_call_on_drain(struct rpc_call *call, void (*cb)(void *arg), void *arg)
{
    if (call->abandoned)
        return;
    call->on_drain = cb;
    call->drain_arg = arg;
    if (cb && rpc_conn_queued(call->conn) < RPC_STREAM_LOW_BYTES && is_low(call))
        rpc_conn_wake_at(call->conn, 0);
}

void rpc_fail(struct rpc_call *call, err_t err, const char *fmt, ...)
{
    assert(err != OK);
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (!call->abandoned && call->is_inner)
        (void)!rpc_forwarded_send(call, RPC_ERROR, NULL, err, text);
    else if (!call->abandoned)
        write_error(call->conn, call->method->id, call->id, err, text);
    rpc_call_free(call);
}

void rpc_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    assert(!call->method->stream && reply->descriptor == call->method->reply);
    size_t bytes = protobuf_c_message_get_packed_size(reply);
    if (bytes > call->method->max_reply_bytes) {
        rpc_fail(call, ERR_LIMIT, "the answer of %s has %zu bytes, its limit is %u", call->method->name, bytes,
                 call->method->max_reply_bytes);
        return;
    }
    answer_send_last(call, RPC_REPLY, reply);
}

err_t rpc_call_item(struct rpc_call *call, const ProtobufCMessage *item)
{
    assert(call->method->stream && item->descriptor == call->method->reply);
    if (call->abandoned || call->conn->state != CONN_OPEN)
        return ERR_CANCELED;
    if (protobuf_c_message_get_packed_size(item) > call->method->max_reply_bytes)
        return ERR_INVALID;
    return answer_send(call, RPC_ITEM, item);
}

err_t rpc_item(struct rpc_call *call, const ProtobufCMessage *item)
{
    bool is_open = !call->abandoned && call->conn->state == CONN_OPEN;
    if (is_open && (rpc_conn_queued(call->conn) >= RPC_STREAM_HIGH_BYTES ||
                    call->in_flight >= rpc_stream_window(call->conn->n_calls)))
        return ERR_LIMIT;
    return rpc_call_item(call, item);
}

void rpc_end(struct rpc_call *call)
{
    assert(call->method->stream);
    answer_send_last(call, RPC_END, NULL);
}
