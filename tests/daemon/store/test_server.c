/* The store on real sockets: conversations, misbehaving clients, limits. The test runs the loop. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/shares.h"
#include "daemon/store/server.h"
#include "tests/daemon/store/say.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define PATIENCE_MS 20000

static uv_loop_t loop;
static struct store_server *server;
static struct buf said; /* emptied by talk() */
static int n_closed;

static void open_store(struct store_server_config config)
{
    struct why why = {""};
    log_init("test");
    assert_int_equal(0, uv_loop_init(&loop));
    config.name = "test";
    if (!config.uid)
        config.uid = getuid();
    if (store_server_open(&loop, &config, &server, &why))
        fail_msg("%s", why.text);
}

static void closed(void *arg)
{
    n_closed++;
    assert_ptr_equal(&n_closed, arg);
}

static void close_store(void)
{
    n_closed = 0;
    store_server_close(server, closed, &n_closed);
    assert_int_equal(0, n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(1, n_closed);
    assert_int_equal(0, uv_loop_close(&loop));
    buf_fini(&said);
}

static struct store_server_stats stats(void)
{
    struct store_server_stats s;
    store_server_stats(server, &s);
    return s;
}

static void turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
}

static int connect_to(uint16_t port)
{
    const struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(0, connect(fd, (const struct sockaddr *)&addr, sizeof(addr)));
    assert_int_equal(0, fcntl(fd, F_SETFL, O_NONBLOCK));
    return fd;
}

/* Runs the loop until the condition `what` holds, with a deadline. */
static void until(bool (*what)(void))
{
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; !what(); turn())
        assert_true(clock_mono_ms() < end);
}

static void send_to(int fd, const uint8_t *data, size_t len)
{
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; len; turn()) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        assert_true(n >= 0 || errno == EAGAIN);
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
        assert_true(clock_mono_ms() < end);
    }
}

static void read_from(int fd, uint8_t *room, size_t len)
{
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; len; turn()) {
        ssize_t n = recv(fd, room, len, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            fail_msg("closed with %zu bytes to come", len);
        room += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
        assert_true(clock_mono_ms() < end);
    }
}

static void expect_bytes(int fd, const void *bytes, size_t len)
{
    uint8_t *room = malloc(len ? len : 1);
    read_from(fd, room, len);
    assert_memory_equal(bytes, room, len);
    free(room);
}

static void expect_answer(int fd, const char *hex)
{
    struct buf b = {0};
    say_hex(&b, hex);
    expect_bytes(fd, b.data, b.len);
    buf_fini(&b);
}

/* Waits until the next answer has arrived, and leaves it for a later expect_answer. */
static void until_answered(int fd)
{
    uint8_t byte;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; recv(fd, &byte, 1, MSG_PEEK) != 1; turn())
        assert_true(clock_mono_ms() < end);
}

static void expect_blob(int fd, const char *value)
{
    uint64_t len;
    read_from(fd, (uint8_t *)&len, sizeof(len));
    assert_int_equal(strlen(value), len);
    expect_bytes(fd, value, len);
}

static void expect_number(int fd, int64_t expected)
{
    int64_t number;
    read_from(fd, (uint8_t *)&number, sizeof(number));
    assert_true(number == expected);
}

/* Expects that no bytes arrive. */
static void expect_silence(int fd)
{
    char byte;
    for (int i = 0; i < 20; i++)
        turn();
    assert_int_equal(-1, recv(fd, &byte, 1, 0));
    assert_int_equal(EAGAIN, errno);
}

/* Also closes the test's end. */
static void expect_closed(int fd)
{
    char byte;
    for (int64_t end = clock_mono_ms() + PATIENCE_MS;; turn()) {
        ssize_t n = recv(fd, &byte, 1, 0);
        assert_true(n <= 0);
        if (n == 0 || errno == ECONNRESET)
            break;
        assert_int_equal(EAGAIN, errno);
        assert_true(clock_mono_ms() < end);
    }
    close(fd);
}

/* Sends the requests in `said`. */
static void talk(int fd)
{
    send_to(fd, said.data, said.len);
    said.len = 0;
}

static void greet(int fd)
{
    say_hello(&said);
    say(&said, WIRE_PING, "w", 77u);
    talk(fd);
    expect_answer(fd, "4d000000");
}

static int join(void)
{
    int fd = connect_to(store_server_port(server));
    greet(fd);
    return fd;
}

static bool nobody_is_left(void)
{
    return stats().connections == 0;
}

