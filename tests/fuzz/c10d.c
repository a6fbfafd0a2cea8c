/* Any bytes from two clients of a c10d store. The first two bytes control how the others are delivered. Bits 0 and 1:
 * which client has sent VALIDATE before; bits 2 and 3: whether its answers are read; the upper four bits: the size of
 * the pieces; the second byte: which client sends each piece. The connections are real, and the test has their other
 * ends. */
#include "common/base/log.h"
#include "daemon/store/server_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CLIENTS 2

static uv_loop_t loop;

static void setup(void)
{
    if (loop.data)
        return;
    setenv("DTD_LOG", "error", 1);
    log_init("fuzz");
    uv_loop_init(&loop);
    loop.data = &loop;
}

static struct store_client *add_client(struct store_server *s, int *ret_peer)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        abort();
    if (store_server_adopt(s, pair[0]))
        abort();
    *ret_peer = pair[1];
    return LIST_FIRST(&s->all);
}

/* Delivers the bytes as if they came from the client's socket. A client that is held back gets none, because its socket
 * is not read either. */
static void deliver(struct store_client *c, const uint8_t *data, size_t len)
{
    if (c && !c->closing && (c->events & UV_READABLE))
        store_client_feed(c, (struct byte_view){data, len});
}

static void read_answers(int fd)
{
    static uint8_t room[1 << 16];
    while (recv(fd, room, sizeof(room), 0) > 0)
        ;
}

static void deliver_all(struct store_client **clients, const int *peers, const uint8_t *data, size_t size)
{
    size_t step = 1 + (data[0] >> 4) * 5u;
    unsigned order = data[1];
    for (size_t at = 2; at < size; at += step) {
        int who = (order >> (at % 8)) & 1;
        deliver(clients[who], data + at, size - at < step ? size - at : step);
        if (data[0] >> (2 + who) & 1)
            read_answers(peers[who]);
    }
}

static void increment(void *arg)
{
    ++*(int *)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t hello[] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    const struct store_server_config config = {.name = "fuzz", .uid = getuid(), .max_bytes = 4u << 20};
    struct store_server *s;
    struct store_client *clients[CLIENTS];
    struct why why;
    int peers[CLIENTS], closed = 0;
    setup();
    if (size < 2)
        return 0;
    if (store_server_open(&loop, &config, &s, &why))
        abort();
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = add_client(s, &peers[i]);
        if (data[0] >> i & 1)
            deliver(clients[i], hello, sizeof(hello));
    }
    deliver_all(clients, peers, data, size);
    uv_run(&loop, UV_RUN_NOWAIT); /* frees clients that were closed; they are not used below */
    if (s->budget.used > s->budget.max || s->listener.connections < 0)
        abort();
    for (int i = 0; i < CLIENTS; i++)
        close(peers[i]);
    uv_run(&loop, UV_RUN_NOWAIT);
    store_server_close(s, increment, &closed);
    uv_run(&loop, UV_RUN_DEFAULT); /* asserts that all memory has been freed */
    if (closed != 1)
        abort();
    return 0;
}
