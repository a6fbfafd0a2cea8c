/* Two correct ends: authentication, data transfer, closing. */
#include "tests/common/tunnel/net.h"

#include "common/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

/* An idle loop has about 60 turns in 300 ms, and more after a delay on a busy machine; a spinning loop has 10,000s. */
#define REST_MS 300
#define REST_TURNS 400

/* ---- authentication ---- */

TEST(both_ends_know_each_other)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.purpose = TUNNEL_STORE;
    config.argument = "job 7, attempt 2";
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_ok(a.err);
    net_wait_accepted(&n, 1);
    assert_string_equal(a.peer.name, "b");
    assert_string_equal(a.peer.address, n.address);
    assert_string_equal(n.peers[0].name, "a");
    assert_string_equal(n.peers[0].argument, "job 7, attempt 2");
    assert_int_equal(n.peers[0].purpose, TUNNEL_STORE);
    assert_int_equal(n.peers[0].key.kind, TUNNEL_KEY_CLUSTER);
    assert_int_equal(n.peers[0].key.number, 1);
    assert_non_null(strstr(n.peers[0].address, "127.0.0.1:"));
    assert_true(fcntl(a.fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(n.fds[0], F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(a.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(n.fds[0], F_GETFD) & FD_CLOEXEC);
    close(a.fd);
    close(n.fds[0]);
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

TEST(anybody_with_the_key_is_let_in_by_number_name_and_v6)
{
    static const char *const at[] = {"127.0.0.1:0", "[::1]:0"};
    for (int i = 0; i < 2; i++) {
        struct tunnel_net n;
        struct net_answer a;
        net_open(&n);
        tunnel_listener_close(n.listener, NULL);
        net_pump_ms(&n, 20);
        close(n.listen_fd);
        net_listen_on(&n, at[i]);
        struct tunnel_connect_config config = net_config(&n);
        char address[64];
        snprintf(address, sizeof(address), "localhost:%d", n.port);
        config.address = i == 0 ? address : n.address;
        config.expected = NULL;
        net_connect(&n, n.a, &config, &a);
        net_wait(&n, &a);
        if (a.err)
            fail_msg("%s", a.why);
        assert_string_equal(a.peer.name, "b");
        close(a.fd);
        net_wait_accepted(&n, 1);
        close(n.fds[0]);
        net_close(&n);
    }
}

TEST(wrong_key_is_refused)
{
    struct tunnel_net n;
    net_open(&n);
    n.a_knows.ring.keys[0].secret[31] ^= 1;
    const struct tunnel_connect_config config = net_config(&n);
    net_expect(&n, &config, ERR_DENIED, "does not accept our key");
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(net_refused(&n), 1);
    net_close(&n);
}

TEST(unknown_version_is_refused)
{
    struct tunnel_net n;
    uint32_t version;
    net_open(&n);
    assert_ok(key_ring_add(&n.a_knows.ring, &version, NULL));
    const struct tunnel_connect_config config = net_config(&n);
    assert_int_equal(config.key.number, 2);
    net_expect(&n, &config, ERR_DENIED, "does not accept our key");
    assert_int_equal(net_refused(&n), 1);
    net_close(&n);
}

TEST(key_that_we_do_not_have_is_said_to_be_ours)
{
    struct tunnel_net n;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.key.number = 9;
    net_expect(&n, &config, ERR_NOTFOUND, "this node does not have this key");
    net_close(&n);
}

/* k2 is added on both hosts, then k1 is dropped on both; no tunnel closes before tunnel_host_recheck. */
TEST(rotation)
{
    struct tunnel_net n;
    int a1, b1, a2, b2;
    uint32_t version;
    net_open(&n);
    net_tunnel(&n, &a1, &b1);
    struct tunnel_connect_config by_k1 = net_config(&n);
    assert_ok(key_ring_add(&n.b_knows.ring, &version, NULL));
    assert_ok(key_ring_put(&n.a_knows.ring, key_ring_newest(&n.b_knows.ring), NULL));
    net_tunnel(&n, &a2, &b2);
    assert_int_equal(n.peers[1].key.number, 2);
    assert_ok(key_ring_drop(&n.b_knows.ring, 1, NULL));
    net_expect(&n, &by_k1, ERR_DENIED, "does not accept our key");
    tunnel_host_recheck(n.b);
    assert_int_equal(net_read_to_end(&n, b1), 0);
    assert_int_equal(net_read_to_end(&n, a1), 0);
    assert_int_equal(write(a2, "x", 1), 1);
    struct pollfd p = {.fd = b2, .events = POLLIN};
    for (int i = 0; i < 1000 && poll(&p, 1, 0) == 0; i++)
        net_pump_ms(&n, 5);
    assert_int_equal(p.revents, POLLIN);
    close(a1), close(b1), close(a2), close(b2);
    net_close(&n);
}

TEST(another_node_than_expected_is_refused)
{
    struct tunnel_net n;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.expected = "c";
    struct net_answer a;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_int_equal(a.err, ERR_DENIED);
    assert_non_null(strstr(a.why, "is b, not c"));
    net_wait_accepted(
        &n, 1); /* the server does not learn the expected name: it accepts, and its owner reads the end of the stream */
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 0);
    close(n.fds[0]);
    net_close(&n);
}

/* A reflected connection: an attacker connects a host to itself. */
TEST(own_reflection_is_refused)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    n.a_knows.ring = n.b_knows.ring;
    struct tunnel_connect_config config = net_config(&n);
    config.expected = NULL;
    net_connect(&n, n.b, &config, &a); /* b to b */
    net_wait(&n, &a);
    assert_int_equal(a.err, ERR_DENIED);
    assert_non_null(strstr(a.why, "the same node name"));
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(n.n_accepted, 0);
    net_close(&n);
}

TEST(join_token_opens_joining_and_nothing_else)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    assert_ok(token_make(&n.b_knows.token, NULL));
    n.a_knows.token = n.b_knows.token;
    struct tunnel_connect_config config = net_config(&n);
    config.key = token_key_id(&n.a_knows.token);
    config.purpose = TUNNEL_JOIN;
    config.expected = NULL;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_ok(a.err);
    net_wait_accepted(&n, 1);
    assert_string_equal(n.peers[0].name, "a");
    assert_int_equal(n.peers[0].key.kind, TUNNEL_KEY_JOIN);
    assert_true(n.peers[0].key.number == n.a_knows.token.id);
    close(a.fd), close(n.fds[0]);
    net_wait_tunnels(&n, n.a, 0);
    config.purpose = TUNNEL_RPC;
    struct why why = {""};
    assert_err(ERR_INVALID, tunnel_connect(n.a, &config, NULL, NULL, &a.request, &why));
    config.purpose = TUNNEL_JOIN;
    n.b_knows.token.id = 0; /* used up */
    net_expect(&n, &config, ERR_DENIED, "the join token was used up");
    net_close(&n);
}