/* The captured bytes of spec and clients, and their answers. */
TEST(the_captured_conversation)
{
    open_store((struct store_server_config){0});
    int fd = connect_to(store_server_port(server));
    say_hex(&said, "00cef7853c 0d6f1b0000 04 0500000000000000 696e69742f 0100000000000000");
    talk(fd);
    expect_answer(fd, "6f1b0000 0100000000000000");
    say_hex(&said, "01 0200000000000000 2f6b 0100000000000000 76 06 0100000000000000 0200000000000000 2f6b");
    talk(fd);
    expect_answer(fd, "00");
    say_hex(&said, "03 0200000000000000 2f6b");
    talk(fd);
    expect_answer(fd, "0100000000000000 76");
    say_hex(&said, "02 0200000000000000 2f6b 0100000000000000 6f 0100000000000000 6e");
    talk(fd);
    expect_answer(fd, "0100000000000000 76");
    say_hex(&said, "05 0200000000000000 0200000000000000 2f6b 0200000000000000 2f7a");
    talk(fd);
    expect_answer(fd, "01");
    say_hex(&said, "12 0200000000000000 2f62 0200000000000000");
    talk(fd);
    expect_silence(fd);
    int other = join();
    say_hex(&said, "12 0200000000000000 2f62 0200000000000000");
    talk(other);
    expect_answer(other, "00");
    expect_answer(fd, "00");
    assert_int_equal(3, stats().keys); /* init/, /k, /b */
    close(fd);
    close(other);
    until(nobody_is_left);
    close_store();
}

static void say_everything(struct buf *b)
{
    say(b, WIRE_SET, "ss", "k", "value");
    say(b, WIRE_APPEND, "ss", "k", "+tail");
    say(b, WIRE_GET, "s", "k");
    say(b, WIRE_GET, "s", "missing");
    say(b, WIRE_ADD, "sn", "n", (uint64_t)5);
    say(b, WIRE_ADD, "sn", "n", (uint64_t)-7);
    say(b, WIRE_GET, "s", "n");
    say(b, WIRE_COMPARE_SET, "sss", "c", "", "first");
    say(b, WIRE_COMPARE_SET, "sss", "d", "not there", "x");
    say(b, WIRE_MULTI_SET, "nssss", (uint64_t)2, "m1", "v1", "m2", "");
    say(b, WIRE_MULTI_SET, "n", (uint64_t)0);
    say(b, WIRE_MULTI_GET, "nsss", (uint64_t)3, "m1", "missing", "m2");
    say(b, WIRE_MULTI_GET, "n", (uint64_t)0);
    say(b, WIRE_CHECK, "nss", (uint64_t)2, "k", "n");
    say(b, WIRE_CHECK, "nss", (uint64_t)2, "missing", "n");
    say(b, WIRE_CHECK, "n", (uint64_t)0);
    say(b, WIRE_WAIT, "nss", (uint64_t)2, "k", "n");
    say(b, WIRE_WAIT, "n", (uint64_t)0);
    say(b, WIRE_CANCEL_WAIT, "");
    say(b, WIRE_QUEUE_PUSH, "ss", "q", "item");
    say(b, WIRE_QUEUE_PUSH, "ss", "q", "");
    say(b, WIRE_QUEUE_LEN, "s", "q");
    say(b, WIRE_CHECK, "ns", (uint64_t)1, "q");
    say(b, WIRE_QUEUE_POP, "s", "q");
    say(b, WIRE_QUEUE_POP, "s", "q");
    say(b, WIRE_QUEUE_POP, "s", "q");
    say(b, WIRE_GETNUMKEYS, "");
    say(b, WIRE_DELETE_KEY, "s", "k");
    say(b, WIRE_DELETE_KEY, "s", "k");
    say(b, WIRE_DELETE_KEY, "s", "n");
    say(b, WIRE_DELETE_KEY, "s", "c");
    say(b, WIRE_DELETE_KEY, "s", "m1");
    say(b, WIRE_LIST_KEYS, "");
    say(b, WIRE_BARRIER, "sn", "b", (uint64_t)1);
    say(b, WIRE_DELETE_KEY, "s", "b");
    say(b, WIRE_DELETE_KEY, "s", "m2");
    say(b, WIRE_PING, "w", 0x01020304u);
}

