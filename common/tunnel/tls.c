/* TLS for tunnels: version 1.3, one cipher suite, one group. An external PSK is the only means of authentication for
 * both sides. Certificates (a peer that sends one is refused), tickets, early data and renegotiation are switched off,
 * so that unused features cannot be attacked.
 *
 * A secret is not used in TLS directly: both sides derive a PSK from it by HKDF, with a label for this use. An unknown
 * identity gets a random PSK, so that a peer cannot distinguish it from a wrong key. */
#include "common/tunnel/internal.h"

#include <inttypes.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

static const unsigned char suite_id[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
static const unsigned char protocol[] = {5, 'd', 't', 'd', '/', '2'};

/* ---- identities ---- */

void psk_identity_print(struct tunnel_key_id key, const char *name, char ret[PSK_IDENTITY_MAX + 1])
{
    if (key.kind == TUNNEL_KEY_CLUSTER)
        snprintf(ret, PSK_IDENTITY_MAX + 1, "k%" PRIu32 ":%s", (uint32_t)key.number, name);
    else
        snprintf(ret, PSK_IDENTITY_MAX + 1, "join:%016" PRIx64, key.number);
}

void key_id_print(struct tunnel_key_id key, char *ret, size_t size)
{
    if (key.kind == TUNNEL_KEY_CLUSTER)
        snprintf(ret, size, "k%" PRIu64, key.number);
    else
        snprintf(ret, size, "join:%016" PRIx64, key.number);
}

static bool parse_join(const char *text, size_t len, struct tunnel_key_id *ret)
{
    uint64_t id = 0;
    if (len != 5 + 16 || memcmp(text, "join:", 5) != 0)
        return false;
    for (size_t i = 5; i < len; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        id = id << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *ret = (struct tunnel_key_id){TUNNEL_KEY_JOIN, id};
    return true;
}

static bool parse_cluster(const char *text, size_t len, struct tunnel_key_id *ret_key, char *ret_name)
{
    uint64_t version = 0;
    size_t at = 1;
    if (len < 4 || text[0] != 'k' || text[1] < '1' || text[1] > '9')
        return false;
    for (; at < len && at <= 10 && text[at] >= '0' && text[at] <= '9'; at++)
        version = version * 10 + (uint64_t)(text[at] - '0');
    if (at == len || text[at] != ':' || version > UINT32_MAX || !node_name_valid(text + at + 1, len - at - 1))
        return false;
    memcpy(ret_name, text + at + 1, len - at - 1);
    ret_name[len - at - 1] = '\0';
    *ret_key = (struct tunnel_key_id){TUNNEL_KEY_CLUSTER, version};
    return true;
}

bool psk_identity_parse(const uint8_t *data, size_t len, struct tunnel_key_id *ret_key,
                        char ret_name[TUNNEL_NAME_MAX + 1])
{
    ret_name[0] = '\0';
    if (!len || len > PSK_IDENTITY_MAX)
        return false;
    return data[0] == 'j' ? parse_join((const char *)data, len, ret_key)
                          : parse_cluster((const char *)data, len, ret_key, ret_name);
}

/* ---- the PSK ---- */

static bool derive(const struct tunnel_secret *secret, enum tunnel_key_kind kind, uint8_t ret[PSK_BYTES])
{
    const char *info = kind == TUNNEL_KEY_CLUSTER ? "dtd tunnel cluster" : "dtd tunnel join";
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret->bytes, secret->len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info, strlen(info)),
        OSSL_PARAM_construct_end(),
    };
    bool ok = ctx && EVP_KDF_derive(ctx, ret, PSK_BYTES, params) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return ok;
}

/* False: the key does not exist or cannot be used. */
static bool psk_of(struct tunnel *t, struct tunnel_key_id key, uint8_t ret[PSK_BYTES])
{
    struct tunnel_secret secret = {.len = 0};
    const struct tunnel_keys *keys = &t->host->config.keys;
    bool ok = keys->find(keys->owner, key, &secret) == OK && secret.len && secret.len <= TUNNEL_SECRET_MAX &&
              derive(&secret, key.kind, ret);
    OPENSSL_cleanse(&secret, sizeof(secret));
    return ok;
}

static SSL_SESSION *session_with(SSL *ssl, const uint8_t psk[PSK_BYTES])
{
    const SSL_CIPHER *suite = SSL_CIPHER_find(ssl, suite_id);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && suite && SSL_SESSION_set1_master_key(session, psk, PSK_BYTES) &&
        SSL_SESSION_set_cipher(session, suite) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* Accepting side: the peer has offered an identity. dtd offers one per connection; a peer with more is refused. */
static int find_session(SSL *ssl, const unsigned char *identity, size_t len, SSL_SESSION **ret)
{
    struct tunnel *t = SSL_get_app_data(ssl);
    uint8_t psk[PSK_BYTES];
    *ret = NULL;
    if (t->psk_asked++) {
        t->refusal = "it offers more than one identity";
        return 1;
    }
    if (!psk_identity_parse(identity, len, &t->peer.key, t->peer.name))
        t->refusal = "its identity is not an identity of dtd";
    else if (!psk_of(t, t->peer.key, psk))
        t->refusal = "this node does not have its key, or not any more";
    if (t->refusal && RAND_bytes(psk, sizeof(psk)) != 1)
        return 0;
    *ret = session_with(ssl, psk);
    OPENSSL_cleanse(psk, sizeof(psk));
    return *ret != NULL;
}

/* Connecting side: chooses the key. */
static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_len, SSL_SESSION **ret)
{
    (void)md; /* not NULL after a HelloRetryRequest; it can only be the hash of the one suite */
    struct tunnel *t = SSL_get_app_data(ssl);
    uint8_t psk[PSK_BYTES];
    *ret = NULL;
    if (!psk_of(t, t->peer.key, psk)) {
        t->refusal = "this node does not have this key, or not any more";
        return 0;
    }
    *ret = session_with(ssl, psk);
    OPENSSL_cleanse(psk, sizeof(psk));
    *ret_id = (const unsigned char *)t->identity;
    *ret_len = strlen(t->identity);
    return *ret != NULL;
}

