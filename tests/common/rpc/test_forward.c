/* Forwarded calls: the same outcomes as in test_call.c, with a third program between client and server. */
#include "common/rpc/conn.h"
#include "tests/common/rpc/pair.h"

TEST(reply_comes_back)
{
    struct pair p;
    struct pair_answer a;
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
    struct pair_answer a;
    size_t n = (2 << 20) - 64; /* the limit of Peer.Forward applies to requests */
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

/* Else a user who asks for long answers through another node would use all of the time of its loop. */
TEST(passing_on_an_answer_counts_for_its_user)
{
    static uint8_t bytes[1 << 20];
    struct pair p;
    struct pair_answer a;
    struct rpc_account account;
    Dtd__LogChunk m = DTD__LOG_CHUNK__INIT;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    rpc_account_init(&account, 64 << 20, 16);
    p.middle->config.account = &account;
    rpc_account_add(&account, p.middle);
    p.middle_methods[M_NEVER - 1].roles |= RPC_ROLE_CLIENT; /* its calls count */
    p.methods[M_NEVER - 1].max_reply_bytes = p.middle_methods[M_NEVER - 1].max_reply_bytes = 2 << 20;
    assert_ok(pair_call(&p, M_NEVER, "", 0, &a, NULL));
    while (!p.n_pending)
        uv_run(&p.loop, UV_RUN_ONCE);
    account.window_ns = uv_hrtime();
    account.spent_ns = 0;
    m.text = (ProtobufCBinaryData){sizeof(bytes), bytes};
    rpc_reply(p.pending[0], &m.base);
    pair_pump_answer(&p, &a);
    assert_int_equal(sizeof(bytes), a.bytes);
    assert_true(account.spent_ns >= sizeof(bytes) / RPC_READ_BYTES_PER_NS);
    pair_fini(&p);
    assert_true(rpc_account_is_idle(&account));
}

TEST(too_large_a_request_fails_alone)
{
    struct pair p;
    struct pair_answer a, b;
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
    struct pair_answer a;
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
    struct pair_answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    p.stream_items = 2000;
    p.item_bytes = 10000;
    assert_ok(pair_call(&p, M_STREAM, "", 0, &a, NULL));
    while (!p.handled)
        uv_run(&p.loop, UV_RUN_ONCE);
    assert_in_range(p.stream_sent, 1, 60); /* at most 256 KiB in flight */
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

/* The client never reads: only a small part of the stream may accumulate in the forwarding program. */
TEST(slow_reader_holds_the_writer)
{
    struct pair p;
    struct pair_answer a;
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
    struct pair_answer a, b;
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
    struct pair_answer a;
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
    struct pair_answer a;
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
    struct pair_answer a;
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
    struct pair_answer a;
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
    struct pair_answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_UNBOUND, "hello", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_UNSUPPORTED, a.err);
    pair_fini(&p);
}

TEST(lost_way_fails_calls_with_again)
{
    struct pair p;
    struct pair_answer a;
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
    struct pair_answer a;
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
    struct pair_answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    assert_ok(pair_call(&p, M_NEVER, "notify", 0, &a, NULL));
    pair_pump_ms(&p, 20);
    rpc_conn_close(p.client);
    pair_pump_ms(&p, 50);
    assert_int_equal(p.canceled, 1);
    assert_err(ERR_CLOSED, a.err);
    pair_fini(&p);
}

/* Bytes that are not a request of the method fail the call, not the connection. */
TEST(unreadable_body_fails_alone)
{
    struct pair p;
    struct pair_answer a;
    pair_open_forwarding(&p, RPC_ROLE_CLIENT);
    struct rpc_method far[M_COUNT];
    memcpy(far, p.methods, sizeof(far));
    far[M_ECHO - 1].request = &dtd__submit_request__descriptor; /* the type that the answering program expects */
    p.forwarded.methods = far;
    assert_ok(pair_call(&p, M_ECHO, "x", 0, &a, NULL));
    pair_pump_answer(&p, &a);
    assert_err(ERR_PROTO, a.err);
    assert_non_null(p.way);
    pair_fini(&p);
}

/* ---- many on one way ---- */

#define STREAMS 1000

struct forwarded_stream {
    struct crowd *crowd;
    struct rpc_call *call;
    int left;
};

struct crowd {
    struct pair p;
    struct forwarded_stream streams[STREAMS];
    struct pair_answer answers[STREAMS];
    int n, begin_at; /* streams; they send nothing before there are `begin_at` */
    int items;       /* of each */
    int64_t said, taken_bytes;
};

static void feed(void *arg)
{
    struct forwarded_stream *s = arg;
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    static uint8_t text[4000];
    err_t err = OK;
    chunk.text = (ProtobufCBinaryData){sizeof(text), text};
    while (s->left > 0 && !(err = rpc_item(s->call, &chunk.base))) {
        s->left--;
        s->crowd->said += sizeof(text);
    }
    if (err == ERR_LIMIT)
        rpc_call_on_drain(s->call, feed, s);
    else
        rpc_end(s->call);
}

static void stream_gone(void *arg)
{
    (void)arg;
}

static void handle_crowd(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct crowd *c = owner;
    (void)request;
    struct forwarded_stream *s = &c->streams[c->n++];
    *s = (struct forwarded_stream){c, call, c->items};
    rpc_call_on_cancel(call, stream_gone, s);
    for (int i = 0; c->n == c->begin_at && i < c->n; i++)
        feed(&c->streams[i]);
}

static struct crowd *crowd_open(int streams, int items, int way_calls)
{
    struct crowd *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    pair_open_forwarding(&c->p, RPC_ROLE_CLIENT);
    struct rpc_conn *const ends[] = {c->p.client, c->p.middle, c->p.way, c->p.server};
    for (int i = 0; i < 4; i++)
        ends[i]->config.max_calls = RPC_PEER_MAX_CALLS;
    c->p.way->config.max_calls = way_calls;
    c->p.methods[M_STREAM - 1].handler = handle_crowd;
    c->begin_at = streams;
    c->items = items;
    return c;
}

static void crowd_call(struct crowd *c, int from, int to)
{
    for (int i = from; i < to; i++)
        assert_ok(pair_call(&c->p, M_STREAM, "", 0, &c->answers[i], NULL));
}

static void crowd_fini(struct crowd *c)
{
    pair_fini(&c->p);
    free(c);
}

/* As many clients of one node follow a job's metrics. */
TEST(a_thousand_streams_share_a_way)
{
    struct crowd *c = crowd_open(STREAMS, 10, RPC_PEER_MAX_CALLS);
    crowd_call(c, 0, STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        pair_pump_answer(&c->p, &c->answers[i]);
        assert_ok(c->answers[i].err);
        assert_int_equal(c->answers[i].items, 10);
    }
    crowd_fini(c);
}

static bool is_quiet(void *arg)
{
    struct crowd *c = arg;
    bool same = c->n == STREAMS && c->said > 0 && c->said == c->taken_bytes;
    c->taken_bytes = c->said;
    return same;
}

/* No client reads: all streams together occupy no more than their share in the forwarding program. */
TEST(slow_readers_together_take_bounded_memory)
{
    struct crowd *c = crowd_open(STREAMS, 100, RPC_PEER_MAX_CALLS); /* 400 MB, if it were let through */
    crowd_call(c, 0, STREAMS);
    while (c->n < STREAMS)
        uv_run(&c->p.loop, UV_RUN_ONCE);
    uv_read_stop(&c->p.client->stream);
    do
        pair_pump_ms(&c->p, 200);
    while (!is_quiet(c));
    assert_in_range(c->said, 1, (64 << 20) + STREAMS * 4000);
    crowd_fini(c);
}

/* Existing streams continue: the node's own calls have reserved room. */
TEST(a_full_way_refuses_and_goes_on)
{
    struct crowd *c = crowd_open(36, 1000, 100);
    crowd_call(c, 0, 37);
    for (int i = 36; i >= 0; i--)
        pair_pump_answer(&c->p, &c->answers[i]);
    assert_err(ERR_LIMIT, c->answers[36].err);
    for (int i = 0; i < 36; i++) {
        assert_ok(c->answers[i].err);
        assert_int_equal(c->answers[i].items, 1000);
    }
    crowd_fini(c);
}
