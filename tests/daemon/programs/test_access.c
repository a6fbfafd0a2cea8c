/* Roles on control.sock: a client may not call a worker's methods, and a connection becomes a worker's only by the
 * token in the worker's ticket. */
#include "common/rpc/methods.h"
#include "proto/io.pb-c.h"
#include "proto/worker.pb-c.h"
#include "tests/daemon/programs/harness.h"

static struct dtd d;
static uv_loop_t loop;

struct answer {
    err_t err;
    bool came;
};

static void answered(void *arg, const struct rpc_result *result)
{
    struct answer *a = arg;
    a->err = result->err;
    a->came = true;
}

static void closed(void *owner, struct rpc_conn *conn)
{
}

static struct rpc_conn *connect_raw(void)
{
    char path[512];
    int fd;
    struct rpc_conn *conn;
    snprintf(path, sizeof(path), "%s/control.sock", d.dir);
    assert_ok(rpc_connect_unix(path, &fd));
    const struct rpc_conn_config config = {
        .loop = &loop, .methods = rpc_methods(), .n_methods = RPC_METHOD_COUNT, .on_close = closed};
    assert_ok(rpc_conn_open(&config, fd, RPC_ROLE_ANY, &conn));
    return conn;
}

static err_t call(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *request)
{
    struct answer a = {.came = false};
    assert_ok(rpc_send(conn, method, request, 5000, answered, &a, NULL));
    while (!a.came)
        uv_run(&loop, UV_RUN_ONCE);
    return a.err;
}

TEST(only_a_token_makes_a_worker)
{
    char job[32];
    uint8_t token[32] = {1, 2, 3};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    assert_int_equal(0, uv_loop_init(&loop));
    struct rpc_conn *conn = connect_raw();
    Dtd__WorkerReport report = DTD__WORKER_REPORT__INIT;
    report.kind = DTD__WORKER_REPORT__KIND__DONE;
    report.epoch = 1;
    assert_err(ERR_DENIED, call(conn, WORKER_REPORT, &report.base));
    Dtd__WorkerHello hello = DTD__WORKER_HELLO__INIT;
    hello.job = job;
    hello.token.data = token;
    hello.pid = getpid();
    for (size_t len = 0; len <= sizeof(token); len += 16) {
        hello.token.len = len;
        assert_err(ERR_DENIED, call(conn, WORKER_HELLO, &hello.base));
    }
    hello.job = (char *)"77";
    assert_err(ERR_DENIED, call(conn, WORKER_HELLO, &hello.base));
    hello.job = job;
    hello.slot = 1000000;
    assert_err(ERR_DENIED, call(conn, WORKER_HELLO, &hello.base));
    Dtd__IoControlHello io = DTD__IO_CONTROL_HELLO__INIT;
    io.job = job;
    io.token.data = token;
    io.token.len = sizeof(token);
    io.pid = getpid();
    assert_err(ERR_DENIED, call(conn, IO_CONTROL_HELLO, &io.base));
    assert_err(ERR_DENIED, call(conn, WORKER_REPORT, &report.base));
    rpc_conn_close(conn);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal("running", job_status(&d, job)->state);
    assert_int_equal(0, dtd_down(&d));
}
