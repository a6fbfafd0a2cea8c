/* Invalid input on the listening port: each connection is closed, none is accepted, and a peer with the key can still
 * connect. */
#include "tests/common/tunnel/raw.h"

#include "common/base/clock.h"
#include "tests/lib/example.h"

#include <errno.h>
#include <fcntl.h>

/* A correct tunnel still works after the attack on the listener. */
static void expect_alive(struct tunnel_net *n)
{
    int a, b;
    net_tunnel(n, &a, &b);
    assert_int_equal(write(a, "hello", 5), 5);
    assert_int_equal(shutdown(a, SHUT_WR), 0);
    assert_int_equal(net_read_to_end(n, b), 5);
    close(a), close(b);
    net_wait_tunnels(n, n->a, 0);
    net_wait_tunnels(n, n->b, 0);
}

static bool refused_one(void *arg)
{
    struct tunnel_net *n = arg;
    return net_refused(n) == 1 && n->b->all == 0;
}

static void expect_refused(struct tunnel_net *n)
{
    if (!net_pump(n, refused_one, n))
        fail_msg("refused: %d", (int)net_refused(n));
    assert_int_equal(n->n_accepted, 0);
}

static void raw_open_a(struct tunnel_net *n, struct raw *r)
{
    raw_open(r, net_raw(n, NULL), false, "k1:a", n->a_knows.ring.keys[0].secret, KEY_BYTES);
}

/* ---- before the handshake is over ---- */

static void expect_bytes_refused(const char *what, const void *data, size_t len)
{
    struct tunnel_net n;
    print_message("%s\n", what);
    net_open(&n);
    int fd = net_raw(&n, NULL);
    for (size_t at = 0; at < len;) {
        ssize_t got = send(fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
        if (got < 0 && errno != EAGAIN && errno != ENOTCONN)
            break;
        at += got > 0 ? (size_t)got : 0;
        net_pump_ms(&n, 1);
    }
    for (int ms = 0; ms < 50; ms++) {
        struct tunnel *t;
        TAILQ_FOREACH(t, &n.b->tunnels, link)
        assert_true(SSL_in_before(t->ssl)); /* OpenSSL has received no input */
        net_pump_ms(&n, 1);
    }
    net_read_to_end(&n, fd);
    expect_refused(&n);
    close(fd);
    expect_alive(&n);
    net_close(&n);
}

TEST(plaintext_is_closed)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: b\r\n\r\n";
    static const uint8_t frame[24] = {'D', 'T', 'D', '1', 1, 1, 2, 1, 1};
    static const uint8_t ssh[] = "SSH-2.0-OpenSSH_9.2p1\r\n", zeros[4096];
    expect_bytes_refused("HTTP", http, sizeof(http) - 1);
    expect_bytes_refused("a frame of rpc", frame, sizeof(frame));
    expect_bytes_refused("ssh", ssh, sizeof(ssh) - 1);
    expect_bytes_refused("zeros", zeros, sizeof(zeros));
}

TEST(hello_of_a_silly_size_is_closed_before_tls_sees_it)
{
    static uint8_t large[6000] = {22, 3, 1, 0x17, 0x6b, 1, 0, 0x17, 0x67};
    static const uint8_t promised[] = {22, 3, 1, 0x02, 0x00, 1, 0x01, 0xff, 0xfc}; /* 131,068 bytes to come */
    static const uint8_t in_parts[] = {22, 3, 1, 0x00, 0x04, 1, 0x00, 0x01, 0x00};
    expect_bytes_refused("large", large, sizeof(large));
    expect_bytes_refused("large in its own header", promised, sizeof(promised));
    expect_bytes_refused("in several records", in_parts, sizeof(in_parts));
}

TEST(tls_1_2_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open_a(&n, &r);
    assert_int_equal(SSL_set_max_proto_version(r.ssl, TLS1_2_VERSION), 1);
    assert_false(raw_handshake(&n, &r));
    expect_refused(&n);
    raw_close(&r);
    expect_alive(&n);
    net_close(&n);
}

TEST(tls_1_3_without_a_psk_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open(&r, net_raw(&n, NULL), false, NULL, NULL, 0);
    assert_false(raw_handshake(&n, &r));
    expect_refused(&n);
    raw_close(&r);
    net_close(&n);
}

