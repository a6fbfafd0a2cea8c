/* Calls between two well-behaved connections: every kind of frame, every way a call can end. */
#include "tests/common/rpc/pair.h"

TEST(reply_comes_back)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, "hello", 1000, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.calls, 1);
    assert_string_equal(a.text, "hello");
    pair_fini(&p);
}

TEST(both_sides_may_call)
{
    struct pair p;
    struct pair_answer a, b = {0};
    pair_open(&p, RPC_ROLE_CLIENT);
    rpc_conn_set_roles(p.client, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, "there", 0, &a, NULL));
    Dtd__LogsRequest request = DTD__LOGS_REQUEST__INIT;
    request.job = (char *)"back";
    assert_ok(rpc_send(p.server, M_ECHO, &request.base, 0, answer_cb, &b, NULL));
    pair_pump_answer(&p, &a);
    pair_pump_answer(&p, &b);
    assert_string_equal(a.text, "there");
    assert_string_equal(b.text, "back");
    pair_fini(&p);
}

TEST(large_bodies_pass_whole)
{
    struct pair p;
    struct pair_answer a;
    size_t n = (8 << 20) + 13;
    char *text = malloc(n + 1);
    memset(text, 'x', n);
    text[n] = '\0';
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, text, 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.bytes, n);
    free(text);
    pair_fini(&p);
}

TEST(stream_ends_with_end)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    p.stream_items = 5;
    p.item_bytes = 100;
    assert_ok(pair_call(&p, M_STREAM, "", 1000, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.items, 5);
    assert_int_equal(a.calls, 6);
    pair_fini(&p);
}

TEST(stream_holds_back_and_goes_on)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    p.stream_items = 2000;
    p.item_bytes = 10000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, NULL));
    while (!p.handled)
        uv_run(&p.loop, UV_RUN_ONCE);
    /* Only a small part may be in memory: up to 256 KiB, and what the socket accepts. */
    assert_in_range(p.stream_sent, 1, 200);
    pair_pump_answer(&p, &a);
    assert_int_equal(a.items, 2000);
    assert_int_equal(a.bytes, 20000000);
    pair_fini(&p);
}

TEST(cancel_ends_a_stream)
{
    struct pair p;
    struct pair_answer a;
    uint64_t call;
    pair_open(&p, RPC_ROLE_CLIENT);
    p.stream_items = -1;
    p.item_bytes = 1000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, &call));
    pair_pump_ms(&p, 20);
    assert_true(a.items > 0);
    assert_false(a.last);
    int before = a.calls;
    rpc_cancel(p.client, call);
    rpc_cancel(p.client, call); /* a second cancel has no effect */
    assert_int_equal(a.calls, before);
    pair_pump_answer(&p, &a);
    assert_err(ERR_CANCELED, a.err);
    pair_pump_ms(&p, 20);
    assert_int_equal(p.canceled, 1);
    /* Answers that were in flight had no effect. */
    struct pair_answer b;
    assert_ok(pair_call(&p, M_ECHO, "alive", 0, &b, NULL));
    pair_pump_answer(&p, &b);
    assert_string_equal(b.text, "alive");
    pair_fini(&p);
}

TEST(deadline_ends_both_sides)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
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
    struct pair_answer a, b;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "do not notify", 10, &a, NULL));
    pair_pump_answer(&p, &a);
    pair_pump_ms(&p, 20);
    assert_int_equal(p.canceled, 0);
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    rpc_reply(p.pending[0], &chunk.base); /* still valid */
    assert_ok(pair_call(&p, M_ECHO, "alive", 0, &b, NULL));
    pair_pump_answer(&p, &b);
    assert_ok(b.err);
    pair_fini(&p);
}

TEST(error_carries_code_and_text)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "", 0, &a, NULL));
    while (!p.n_pending)
        uv_run(&p.loop, UV_RUN_ONCE);
    rpc_fail(p.pending[0], ERR_NOTFOUND, "no job %d", 7);
    pair_pump_answer(&p, &a);
    assert_err(ERR_NOTFOUND, a.err);
    assert_string_equal(a.text, "no job 7");
    pair_fini(&p);
}