/* tunnel_connect refuses this locally; the server refuses it from another program. */
TEST(join_token_for_another_purpose_is_refused_by_the_server)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    assert_ok(token_make(&n.b_knows.token, NULL));
    n.a_knows.token = n.b_knows.token;
    struct tunnel_connect_config config = net_config(&n);
    config.key = token_key_id(&n.a_knows.token);
    config.purpose = TUNNEL_JOIN;
    net_connect(&n, n.a, &config, &a);
    a.request->purpose = TUNNEL_RAFT;
    net_wait(&n, &a);
    assert_int_equal(a.err, ERR_DENIED);
    assert_non_null(strstr(a.why, "does not open a tunnel for this purpose"));
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(n.n_accepted, 0);
    assert_int_equal(net_refused(&n), 1);
    net_close(&n);
}

/* ---- data transfer ---- */

/* One direction: `to_send` bytes of a seeded random sequence, in random pieces; the reader pauses at times. */
struct flow {
    int from, to;
    uint64_t write_seed, read_seed;
    size_t to_send, sent, got;
    unsigned random;
    bool ended;
};

static uint8_t next_byte(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(*seed >> 56);
}

static void flow_write(struct flow *f)
{
    static uint8_t bytes[100000];
    size_t left = f->to_send - f->sent, len = 1 + (size_t)rand_r(&f->random) % sizeof(bytes);
    uint64_t seed = f->write_seed;
    if (rand_r(&f->random) % 4 == 0)
        len = 1 + len % 16;
    len = len < left ? len : left;
    for (size_t i = 0; i < len; i++)
        bytes[i] = next_byte(&seed);
    ssize_t n = len ? write(f->from, bytes, len) : 0;
    for (ssize_t i = 0; i < n; i++)
        next_byte(&f->write_seed);
    f->sent += n > 0 ? (size_t)n : 0;
    if (len && f->sent == f->to_send)
        assert_int_equal(shutdown(f->from, SHUT_WR), 0);
}

