/* Files are read in chunks of 1 MiB, so memory does not grow with them. They are read several times: to compute the
 * hash that names the set, to count words, and to write tokens. Each pass hashes the file again and so detects a file
 * that changes meanwhile; otherwise a set's name would not match its content, and later users would read wrong data.
 *
 * The set is written to a new folder and renamed when it is durable. If two processes prepare the same set, both write
 * it; the second rename fails, and both use the set of the first. */
#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/data.h"
#include "common/data/index.h"
#include "common/data/not_text.h"
#include "common/data/sha.h"
#include "common/data/shard.h"
#include "common/data/tokenizer.h"
#include "common/data/unicode.h"
#include "common/data/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (1 << 20)
#define SHARD_TOKENS ((int64_t)1 << 30)

struct source {
    int64_t bytes;
    char sha256[65]; /* "": not read yet */
};

struct preparation {
    const struct data_prepare *p;
    struct why *why;
    char cache[PATH_MAX], temp[PATH_MAX];
    struct source *sources; /* p->n_files */
    struct tokenizer *tokenizer;
    uint8_t *piece;
    int64_t done, total;     /* bytes, over all passes */
    struct data_index index; /* of the set that is written; the shard_writer owns its shards */
};

static err_t fail(struct preparation *x, err_t err)
{
    return why_set(x->why, err, "%s", err_text(err));
}

static err_t fail_file(struct preparation *x, const char *path, int errnum)
{
    return why_set(x->why, err_from_errno(errnum), "%s: %s", path, strerror(errnum));
}

/* ---- reading the files ---- */

/* Receives the bytes of a pass. */
typedef err_t sink_fn(void *arg, const uint8_t *data, size_t len);

static void report(struct preparation *x, int64_t bytes)
{
    x->done += bytes;
    if (x->done > x->total)
        x->done = x->total; /* a file has grown */
    if (x->p->progress)
        x->p->progress(x->done, x->total, x->p->arg);
}

static size_t count_nuls(const uint8_t *data, size_t len)
{
    const uint8_t *end = data + len;
    size_t n = 0;
    for (; (data = memchr(data, '\0', (size_t)(end - data))); data++)
        n++;
    return n;
}

/* Refuses a file that is no text, judged by its first piece. */
static err_t check_text(struct preparation *x, const char *path, const uint8_t *data, size_t len)
{
    const char *text =
        x->p->raw ? NULL : not_text(data, len < NOT_TEXT_BYTES ? len : NOT_TEXT_BYTES, count_nuls(data, len), len);
    return text ? why_set(x->why, ERR_INVALID,
                          "%s: %s. Set data.raw to true (dtctl data prepare: --raw) to train on its "
                          "bytes as they are",
                          path, text)
                : OK;
}

/* Passes the bytes of fd to the hash and the sink. Adds a newline if the text does not end with one, so that the last
 * line of a file and the first line of the next stay separate. */
