/* Invalid input from a peer: each case must close this connection or refuse this call, and affect nothing else. */
#include "common/rpc/conn.h"
#include "tests/common/rpc/pair.h"

#include <sys/socket.h>

/* A frame with an echo request's body (job = "abc") unless changed. */
struct frame_data {
    uint8_t data[256];
    size_t len;
};

static const uint8_t echo_body[] = {0x0a, 0x03, 'a', 'b', 'c'};

static struct frame request(uint16_t method)
{
    return (struct frame){
        .version = RPC_VERSION, .kind = RPC_REQUEST, .method = method, .call = 1, .length = sizeof(echo_body)};
}

static struct frame_data frame_bytes(struct frame frame)
{
    struct frame_data b = {.len = RPC_HEADER_BYTES + sizeof(echo_body)};
    frame_encode(&frame, b.data);
    memcpy(b.data + RPC_HEADER_BYTES, echo_body, sizeof(echo_body));
    return b;
}

static void send_raw(struct pair *p, const void *data, size_t len)
{
    assert_int_equal(send(p->raw, data, len, MSG_NOSIGNAL), len);
}

static void expect_close(const char *what, struct frame_data b)
{
    struct pair p;
    print_message("%s\n", what);
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    send_raw(&p, b.data, b.len);
    pair_pump_closed(&p);
    assert_int_equal(p.handled, 0);
    pair_fini(&p);
}

TEST(broken_headers_close)
{
    struct frame f = request(M_ECHO);
    struct frame_data b = frame_bytes(f);
    b.data[0] ^= 1;
    expect_close("magic", b);
    f.version = RPC_VERSION_OLDEST - 1;
    expect_close("version below", frame_bytes(f));
    f.version = RPC_VERSION + 1;
    expect_close("version above", frame_bytes(f));
    f = request(M_ECHO);
    f.kind = 0;
    expect_close("kind 0", frame_bytes(f));
    f.kind = RPC_CANCEL + 1;
    expect_close("kind above", frame_bytes(f));
    f = request(M_ECHO);
    f.call = 0;
    expect_close("call 0", frame_bytes(f));
    f = request(M_ECHO);
    f.length = RPC_MAX_BODY_BYTES + 1;
    expect_close("length above all", frame_bytes(f));
    f = request(M_SMALL);
    f.length = M_SMALL_BYTES + 1;
    expect_close("length above the method's", frame_bytes(f));
    f = request(M_ECHO);
    f.kind = RPC_CANCEL;
    expect_close("cancel with a body", frame_bytes(f));
    f.kind = RPC_END;
    expect_close("end with a body", frame_bytes(f));
}

TEST(answers_nobody_asked_for_close)
{
    struct frame f = request(M_ECHO);
    for (int kind = RPC_REPLY; kind <= RPC_ERROR; kind++) {
        f.kind = (uint8_t)kind;
        f.length = kind == RPC_END ? 0 : sizeof(echo_body);
        struct frame_data b = frame_bytes(f);
        b.len = RPC_HEADER_BYTES + f.length;
        expect_close("an answer to call 1", b);
    }
    f.kind = RPC_CANCEL;
    f.length = 0;
    struct frame_data b = frame_bytes(f);
    b.len = RPC_HEADER_BYTES;
    expect_close("a cancel of call 1", b);
}

TEST(unreadable_bodies_close)
{
    struct frame f = request(M_ECHO);
    struct frame_data b = frame_bytes(f);
    b.data[RPC_HEADER_BYTES + 1] = 0x7f; /* a string longer than the body */
    expect_close("string past the end", b);
    f.length = 0;
    b = frame_bytes(f);
    b.len = RPC_HEADER_BYTES;
    expect_close("required field missing", b);
    f.length = 2;
    b = frame_bytes(f);
    memcpy(b.data + RPC_HEADER_BYTES, "\xff\xff", 2);
    b.len = RPC_HEADER_BYTES + 2;
    expect_close("half a tag", b);
}

TEST(calls_that_do_not_ascend_close)
{
    struct pair p;
    struct frame_data b = frame_bytes(request(M_ECHO));
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    send_raw(&p, b.data, b.len);
    send_raw(&p, b.data, b.len);
    pair_pump_closed(&p);
    assert_int_equal(p.handled, 1);
    pair_fini(&p);
}

TEST(truncated_at_every_byte)
{
    struct frame_data b = frame_bytes(request(M_ECHO));
    for (size_t n = 0; n <= b.len; n++) {
        struct pair p;
        pair_open_raw(&p, RPC_ROLE_CLIENT);
        if (n)
            send_raw(&p, b.data, n);
        shutdown(p.raw, SHUT_WR);
        pair_pump_closed(&p);
        assert_int_equal(p.handled, n == b.len);
        pair_fini(&p);
    }
}

