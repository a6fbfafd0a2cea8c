/* Forwarded calls: the forwarding program and the answering program.
 *
 *   caller -- call --> rpc_forward -- Peer.Forward --> rpc_forwarded_start -- inner call --> handler
 *          <- frames -   answered   <--- events ------  rpc_forwarded_send <--- answers ---
 *
 * Both programs unpack and repack the request and the answers, so that each checks them against its own method table.
 *
 * Flow control of streams: `in_flight` counts the bytes of items that the reader has not consumed, and the writer stops
 * at a limit. The forwarder sends WindowUpdate when the connection of its caller has drained. At most rpc_stream_window
 * bytes and one item are ever in flight. */
#include "common/rpc/alloc.h"
#include "common/rpc/conn.h"
#include "common/rpc/methods.h"
#include "proto/peer.pb-c.h"

#include <assert.h>
#include <stdlib.h>

#define OWN_CALLS 64 /* reserved for the node's own calls: WindowUpdate, heartbeats, reports */

/* ---- the forwarding program ---- */

struct forward {
    struct rpc_call *call; /* NULL: the caller has gone */
    struct rpc_conn *conn; /* to the answering program; NULL: lost */
    uint64_t id;
    bool hold;
    size_t consumed; /* bytes of items passed on to the caller and not yet reported by WindowUpdate */
};

static void caller_gone(void *arg)
{
    struct forward *f = arg;
    f->call = NULL;
    if (f->conn)
        rpc_cancel(f->conn, f->id); /* the last callback of the call frees f */
    else
        free(f);
}

static void window_update_answered(void *arg, const struct rpc_result *result)
{
    (void)arg, (void)result; /* the Forward call reports a lost connection */
}

static void caller_drained(void *arg)
{
    struct forward *f = arg;
    Dtd__WindowUpdateRequest m = DTD__WINDOW_UPDATE_REQUEST__INIT;
    m.call = f->id;
    m.bytes = f->consumed;
    f->consumed = 0;
    /* If this fails (too many calls are outstanding), the bytes are reported after the next item. */
    if (f->conn && rpc_send(f->conn, PEER_WINDOW_UPDATE, &m.base, 0, window_update_answered, NULL, NULL))
        f->consumed = m.bytes;
}

static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const ProtobufCBinaryData *body, uint32_t limit,
                                struct rpc_alloc *alloc)
{
    rpc_alloc_init(alloc, body->len);
    return body->len <= limit ? protobuf_c_message_unpack(type, &alloc->base, body->len, body->data) : NULL;
}

static void pass_on(struct forward *f, const Dtd__ForwardEvent *e)
{
    struct rpc_alloc alloc;
    const struct rpc_method *m = f->call->method;
    bool is_item = e->kind == DTD__FORWARD_EVENT__KIND__ITEM;
    ProtobufCMessage *body = m->stream == is_item ? unpack(m->reply, &e->body, m->max_reply_bytes, &alloc) : NULL;
    struct rpc_call *call = f->call;
    if (!body) {
        f->call = NULL;
        rpc_call_on_cancel(call, NULL, NULL);
        rpc_fail(call, ERR_PROTO, "the answer of the forwarded call is malformed");
        rpc_cancel(f->conn, f->id);
        return;
    }
    if (is_item) {
        (void)!rpc_call_item(call, body); /* if the caller's connection is lost, caller_gone is called */
        f->consumed += e->body.len;
        rpc_call_on_drain(call, caller_drained, f);
    } else {
        f->call = NULL;
        rpc_call_on_cancel(call, NULL, NULL);
        rpc_reply(call, body);
    }
    protobuf_c_message_free_unpacked(body, &alloc.base);
}

static void forward_finish(struct forward *f, err_t err, const char *text)
{
    struct rpc_call *call = f->call;
    f->call = NULL;
    rpc_call_on_cancel(call, NULL, NULL);
    if (err || !call->method->stream)
        rpc_fail(call, err ? err : ERR_PROTO, "%s", err ? text : "the forwarded call ended without an answer");
    else
        rpc_end(call);
}

static void event_received(struct forward *f, const Dtd__ForwardEvent *e)
{
    switch (e->kind) {
    case DTD__FORWARD_EVENT__KIND__REPLY:
    case DTD__FORWARD_EVENT__KIND__ITEM:
        pass_on(f, e);
        break;
    case DTD__FORWARD_EVENT__KIND__ERROR:
        forward_finish(f, e->has_code && e->code < 0 ? e->code : ERR_PROTO, e->text ? e->text : "");
        break;
    default:
        forward_finish(f, OK, "");
    }
}