TEST(close_fails_what_is_outstanding)
{
    struct pair p;
    struct pair_answer a, b;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "notify", 1000, &a, NULL));
    assert_ok(pair_call(&p, M_NEVER, "silent", 0, &b, NULL));
    while (p.n_pending < 2)
        uv_run(&p.loop, UV_RUN_ONCE);
    rpc_conn_close(p.client);
    rpc_conn_close(p.client);
    assert_int_equal(a.calls + b.calls, 0);
    assert_err(ERR_CLOSED, pair_call(&p, M_ECHO, "", 0, &(struct pair_answer){0}, NULL));
    pair_pump_answer(&p, &a);
    pair_pump_answer(&p, &b);
    assert_err(ERR_CLOSED, a.err);
    assert_err(ERR_CLOSED, b.err);
    pair_pump_closed(&p);
    assert_int_equal(p.canceled, 1);
    assert_null(rpc_call_conn(p.pending[1]));
    rpc_fail(p.pending[1], ERR_INTERNAL, "to nobody"); /* frees it */
    pair_fini(&p);
}

static void close_in_callback(void *arg, const struct rpc_result *result)
{
    struct pair *p = arg;
    if (result->err == OK)
        rpc_conn_close(p->client);
}

TEST(close_inside_a_callback)
{
    struct pair p;
    pair_open(&p, RPC_ROLE_CLIENT);
    Dtd__LogsRequest request = DTD__LOGS_REQUEST__INIT;
    request.job = (char *)"x";
    for (int i = 0; i < 20; i++)
        assert_ok(rpc_send(p.client, M_ECHO, &request.base, 0, close_in_callback, &p, NULL));
    pair_pump_closed(&p);
    assert_int_equal(p.client_closes, 1);
    pair_fini(&p);
}

TEST(finish_sends_what_is_queued)
{
    struct pair p;
    struct pair_answer a;
    size_t n = 4 << 20;
    char *text = malloc(n + 1);
    memset(text, 'y', n);
    text[n] = '\0';
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_ECHO, text, 0, &a, NULL));
    while (!p.handled)
        uv_run(&p.loop, UV_RUN_ONCE);
    assert_true(rpc_conn_queued(p.server) > 0);
    rpc_conn_finish(p.server);
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    assert_int_equal(a.bytes, n);
    pair_pump_closed(&p);
    free(text);
    pair_fini(&p);
}

TEST(role_is_checked_before_memory)
{
    struct pair p;
    struct pair_answer a;
    char text[100001];
    memset(text, 'z', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_PEERS_ONLY, text, 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_DENIED, a.err);
    struct rpc_conn_stats stats;
    rpc_conn_stats(p.server, &stats);
    assert_int_equal(stats.refused, 1);
    assert_int_equal(stats.body_bytes, 0);
    rpc_conn_set_roles(p.server, RPC_ROLE_PEER);
    assert_ok(pair_call(&p, M_PEERS_ONLY, "now", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_ok(a.err);
    pair_fini(&p);
}

TEST(method_without_handler_is_unsupported)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_UNBOUND, "", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_UNSUPPORTED, a.err);
    assert_non_null(p.server);
    pair_fini(&p);
}

TEST(sizes_are_held_by_the_sender_too)
{
    struct pair p;
    struct pair_answer a;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_err(ERR_LIMIT, pair_call(&p, M_SMALL, "123456789012345678901234567890123", 0, &a, NULL));
    /* 30 bytes fit as a request with 2 of overhead; the answer has 2 more for its rank. */
    assert_ok(pair_call(&p, M_SMALL, "123456789012345678901234567890", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_LIMIT, a.err);
    assert_non_null(strstr(a.text, "Test.Small"));
    pair_fini(&p);
}

static void count_closed(void *arg, const struct rpc_result *result)
{
    assert_err(ERR_CLOSED, result->err);
    ++*(int *)arg;
}

TEST(outstanding_calls_are_bounded)
{
    struct pair p;
    int closed = 0;
    pair_open(&p, RPC_ROLE_CLIENT);
    Dtd__LogsRequest request = DTD__LOGS_REQUEST__INIT;
    request.job = (char *)"notify";
    for (int i = 0; i < RPC_MAX_CALLS; i++)
        assert_ok(rpc_send(p.client, M_NEVER, &request.base, 0, count_closed, &closed, NULL));
    assert_err(ERR_LIMIT, rpc_send(p.client, M_NEVER, &request.base, 0, count_closed, &closed, NULL));
    pair_pump_ms(&p, 20);
    rpc_conn_close(p.client);
    pair_pump_closed(&p);
    assert_int_equal(closed, RPC_MAX_CALLS);
    assert_int_equal(p.canceled, RPC_MAX_CALLS);
    pair_fini(&p);
}

TEST(peer_is_the_kernels_word)
{
    struct pair p;
    pair_open(&p, RPC_ROLE_CLIENT);
    assert_int_equal(rpc_conn_peer_pid(p.server), getpid());
    assert_int_equal(rpc_conn_peer_uid(p.server), getuid());
    pair_fini(&p);
}