TEST(one_byte_at_a_time)
{
    struct pair p;
    uint8_t back[64];
    struct frame_data b = frame_bytes(request(M_ECHO));
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    for (size_t i = 0; i < b.len; i++) {
        send_raw(&p, b.data + i, 1);
        pair_pump_ms(&p, 1);
    }
    assert_int_equal(p.handled, 1);
    size_t n = pair_raw_read(&p, back, sizeof(back), RPC_HEADER_BYTES);
    struct frame frame;
    const char *reason;
    assert_true(n >= RPC_HEADER_BYTES);
    assert_ok(frame_decode(back, &frame, &reason));
    assert_int_equal(frame.kind, RPC_REPLY);
    assert_int_equal(frame.call, 1);
    pair_fini(&p);
}

static void expect_error_frame(struct pair *p)
{
    uint8_t back[256];
    struct frame frame;
    const char *reason;
    assert_true(pair_raw_read(p, back, sizeof(back), RPC_HEADER_BYTES) >= RPC_HEADER_BYTES);
    assert_ok(frame_decode(back, &frame, &reason));
    assert_int_equal(frame.kind, RPC_ERROR);
}

/* A refusal is sent before the body has arrived; the body is then skipped without being stored. */
TEST(refused_bodies_are_passed_over)
{
    struct pair p;
    struct frame f = request(M_PEERS_ONLY);
    uint8_t header[RPC_HEADER_BYTES];
    static uint8_t junk[1 << 16];
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    f.length = 1 << 20;
    frame_encode(&f, header);
    send_raw(&p, header, sizeof(header));
    expect_error_frame(&p);
    for (size_t sent = 0; sent < f.length; sent += sizeof(junk)) {
        send_raw(&p, junk, sizeof(junk));
        pair_pump_ms(&p, 2);
    }
    f = request(999); /* no such method */
    f.call = 2;
    struct frame_data b = frame_bytes(f);
    send_raw(&p, b.data, b.len);
    expect_error_frame(&p);
    struct rpc_conn_stats stats;
    rpc_conn_stats(p.server, &stats);
    assert_int_equal(stats.refused, 2);
    assert_int_equal(stats.body_bytes, 0);
    /* The connection still serves calls. */
    f = request(M_ECHO);
    f.call = 3;
    b = frame_bytes(f);
    send_raw(&p, b.data, b.len);
    pair_pump_ms(&p, 20);
    assert_int_equal(p.handled, 1);
    pair_fini(&p);
}

TEST(garbage_closes_and_nobody_else_notices)
{
    struct pair good, bad;
    struct pair_answer a;
    uint32_t x = 99;
    pair_open(&good, RPC_ROLE_CLIENT);
    for (int i = 0; i < 100; i++) {
        uint8_t junk[200];
        for (size_t k = 0; k < sizeof(junk); k++)
            junk[k] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
        if (i % 2)
            memcpy(junk, (const uint8_t[]){0x44, 0x54, 0x44, 0x31, RPC_VERSION}, 5);
        pair_open_raw(&bad, RPC_ROLE_CLIENT);
        send_raw(&bad, junk, sizeof(junk));
        shutdown(bad.raw, SHUT_WR);
        pair_pump_closed(&bad);
        pair_fini(&bad);
    }
    assert_ok(pair_call(&good, M_ECHO, "fine", 0, &a, NULL));
    pair_pump_answer(&good, &a);
    assert_string_equal(a.text, "fine");
    pair_fini(&good);
}

/* A peer that calls and never reads its answers is not read either, so its calls stop costing memory. */
TEST(peer_that_does_not_read_is_not_read)
{
    struct pair p;
    static uint8_t frame[RPC_HEADER_BYTES + 100005];
    struct frame f = request(M_ECHO);
    size_t sent = 0, refused = 0;
    uint32_t n = 100000;
    f.length = n + 5;
    uint8_t *body = frame + RPC_HEADER_BYTES;
    body[0] = 0x0a;
    for (int i = 0; i < 3; i++)
        body[1 + i] = (uint8_t)((n >> (7 * i)) | (i < 2 ? 0x80 : 0));
    memset(body + 4, 'x', n);
    f.length = n + 4;
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    for (f.call = 1; f.call <= 400 && refused < 50; f.call++) {
        frame_encode(&f, frame);
        for (size_t at = 0; at < RPC_HEADER_BYTES + f.length && refused < 50;) {
            ssize_t m = send(p.raw, frame + at, RPC_HEADER_BYTES + f.length - at, MSG_NOSIGNAL);
            refused = m < 0 ? refused + 1 : 0;
            at += m < 0 ? 0 : (size_t)m;
            sent += m < 0 ? 0 : (size_t)m;
            pair_pump_ms(&p, m < 0 ? 2 : 0);
        }
    }
    assert_int_equal(refused, 50);
    assert_true(rpc_conn_queued(p.server) < 8 << 20);
    assert_true(sent < 16 << 20);
    assert_non_null(p.server);
    pair_fini(&p);
}

