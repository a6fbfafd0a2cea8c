/* Files are read in chunks of 1 MiB, so memory does not grow with them. They are read several times: to compute the
 * hash that names the set, to count words, and to write tokens. Each pass hashes the file again and so detects a file
 * that changes meanwhile; otherwise a set's name would not match its content, and later users would read wrong data.
 *
 * The set is written to a new folder and renamed when it is durable. If two processes prepare the same set, both write
 * it; the second rename fails, and both use the set of the first.
 *
 * Every few seconds the files become durable and a journal states how far they go (unfinished.h). Documents continue
 * behind the last batch that was written. A text continues at the first byte that its encoder has not encoded yet: what
 * it encodes does not depend on the bytes before, except that they exist. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/data.h"
#include "common/data/index.h"
#include "common/data/not_text.h"
#include "common/data/preparation.h"
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
#define SAVE_MS 10000 /* of work are lost at most; a save takes far less */
#define OTHER_FILES 6 /* the folder, a last shard, the index, vocab, ends of documents, weights */

err_t preparation_fail(struct preparation *x, err_t err)
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

void preparation_report(struct preparation *x, int64_t bytes)
{
    x->done += bytes;
    if (x->done > x->total)
        x->done = x->total; /* a file has grown */
    if (x->p->progress)
        x->p->progress(x->done, x->total, x->p->arg);
}