/* ---- the greeting's version ---- */

/* Accepting side. A version before identities offers no protocol, and does not get here. */
static int choose_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_len, const unsigned char *offered,
                           unsigned int len, void *arg)
{
    const struct tunnel *t = SSL_get_app_data(ssl);
    unsigned char *found;
    (void)arg;
    if (!t->host->config.identity.own ||
        SSL_select_next_proto(&found, ret_len, protocol, sizeof(protocol), offered, len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *ret = found;
    return SSL_TLSEXT_ERR_OK;
}

uint8_t tls_greeting_version(const struct tunnel *t)
{
    const unsigned char *name;
    unsigned len;
    SSL_get0_alpn_selected(t->ssl, &name, &len);
    return len == sizeof(protocol) - 1 && memcmp(name, protocol + 1, len) == 0 ? 2 : 1;
}

err_t tls_proof_input(const struct tunnel *t, enum tunnel_role signer, uint8_t ret[TLS_PROOF_INPUT])
{
    static const char label[] = "EXPORTER-dtd-identity";
    const uint8_t context[] = {signer == ROLE_ACCEPT ? 'a' : 'c'};
    memcpy(ret, GREETING_PROVES, sizeof(GREETING_PROVES));
    bool ok = SSL_export_keying_material(t->ssl, ret + sizeof(GREETING_PROVES), 32, label, strlen(label), context,
                                         sizeof(context), 1) == 1;
    return ok ? OK : ERR_INTERNAL;
}

/* ---- contexts ---- */

static SSL_CTX *context(const SSL_METHOD *method)
{
    SSL_CTX *ctx = SSL_CTX_new(method);
    if (!ctx)
        return NULL;
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_max_early_data(ctx, 0);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) && SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
        SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") && SSL_CTX_set1_groups_list(ctx, "X25519"))
        return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

err_t tls_contexts_make(struct tunnel_host *host, struct why *why)
{
    host->accept_ctx = context(TLS_server_method());
    host->connect_ctx = context(TLS_client_method());
    if (!host->accept_ctx || !host->connect_ctx) {
        int alert;
        why_set(why, ERR_UNSUPPORTED, "OpenSSL does not support TLS 1.3 with AES-128-GCM and X25519: %s",
                tls_reason(&alert));
        tls_contexts_free(host);
        return ERR_UNSUPPORTED;
    }
    SSL_CTX_set_psk_find_session_callback(host->accept_ctx, find_session);
    SSL_CTX_set_psk_use_session_callback(host->connect_ctx, use_session);
    SSL_CTX_set_alpn_select_cb(host->accept_ctx, choose_protocol, NULL);
    if (host->config.identity.own && SSL_CTX_set_alpn_protos(host->connect_ctx, protocol, sizeof(protocol))) {
        tls_contexts_free(host);
        return why_set(why, ERR_NOMEM, "out of memory");
    }
    SSL_CTX_set_verify(host->connect_ctx, SSL_VERIFY_PEER, NULL); /* without trusted CAs: refuses every certificate */
    return OK;
}

void tls_contexts_free(struct tunnel_host *host)
{
    SSL_CTX_free(host->accept_ctx);
    SSL_CTX_free(host->connect_ctx);
}

/* ---- per tunnel ---- */

err_t tls_start(struct tunnel *t)
{
    BIO *inside;
    t->ssl = SSL_new(t->role == ROLE_ACCEPT ? t->host->accept_ctx : t->host->connect_ctx);
    if (!t->ssl)
        return ERR_NOMEM;
    if (!BIO_new_bio_pair(&inside, WIRE_BYTES, &t->wire, WIRE_BYTES)) {
        SSL_free(t->ssl);
        t->ssl = NULL;
        return ERR_NOMEM;
    }
    SSL_set_bio(t->ssl, inside, inside);
    SSL_set_app_data(t->ssl, t);
    if (t->role == ROLE_ACCEPT)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    return OK;
}

void tls_end(struct tunnel *t)
{
    SSL_free(t->ssl);
    BIO_free(t->wire);
}

const char *tls_reason(int *ret_alert)
{
    unsigned long code = ERR_get_error();
    int reason = ERR_GET_REASON(code);
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    *ret_alert = code && ERR_GET_LIB(code) == ERR_LIB_SSL && reason >= 1000 ? reason - 1000 : -1;
    ERR_clear_error();
    return text ? text : "OpenSSL reports no reason";
}
