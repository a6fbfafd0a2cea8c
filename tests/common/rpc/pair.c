/* See pair.h. All waits are for a condition, with a time limit, and never for a number of loop turns. */
#include "tests/common/rpc/pair.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

static void send_chunk(struct rpc_call *call, const char *text)
{
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    chunk.text.data = (uint8_t *)text;
    chunk.text.len = strlen(text);
    rpc_reply(call, &chunk.base);
}

static void handle_echo(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct pair *p = owner;
    p->handled++;
    send_chunk(call, ((const Dtd__LogsRequest *)request)->job);
}

static void canceled(void *arg)
{
    struct pair *p = arg;
    p->canceled++;
}

static void handle_never(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct pair *p = owner;
    p->handled++;
    p->pending[p->n_pending++] = call;
    if (strcmp(((const Dtd__LogsRequest *)request)->job, "notify") == 0)
        rpc_call_on_cancel(call, canceled, p);
}

static void stream_more(void *arg)
{
    struct pair *p = arg;
    struct rpc_call *call = p->pending[0];
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    chunk.text.len = p->item_bytes;
    chunk.text.data = calloc(1, p->item_bytes + 1);
    err_t err = OK;
    while (!err && (p->stream_items < 0 || p->stream_sent < p->stream_items)) {
        err = rpc_item(call, &chunk.base);
        p->stream_sent += !err;
    }
    free(chunk.text.data);
    if (err == ERR_LIMIT) {
        rpc_call_on_drain(call, stream_more, p);
    } else {
        assert_ok(err);
        rpc_end(call);
    }
}

static void handle_stream(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct pair *p = owner;
    (void)request;
    p->handled++;
    p->pending[p->n_pending++] = call;
    rpc_call_on_cancel(call, canceled, p);
    stream_more(p);
}

static const struct rpc_method rows[M_COUNT] = {
    {M_ECHO, "Test.Echo", RPC_ROLE_CLIENT, 16 << 20, 16 << 20, .handler = handle_echo},
    {M_STREAM, "Test.Stream", RPC_ROLE_CLIENT, 1024, 1 << 20, .stream = true, .handler = handle_stream},
    {M_NEVER, "Test.Never", RPC_ROLE_CLIENT, 1024, 1024, .handler = handle_never},
    {M_PEERS_ONLY, "Test.PeersOnly", RPC_ROLE_PEER, 1 << 20, 1024, .handler = handle_echo},
    {M_SMALL, "Test.Small", RPC_ROLE_ANY, M_SMALL_BYTES, M_SMALL_BYTES, .handler = handle_echo},
    {M_UNBOUND, "Test.Unbound", RPC_ROLE_ANY, 1024, 1024, .handler = NULL},
};

static void on_close(void *owner, struct rpc_conn *conn)
{
    struct pair *p = owner;
    if (conn == p->client) {
        p->client = NULL;
        p->client_closes++;
    } else if (conn == p->middle || conn == p->way) {
        *(conn == p->middle ? &p->middle : &p->way) = NULL;
    } else {
        assert_ptr_equal(conn, p->server);
        p->server = NULL;
        p->server_closes++;
    }
}

static void start(struct pair *p)
{
    memset(p, 0, sizeof(*p));
    p->raw = -1;
    memcpy(p->methods, rows, sizeof(rows));
    for (int i = 0; i < M_COUNT; i++) {
        p->methods[i].request = &dtd__logs_request__descriptor;
        p->methods[i].reply = &dtd__log_chunk__descriptor;
    }
    assert_int_equal(uv_loop_init(&p->loop), 0);
}

static int open_server(struct pair *p, uint32_t roles)
{
    int fds[2];
    start(p);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const struct rpc_conn_config config = {
        .loop = &p->loop, .methods = p->methods, .n_methods = M_COUNT, .owner = p, .on_close = on_close};
    assert_ok(rpc_conn_open(&config, fds[0], roles, &p->server));
    return fds[1];
}

void pair_open(struct pair *p, uint32_t server_roles)
{
    int fd = open_server(p, server_roles);
    const struct rpc_conn_config config = {
        .loop = &p->loop, .methods = p->methods, .n_methods = M_COUNT, .owner = p, .on_close = on_close};
    assert_ok(rpc_conn_open(&config, fd, 0, &p->client));
}

/* ---- with a forwarder in between ---- */

static void handle_middle(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct pair *p = owner;
    const struct rpc_origin origin = {.is_process = true, .job = 7, .slot = 3};
    if (p->way)
        rpc_forward(call, request, p->way, &origin, p->hold);
    else
        rpc_fail(call, ERR_AGAIN, "no way");
}

static void handle_forward(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct pair *p = owner;
    rpc_forwarded_origin(request, &p->origin);
    rpc_forwarded_start(call, request, &p->forwarded);
}

static void handle_window_update(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    rpc_forwarded_window_update(call, request);
}

