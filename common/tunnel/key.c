/* See key.h. Secrets are kept only in memory that is wiped here. Growing buffers are not used, because realloc leaves
 * copies in freed memory. */
#include "common/tunnel/key.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES (1 + 10 + 1 + 2 * KEY_BYTES + 1) /* kN, space, hex, newline */
_Static_assert(KEY_RING_MAX *LINE_MAX_BYTES < KEY_FILE_MAX, "a full ring fits into its file");

/* ---- the ring ---- */

static err_t fill_random(uint8_t *ret, size_t len, struct why *why)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = getrandom(ret + at, len - at, 0);
        if (n < 0 && errno != EINTR)
            return why_set(why, err_from_errno(errno), "getrandom failed: %s", strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return OK;
}

const struct key *key_ring_find(const struct key_ring *ring, uint32_t version)
{
    for (int i = 0; i < ring->n; i++)
        if (ring->keys[i].version == version)
            return &ring->keys[i];
    return NULL;
}

const struct key *key_ring_newest(const struct key_ring *ring)
{
    return ring->n ? &ring->keys[ring->n - 1] : NULL;
}

bool key_equal(const struct key *a, const struct key *b)
{
    return CRYPTO_memcmp(a->secret, b->secret, KEY_BYTES) == 0;
}

void key_ring_wipe(struct key_ring *ring)
{
    OPENSSL_cleanse(ring, sizeof(*ring));
}

err_t key_ring_put(struct key_ring *ring, const struct key *key, struct why *why)
{
    const struct key *known = key_ring_find(ring, key->version);
    if (known)
        return key_equal(known, key) ? OK
                                     : why_set(why, ERR_EXISTS,
                                               "key k%u exists with another secret: this node has been in another "
                                               "cluster",
                                               key->version);
    if (!key->version)
        return why_set(why, ERR_INVALID, "key versions start at 1");
    if (ring->n == KEY_RING_MAX)
        return why_set(why, ERR_LIMIT, "there are already %d keys: drop one that no node uses any more", KEY_RING_MAX);
    int at = ring->n++;
    for (; at && ring->keys[at - 1].version > key->version; at--)
        ring->keys[at] = ring->keys[at - 1];
    ring->keys[at] = *key;
    return OK;
}

err_t key_ring_add(struct key_ring *ring, uint32_t *ret_version, struct why *why)
{
    const struct key *newest = key_ring_newest(ring);
    struct key key = {.version = newest ? newest->version + 1 : 1};
    err_t err = fill_random(key.secret, KEY_BYTES, why);
    if (!err)
        err = key_ring_put(ring, &key, why);
    if (!err)
        *ret_version = key.version;
    OPENSSL_cleanse(&key, sizeof(key));
    return err;
}

err_t key_ring_make(struct key_ring *ret, struct why *why)
{
    uint32_t version;
    *ret = (struct key_ring){0};
    return key_ring_add(ret, &version, why);
}

err_t key_ring_drop(struct key_ring *ring, uint32_t version, struct why *why)
{
    const struct key *key = key_ring_find(ring, version);
    if (!key)
        return why_set(why, ERR_NOTFOUND, "there is no key k%u", version);
    if (ring->n == 1)
        return why_set(why, ERR_INVALID, "k%u is the only key: add another one before you drop it", version);
    int at = (int)(key - ring->keys);
    memmove(&ring->keys[at], &ring->keys[at + 1], (size_t)(ring->n - at - 1) * sizeof(*key));
    ring->n--;
    OPENSSL_cleanse(&ring->keys[ring->n], sizeof(*key));
    return OK;
}

struct tunnel_key_id key_id(const struct key *key)
{
    return (struct tunnel_key_id){TUNNEL_KEY_CLUSTER, key->version};
}

err_t key_ring_secret(const struct key_ring *ring, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    bool ours = id.kind == TUNNEL_KEY_CLUSTER && id.number <= UINT32_MAX;
    const struct key *key = ours ? key_ring_find(ring, (uint32_t)id.number) : NULL;
    if (!key)
        return ERR_NOTFOUND;
    memcpy(ret->bytes, key->secret, KEY_BYTES);
    ret->len = KEY_BYTES;
    return OK;
}

/* ---- its text ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_secret(const char *hex, size_t len, uint8_t ret[KEY_BYTES])
{
    if (len != 2 * KEY_BYTES)
        return false;
    for (int i = 0; i < KEY_BYTES; i++) {
        int hi = hex_digit(hex[2 * i]), lo = hex_digit(hex[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        ret[i] = (uint8_t)(hi * 16 + lo);
    }
    return true;
}

/* Parses kN, N without leading zeros. Returns the number of bytes parsed, 0: invalid. */
static size_t parse_version(const char *line, size_t len, uint32_t *ret)
{
    uint64_t version = 0;
    size_t at = 1;
    if (len < 2 || line[0] != 'k' || line[1] == '0')
        return 0;
    for (; at < len && at <= 10 && line[at] >= '0' && line[at] <= '9'; at++)
        version = version * 10 + (uint64_t)(line[at] - '0');
    if (at == 1 || version > UINT32_MAX)
        return 0;
    *ret = (uint32_t)version;
    return at;
}