static const char all_answers[] = "0a00000000000000 76616c75652b7461696c"                   /* value+tail */
                                  "0000000000000000"                                        /* missing */
                                  "0500000000000000 feffffffffffffff"                       /* 5, -2 */
                                  "0200000000000000 2d32"                                   /* "-2" */
                                  "0500000000000000 6669727374"                             /* first */
                                  "0900000000000000 6e6f74207468657265"                     /* what was expected */
                                  "0200000000000000 7631 0000000000000000 0000000000000000" /* three values */
                                  "00 01 00"                                                /* checks */
                                  "00 00 01"                                                /* waits, cancel */
                                  "0200000000000000 00"                                     /* length, check */
                                  "0200000000000000 0400000000000000 6974656d"
                                  "0100000000000000 0000000000000000"
                                  "0000000000000000"                  /* popped */
                                  "0500000000000000"                  /* keys: k n c m1 m2 */
                                  "0100000000000000 0000000000000000" /* deleted, not there */
                                  "0100000000000000 0100000000000000 0100000000000000"
                                  "0100000000000000 0200000000000000 6d32" /* the list: m2 */
                                  "00"                                     /* barrier */
                                  "0100000000000000 0100000000000000"
                                  "04030201";

TEST(every_operation_answers)
{
    open_store((struct store_server_config){0});
    int fd = join();
    say_everything(&said);
    talk(fd);
    expect_answer(fd, all_answers);
    expect_silence(fd);
    assert_int_equal(0, stats().keys);
    for (int op = 0; op < WIRE_OPS; op++)
        assert_true(stats().by_op[op] > 0);
    close(fd);
    until(nobody_is_left);
    close_store();
}

/* The same, cut in two at each byte, each part in a turn of its own. */
TEST(cut_at_every_byte)
{
    struct buf all = {0};
    open_store((struct store_server_config){0});
    int fd = join();
    say_everything(&all);
    for (size_t at = 1; at < all.len; at++) {
        send_to(fd, all.data, at);
        turn();
        send_to(fd, all.data + at, all.len - at);
        expect_answer(fd, all_answers);
    }
    for (size_t i = 0; i < all.len; i++)
        send_to(fd, all.data + i, 1);
    expect_answer(fd, all_answers);
    close(fd);
    until(nobody_is_left);
    buf_fini(&all);
    close_store();
}

TEST(version_2_1_is_served)
{
    open_store((struct store_server_config){0});
    int fd = connect_to(store_server_port(server));
    say(&said, WIRE_SET, "ss", "k", "v");
    said.data[0]--;
    talk(fd);
    expect_silence(fd);
    say_hex(&said, "02 0100000000000000 6b 06");
    talk(fd);
    expect_answer(fd, "0100000000000000 76 0100000000000000");
    close(fd);
    until(nobody_is_left);
    close_store();
}

/* ---- waiting ---- */

TEST(cancel_is_answered_once_whatever_came_first)
{
    open_store((struct store_server_config){0});
    int a = join(), b = join();
    say(&said, WIRE_CANCEL_WAIT, ""); /* nothing to cancel */
    talk(a);
    expect_answer(a, "01");
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "k");
    say(&said, WIRE_CANCEL_WAIT, "");
    talk(a);
    expect_answer(a, "01");
    say(&said, WIRE_SET, "ss", "k", "v");
    talk(b);
    expect_silence(a); /* the wait has ended */
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "l");
    talk(a);
    expect_silence(a);
    say(&said, WIRE_SET, "ss", "l", "v");
    talk(b);
    until_answered(a);
    say(&said, WIRE_CANCEL_WAIT, ""); /* too late: the wake has already been sent */
    talk(a);
    expect_answer(a, "00 01");
    expect_silence(a);
    say(&said, WIRE_BARRIER, "sn", "b", (uint64_t)2);
    say(&said, WIRE_CANCEL_WAIT, "");
    say(&said, WIRE_GET, "s", "b");
    talk(a);
    expect_answer(a, "01 0100000000000000 31"); /* has been counted */
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "again");
    talk(a);
    say(&said, WIRE_ADD, "sn", "again", (uint64_t)1);
    talk(b);
    expect_number(b, 1);
    expect_answer(a, "00");
    close(a);
    close(b);
    until(nobody_is_left);
    close_store();
}

/* A wake and a cancel in one turn of the loop, in each order in which the sockets may be read. */
TEST(cancel_and_wake_in_one_turn)
{
    open_store((struct store_server_config){0});
    int a = join(), b = join();
    for (int i = 0; i < 200; i++) {
        char key[16];
        uint8_t answer[2];
        snprintf(key, sizeof(key), "k%d", i);
        say(&said, WIRE_WAIT, "ns", (uint64_t)1, key);
        talk(a);
        turn();
        say(&said, WIRE_CANCEL_WAIT, "");
        struct buf set = {0};
        say(&set, WIRE_SET, "ss", key, "");
        if (i % 2)
            assert_int_equal(said.len, send(a, said.data, said.len, 0));
        assert_int_equal(set.len, send(b, set.data, set.len, 0));
        if (i % 2 == 0)
            assert_int_equal(said.len, send(a, said.data, said.len, 0));
        said.len = 0;
        buf_fini(&set);
        read_from(a, answer, 1);
        if (answer[0] == 0)
            read_from(a, answer, 1);
        assert_int_equal(1, answer[0]);
        expect_silence(a);
    }
    close(a);
    close(b);
    until(nobody_is_left);
    close_store();
}