static bool everything_is_pending(void *arg)
{
    const struct pair *p = arg;
    return p->n_pending == RPC_MAX_CALLS;
}

/* Canceled calls count until their handlers have ended them. */
TEST(calls_above_the_limit_are_refused)
{
    struct pair p;
    struct frame f = request(M_NEVER);
    pair_open_raw(&p, RPC_ROLE_CLIENT);
    for (f.call = 1; f.call <= RPC_MAX_CALLS; f.call++) {
        struct frame_data b = frame_bytes(f);
        send_raw(&p, b.data, b.len);
    }
    assert_true(pair_pump(&p, everything_is_pending, &p));
    struct frame cancel = {.version = RPC_VERSION, .kind = RPC_CANCEL, .method = M_NEVER, .call = 1};
    uint8_t header[RPC_HEADER_BYTES];
    frame_encode(&cancel, header);
    send_raw(&p, header, sizeof(header));
    struct frame_data b = frame_bytes(f);
    send_raw(&p, b.data, b.len);
    expect_error_frame(&p);
    assert_int_equal(p.n_pending, RPC_MAX_CALLS);
    rpc_fail(p.pending[0], ERR_CANCELED, "to nobody"); /* makes room */
    f.call++;
    f.method = M_ECHO;
    b = frame_bytes(f);
    send_raw(&p, b.data, b.len);
    pair_pump_ms(&p, 20);
    assert_int_equal(p.handled, RPC_MAX_CALLS + 1);
    rpc_conn_close(p.server);
    pair_pump_closed(&p);
    for (int i = 1; i < p.n_pending; i++)
        rpc_fail(p.pending[i], ERR_CANCELED, "to nobody");
    pair_fini(&p);
}

/* The server sends a large answer that the client does not read. */
static void stall(struct pair *p, uint32_t bytes)
{
    struct frame f = request(M_STREAM);
    struct frame_data b = frame_bytes(f);
    pair_open_raw(p, RPC_ROLE_CLIENT);
    p->stream_items = 1000;
    p->item_bytes = bytes;
    send_raw(p, b.data, b.len);
    pair_pump_ms(p, 20);
    assert_int_equal(p->handled, 1);
    assert_true(rpc_conn_queued(p->server) > 0);
}

TEST(stalled_connection_closes)
{
    struct pair p;
    struct frame f = request(M_ECHO);
    stall(&p, 1 << 19);
    /* A stream is only held back; its reader may pause for any time. */
    assert_false(p.server->paused);
    static uint8_t echo[RPC_HEADER_BYTES + (5u << 20)];
    memset(echo, 'x', sizeof(echo));
    f.call = 2;
    f.length = sizeof(echo) - RPC_HEADER_BYTES;
    frame_encode(&f, echo);
    /* job: a string of 5 MiB - 5 */
    uint32_t n = f.length - 5;
    const uint8_t tag[5] = {0x0a, (uint8_t)(n | 0x80), (uint8_t)(n >> 7 | 0x80), (uint8_t)(n >> 14 | 0x80),
                            (uint8_t)(n >> 21)};
    memcpy(echo + RPC_HEADER_BYTES, tag, sizeof(tag));
    rpc_conn_feed(p.server, echo, sizeof(echo));
    assert_int_equal(p.handled, 2);
    assert_true(p.server->paused);
    pair_pump_ms(&p, 20);
    assert_non_null(p.server);
    p.server->stalled_since -= RPC_STALL_MS; /* half a minute later */
    rpc_conn_wake_at(p.server, 0);
    pair_pump_closed(&p);
    assert_int_equal(p.canceled, 1);
    pair_fini(&p);
}

TEST(finishing_connection_does_not_wait_for_ever)
{
    struct pair p;
    stall(&p, 1 << 19);
    rpc_conn_finish(p.server);
    pair_pump_ms(&p, 20);
    assert_non_null(p.server);
    p.server->stalled_since -= RPC_FINISH_MS;
    rpc_conn_wake_at(p.server, 0);
    pair_pump_closed(&p);
    pair_fini(&p);
}