/* A handshake without forward secrecy is refused. */
TEST(psk_without_ecdhe_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open_a(&n, &r);
    SSL_set_options(r.ssl, SSL_OP_ALLOW_NO_DHE_KEX);
    assert_int_equal(SSL_set1_groups_list(r.ssl, "P-256"),
                     1); /* dtd does not offer this group: PSK without ECDHE would remain */
    assert_false(raw_handshake(&n, &r));
    expect_refused(&n);
    raw_close(&r);
    net_close(&n);
}

TEST(strange_identities_are_refused)
{
    static const char *const strange[] = {"k1:", "k0:a", "k01:a",    "k4294967296:a",         "k1:a/b",
                                          "k1",  "a",    "join:123", "join:00000000000000zz", "k1:a\n",
                                          "K1:a"};
    for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
        struct tunnel_net n;
        struct raw r;
        net_open(&n);
        raw_open(&r, net_raw(&n, NULL), false, strange[i], n.a_knows.ring.keys[0].secret, KEY_BYTES);
        r.identity = strange[i];
        raw_derive(n.a_knows.ring.keys[0].secret, KEY_BYTES, "dtd tunnel cluster", r.psk);
        assert_false(raw_handshake(&n, &r));
        expect_refused(&n);
        assert_int_equal(n.b_knows.asked, 0);
        raw_close(&r);
        net_close(&n);
    }
}

/* A correct ClientHello with any one byte changed is never accepted and does no harm. */
TEST(changed_hellos)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open_a(&n, &r);
    SSL_do_handshake(r.ssl);
    char *hello;
    long len = BIO_get_mem_data(r.out, &hello);
    assert_in_range(len, 100, 2000);
    for (long i = 0; i < len; i += 3) {
        struct sockaddr_storage from = {.ss_family = AF_UNIX};
        int fds[2];
        hello[i] ^= 0x41;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_non_null(listener_take(n.listener, fds[0], &from));
        assert_int_equal(send(fds[1], hello, (size_t)len, MSG_NOSIGNAL), len);
        shutdown(fds[1], SHUT_WR);
        net_read_to_end(&n, fds[1]);
        close(fds[1]);
        hello[i] ^= 0x41;
    }
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(n.n_accepted, 0);
    raw_close(&r);
    expect_alive(&n);
    net_close(&n);
}

/* ---- the same bytes again ---- */

static void send_again(struct tunnel_net *n, const struct buf *bytes, size_t len)
{
    int fd = net_raw(n, NULL);
    net_pump_ms(n, 20);
    assert_int_equal(send(fd, bytes->data, len, MSG_NOSIGNAL), len);
    shutdown(fd, SHUT_WR);
    net_read_to_end(n, fd);
    close(fd);
}

TEST(replayed_bytes_get_nowhere)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open_a(&n, &r);
    SSL_do_handshake(r.ssl);
    size_t first_flight = BIO_ctrl_pending(r.out);
    assert_true(raw_handshake(&n, &r));
    const struct greeting g = raw_greeting();
    raw_greet(&n, &r, &g);
    raw_write(&n, &r, "command", 7);
    net_wait_accepted(&n, 1);
    send_again(&n, &r.sent, first_flight);
    send_again(&n, &r.sent, r.sent.len);
    net_wait_tunnels(&n, n.b, 1);
    assert_int_equal(n.n_accepted, 1);
    assert_int_equal(net_refused(&n), 2);
    raw_close(&r);
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 7);
    close(n.fds[0]);
    net_close(&n);
}

/* ---- behind the handshake ---- */

TEST(greeting_as_documented)
{
    struct tunnel_net n;
    struct raw r;
    uint8_t bytes[64], want[64];
    net_open(&n);
    raw_open_a(&n, &r);
    assert_true(raw_handshake(&n, &r));
    size_t len = example_bytes("formats/wire.md", "tunnel greeting", bytes, sizeof(bytes));
    raw_write(&n, &r, bytes, len);
    net_wait_accepted(&n, 1);
    assert_string_equal(n.peers[0].name, "a");
    assert_string_equal(n.peers[0].argument, "7");
    assert_int_equal(n.peers[0].purpose, TUNNEL_STORE);
    size_t want_len = example_bytes("formats/wire.md", "tunnel answer", want, sizeof(want));
    assert_int_equal(raw_read(&n, &r, bytes, sizeof(bytes), want_len), want_len);
    assert_memory_equal(bytes, want, want_len);
    raw_close(&r);
    close(n.fds[0]);
    net_close(&n);
}

