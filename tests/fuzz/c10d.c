/* Any bytes from two clients of a c10d store. The first byte says how the rest is dealt out: bits 0 and 1, who has said
 * VALIDATE before; bits 2 and 3, whether the answers are read; the upper four and the second byte, in what pieces and
 * to whom. The connections are real; their ends are ours. */
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

static struct store_client *adopt(struct store_server *s, int *ret_peer)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        abort();
    if (store_server_adopt(s, pair[0]))
        abort();
    *ret_peer = pair[1];
    return LIST_FIRST(&s->all);
}

/* As if from its socket, which is not read either while it is held back. */
static void give(struct store_client *c, const uint8_t *data, size_t len)
{
    if (c && !c->closing && (c->events & UV_READABLE))
        store_client_feed(c, (struct byte_view){data, len});
}

static void drain(int fd)
{
    static uint8_t room[1 << 16];
    while (recv(fd, room, sizeof(room), 0) > 0)
        ;
}

static void deal(struct store_client **clients, const int *peers, const uint8_t *data, size_t size)
{
    size_t step = 1 + (data[0] >> 4) * 5u;
    unsigned order = data[1];
    for (size_t at = 2; at < size; at += step) {
        int who = (order >> (at % 8)) & 1;
        give(clients[who], data + at, size - at < step ? size - at : step);
        if (data[0] >> (2 + who) & 1)
            drain(peers[who]);
    }
}

static void count(void *arg)
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
        clients[i] = adopt(s, &peers[i]);
        if (data[0] >> i & 1)
            give(clients[i], hello, sizeof(hello));
    }
    deal(clients, peers, data, size);
    uv_run(&loop, UV_RUN_NOWAIT); /* frees clients that were closed: they are not touched from here */
    if (s->budget.used > s->budget.max || s->listener.connections < 0)
        abort();
    for (int i = 0; i < CLIENTS; i++)
        close(peers[i]);
    uv_run(&loop, UV_RUN_NOWAIT);
    store_server_close(s, count, &closed);
    uv_run(&loop, UV_RUN_DEFAULT); /* asserts that all memory has been given back */
    if (closed != 1)
        abort();
    return 0;
}
