/* A relay to a real store, over socket pairs instead of a tunnel. The test runs the loop. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/store/relay.h"
#include "daemon/store/server.h"
#include "tests/daemon/store/say.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define PATIENCE_MS 20000
#define VALUE_BYTES (6u << 20)

static uv_loop_t loop;
static struct store_server *server;
static struct relay *relay;
static enum { AT_ONCE, BY_HAND, NEVER, UNREACHABLE } answer;
static struct relay_call *dialling;
static int by_hand; /* the other end of the stream, held by the test */

static void dial(void *owner, struct relay_call *call)
{
    int pair[2];
    assert_ptr_equal(&loop, owner);
    dialling = call;
    if (answer == UNREACHABLE)
        relay_connected(call, -1);
    if (answer != AT_ONCE && answer != BY_HAND)
        return;
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    if (answer == BY_HAND)
        by_hand = pair[0];
    else
        assert_int_equal(OK, store_server_adopt(server, pair[0]));
    relay_connected(call, pair[1]);
}

static void open_both(void)
{
    const struct store_server_config store = {.name = "far", .uid = getuid()};
    const struct relay_config near = {.loop = &loop, .name = "near", .uid = getuid(), .dial = dial, .owner = &loop};
    struct why why = {""};
    log_init("test");
    answer = AT_ONCE;
    assert_int_equal(0, uv_loop_init(&loop));
    assert_int_equal(OK, store_server_open(&loop, &store, &server, &why));
    assert_int_equal(OK, relay_open(&near, &relay, &why));
    assert_true(relay_port(relay) != store_server_port(server));
}

static void close_both(void)
{
    relay_close(relay);
    store_server_close(server, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(0, uv_loop_close(&loop));
}

static int call_in(void)
{
    const struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(relay_port(relay)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(0, connect(fd, (const struct sockaddr *)&addr, sizeof(addr)));
    assert_int_equal(0, fcntl(fd, F_SETFL, O_NONBLOCK));
    return fd;
}

static void turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
}

/* Sends all of `b` and reads `want` bytes at the same time. */
static void talk(int fd, const struct buf *b, uint8_t *ret, size_t want)
{
    size_t said = 0, got = 0;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; said < b->len || got < want; turn()) {
        ssize_t n = said < b->len ? send(fd, b->data + said, b->len - said, MSG_NOSIGNAL) : 0;
        assert_true(n >= 0 || errno == EAGAIN);
        said += n > 0 ? (size_t)n : 0;
        n = got < want ? recv(fd, ret + got, want - got, 0) : 0;
        assert_true(n > 0 || got == want || errno == EAGAIN);
        got += n > 0 ? (size_t)n : 0;
        assert_true(clock_mono_ms() < end);
    }
}

/* Runs the loop until the end of the stream. */
static void until_ended(int fd)
{
    uint8_t byte;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; recv(fd, &byte, 1, 0) != 0; turn())
        assert_true(clock_mono_ms() < end);
}

static void until_closed(int fd)
{
    until_ended(fd);
    close(fd);
}

static void until_alone(void)
{
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; relay_connections(relay); turn())
        assert_true(clock_mono_ms() < end);
}

TEST(a_large_value_goes_there_and_back)
{
    struct buf b = {0};
    uint8_t *value = malloc(VALUE_BYTES), *back = malloc(VALUE_BYTES + 8);
    assert_true(value && back);
    for (size_t i = 0; i < VALUE_BYTES; i++)
        value[i] = (uint8_t)(i * 31 >> 3);
    open_both();
    int fd = call_in();
    say_hello(&b);
    say(&b, WIRE_SET, "sb", "k", value, (size_t)VALUE_BYTES);
    say(&b, WIRE_GET, "s", "k");
    talk(fd, &b, back, VALUE_BYTES + 8);
    uint64_t len;
    memcpy(&len, back, 8);
    assert_int_equal(VALUE_BYTES, len);
    assert_memory_equal(value, back + 8, VALUE_BYTES);
    close(fd);
    until_alone();
    close_both();
    buf_fini(&b);
    free(value);
    free(back);
}

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

