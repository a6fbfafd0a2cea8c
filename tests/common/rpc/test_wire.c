/* docs/formats/wire.md's example, byte for byte, through the real method table. */
#include "common/rpc/methods.h"
#include "proto/client.pb-c.h"
#include "tests/lib/example.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>

static size_t example(const char *name, uint8_t ret[256])
{
    return example_bytes("formats/wire.md", name, ret, 256);
}

struct wire_text {
    uv_loop_t loop;
    struct rpc_method methods[RPC_METHOD_COUNT];
    struct rpc_conn *conn;
    int fd;
    int answers;
    err_t err;
    char text[256];
};

static void handle_status(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    const Dtd__JobRequest *r = (const Dtd__JobRequest *)request;
    rpc_fail(call, ERR_NOTFOUND, "no job %s", r->job);
}

static void handle_checkpoints(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner, (void)request;
    Dtd__CheckpointList list = DTD__CHECKPOINT_LIST__INIT;
    Dtd__Checkpoint c = DTD__CHECKPOINT__INIT, *one = &c;
    c.job = (char *)"7";
    c.step = 100;
    c.epoch = 2;
    c.path = (char *)"/c/step-100";
    c.bytes = 4096;
    c.committed_ms = 1;
    list.n_checkpoint = 1;
    list.checkpoint = &one;
    rpc_reply(call, &list.base);
}

static void wire_open(struct wire_text *w)
{
    static const struct rpc_binding bindings[] = {{CLIENT_STATUS, handle_status},
                                                  {CLIENT_CHECKPOINTS, handle_checkpoints}};
    int fds[2];
    memset(w, 0, sizeof(*w));
    rpc_methods_bind(bindings, 2, w->methods);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const struct rpc_conn_config config = {
        .loop = &w->loop, .methods = w->methods, .n_methods = RPC_METHOD_COUNT, .owner = w, .on_close = NULL};
    assert_ok(rpc_conn_open(&config, fds[0], RPC_ROLE_CLIENT, &w->conn));
    w->fd = fds[1];
    assert_int_equal(fcntl(w->fd, F_SETFL, O_NONBLOCK), 0);
}

static void wire_fini(struct wire_text *w)
{
    rpc_conn_close(w->conn);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    close(w->fd);
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

static void expect_bytes(struct wire_text *w, const char *name)
{
    uint8_t golden[256], got[256];
    size_t n = example(name, golden);
    for (int i = 0; i < 10; i++)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    ssize_t m = read(w->fd, got, sizeof(got));
    if (m != (ssize_t)n || memcmp(got, golden, n) != 0) {
        for (ssize_t i = 0; i < m; i++)
            print_error("%02x ", got[i]);
        fail_msg("the bytes of '%s' differ from docs/formats/wire.md", name);
    }
}

static void on_answer(void *arg, const struct rpc_result *result)
{
    struct wire_text *w = arg;
    w->answers++;
    w->err = result->err;
    snprintf(w->text, sizeof(w->text), "%s", result->text);
}

TEST(request_and_error_as_documented)
{
    struct wire_text w;
    uint8_t bytes[256];
    wire_open(&w);
    Dtd__JobRequest request = DTD__JOB_REQUEST__INIT;
    request.job = (char *)"7";
    assert_ok(rpc_send(w.conn, CLIENT_STATUS, &request.base, 5000, on_answer, &w, NULL));
    expect_bytes(&w, "request");
    size_t n = example("error", bytes);
    assert_int_equal(write(w.fd, bytes, n), n);
    while (!w.answers)
        uv_run(&w.loop, UV_RUN_ONCE);
    assert_err(ERR_NOTFOUND, w.err);
    assert_string_equal(w.text, "no job 7");
    wire_fini(&w);
}

TEST(served_as_documented)
{
    struct wire_text w;
    uint8_t bytes[256];
    wire_open(&w);
    size_t n = example("request", bytes);
    assert_int_equal(write(w.fd, bytes, n), n);
    expect_bytes(&w, "error");
    n = example("request of checkpoints", bytes);
    assert_int_equal(write(w.fd, bytes, n), n);
    expect_bytes(&w, "reply");
    wire_fini(&w);
}

static const struct rpc_method *method_of(unsigned number)
{
    for (int i = 0; i < RPC_METHOD_COUNT; i++)
        if (rpc_methods()[i].id == number)
            return &rpc_methods()[i];
    return NULL;
}

/* Numbers are part of the wire format: a method keeps its number for ever. New methods need no row in the document. */
TEST(documented_numbers_have_not_changed)
{
    struct buf text = {0};
    int rows = 0;
    example_read("formats/wire.md", &text);
    for (const char *at = (char *)text.data; (at = strstr(at, "\n| 0x")); at++) {
        unsigned number;
        char name[64];
        assert_int_equal(2, sscanf(at, "\n| %x | %63s |", &number, name));
        const struct rpc_method *m = method_of(number);
        if (!m || strcmp(m->name, name) != 0)
            fail_msg("docs/formats/wire.md has %s as 0x%04x, common/rpc/methods.h has %s", name, number,
                     m ? m->name : "no method of this number");
        rows++;
    }
    assert_true(rows >= 43);
    buf_fini(&text);
}

TEST(every_service_is_in_the_table)
{
    const struct rpc_method *m = rpc_methods(); /* aborts when table and protos differ */
    for (int i = 0; i < RPC_METHOD_COUNT; i++) {
        assert_non_null(m[i].request);
        assert_non_null(m[i].reply);
        assert_null(m[i].handler);
        assert_true(m[i].max_request_bytes > 0 && m[i].max_reply_bytes > 0 && m[i].roles);
    }
}
