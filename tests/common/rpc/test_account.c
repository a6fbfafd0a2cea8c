/* One user opens connections, and they share his account: their unread answers, incomplete requests and waiting calls
 * are bounded together, and the time of the loop is shared with others. */
#include "common/base/clock.h"
#include "common/rpc/conn.h"
#include "tests/common/rpc/pair.h"

#include <fcntl.h>
#include <sys/socket.h>

enum { CONNS = 64, ANSWER = 1 << 20, MAX_BYTES = 8 << 20, MAX_CALLS = 10 };

static struct {
    uv_loop_t loop;
    struct rpc_method methods[3];
    struct rpc_account account;
    struct rpc_conn *conn[CONNS]; /* NULL: closed */
    int fd[CONNS];
    int handled, sleep_ms;
} t;

enum { M_LARGE = 1, M_PUT, M_WAIT };

static void handle_large(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    static uint8_t bytes[ANSWER];
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    (void)owner, (void)request;
    t.handled++;
    chunk.text = (ProtobufCBinaryData){sizeof(bytes), bytes};
    rpc_reply(call, &chunk.base);
}

static void handle_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    (void)owner, (void)request;
    t.handled++;
    for (int64_t until = clock_mono_ms() + t.sleep_ms; clock_mono_ms() < until;)
        ;
    rpc_reply(call, &chunk.base);
}

static void gone(void *arg)
{
    (void)arg;
}

static void handle_wait(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner, (void)request;
    t.handled++;
    rpc_call_on_cancel(call, gone, NULL);
}

static void closed(void *owner, struct rpc_conn *conn)
{
    (void)owner;
    for (int i = 0; i < CONNS; i++)
        if (t.conn[i] == conn)
            t.conn[i] = NULL;
}

static void open_one(int i, struct rpc_account *account, uint64_t message_ms)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    const struct rpc_conn_config config = {.loop = &t.loop,
                                           .methods = t.methods,
                                           .n_methods = 3,
                                           .owner = &t,
                                           .on_close = closed,
                                           .account = account,
                                           .message_ms = message_ms};
    assert_ok(rpc_conn_open(&config, fds[0], RPC_ROLE_CLIENT, &t.conn[i]));
    t.fd[i] = fds[1];
}

static void begin(int n)
{
    static const rpc_handler handlers[] = {handle_large, handle_put, handle_wait};
    memset(&t, 0, sizeof(t));
    memset(t.fd, -1, sizeof(t.fd));
    assert_int_equal(uv_loop_init(&t.loop), 0);
    for (int i = 0; i < 3; i++)
        t.methods[i] = (struct rpc_method){.id = (uint16_t)(M_LARGE + i),
                                           .name = "Test",
                                           .roles = RPC_ROLE_CLIENT,
                                           .max_request_bytes = ANSWER,
                                           .max_reply_bytes = 2 * ANSWER,
                                           .request = &dtd__logs_request__descriptor,
                                           .reply = &dtd__log_chunk__descriptor,
                                           .handler = handlers[i]};
    rpc_account_init(&t.account, MAX_BYTES, MAX_CALLS);
    for (int i = 0; i < n; i++)
        open_one(i, &t.account, 0);
}

static void end(void)
{
    for (int i = 0; i < CONNS; i++) {
        if (t.conn[i])
            rpc_conn_close(t.conn[i]);
        if (t.fd[i] >= 0)
            close(t.fd[i]);
    }
    uv_run(&t.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&t.loop), 0);
    assert_true(rpc_account_is_idle(&t.account));
    assert_int_equal(t.account.answer_bytes, 0);
    assert_int_equal(t.account.request_bytes, 0);
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