TEST(a_second_wait_ends_the_connection)
{
    open_store((struct store_server_config){0});
    int fd = join();
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "k");
    say(&said, WIRE_BARRIER, "sn", "b", (uint64_t)2);
    talk(fd);
    expect_closed(fd);
    assert_int_equal(1, stats().broken);
    close_store();
}

static bool all_are_waiting(void)
{
    return stats().by_op[WIRE_WAIT] == 300;
}

TEST(one_key_wakes_everybody)
{
    enum { N = 300 };
    int fds[N];
    open_store((struct store_server_config){0});
    int setter = join();
    for (int i = 0; i < N; i++) {
        fds[i] = join();
        say(&said, WIRE_WAIT, "nss", (uint64_t)2, "k", "k");
        talk(fds[i]);
    }
    until(all_are_waiting);
    say(&said, WIRE_SET, "ss", "k", "v");
    talk(setter);
    for (int i = 0; i < N; i++) {
        expect_answer(fds[i], "00");
        expect_silence(fds[i]);
        close(fds[i]);
    }
    close(setter);
    until(nobody_is_left);
    close_store();
}

/* More woken clients than are sent to in one turn: the loop must not sleep before the last one has its answer. */
TEST(more_waiters_than_a_turn_serves)
{
    enum { N = 1100 };
    static int fds[N];
    struct rlimit limit;
    assert_int_equal(0, getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < 3 * N)
        TEST_SKIP("not enough descriptors");
    open_store((struct store_server_config){0});
    int setter = join();
    for (int i = 0; i < N; i++) {
        int pair[2];
        assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair));
        assert_ok(store_server_adopt(server, pair[0]));
        fds[i] = pair[1];
        greet(fds[i]);
        say(&said, WIRE_WAIT, "ns", (uint64_t)1, "k");
        talk(fds[i]);
    }
    say(&said, WIRE_SET, "ss", "k", "v");
    assert_int_equal(said.len, send(setter, said.data, said.len, 0));
    while (!stats().by_op[WIRE_SET])
        turn();
    assert_int_equal(0, uv_backend_timeout(&loop));
    for (int i = 0; i < N; i++) {
        expect_answer(fds[i], "00");
        close(fds[i]);
    }
    close(setter);
    until(nobody_is_left);
    close_store();
}

static bool one_is_left(void)
{
    return stats().connections == 1;
}

/* A waiter that closes leaves nothing behind; the item that woke it wakes the next waiter. */
TEST(waiters_that_go)
{
    open_store((struct store_server_config){0});
    int a = join(), b = join(), c = join();
    say(&said, WIRE_WAIT, "nsss", (uint64_t)3, "x", "y", "q");
    talk(a);
    say(&said, WIRE_BARRIER, "sn", "bar", (uint64_t)5);
    talk(b);
    turn();
    turn();
    close(a);
    close(b);
    until(one_is_left);
    say(&said, WIRE_SET, "ss", "x", "");
    say(&said, WIRE_ADD, "sn", "bar", (uint64_t)9);
    talk(c);
    expect_number(c, 10);
    a = join();
    b = join();
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "q");
    talk(a);
    expect_silence(a);
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "q");
    talk(b);
    expect_silence(b);
    say(&said, WIRE_QUEUE_PUSH, "ss", "q", "item");
    talk(c);
    expect_answer(a, "00");
    expect_silence(b);
    close(a);
    expect_answer(b, "00");
    say(&said, WIRE_QUEUE_POP, "s", "q");
    talk(b);
    expect_number(b, 1);
    expect_blob(b, "item");
    close(b);
    close(c);
    until(nobody_is_left);
    close_store();
}

/* ---- permitted users ---- */

/* Runs as another user: in a child process as root, otherwise with a store of another user. */
static uid_t stranger_of(void)
{
    return getuid() == 0 ? 65534 : getuid() + 1;
}

