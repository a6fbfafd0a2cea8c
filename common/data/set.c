/* Opening reads one small file and maps the shards; the cost does not depend on their size. Tokens are checked against
 * the vocabulary when they are read; data_verify checks them against their hash. Mappings are shared and read-only, so
 * all workers of a node share one copy of the data in memory. */
#include "common/data/data.h"

#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/index.h"
#include "common/data/place.h"
#include "common/data/set.h"
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

/* A whole file. */
struct mapped {
    const uint8_t *data;
    size_t bytes;
};

struct mapped_shard {
    struct mapped file;
    const uint8_t *tokens;
    enum token_type type;
    int64_t start; /* index of its first token in the set */
};

struct data_set {
    char dir[PATH_MAX];
    struct data_index index;
    struct tokenizer *tokenizer;
    struct mapped_shard *shards; /* index.n_shards */
    struct mapped documents;     /* u64 ends of documents in tokens, ascending; none: no boundaries */
    struct mapped weights;       /* bit i % 8 of byte i / 8: whether the prediction of token i counts; none: all do */
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
        err = why_set(why, ERR_CORRUPT, "%s: %lld tokens, but %lld in the index", path,
                      (long long)tokenizer_vocab(d->tokenizer), (long long)d->index.vocab);
    return err;
}

static err_t map_file(struct mapped *m, int fd, const char *path, size_t bytes, struct why *why)
{
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    *m = (struct mapped){data, bytes};
    return OK;
}

/* Maps a file of the set, which must have this size. */
static err_t map_own(struct data_set *d, const char *name, int64_t bytes, struct mapped *ret, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    err_t err = cache_join(d->dir, name, path, sizeof(path), why);
    if (err)
        return err;
    int fd = file_open_plain(path);
    if (fd < 0)
        return why_set(why, errno == ENOENT ? ERR_CORRUPT : err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    else if (st.st_size != bytes)
        err = why_set(why, ERR_CORRUPT, "%s: %lld bytes, but %lld in the index", path, (long long)st.st_size,
                      (long long)bytes);
    else
        err = map_file(ret, fd, path, (size_t)bytes, why);
    close(fd);
    return err;
}

/* Maps another program's file of tokens. ERR_CORRUPT, as for a damaged set, if it is gone or has changed: preparing it
 * again mends the set. */
static err_t map_place(const struct index_place *p, struct mapped *ret, struct why *why)
{
    struct stat st;
    err_t err = OK;
    int fd = file_open_plain(p->path);
    if (fd < 0)
        return why_set(why, errno == ENOENT ? ERR_CORRUPT : err_from_errno(errno),
                       "%s: %s; the set reads its tokens from this file. Put it back, or prepare the data again",
                       p->path, strerror(errno));
    if (fstat(fd, &st))
        err = why_set(why, err_from_errno(errno), "%s: %s", p->path, strerror(errno));
    else if (st.st_size != p->bytes || place_mtime_ns(&st) != p->mtime_ns)
        err =
            why_set(why, ERR_CORRUPT,
                    "%s: the file has changed since it was prepared, and the set reads its tokens from it; prepare the "
                    "data again",
                    p->path);
    else
        err = map_file(ret, fd, p->path, (size_t)p->bytes, why);
    close(fd);
    return err;
}

static err_t map_shard(struct data_set *d, int i, struct mapped_shard *m, struct why *why)
{
    char name[32];
    const struct index_shard *s = &d->index.shards[i];
    m->type = s->place ? s->place->type : d->index.wide ? TOKEN_U32 : TOKEN_U16;
    snprintf(name, sizeof(name), INDEX_SHARD, i);
    err_t err = s->place ? map_place(s->place, &m->file, why)
                         : map_own(d, name, s->tokens * token_types[m->type].bytes, &m->file, why);
    if (!err)
        m->tokens = m->file.data + (s->place ? s->place->offset : 0);
    return err;
}

static err_t map_shards(struct data_set *d, struct why *why)
{
    int64_t start = 0;
    err_t err = OK;
    d->shards = calloc((size_t)d->index.n_shards, sizeof(*d->shards));
    if (!d->shards)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; !err && i < d->index.n_shards; i++) {
        d->shards[i].start = start;
        start += d->index.shards[i].tokens;
        err = map_shard(d, i, &d->shards[i], why);
    }
    return err;
}

static err_t map_marks(struct data_set *d, struct why *why)
{
    const struct data_index *x = &d->index;
    err_t err = x->documents ? map_own(d, INDEX_DOCUMENTS, x->documents * 8, &d->documents, why) : OK;
    if (!err && x->weights_sha256[0])
        err = map_own(d, INDEX_WEIGHTS, (x->tokens + 7) / 8, &d->weights, why);
    return err;
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
    if (!err)
        err = map_marks(d, why);
    if (err) {
        data_close(d);
        return err;
    }
    *ret = d;
    return OK;
}

static void unmap(const struct mapped *m)
{
    if (m->data)
        munmap((void *)m->data, m->bytes);
}

