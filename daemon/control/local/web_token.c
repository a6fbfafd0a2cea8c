#include "daemon/control/local/web_token.h"

#include "common/base/buf.h"
#include "common/base/file.h"

#include <inttypes.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define KEY_BYTES 32
#define MAC_BYTES 32

static bool key_path(const char *state_dir, char *ret, size_t size)
{
    return snprintf(ret, size, "%s/cluster/web.key", state_dir) < (int)size;
}

static err_t key_read(const char *path, uint8_t ret[KEY_BYTES], struct why *why)
{
    struct buf b = {0};
    err_t err = file_read_plain(path, KEY_BYTES, &b);
    if (!err && b.len != KEY_BYTES)
        err = ERR_CORRUPT;
    if (!err)
        memcpy(ret, b.data, KEY_BYTES);
    buf_fini(&b);
    return err ? why_set(why, err, "%s: %s; remove the file, and log in again with `dtctl web`", path, err_text(err))
               : OK;
}

static err_t key_make(const char *path, uint8_t ret[KEY_BYTES], struct why *why)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
    err_t err = file_make_dirs(dir, 0700);
    if (!err && getrandom(ret, KEY_BYTES, 0) != KEY_BYTES)
        err = ERR_IO;
    if (!err)
        err = file_replace(path, ret, KEY_BYTES, 0600);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

/* Writes "UID-EXPIRY-MAC". */
static err_t token_write(const uint8_t key[KEY_BYTES], uint32_t uid, int64_t expires_s, char ret[WEB_TOKEN_MAX])
{
    char text[64];
    uint8_t mac[EVP_MAX_MD_SIZE];
    unsigned n_mac = 0;
    int n = snprintf(text, sizeof(text), "dtd web %" PRIu32 "-%" PRId64, uid, expires_s);
    if (!HMAC(EVP_sha256(), key, KEY_BYTES, (const uint8_t *)text, (size_t)n, mac, &n_mac) || n_mac != MAC_BYTES)
        return ERR_NOMEM;
    n = snprintf(ret, WEB_TOKEN_MAX, "%s-", text + strlen("dtd web "));
    for (int i = 0; i < MAC_BYTES; i++)
        n += snprintf(ret + n, WEB_TOKEN_MAX - (size_t)n, "%02x", mac[i]);
    return OK;
}

err_t web_token_make(const char *state_dir, uint32_t uid, int64_t expires_s, char ret[WEB_TOKEN_MAX], struct why *why)
{
    char path[PATH_MAX];
    uint8_t key[KEY_BYTES];
    if (!key_path(state_dir, path, sizeof(path)))
        return why_set(why, ERR_INVALID, "the path of the state directory is too long");
    err_t err = key_read(path, key, why);
    if (err == ERR_NOTFOUND)
        err = key_make(path, key, why);
    if (!err)
        err = token_write(key, uid, expires_s, ret);
    OPENSSL_cleanse(key, sizeof(key));
    return err;
}

err_t web_token_check(const char *state_dir, const char *token, int64_t now_s, uint32_t *ret_uid, struct why *why)
{
    char path[PATH_MAX], right[WEB_TOKEN_MAX];
    uint8_t key[KEY_BYTES];
    uint32_t uid;
    int64_t expires_s;
    if (sscanf(token, "%9" SCNu32 "-%18" SCNd64 "-", &uid, &expires_s) != 2)
        return why_set(why, ERR_DENIED, "this is not a token of `dtctl web`");
    if (expires_s <= now_s)
        return why_set(why, ERR_DENIED, "the token has expired; `dtctl web` makes a new one");
    if (!key_path(state_dir, path, sizeof(path)))
        return why_set(why, ERR_INVALID, "the path of the state directory is too long");
    err_t err = key_read(path, key, why);
    if (!err)
        err = token_write(key, uid, expires_s, right);
    OPENSSL_cleanse(key, sizeof(key));
    if (!err && (strlen(token) != strlen(right) || CRYPTO_memcmp(token, right, strlen(right))))
        err = ERR_DENIED;
    if (err == ERR_DENIED || err == ERR_NOTFOUND)
        return why_set(why, ERR_DENIED, "this node did not make the token; `dtctl web` makes a new one");
    *ret_uid = uid;
    return err;
}