static void fill_methods(struct pair *p, uint32_t roles)
{
    const struct rpc_method *all = rpc_methods();
    memcpy(p->middle_methods, p->methods, sizeof(p->methods));
    for (int i = 0; i < M_COUNT; i++) {
        p->middle_methods[i].roles = RPC_ROLE_ANY; /* the answering program checks the roles */
        p->middle_methods[i].handler = handle_middle;
    }
    for (int i = 0; i < RPC_METHOD_COUNT; i++) {
        if (all[i].id == PEER_FORWARD)
            p->server_methods[0] = all[i];
        if (all[i].id == PEER_WINDOW_UPDATE)
            p->server_methods[1] = all[i];
    }
    p->server_methods[0].handler = handle_forward;
    p->server_methods[1].handler = handle_window_update;
    p->forwarded = (struct rpc_forwarded){p->methods, M_COUNT, p, roles, p};
}

static void open_both(const struct rpc_conn_config *a, struct rpc_conn **ret_a, const struct rpc_conn_config *b,
                      uint32_t b_roles, struct rpc_conn **ret_b)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_ok(rpc_conn_open(a, fds[0], 0, ret_a));
    assert_ok(rpc_conn_open(b, fds[1], b_roles, ret_b));
}

void pair_open_forwarding(struct pair *p, uint32_t roles)
{
    start(p);
    fill_methods(p, roles);
    const struct rpc_conn_config client = {
        .loop = &p->loop, .methods = p->methods, .n_methods = M_COUNT, .owner = p, .on_close = on_close};
    const struct rpc_conn_config middle = {
        .loop = &p->loop, .methods = p->middle_methods, .n_methods = M_COUNT, .owner = p, .on_close = on_close};
    const struct rpc_conn_config far = {
        .loop = &p->loop, .methods = p->server_methods, .n_methods = 2, .owner = p, .on_close = on_close};
    open_both(&client, &p->client, &middle, RPC_ROLE_CLIENT, &p->middle);
    open_both(&far, &p->way, &far, RPC_ROLE_PEER, &p->server);
}

void pair_open_raw(struct pair *p, uint32_t server_roles)
{
    p->raw = -1;
    int fd = open_server(p, server_roles);
    p->raw = fd;
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

void pair_fini(struct pair *p)
{
    bool has_client = p->client || p->client_closes;
    if (p->client)
        rpc_conn_close(p->client);
    if (p->server)
        rpc_conn_close(p->server);
    if (p->middle)
        rpc_conn_close(p->middle);
    if (p->way)
        rpc_conn_close(p->way);
    if (p->raw >= 0)
        close(p->raw);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    assert_int_equal(p->server_closes, 1);
    assert_int_equal(p->client_closes, has_client);
    assert_int_equal(uv_loop_close(&p->loop), 0);
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static bool pump(struct pair *p, bool (*done)(void *), void *arg, int ms)
{
    uv_timer_t timer;
    uv_timer_init(&p->loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    int64_t end = clock_mono_ms() + ms;
    bool is_done;
    while (!(is_done = done(arg)) && clock_mono_ms() < end)
        uv_run(&p->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&p->loop, UV_RUN_NOWAIT);
    return is_done;
}

bool pair_pump(struct pair *p, bool (*done)(void *), void *arg)
{
    return pump(p, done, arg, 30000);
}

void pair_pump_ms(struct pair *p, int ms)
{
    pump(p, never, NULL, ms);
}

static bool is_last(void *arg)
{
    return ((struct pair_answer *)arg)->last;
}

void pair_pump_answer(struct pair *p, struct pair_answer *a)
{
    if (!pair_pump(p, is_last, a))
        fail_msg("no last answer within 30 s");
}

static bool server_closed(void *arg)
{
    return !((struct pair *)arg)->server;
}

void pair_pump_closed(struct pair *p)
{
    if (!pair_pump(p, server_closed, p))
        fail_msg("the connection is still open after 30 s");
}

void answer_cb(void *arg, const struct rpc_result *result)
{
    struct pair_answer *a = arg;
    assert_false(a->last); /* no callback after the last one */
    a->calls++;
    a->err = result->err;
    a->last = result->last;
    if (result->reply) {
        const Dtd__LogChunk *chunk = (const Dtd__LogChunk *)result->reply;
        a->items++;
        a->bytes += (int64_t)chunk->text.len;
        snprintf(a->text, sizeof(a->text), "%.*s", (int)chunk->text.len, (const char *)chunk->text.data);
    } else {
        snprintf(a->text, sizeof(a->text), "%s", result->text);
    }
}

err_t pair_call(struct pair *p, uint16_t method, const char *text, uint32_t deadline_ms, struct pair_answer *a,
                uint64_t *ret_call)
{
    Dtd__LogsRequest request = DTD__LOGS_REQUEST__INIT;
    request.job = (char *)text;
    *a = (struct pair_answer){0};
    err_t err = rpc_send(p->client, method, &request.base, deadline_ms, answer_cb, a, ret_call);
    assert_int_equal(a->calls, 0); /* never inside the call that starts it */
    return err;
}

size_t pair_raw_read(struct pair *p, uint8_t *data, size_t size, size_t least)
{
    size_t got = 0;
    for (int ms = 0; ms < 30000 && got < least; ms++) {
        pair_pump_ms(p, 1);
        ssize_t n = read(p->raw, data + got, size - got);
        if (n == 0)
            break;
        if (n > 0)
            got += (size_t)n;
    }
    return got;
}