/* Connects, sends a request, and closes immediately or waits for the end. Returns the child process. */
static pid_t stranger(uint16_t port, bool stays)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    if (getuid() == 0 && setresuid(65534, 65534, 65534))
        _exit(2);
    const struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)))
        _exit(3);
    struct buf b = {0};
    char byte;
    say_hello(&b);
    say(&b, WIRE_SET, "ss", "k", "of a stranger");
    if (send(fd, b.data, b.len, MSG_NOSIGNAL) != (ssize_t)b.len)
        _exit(4);
    if (stays)
        _exit(recv(fd, &byte, 1, 0) > 0 ? 5 : 0); /* it is closed */
    close(fd);
    _exit(0);
}

static void expect_exit(pid_t pid)
{
    int status;
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
}

static bool one_was_refused(void)
{
    return stats().refused == 1;
}

TEST(another_users_connection_is_refused)
{
    open_store((struct store_server_config){.uid = getuid() == 0 ? 12345 : stranger_of()});
    pid_t pid = stranger(store_server_port(server), true);
    until(one_was_refused);
    expect_exit(pid);
    assert_int_equal(0, stats().accepted);
    assert_int_equal(0, stats().keys);
    if (getuid() == 0)
        close(join()); /* root is permitted */
    until(nobody_is_left);
    close_store();
}

/* The kernel reports root as the owner of a socket that its process has closed. */
TEST(who_closes_at_once_is_not_taken_for_root)
{
    open_store((struct store_server_config){.uid = getuid() == 0 ? 12345 : stranger_of()});
    expect_exit(stranger(store_server_port(server), false));
    until(one_was_refused);
    assert_int_equal(0, stats().accepted);
    assert_int_equal(0, stats().keys);
    close_store();
}

/* ---- the log ---- */

#define STRANGERS 200

static bool all_were_refused(void)
{
    return stats().refused == STRANGERS;
}

static int count_lines(const char *path, const char *part)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, part) != NULL;
    fclose(f);
    return n;
}

/* A stranger who connects again and again does not fill the log. */
TEST(refusals_do_not_fill_the_log)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    int log = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600), old = dup(STDERR_FILENO);
    assert_true(log >= 0 && old >= 0);
    open_store((struct store_server_config){.uid = getuid() == 0 ? 12345 : stranger_of()});
    dup2(log, STDERR_FILENO);
    int64_t start = clock_mono_ms();
    for (int i = 0; i < STRANGERS; i++)
        expect_exit(stranger(store_server_port(server), false));
    until(all_were_refused);
    int64_t seconds = (clock_mono_ms() - start) / 1000 + 1;
    close_store();
    dup2(old, STDERR_FILENO);
    assert_in_range(count_lines(path, "store connection closed"), 20, 20 + seconds);
    close(log), close(old);
}

TEST(the_owner_is_served_though_not_root)
{
    if (getuid() != 0)
        TEST_SKIP("every test here is by a user who is not root");
    open_store((struct store_server_config){.uid = 65534});
    pid_t pid = stranger(store_server_port(server), true);
    for (int64_t end = clock_mono_ms() + PATIENCE_MS; !stats().keys; turn())
        assert_true(clock_mono_ms() < end);
    close_store(); /* ends the child */
    expect_exit(pid);
}

/* As PyTorch connects: an IPv6 socket with a mapped address; and to ::1. */
TEST(both_families)
{
    open_store((struct store_server_config){0});
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in6 addr = {
            .sin6_family = AF_INET6, .sin6_port = htons(store_server_port(server)), .sin6_addr = in6addr_loopback};
        if (i == 0)
            assert_int_equal(1, inet_pton(AF_INET6, "::ffff:127.0.0.1", &addr.sin6_addr));
        int fd = socket(AF_INET6, SOCK_STREAM, 0);
        if (fd < 0)
            TEST_SKIP("there is no IPv6 here");
        if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
            TEST_SKIP("there is no ::1 here: %s", strerror(errno));
        assert_int_equal(0, fcntl(fd, F_SETFL, O_NONBLOCK));
        greet(fd);
        close(fd);
        until(nobody_is_left);
    }
    assert_int_equal(2, stats().accepted);
    close_store();
}

TEST(an_adopted_connection_is_vouched_for)
{
    int pair[2];
    open_store((struct store_server_config){.uid = getuid() + 1, .max_connections = 1});
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    assert_ok(store_server_adopt(server, pair[0]));
    assert_int_equal(0, fcntl(pair[1], F_SETFL, O_NONBLOCK));
    greet(pair[1]);
    int more[2];
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM, 0, more));
    assert_err(ERR_LIMIT, store_server_adopt(server, more[0]));
    expect_closed(more[1]);
    close(pair[1]);
    until(nobody_is_left);
    close_store();
}