static void expect_greeting_refused(const char *what, const void *data, size_t len, int status)
{
    struct tunnel_net n;
    struct raw r;
    uint8_t answer[64];
    print_message("%s\n", what);
    net_open(&n);
    raw_open_a(&n, &r);
    assert_true(raw_handshake(&n, &r));
    raw_write(&n, &r, data, len);
    size_t got = raw_read(&n, &r, answer, sizeof(answer), sizeof(answer));
    if (status >= 0) {
        struct greeting g;
        assert_ok(greeting_decode(answer, got, &g, NULL));
        assert_int_equal(g.status, status);
    } else {
        assert_int_equal(got, 0);
    }
    raw_close(&r);
    expect_refused(&n);
    expect_alive(&n);
    net_close(&n);
}

TEST(bad_greetings_are_refused)
{
    struct greeting g = raw_greeting();
    uint8_t good[GREETING_MAX_BYTES], bad[GREETING_MAX_BYTES];
    size_t len = greeting_encode(&g, good);
    const struct {
        const char *what;
        int at;
        uint8_t value;
        int status;
    } rows[] = {
        {"magic", 0, 'E', -1},
        {"version", 4, 3, GREETING_VERSION_UNKNOWN},
        {"purpose 0", 6, 0, -1},
        {"purpose 5", 6, 5, -1},
        {"no name", 7, 0, -1},
        {"a long argument", 9, 2, -1},
        {"a strange name", 10, '/', -1},
        {"another name", 10, 'z', GREETING_NAME},
        {"the name of the server", 10, 'b', GREETING_NAME},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        memcpy(bad, good, len);
        bad[rows[i].at] = rows[i].value;
        expect_greeting_refused(rows[i].what, bad, len, rows[i].status);
    }
}

TEST(torn_greeting_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    struct greeting g = raw_greeting();
    uint8_t bytes[GREETING_MAX_BYTES];
    size_t len = greeting_encode(&g, bytes);
    net_open(&n);
    raw_open_a(&n, &r);
    assert_true(raw_handshake(&n, &r));
    for (size_t i = 0; i + 1 < len; i++)
        raw_write(&n, &r, bytes + i, 1);
    assert_int_equal(n.b->all, 1);
    raw_close(&r);
    expect_refused(&n);
    net_close(&n);
}

/* A greeting sent byte by byte, immediately followed by the owner's first bytes. */
TEST(greeting_in_pieces_is_taken)
{
    struct tunnel_net n;
    struct raw r;
    struct greeting g = raw_greeting();
    uint8_t bytes[GREETING_MAX_BYTES + 3];
    size_t len = greeting_encode(&g, bytes);
    memcpy(bytes + len, "abc", 3);
    net_open(&n);
    raw_open_a(&n, &r);
    assert_true(raw_handshake(&n, &r));
    for (size_t i = 0; i + 1 < len; i++)
        raw_write(&n, &r, bytes + i, 1);
    raw_write(&n, &r, bytes + len - 1, 4);
    net_wait_accepted(&n, 1);
    SSL_shutdown(r.ssl);
    raw_step(&r);
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 3);
    raw_close(&r);
    close(n.fds[0]);
    net_close(&n);
}

static void open_and_greet(struct tunnel_net *n, struct raw *r)
{
    const struct greeting g = raw_greeting();
    net_open(n);
    raw_open_a(n, r);
    assert_true(raw_handshake(n, r));
    raw_greet(n, r, &g);
    net_wait_accepted(n, 1);
}

TEST(garbage_in_an_open_tunnel_cuts_it)
{
    struct tunnel_net n;
    struct raw r;
    static const uint8_t garbage[1000] = {23, 3, 3, 0, 100, 1, 2, 3};
    open_and_greet(&n, &r);
    raw_write(&n, &r, "before", 6);
    assert_int_equal(send(r.fd, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 6); /* the bytes before it, and nothing of it */
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(send(n.fds[0], "x", 1, MSG_NOSIGNAL), -1);
    raw_close(&r);
    close(n.fds[0]);
    expect_alive(&n);
    net_close(&n);
}

/* A FIN without close_notify, from an attacker or after a crash, ends both directions. */
TEST(end_without_close_notify_cuts_both_ways)
{
    struct tunnel_net n;
    struct raw r;
    open_and_greet(&n, &r);
    raw_write(&n, &r, "before", 6);
    shutdown(r.fd, SHUT_WR);
    assert_int_equal(net_read_to_end(&n, n.fds[0]), 6);
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(send(n.fds[0], "x", 1, MSG_NOSIGNAL), -1);
    raw_close(&r);
    close(n.fds[0]);
    net_close(&n);
}

/* ---- servers that are none ---- */

struct impostor {
    struct tunnel_net *n;
    int listen_fd;
    char address[64];
};

static void impostor_open(struct impostor *i, struct tunnel_net *n)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    i->n = n;
    assert_ok(tunnel_bind("127.0.0.1:0", &i->listen_fd, NULL));
    assert_int_equal(getsockname(i->listen_fd, (struct sockaddr *)&at, &len), 0);
    address_print(&at, i->address, sizeof(i->address));
}

