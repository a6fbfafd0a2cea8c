/* See token.h. The encoding is unique in both directions: unused bits must be zero. */
#include "common/tunnel/token.h"

#include "common/tunnel/address.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#define SUM_BYTES 4
#define ID_BYTES 8
#define HEAD_BYTES (ID_BYTES + TOKEN_SECRET_BYTES + 1)

static const char prefix[] = "dtd1.";
#define PREFIX_LEN (sizeof(prefix) - 1)

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- base64url ---- */

static size_t to_text(const uint8_t *data, size_t len, char *ret)
{
    size_t n = 0;
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < len; i++) {
        bits = bits << 8 | data[i];
        for (held += 8; held >= 6; held -= 6)
            ret[n++] = letters[bits >> (held - 6) & 63];
    }
    if (held)
        ret[n++] = letters[bits << (6 - held) & 63];
    ret[n] = '\0';
    return n;
}

/* `ret` has room for len * 3 / 4 bytes. */
static err_t to_bytes(const char *text, size_t len, uint8_t *ret, size_t *ret_len, struct why *why)
{
    size_t n = 0;
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] ? strchr(letters, text[i]) : NULL;
        if (!at)
            return why_set(why, ERR_INVALID,
                           "the join token has an invalid character at position %zu: copy the whole token again",
                           i + PREFIX_LEN + 1);
        bits = bits << 6 | (uint32_t)(at - letters);
        held += 6;
        if (held >= 8) {
            held -= 8;
            ret[n++] = (uint8_t)(bits >> held);
        }
    }
    if (held >= 6 || (bits & ((1u << held) - 1)))
        return why_set(why, ERR_INVALID, "the join token's end is missing or mistyped: copy the whole token again");
    *ret_len = n;
    return OK;
}

/* ---- the token ---- */

static err_t checksum(const uint8_t *data, size_t len, uint8_t ret[SUM_BYTES], struct why *why)
{
    uint8_t digest[32];
    if (!EVP_Digest(data, len, digest, NULL, EVP_sha256(), NULL))
        return why_set(why, ERR_NOMEM, "SHA-256 failed");
    memcpy(ret, digest, SUM_BYTES);
    return OK;
}

err_t token_make(struct token *ret, struct why *why)
{
    struct token t = {.n_addresses = 0};
    ssize_t id, secret;
    do
        id = getrandom(&t.id, sizeof(t.id), 0); /* getrandom never returns only a part of so few bytes */
    while (id < 0 && errno == EINTR);
    do
        secret = getrandom(t.secret, sizeof(t.secret), 0);
    while (secret < 0 && errno == EINTR);
    if (id != sizeof(t.id) || secret != sizeof(t.secret))
        return why_set(why, ERR_IO, "getrandom failed");
    *ret = t;
    token_wipe(&t);
    return OK;
}

static err_t check_address(const char *text, struct why *why)
{
    struct address list[ADDRESSES_MAX];
    int n;
    err_t err = addresses_parse(text, list, &n, why);
    for (int i = 0; !err && i < n; i++)
        if (!list[i].port)
            err = why_set(why, ERR_INVALID, "\"%s\" has port 0: a node needs a fixed port to listen on", text);
    return err;
}

static err_t token_pack(const struct token *t, uint8_t ret[TOKEN_BYTES_MAX], size_t *ret_len, struct why *why)
{
    size_t n = 0;
    if (t->n_addresses < 1 || t->n_addresses > TOKEN_ADDRESSES_MAX)
        return why_set(why, ERR_INVALID, "a join token has 1 to %d addresses", TOKEN_ADDRESSES_MAX);
    for (; n < ID_BYTES; n++)
        ret[n] = (uint8_t)(t->id >> (8 * (ID_BYTES - 1 - n)));
    memcpy(ret + n, t->secret, TOKEN_SECRET_BYTES);
    n += TOKEN_SECRET_BYTES;
    ret[n++] = (uint8_t)t->n_addresses;
    for (int i = 0; i < t->n_addresses; i++) {
        err_t err = check_address(t->addresses[i], why);
        if (err)
            return err;
        size_t len = strlen(t->addresses[i]);
        ret[n++] = (uint8_t)len;
        memcpy(ret + n, t->addresses[i], len);
        n += len;
    }
    err_t err = checksum(ret, n, ret + n, why);
    *ret_len = n + SUM_BYTES;
    return err;
}