TEST(a_port_that_is_taken)
{
    struct store_server *second;
    struct why why = {""};
    open_store((struct store_server_config){0});
    const struct store_server_config config = {.name = "second", .uid = getuid(), .port = store_server_port(server)};
    assert_err(ERR_BUSY, store_server_open(&loop, &config, &second, &why));
    assert_non_null(strstr(why.text, "store second: port "));
    close_store();
}

/* A port that is free for one family only is not used: a client could reach another server. */
TEST(a_port_that_is_taken_for_ipv6)
{
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    socklen_t len = sizeof(addr);
    struct store_server *second;
    struct why why = {""};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) || listen(fd, 1))
        TEST_SKIP("there is no IPv6 here");
    assert_int_equal(0, getsockname(fd, (struct sockaddr *)&addr, &len));
    open_store((struct store_server_config){0});
    const struct store_server_config config = {.name = "second", .uid = getuid(), .port = ntohs(addr.sin6_port)};
    assert_err(ERR_BUSY, store_server_open(&loop, &config, &second, &why));
    close(fd);
    close_store();
}

TEST(stores_know_nothing_of_each_other)
{
    struct store_server *second;
    struct why why = {""};
    open_store((struct store_server_config){0});
    const struct store_server_config config = {.name = "second", .uid = getuid()};
    assert_ok(store_server_open(&loop, &config, &second, &why));
    assert_int_not_equal(store_server_port(server), store_server_port(second));
    int a = join(), b = connect_to(store_server_port(second));
    say(&said, WIRE_SET, "ss", "k", "v");
    talk(a);
    say_hello(&said);
    say(&said, WIRE_GETNUMKEYS, "");
    talk(b);
    expect_number(b, 0);
    store_server_close(second, NULL, NULL);
    expect_closed(b);
    say(&said, WIRE_GETNUMKEYS, "");
    talk(a);
    expect_number(a, 1);
    close(a);
    close_store();
}

/* ---- misbehaving clients ---- */

TEST(who_says_nothing_in_time)
{
    open_store((struct store_server_config){.handshake_ms = 200});
    int good = join(), silent = connect_to(store_server_port(server)), slow = connect_to(store_server_port(server));
    say_hello(&said);
    send_to(slow, said.data, said.len - 1); /* the last byte is never sent */
    said.len = 0;
    expect_closed(silent);
    expect_closed(slow);
    assert_int_equal(2, stats().broken);
    close(join()); /* a later client has its own deadline */
    say(&said, WIRE_GETNUMKEYS, "");
    talk(good);
    expect_number(good, 0);
    close(good);
    close_store();
}

/* A request that has begun must be completed. A client that waits for an answer, or for nothing, may wait. */
TEST(who_does_not_finish_a_request)
{
    open_store((struct store_server_config){.request_ms = 200});
    int idle = join(), waiting = join(), slow = join(), list = join();
    say(&said, WIRE_WAIT, "ns", (uint64_t)1, "later");
    talk(waiting);
    say(&said, WIRE_SET, "ss", "k", "a value");
    send_to(slow, said.data, said.len - 1);
    said.len = 0;
    say(&said, WIRE_CHECK, "nss", (uint64_t)3, "x", "y"); /* the third key never arrives */
    talk(list);
    expect_closed(slow);
    expect_closed(list);
    assert_int_equal(2, stats().broken);
    assert_int_equal(2, stats().connections);
    say(&said, WIRE_SET, "ss", "later", "now");
    talk(idle);
    expect_answer(waiting, "00");
    close(idle);
    close(waiting);
    until(nobody_is_left);
    close_store();
}

TEST(nonsense_ends_the_connection)
{
    const char *const nonsense[] = {
        "47455420",                                           /* GET / HTTP */
        "00cef7853c 13",                                      /* unknown operation */
        "00cef7853c 00cef7853c",                              /* VALIDATE again */
        "00cef7853d 0000000000",                              /* wrong magic */
        "00cef7853c 01 ffffffffffffffff",                     /* endless key */
        "00cef7853c 03 0120000000000000",                     /* 8193 bytes of key */
        "00cef7853c 01 0100000000000000 6b 0100800000000000", /* 8 MiB and one byte */
        "00cef7853c 06 0100020000000000",                     /* 131073 keys */
        "00cef7853c 01 0100000000000000 6b 0100000000000000 78 04 0100000000000000 6b 0100000000000000", /* x plus 1 */
        "00cef7853c 12 0100000000000000 6b 0200000000000000 06 ffffffffffffffff",
    };
    open_store((struct store_server_config){0});
    int good = join();
    const size_t before = stats().bytes;
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        int fd = connect_to(store_server_port(server));
        say_hex(&said, nonsense[i]);
        talk(fd);
        expect_closed(fd);
        assert_int_equal(i + 1, stats().broken);
    }
    say(&said, WIRE_DELETE_KEY, "s", "k");
    talk(good);
    expect_number(good, 1);
    assert_int_equal(before, stats().bytes);
    close(good);
    until(nobody_is_left);
    close_store();
}