/* The connection to the answering program was lost, or Peer.Forward ended; the call may still lack its last answer. */
static void forward_ended(struct forward *f, const struct rpc_result *result)
{
    f->conn = NULL;
    if (f->call && result->err == ERR_CLOSED && f->hold) {
        rpc_call_on_drain(f->call, NULL, NULL);
        return; /* caller_gone frees f */
    }
    if (f->call && result->err == ERR_CLOSED)
        forward_finish(f, ERR_AGAIN, "the connection to the answering node was lost; try again");
    else if (f->call)
        forward_finish(f, result->err ? result->err : ERR_PROTO,
                       result->text[0] ? result->text : "no answer was received");
    free(f);
}

/* To pass on a long answer takes about as long as to make it, so its time counts for the caller's user, who is then
 * read less. The account outlives the call until the loop's next event. */
static void answered(void *arg, const struct rpc_result *result)
{
    struct forward *f = arg;
    const Dtd__ForwardEvent *e = (const Dtd__ForwardEvent *)result->reply;
    struct rpc_account *a = f->call && e ? f->call->account : NULL;
    uv_loop_t *loop = f->call ? f->call->conn->config.loop : NULL;
    uint64_t begin = a ? uv_hrtime() - e->body.len / RPC_READ_BYTES_PER_NS : 0;
    if (f->call && e)
        event_received(f, e);
    if (result->last)
        forward_ended(f, result);
    if (a)
        rpc_account_spend(a, begin, uv_now(loop));
}

static err_t body_pack(const ProtobufCMessage *m, ProtobufCBinaryData *ret)
{
    ret->len = protobuf_c_message_get_packed_size(m);
    ret->data = malloc(ret->len + 1);
    if (!ret->data)
        return ERR_NOMEM;
    protobuf_c_message_pack(m, ret->data);
    return OK;
}

void rpc_forward(struct rpc_call *call, const ProtobufCMessage *request, struct rpc_conn *conn,
                 const struct rpc_origin *origin, bool hold)
{
    Dtd__ForwardRequest m = DTD__FORWARD_REQUEST__INIT;
    if (conn->n_outs >= rpc_conn_max_calls(conn) - OWN_CALLS) {
        rpc_fail(call, ERR_LIMIT,
                 "too many calls are being forwarded to the answering node; try again, or call that node directly");
        return;
    }
    struct forward *f = calloc(1, sizeof(*f));
    err_t err = f ? body_pack(request, &m.body) : ERR_NOMEM;
    if (!err) {
        *f = (struct forward){.call = call, .conn = conn, .hold = hold};
        m.method = call->method->id;
        m.has_uid = !origin->is_process;
        m.uid = (uint32_t)origin->uid;
        m.has_operator_ = m.operator_ = origin->is_operator;
        m.has_job = m.has_slot = origin->is_process;
        m.job = origin->job;
        m.slot = origin->slot;
        err = rpc_send(conn, PEER_FORWARD, &m.base, 0, answered, f, &f->id);
    }
    free(m.body.data);
    if (err) {
        free(f);
        rpc_fail(call, err == ERR_CLOSED ? ERR_AGAIN : err, "the call cannot be forwarded: %s", err_text(err));
        return;
    }
    rpc_call_on_cancel(call, caller_gone, f);
}

/* ---- the answering program ---- */

void rpc_forwarded_origin(const ProtobufCMessage *request, struct rpc_origin *ret)
{
    const Dtd__ForwardRequest *m = (const Dtd__ForwardRequest *)request;
    *ret = (struct rpc_origin){.is_process = m->has_job,
                               .uid = m->has_uid ? m->uid : (uid_t)-1,
                               .is_operator = m->has_operator_ && m->operator_,
                               .job = m->has_job ? m->job : 0,
                               .slot = m->has_slot ? m->slot : 0};
}

static void outer_gone(void *arg)
{
    struct rpc_call *inner = arg;
    inner->outer->inner = NULL;
    inner->outer = NULL;
    inner->conn = NULL;
    rpc_call_abandon(inner);
}