err_t token_encode(const struct token *t, char ret[TOKEN_TEXT_MAX], struct why *why)
{
    uint8_t bytes[TOKEN_BYTES_MAX];
    size_t len = 0;
    err_t err = token_pack(t, bytes, &len, why);
    if (!err) {
        memcpy(ret, prefix, PREFIX_LEN);
        to_text(bytes, len, ret + PREFIX_LEN);
    }
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return err;
}

static err_t bad_content(struct why *why)
{
    return why_set(why, ERR_INVALID,
                   "the join token was made by another version of dtd: make a token with the version of this node");
}

/* The checksum is correct: an error found here was made by the program that encoded the token. */
static err_t token_unpack(const uint8_t *data, size_t len, struct token *t, struct why *why)
{
    size_t at = 0;
    for (; at < ID_BYTES; at++)
        t->id = t->id << 8 | data[at];
    memcpy(t->secret, data + at, TOKEN_SECRET_BYTES);
    at += TOKEN_SECRET_BYTES;
    t->n_addresses = data[at++];
    if (t->n_addresses < 1 || t->n_addresses > TOKEN_ADDRESSES_MAX)
        return bad_content(why);
    for (int i = 0; i < t->n_addresses; i++) {
        size_t n = at < len ? data[at++] : 0;
        if (!n || n > TOKEN_ADDRESS_MAX || n > len - at || memchr(data + at, '\0', n))
            return bad_content(why);
        memcpy(t->addresses[i], data + at, n);
        at += n;
        if (check_address(t->addresses[i], NULL))
            return bad_content(why);
    }
    return at == len ? OK : bad_content(why);
}

static err_t decode_bytes(const uint8_t *bytes, size_t len, struct token *ret, struct why *why)
{
    uint8_t sum[SUM_BYTES];
    struct token t = {.id = 0};
    if (len < HEAD_BYTES + SUM_BYTES)
        return why_set(why, ERR_INVALID, "the join token is too short: copy the whole token again");
    err_t err = checksum(bytes, len - SUM_BYTES, sum, why);
    if (!err && CRYPTO_memcmp(sum, bytes + len - SUM_BYTES, SUM_BYTES) != 0)
        err = why_set(why, ERR_INVALID,
                      "the join token's checksum is wrong: a character is mistyped or missing; copy the whole token "
                      "again");
    if (!err)
        err = token_unpack(bytes, len - SUM_BYTES, &t, why);
    if (!err)
        *ret = t;
    token_wipe(&t);
    return err;
}

err_t token_decode(const char *text, size_t len, struct token *ret, struct why *why)
{
    uint8_t bytes[TOKEN_TEXT_MAX];
    size_t n = 0;
    if (len < PREFIX_LEN || memcmp(text, prefix, PREFIX_LEN) != 0)
        return why_set(why, ERR_INVALID, "this is not a join token: a token begins with \"%s\"", prefix);
    if (len >= TOKEN_TEXT_MAX)
        return why_set(why, ERR_INVALID, "the join token is too long: copy only the token");
    err_t err = to_bytes(text + PREFIX_LEN, len - PREFIX_LEN, bytes, &n, why);
    if (!err)
        err = decode_bytes(bytes, n, ret, why);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return err;
}

bool token_equal(const struct token *a, const struct token *b)
{
    return a->id == b->id && CRYPTO_memcmp(a->secret, b->secret, TOKEN_SECRET_BYTES) == 0;
}

struct tunnel_key_id token_key_id(const struct token *t)
{
    return (struct tunnel_key_id){TUNNEL_KEY_JOIN, t->id};
}

void token_secret(const struct token *t, struct tunnel_secret *ret)
{
    memcpy(ret->bytes, t->secret, TOKEN_SECRET_BYTES);
    ret->len = TOKEN_SECRET_BYTES;
}

void token_wipe(struct token *t)
{
    OPENSSL_cleanse(t, sizeof(*t));
}
