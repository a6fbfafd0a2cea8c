/* Loads a c10d store with many clients. Each has a connection of its own and waits for its answer before it sends the
 * next request, as PyTorch's clients do. Prints one JSON line.
 *
 *   bench_store PORT PID CASE CLIENTS [SECONDS [DEPTH]]
 *
 *   join    all clients connect at once, each with VALIDATE, PING and ADD init/: seconds until the last one has its
 * answer set     SET of 32 bytes; after every DEPTH SETs a GET, which shows that they are done get     GET of 32 bytes
 *   add     ADD of one counter
 *   wake    all clients but one WAIT for a key, and that one SETs it: seconds until the last answer, the best of
 * several
 *
 * PID is the server's process. Its processor time is printed, too: the cost of an operation for the server, independent
 * of other load. With DEPTH above 1 each connection has that many requests under way; PyTorch's own client has one.
 *
 * `bench_store floor` is a server that does not parse requests and answers with the number of bytes that these requests
 * need, which is the cost of sockets alone. It prints its port and serves until the end of its standard input.
 *
 * The driver uses one thread and epoll, so that it is not much slower than any of the servers. Connections are reset at
 * the end, so that ten thousand of them leave no ports in TIME_WAIT. */
#include "common/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_DEPTH 64
#define REQUEST_BYTES 128
#define VALUE_BYTES 32
#define JOINS_AT_ONCE 512 /* simultaneous connects; more would overflow the backlog of either server */
#define DEADLINE_S 300

struct client {
    int fd;
    bool joined;
    size_t answers; /* bytes of answers that are outstanding */
};

static struct {
    struct client *clients;
    int n, epoll, depth;
    struct sockaddr_in server;
    pid_t pid;
} b;

static void exit_with_error(const char *what)
{
    perror(what);
    exit(1);
}

static double now_s(void)
{
    return (double)clock_mono_ns() * 1e-9;
}

/* Processor time of the server's process so far, in seconds. */
static double server_cpu_s(void)
{
    char path[64], line[1024];
    unsigned long user = 0, sys = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", b.pid);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof(line), f))
        exit_with_error(path);
    fclose(f);
    const char *rest = strrchr(line, ')');
    if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2)
        exit_with_error("stat");
    return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- requests ---- */

static size_t append_bytes(uint8_t *to, size_t at, const void *data, size_t len)
{
    memcpy(to + at, data, len);
    return at + len;
}

static size_t put_string(uint8_t *to, size_t at, const void *data, uint64_t len)
{
    at = append_bytes(to, at, &len, sizeof(len));
    return append_bytes(to, at, data, len);
}

static size_t append_request(uint8_t *to, uint8_t op, const char *key, const void *more, size_t len)
{
    to[0] = op;
    size_t at = put_string(to, 1, key, strlen(key));
    return append_bytes(to, at, more, len);
}

static size_t say_get(uint8_t *to, const char *key)
{
    return append_request(to, 3, key, NULL, 0);
}

static size_t say_set(uint8_t *to, const char *key)
{
    uint8_t value[8 + VALUE_BYTES] = {VALUE_BYTES};
    return append_request(to, 1, key, value, sizeof(value));
}

static size_t say_add(uint8_t *to, const char *key)
{
    const int64_t one = 1;
    return append_request(to, 4, key, &one, sizeof(one));
}

static size_t say_wait(uint8_t *to, const char *key)
{
    const uint64_t one = 1;
    to[0] = 6;
    size_t at = append_bytes(to, 1, &one, sizeof(one));
    return put_string(to, at, key, strlen(key));
}

/* ---- sockets ---- */