static err_t parse_line(const char *line, size_t len, struct key_ring *ring, struct why *why)
{
    struct key key;
    size_t at = parse_version(line, len, &key.version);
    err_t err;
    if (!at || at == len || line[at] != ' ' || !parse_secret(line + at + 1, len - at - 1, key.secret))
        err = why_set(why, ERR_CORRUPT, "expected kN, a space and %d hexadecimal digits", 2 * KEY_BYTES);
    else if (key_ring_find(ring, key.version))
        err = why_set(why, ERR_CORRUPT, "k%u occurs twice", key.version);
    else
        err = key_ring_put(ring, &key, why);
    OPENSSL_cleanse(&key, sizeof(key));
    return err;
}

err_t key_file_parse(const char *path, const char *text, size_t len, struct key_ring *ret, struct why *why)
{
    struct key_ring ring = {0};
    int line = 1;
    err_t err = OK;
    if (len > KEY_FILE_MAX)
        return why_set(why, ERR_LIMIT, "%s is longer than %d bytes: it is not a key file", path, KEY_FILE_MAX);
    for (size_t at = 0; !err && at < len; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : 0;
        err = end ? parse_line(text + at, n, &ring, why) : why_set(why, ERR_CORRUPT, "the line has no newline");
        at += n + 1;
    }
    if (err)
        err = why_prefix(why, err, "%s line %d", path, line - 1);
    else if (!ring.n)
        err = why_set(why, ERR_CORRUPT, "%s contains no key: restore the cluster's key file, or join again", path);
    else
        *ret = ring;
    key_ring_wipe(&ring);
    return err;
}

size_t key_file_print(const struct key_ring *ring, char ret[KEY_FILE_MAX])
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (int i = 0; i < ring->n; i++) {
        n += (size_t)snprintf(ret + n, KEY_FILE_MAX - n, "k%u ", ring->keys[i].version);
        for (int b = 0; b < KEY_BYTES; b++) {
            ret[n++] = digits[ring->keys[i].secret[b] >> 4];
            ret[n++] = digits[ring->keys[i].secret[b] & 15];
        }
        ret[n++] = '\n';
    }
    ret[n] = '\0';
    return n;
}

/* ---- its file ---- */

static err_t check_file(const char *path, int fd, struct why *why)
{
    struct stat st;
    if (fstat(fd, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return why_set(why, ERR_DENIED, "%s is not a regular file: `dtctl cluster` writes the key file", path);
    if (st.st_uid != geteuid())
        return why_set(why, ERR_DENIED, "%s belongs to uid %d, this program runs as uid %d: chown %d %s", path,
                       (int)st.st_uid, (int)geteuid(), (int)geteuid(), path);
    if (st.st_mode & 077)
        return why_set(why, ERR_DENIED,
                       "other users may read or write %s (mode %04o): chmod 600 %s, and rotate the key if another user "
                       "may have read it",
                       path, (unsigned)(st.st_mode & 07777), path);
    if (st.st_size > KEY_FILE_MAX)
        return why_set(why, ERR_LIMIT, "%s is longer than %d bytes: it is not a key file", path, KEY_FILE_MAX);
    return OK;
}

static err_t read_text(const char *path, int fd, char ret[KEY_FILE_MAX + 1], size_t *ret_len, struct why *why)
{
    size_t len = 0;
    while (len <= KEY_FILE_MAX) {
        ssize_t n = read(fd, ret + len, KEY_FILE_MAX + 1 - len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
        if (n == 0)
            break;
        len += (size_t)n;
    }
    *ret_len = len;
    return OK;
}

err_t key_file_read(const char *path, struct key_ring *ret, struct why *why)
{
    char text[KEY_FILE_MAX + 1];
    size_t len = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return why_set(why, errno == ELOOP ? ERR_DENIED : err_from_errno(errno), "%s: %s", path,
                       errno == ELOOP ? "is a symbolic link, and a key file must not be one" : strerror(errno));
    err_t err = check_file(path, fd, why);
    if (!err)
        err = read_text(path, fd, text, &len, why);
    if (!err)
        err = key_file_parse(path, text, len, ret, why);
    OPENSSL_cleanse(text, sizeof(text));
    close(fd);
    return err;
}

/* Removes the file of an earlier, interrupted writer and creates a new one, so that mode and owner are known. */
static err_t write_fresh(const char *path, const char *text, size_t len)
{
    if (unlink(path) && errno != ENOENT)
        return err_from_errno(errno);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = fchmod(fd, 0600) ? err_from_errno(errno) : file_write_all(fd, text, len);
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    close(fd);
    return err;
}

static err_t sync_folder_of(const char *path)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        return file_sync_dir(".");
    *(slash == dir ? slash + 1 : slash) = '\0';
    return file_sync_dir(dir);
}

err_t key_file_write(const char *path, const struct key_ring *ring, struct why *why)
{
    char text[KEY_FILE_MAX], fresh[PATH_MAX];
    if ((size_t)snprintf(fresh, sizeof(fresh), "%s.new", path) >= sizeof(fresh))
        return why_set(why, ERR_LIMIT, "%.200s..: the path is too long", path);
    size_t len = key_file_print(ring, text);
    err_t err = write_fresh(fresh, text, len);
    OPENSSL_cleanse(text, sizeof(text));
    if (!err && rename(fresh, path))
        err = err_from_errno(errno);
    if (err) {
        unlink(fresh);
        return why_set(why, err, "%s cannot be written: %s", path, err_text(err));
    }
    err = sync_folder_of(path);
    return err ? why_set(why, err, "the folder of %s cannot be synced: %s", path, err_text(err)) : OK;
}