/* Unlinks the inner from the outer call, so that each can end separately. */
static struct rpc_call *unlink_outer(struct rpc_call *inner)
{
    struct rpc_call *outer = inner->outer;
    rpc_call_on_cancel(outer, NULL, NULL);
    outer->inner = NULL;
    inner->outer = NULL;
    return outer;
}

err_t rpc_forwarded_send(struct rpc_call *inner, enum rpc_kind kind, const ProtobufCMessage *body, err_t err,
                         const char *text)
{
    static const Dtd__ForwardEvent__Kind kinds[] = {[RPC_REPLY] = DTD__FORWARD_EVENT__KIND__REPLY,
                                                    [RPC_ITEM] = DTD__FORWARD_EVENT__KIND__ITEM,
                                                    [RPC_END] = DTD__FORWARD_EVENT__KIND__END,
                                                    [RPC_ERROR] = DTD__FORWARD_EVENT__KIND__ERROR};
    Dtd__ForwardEvent e = DTD__FORWARD_EVENT__INIT;
    e.kind = kinds[kind];
    e.has_code = kind == RPC_ERROR;
    e.code = err;
    e.text = (char *)text;
    err_t failed = body ? body_pack(body, &e.body) : OK;
    e.has_body = body != NULL;
    if (!failed)
        failed = rpc_call_item(inner->outer, &e.base);
    if (!failed && kind == RPC_ITEM)
        inner->in_flight += e.body.len;
    free(e.body.data);
    if (kind == RPC_ITEM)
        return failed;
    struct rpc_call *outer = unlink_outer(inner);
    if (failed && failed != ERR_CANCELED)
        rpc_fail(outer, failed, "the answer cannot be forwarded");
    else
        rpc_end(outer);
    return OK;
}

static struct rpc_call *inner_new(struct rpc_call *outer, const struct rpc_method *m, void *data)
{
    struct rpc_call *inner = calloc(1, sizeof(*inner));
    if (!inner)
        return NULL;
    inner->is_inner = true;
    inner->outer = outer;
    inner->conn = outer->conn;
    inner->id = outer->id;
    inner->due = UINT64_MAX; /* the deadline of the outer call applies to both */
    inner->method = m;
    inner->data = data;
    outer->inner = inner;
    rpc_call_on_cancel(outer, outer_gone, inner);
    return inner;
}

static const struct rpc_method *find_method(const struct rpc_forwarded *config, uint32_t id)
{
    for (int i = 0; i < config->n_methods; i++)
        if (config->methods[i].id == id)
            return &config->methods[i];
    return NULL;
}

void rpc_forwarded_start(struct rpc_call *outer, const ProtobufCMessage *request, const struct rpc_forwarded *config)
{
    const Dtd__ForwardRequest *m = (const Dtd__ForwardRequest *)request;
    const struct rpc_method *method = find_method(config, m->method);
    struct rpc_alloc alloc;
    if (!method || !method->handler) {
        rpc_fail(outer, ERR_UNSUPPORTED, "this program does not serve that method");
        return;
    }
    if (!(config->roles & method->roles)) {
        rpc_fail(outer, ERR_DENIED, "the caller does not have the role that this method requires");
        return;
    }
    ProtobufCMessage *body = unpack(method->request, &m->body, method->max_request_bytes, &alloc);
    struct rpc_call *inner = body ? inner_new(outer, method, config->data) : NULL;
    if (inner)
        method->handler(config->owner, inner, body);
    else
        rpc_fail(outer, body ? ERR_NOMEM : ERR_PROTO, "the forwarded request cannot be unpacked");
    if (body)
        protobuf_c_message_free_unpacked(body, &alloc.base);
}

void rpc_forwarded_window_update(struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__WindowUpdateRequest *m = (const Dtd__WindowUpdateRequest *)request;
    Dtd__PeerEmpty empty = DTD__PEER_EMPTY__INIT;
    struct rpc_conn *conn = rpc_call_conn(call);
    struct rpc_call *outer;
    if (conn) {
        TAILQ_FOREACH(outer, &conn->calls, link)
        {
            if (outer->id != m->call)
                continue;
            if (outer->inner)
                outer->inner->in_flight -= m->bytes < outer->inner->in_flight ? m->bytes : outer->inner->in_flight;
            break;
        }
        rpc_conn_wake_at(conn, 0);
    }
    rpc_reply(call, &empty.base);
}