static void flow_read(struct flow *f)
{
    static uint8_t bytes[100000];
    if (f->ended || rand_r(&f->random) % 3 == 0)
        return;
    ssize_t n = read(f->to, bytes, 1 + (size_t)rand_r(&f->random) % sizeof(bytes));
    for (ssize_t i = 0; i < n; i++)
        if (bytes[i] != next_byte(&f->read_seed))
            fail_msg("byte %zu differs", f->got + (size_t)i);
    f->got += n > 0 ? (size_t)n : 0;
    f->ended = n == 0;
    assert_true(n >= 0 || errno == EAGAIN);
}

static bool flows_ended(void *arg)
{
    struct flow *f = arg;
    for (int i = 0; i < 2; i++) {
        flow_write(&f[i]);
        flow_read(&f[i]);
    }
    return f[0].ended && f[1].ended;
}

static void run_flows(struct tunnel_net *n, int a, int b, size_t there, size_t back)
{
    struct flow f[2] = {{.from = a, .to = b, .write_seed = 1, .read_seed = 1, .to_send = there, .random = 7},
                        {.from = b, .to = a, .write_seed = 2, .read_seed = 2, .to_send = back, .random = 8}};
    assert_true(net_pump(n, flows_ended, f));
    assert_int_equal(f[0].got, there);
    assert_int_equal(f[1].got, back);
}

TEST(many_megabytes_both_ways_in_random_pieces)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    run_flows(&n, a, b, 24 << 20, 17 << 20);
    close(a), close(b);
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    struct tunnel_stats stats;
    tunnel_host_stats(n.b, &stats);
    assert_int_equal(stats.bytes_in, 24 << 20);
    assert_int_equal(stats.bytes_out, 17 << 20);
    assert_int_equal(stats.opened, 1);
    assert_int_equal(stats.tunnels, 0);
    net_close(&n);
}

struct renewing {
    struct flow flows[2]; /* first: flows_ended sees them */
    struct tunnel_host *host;
};

static bool renewing_ended(void *arg)
{
    const struct renewing *r = arg;
    struct tunnel *t;
    TAILQ_FOREACH(t, &r->host->tunnels, link)
    assert_true(t->sent_bytes < 100000); /* under one key */
    return flows_ended(arg);
}

TEST(traffic_keys_are_renewed_under_way)
{
    struct tunnel_net n;
    struct tunnel *t;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    TAILQ_FOREACH(t, &n.a->tunnels, link)
    t->rekey_bytes = 50000;
    TAILQ_FOREACH(t, &n.b->tunnels, link)
    t->rekey_bytes = 30000;
    struct renewing r = {
        .flows = {{.from = a, .to = b, .write_seed = 1, .read_seed = 1, .to_send = 3 << 20, .random = 7},
                  {.from = b, .to = a, .write_seed = 2, .read_seed = 2, .to_send = 3 << 20, .random = 8}},
        .host = n.a,
    };
    assert_true(net_pump(&n, renewing_ended, &r));
    assert_int_equal(r.flows[0].got, 3 << 20);
    assert_int_equal(r.flows[1].got, 3 << 20);
    close(a), close(b);
    net_close(&n);
}