static void send_all(const struct client *c, const uint8_t *data, size_t len)
{
    if (send(c->fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        exit_with_error("send");
}

static void set_epoll_events(struct client *c, int op, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(b.epoll, op, c->fd, &e))
        exit_with_error("epoll_ctl");
}

/* Calls `cb` for each client that is readable or connected. Returns at the deadline, too. */
static void poll_once(void (*cb)(struct client *c, double now), double end)
{
    static struct epoll_event events[1024];
    double left = end - now_s();
    int n = epoll_wait(b.epoll, events, 1024, left > 0 ? (int)(left * 1e3) + 1 : 0);
    for (int i = 0; i < n; i++)
        cb(events[i].data.ptr, end);
}

/* Receives the available bytes. Returns true if no answer is outstanding. */
static bool receive(struct client *c)
{
    static uint8_t room[1 << 16];
    ssize_t n = recv(c->fd, room, c->answers < sizeof(room) ? c->answers : sizeof(room), MSG_DONTWAIT);
    if (n <= 0 && errno != EAGAIN)
        exit_with_error("recv: the server closed a connection");
    c->answers -= n > 0 ? (size_t)n : 0;
    return !c->answers;
}

/* ---- join ---- */

static int n_joined, n_begun;

static void begin_join(struct client *c)
{
    const int one = 1;
    const struct linger reset = {1, 0};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        exit_with_error("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    if (connect(c->fd, (const struct sockaddr *)&b.server, sizeof(b.server)) && errno != EINPROGRESS)
        exit_with_error("connect");
    n_begun++;
    set_epoll_events(c, EPOLL_CTL_ADD, EPOLLOUT);
}

/* As in PyTorch's client: hello and PING together, and the ADD after their answer. */
static void continue_join(struct client *c, double end)
{
    static const uint8_t hello[] = {0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 0x01, 0x00, 0x00, 0x00};
    uint8_t add[REQUEST_BYTES];
    (void)end;
    if (!c->answers) {
        send_all(c, hello, sizeof(hello));
        c->answers = 4;
        set_epoll_events(c, EPOLL_CTL_MOD, EPOLLIN);
        return;
    }
    if (!receive(c))
        return;
    if (!c->joined) {
        c->joined = true;
        c->answers = 8;
        send_all(c, add, say_add(add, "init/"));
        return;
    }
    n_joined++;
    if (n_begun < b.n)
        begin_join(&b.clients[n_begun]);
}

static double join_all(void)
{
    double begin = now_s(), end = begin + DEADLINE_S;
    while (n_begun < b.n && n_begun < JOINS_AT_ONCE)
        begin_join(&b.clients[n_begun]);
    while (n_joined < b.n && now_s() < end)
        poll_once(continue_join, end);
    if (n_joined < b.n) {
        fprintf(stderr, "%d of %d joined\n", n_joined, b.n);
        exit(1);
    }
    return now_s() - begin;
}

/* ---- operations ---- */

static enum { GET, SET, ADD } what;
static uint64_t n_done;

/* Sends DEPTH requests; after SETs one more, which has an answer. */
static void send_requests(struct client *c)
{
    uint8_t out[MAX_DEPTH * REQUEST_BYTES];
    char key[64];
    size_t len = 0;
    snprintf(key, sizeof(key), "/default_pg/0//cpu//0/%d", (int)(c - b.clients));
    for (int i = 0; i < b.depth; i++)
        len += what == GET   ? say_get(out + len, "/a/key/that/all/read")
               : what == SET ? say_set(out + len, key)
                             : say_add(out + len, "/counter");
    if (what == SET)
        len += say_get(out + len, key);
    c->answers = what == ADD ? 8u * (size_t)b.depth : (8u + VALUE_BYTES) * (what == GET ? (size_t)b.depth : 1);
    send_all(c, out, len);
}

static void answered(struct client *c, double end)
{
    if (!receive(c))
        return;
    n_done += (uint64_t)b.depth + (what == SET);
    if (now_s() < end)
        send_requests(c);
}

static void run_operations(const char *name, double seconds)
{
    uint8_t set[REQUEST_BYTES];
    what = name[0] == 'g' ? GET : name[0] == 's' ? SET : ADD;
    send_all(&b.clients[0], set, say_set(set, "/a/key/that/all/read"));
    double cpu = server_cpu_s(), begin = now_s(), end = begin + seconds;
    for (int i = 0; i < b.n; i++)
        send_requests(&b.clients[i]);
    while (now_s() < end)
        poll_once(answered, end);
    double took = now_s() - begin;
    cpu = server_cpu_s() - cpu;
    printf("\"operations\": %llu, \"per_s\": %.0f, \"server_cpu_us\": %.3f", (unsigned long long)n_done,
           (double)n_done / took, cpu * 1e6 / (double)n_done);
}

/* ---- wake ---- */

static int n_awake;

static void waiter_done(struct client *c, double end)
{
    (void)end;
    n_awake += receive(c);
}

static double wake_once(int round)
{
    uint8_t out[REQUEST_BYTES];
    char key[64];
    snprintf(key, sizeof(key), "/wake/%d/%d", (int)getpid(), round);
    for (int i = 1; i < b.n; i++) {
        send_all(&b.clients[i], out, say_wait(out, key));
        b.clients[i].answers = 1;
    }
    usleep(300000); /* until they wait, and the server is idle */
    n_awake = 0;
    double begin = now_s(), end = begin + DEADLINE_S;
    send_all(&b.clients[0], out, say_set(out, key));
    while (n_awake < b.n - 1 && now_s() < end)
        poll_once(waiter_done, end);
    return now_s() - begin;
}

static void run_wakes(void)
{
    double best = 1e9, cpu = server_cpu_s();
    enum { ROUNDS = 5 };
    for (int i = 0; i < ROUNDS; i++) {
        double took = wake_once(i);
        best = took < best ? took : best;
    }
    printf("\"wake_ms\": %.3f, \"server_cpu_us\": %.3f", best * 1e3, (server_cpu_s() - cpu) * 1e6 / ROUNDS / (b.n - 1));
}

static void raise_limit(void)
{
    struct rlimit limit = {(rlim_t)b.n + 64, (rlim_t)b.n + 64}, now;
    if (getrlimit(RLIMIT_NOFILE, &now))
        exit_with_error("getrlimit");
    if (now.rlim_max > limit.rlim_max)
        limit.rlim_max = now.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) {
        fprintf(stderr, "the limit of descriptors is %llu, too low for %d clients (ulimit -n)\n",
                (unsigned long long)now.rlim_max, b.n);
        exit(1);
    }
}

/* ---- floor ---- */

/* Recognizes the hello with PING, ADD and GET; no other request is answered. */
static size_t floor_answer(const uint8_t *in)
{
    return in[0] == 0 ? 4 : in[0] == 4 ? 8 : in[0] == 3 ? 8 + VALUE_BYTES : 0;
}

static void floor_accept(int listener)
{
    const int one = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (epoll_ctl(b.epoll, EPOLL_CTL_ADD, fd, &e))
        exit_with_error("epoll_ctl");
}

static void floor_serve(int fd)
{
    static uint8_t in[1 << 16];
    static const uint8_t out[64];
    ssize_t n = recv(fd, in, sizeof(in), 0);
    if (n <= 0)
        close(fd);
    else if (floor_answer(in))
        send(fd, out, floor_answer(in), MSG_NOSIGNAL);
}

static int floor_main(void)
{
    static struct epoll_event events[1024];
    socklen_t len = sizeof(b.server);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    b.server = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    b.n = 10000;
    raise_limit();
    if (bind(listener, (struct sockaddr *)&b.server, len) || listen(listener, SOMAXCONN) ||
        getsockname(listener, (struct sockaddr *)&b.server, &len))
        exit_with_error("listen");
    printf("{\"port\": %d}\n", ntohs(b.server.sin_port));
    fflush(stdout);
    b.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event in = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
    struct epoll_event calls = {.events = EPOLLIN, .data.fd = listener};
    if (epoll_ctl(b.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &in) || epoll_ctl(b.epoll, EPOLL_CTL_ADD, listener, &calls))
        exit_with_error("epoll_ctl");
    for (;;) {
        int n = epoll_wait(b.epoll, events, 1024, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO)
                return 0;
            if (fd == listener)
                floor_accept(fd);
            else
                floor_serve(fd);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "floor"))
        return floor_main();
    if (argc < 5) {
        fprintf(stderr, "usage: bench_store PORT PID join|set|get|add|wake CLIENTS [SECONDS [DEPTH]]\n");
        return 2;
    }
    b.server = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    b.pid = atoi(argv[2]);
    b.n = atoi(argv[4]);
    b.depth = argc > 6 ? atoi(argv[6]) : 1;
    b.clients = calloc((size_t)b.n, sizeof(*b.clients));
    b.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (b.n < 2 || b.depth < 1 || b.depth >= MAX_DEPTH || !b.clients || b.epoll < 0)
        exit_with_error("arguments");
    raise_limit();
    double cpu = server_cpu_s(), took = join_all();
    printf("{\"case\": \"%s\", \"clients\": %d, \"depth\": %d, ", argv[3], b.n, b.depth);
    if (!strcmp(argv[3], "join"))
        printf("\"join_s\": %.4f, \"server_cpu_us\": %.3f", took, (server_cpu_s() - cpu) * 1e6 / b.n);
    else if (!strcmp(argv[3], "wake"))
        run_wakes();
    else
        run_operations(argv[3], argc > 5 ? atof(argv[5]) : 2);
    printf("}\n");
    return 0;
}