static const size_t value_bytes = 1 << 20;

static void set_large(int fd, const char *key)
{
    uint8_t *value = malloc(value_bytes);
    for (size_t i = 0; i < value_bytes; i++)
        value[i] = (uint8_t)(i * 31 + i / 251 + (size_t)key[0]);
    say(&said, WIRE_SET, "sb", key, value, value_bytes);
    talk(fd);
    free(value);
}

static void expect_large(int fd, const char *key)
{
    uint8_t *value = malloc(value_bytes);
    expect_number(fd, (int64_t)value_bytes);
    read_from(fd, value, value_bytes);
    for (size_t i = 0; i < value_bytes; i++)
        if (value[i] != (uint8_t)(i * 31 + i / 251 + (size_t)key[0]))
            fail_msg("byte %zu", i);
    free(value);
}

/* 200 MB of answers for a client that does not read: they are not produced before it reads. Others are served. */
TEST(a_client_that_does_not_read)
{
    open_store((struct store_server_config){0});
    int greedy = join(), other = join();
    set_large(other, "k");
    say(&said, WIRE_GETNUMKEYS, "");
    talk(other);
    expect_number(other, 1);
    const size_t before = stats().bytes;
    for (int i = 0; i < 200; i++)
        say(&said, WIRE_GET, "s", "k");
    say(&said, WIRE_PING, "w", 5u);
    talk(greedy);
    for (int i = 0; i < 50; i++) {
        turn();
        assert_in_range(stats().bytes, before, before + 2 * (STORE_OUTPUT_HIGH_BYTES + value_bytes) + 100000);
    }
    say(&said, WIRE_SET, "ss", "l", "v");
    say(&said, WIRE_GET, "s", "l");
    talk(other);
    expect_blob(other, "v");
    for (int i = 0; i < 200; i++)
        expect_large(greedy, "k");
    expect_answer(greedy, "05000000");
    expect_silence(greedy);
    close(greedy);
    close(other);
    until(nobody_is_left);
    close_store();
}

/* One request for 150 MB in many values: produced as they are read. The client sends all keys first. */
TEST(many_large_values_at_once)
{
    enum { N = 150 };
    open_store((struct store_server_config){0});
    int fd = join();
    set_large(fd, "k");
    set_large(fd, "l");
    char longest[WIRE_KEY_MAX];
    memset(longest, 'z', sizeof(longest));
    say(&said, WIRE_MULTI_GET, "n", 2 * (uint64_t)N + 1000);
    struct buf keys = {0};
    for (int i = 0; i < N; i++) {
        say(&keys, 0, "s", i % 2 ? "l" : "k");
        assert_ok(buf_append(&said, keys.data + 1, keys.len - 1));
        keys.len = 0;
        say(&keys, 0, "s", "missing");
        assert_ok(buf_append(&said, keys.data + 1, keys.len - 1));
        keys.len = 0;
    }
    for (int i = 0; i < 1000; i++) { /* 8 MB of names: more than the sockets hold */
        say(&keys, 0, "b", longest, sizeof(longest));
        assert_ok(buf_append(&said, keys.data + 1, keys.len - 1));
        keys.len = 0;
    }
    say(&said, WIRE_GETNUMKEYS, "");
    talk(fd);
    for (int i = 0; i < N; i++) {
        expect_large(fd, i % 2 ? "l" : "k");
        expect_number(fd, 0);
        assert_in_range(stats().bytes, 0, 40u << 20);
    }
    for (int i = 0; i < 1000; i++)
        expect_number(fd, 0);
    expect_number(fd, 2);
    buf_fini(&keys);
    close(fd);
    until(nobody_is_left);
    close_store();
}

