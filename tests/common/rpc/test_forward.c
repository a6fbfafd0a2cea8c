/* Calls that go on over another connection: the same ends as test_call.c's, with a third program in between. */
#include "common/rpc/conn.h"
#include "tests/common/rpc/pair.h"

TEST(reply_comes_back)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, "hello", 1000, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_string_equal(a.text, "hello");
    assert_true(p.origin.is_process);
    assert_int_equal(p.origin.job, 7);
    assert_int_equal(p.origin.slot, 3);
    pair_fini(&p);
}

TEST(largest_answer_passes)
{
    struct pair p;
    struct answer a;
    size_t n = (2 << 20) - 64; /* a request's limit is that of Peer.Forward */
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    text[n] = '\0';
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, text, 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.bytes, n);
    free(text);
    pair_fini(&p);
}

TEST(too_large_a_request_fails_alone)
{
    struct pair p;
    struct answer a, b;
    size_t n = 3 << 20;
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    text[n] = '\0';
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, text, 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_LIMIT, a.err);
    assert_ok(pair_call(&p, M_ECHO, "still", 0, &b, NULL));
    pair_pump_answer(&p, &b);
    assert_string_equal(b.text, "still");
    free(text);
    pair_fini(&p);
}

TEST(inner_limit_counts)
{
    struct pair p;
    struct answer a;
    char text[M_SMALL_BYTES * 4];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    pair_open_forwarding(&p, RPC_ROLE_ANY);
    for (int i = 0; i < M_COUNT; i++)
        p.middle_methods[i].max_request_bytes = 1 << 20; /* a forwarder that checks nothing */
    p.methods[M_SMALL - 1].max_request_bytes = 1 << 20;  /* nor does the client: one table for both ends here */
    struct rpc_method far[M_COUNT];
    memcpy(far, p.methods, sizeof(far));
    far[M_SMALL - 1].max_request_bytes = M_SMALL_BYTES;
    p.forwarded.methods = far;
    assert_ok(pair_call(&p, M_SMALL, text, 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_PROTO, a.err);
    assert_int_equal(p.handled, 0);
    pair_fini(&p);
}

TEST(stream_passes_whole_and_holds_back)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    p.stream_items = 2000;
    p.item_bytes = 10000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, NULL));
    while (!p.handled)
        uv_run(&p.loop, UV_RUN_ONCE);
    assert_in_range(p.stream_sent, 1, 60); /* 256 KiB on the way, no more */
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.items, 2000);
    assert_int_equal(a.bytes, 20000000);
    pair_fini(&p);
}

static bool has_sent(void *arg)
{
    struct pair *p = arg;
    return p->stream_sent > 0;
}

/* The client's end is a connection that nobody reads: not even a fraction may pile up in between. */
TEST(slow_reader_holds_the_writer)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    p.stream_items = -1;
    p.item_bytes = 10000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, NULL));
    assert_true(pair_pump(&p, has_sent, &p));
    uv_read_stop(&p.client->stream);
    pair_pump_ms(&p, 300);
    int64_t stopped = p.stream_sent;
    pair_pump_ms(&p, 100);
    assert_int_equal(p.stream_sent, stopped);
    pair_fini(&p);
    assert_int_equal(p.canceled, 1);
}

TEST(cancel_reaches_the_handler)
{
    struct pair p;
    struct answer a, b;
    uint64_t call;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    p.stream_items = -1;
    p.item_bytes = 1000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, &call));
    pair_pump_ms(&p, 20);
    assert_true(a.items > 0);
    rpc_cancel(p.client, call);
    pair_pump_answer(&p, &a);
    assert_err(ERR_CANCELED, a.err);
    pair_pump_ms(&p, 20);
    assert_int_equal(p.canceled, 1);
    assert_ok(pair_call(&p, M_ECHO, "alive", 0, &b, NULL));
    pair_pump_answer(&p, &b);
    assert_string_equal(b.text, "alive");
    pair_fini(&p);
}

TEST(deadline_reaches_the_handler)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "notify", 30, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_TIMEOUT, a.err);
    pair_pump_ms(&p, 30);
    assert_int_equal(p.canceled, 1);
    pair_fini(&p);
}

TEST(late_answer_goes_nowhere)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "silent", 30, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_TIMEOUT, a.err);
    pair_pump_ms(&p, 30);
    assert_null(rpc_call_data(p.pending[0]));
    rpc_fail(p.pending[0], ERR_IO, "too late");
    pair_fini(&p);
}

TEST(error_passes_with_its_sentence)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "silent", 0, &a, NULL));
    pair_pump_ms(&p, 20);
    assert_int_equal(p.n_pending, 1);
    assert_ptr_equal(rpc_call_data(p.pending[0]), &p);
    rpc_fail(p.pending[0], ERR_NOTFOUND, "no job %d", 12);
    pair_pump_answer(&p, &a);
    assert_err(ERR_NOTFOUND, a.err);
    assert_string_equal(a.text, "no job 12");
    pair_fini(&p);
}

TEST(role_is_checked_where_the_call_arrives)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_WORKER);
    assert_ok(pair_call(&p, M_ECHO, "hello", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_DENIED, a.err);
    assert_int_equal(p.handled, 0);
    pair_fini(&p);
}

TEST(unbound_method_is_refused)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_UNBOUND, "hello", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_UNSUPPORTED, a.err);
    pair_fini(&p);
}

TEST(lost_way_fails_calls_with_again)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "notify", 0, &a, NULL));
    pair_pump_ms(&p, 20);
    rpc_conn_close(p.server);
    pair_pump_answer(&p, &a);
    assert_err(ERR_AGAIN, a.err);
    assert_int_equal(p.canceled, 1);
    pair_fini(&p);
}

TEST(held_call_outlives_the_way)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    p.hold = true;
    assert_ok(pair_call(&p, M_NEVER, "notify", 0, &a, NULL));
    pair_pump_ms(&p, 20);
    rpc_conn_close(p.server);
    pair_pump_ms(&p, 50);
    assert_null(p.way);
    assert_false(a.last);
    rpc_conn_close(p.middle);
    pair_pump_answer(&p, &a);
    assert_err(ERR_CLOSED, a.err);
    pair_fini(&p);
}

TEST(caller_that_goes_cancels)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "notify", 0, &a, NULL));
    pair_pump_ms(&p, 20);
    rpc_conn_close(p.client);
    pair_pump_ms(&p, 50);
    assert_int_equal(p.canceled, 1);
    assert_err(ERR_CLOSED, a.err);
    pair_fini(&p);
}

/* Bytes that are no request of the method: the caller's mistake, not the connection's. */
TEST(unreadable_body_fails_alone)
{
    struct pair p;
    struct answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    struct rpc_method far[M_COUNT];
    memcpy(far, p.methods, sizeof(far));
    far[M_ECHO - 1].request = &dtd__submit_request__descriptor; /* the far end's idea of it */
    p.forwarded.methods = far;
    assert_ok(pair_call(&p, M_ECHO, "x", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_PROTO, a.err);
    assert_non_null(p.way);
    pair_fini(&p);
}
