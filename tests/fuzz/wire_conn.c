/* The messages of an authenticated connection: whatever they contain, the wire accepts them or fails, and writes only
 * to the buffer of a posted receive. The bytes arrive through TLS over a socket pair, as in production. */
#include "worker/comm/wire/stream/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const int nodes[] = {0, 1};

/* Sets up both ends directly, without a listener or a store. */
static void make_end(struct stream_wire *s, int rank, int fd, struct stream_handshake *h, struct stream_connection *c)
{
    static const uint8_t secret[32] = "a secret";
    const struct wire_config config = {
        .rank = rank, .world = 2, .epoch = 1, .secret = secret, .secret_bytes = sizeof(secret)};
    *s = (struct stream_wire){.rank = rank, .world = 2, .node = rank, .epoch = 1, .rekey = STREAM_REKEY};
    s->node_of = (int *)nodes;
    s->conns = calloc(2 * WIRE_LANES, sizeof(struct stream_connection *));
    if (!s->conns || stream_tls_init(s, &config, NULL))
        abort();
    *h = (struct stream_handshake){.fd = fd, .incoming = rank == 0, .rank = 1 - rank};
    *c = (struct stream_connection){.rank = 1 - rank, .fd = fd, .readable = true, .writable = true};
    c->out_end = &c->out;
    c->in_end = &c->in;
    c->ssl = stream_tls_new(s, h);
    if (!c->ssl)
        abort();
}

static void drop_end(struct stream_wire *s, struct stream_connection *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(s->ctx);
    close(c->fd);
    free(s->conns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream_wire s[2];
    struct stream_handshake h[2];
    struct stream_connection c[2];
    uint8_t buffer[2][64];
    struct wire_op ops[2] = {{.buffer = buffer[0], .bytes = 20}, {.buffer = buffer[1], .bytes = 0}};
    int fds[2];
    size_t n;
    bool moved = true;
    if (size == 0 || size > 4096 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds))
        return 0;
    for (int r = 0; r < 2; r++)
        make_end(&s[r], r, fds[r], &h[r], &c[r]);
    for (int turn = 0; turn < 10; turn++)
        for (int r = 1; r >= 0; r--)
            (void)SSL_do_handshake(c[r].ssl); /* the next check fails if it has not finished */
    if (!SSL_is_init_finished(c[0].ssl) || !SSL_is_init_finished(c[1].ssl))
        abort();
    if (SSL_write_ex(c[1].ssl, data, size, &n) != 1 || n != size)
        abort();
    memset(buffer, 0x5a, sizeof(buffer));
    conn_queue(&c[0].in_end, &ops[0]);
    conn_queue(&c[0].in_end, &ops[1]);
    while (moved && !s[0].base.dead) {
        moved = false;
        (void)conn_move(&s[0], &c[0], &moved); /* an error is in s.base.dead */
    }
    assert(buffer[0][20] == 0x5a && buffer[1][0] == 0x5a);
    assert(!ops[0].done || memcmp(buffer[0], data + WIRE_HEADER_BYTES, 20) == 0);
    for (int r = 0; r < 2; r++)
        drop_end(&s[r], &c[r]);
    return 0;
}
