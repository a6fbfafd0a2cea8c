/* Outgoing calls. A call ends exactly once: by the peer's last frame, its deadline, rpc_cancel or the loss of the
 * connection. It always ends from the loop: rpc_cancel only moves the due time to now. The call leaves the list before
 * its callback runs, so that the callback may send, cancel and close. Answers that arrive after the end are skipped
 * without allocating memory; only an answer to a number that was never used is a protocol error. */
#include "common/rpc/alloc.h"
#include "common/rpc/conn.h"
#include "proto/rpc.pb-c.h"

#include <assert.h>
#include <stdlib.h>

/* Moves the call to the end of the list: streams that receive items in turn are then found at its beginning. */
static struct rpc_out *out_find(struct rpc_conn *conn, uint64_t id)
{
    struct rpc_out *out;
    TAILQ_FOREACH(out, &conn->outs, link)
    {
        if (out->id != id)
            continue;
        TAILQ_REMOVE(&conn->outs, out, link);
        TAILQ_INSERT_TAIL(&conn->outs, out, link);
        return out;
    }
    return NULL;
}

static void remove_out(struct rpc_conn *conn, struct rpc_out *out)
{
    TAILQ_REMOVE(&conn->outs, out, link);
    conn->n_outs--;
}

static void out_end(struct rpc_conn *conn, struct rpc_out *out, err_t err, const ProtobufCMessage *reply,
                    const char *text)
{
    const struct rpc_result result = {.err = err, .last = true, .reply = reply, .text = text};
    remove_out(conn, out);
    out->cb(out->arg, &result);
    free(out);
}

/* ---- sending ---- */

static struct rpc_out *new_out(struct rpc_conn *conn, const struct rpc_method *method, uint32_t deadline_ms)
{
    struct rpc_out *out = calloc(1, sizeof(*out));
    if (!out)
        return NULL;
    uv_update_time(conn->config.loop);
    out->id = conn->last_out_id + 1;
    out->due = deadline_ms ? uv_now(conn->config.loop) + deadline_ms : UINT64_MAX;
    out->ending = ERR_TIMEOUT;
    out->method = method;
    return out;
}

err_t rpc_send(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request, uint32_t deadline_ms,
               rpc_callback cb, void *arg, uint64_t *ret_call)
{
    const struct rpc_method *m = rpc_conn_method(conn, method);
    assert(m && cb && request->descriptor == m->request);
    if (conn->state != CONN_OPEN)
        return ERR_CLOSED;
    if (conn->n_outs >= rpc_conn_max_calls(conn) || rpc_conn_queued(conn) >= RPC_QUEUE_MAX_BYTES ||
        protobuf_c_message_get_packed_size(request) > m->max_request_bytes)
        return ERR_LIMIT;
    struct rpc_out *out = new_out(conn, m, deadline_ms);
    if (!out)
        return ERR_NOMEM;
    out->cb = cb;
    out->arg = arg;
    const struct frame frame = {.kind = RPC_REQUEST, .method = method, .call = out->id, .deadline_ms = deadline_ms};
    err_t err = rpc_conn_write(conn, frame, request);
    if (err) {
        free(out);
        return err;
    }
    conn->last_out_id = out->id;
    TAILQ_INSERT_TAIL(&conn->outs, out, link);
    conn->n_outs++;
    rpc_conn_wake_at(conn, out->due);
    if (ret_call)
        *ret_call = out->id;
    return OK;
}

void rpc_cancel(struct rpc_conn *conn, uint64_t call)
{
    struct rpc_out *out = out_find(conn, call);
    if (!out || out->ending == ERR_CANCELED)
        return;
    out->ending = ERR_CANCELED;
    out->due = 0;
    rpc_conn_wake_at(conn, 0);
}

/* ---- deadlines and closing ---- */

/* Ends the calls that are due and returns the next due time. Each callback may change the list, so that the search
 * starts again after it. */
uint64_t rpc_client_expire(struct rpc_conn *conn, uint64_t now)
{
    for (;;) {
        uint64_t next = UINT64_MAX;
        struct rpc_out *out, *due = NULL;
        TAILQ_FOREACH(out, &conn->outs, link)
        {
            if (out->due <= now)
                due = out;
            else if (out->due < next)
                next = out->due;
        }
        if (!due || conn->state == CONN_CLOSING)
            return next;
        /* The other side stops working on the call. If this cannot be queued, the connection is closing anyway. */
        const struct frame cancel = {.kind = RPC_CANCEL, .method = due->method->id, .call = due->id};
        (void)!rpc_conn_write(conn, cancel, NULL);
        out_end(conn, due, due->ending, NULL, "");
    }
}

void rpc_client_closed(struct rpc_conn *conn)
{
    struct rpc_out *next;
    for (struct rpc_out *out = TAILQ_FIRST(&conn->outs); out; out = next) {
        next = TAILQ_NEXT(out, link); /* on a closing connection callbacks can neither add nor remove calls */
        out_end(conn, out, ERR_CLOSED, NULL, "");
    }
}

/* ---- answers ---- */

static const char *check_kind(const struct rpc_out *out, const struct frame *frame)
{
    if (frame->method != out->method->id)
        return "an answer names another method than its call";
    if (frame->kind == RPC_ERROR)
        return frame->length > RPC_ERROR_BODY_BYTES ? "an error frame above its limit" : NULL;
    bool of_stream = frame->kind != RPC_REPLY;
    if (of_stream != out->method->stream)
        return "an answer of the wrong kind for its method";
    return frame->length > out->method->max_reply_bytes ? "an answer above its method's limit" : NULL;
}

const char *rpc_client_admit(struct rpc_conn *conn, const struct frame *frame, enum body_fate *ret)
{
    if (frame->call > conn->last_out_id)
        return "an answer to a call that was never made";
    const struct rpc_out *out = out_find(conn, frame->call);
    *ret = out ? BODY_KEEP : BODY_SKIP;
    return out ? check_kind(out, frame) : NULL;
}

static const char *take_error(struct rpc_conn *conn, struct rpc_out *out, const struct frame *frame,
                              const uint8_t *body)
{
    struct rpc_alloc alloc;
    rpc_alloc_init(&alloc, frame->length);
    Dtd__RpcError *e = dtd__rpc_error__unpack(&alloc.base, frame->length, body);
    if (!e)
        return "an error frame that cannot be read";
    out_end(conn, out, e->code < 0 ? e->code : ERR_PROTO, NULL, e->text ? e->text : "");
    dtd__rpc_error__free_unpacked(e, &alloc.base);
    return NULL;
}

const char *rpc_client_take(struct rpc_conn *conn, const struct frame *frame, const uint8_t *body)
{
    struct rpc_out *out = out_find(conn, frame->call);
    if (!out)
        return NULL; /* the call ended while its answer was being received */
    if (frame->kind == RPC_ERROR)
        return take_error(conn, out, frame, body);
    if (frame->kind == RPC_END) {
        out_end(conn, out, OK, NULL, "");
        return NULL;
    }
    struct rpc_alloc alloc;
    rpc_alloc_init(&alloc, frame->length);
    ProtobufCMessage *reply = protobuf_c_message_unpack(out->method->reply, &alloc.base, frame->length, body);
    if (!reply)
        return "an answer that cannot be read";
    if (frame->kind == RPC_REPLY) {
        out_end(conn, out, OK, reply, "");
    } else if (out->ending != ERR_CANCELED) {
        const struct rpc_result result = {.err = OK, .reply = reply, .text = ""};
        out->cb(out->arg, &result);
    }
    protobuf_c_message_free_unpacked(reply, &alloc.base);
    return NULL;
}
