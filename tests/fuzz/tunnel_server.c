/* Any bytes to a listener. With an even first byte they arrive before authentication, in pieces of the size in the
 * second byte, and must never open a tunnel. With an odd first byte an authentic client performs the handshake first,
 * and the bytes are its greeting and the data after it; with bit 1 set it negotiates identities, and no tunnel opens,
 * because the bytes have no valid signature. The second case uses fresh keys, so one input need not take the same path
 * twice. */
#include "common/base/log.h"
#include "common/tunnel/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uv_loop_t loop;
static struct tunnel_host *server, *client;
static struct tunnel_listener *listener;
static int accepted;

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    (void)owner;
    if (id.number != 1)
        return ERR_NOTFOUND;
    memset(ret->bytes, 7, TUNNEL_SECRET_MAX);
    ret->len = TUNNEL_SECRET_MAX;
    return OK;
}

static void on_accept(void *owner, const struct tunnel_peer *peer, int fd)
{
    (void)owner;
    if (!node_name_valid(peer->name, strlen(peer->name)) || peer->purpose < TUNNEL_RPC ||
        peer->purpose > TUNNEL_STORE || !greeting_argument_valid(peer->argument, strlen(peer->argument)))
        abort();
    accepted++;
    close(fd);
}

static void setup(void)
{
    static const struct tunnel_keys keys = {NULL, find_key};
    int fd;
    if (server)
        return;
    static struct identity own;
    setenv("DTD_LOG", "error", 1);
    log_init("fuzz");
    uv_loop_init(&loop);
    const struct tunnel_host_config b = {.loop = &loop, .name = "b", .keys = keys, .identity = {.own = &own}},
                                    a = {.loop = &loop, .name = "a", .keys = keys};
    if (identity_make(&own, NULL) || tunnel_host_open(&b, &server, NULL) || tunnel_host_open(&a, &client, NULL) ||
        tunnel_bind("127.0.0.1:0", &fd, NULL) || tunnel_listen(server, fd, on_accept, NULL, &listener))
        abort();
}

static void run_loop(int times)
{
    for (int i = 0; i < times; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

static void feed_pieces(struct tunnel *t, const uint8_t *data, size_t size, size_t step)
{
    step = step ? step : size;
    for (size_t at = 0; at < size && t->state < T_OPEN; at += step)
        tunnel_feed(t, data + at, size - at < step ? size - at : step);
}

/* Exchanges the bytes between the client's BIOs and the server until neither has more to send. */
static void exchange_bytes(SSL *ssl, BIO *out, BIO *in, struct tunnel *t, int peer_fd)
{
    uint8_t bytes[4096];
    for (int i = 0; i < 4 && t->state < T_OPEN; i++) {
        int n = BIO_read(out, bytes, sizeof(bytes));
        if (n > 0)
            tunnel_feed(t, bytes, (size_t)n);
        ssize_t m = recv(peer_fd, bytes, sizeof(bytes), 0);
        if (m > 0)
            BIO_write(in, bytes, (int)m);
        SSL_do_handshake(ssl);
    }
}

/* The PSK callback needs a tunnel of the client, `key`, whose own socket is not used. */
static void feed_greeting(struct tunnel *t, int peer_fd, bool has_identity, const uint8_t *data, size_t size)
{
    static const unsigned char protocol[] = {5, 'd', 't', 'd', '/', '2'};
    struct tunnel key = {.host = client, .peer.key = {TUNNEL_KEY_CLUSTER, 1}};
    SSL *ssl = SSL_new(client->connect_ctx);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    uint8_t bytes[20000];
    size_t done;
    strcpy(key.identity, "k1:a");
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    SSL_set_app_data(ssl, &key);
    if (has_identity)
        SSL_set_alpn_protos(ssl, protocol, sizeof(protocol));
    SSL_do_handshake(ssl);
    exchange_bytes(ssl, out, in, t, peer_fd);
    if (!SSL_is_init_finished(ssl))
        abort();
    if (size && size <= 4000 && SSL_write_ex(ssl, data, size, &done)) {
        int n = BIO_read(out, bytes, sizeof(bytes));
        if (n > 0)
            tunnel_feed(t, bytes, (size_t)n);
    }
    SSL_free(ssl);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sockaddr_storage from = {.ss_family = AF_UNIX};
    int fds[2];
    setup();
    if (size < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
        return 0;
    accepted = 0;
    struct tunnel *t = listener_take(listener, fds[0], &from);
    if (!t)
        abort();
    if (data[0] & 1)
        feed_greeting(t, fds[1], data[0] & 2, data + 2, size - 2);
    else
        feed_pieces(t, data + 2, size - 2, data[1]);
    if (accepted > ((data[0] & 3) == 1))
        abort();
    close(fds[1]);
    run_loop(3);
    if (server->all) /* the tunnel waits for more bytes or lingers */
        tunnel_cut(TAILQ_FIRST(&server->tunnels));
    run_loop(2);
    if (server->all || server->stats.pending || server->stats.tunnels)
        abort();
    return 0;
}