static int impostor_accept(struct impostor *i)
{
    for (int ms = 0; ms < 30000; ms++) {
        int fd = accept4(i->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            return fd;
        net_pump_ms(i->n, 1);
    }
    fail_msg("no connection arrives");
    return -1;
}

TEST(server_with_a_certificate_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    struct impostor i;
    struct net_answer a;
    net_open(&n);
    impostor_open(&i, &n);
    struct tunnel_connect_config config = net_config(&n);
    config.address = i.address;
    net_connect(&n, n.a, &config, &a);
    raw_open(&r, impostor_accept(&i), true, NULL, NULL, 0);
    raw_use_certificate(&r);
    raw_handshake(&n, &r);
    net_wait(&n, &a);
    assert_int_equal(a.err, ERR_PROTO);
    assert_non_null(strstr(a.why, "not a dtd with our key"));
    raw_close(&r);
    close(i.listen_fd);
    net_close(&n);
}

TEST(server_with_another_key_is_refused)
{
    struct tunnel_net n;
    struct raw r;
    struct impostor i;
    struct net_answer a;
    const uint8_t guess[KEY_BYTES] = {1};
    net_open(&n);
    impostor_open(&i, &n);
    struct tunnel_connect_config config = net_config(&n);
    config.address = i.address;
    net_connect(&n, n.a, &config, &a);
    raw_open(&r, impostor_accept(&i), true, "k1:a", guess, KEY_BYTES);
    assert_false(raw_handshake(&n, &r));
    raw_close(&r);
    net_wait(&n, &a);
    assert_true(a.err == ERR_DENIED || a.err == ERR_CLOSED);
    close(i.listen_fd);
    net_close(&n);
}

TEST(server_that_is_no_tls_is_refused)
{
    struct tunnel_net n;
    struct impostor i;
    struct net_answer a;
    static const char banner[] = "SSH-2.0-OpenSSH_9.2p1\r\n";
    net_open(&n);
    impostor_open(&i, &n);
    struct tunnel_connect_config config = net_config(&n);
    config.address = i.address;
    net_connect(&n, n.a, &config, &a);
    int fd = impostor_accept(&i);
    assert_int_equal(send(fd, banner, sizeof(banner), 0), sizeof(banner));
    net_wait(&n, &a);
    assert_int_equal(a.err, ERR_PROTO);
    close(fd);
    close(i.listen_fd);
    net_close(&n);
}

/* A server that has the key and sends a wrong answer. */
TEST(wrong_answers_are_refused)
{
    const struct {
        struct greeting answer;
        const char *why;
    } rows[] = {
        {{.version = 1, .purpose = TUNNEL_RPC, .name = "c"}, "is c, not b"},
        {{.version = 1, .purpose = TUNNEL_RPC, .name = "a"}, "the same name"},
        {{.version = 1, .purpose = TUNNEL_RAFT, .name = "b"}, "another purpose"},
        {{.version = 9, .purpose = TUNNEL_RPC, .name = "b"}, "another version"},
        {{.version = 1, .status = GREETING_FULL, .purpose = TUNNEL_RPC, .name = "b"}, "maximum number of tunnels"},
        {{.version = 1, .status = 77, .purpose = TUNNEL_RPC, .name = "b"}, "unknown reason"},
    };
    for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++) {
        struct tunnel_net n;
        struct raw r;
        struct impostor i;
        struct net_answer a;
        net_open(&n);
        impostor_open(&i, &n);
        struct tunnel_connect_config config = net_config(&n);
        config.address = i.address;
        net_connect(&n, n.a, &config, &a);
        raw_open(&r, impostor_accept(&i), true, "k1:a", n.a_knows.ring.keys[0].secret, KEY_BYTES);
        assert_true(raw_handshake(&n, &r));
        raw_greet(&n, &r, &rows[k].answer);
        net_wait(&n, &a);
        assert_int_equal(a.err, ERR_DENIED);
        if (!strstr(a.why, rows[k].why))
            fail_msg("\"%s\" has no \"%s\"", a.why, rows[k].why);
        raw_close(&r);
        close(i.listen_fd);
        net_close(&n);
    }
}

