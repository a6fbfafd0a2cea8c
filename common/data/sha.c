/* OpenSSL's EVP uses the CPU's SHA instructions. Its only possible errors here are lack of memory and a broken
 * installation. */
#include "common/data/sha.h"

#include <openssl/evp.h>
#include <stdio.h>

err_t sha_init(struct sha *s)
{
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx)
        return ERR_NOMEM;
    if (EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL))
        return OK;
    sha_fini(s);
    return ERR_INTERNAL;
}

err_t sha_add(struct sha *s, const void *data, size_t len)
{
    return EVP_DigestUpdate(s->ctx, data, len) ? OK : ERR_INTERNAL;
}

err_t sha_hex(struct sha *s, char ret[65])
{
    unsigned char digest[32];
    int ok = EVP_DigestFinal_ex(s->ctx, digest, NULL);
    sha_fini(s);
    for (int i = 0; ok && i < 32; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    return ok ? OK : ERR_INTERNAL;
}

void sha_fini(struct sha *s)
{
    EVP_MD_CTX_free(s->ctx);
    s->ctx = NULL;
}

err_t sha_of(const void *data, size_t len, char ret[65])
{
    struct sha s;
    err_t err = sha_init(&s);
    if (!err)
        err = sha_add(&s, data, len);
    if (!err)
        return sha_hex(&s, ret);
    sha_fini(&s);
    return err;
}