/* Writes until the tunnel is full. */
static size_t fill(struct tunnel_net *n, int fd)
{
    static const uint8_t bytes[65536];
    size_t total = 0;
    for (int refused = 0; refused < 50;) {
        ssize_t got = write(fd, bytes, sizeof(bytes));
        refused = got > 0 ? 0 : refused + 1;
        total += got > 0 ? (size_t)got : 0;
        net_pump_ms(n, got > 0 ? 0 : 5);
    }
    return total;
}

static size_t drain(struct tunnel_net *n, int fd, size_t want)
{
    uint8_t bytes[65536];
    size_t total = 0;
    for (int64_t end = clock_mono_ms() + 60000; total < want && clock_mono_ms() < end;) {
        ssize_t got = read(fd, bytes, sizeof(bytes));
        assert_true(got > 0 || (got < 0 && errno == EAGAIN));
        total += got > 0 ? (size_t)got : 0;
        uv_run(&n->loop, UV_RUN_ONCE);
    }
    return total;
}

TEST(reader_that_does_not_read_holds_the_writer_back)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    assert_true(net_turns(&n, REST_MS) < REST_TURNS); /* idle */
    size_t there = fill(&n, a), back = fill(&n, b);
    print_message("held: %zu there, %zu back\n", there, back);
    assert_in_range(there, 100000, 32 << 20);
    assert_in_range(back, 100000, 32 << 20);
    assert_true(net_turns(&n, REST_MS) < REST_TURNS); /* full, both ways */
    assert_int_equal(drain(&n, b, there), there);
    assert_int_equal(drain(&n, a, back), back);
    assert_true(net_turns(&n, REST_MS) < REST_TURNS);
    close(a), close(b);
    net_close(&n);
}

/* ---- closing ---- */

TEST(one_way_ends_the_other_goes_on)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    assert_int_equal(write(a, "question", 8), 8);
    assert_int_equal(shutdown(a, SHUT_WR), 0);
    assert_int_equal(net_read_to_end(&n, b), 8);
    assert_true(net_turns(&n, REST_MS) < REST_TURNS);
    static const uint8_t answer[300000];
    size_t sent = 0;
    while (sent < sizeof(answer)) {
        ssize_t got = write(b, answer + sent, sizeof(answer) - sent);
        sent += got > 0 ? (size_t)got : 0;
        uint8_t waste[4096];
        while (got < 0 && read(a, waste, sizeof(waste)) > 0)
            continue;
        net_pump_ms(&n, 1);
    }
    assert_true(net_turns(&n, 20) > 0);
    assert_int_equal(write(b, "end", 3), 3);
    assert_int_equal(shutdown(b, SHUT_WR), 0);
    assert_true(net_read_to_end(&n, a) >= 3);
    net_wait_tunnels(&n, n.a,
                     0); /* both directions have ended: the tunnel closes although no owner has closed its descriptor */
    net_wait_tunnels(&n, n.b, 0);
    close(a), close(b);
    net_close(&n);
}

/* An owner shuts down writing and closes later, while no bytes flow. */
TEST(close_after_a_half_close_is_noticed)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    assert_int_equal(shutdown(a, SHUT_WR), 0);
    assert_int_equal(net_read_to_end(&n, b), 0);
    assert_int_equal(n.a->all, 1);
    close(a);
    net_wait_tunnels(&n, n.a, 0); /* although the other owner ends nothing */
    close(b);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

