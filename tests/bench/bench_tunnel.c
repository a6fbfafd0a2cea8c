/* bench_tunnel: compares a tunnel with a plain TCP connection on loopback, in turns within one run, and prints one JSON
 * line. Each side has two processes, like two daemons: one sends requests, the other answers. The processes of the
 * tunnel run their loops with the owner in a thread of its own, which reads and writes its descriptor. All values are
 * medians of the turns.
 *
 * mb_per_s   64 MiB one way, until the other side has acknowledged all of it
 * round_trips_per_s   64 bytes there and back, one at a time
 * idle_bytes   resident memory per tunnel of one process, for 200 more idle tunnels */
#include "common/tunnel/tunnel.h"
#include "tests/bench/median.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TURNS 7
#define BULK ((size_t)64 << 20)
#define PIECE 65536
#define ASKS 3000
#define ASK_BYTES 64
#define IDLE 200

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void exit_with_error(const char *what)
{
    fprintf(stderr, "bench_tunnel: %s\n", what);
    exit(1);
}

/* ---- the owner: blocking reads and writes of any descriptor ---- */

static void set_blocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

static bool read_all(int fd, void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, (char *)data + at, len - at);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static void write_all(int fd, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const char *)data + at, len - at);
        if (n <= 0)
            exit_with_error("write failed");
        at += (size_t)n;
    }
}

/* Answers each request: 'b' and BULK bytes with one byte, 'a' and ASK_BYTES with the same bytes. */
static void *answer_requests(void *arg)
{
    static _Thread_local char bytes[PIECE];
    int fd = *(int *)arg;
    char kind;
    free(arg);
    set_blocking(fd);
    while (read_all(fd, &kind, 1)) {
        size_t left = kind == 'b' ? BULK : ASK_BYTES - 1;
        for (size_t n; left; left -= n) {
            n = left < PIECE ? left : PIECE;
            if (!read_all(fd, bytes, n))
                return NULL;
        }
        write_all(fd, bytes, kind == 'b' ? 1 : ASK_BYTES);
    }
    close(fd);
    return NULL;
}

static void serve_in_thread(int fd)
{
    pthread_t thread;
    int *arg = malloc(sizeof(*arg));
    if (!arg)
        exit_with_error("out of memory");
    *arg = fd;
    if (pthread_create(&thread, NULL, answer_requests, arg))
        exit_with_error("cannot create a thread");
    pthread_detach(thread);
}

static double bulk_mb_per_s(int fd)
{
    static char bytes[PIECE];
    char done;
    double start_server = now_s();
    write_all(fd, "b", 1);
    for (size_t at = 0; at < BULK; at += PIECE)
        write_all(fd, bytes, PIECE);
    if (!read_all(fd, &done, 1))
        exit_with_error("the other side closed the connection");
    return (double)BULK * 1e-6 / (now_s() - start_server);
}

static double round_trips_per_s(int fd)
{
    char bytes[ASK_BYTES] = "a";
    double start_server = now_s();
    for (int i = 0; i < ASKS; i++) {
        bytes[0] = 'a';
        write_all(fd, bytes, ASK_BYTES);
        if (!read_all(fd, bytes, ASK_BYTES))
            exit_with_error("the other side closed the connection");
    }
    return ASKS / (now_s() - start_server);
}

/* ---- tunnels ---- */

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    (void)owner, (void)id;
    memset(ret->bytes, 1, TUNNEL_SECRET_MAX);
    ret->len = TUNNEL_SECRET_MAX;
    return OK;
}

static struct tunnel_host *open_host(uv_loop_t *loop, const char *name)
{
    static struct identity identity; /* of this process: each end has its own */
    struct tunnel_host *host = NULL;
    const struct tunnel_host_config config = {
        .loop = loop, .name = name, .keys = {NULL, find_key}, .identity = {.own = &identity}};
    if (identity_make(&identity, NULL) || uv_loop_init(loop) || tunnel_host_open(&config, &host, NULL))
        exit_with_error("cannot open the tunnel host");
    return host;
}