TEST(a_store_that_is_full)
{
    open_store((struct store_server_config){.max_bytes = 5u << 20});
    int good = join(), bad = join();
    set_large(good, "k");
    say(&said, WIRE_PING, "w", 1u);
    talk(good);
    expect_answer(good, "01000000");
    for (int i = 0; i < 10 && stats().broken == 0; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        uint8_t *value = calloc(1, value_bytes);
        say(&said, WIRE_SET, "sb", key, value, value_bytes);
        free(value);
        for (size_t at = 0; at < said.len && stats().broken == 0; turn()) {
            ssize_t n = send(bad, said.data + at, said.len - at, MSG_NOSIGNAL);
            at += n > 0 ? (size_t)n : 0;
        }
        said.len = 0;
        for (int j = 0; j < 10; j++)
            turn();
    }
    assert_int_equal(1, stats().broken);
    expect_closed(bad);
    assert_in_range(stats().bytes, value_bytes, 5u << 20);
    say(&said, WIRE_GET, "s", "k");
    talk(good); /* existing keys are served as long as there is memory for the answer */
    expect_large(good, "k");
    close(good);
    until(nobody_is_left);
    close_store();
}

TEST(no_more_connections_than_are_allowed)
{
    open_store((struct store_server_config){.max_connections = 2});
    int a = join(), b = join(), c = connect_to(store_server_port(server));
    say_hello(&said);
    say(&said, WIRE_PING, "w", 3u);
    talk(c);
    expect_silence(c); /* in the backlog */
    assert_int_equal(2, stats().connections);
    close(a);
    expect_answer(c, "03000000");
    close(b);
    close(c);
    until(nobody_is_left);
    close_store();
}

/* The connections of a user to all his stores count, here one to another store. */
TEST(no_more_connections_than_the_user_may_have)
{
    struct shares shares;
    uint32_t uid = getuid() ? getuid() : 4711; /* not root, for whom there is no limit */
    shares_init(&shares, 100);
    assert_true(shares_take(&shares, uid, 3));
    open_store((struct store_server_config){.uid = uid, .shares = &shares, .max_user = 3});
    int a = join(), b = join();
    expect_closed(connect_to(store_server_port(server)));
    assert_int_equal(3, shares_of(&shares, uid));
    close(a);
    until(one_is_left);
    assert_int_equal(2, shares_of(&shares, uid));
    a = join();
    close(a);
    close(b);
    until(nobody_is_left);
    close_store();
    assert_int_equal(1, shares_of(&shares, uid));
    shares_give(&shares, uid);
}

/* Two stores of a user of 5 MiB each, and 6 MiB for both. */
TEST(the_stores_of_a_user_are_full)
{
    struct budget user = {.max = 6u << 20}, first = {.max = 5u << 20, .parent = &user};
    assert_ok(budget_take(&first, 4u << 20));
    open_store((struct store_server_config){.max_bytes = 5u << 20, .user_budget = &user});
    int a = join();
    uint8_t *value = calloc(1, value_bytes);
    for (int i = 0; i < 3 && stats().broken == 0; i++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", i);
        say(&said, WIRE_SET, "sb", key, value, value_bytes);
        for (size_t at = 0; at < said.len && stats().broken == 0; turn()) {
            ssize_t n = send(a, said.data + at, said.len - at, MSG_NOSIGNAL);
            at += n > 0 ? (size_t)n : 0;
        }
        said.len = 0;
        for (int k = 0; k < 10; k++)
            turn();
    }
    free(value);
    assert_int_equal(1, stats().broken);
    expect_closed(a);
    close_store();
    assert_int_equal(4u << 20, user.used);
    budget_give(&first, 4u << 20);
    assert_int_equal(0, user.used);
}

static bool two_keys_are_there(void)
{
    return stats().keys == 2;
}

/* A process that exits with unread answers resets its connection; its SETs are still applied. */
TEST(what_was_sent_before_a_reset_counts)
{
    const struct linger at_once = {1, 0};
    open_store((struct store_server_config){0});
    int fd = join();
    say(&said, WIRE_SET, "ss", "a", "1");
    say(&said, WIRE_SET, "ss", "b", "2");
    assert_int_equal(said.len, send(fd, said.data, said.len, 0));
    said.len = 0;
    assert_int_equal(0, setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    close(fd);
    until(two_keys_are_there);
    until(nobody_is_left);
    close_store();
}

/* Closes while every client is in the middle of an operation. */
TEST(closing_ends_everything)
{
    open_store((struct store_server_config){0});
    int a = join(), b = join(), c = join(), d = connect_to(store_server_port(server));
    say(&said, WIRE_WAIT, "nss", (uint64_t)2, "k", "l");
    talk(a);
    say(&said, WIRE_BARRIER, "sn", "b", (uint64_t)2);
    talk(b);
    say(&said, WIRE_QUEUE_PUSH, "ss", "q", "item");
    say(&said, WIRE_SET, "ss", "half", "a request");
    send_to(c, said.data, said.len - 3);
    said.len = 0;
    turn();
    close_store();
    close(a);
    close(b);
    close(c);
    close(d);
}