/* One-way tunnel: the writer learns from a failed write that the reader has gone. */
TEST(who_only_writes_is_told_of_the_end)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.one_way = true;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_ok(a.err);
    net_wait_accepted(&n, 1);
    assert_int_equal(write(a.fd, "heartbeat", 9), 9);
    net_pump_ms(&n, 50);
    close(n.fds[0]);
    net_pump_ms(&n, 1000); /* of TUNNEL_LINGER_MS that b would wait for it */
    assert_int_equal(n.a->all, 0);
    assert_int_equal(send(a.fd, "heartbeat", 9, MSG_NOSIGNAL), -1);
    close(a.fd);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

TEST(what_an_owner_wrote_before_it_closed_arrives)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    size_t back = fill(&n, b), there = fill(&n, a); /* the other direction is full, too */
    close(a);
    net_pump_ms(&n, 500); /* received bytes are discarded */
    assert_true(net_turns(&n, REST_MS) < REST_TURNS);
    assert_int_equal(net_read_to_end(&n, b), there);
    assert_true(back > 0);
    close(b);
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

TEST(owners_that_close_while_bytes_flow)
{
    struct tunnel_net n;
    net_open(&n);
    for (int i = 0; i < 40; i++) {
        static const uint8_t bytes[200000];
        int a, b;
        net_tunnel(&n, &a, &b);
        for (int k = 0; k < i % 7; k++) {
            (void)!write(a, bytes, sizeof(bytes));
            (void)!write(b, bytes, sizeof(bytes));
            uv_run(&n.loop, UV_RUN_NOWAIT);
        }
        close(i % 2 ? a : b);
        net_pump_ms(&n, i % 5);
        close(i % 2 ? b : a);
    }
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

TEST(writer_to_an_owner_that_has_gone_is_told)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    close(b);
    assert_int_equal(net_read_to_end(&n, a), 0);
    net_wait_tunnels(&n, n.b, 1); /* lingers */
    bool told = false;
    for (int i = 0; i < 12000 && !told; i++) {
        told = send(a, "x", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN;
        net_pump_ms(&n, 1);
    }
    assert_true(told);
    net_wait_tunnels(&n, n.b, 0);
    close(a);
    net_wait_tunnels(&n, n.a, 0);
    net_close(&n);
}

static void listener_closed(void *owner)
{
    ((struct tunnel_net *)owner)->listeners_closed++;
}

static bool is_listener_closed(void *arg)
{
    return ((struct tunnel_net *)arg)->listeners_closed > 0;
}

TEST(tunnels_outlive_their_listener)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    int silent = net_raw(&n, NULL);
    while (!n.listener->n_pending)
        net_pump_ms(&n, 1);
    tunnel_listener_close(n.listener, listener_closed);
    assert_int_equal(n.listeners_closed, 0);
    assert_int_equal(net_read_to_end(&n, silent), 0);
    assert_true(net_pump(&n, is_listener_closed, &n));
    run_flows(&n, a, b, 1 << 20, 1 << 20);
    close(a), close(b), close(silent);
    net_close(&n);
    assert_int_equal(n.listeners_closed, 1);
}

TEST(host_closes_with_everything_under_way)
{
    struct tunnel_net n;
    struct net_answer dialing, greeted;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    fill(&n, a);
    const struct tunnel_connect_config config = net_config(&n);
    net_connect(&n, n.a, &config, &greeted);
    net_pump_ms(&n, 2);
    net_connect(&n, n.a, &config, &dialing);
    int silent = net_raw(&n, NULL);
    net_close(&n);
    assert_int_equal(dialing.calls, 1);
    assert_int_equal(dialing.err, ERR_CANCELED);
    assert_int_equal(greeted.calls, 1);
    if (!greeted.err)
        close(greeted.fd);
    for (int i = 1; i < n.n_accepted; i++)
        close(n.fds[i]);
    close(a), close(b), close(silent);
}

/* ---- connecting ---- */

