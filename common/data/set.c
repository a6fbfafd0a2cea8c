/* Opening reads one small file and maps the shards; the cost does not depend on their size. Tokens are checked against
 * the vocabulary when they are read; data_verify checks them against their hash. Mappings are shared and read-only, so
 * all workers of a node share one copy of the data in memory. */
#include "common/data/data.h"

#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/index.h"
#include "common/data/sha.h"
#include "common/data/vocab.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mapped {
    const void *data;
    int64_t start; /* index of its first token in the set */
    size_t bytes;
};

struct data_set {
    char dir[PATH_MAX];
    struct data_index index;
    struct tokenizer *tokenizer;
    struct mapped *shards; /* index.n_shards */
};

/* ---- opening ---- */

static err_t read_index(struct data_set *d, const char *hash, struct why *why)
{
    char path[PATH_MAX];
    struct buf text = {0};
    err_t err = cache_join(d->dir, INDEX_FILE, path, sizeof(path), why);
    if (err)
        return err;
    err = file_read_plain(path, INDEX_MAX_BYTES, &text);
    if (err == ERR_NOTFOUND)
        return why_set(why, err, "%s: there is no prepared data of this name; `dtctl data prepare` creates it", d->dir);
    if (err) {
        why_set(why, err, "%s: %s", path, err_text(err));
    } else {
        err = index_parse(text.data ? text.data : (const uint8_t *)"", text.len, &d->index, why);
        if (err)
            why_prefix(why, err, "%s", path);
        else if (strcmp(d->index.hash, hash) != 0)
            err = why_set(why, ERR_CORRUPT, "%s: it belongs to the set %s", path, d->index.hash);
    }
    buf_fini(&text);
    return err;
}

static err_t load_vocab(struct data_set *d, const char *path, struct why *why)
{
    char sha256[65];
    struct buf vocab = {0};
    err_t err = file_read_plain(path, (size_t)VOCAB_MAX_BYTES + VOCAB_MAX_WORDS, &vocab);
    if (!err)
        err = sha_of(vocab.data ? vocab.data : (const uint8_t *)"", vocab.len, sha256);
    if (err) {
        err = why_set(why, err == ERR_NOTFOUND ? ERR_CORRUPT : err, "%s: %s", path, err_text(err));
    } else if (strcmp(sha256, d->index.vocab_sha256) != 0) {
        err = why_set(why, ERR_CORRUPT, "%s: it does not match the index's hash", path);
    } else {
        err = tokenizer_new_from(d->index.tokenizer, vocab.data, vocab.len, d->index.lowercase, &d->tokenizer, why);
        if (err)
            why_prefix(why, err, "%s", path);
    }
    buf_fini(&vocab);
    return err;
}

static err_t load_tokenizer(struct data_set *d, struct why *why)
{
    char path[PATH_MAX];
    err_t err = cache_join(d->dir, INDEX_VOCAB, path, sizeof(path), why);
    if (!err && d->index.tokenizer != TOKENIZER_BYTES)
        err = load_vocab(d, path, why);
    else if (!err && (err = tokenizer_bytes_new(&d->tokenizer)))
        why_set(why, err, "%s", err_text(err));
    if (!err && tokenizer_vocab(d->tokenizer) != d->index.vocab)
        err = why_set(why, ERR_CORRUPT, "%s: %lld tokens, but the index says %lld", path,
                      (long long)tokenizer_vocab(d->tokenizer), (long long)d->index.vocab);
    return err;
}

static err_t map_shard(struct mapped *m, const char *path, struct why *why)
{
    struct stat st;
    int fd = file_open_plain(path);
    if (fd < 0)
        return why_set(why, errno == ENOENT ? ERR_CORRUPT : err_from_errno(errno), "%s: %s", path, strerror(errno));
    err_t err = OK;
    if (fstat(fd, &st)) {
        err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    } else if ((uint64_t)st.st_size != m->bytes) {
        err =
            why_set(why, ERR_CORRUPT, "%s: %lld bytes, but the index says %zu", path, (long long)st.st_size, m->bytes);
    } else {
        void *data = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
        else
            m->data = data;
    }
    close(fd);
    return err;
}

static err_t shard_path(const struct data_set *d, int i, char *ret, size_t size, struct why *why)
{
    char name[32];
    snprintf(name, sizeof(name), INDEX_SHARD, i);
    return cache_join(d->dir, name, ret, size, why);
}