static void run_ms(int ms)
{
    uv_timer_t timer;
    uv_timer_init(&t.loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    for (int64_t until = clock_mono_ms() + ms; clock_mono_ms() < until;)
        uv_run(&t.loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&t.loop, UV_RUN_NOWAIT);
}

static const uint8_t body[] = {0x0a, 0x03, 'a', 'b', 'c'};

static bool send_request(int i, uint16_t method, uint64_t call)
{
    uint8_t bytes[RPC_HEADER_BYTES + sizeof(body)];
    const struct frame f = {
        .version = RPC_VERSION, .kind = RPC_REQUEST, .method = method, .call = call, .length = sizeof(body)};
    frame_encode(&f, bytes);
    memcpy(bytes + RPC_HEADER_BYTES, body, sizeof(body));
    return send(t.fd[i], bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes);
}

/* Only the header of a request whose body never arrives. */
static void begin_request(int i, uint16_t method, uint32_t length)
{
    uint8_t bytes[RPC_HEADER_BYTES];
    const struct frame f = {.version = RPC_VERSION, .kind = RPC_REQUEST, .method = method, .call = 1, .length = length};
    frame_encode(&f, bytes);
    assert_int_equal(send(t.fd[i], bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
}

static int n_open(void)
{
    int n = 0;
    for (int i = 0; i < CONNS; i++)
        n += t.conn[i] != NULL;
    return n;
}

/* Reads answers and returns the number of frames of this kind. */
static int count_frames(int i, uint8_t kind)
{
    static uint8_t bytes[4 << 20];
    size_t len = 0;
    int found = 0;
    ssize_t n;
    while ((n = recv(t.fd[i], bytes + len, sizeof(bytes) - len, MSG_DONTWAIT)) > 0) {
        len += (size_t)n;
        run_ms(2);
    }
    for (size_t at = 0; at + RPC_HEADER_BYTES <= len;) {
        struct frame f;
        const char *reason;
        assert_ok(frame_decode(bytes + at, &f, &reason));
        found += f.kind == kind;
        at += RPC_HEADER_BYTES + f.length;
    }
    return found;
}

/* A connection alone may hold 4 MiB; 64 of them could hold 256 MiB. */
TEST(unread_answers_of_one_user_are_bounded)
{
    begin(CONNS);
    for (int i = 0; i < CONNS; i++)
        for (uint64_t call = 1; call <= 3; call++)
            assert_true(send_request(i, M_LARGE, call));
    run_ms(100);
    print_message("%d requests handled, %zu bytes of answers\n", t.handled, t.account.answer_bytes);
    assert_true(t.account.answer_bytes <= MAX_BYTES / 2 + 2 * ANSWER);
    assert_int_equal(n_open(), CONNS);
    for (int i = 0; i < CONNS; i++) {
        assert_true(t.conn[i]->paused);
        t.conn[i]->stalled_since -= RPC_STALL_FULL_MS; /* five seconds later */
        rpc_conn_wake_at(t.conn[i], 0);
    }
    run_ms(100);
    assert_true(n_open() < CONNS);     /* those whose answers are not read */
    assert_true(n_open() > CONNS / 2); /* those that wait to be read themselves */
    end();
}

/* A user who reads gets all of his answers, though nothing of them was in the socket when his requests were paused. */
TEST(requests_that_waited_are_answered)
{
    begin(8);
    for (int i = 0; i < 8; i++)
        for (uint64_t call = 1; call <= 3; call++)
            assert_true(send_request(i, M_LARGE, call));
    run_ms(50);
    assert_true(t.handled < 24);
    int answers = 0;
    for (int turn = 0; turn < 200 && answers < 24; turn++) {
        static uint8_t bytes[1 << 16];
        static size_t got[8];
        for (int i = 0; i < 8; i++) {
            ssize_t n;
            while ((n = recv(t.fd[i], bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
                got[i] += (size_t)n;
        }
        run_ms(5);
        size_t all = 0;
        for (int i = 0; i < 8; i++)
            all += got[i];
        answers = (int)(all / ANSWER);
    }
    assert_int_equal(answers, 24);
    assert_int_equal(t.handled, 24);
    assert_int_equal(n_open(), 8);
    end();
}

/* One read from the socket has 2,000 requests. Without a stop between them, each would get its answer. */
TEST(requests_in_one_read_stop_when_answers_wait)
{
    enum { N = 2000 };
    static uint8_t bytes[N * (RPC_HEADER_BYTES + sizeof(body))];
    begin(0);
    open_one(0, NULL, 0);
    for (int i = 0; i < N; i++) {
        uint8_t *at = bytes + (size_t)i * (RPC_HEADER_BYTES + sizeof(body));
        const struct frame f = {.version = RPC_VERSION,
                                .kind = RPC_REQUEST,
                                .method = M_LARGE,
                                .call = (uint64_t)i + 1,
                                .length = sizeof(body)};
        frame_encode(&f, at);
        memcpy(at + RPC_HEADER_BYTES, body, sizeof(body));
    }
    rpc_conn_feed(t.conn[0], bytes, sizeof(bytes));
    assert_true(rpc_conn_queued(t.conn[0]) <= RPC_PAUSE_BYTES + 2 * ANSWER);
    assert_true(t.handled < 10);
    end();
}

/* Answers to requests that were read before: those of handlers that take time. */
TEST(the_connection_with_the_most_is_closed)
{
    begin(3);
    static uint8_t data[2 * ANSWER];
    Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
    const struct frame f = {.kind = RPC_REPLY, .method = M_LARGE, .call = 1};
    chunk.text = (ProtobufCBinaryData){sizeof(data) - 64, data};
    for (int i = 0; i < 3; i++)
        assert_ok(rpc_conn_write(t.conn[0], f, &chunk.base));
    assert_ok(rpc_conn_write(t.conn[1], f, &chunk.base));
    assert_int_equal(n_open(), 3);
    assert_ok(rpc_conn_write(t.conn[1], f, &chunk.base)); /* 10 MiB together */
    run_ms(10);
    assert_null(t.conn[0]);
    assert_non_null(t.conn[1]);
    assert_non_null(t.conn[2]);
    end();
}

TEST(incomplete_requests_are_bounded)
{
    begin(CONNS);
    for (int i = 0; i < CONNS; i++)
        begin_request(i, M_PUT, ANSWER);
    run_ms(50);
    assert_int_equal(t.account.request_bytes, MAX_BYTES / 2);
    int refused = 0;
    for (int i = 0; i < CONNS; i++)
        refused += count_frames(i, RPC_ERROR);
    assert_int_equal(refused, CONNS - MAX_BYTES / 2 / ANSWER);
    end();
}

TEST(a_message_that_is_not_completed_closes)
{
    begin(0);
    for (int i = 0; i < 4; i++)
        open_one(i, NULL, 200);
    begin_request(0, M_PUT, 1000);                                   /* a header */
    assert_int_equal(send(t.fd[1], "DTD1\1\1", 6, MSG_NOSIGNAL), 6); /* a part of one */
    assert_true(send_request(2, M_PUT, 1));                          /* a message */
    int64_t began = clock_mono_ms();
    for (int turn = 0; n_open() > 2 && turn < 300; turn++) {
        (void)!send(t.fd[1], "", 1, MSG_NOSIGNAL); /* a byte now and then does not help */
        run_ms(10);
        if (turn == 15)
            break;
    }
    for (int turn = 0; n_open() > 2 && turn < 300; turn++)
        run_ms(10);
    print_message("closed after %d ms\n", (int)(clock_mono_ms() - began));
    assert_null(t.conn[0]);
    assert_null(t.conn[1]);
    run_ms(300);
    assert_non_null(t.conn[2]);
    assert_non_null(t.conn[3]); /* an idle connection may stay */
    end();
}

TEST(calls_of_one_user_are_bounded)
{
    begin(4);
    for (int i = 0; i < 4; i++)
        for (uint64_t call = 1; call <= 5; call++)
            assert_true(send_request(i, M_WAIT, call));
    run_ms(50);
    assert_int_equal(t.handled, MAX_CALLS);
    assert_int_equal(t.account.n_calls, MAX_CALLS);
    int refused = 0;
    for (int i = 0; i < 4; i++)
        refused += count_frames(i, RPC_ERROR);
    assert_int_equal(refused, 20 - MAX_CALLS);
    rpc_conn_close(t.conn[0]);
    rpc_conn_close(t.conn[1]);
    run_ms(10);
    assert_true(t.account.n_calls < MAX_CALLS);
    assert_true(send_request(3, M_WAIT, 6));
    run_ms(10);
    assert_int_equal(t.handled, MAX_CALLS + 1);
    end();
}

/* MALLORY's 8 connections send requests of 2 ms each without a pause. A request of another user waits for a turn of the
 * loop, which has 5 ms of his requests and not 800. */
TEST(another_user_waits_for_a_short_turn)
{
    enum { N = 50, PROBES = 20 };
    struct rpc_account other;
    int64_t longest = 0;
    begin(8);
    rpc_account_init(&other, MAX_BYTES, MAX_CALLS);
    open_one(8, &other, 0);
    t.sleep_ms = 2;
    for (int i = 0; i < 8; i++)
        for (uint64_t call = 1; call <= N; call++)
            assert_true(send_request(i, M_PUT, call));
    for (uint64_t call = 1; call <= PROBES; call++) {
        int64_t began = clock_mono_ms();
        assert_true(send_request(8, M_PUT, call));
        uint8_t header[RPC_HEADER_BYTES];
        while (recv(t.fd[8], header, sizeof(header), MSG_DONTWAIT) < 0)
            uv_run(&t.loop, UV_RUN_ONCE);
        int64_t took = clock_mono_ms() - began;
        longest = took > longest ? took : longest;
        while (recv(t.fd[8], header, sizeof(header), MSG_DONTWAIT) > 0)
            ;
    }
    print_message("longest wait %d ms beside %d requests of 2 ms, %d handled\n", (int)longest, 8 * N, t.handled);
    assert_true(t.handled < 8 * N); /* the attack lasted */
    assert_true(longest < 100);
    rpc_conn_close(t.conn[8]);
    run_ms(2);
    assert_true(rpc_account_is_idle(&other));
    end();
}

/* 100 requests at once, and then 1,000 a second. */
TEST(a_connection_with_a_rate_is_read_more_slowly)
{
    begin(0);
    open_one(0, NULL, 0);
    rpc_conn_set_rate(t.conn[0], 1000, 100);
    for (uint64_t call = 1; call <= 200; call++)
        assert_true(send_request(0, M_PUT, call));
    int64_t began = clock_mono_ms();
    run_ms(20);
    assert_in_range(t.handled, 100, 150);
    while (t.handled < 200 && clock_mono_ms() < began + 10000)
        run_ms(1);
    int64_t took = clock_mono_ms() - began;
    print_message("200 requests in %d ms\n", (int)took);
    assert_int_equal(t.handled, 200);
    assert_true(took >= 95);
    end();
}

/* The body of a request that is refused by its header is skipped. Reading it takes time all the same. */
TEST(skipped_bytes_count)
{
    static const uint8_t zeros[1 << 16];
    size_t sent = 0;
    begin(1);
    begin_request(0, 9, ANSWER); /* no such method */
    run_ms(5);
    for (ssize_t n; (n = send(t.fd[0], zeros, sizeof(zeros), MSG_NOSIGNAL)) > 0;)
        sent += (size_t)n;
    assert_true(sent >= sizeof(zeros));
    t.account.window_ns = uv_hrtime();
    t.account.spent_ns = 0;
    uv_run(&t.loop, UV_RUN_NOWAIT);
    assert_true(t.account.spent_ns >= sizeof(zeros) / RPC_READ_BYTES_PER_NS);
    end();
}