TEST(cancel_at_every_moment)
{
    struct tunnel_net n;
    net_open(&n);
    const struct tunnel_connect_config config = net_config(&n);
    int closed = 0;
    for (int turns = 0; turns < 25; turns++) {
        struct net_answer a;
        net_connect(&n, n.a, &config, &a);
        for (int i = 0; i < turns && !a.calls; i++)
            uv_run(&n.loop, UV_RUN_ONCE);
        if (!a.calls) {
            tunnel_connect_cancel(a.request);
            assert_int_equal(a.calls, 0);
        }
        net_wait(&n, &a);
        assert_true(a.err == OK || a.err == ERR_CANCELED);
        if (turns == 0)
            assert_int_equal(a.err, ERR_CANCELED);
        if (!a.err)
            close(a.fd);
        while (closed < n.n_accepted) /* an open descriptor would keep the tunnel open for TUNNEL_LINGER_MS */
            close(n.fds[closed++]);
        net_wait_tunnels(&n, n.a, 0);
    }
    while (closed < n.n_accepted)
        close(n.fds[closed++]);
    net_wait_tunnels(&n, n.b, 0);
    net_close(&n);
}

TEST(nobody_there)
{
    struct tunnel_net n;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    char address[64];
    int fd;
    assert_ok(tunnel_bind("127.0.0.1:0", &fd, NULL)); /* listens but never accepts */
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    getsockname(fd, (struct sockaddr *)&at, &len);
    address_print(&at, address, sizeof(address));
    config.address = address;
    config.deadline_ms = 100;
    net_expect(&n, &config, ERR_TIMEOUT, "did not complete the handshake in time");
    close(fd);
    config.deadline_ms = 10000;
    net_expect(&n, &config, ERR_CLOSED, "refused");
    config.address = "[not:v6]:1";
    net_expect(&n, &config, ERR_INVALID, "not an IPv6 address");
    net_close(&n);
}

TEST(what_cannot_be_connected_is_said_at_once)
{
    static const char *const bad[] = {"",       "x",     "x:",   "x:y", "x:65536", ":1",     "[::1]",
                                      "[::1:1", "a b:1", "x:1 ", "x:0", "[]:1",    "\x01:1", "::1:1"};
    struct tunnel_net n;
    struct net_answer a;
    struct why why;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        config.address = bad[i];
        why.text[0] = '\0';
        assert_err(ERR_INVALID, tunnel_connect(n.a, &config, NULL, NULL, &a.request, &why));
        assert_true(why.text[0] >= ' ');
    }
    config = net_config(&n);
    config.argument = "tab\t";
    assert_err(ERR_INVALID, tunnel_connect(n.a, &config, NULL, NULL, &a.request, &why));
    config = net_config(&n);
    config.expected = "b c";
    assert_err(ERR_INVALID, tunnel_connect(n.a, &config, NULL, NULL, &a.request, &why));
    struct tunnel_host *host;
    const struct tunnel_host_config nameless = {.loop = &n.loop, .name = ""};
    assert_err(ERR_INVALID, tunnel_host_open(&nameless, &host, &why));
    assert_err(ERR_INVALID, tunnel_bind("localhost:0", &a.fd, &why));
    net_close(&n);
}

/* A name without an address: the callback is called in time, however long the resolver takes. */
TEST(name_without_an_address)
{
    struct tunnel_net n;
    struct net_answer a;
    net_open(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.address = "nobody.invalid:1";
    config.deadline_ms = 500;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_true(a.err == ERR_NOTFOUND || a.err == ERR_TIMEOUT);
    net_close(&n);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

TEST(thousand_tunnels_leave_no_descriptor)
{
    static struct tunnel_net n;
    net_open(&n);
    int a, b, before = open_descriptors();
    for (int i = 0; i < 1000; i++) {
        net_tunnel(&n, &a, &b);
        close(i & 1 ? a : b);
        if (i & 2)
            net_pump_ms(&n, 0);
        close(i & 1 ? b : a);
    }
    net_wait_tunnels(&n, n.a, 0);
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(open_descriptors(), before);
    net_close(&n);
}