void data_close(struct data_set *d)
{
    if (!d)
        return;
    for (int i = 0; d->shards && i < d->index.n_shards; i++)
        unmap(&d->shards[i].file);
    unmap(&d->documents);
    unmap(&d->weights);
    free(d->shards);
    tokenizer_free(d->tokenizer);
    index_fini(&d->index);
    free(d);
}

/* ---- files ---- */

int set_files(const struct data_set *d)
{
    return d->index.n_shards + (d->documents.data != NULL) + (d->weights.data != NULL);
}

err_t set_file(const struct data_set *d, int i, struct set_file *ret, struct why *why)
{
    const struct data_index *x = &d->index;
    char shard[32];
    const char *name = shard;
    const struct mapped *m = i < x->n_shards ? &d->shards[i].file : NULL;
    *ret = (struct set_file){0};
    if (m) {
        ret->sha256 = x->shards[i].sha256;
        ret->place = x->shards[i].place;
        snprintf(shard, sizeof(shard), INDEX_SHARD, i);
    } else {
        const bool documents = d->documents.data && i == x->n_shards;
        m = documents ? &d->documents : &d->weights;
        name = documents ? INDEX_DOCUMENTS : INDEX_WEIGHTS;
        ret->sha256 = documents ? x->documents_sha256 : x->weights_sha256;
    }
    ret->data = m->data;
    ret->bytes = m->bytes;
    if (!ret->place)
        return cache_join(d->dir, name, ret->path, sizeof(ret->path), why);
    int n = snprintf(ret->path, sizeof(ret->path), "%s", ret->place->path);
    return (size_t)n < sizeof(ret->path) ? OK : why_set(why, ERR_LIMIT, "%s: the path is too long", ret->place->path);
}

/* ---- reading ---- */

const char *data_name(const struct data_set *d)
{
    return d->index.hash;
}

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

/* Copies n tokens from token `at` of the set; they may lie in several shards. */
static err_t copy_tokens(const struct data_set *d, int64_t at, int64_t n, int32_t *ret)
{
    for (int i = shard_of(d, at); n; i++) {
        const struct mapped_shard *m = &d->shards[i];
        const struct token_type_row *type = &token_types[m->type];
        int64_t first = at - m->start, room = d->index.shards[i].tokens - first, part = n < room ? n : room;
        uint64_t any = type->widen(m->tokens + first * type->bytes, part, ret);
        if (token_ids_illegal(ret, part, any, d->index.vocab))
            return ERR_CORRUPT;
        at += part;
        n -= part;
        ret += part;
    }
    return OK;
}

static bool has_window(const struct data_set *d, int64_t seq, int64_t at)
{
    return seq >= 1 && at >= 0 && at <= d->index.tokens - 1 - seq;
}

err_t data_window(const struct data_set *d, int64_t seq, int64_t at, int32_t *ret_ids, int32_t *ret_targets)
{
    if (!has_window(d, seq, at))
        return ERR_INVALID;
    err_t err = copy_tokens(d, at, seq, ret_ids);
    if (!err)
        err = copy_tokens(d, at + seq, 1, &ret_targets[seq - 1]);
    if (!err)
        memcpy(ret_targets, ret_ids + 1, (size_t)(seq - 1) * sizeof(*ret_ids));
    return err;
}

err_t data_sample(const struct data_set *d, int64_t seq, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    return seq < 1 || index >= data_samples(d, seq) ? ERR_INVALID
                                                    : data_window(d, seq, index * seq, ret_ids, ret_targets);
}

err_t data_copy(const struct data_set *d, int64_t at, int64_t n, int32_t *ret)
{
    return at < 0 || n < 0 || at > d->index.tokens - n ? ERR_INVALID : n ? copy_tokens(d, at, n, ret) : OK;
}

int data_sources(const struct data_set *d)
{
    return d->index.n_sources;
}

struct data_source data_source(const struct data_set *d, int i)
{
    const struct index_source *s = &d->index.sources[i];
    return (struct data_source){s->path, s->format, s->bytes, s->documents, s->tokens};
}

/* ---- documents and weights ---- */

int64_t data_documents(const struct data_set *d)
{
    return d->index.documents;
}

int64_t data_labels(const struct data_set *d)
{
    return d->index.labels;
}

bool data_weighted(const struct data_set *d)
{
    return d->weights.data != NULL;
}

static int64_t document_end(const struct data_set *d, int64_t i)
{
    uint64_t end;
    memcpy(&end, d->documents.data + i * 8, sizeof(end));
    return (int64_t)le64toh(end);
}