/* ---- many, and slow ones ---- */

TEST(two_hundred_that_never_speak_and_one_that_must_get_in)
{
    static struct tunnel_net n;
    int fds[200];
    net_open(&n);
    for (int i = 0; i < 200; i++) {
        fds[i] = net_raw(&n, NULL);
        uv_run(&n.loop, UV_RUN_NOWAIT);
        assert_in_range(n.listener->n_pending, 0, TUNNEL_PENDING_ADDRESS_MAX);
    }
    while (n.b->stats.dropped < 200 - TUNNEL_PENDING_ADDRESS_MAX)
        net_pump_ms(&n, 1);
    int a, b;
    net_tunnel(&n, &a, &b);
    assert_int_equal(n.listener->n_pending, TUNNEL_PENDING_ADDRESS_MAX - 1);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    close(a), close(b);
    net_wait_tunnels(&n, n.b, 0);
    assert_int_equal(n.listener->n_pending, 0);
    net_close(&n);
}

TEST(silent_ones_from_many_addresses_keep_to_their_places)
{
    static struct tunnel_net n;
    int fds[200];
    char from[32];
    net_open(&n);
    for (int i = 0; i < 200; i++) {
        snprintf(from, sizeof(from), "127.0.%d.%d", 1 + i % 20, 7);
        fds[i] = net_raw(&n, from);
        uv_run(&n.loop, UV_RUN_NOWAIT);
        assert_in_range(n.listener->n_pending, 0, TUNNEL_PENDING_MAX);
    }
    while (n.b->stats.dropped < 200 - TUNNEL_PENDING_MAX)
        net_pump_ms(&n, 1);
    assert_int_equal(n.listener->n_pending, TUNNEL_PENDING_MAX);
    int a, b;
    net_tunnel(&n, &a, &b);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    close(a), close(b);
    net_close(&n);
}

/* A correct ClientHello, byte by byte: the deadline applies to the whole handshake. */
TEST(slow_loris_is_closed)
{
    struct tunnel_net n;
    struct raw r;
    net_open(&n);
    raw_open_a(&n, &r);
    SSL_do_handshake(r.ssl);
    char *hello;
    long len = BIO_get_mem_data(r.out, &hello), at = 0;
    for (bool open = true; open && at + 1 < len; at++) {
        open = send(r.fd, hello + at, 1, MSG_NOSIGNAL) == 1 || errno == ENOTCONN;
        net_pump_ms(&n, 60);
        open &= net_refused(&n) == 0;
    }
    print_message("closed after %ld of %ld bytes\n", at, len);
    expect_refused(&n);
    assert_true(at + 1 < len);
    raw_close(&r);
    net_close(&n);
}

static int count_lines(const char *path, const char *part)
{
    struct buf text = {0};
    int count = 0;
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    for (const char *at = (char *)text.data; (at = strstr(at, part)); at++)
        count++;
    buf_fini(&text);
    return count;
}

TEST(scan_does_not_fill_the_log)
{
    struct tunnel_net n;
    char path[4096];
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    int log = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600), old = dup(STDERR_FILENO);
    assert_true(log >= 0 && old >= 0);
    net_open(&n);
    dup2(log, STDERR_FILENO);
    int64_t start = clock_mono_ms();
    for (int i = 0; i < 300; i++) {
        int fd = net_raw(&n, NULL);
        net_pump_ms(&n, 1);
        (void)!send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
        net_read_to_end(&n, fd);
        close(fd);
    }
    int64_t seconds = (clock_mono_ms() - start) / 1000 + 1;
    net_close(&n);
    dup2(old, STDERR_FILENO);
    int lines = count_lines(path, "tunnel refused from=127.0.0.1:");
    assert_in_range(lines, 20, 20 + seconds);
    assert_int_equal(count_lines(path, "refused and not logged count="), 1);
    close(log), close(old);
}

/* Memory of a pending connection, compared with the limits in tunnel.h. */
TEST(tunnel_is_as_large_as_it_says)
{
    assert_true(sizeof(struct tunnel) + 2 * WIRE_BYTES <= TUNNEL_BYTES);
}
