/* Keys and TLS. OpenSSL accesses the socket through a BIO of ours, because its own socket BIO writes without
 * MSG_NOSIGNAL: writing to a peer that has exited must not raise SIGPIPE. */
#include "worker/comm/wire/stream/internal.h"

#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define READ_AHEAD ((size_t)128 << 10) /* one system call reads several records of 16 KiB */

/* ---- the BIO ---- */

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static int socket_write(BIO *b, const char *data, int bytes)
{
    BIO_clear_retry_flags(b);
    ssize_t n = send((int)(intptr_t)BIO_get_data(b), data, (size_t)bytes, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(b);
    return (int)n;
}

static int socket_read(BIO *b, char *data, int bytes)
{
    BIO_clear_retry_flags(b);
    ssize_t n = recv((int)(intptr_t)BIO_get_data(b), data, (size_t)bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(b);
    return (int)n;
}

static long socket_control(BIO *b, int what, long number, void *pointer)
{
    (void)b;
    (void)number;
    (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static void make_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dtd socket");
    if (m && BIO_meth_set_write(m, socket_write) && BIO_meth_set_read(m, socket_read) &&
        BIO_meth_set_ctrl(m, socket_control))
        method = m;
}

SSL *stream_tls_new(struct stream_wire *s, struct stream_handshake *h)
{
    SSL *ssl = SSL_new(s->ctx);
    BIO *bio = method ? BIO_new(method) : NULL;
    if (!ssl || !bio) {
        SSL_free(ssl);
        BIO_free(bio);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)h->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_app_data(ssl, h);
    if (h->incoming)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    return ssl;
}

/* ---- the key ---- */

static SSL_SESSION *session_of_key(SSL *ssl, const struct stream_wire *s)
{
    static const unsigned char aes_128_gcm[2] = {0x13, 0x01};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, s->key, sizeof(s->key)) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static struct stream_wire *stream_of(SSL *ssl)
{
    return SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
}

/* Callback of an outgoing connection: sets the identity (sender and purpose of the connection) and the key. */
static int select_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_bytes, SSL_SESSION **session)
{
    static _Thread_local char text[WIRE_IDENTITY_MAX];
    const struct stream_wire *s = stream_of(ssl);
    const struct stream_handshake *h = SSL_get_app_data(ssl);
    const struct wire_identity me = {s->epoch, s->rank, h->rank, h->lane, s->world};
    (void)md;
    *id_bytes = wire_identity_print(&me, text);
    *id = (const unsigned char *)text;
    *session = session_of_key(ssl, s);
    return *session != NULL;
}

static const char *identity_error(const struct stream_wire *s, const struct wire_identity *id)
{
    if (id->epoch != s->epoch)
        return "it belongs to another epoch";
    if (id->world != s->world || id->to != s->rank)
        return "it is for another rank or another number of ranks";
    if (id->from <= s->rank || id->from >= s->world || !stream_is_remote(s, id->from))
        return "its rank must not connect to this rank";
    if (id->lane < 0 || id->lane >= WIRE_LANES)
        return "its lane does not exist";
    return stream_conn(s, id->from, id->lane) ? "this rank is connected already" : NULL;
}

/* Callback of an incoming connection: checks the identity before the peer has to prove the key. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session)
{
    const struct stream_wire *s = stream_of(ssl);
    struct stream_handshake *h = SSL_get_app_data(ssl);
    const char *wrong =
        wire_identity_parse(identity, bytes, &h->id) ? "its identity is malformed" : identity_error(s, &h->id);
    *session = NULL;
    if (wrong) {
        snprintf(h->wrong, sizeof(h->wrong), "%s", wrong);
        return 1; /* without a session the handshake fails */
    }
    h->known = true;
    *session = session_of_key(ssl, s);
    return 1;
}

/* ---- the context ---- */

err_t stream_tls_init(struct stream_wire *s, const struct wire_config *config, struct why *why)
{
    pthread_once(&method_once, make_method);
    s->ctx = SSL_CTX_new(TLS_method());
    if (!s->ctx || !method)
        return why_set(why, ERR_NOMEM, "cannot set up TLS between the workers' nodes");
    err_t err = wire_key(config, s->key, why);
    if (err)
        return err;
    SSL_CTX_set_app_data(s->ctx, s);
    if (!SSL_CTX_set_min_proto_version(s->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(s->ctx, "TLS_AES_128_GCM_SHA256"))
        return why_set(why, ERR_UNSUPPORTED, "this OpenSSL has no TLS 1.3 with AES-128-GCM");
    SSL_CTX_set_num_tickets(s->ctx, 0);
    SSL_CTX_clear_options(s->ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_mode(s->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_read_ahead(s->ctx, 1);
    SSL_CTX_set_default_read_buffer_len(s->ctx, READ_AHEAD);
    SSL_CTX_set_psk_use_session_callback(s->ctx, select_key);
    SSL_CTX_set_psk_find_session_callback(s->ctx, find_key);
    return OK;
}

const char *stream_tls_error(char *ret, size_t room)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    snprintf(ret, room, "%s", reason ? reason : errno ? strerror(errno) : "the connection was closed");
    ERR_clear_error();
    return ret;
}
