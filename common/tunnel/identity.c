/* See identity.h. The private key is 32 random bytes of the kernel (RFC 8032, section 5.1.5); OpenSSL derives the
 * public key. A key object of OpenSSL exists only while it signs or verifies, which takes about 0.1 ms. */
#include "common/tunnel/identity.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char prefix[] = "ed25519 ";
#define PREFIX_LEN (sizeof(prefix) - 1)
_Static_assert(IDENTITY_FILE_BYTES == sizeof("ed25519 ") - 1 + 2 * IDENTITY_BYTES + 1, "the line with its newline");

/* Sets the public key. */
static err_t complete(struct identity *x)
{
    size_t len = IDENTITY_BYTES;
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, x->private_key, IDENTITY_BYTES);
    bool ok = key && EVP_PKEY_get_raw_public_key(key, x->public_key, &len) == 1 && len == IDENTITY_BYTES;
    EVP_PKEY_free(key);
    return ok ? OK : ERR_NOMEM;
}

err_t identity_make(struct identity *ret, struct why *why)
{
    struct identity x;
    if (getrandom(x.private_key, sizeof(x.private_key), 0) != sizeof(x.private_key))
        return why_set(why, ERR_IO, "getrandom failed");
    err_t err = complete(&x);
    if (err)
        why_set(why, err, "OpenSSL makes no Ed25519 key");
    else
        *ret = x;
    identity_wipe(&x);
    return err;
}

void identity_wipe(struct identity *identity)
{
    OPENSSL_cleanse(identity, sizeof(*identity));
}

err_t identity_sign(const struct identity *identity, const void *data, size_t len, uint8_t ret[IDENTITY_PROOF_BYTES])
{
    size_t n = IDENTITY_PROOF_BYTES;
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, identity->private_key, IDENTITY_BYTES);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = key && ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) == 1 &&
              EVP_DigestSign(ctx, ret, &n, data, len) == 1 && n == IDENTITY_PROOF_BYTES;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return ok ? OK : ERR_NOMEM;
}

bool identity_verify(const uint8_t public_key[IDENTITY_BYTES], const void *data, size_t len,
                     const uint8_t proof[IDENTITY_PROOF_BYTES])
{
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, public_key, IDENTITY_BYTES);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = key && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) == 1 &&
              EVP_DigestVerify(ctx, proof, IDENTITY_PROOF_BYTES, data, len) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(key);
    return ok;
}

/* ---- text ---- */

/* -1: not a lower-case hexadecimal digit. */
static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

err_t identity_parse(const void *data, size_t len, struct identity *ret)
{
    const char *text = data;
    struct identity x;
    err_t err = OK;
    if (len != IDENTITY_FILE_BYTES || memcmp(text, prefix, PREFIX_LEN) != 0 || text[len - 1] != '\n')
        return ERR_CORRUPT;
    for (size_t i = 0; !err && i < IDENTITY_BYTES; i++) {
        int high = digit_of(text[PREFIX_LEN + 2 * i]), low = digit_of(text[PREFIX_LEN + 2 * i + 1]);
        err = high < 0 || low < 0 ? ERR_CORRUPT : OK;
        x.private_key[i] = (uint8_t)(16 * high + low);
    }
    err = err ? err : complete(&x);
    if (!err)
        *ret = x;
    identity_wipe(&x);
    return err;
}

void identity_write(const struct identity *identity, char ret[IDENTITY_FILE_BYTES + 1])
{
    memcpy(ret, prefix, PREFIX_LEN);
    for (size_t i = 0; i < IDENTITY_BYTES; i++)
        snprintf(ret + PREFIX_LEN + 2 * i, 3, "%02x", identity->private_key[i]);
    strcpy(ret + IDENTITY_FILE_BYTES - 1, "\n");
}

void identity_fingerprint(const uint8_t public_key[IDENTITY_BYTES], char ret[IDENTITY_FINGERPRINT_MAX])
{
    uint8_t d[32] = {0};
    EVP_Digest(public_key, IDENTITY_BYTES, d, NULL, EVP_sha256(), NULL); /* fails only without memory: then zeros */
    snprintf(ret, IDENTITY_FINGERPRINT_MAX, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", d[0], d[1], d[2], d[3], d[4], d[5],
             d[6], d[7]);
}