/* The document that contains token `at`: the first with a greater end. n: none, because the file is damaged. */
static int64_t document_of(const struct data_set *d, int64_t at)
{
    int64_t low = 0, high = d->index.documents;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (document_end(d, middle) > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

err_t data_document(const struct data_set *d, int64_t at, struct data_document *ret)
{
    if (at < 0 || at >= d->index.tokens)
        return ERR_INVALID;
    struct data_document found = {0, 0, d->index.tokens};
    if (d->index.documents) {
        found.number = document_of(d, at);
        if (found.number == d->index.documents)
            return ERR_CORRUPT;
        found.begin = found.number ? document_end(d, found.number - 1) : 0;
        found.end = document_end(d, found.number);
        if (found.begin < 0 || found.begin > at || found.end > d->index.tokens)
            return ERR_CORRUPT;
    }
    *ret = found;
    return OK;
}

err_t data_document_at(const struct data_set *d, int64_t number, struct data_document *ret)
{
    if (number < 0 || number >= d->index.documents)
        return ERR_INVALID;
    const struct data_document found = {number, number ? document_end(d, number - 1) : 0, document_end(d, number)};
    if (found.begin < 0 || found.begin >= found.end || found.end > d->index.tokens)
        return ERR_CORRUPT;
    *ret = found;
    return OK;
}

static void copy_weights(const struct data_set *d, int64_t at, int64_t n, uint8_t *ret)
{
    if (!d->weights.data)
        memset(ret, 1, (size_t)n);
    for (int64_t i = 0; d->weights.data && i < n; i++)
        ret[i] = d->weights.data[(at + i) / 8] >> (at + i) % 8 & 1;
}

err_t data_weights(const struct data_set *d, int64_t at, int64_t n, uint8_t *ret)
{
    if (at < 0 || n < 0 || at > d->index.tokens - n)
        return ERR_INVALID;
    copy_weights(d, at, n, ret);
    return OK;
}

err_t data_read(const struct data_set *d, int64_t at, int64_t n, int32_t *ret_ids, uint8_t *ret_weights)
{
    if (at < 0 || n < 1 || at > d->index.tokens - n)
        return ERR_INVALID;
    copy_weights(d, at, n, ret_weights);
    return copy_tokens(d, at, n, ret_ids);
}

/* Targets are tokens `at + 1` to `at + seq`. A target that begins a document belongs to none of the sample's, so
 * nothing that the model sees can predict it. */
static err_t separate(const struct data_set *d, int64_t at, int64_t seq, int32_t *begins, uint8_t *weights)
{
    struct data_document document = {0};
    err_t err = data_document(d, at, &document);
    int64_t begin = 0, n = document.number;
    for (int64_t end = err ? 0 : document.end, i = 0; !err && i < seq; i++) {
        begins[i] = (int32_t)begin;
        if (at + i + 1 < end)
            continue;
        weights[i] = 0;
        begin = i + 1;
        if (++n < d->index.documents && document_end(d, n) <= end)
            return ERR_CORRUPT;
        end = n < d->index.documents ? document_end(d, n) : INT64_MAX;
    }
    return err;
}

err_t data_window_marks(const struct data_set *d, int64_t seq, int64_t at, bool documents, int32_t *ret_begins,
                        uint8_t *ret_weights)
{
    if (!has_window(d, seq, at))
        return ERR_INVALID;
    copy_weights(d, at + 1, seq, ret_weights);
    if (documents && d->index.documents)
        return separate(d, at, seq, ret_begins, ret_weights);
    memset(ret_begins, 0, (size_t)seq * sizeof(*ret_begins));
    return OK;
}

/* ---- verifying ---- */

static err_t verify_file(const struct data_set *d, const char *name, const struct mapped *m, const char *expected,
                         struct why *why)
{
    char sha256[65];
    err_t err = sha_of(m->data, m->bytes, sha256);
    if (err)
        return why_set(why, err, "%s/%s: %s", d->dir, name, err_text(err));
    return strcmp(sha256, expected) == 0
               ? OK
               : why_set(why, ERR_CORRUPT,
                         "%s/%s: it does not match its hash; remove the folder and prepare the data again", d->dir,
                         name);
}

static err_t verify_place(const struct index_shard *s, const struct mapped *m, struct why *why)
{
    char found[65];
    err_t err = place_fingerprint(m->data, m->bytes, found);
    if (err)
        return why_set(why, err, "%s: %s", s->place->path, err_text(err));
    return strcmp(found, s->sha256) == 0
               ? OK
               : why_set(why, ERR_CORRUPT, "%s: its content has changed; prepare the data again", s->place->path);
}

err_t data_verify(const struct data_set *d, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < d->index.n_shards; i++) {
        char name[32];
        const struct index_shard *s = &d->index.shards[i];
        snprintf(name, sizeof(name), INDEX_SHARD, i);
        err = s->place ? verify_place(s, &d->shards[i].file, why)
                       : verify_file(d, name, &d->shards[i].file, s->sha256, why);
    }
    if (!err && d->documents.data)
        err = verify_file(d, INDEX_DOCUMENTS, &d->documents, d->index.documents_sha256, why);
    if (!err && d->weights.data)
        err = verify_file(d, INDEX_WEIGHTS, &d->weights, d->index.weights_sha256, why);
    return err;
}
