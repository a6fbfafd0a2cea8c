/* See raw.h. */
#include "tests/common/tunnel/raw.h"

#include "common/base/clock.h"

#include <errno.h>
#include <openssl/hmac.h>
#include <openssl/x509.h>
#include <sys/socket.h>

void raw_derive(const uint8_t *secret, size_t len, const char *info, uint8_t ret[32])
{
    const uint8_t salt[32] = {0};
    uint8_t prk[32], message[64];
    unsigned n = 32;
    size_t info_len = strlen(info);
    assert_non_null(HMAC(EVP_sha256(), salt, sizeof(salt), secret, len, prk, &n));
    memcpy(message, info, info_len);
    message[info_len] = 1;
    assert_non_null(HMAC(EVP_sha256(), prk, sizeof(prk), message, info_len + 1, ret, &n));
}

static SSL_SESSION *session_of(SSL *ssl, struct raw *r)
{
    static const unsigned char suite[] = {0x13, 0x01};
    SSL_SESSION *session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(session, r->psk, sizeof(r->psk));
    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite));
    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    return session;
}

static int use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len, SSL_SESSION **ret)
{
    (void)md;
    struct raw *r = SSL_get_app_data(ssl);
    *ret = NULL;
    if (r->identity) {
        *id = (const unsigned char *)r->identity;
        *len = strlen(r->identity);
        *ret = session_of(ssl, r);
    }
    return 1;
}

static int find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **ret)
{
    (void)id, (void)len;
    struct raw *r = SSL_get_app_data(ssl);
    *ret = r->identity ? session_of(ssl, r) : NULL;
    return 1;
}

void raw_open(struct raw *r, int fd, bool server, const char *identity, const uint8_t *secret, size_t len)
{
    memset(r, 0, sizeof(*r));
    r->fd = fd;
    r->identity = identity;
    if (identity)
        raw_derive(secret, len, identity[0] == 'j' ? "dtd tunnel join" : "dtd tunnel cluster", r->psk);
    r->ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    assert_non_null(r->ctx);
    SSL_CTX_set_psk_use_session_callback(r->ctx, use);
    SSL_CTX_set_psk_find_session_callback(r->ctx, find);
    r->ssl = SSL_new(r->ctx);
    assert_non_null(r->ssl);
    r->in = BIO_new(BIO_s_mem());
    r->out = BIO_new(BIO_s_mem());
    SSL_set_bio(r->ssl, r->in, r->out);
    SSL_set_app_data(r->ssl, r);
    if (server)
        SSL_set_accept_state(r->ssl);
    else
        SSL_set_connect_state(r->ssl);
}

void raw_use_certificate(struct raw *r)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_non_null(key);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)"b", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_use_certificate(r->ssl, cert), 1);
    assert_int_equal(SSL_use_PrivateKey(r->ssl, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void raw_close(struct raw *r)
{
    SSL_free(r->ssl);
    SSL_CTX_free(r->ctx);
    buf_fini(&r->sent);
    close(r->fd);
}

void raw_step(struct raw *r)
{
    uint8_t bytes[16384];
    char *out;
    long len = BIO_get_mem_data(r->out, &out);
    if (len > 0) {
        ssize_t n = send(r->fd, out, (size_t)len, MSG_NOSIGNAL);
        if (n > 0) {
            assert_ok(buf_append(&r->sent, out, (size_t)n));
            BIO_read(r->out, bytes, (int)n);
        } else if (errno != EAGAIN && errno != ENOTCONN) {
            r->ended = true;
        }
    }
    ssize_t n = recv(r->fd, bytes, sizeof(bytes), 0);
    if (n > 0)
        BIO_write(r->in, bytes, (int)n);
    else if (n == 0 || (errno != EAGAIN && errno != ENOTCONN))
        r->ended = true;
}

bool raw_handshake(struct tunnel_net *n, struct raw *r)
{
    for (int64_t end = clock_mono_ms() + 60000; clock_mono_ms() < end;) {
        ERR_clear_error();
        int done = SSL_do_handshake(r->ssl);
        int error = SSL_get_error(r->ssl, done);
        bool ended = r->ended;
        raw_step(r);
        if (done == 1)
            return true;
        if (error != SSL_ERROR_WANT_READ || (ended && !BIO_ctrl_pending(r->in)))
            return false;
        net_pump_ms(n, 1);
    }
    fail_msg("the handshake neither succeeds nor fails");
    return false;
}

void raw_write(struct tunnel_net *n, struct raw *r, const void *data, size_t len)
{
    size_t done;
    assert_int_equal(SSL_write_ex(r->ssl, data, len, &done), 1);
    assert_int_equal(done, len);
    while (BIO_ctrl_pending(r->out) && !r->ended) {
        raw_step(r);
        net_pump_ms(n, 1);
    }
}

struct greeting raw_greeting(void)
{
    return (struct greeting){.version = 1, .purpose = TUNNEL_RPC, .name = "a"};
}

void raw_offer_identity(struct raw *r)
{
    static const unsigned char protocol[] = {5, 'd', 't', 'd', '/', '2'};
    assert_int_equal(SSL_set_alpn_protos(r->ssl, protocol, sizeof(protocol)), 0);
}

/* docs/formats/wire.md, "Between nodes": the text, its zero byte, and 32 bytes of the exporter. */
void raw_sign(struct raw *r, const struct identity *own, char role, struct greeting *g)
{
    static const char text[] = "dtd tunnel identity", label[] = "EXPORTER-dtd-identity";
    uint8_t input[sizeof(text) + 32], context[1] = {(uint8_t)role};
    size_t n = IDENTITY_PROOF_BYTES;
    memcpy(input, text, sizeof(text));
    assert_int_equal(SSL_export_keying_material(r->ssl, input + sizeof(text), 32, label, strlen(label), context, 1, 1),
                     1);
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, own->private_key, IDENTITY_BYTES);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    assert_int_equal(EVP_DigestSignInit(ctx, NULL, NULL, NULL, key), 1);
    assert_int_equal(EVP_DigestSign(ctx, g->proof, &n, input, sizeof(input)), 1);
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    g->version = 2;
    memcpy(g->public_key, own->public_key, IDENTITY_BYTES);
}

void raw_greet(struct tunnel_net *n, struct raw *r, const struct greeting *g)
{
    uint8_t bytes[GREETING_MAX_BYTES];
    raw_write(n, r, bytes, greeting_encode(g, bytes));
}

size_t raw_read(struct tunnel_net *n, struct raw *r, void *data, size_t size, size_t least)
{
    size_t total = 0, got;
    for (int64_t end = clock_mono_ms() + 60000; total < least && clock_mono_ms() < end;) {
        ERR_clear_error();
        if (SSL_read_ex(r->ssl, (char *)data + total, size - total, &got)) {
            total += got;
            continue;
        }
        int error = SSL_get_error(r->ssl, 0);
        if (error != SSL_ERROR_WANT_READ || (r->ended && !BIO_ctrl_pending(r->in)))
            break;
        raw_step(r);
        net_pump_ms(n, 1);
    }
    return total;
}