static err_t read_pieces(struct preparation *x, int fd, const char *path, struct sha *sha, sink_fn *sink, void *arg)
{
    uint8_t last = '\n';
    bool first = true;
    for (;;) {
        ssize_t n = read(fd, x->piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_file(x, path, errno);
        if (n == 0)
            break;
        err_t err = first ? check_text(x, path, x->piece, (size_t)n) : OK;
        if (err)
            return err;
        first = false;
        err = sha_add(sha, x->piece, (size_t)n);
        if (err)
            return fail(x, err);
        last = x->piece[n - 1];
        err = sink ? sink(arg, x->piece, (size_t)n) : OK;
        if (err)
            return err;
        report(x, n);
    }
    return sink && last != '\n' ? sink(arg, (const uint8_t *)"\n", 1) : OK;
}

static err_t open_source(struct preparation *x, const char *path, int *ret)
{
    struct stat st;
    /* Without O_NONBLOCK, opening a pipe would block. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_file(x, path, errno);
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        *ret = fd;
        return OK;
    }
    close(fd);
    return why_set(x->why, ERR_INVALID, "%s: it is not a regular file", path);
}

/* Reads source i completely. The first pass stores its hash, and later passes compare it. */
static err_t read_source(struct preparation *x, int i, sink_fn *sink, void *arg)
{
    const char *path = x->p->files[i];
    struct source *s = &x->sources[i];
    struct sha sha = {0};
    char sha256[65];
    int fd = -1;
    err_t err = open_source(x, path, &fd);
    if (err)
        return err;
    err = sha_init(&sha);
    err = err ? fail(x, err) : read_pieces(x, fd, path, &sha, sink, arg);
    if (!err && (err = sha_hex(&sha, sha256)))
        fail(x, err);
    if (!err && !s->sha256[0])
        memcpy(s->sha256, sha256, sizeof(sha256));
    if (!err && strcmp(s->sha256, sha256) != 0)
        err = why_set(x->why, ERR_AGAIN, "%s: the file changed while it was read; run the command again", path);
    sha_fini(&sha);
    close(fd);
    return err;
}

static err_t read_sources(struct preparation *x, sink_fn *sink, void *arg)
{
    err_t err = OK;
    for (int i = 0; !err && i < x->p->n_files; i++)
        err = read_source(x, i, sink, arg);
    return err;
}

static err_t measure_sources(struct preparation *x)
{
    bool counts = tokenizer_counts_words(x->p->tokenizer) && !x->tokenizer;
    for (int i = 0; i < x->p->n_files; i++) {
        struct stat st;
        if (stat(x->p->files[i], &st))
            return fail_file(x, x->p->files[i], errno);
        x->sources[i].bytes = st.st_size;
        x->index.source_bytes += st.st_size;
    }
    x->total = x->index.source_bytes * (counts ? 3 : 2);
    return OK;
}

/* ---- the name of the set ---- */

static err_t name_set(struct preparation *x)
{
    struct buf text = {0};
    size_t len;
    const char *kind = index_tokenizer_name(x->p->tokenizer);
    const void *vocab = x->tokenizer ? tokenizer_vocab_file(x->tokenizer, &len) : NULL;
    char vocab_sha256[65] = "-";
    err_t err = vocab ? sha_of(vocab, len, vocab_sha256) : OK;
    if (!err)
        err = buf_printf(&text, "dtd-data 1\ntokenizer %s\nlowercase %d\nvocab %s\n", kind, x->p->lowercase,
                         vocab_sha256);
    bool tables = x->p->tokenizer == TOKENIZER_BPE || x->p->tokenizer == TOKENIZER_SPLIT;
    if (!err && tables) /* other tables may give other ids */
        err = buf_printf(&text, "unicode %s\n", UNICODE_TABLES);
    for (int i = 0; !err && i < x->p->n_files; i++)
        err = buf_printf(&text, "file %s\n", x->sources[i].sha256);
    if (!err)
        err = sha_of(text.data, text.len, x->index.hash);
    buf_fini(&text);
    return err ? fail(x, err) : OK;
}

/* ---- tokenizers ---- */

static err_t fail_encode(struct preparation *x, err_t err)
{
    if (err == ERR_UNSUPPORTED)
        return why_set(x->why, err, "a word has more than %d bytes; if the files are not text, use the tokenizer bytes",
                       VOCAB_WORD_MAX_BYTES);
    if (err != ERR_LIMIT)
        return fail(x, err);
    return why_set(
        x->why, err,
        "the tokenizer's pattern does not split %zu MiB of the text; if the files are not text, use the tokenizer "
        "bytes",
        BPE_MAX_PIECE >> 20);
}

static err_t borrow_vocab(struct preparation *x)
{
    struct data_set *from;
    size_t len;
    err_t err = data_open(x->cache, x->p->vocab_from, &from, x->why);
    if (err)
        return err;
    const void *vocab = tokenizer_vocab_file(data_tokenizer(from), &len);
    if (!vocab)
        err = why_set(x->why, ERR_INVALID, "the set %s has no vocabulary: its tokenizer is bytes", x->p->vocab_from);
    else if (tokenizer_kind(data_tokenizer(from)) != x->p->tokenizer)
        err = why_set(x->why, ERR_INVALID, "the set %s has another tokenizer: %s", x->p->vocab_from,
                      index_tokenizer_name(tokenizer_kind(data_tokenizer(from))));
    else if (tokenizer_lowercase(data_tokenizer(from)) != x->p->lowercase)
        err = why_set(x->why, ERR_INVALID, "the set %s %s text to lower case, but this set does the opposite",
                      x->p->vocab_from, x->p->lowercase ? "does not convert" : "converts");
    else
        err = tokenizer_new_from(x->p->tokenizer, vocab, len, x->p->lowercase, &x->tokenizer, x->why);
    data_close(from);
    return err;
}

static err_t count_word(void *arg, const uint8_t *word, size_t len)
{
    struct vocab *words = arg;
    int32_t id;
    err_t err = vocab_add(words, word, len, &id);
    if (!err)
        words->list[id].count++;
    return err;
}

struct counting {
    struct preparation *x;
    struct splitter splitter;
    struct split split;
};

static err_t count_piece(void *arg, const uint8_t *data, size_t len)
{
    struct counting *c = arg;
    bool split = c->x->p->tokenizer == TOKENIZER_SPLIT;
    err_t err = split ? split_feed(&c->split, data, len) : splitter_feed(&c->splitter, data, len);
    if (err == ERR_LIMIT)
        return why_set(c->x->why, err, "more than %d different words; use the tokenizer bytes", VOCAB_MAX_WORDS);
    return err ? fail_encode(c->x, err) : OK;
}

static err_t count_vocab(struct preparation *x)
{
    struct vocab words = {0};
    struct buf vocab = {0};
    bool lower = x->p->lowercase;
    struct counting c = {.x = x,
                         .splitter = {.lowercase = lower, .emit = count_word, .arg = &words},
                         .split = {.lowercase = lower, .emit = count_word, .arg = &words}};
    err_t err = read_sources(x, count_piece, &c);
    if (!err && (err = split_finish(&c.split)))
        fail_encode(x, err);
    if (!err) {
        err = tokenizer_vocab_print(x->p->tokenizer, &words, &vocab);
        if (err)
            fail(x, err);
    }
    if (!err)
        err = tokenizer_new_from(x->p->tokenizer, vocab.data, vocab.len, lower, &x->tokenizer, x->why);
    buf_fini(&vocab);
    vocab_fini(&words);
    return err;
}

static err_t make_tokenizer(struct preparation *x)
{
    if (x->tokenizer)
        return OK;
    if (tokenizer_counts_words(x->p->tokenizer))
        return count_vocab(x);
    err_t err = tokenizer_bytes_new(&x->tokenizer);
    return err ? fail(x, err) : OK;
}

/* ---- writing ---- */

struct set_writer {
    struct preparation *x;
    struct shard_writer shards;
    struct encoder encoder;
    struct buf ids;
};

static err_t write_ids(struct set_writer *w)
{
    err_t err = shard_writer_put(&w->shards, (const int32_t *)(void *)w->ids.data,
                                 (int64_t)(w->ids.len / sizeof(int32_t)), w->x->why);
    w->ids.len = 0;
    return err;
}

static err_t write_piece(void *arg, const uint8_t *data, size_t len)
{
    struct set_writer *w = arg;
    err_t err = encoder_feed(&w->encoder, data, len);
    return err ? fail_encode(w->x, err) : write_ids(w);
}

static err_t write_tokens(struct set_writer *w)
{
    err_t err = read_sources(w->x, write_piece, w);
    if (!err && (err = encoder_finish(&w->encoder)))
        fail_encode(w->x, err);
    if (!err)
        err = write_ids(w);
    if (!err)
        err = shard_writer_finish(&w->shards, w->x->why);
    if (!err && !w->shards.tokens)
        err = why_set(w->x->why, ERR_INVALID, "the files are empty: %s%s", w->x->p->files[0],
                      w->x->p->n_files > 1 ? ", .." : "");
    return err;
}

static err_t write_vocab(struct preparation *x)
{
    size_t len;
    const void *vocab = tokenizer_vocab_file(x->tokenizer, &len);
    if (!vocab)
        return OK;
    err_t err = sha_of(vocab, len, x->index.vocab_sha256);
    return err ? fail(x, err) : shard_file_write(x->temp, INDEX_VOCAB, vocab, len, x->why);
}

static err_t write_index(struct preparation *x, const struct shard_writer *shards)
{
    struct buf text = {0};
    x->index.tokens = shards->tokens;
    x->index.n_shards = shards->n_shards;
    x->index.shards = shards->shards;
    err_t err = index_print(&x->index, &text);
    err = err ? fail(x, err) : shard_file_write(x->temp, INDEX_FILE, text.data, text.len, x->why);
    x->index.shards = NULL;
    buf_fini(&text);
    return err;
}

/* Writes the set into x->temp. */
static err_t write_set(struct preparation *x)
{
    struct set_writer w = {.x = x};
    x->index.tokenizer = x->p->tokenizer;
    x->index.lowercase = x->p->lowercase;
    x->index.vocab = tokenizer_vocab(x->tokenizer);
    x->index.wide = x->index.vocab > 65535;
    shard_writer_init(&w.shards, x->temp, x->index.wide, x->p->shard_tokens ? x->p->shard_tokens : SHARD_TOKENS);
    encoder_init(&w.encoder, x->tokenizer, &w.ids);
    err_t err = write_tokens(&w);
    if (!err)
        err = write_vocab(x);
    if (!err)
        err = write_index(x, &w.shards);
    if (!err && (err = file_sync_dir(x->temp)))
        fail(x, err);
    shard_writer_fini(&w.shards);
    encoder_fini(&w.encoder);
    buf_fini(&w.ids);
    return err;
}

/* ---- preparing a set ---- */

/* OK: the set exists and is complete. A damaged set is moved away; processes that read it keep their mappings. */
static err_t find_set(struct preparation *x)
{
    struct data_set *set;
    char dir[PATH_MAX], aside[PATH_MAX];
    err_t err = data_open(x->cache, x->index.hash, &set, x->why);
    if (!err)
        data_close(set);
    if (err != ERR_CORRUPT)
        return err;
    err = cache_join(x->cache, x->index.hash, dir, sizeof(dir), x->why);
    if (!err)
        err = cache_temp_new(x->cache, aside, sizeof(aside), x->why);
    if (err)
        return err;
    if (rename(dir, aside) && errno != ENOENT)
        return fail_file(x, dir, errno);
    cache_remove(aside);
    return ERR_NOTFOUND;
}

static err_t publish(struct preparation *x)
{
    char dir[PATH_MAX];
    err_t err = cache_join(x->cache, x->index.hash, dir, sizeof(dir), x->why);
    if (err)
        return err;
    if (!rename(x->temp, dir)) {
        err = file_sync_dir(x->cache);
        return err ? fail(x, err) : OK;
    }
    if (errno != EEXIST && errno != ENOTEMPTY)
        return fail_file(x, dir, errno);
    cache_remove(x->temp);
    return find_set(x);
}

static err_t make_set(struct preparation *x)
{
    err_t err = make_tokenizer(x);
    if (!err)
        err = cache_temp_new(x->cache, x->temp, sizeof(x->temp), x->why);
    if (err)
        return err;
    err = write_set(x);
    if (!err)
        err = publish(x);
    if (err)
        cache_remove(x->temp);
    return err;
}

static err_t run(struct preparation *x)
{
    err_t err = file_make_dirs(x->cache, 0755);
    if (err)
        return why_set(x->why, err, "%s: %s", x->cache, err_text(err));
    cache_clean(x->cache);
    if (x->p->tokenizer != TOKENIZER_BYTES && x->p->vocab_from)
        err = borrow_vocab(x);
    else if (x->p->tokenizer == TOKENIZER_BPE)
        err = tokenizer_bpe_files(x->p->tokenizer_files, x->p->n_tokenizer_files, &x->tokenizer, x->why);
    if (!err)
        err = measure_sources(x);
    if (!err)
        err = read_sources(x, NULL, NULL);
    if (!err)
        err = name_set(x);
    if (!err)
        err = find_set(x);
    if (err == ERR_NOTFOUND && x->index.hash[0])
        err = make_set(x);
    if (!err)
        report(x, x->total - x->done);
    return err;
}

static err_t check_request(const struct data_prepare *p, struct why *why)
{
    if (p->n_files < 1)
        return why_set(why, ERR_INVALID, "no files to prepare");
    if (!tokenizer_counts_words(p->tokenizer) && p->lowercase)
        return why_set(why, ERR_INVALID, "only the tokenizers words and split support lowercase");
    if (p->shard_tokens < 0 || p->shard_tokens > INDEX_MAX_TOKENS)
        return why_set(why, ERR_INVALID, "%" PRId64 " is not a legal number of tokens per shard", p->shard_tokens);
    return OK;
}

err_t data_prepare(const struct data_prepare *p, char ret_hash[65], struct why *why)
{
    struct preparation x = {.p = p, .why = why};
    err_t err = check_request(p, why);
    if (!err)
        err = cache_dir(p->cache, x.cache, sizeof(x.cache), why);
    if (err)
        return err;
    x.piece = malloc(PIECE);
    x.sources = calloc((size_t)p->n_files, sizeof(*x.sources));
    err = x.piece && x.sources ? run(&x) : fail(&x, ERR_NOMEM);
    if (!err)
        memcpy(ret_hash, x.index.hash, sizeof(x.index.hash));
    tokenizer_free(x.tokenizer);
    free(x.piece);
    free(x.sources);
    return err;
}
