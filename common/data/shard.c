/* A shard contains only tokens, so a reader can map it and use it directly. The hash is computed from the bytes that
 * are written, and not from a later read, which could return damaged data. */
#include "common/data/shard.h"

#include "common/base/file.h"
#include "common/data/cache.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((int64_t)1 << 20)

static err_t create(const char *dir, const char *name, int *ret, struct why *why)
{
    char path[PATH_MAX];
    err_t err = cache_join(dir, name, path, sizeof(path), why);
    if (err)
        return err;
    *ret = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return *ret >= 0 ? OK : why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
}

/* Fsyncs unless there was an error, and closes in any case. */
static err_t finish_fd(int fd, err_t err)
{
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    if (close(fd) && !err)
        err = err_from_errno(errno);
    return err;
}

static err_t failed(const char *dir, const char *name, err_t err, struct why *why)
{
    return err ? why_set(why, err, "writing %s/%s: %s", dir, name, err_text(err)) : OK;
}

err_t shard_file_write(const char *dir, const char *name, const void *data, size_t len, struct why *why)
{
    int fd = -1;
    err_t err = create(dir, name, &fd, why);
    if (err)
        return err;
    return failed(dir, name, finish_fd(fd, file_write_all(fd, data, len)), why);
}

void shard_writer_init(struct shard_writer *w, const char *dir, bool wide, int64_t cap)
{
    *w = (struct shard_writer){.dir = dir, .wide = wide, .cap = cap, .fd = -1};
}

void shard_writer_fini(struct shard_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    sha_fini(&w->sha);
    free(w->shards);
    buf_fini(&w->out);
}

/* ---- continuing ---- */

static err_t hash_prefix(int fd, int64_t bytes, struct sha *sha)
{
    uint8_t *piece = malloc(PIECE);
    err_t err = piece ? OK : ERR_NOMEM;
    for (int64_t at = 0, n; !err && at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        err = file_pread_all(fd, piece, (size_t)n, at);
        err = err ? err : sha_add(sha, piece, (size_t)n);
    }
    free(piece);
    return err;
}

err_t shard_file_continue(const char *dir, const char *name, int64_t bytes, struct sha *sha, int *ret_fd,
                          struct why *why)
{
    char path[PATH_MAX];
    err_t err = cache_join(dir, name, path, sizeof(path), why);
    if (err)
        return err;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err = sha_init(sha);
    err = err ? err : hash_prefix(fd, bytes, sha);
    if (!err && (ftruncate(fd, bytes) || lseek(fd, bytes, SEEK_SET) != bytes))
        err = err_from_errno(errno);
    if (!err) {
        *ret_fd = fd;
        return OK;
    }
    close(fd);
    return why_set(why, err, "continuing %s: %s", path, err_text(err));
}