static void accepted(void *owner, const struct tunnel_peer *peer, int fd)
{
    (void)owner;
    if (peer->purpose == TUNNEL_RPC)
        serve_in_thread(fd); /* the other tunnels stay open and idle */
}

static void be_tunnel_server(int fd)
{
    uv_loop_t loop;
    struct tunnel_listener *listener;
    struct tunnel_host *host = open_host(&loop, "b");
    if (tunnel_listen(host, fd, accepted, NULL, &listener))
        exit_with_error("cannot listen");
    uv_run(&loop, UV_RUN_DEFAULT);
}

static void be_plain_server(int fd)
{
    set_blocking(fd);
    for (;;) {
        int one = 1, peer = accept(fd, NULL, NULL);
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        serve_in_thread(peer);
    }
}

static pid_t start_server(void (*be)(int fd), int *ret_port)
{
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    int fd;
    if (tunnel_bind("127.0.0.1:0", &fd, NULL) || getsockname(fd, (struct sockaddr *)&at, &len))
        exit_with_error("the server printed no port");
    *ret_port = ntohs(at.sin_port);
    pid_t pid = fork();
    if (pid < 0)
        exit_with_error("cannot fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be(fd);
        _exit(0);
    }
    close(fd);
    return pid;
}

static int connect_plain(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
        exit_with_error("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static int connected_fd;

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    (void)owner, (void)peer;
    if (err)
        exit_with_error(why);
    connected_fd = fd;
}

static int connect_tunnel(uv_loop_t *loop, struct tunnel_host *host, int port, enum tunnel_purpose purpose)
{
    struct tunnel_request *request;
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    const struct tunnel_connect_config config = {
        .address = address, .key = {TUNNEL_KEY_CLUSTER, 1}, .expected = "b", .purpose = purpose};
    connected_fd = -1;
    if (tunnel_connect(host, &config, connected, NULL, &request, NULL))
        exit_with_error("cannot connect");
    while (connected_fd < 0)
        uv_run(loop, UV_RUN_ONCE);
    return connected_fd;
}

static void *run_loop(void *arg)
{
    uv_run(arg, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- measurements ---- */

static long resident_bytes(pid_t pid)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

int main(void)
{
    double bulk[2][TURNS], asks[2][TURNS];
    int plain_port, tunnel_port, fds[2];
    uv_loop_t loop;
    pthread_t thread;
    signal(SIGPIPE, SIG_IGN);
    start_server(be_plain_server, &plain_port);
    pid_t server = start_server(be_tunnel_server, &tunnel_port);
    struct tunnel_host *host = open_host(&loop, "a");
    fds[0] = connect_plain(plain_port);
    fds[1] = connect_tunnel(&loop, host, tunnel_port, TUNNEL_RPC);
    long before = resident_bytes(server);
    double handshake = now_s();
    for (int i = 0; i < IDLE; i++)
        connect_tunnel(&loop, host, tunnel_port, TUNNEL_STORE);
    handshake = (now_s() - handshake) / IDLE;
    long idle = (resident_bytes(server) - before) / IDLE;
    set_blocking(fds[1]);
    if (pthread_create(&thread, NULL, run_loop, &loop))
        exit_with_error("cannot create a thread");
    for (int i = 0; i < TURNS; i++) {
        for (int k = 0; k < 2; k++) {
            bulk[k][i] = bulk_mb_per_s(fds[k]);
            asks[k][i] = round_trips_per_s(fds[k]);
        }
    }
    printf("{\"bench\": \"tunnel\", \"cores\": %ld, \"mb_per_s\": %.0f, \"tcp_mb_per_s\": %.0f, \"round_trips_per_s\": "
           "%.0f, "
           "\"tcp_round_trips_per_s\": %.0f, \"connect_ms\": %.2f, \"idle_bytes\": %ld}\n",
           sysconf(_SC_NPROCESSORS_ONLN), median_of_all(bulk[1], TURNS), median_of_all(bulk[0], TURNS),
           median_of_all(asks[1], TURNS), median_of_all(asks[0], TURNS), handshake * 1e3, idle);
    fflush(stdout);
    _exit(0); /* the servers end with this process, because of PR_SET_PDEATHSIG */
}