static err_t map_shards(struct data_set *d, struct why *why)
{
    char path[PATH_MAX];
    int64_t start = 0;
    d->shards = calloc((size_t)d->index.n_shards, sizeof(*d->shards));
    if (!d->shards)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; i < d->index.n_shards; i++) {
        struct mapped *m = &d->shards[i];
        m->start = start;
        m->bytes = (size_t)(d->index.shards[i].tokens * index_token_bytes(&d->index));
        start += d->index.shards[i].tokens;
        err_t err = shard_path(d, i, path, sizeof(path), why);
        if (!err)
            err = map_shard(m, path, why);
        if (err)
            return err;
    }
    return OK;
}

err_t data_open(const char *cache, const char *hash, struct data_set **ret, struct why *why)
{
    char dir[PATH_MAX];
    if (!cache_hash_valid(hash))
        return why_set(why, ERR_INVALID, "\"%.80s\" is not a name of prepared data; such a name has 64 hex digits",
                       hash);
    err_t err = cache_dir(cache, dir, sizeof(dir), why);
    if (err)
        return err;
    struct data_set *d = calloc(1, sizeof(*d));
    if (!d)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = cache_join(dir, hash, d->dir, sizeof(d->dir), why);
    if (!err)
        err = read_index(d, hash, why);
    if (!err)
        err = load_tokenizer(d, why);
    if (!err)
        err = map_shards(d, why);
    if (err) {
        data_close(d);
        return err;
    }
    *ret = d;
    return OK;
}

void data_close(struct data_set *d)
{
    if (!d)
        return;
    for (int i = 0; d->shards && i < d->index.n_shards; i++)
        if (d->shards[i].data)
            munmap((void *)d->shards[i].data, d->shards[i].bytes);
    free(d->shards);
    tokenizer_free(d->tokenizer);
    index_fini(&d->index);
    free(d);
}

/* ---- reading ---- */

int64_t data_tokens(const struct data_set *d)
{
    return d->index.tokens;
}

int64_t data_vocab(const struct data_set *d)
{
    return d->index.vocab;
}

const struct tokenizer *data_tokenizer(const struct data_set *d)
{
    return d->tokenizer;
}

int64_t data_samples(const struct data_set *d, int64_t seq)
{
    assert(seq > 0);
    return (d->index.tokens - 1) / seq;
}

/* The shard that contains token `at`. */
static int shard_of(const struct data_set *d, int64_t at)
{
    int low = 0, high = d->index.n_shards - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (d->shards[middle].start <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Converts n tokens, from element `first` of a shard, to int32. Returns the largest. */
static uint32_t widen(const struct data_set *d, const struct mapped *m, int64_t first, int64_t n, int32_t *ret)
{
    uint32_t largest = 0;
    if (d->index.wide) {
        const uint32_t *in = (const uint32_t *)m->data + first;
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = le32toh(in[i]);
            largest = id > largest ? id : largest;
            ret[i] = (int32_t)id;
        }
        return largest;
    }
    const uint16_t *in = (const uint16_t *)m->data + first;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = le16toh(in[i]);
        largest = id > largest ? id : largest;
        ret[i] = (int32_t)id;
    }
    return largest;
}

/* Copies n tokens from token `at` of the set; they may lie in several shards. */
static err_t copy_tokens(const struct data_set *d, int64_t at, int64_t n, int32_t *ret)
{
    for (int i = shard_of(d, at); n; i++) {
        int64_t first = at - d->shards[i].start, room = d->index.shards[i].tokens - first, part = n < room ? n : room;
        if (widen(d, &d->shards[i], first, part, ret) >= (uint64_t)d->index.vocab)
            return ERR_CORRUPT;
        at += part;
        n -= part;
        ret += part;
    }
    return OK;
}

err_t data_sample(const struct data_set *d, int64_t seq, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    if (seq < 1 || index < 0 || index >= data_samples(d, seq))
        return ERR_INVALID;
    err_t err = copy_tokens(d, index * seq, seq, ret_ids);
    if (!err)
        err = copy_tokens(d, index * seq + seq, 1, &ret_targets[seq - 1]);
    if (!err)
        memcpy(ret_targets, ret_ids + 1, (size_t)(seq - 1) * sizeof(*ret_ids));
    return err;
}

err_t data_verify(const struct data_set *d, struct why *why)
{
    for (int i = 0; i < d->index.n_shards; i++) {
        char path[PATH_MAX], sha256[65];
        err_t err = shard_path(d, i, path, sizeof(path), why);
        if (err)
            return err;
        err = sha_of(d->shards[i].data, d->shards[i].bytes, sha256);
        if (err)
            return why_set(why, err, "%s: %s", path, err_text(err));
        if (strcmp(sha256, d->index.shards[i].sha256) != 0)
            return why_set(why, ERR_CORRUPT,
                           "%s: it does not match its hash; remove the folder and prepare the data again", path);
    }
    return OK;
}
