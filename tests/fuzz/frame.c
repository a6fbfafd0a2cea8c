/* Any bytes from a peer: header, dispatch, unpacking, and replies to the fuzzer's own calls. The first byte is the
 * peer's role; the second determines the size of the pieces. The connection is real, but nothing is written to its
 * socket. */
#include "common/base/log.h"
#include "common/rpc/conn.h"
#include "common/rpc/methods.h"
#include "proto/client.pb-c.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct owner {
    int calls;
    bool closed;
};

static void on_close(void *owner, struct rpc_conn *conn)
{
    (void)conn;
    ((struct owner *)owner)->closed = true;
}

static uv_loop_t loop;
static struct rpc_method methods[RPC_METHOD_COUNT];

static int canceled;

static void increment(void *arg)
{
    ++*(int *)arg;
}

/* Answers with an empty message of the right type, with an error if that is not valid or at the end of the connection,
 * or not at all. */
static void answer_call(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct owner *o = owner;
    union {
        ProtobufCMessage message;
        char room[1024];
    } reply;
    if (call->method->reply->sizeof_message > sizeof(reply))
        abort();
    protobuf_c_message_init(call->method->reply, &reply);
    if (protobuf_c_message_get_packed_size(request) > (64u << 20))
        abort();
    switch (o->calls++ % 4) {
    case 0:
        rpc_fail(call, ERR_NOTFOUND, "none");
        break;
    case 1: /* no answer: the call ends by a cancel or with the connection */
        rpc_call_on_cancel(call, increment, &canceled);
        break;
    default:
        if (!call->method->stream) {
            rpc_reply(call, &reply.message);
            break;
        }
        if (rpc_item(call, &reply.message) == OK && rpc_item(call, &reply.message) == OK)
            rpc_end(call);
        else
            rpc_fail(call, ERR_LIMIT, "items");
    }
}

/* Forwarded calls, as a node sends them; they have the same handler. */
static void handle_forward(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct rpc_forwarded config = {methods, RPC_METHOD_COUNT, owner,
                                         RPC_ROLE_CLIENT | RPC_ROLE_WORKER | RPC_ROLE_IO, owner};
    struct rpc_origin origin;
    rpc_forwarded_origin(request, &origin);
    rpc_forwarded_start(call, request, &config);
}

static void handle_window_update(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    rpc_forwarded_window_update(call, request);
}

static rpc_handler handler_of(uint16_t id)
{
    return id == PEER_FORWARD ? handle_forward : id == PEER_WINDOW_UPDATE ? handle_window_update : answer_call;
}

static void ignore_result(void *arg, const struct rpc_result *result)
{
    (void)arg;
    if (result->err > 0)
        abort();
}

/* Starts calls 1 to 3, so that replies in the input find them. */
static void call_peer(struct rpc_conn *conn)
{
    Dtd__JobRequest job = DTD__JOB_REQUEST__INIT;
    Dtd__LogsRequest logs = DTD__LOGS_REQUEST__INIT;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    job.job = logs.job = (char *)"7";
    if (rpc_send(conn, CLIENT_STATUS, &job.base, 0, ignore_result, NULL, NULL) ||
        rpc_send(conn, CLIENT_LOGS, &logs.base, 0, ignore_result, NULL, NULL) ||
        rpc_send(conn, CLIENT_LIST, &empty.base, 0, ignore_result, NULL, NULL))
        abort();
}

static void setup(void)
{
    if (methods[0].id)
        return;
    struct rpc_binding bindings[RPC_METHOD_COUNT];
    for (int i = 0; i < RPC_METHOD_COUNT; i++)
        bindings[i] = (struct rpc_binding){rpc_methods()[i].id, handler_of(rpc_methods()[i].id)};
    rpc_methods_bind(bindings, RPC_METHOD_COUNT, methods);
    setenv("DTD_LOG", "error", 1);
    log_init("fuzz");
    uv_loop_init(&loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    struct owner owner = {0};
    struct rpc_conn *conn;
    setup();
    if (size < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        return 0;
    const struct rpc_conn_config config = {
        .loop = &loop, .methods = methods, .n_methods = RPC_METHOD_COUNT, .owner = &owner, .on_close = on_close};
    if (rpc_conn_open(&config, fds[0], data[0], &conn))
        abort();
    call_peer(conn);
    size_t step = data[1] ? data[1] : size;
    for (size_t at = 2; at < size; at += step)
        rpc_conn_feed(conn, data + at, size - at < step ? size - at : step);
    uv_run(&loop, UV_RUN_NOWAIT);
    if (!owner.closed)
        rpc_conn_close(conn);
    uv_run(&loop, UV_RUN_DEFAULT);
    if (!owner.closed)
        abort();
    close(fds[1]);
    return 0;
}