static err_t check_length(const struct shard_writer *w, int i, int64_t tokens, struct why *why)
{
    char name[32], path[PATH_MAX];
    struct stat st;
    snprintf(name, sizeof(name), INDEX_SHARD, i);
    err_t err = cache_join(w->dir, name, path, sizeof(path), why);
    if (err)
        return err;
    if (stat(path, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (st.st_size != tokens * (w->wide ? 4 : 2))
        return why_set(why, ERR_CORRUPT, "%s: its size does not match the journal", path);
    return OK;
}

err_t shard_writer_continue(struct shard_writer *w, const struct index_shard *shards, int n, struct why *why)
{
    char name[32];
    err_t err = OK;
    w->shards = calloc((size_t)n + 1, sizeof(*w->shards));
    if (!w->shards)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    w->cap_shards = n + 1;
    for (int i = 0; !err && i < n; i++) {
        w->shards[w->n_shards++] = shards[i];
        w->tokens += shards[i].tokens;
        snprintf(name, sizeof(name), INDEX_SHARD, i);
        err = shards[i].sha256[0]
                  ? check_length(w, i, shards[i].tokens, why)
                  : shard_file_continue(w->dir, name, shards[i].tokens * (w->wide ? 4 : 2), &w->sha, &w->fd, why);
    }
    return err;
}

err_t shard_writer_sync(struct shard_writer *w, struct why *why)
{
    char name[32];
    if (w->fd < 0 || !fdatasync(w->fd))
        return OK;
    err_t err = err_from_errno(errno);
    snprintf(name, sizeof(name), INDEX_SHARD, w->n_shards - 1);
    return failed(w->dir, name, err, why);
}

/* ---- writing ---- */

static err_t open_shard(struct shard_writer *w, struct why *why)
{
    char name[32];
    if (w->n_shards == INDEX_MAX_SHARDS)
        return why_set(why, ERR_LIMIT, "more than %d shards of %" PRId64 " tokens: choose a larger shard size",
                       INDEX_MAX_SHARDS, w->cap);
    if (w->n_shards == w->cap_shards) {
        int cap = w->cap_shards ? 2 * w->cap_shards : 16;
        struct index_shard *shards = realloc(w->shards, (size_t)cap * sizeof(*shards));
        if (!shards)
            return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        w->shards = shards;
        w->cap_shards = cap;
    }
    snprintf(name, sizeof(name), INDEX_SHARD, w->n_shards);
    err_t err = create(w->dir, name, &w->fd, why);
    if (err)
        return err;
    w->shards[w->n_shards++] = (struct index_shard){0};
    err = sha_init(&w->sha);
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

static err_t close_shard(struct shard_writer *w, struct why *why)
{
    char name[32];
    err_t err = sha_hex(&w->sha, w->shards[w->n_shards - 1].sha256);
    snprintf(name, sizeof(name), INDEX_SHARD, w->n_shards - 1);
    err = finish_fd(w->fd, err);
    w->fd = -1;
    return failed(w->dir, name, err, why);
}

/* Little-endian tokens of the set's width. */
static err_t pack(struct shard_writer *w, const int32_t *ids, int64_t n)
{
    w->out.len = 0;
    err_t err = buf_reserve(&w->out, (size_t)n * 4);
    if (err)
        return err;
    if (w->wide) {
        uint32_t *out = (uint32_t *)(void *)w->out.data;
        for (int64_t i = 0; i < n; i++)
            out[i] = htole32((uint32_t)ids[i]);
    } else {
        uint16_t *out = (uint16_t *)(void *)w->out.data;
        for (int64_t i = 0; i < n; i++)
            out[i] = htole16((uint16_t)ids[i]);
    }
    w->out.len = (size_t)n * (w->wide ? 4 : 2);
    return OK;
}

/* Writes n tokens, which fit into the current shard. */
static err_t write_part(struct shard_writer *w, const int32_t *ids, int64_t n, struct why *why)
{
    char name[32];
    err_t err = pack(w, ids, n);
    if (!err)
        err = sha_add(&w->sha, w->out.data, w->out.len);
    if (!err)
        err = file_write_all(w->fd, w->out.data, w->out.len);
    w->shards[w->n_shards - 1].tokens += n;
    w->tokens += n;
    snprintf(name, sizeof(name), INDEX_SHARD, w->n_shards - 1);
    return failed(w->dir, name, err, why);
}

err_t shard_writer_put(struct shard_writer *w, const int32_t *ids, int64_t n, struct why *why)
{
    while (n) {
        err_t err = w->fd < 0 ? open_shard(w, why) : OK;
        if (err)
            return err;
        int64_t room = w->cap - w->shards[w->n_shards - 1].tokens, part = n < room ? n : room;
        err = write_part(w, ids, part, why);
        if (!err && part == room)
            err = close_shard(w, why);
        if (err)
            return err;
        ids += part;
        n -= part;
    }
    return OK;
}

err_t shard_writer_finish(struct shard_writer *w, struct why *why)
{
    return w->fd < 0 ? OK : close_shard(w, why);
}