/* Sends until the relay accepts nothing more for a while; returns the number of bytes sent. */
static size_t say_until_full(int fd)
{
    uint8_t chunk[5000];
    size_t said = 0;
    for (int idle = 0; idle < 1000; turn()) {
        for (size_t i = 0; i < sizeof(chunk); i++)
            chunk[i] = byte_at(said + i);
        ssize_t n = send(fd, chunk, sizeof(chunk), MSG_NOSIGNAL);
        assert_true(n > 0 || errno == EAGAIN);
        said += n > 0 ? (size_t)n : 0;
        idle = n > 0 ? 0 : idle + 1;
    }
    return said;
}

static void hear(int fd, size_t want)
{
    uint8_t chunk[7001];
    size_t got = 0;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; got < want; turn()) {
        ssize_t n = recv(fd, chunk, sizeof(chunk), 0);
        assert_true(n > 0 || errno == EAGAIN);
        for (ssize_t i = 0; i < n; i++)
            assert_int_equal(byte_at(got + (size_t)i), chunk[i]);
        got += n > 0 ? (size_t)n : 0;
        assert_true(clock_mono_ms() < end);
    }
    assert_int_equal(want, got);
}

/* An end that does not read holds the other end back, in both directions at once, and no byte is lost. */
TEST(who_does_not_take_holds_the_other_back)
{
    open_both();
    answer = BY_HAND;
    by_hand = -1;
    int fd = call_in();
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; by_hand < 0; turn())
        assert_true(clock_mono_ms() < end);
    size_t there = say_until_full(fd), back = say_until_full(by_hand);
    assert_true(there > 100000 && back > 100000);
    hear(by_hand, there);
    hear(fd, back);
    assert_int_equal(0, shutdown(fd, SHUT_WR)); /* an end that has shut down writing still receives */
    until_ended(by_hand);
    assert_int_equal(3, send(by_hand, "end", 3, MSG_NOSIGNAL));
    close(by_hand);
    char end[3];
    for (int64_t late = clock_mono_ms() + PATIENCE_MS; recv(fd, end, 3, 0) != 3; turn())
        assert_true(clock_mono_ms() < late);
    until_closed(fd);
    until_alone();
    close_both();
}

/* Two clients of the relay and one client of the store itself share one store. */
TEST(who_comes_by_the_relay_is_in_the_store)
{
    struct buf b = {0};
    uint8_t back[8];
    uint64_t sum;
    open_both();
    int fds[] = {call_in(), call_in()};
    for (int i = 0; i < 2; i++) {
        b.len = 0;
        say_hello(&b);
        say(&b, WIRE_ADD, "sn", "n", (uint64_t)i + 1);
        talk(fds[i], &b, back, sizeof(back));
    }
    memcpy(&sum, back, sizeof(sum));
    assert_int_equal(3, sum);
    assert_int_equal(2, relay_connections(relay));
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    until_alone();
    close_both();
    buf_fini(&b);
}

TEST(a_store_out_of_reach_closes_the_connection)
{
    open_both();
    answer = UNREACHABLE;
    until_closed(call_in());
    until_alone();
    close_both();
}

TEST(a_store_that_closes_closes_the_connection)
{
    struct buf b = {0};
    uint8_t back[8];
    open_both();
    int fd = call_in();
    say_hello(&b);
    say(&b, WIRE_ADD, "sn", "n", (uint64_t)1);
    talk(fd, &b, back, sizeof(back));
    store_server_close(server, NULL, NULL);
    until_closed(fd);
    until_alone();
    relay_close(relay);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(0, uv_loop_close(&loop));
    buf_fini(&b);
}

/* The stream is provided after its connection has closed: it is closed, and the relay is freed. */
TEST(a_relay_that_closes_while_it_dials)
{
    int pair[2];
    uint8_t byte;
    open_both();
    answer = NEVER;
    int fd = call_in();
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; !relay_connections(relay); turn())
        assert_true(clock_mono_ms() < end);
    close_both();
    close(fd);
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    relay_connected(dialling, pair[1]);
    assert_int_equal(0, recv(pair[0], &byte, 1, 0));
    close(pair[0]);
}