err_t preparation_stopped(struct preparation *x)
{
    if (!x->p->stop || !*x->p->stop)
        return OK;
    return why_set(x->why, ERR_CANCELED, "interrupted; run the same command again to continue");
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

/* How a pass reads a file. */
struct pass {
    bool content; /* decompressed; false: the file's own bytes */
    bool checks;  /* that the content is text */
    sink_fn *sink;
    void *arg;
};

/* Passes the bytes of a file to the hash (NULL: none) and the sink. Adds a newline if the text does not end with one,
 * so that the last line of a file and the first line of the next stay separate. */
static err_t read_pieces(struct preparation *x, struct input_file *f, const struct pass *pass, struct sha *sha)
{
    struct byte_stream *s = pass->content ? f->stream : &f->counted;
    bool checks = pass->checks;
    uint8_t last = '\n';
    for (int64_t before = 0;; before = f->consumed) {
        size_t n;
        err_t err = preparation_stopped(x);
        err = err ? err : s->ops->read(s, x->piece, PIECE, &n, x->why);
        if (err)
            return err;
        if (n == 0)
            break;
        err = checks ? check_text(x, s->name, x->piece, n) : OK;
        checks = false;
        if (!err && sha && (err = sha_add(sha, x->piece, n)))
            preparation_fail(x, err);
        if (!err && pass->sink)
            err = pass->sink(pass->arg, x->piece, n);
        if (err)
            return err;
        last = x->piece[n - 1];
        preparation_report(x, f->consumed - before);
    }
    return pass->sink && last != '\n' ? pass->sink(pass->arg, (const uint8_t *)"\n", 1) : OK;
}

static err_t hash_pieces(struct preparation *x, struct source *s, struct input_file *f, const struct pass *pass)
{
    struct sha sha = {0};
    char sha256[65];
    err_t err = sha_init(&sha);
    err = err ? preparation_fail(x, err) : read_pieces(x, f, pass, &sha);
    if (!err && (err = sha_hex(&sha, sha256)))
        preparation_fail(x, err);
    if (!err && !s->sha256[0])
        memcpy(s->sha256, sha256, sizeof(sha256));
    if (!err && strcmp(s->sha256, sha256) != 0)
        err =
            why_set(x->why, ERR_AGAIN, "%s: the file changed while it was read; run the command again", s->input.path);
    sha_fini(&sha);
    return err;
}

/* Reads a file completely. The first pass stores the hash of its bytes; later passes compare it if they read the same
 * bytes. */
static err_t read_source(struct preparation *x, struct source *s, const struct pass *pass)
{
    struct input_file f;
    err_t err = input_file_open(&s->input, &f, x->why);
    if (err)
        return err;
    err = pass->content && s->input.codec ? read_pieces(x, &f, pass, NULL) : hash_pieces(x, s, &f, pass);
    if (!err)
        err = input_file_same(&s->input, &f, x->why);
    input_file_close(&f);
    return err;
}

static err_t hash_sources(struct preparation *x)
{
    err_t err = OK;
    for (int i = 0; !err && i < x->n_sources; i++) {
        const struct pass pass = {.checks = x->kind == INPUT_TEXT && !x->sources[i].input.codec};
        err = read_source(x, &x->sources[i], &pass);
    }
    return err;
}

/* Of the files from number `from` on; *at is the number of the file that is read. */
static err_t read_text(struct preparation *x, int from, int *at, sink_fn *sink, void *arg)
{
    err_t err = OK;
    for (int i = 0; i < from; i++)
        preparation_report(x, x->sources[i].input.bytes);
    for (int i = from; !err && i < x->n_sources; i++) {
        const struct pass pass = {true, x->sources[i].input.codec != NULL, sink, arg};
        *at = i;
        err = read_source(x, &x->sources[i], &pass);
    }
    return err;
}

/* ---- what the files are ---- */

static err_t check_kinds(struct preparation *x)
{
    const struct input *first = &x->sources[0].input;
    x->kind = first->format->kind;
    x->plain = x->kind == INPUT_TEXT;
    for (int i = 0; i < x->n_sources; i++) {
        const struct input *in = &x->sources[i].input;
        x->plain = x->plain && !in->codec;
        if (in->format->kind != x->kind)
            return why_set(
                x->why, ERR_INVALID,
                "%s is %s, but %s is %s: files of one list are all text, or all documents, or all token ids. "
                "Set data.format if one is not recognised",
                first->path, first->format->name, in->path, in->format->name);
    }
    return OK;
}

static int compare_sources(const void *a, const void *b)
{
    return strcmp(((const struct source *)a)->input.path, ((const struct source *)b)->input.path);
}

/* A pair of files that both are in the list is one source. */
static void merge_pairs(struct preparation *x)
{
    int n = 0;
    qsort(x->sources, (size_t)x->n_sources, sizeof(*x->sources), compare_sources);
    for (int i = 0; i < x->n_sources; i++) {
        if (n && compare_sources(&x->sources[n - 1], &x->sources[i]) == 0)
            input_fini(&x->sources[i].input);
        else
            x->sources[n++] = x->sources[i];
    }
    x->n_sources = n;
}

static err_t find_inputs(struct preparation *x)
{
    bool counts = tokenizer_counts_words(x->p->tokenizer) && !x->tokenizer, pairs = false;
    for (int i = 0; i < x->p->n_files; i++) {
        struct input *in = &x->sources[i].input;
        err_t err = input_find(x->p->files[i], x->p, in, x->why);
        if (err)
            return err;
        x->n_sources++;
        pairs |= strcmp(in->path, x->p->files[i]) != 0;
    }
    if (pairs)
        merge_pairs(x);
    for (int i = 0; i < x->n_sources; i++)
        x->index.source_bytes += x->sources[i].input.bytes;
    x->total = x->index.source_bytes * (counts ? 3 : 2);
    return check_kinds(x);
}

static bool is_set(const char *option)
{
    return option && option[0];
}

/* The last token of a text classifies it, so a set with labels gets no token that the tokenizer's file does not add. */
static const char *eos_of(const struct data_prepare *p)
{
    const bool usual = !is_set(p->eos) || strcmp(p->eos, "auto") == 0;
    return is_set(p->label) && usual ? "file" : p->eos;
}

static err_t make_ends(struct preparation *x)
{
    const struct data_prepare *p = x->p;
    if (is_set(p->label) && x->kind != INPUT_DOCUMENTS)
        return why_set(
            x->why, ERR_INVALID,
            "data.label: %s has no documents with labels: write JSON lines, Parquet, Arrow or HDF5 with a text "
            "and a label in each row",
            p->files[0]);
    if (x->kind == INPUT_TOKENS)
        return doc_ends_make(p->tokenizer, x->tokenizer, is_set(p->bos) ? p->bos : "none",
                             is_set(p->eos) ? p->eos : "none", &x->ends, x->why);
    if (x->kind == INPUT_DOCUMENTS)
        return doc_ends_make(p->tokenizer, x->tokenizer, p->bos, eos_of(p), &x->ends, x->why);
    const char *key = is_set(p->field) ? "field" : is_set(p->bos) ? "bos" : is_set(p->eos) ? "eos" : NULL;
    if (!key)
        return OK;
    return why_set(
        x->why, ERR_INVALID,
        "data.%s: %s is plain text, which has no documents: text files are joined. Leave the key out, or write "
        "the documents as JSON lines",
        key, p->files[0]);
}

/* ---- the name of the set ---- */

static err_t print_ids(struct buf *text, const char *key, const struct buf *ids)
{
    err_t err = buf_printf(text, "%s", key);
    for (size_t i = 0; !err && i < ids->len / sizeof(int32_t); i++)
        err = buf_printf(text, " %d", ((const int32_t *)(const void *)ids->data)[i]);
    return err ? err : buf_printf(text, "\n");
}

/* The lines that sets of plain text do not have. */
static err_t name_documents(struct preparation *x, struct buf *text)
{
    err_t err = OK;
    if (is_set(x->p->field))
        err = buf_printf(text, "field %s\n", x->p->field);
    if (!err && is_set(x->p->label))
        err = buf_printf(text, "label %s\n", x->p->label);
    if (!err && x->p->template != CHAT_NONE)
        err = buf_printf(text, "template %s\n", chat_name(x->p->template));
    if (!err)
        err = print_ids(text, "before", &x->ends.before);
    if (!err)
        err = print_ids(text, "after", &x->ends.after);
    return err || !x->ends.line ? err : buf_printf(text, "line\n");
}

static err_t name_file(const struct preparation *x, const struct source *s, struct buf *text)
{
    if (x->plain)
        return buf_printf(text, "file %s\n", s->sha256);
    return buf_printf(text, "file %s %s %s%s%s%s%s\n", s->input.format->name,
                      s->input.codec ? s->input.codec->name : "-", s->sha256, s->index_sha256[0] ? " " : "",
                      s->index_sha256, s->losses_sha256[0] ? " " : "", s->losses_sha256);
}

static err_t name_set(struct preparation *x)
{
    struct buf *text = &x->name;
    size_t len;
    const char *kind = index_tokenizer_name(x->p->tokenizer);
    const void *vocab = x->tokenizer ? tokenizer_vocab_file(x->tokenizer, &len) : NULL;
    char vocab_sha256[65] = "-";
    err_t err = vocab ? sha_of(vocab, len, vocab_sha256) : OK;
    if (!err)
        err = buf_printf(text, "dtd-data %d\ntokenizer %s\nlowercase %d\nvocab %s\n", x->plain ? 1 : 2, kind,
                         x->p->lowercase, vocab_sha256);
    bool tables = x->p->tokenizer == TOKENIZER_BPE || x->p->tokenizer == TOKENIZER_SPLIT;
    if (!err && tables) /* other tables may give other ids */
        err = buf_printf(text, "unicode %s\n", UNICODE_TABLES);
    if (!err && !x->plain)
        err = name_documents(x, text);
    for (int i = 0; !err && i < x->n_sources; i++)
        err = name_file(x, &x->sources[i], text);
    if (!err)
        err = sha_of(text->data, text->len, x->index.hash);
    return err ? preparation_fail(x, err) : OK;
}

/* ---- tokenizers ---- */

static err_t fail_encode(struct preparation *x, err_t err)
{
    if (err == ERR_UNSUPPORTED)
        return why_set(x->why, err, "a word has more than %d bytes; if the files are not text, use the tokenizer bytes",
                       VOCAB_WORD_MAX_BYTES);
    if (err != ERR_LIMIT)
        return preparation_fail(x, err);
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

/* Ends the last word of a document. */
static err_t count_finish(struct counting *c)
{
    bool split = c->x->p->tokenizer == TOKENIZER_SPLIT;
    err_t err = split ? split_finish(&c->split) : splitter_finish(&c->splitter);
    return err ? fail_encode(c->x, err) : OK;
}

static err_t count_document(void *arg, int source, const struct document *d)
{
    struct counting *c = arg;
    bool open = c->x->ends.line && d->len && d->text[d->len - 1] != '\n';
    err_t err = count_piece(c, d->text, d->len);
    if (!err && open)
        err = count_piece(c, (const uint8_t *)"\n", 1);
    return err ? err : count_finish(c);
}

static err_t count_vocab(struct preparation *x)
{
    struct vocab words = {0};
    struct buf vocab = {0};
    bool lower = x->p->lowercase;
    struct counting c = {.x = x,
                         .splitter = {.lowercase = lower, .emit = count_word, .arg = &words},
                         .split = {.lowercase = lower, .emit = count_word, .arg = &words}};
    int file;
    err_t err =
        x->kind == INPUT_TEXT ? read_text(x, 0, &file, count_piece, &c) : documents_each(x, 0, 0, count_document, &c);
    if (!err && x->kind == INPUT_TEXT)
        err = count_finish(&c);
    if (!err) {
        err = tokenizer_vocab_print(x->p->tokenizer, &words, &vocab);
        if (err)
            preparation_fail(x, err);
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
    return err ? preparation_fail(x, err) : OK;
}

/* ---- writing ---- */

struct set_writer {
    struct preparation *x;
    struct shard_writer shards;
    struct encoder encoder;
    struct buf ids;
    /* text: places in the joined text are relative to the begin of the file with which this run began */
    int64_t skip;        /* bytes that an earlier run encoded */
    int64_t fed;         /* place up to which the encoder has the text */
    int file, last_file; /* that is read; for which begins are known */
    int64_t *begins;     /* of each file that was read */
};

/* The first byte that is not encoded, as a file and a place in it. False: it is not known, or this run has encoded
 * nothing. */
static bool find_rest(struct set_writer *w, int *ret_file, int64_t *ret_offset)
{
    int file = w->last_file;
    size_t pending = 0;
    if (!encoder_pending(&w->encoder, &pending))
        return false;
    int64_t at = w->fed - (int64_t)pending;
    if (at <= w->skip)
        return false;
    while (file > w->x->unfinished.journal.source && w->begins[file] > at)
        file--;
    *ret_file = file;
    *ret_offset = at - w->begins[file];
    return true;
}

static err_t save_text(struct set_writer *w)
{
    int file = 0;
    int64_t offset = 0;
    return find_rest(w, &file, &offset) ? preparation_save(w->x, file, offset, &w->shards, NULL) : OK;
}

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
    while (w->last_file < w->file)
        w->begins[++w->last_file] = w->fed;
    size_t skip = (int64_t)len < w->skip - w->fed ? len : w->skip > w->fed ? (size_t)(w->skip - w->fed) : 0;
    w->fed += (int64_t)len;
    err_t err = skip == len ? OK : encoder_feed(&w->encoder, data + skip, len - skip);
    if (err)
        return fail_encode(w->x, err);
    err = write_ids(w);
    return err || skip == len || !preparation_saves(w->x) ? err : save_text(w);
}

/* Goes on where the journal ends. */
static err_t continue_text(struct set_writer *w)
{
    const struct journal *j = &w->x->unfinished.journal;
    w->begins = calloc((size_t)w->x->n_sources, sizeof(*w->begins));
    w->file = w->last_file = j->source;
    w->skip = j->offset;
    err_t err = w->begins ? OK : ERR_NOMEM;
    if (!err && (j->source || j->offset))
        err = encoder_continue(&w->encoder);
    return err ? preparation_fail(w->x, err) : OK;
}

static err_t write_text(struct set_writer *w)
{
    err_t err = continue_text(w);
    err = err ? err : read_text(w->x, w->file, &w->file, write_piece, w);
    if (err == ERR_CANCELED && save_text(w))
        return err; /* what was saved before remains */
    if (!err && (err = encoder_finish(&w->encoder)))
        fail_encode(w->x, err);
    return err ? err : write_ids(w);
}

static err_t write_tokens(struct set_writer *w)
{
    err_t err = w->x->kind == INPUT_TEXT ? write_text(w) : documents_write(w->x, &w->shards);
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
    return err ? preparation_fail(x, err) : shard_file_write(x->unfinished.dir, INDEX_VOCAB, vocab, len, x->why);
}

static err_t write_index(struct preparation *x)
{
    struct buf text = {0};
    err_t err = index_print(&x->index, &text);
    err = err ? preparation_fail(x, err) : shard_file_write(x->unfinished.dir, INDEX_FILE, text.data, text.len, x->why);
    buf_fini(&text);
    return err;
}

static int64_t shard_cap(const struct preparation *x)
{
    return x->p->shard_tokens ? x->p->shard_tokens : SHARD_TOKENS;
}

/* Encodes text or documents into shards of the set. */
static err_t write_shards(struct preparation *x)
{
    struct set_writer w = {.x = x};
    shard_writer_init(&w.shards, x->unfinished.dir, x->index.wide, shard_cap(x));
    encoder_init(&w.encoder, x->tokenizer, &w.ids);
    err_t err = shard_writer_continue(&w.shards, x->unfinished.journal.shards, x->unfinished.journal.n_shards, x->why);
    err = err ? err : write_tokens(&w);
    x->index.tokens = w.shards.tokens;
    x->index.n_shards = w.shards.n_shards;
    x->index.shards = w.shards.shards;
    w.shards.shards = NULL;
    shard_writer_fini(&w.shards);
    encoder_fini(&w.encoder);
    buf_fini(&w.ids);
    free(w.begins);
    return err;
}

/* ---- saving ---- */

bool preparation_saves(const struct preparation *x)
{
    int64_t ms = x->p->save_ms ? x->p->save_ms : SAVE_MS;
    return x->unfinished.lock >= 0 && clock_mono_ms() - x->saved_ms >= ms;
}

static err_t fill_counts(const struct preparation *x, struct journal *j)
{
    j->n_counts = x->index.n_sources ? j->source + 1 : 0;
    j->counts = calloc((size_t)j->n_counts + 1, sizeof(*j->counts));
    for (int i = 0; j->counts && i < j->n_counts; i++)
        j->counts[i] = (struct journal_count){x->index.sources[i].documents, x->index.sources[i].tokens};
    return j->counts ? OK : ERR_NOMEM;
}

err_t preparation_save(struct preparation *x, int source, int64_t offset, struct shard_writer *shards,
                       struct marks_writer *marks)
{
    struct journal j = {.cap = shards->cap, .source = source, .offset = offset, .n_shards = shards->n_shards};
    if (x->unfinished.lock < 0)
        return OK;
    err_t err = shard_writer_sync(shards, x->why);
    if (!err && marks)
        err = marks_writer_sync(marks, x->why);
    if (err)
        return err;
    memcpy(j.hash, x->index.hash, sizeof(j.hash));
    j.documents = marks ? marks->documents : 0;
    j.weighted = marks && marks->weighted;
    j.labels = x->index.labels;
    j.bits = marks ? marks->bits : 0;
    err = fill_counts(x, &j);
    j.shards = shards->shards; /* lent */
    err = err ? preparation_fail(x, err) : unfinished_save(&x->unfinished, &j, x->why);
    j.shards = NULL;
    journal_fini(&j);
    x->saved_ms = clock_mono_ms();
    return err;
}

/* Writes the set into x->unfinished.dir. */
static err_t write_set(struct preparation *x)
{
    x->index.tokenizer = x->p->tokenizer;
    x->index.lowercase = x->p->lowercase;
    x->index.vocab = tokenizer_vocab(x->tokenizer);
    x->index.wide = x->index.vocab > 65535;
    err_t err = x->kind == INPUT_TOKENS ? tokens_write(x) : write_shards(x);
    if (!err)
        err = write_vocab(x);
    if (!err)
        err = write_index(x);
    if (!err && (err = file_sync_dir(x->unfinished.dir)))
        preparation_fail(x, err);
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
    unfinished_strip(&x->unfinished);
    if (!rename(x->unfinished.dir, dir)) {
        x->unfinished.dir[0] = '\0';
        err = file_sync_dir(x->cache);
        return err ? preparation_fail(x, err) : OK;
    }
    if (errno != EEXIST && errno != ENOTEMPTY)
        return fail_file(x, dir, errno);
    return find_set(x);
}

/* Ids in place take moments, so nothing of them is saved. */
static err_t open_unfinished(struct preparation *x)
{
    struct why note = {0};
    if (x->kind == INPUT_TOKENS)
        return cache_temp_new(x->cache, x->unfinished.dir, sizeof(x->unfinished.dir), x->why);
    const char **paths = calloc((size_t)x->n_sources, sizeof(*paths));
    if (!paths)
        return preparation_fail(x, ERR_NOMEM);
    for (int i = 0; i < x->n_sources; i++)
        paths[i] = x->sources[i].input.path;
    const struct unfinished_inputs in = {x->index.hash, &x->name, paths, x->n_sources, shard_cap(x)};
    err_t err = unfinished_open(x->cache, &in, &x->unfinished, &note, x->why);
    free(paths);
    if (!err && note.text[0] && x->p->report)
        x->p->report(note.text, x->p->arg);
    x->saved_ms = clock_mono_ms();
    return err;
}

/* Whether the same inputs may succeed another time: the rest of an error is in them. */
static bool may_continue(err_t err)
{
    return err != ERR_INVALID && err != ERR_UNSUPPORTED && err != ERR_CORRUPT;
}

/* About the bytes of the set. Text in a natural language has 3 to 5 bytes per token, compressed text a third of its
 * bytes. */
static int64_t expected_bytes(const struct preparation *x)
{
    const int64_t token = tokenizer_vocab(x->tokenizer) > 65535 ? 4 : 2;
    int64_t text = 0;
    for (int i = 0; i < x->n_sources; i++)
        text += x->sources[i].input.bytes * (x->sources[i].input.codec ? 3 : 1);
    if (x->kind == INPUT_TOKENS)
        return 0; /* the ids stay where they are */
    return text * token / (x->p->tokenizer == TOKENIZER_BYTES ? 1 : 4);
}

static void warn_if_tight(struct preparation *x)
{
    struct why note;
    const int64_t bytes = expected_bytes(x), shard = x->p->shard_tokens ? x->p->shard_tokens : SHARD_TOKENS;
    if (x->p->warn && cache_is_tight(x->cache, bytes, bytes / 2 / shard + OTHER_FILES, &note))
        x->p->warn(note.text, x->p->arg);
}

static err_t make_set(struct preparation *x)
{
    err_t err = make_tokenizer(x);
    if (!err)
        warn_if_tight(x);
    if (!err)
        err = open_unfinished(x);
    if (err)
        return err;
    err = write_set(x);
    if (!err)
        err = publish(x);
    unfinished_close(&x->unfinished, err && may_continue(err));
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
        err = find_inputs(x);
    if (!err)
        err = make_ends(x);
    if (!err)
        err = x->kind == INPUT_TOKENS ? tokens_open(x) : hash_sources(x);
    if (!err)
        err = name_set(x);
    if (!err)
        err = find_set(x);
    if (err == ERR_NOTFOUND && x->index.hash[0])
        err = make_set(x);
    if (!err)
        preparation_report(x, x->total - x->done);
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

/* No call reports the quota of a home before a write exceeds it. */
static err_t name_remedy(const struct preparation *x, err_t err)
{
    struct why text;
    if (err != ERR_NOSPACE || !x->why)
        return err;
    text = *x->why;
    return why_set(x->why, err, "%.600s. The disk or the quota of %.200s is full. " CACHE_REMEDY, text.text, x->cache);
}

err_t data_prepare(const struct data_prepare *p, char ret_hash[65], struct why *why)
{
    struct preparation x = {.p = p, .why = why, .unfinished = {.lock = -1}};
    err_t err = check_request(p, why);
    if (!err)
        err = cache_dir(p->cache, x.cache, sizeof(x.cache), why);
    if (err)
        return err;
    x.piece = malloc(PIECE);
    x.sources = calloc((size_t)p->n_files, sizeof(*x.sources));
    err = x.piece && x.sources ? name_remedy(&x, run(&x)) : preparation_fail(&x, ERR_NOMEM);
    if (!err)
        memcpy(ret_hash, x.index.hash, sizeof(x.index.hash));
    tokenizer_free(x.tokenizer);
    doc_ends_fini(&x.ends);
    index_fini(&x.index);
    buf_fini(&x.name);
    for (int i = 0; i < x.n_sources; i++) {
        input_fini(&x.sources[i].input);
        token_file_close(&x.sources[i].tokens);
    }
    free(x.piece);
    free(x.sources);
    return err;
}
