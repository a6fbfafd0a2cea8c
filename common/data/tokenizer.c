/* The tokenizer words splits like PyTorch's WikiText examples, line.split() + ["<eos>"], so perplexities are
 * comparable. White space is exactly the six ASCII characters. So the result does not depend on the locale or on a
 * Unicode version, and the text need not be UTF-8. */
#include "common/data/tokenizer.h"

#include "common/base/file.h"
#include "common/data/vocab_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tokenizer {
    enum tokenizer_kind kind;
    bool lowercase;
    struct vocab words;
    int32_t unk, eos;    /* words */
    struct bpe *bpe;     /* byte-level encoding without a normalizer */
    struct chain *chain; /* any other tokenizer of tokenizer files */
    struct buf vocab;    /* content of the vocab file */
};

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* ---- splitting ---- */

static void lower(uint8_t *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] >= 'A' && text[i] <= 'Z')
            text[i] = (uint8_t)(text[i] + 'a' - 'A');
}

static void carry(struct splitter *s, const uint8_t *part, size_t len)
{
    if (len > VOCAB_WORD_MAX_BYTES || s->n + len > VOCAB_WORD_MAX_BYTES) {
        s->n = VOCAB_WORD_MAX_BYTES + 1;
        return;
    }
    memcpy(s->word + s->n, part, len);
    s->n += len;
}

static err_t emit_carried(struct splitter *s)
{
    size_t len = s->n;
    s->n = 0;
    if (len > VOCAB_WORD_MAX_BYTES)
        return s->emit(s->arg, (const uint8_t *)TOKENIZER_UNK, strlen(TOKENIZER_UNK));
    if (s->lowercase)
        lower(s->word, len);
    return s->emit(s->arg, s->word, len);
}

err_t splitter_feed(struct splitter *s, const uint8_t *text, size_t len)
{
    const uint8_t *end = text + len;
    while (text < end) {
        const uint8_t *start = text;
        err_t err = OK;
        while (text < end && !is_space(*text))
            text++;
        if (s->n || text == end || s->lowercase || text - start > VOCAB_WORD_MAX_BYTES)
            carry(s, start, (size_t)(text - start));
        else if (text > start)
            err = s->emit(s->arg, start, (size_t)(text - start));
        if (text == end)
            return err;
        if (s->n)
            err = emit_carried(s);
        if (!err && *text++ == '\n')
            err = s->emit(s->arg, (const uint8_t *)TOKENIZER_EOS, strlen(TOKENIZER_EOS));
        if (err)
            return err;
    }
    return OK;
}

err_t splitter_finish(struct splitter *s)
{
    return s->n ? emit_carried(s) : OK;
}

/* ---- encoding ---- */

/* split has no unknown word: such a word is dropped. */
static err_t emit_known(void *arg, const uint8_t *word, size_t len)
{
    struct encoder *e = arg;
    int32_t id = vocab_find(&e->tokenizer->words, word, len);
    return id < 0 ? OK : buf_append(e->ids, &id, sizeof(id));
}

static err_t emit_id(void *arg, const uint8_t *word, size_t len)
{
    struct encoder *e = arg;
    int32_t id = vocab_find(&e->tokenizer->words, word, len);
    if (id < 0)
        id = e->tokenizer->unk;
    return buf_append(e->ids, &id, sizeof(id));
}

void encoder_init(struct encoder *e, const struct tokenizer *tokenizer, struct buf *ids)
{
    e->tokenizer = tokenizer;
    e->ids = ids;
    e->splitter.lowercase = tokenizer->lowercase;
    e->splitter.emit = emit_id;
    e->splitter.arg = e;
    e->splitter.n = 0;
    e->split = (struct split){.lowercase = tokenizer->lowercase, .emit = emit_known, .arg = e};
    e->bpe = NULL;
    e->chain = NULL;
}

void encoder_fini(struct encoder *e)
{
    bpe_encoder_free(e->bpe);
    chain_encoder_free(e->chain);
    e->bpe = NULL;
    e->chain = NULL;
}

static err_t feed_chain(struct encoder *e, const uint8_t *text, size_t len, bool last)
{
    err_t err = e->chain ? OK : chain_encoder_new(e->tokenizer->chain, &e->chain);
    return err ? err : chain_encoder_feed(e->chain, text, len, last, e->ids);
}

static err_t feed_bpe(struct encoder *e, const uint8_t *text, size_t len, bool last)
{
    if (e->tokenizer->chain)
        return feed_chain(e, text, len, last);
    err_t err = e->bpe ? OK : bpe_encoder_new(e->tokenizer->bpe, &e->bpe);
    return err ? err : bpe_encoder_feed(e->bpe, text, len, last, e->ids);
}

err_t encoder_feed(struct encoder *e, const uint8_t *text, size_t len)
{
    if (e->tokenizer->kind == TOKENIZER_WORDS)
        return splitter_feed(&e->splitter, text, len);
    if (e->tokenizer->kind == TOKENIZER_SPLIT)
        return split_feed(&e->split, text, len);
    if (e->tokenizer->kind == TOKENIZER_BPE)
        return feed_bpe(e, text, len, false);
    if (len > SIZE_MAX / sizeof(int32_t))
        return ERR_LIMIT;
    err_t err = buf_reserve(e->ids, len * sizeof(int32_t));
    if (err)
        return err;
    int32_t *ids = (int32_t *)(void *)(e->ids->data + e->ids->len);
    for (size_t i = 0; i < len; i++)
        ids[i] = text[i];
    e->ids->len += len * sizeof(int32_t);
    return OK;
}

err_t encoder_finish(struct encoder *e)
{
    if (e->tokenizer->kind == TOKENIZER_BPE)
        return feed_bpe(e, NULL, 0, true);
    if (e->tokenizer->kind == TOKENIZER_SPLIT)
        return split_finish(&e->split);
    return e->tokenizer->kind == TOKENIZER_WORDS ? splitter_finish(&e->splitter) : OK;
}

bool encoder_pending(const struct encoder *e, size_t *ret)
{
    size_t n = 0;
    if (e->tokenizer->kind == TOKENIZER_WORDS)
        n = e->splitter.n;
    else if (e->tokenizer->kind == TOKENIZER_SPLIT)
        n = e->split.n;
    else if (e->chain)
        n = chain_encoder_pending(e->chain);
    else if (e->bpe)
        n = bpe_encoder_pending(e->bpe);
    *ret = n;
    return e->tokenizer->kind != TOKENIZER_WORDS || n <= VOCAB_WORD_MAX_BYTES; /* else the word's length is forgotten */
}

err_t encoder_continue(struct encoder *e)
{
    if (e->tokenizer->kind != TOKENIZER_BPE || !e->tokenizer->chain)
        return OK;
    err_t err = e->chain ? OK : chain_encoder_new(e->tokenizer->chain, &e->chain);
    if (!err)
        chain_encoder_continue(e->chain);
    return err;
}

err_t tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, struct buf *ret_ids)
{
    struct encoder e;
    size_t before = ret_ids->len;
    encoder_init(&e, t, ret_ids);
    err_t err = encoder_feed(&e, text, len);
    if (!err)
        err = encoder_finish(&e);
    encoder_fini(&e);
    if (err)
        ret_ids->len = before;
    return err;
}

/* In one chunk, so that no special token that is passed over lies across two. */
static err_t encode_plain(struct encoder *e, const void *text, size_t len)
{
    const struct tokenizer *t = e->tokenizer;
    if (t->chain) {
        err_t err = chain_encoder_new(t->chain, &e->chain);
        if (!err)
            chain_encoder_plain(e->chain);
        return err ? err : chain_encoder_feed(e->chain, text, len, true, e->ids);
    }
    err_t err = bpe_encoder_new(t->bpe, &e->bpe);
    if (!err)
        bpe_encoder_plain(e->bpe);
    return err ? err : bpe_encoder_feed(e->bpe, text, len, true, e->ids);
}

err_t tokenizer_encode_plain(const struct tokenizer *t, const void *text, size_t len, struct buf *ret_ids)
{
    struct encoder e;
    const size_t before = ret_ids->len;
    if (t->kind != TOKENIZER_BPE)
        return tokenizer_encode(t, text, len, ret_ids);
    encoder_init(&e, t, ret_ids);
    err_t err = encode_plain(&e, text, len);
    encoder_fini(&e);
    if (err)
        ret_ids->len = before;
    return err;
}

const uint8_t *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len)
{
    *ret_len = 0;
    if (id < 0 || id >= tokenizer_vocab(t) || t->kind == TOKENIZER_BYTES)
        return NULL;
    if (t->chain)
        return chain_token(t->chain, id, ret_len);
    if (t->kind == TOKENIZER_BPE)
        return bpe_token(t->bpe, id, ret_len);
    *ret_len = t->words.list[id].len;
    return vocab_text(&t->words, id);
}

err_t tokenizer_decode(const struct tokenizer *t, int32_t id, struct buf *ret)
{
    uint8_t byte = (uint8_t)id;
    if (id < 0 || id >= tokenizer_vocab(t))
        return ERR_INVALID;
    if (t->kind == TOKENIZER_BYTES)
        return buf_append(ret, &byte, 1);
    if (t->chain)
        return chain_decode(t->chain, id, ret);
    if (t->kind == TOKENIZER_BPE) {
        size_t len;
        const uint8_t *text = bpe_token(t->bpe, id, &len);
        return buf_append(ret, text, len);
    }
    if (t->kind == TOKENIZER_WORDS && id == t->eos)
        return buf_append(ret, "\n", 1);
    err_t err = buf_reserve(ret, (size_t)t->words.list[id].len + 1);
    if (!err)
        err = buf_append(ret, vocab_text(&t->words, id), t->words.list[id].len);
    return err ? err : buf_append(ret, " ", 1);
}

/* ---- create ---- */

static err_t tokenizer_new(enum tokenizer_kind kind, bool lowercase, struct tokenizer **ret)
{
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    t->kind = kind;
    t->lowercase = lowercase;
    *ret = t;
    return OK;
}

err_t tokenizer_bytes_new(struct tokenizer **ret)
{
    return tokenizer_new(TOKENIZER_BYTES, false, ret);
}

static err_t vocab_line_add(struct tokenizer *t, const uint8_t *word, size_t len, struct why *why)
{
    int32_t line = t->words.n, id;
    if (!len || len > VOCAB_WORD_MAX_BYTES)
        return why_set(why, ERR_INVALID, "vocabulary, line %d: the word has %zu bytes; it must have 1 to %d", line + 1,
                       len, VOCAB_WORD_MAX_BYTES);
    for (size_t i = 0; i < len; i++)
        if (is_space(word[i]))
            return why_set(why, ERR_INVALID, "vocabulary, line %d: the word contains white space", line + 1);
    err_t err = vocab_add(&t->words, word, len, &id);
    if (err)
        return why_set(why, err, "vocabulary, line %d: %s", line + 1, err_text(err));
    if (id != line)
        return why_set(why, ERR_INVALID, "vocabulary, line %d: duplicate word, first in line %d", line + 1, id + 1);
    return OK;
}

static err_t lines_read(struct tokenizer *t, const uint8_t *vocab, size_t len, struct why *why)
{
    const uint8_t *end = vocab + len;
    while (vocab < end) {
        const uint8_t *stop = memchr(vocab, '\n', (size_t)(end - vocab));
        if (!stop)
            return why_set(why, ERR_INVALID, "vocabulary: the last line has no newline; the file is truncated");
        err_t err = vocab_line_add(t, vocab, (size_t)(stop - vocab), why);
        if (err)
            return err;
        vocab = stop + 1;
    }
    return OK;
}

static err_t vocab_file_read(struct tokenizer *t, const uint8_t *vocab, size_t len, struct why *why)
{
    err_t err = lines_read(t, vocab, len, why);
    if (err)
        return err;
    if (t->kind == TOKENIZER_SPLIT)
        return t->words.n ? OK : why_set(why, ERR_INVALID, "vocabulary: it has no word");
    t->unk = vocab_find(&t->words, TOKENIZER_UNK, strlen(TOKENIZER_UNK));
    t->eos = vocab_find(&t->words, TOKENIZER_EOS, strlen(TOKENIZER_EOS));
    if (t->unk < 0 || t->eos < 0)
        return why_set(why, ERR_INVALID, "vocabulary: it lacks %s", t->unk < 0 ? TOKENIZER_UNK : TOKENIZER_EOS);
    return OK;
}

static err_t counted_new(enum tokenizer_kind kind, const void *vocab, size_t len, bool lowercase,
                         struct tokenizer **ret, struct why *why)
{
    struct tokenizer *t;
    if (len > (size_t)VOCAB_MAX_BYTES + VOCAB_MAX_WORDS)
        return why_set(why, ERR_LIMIT, "vocabulary: the file is too large (%zu bytes)", len);
    err_t err = tokenizer_new(kind, lowercase, &t);
    if (err)
        return why_set(why, err, "vocabulary: %s", err_text(err));
    err = vocab_file_read(t, vocab, len, why);
    if (!err) {
        err = buf_append(&t->vocab, vocab, len);
        if (err)
            why_set(why, err, "vocabulary: %s", err_text(err));
    }
    if (err) {
        tokenizer_free(t);
        return err;
    }
    *ret = t;
    return OK;
}

err_t tokenizer_words_new(const void *vocab, size_t len, bool lowercase, struct tokenizer **ret, struct why *why)
{
    return counted_new(TOKENIZER_WORDS, vocab, len, lowercase, ret, why);
}

/* ---- byte-pair encoding ---- */

/* First line of a vocab file that contains two files; their bytes follow. A tokenizer.json is stored unchanged. */
#define PAIR "dtd-bpe 1 %zu %zu\n"
#define PAIR_LINE 64

static bool is_json(const struct bpe_text *t)
{
    size_t i = 0;
    while (i < t->len && is_space(t->data[i]))
        i++;
    return i < t->len && t->data[i] == '{';
}

/* tekken.json begins with "config"; a tokenizer.json has no such field at the top. */
static bool is_tekken(const struct bpe_text *t)
{
    size_t n = t->len < 256 ? t->len : 256;
    return is_json(t) && memmem(t->data, n, "\"config\"", 8) && !memmem(t->data, n, "\"added_tokens\"", 14);
}

/* A line of base64, a space and digits. */
static bool is_tiktoken(const struct bpe_text *t)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    size_t i = 0;
    while (i < t->len && t->data[i] && strchr(base64, t->data[i]))
        i++;
    return i && i % 4 == 0 && i + 1 < t->len && t->data[i] == ' ' && t->data[i + 1] >= '0' && t->data[i + 1] <= '9';
}

/* The first field of a ModelProto is a list of pieces: key 0x0a. */
static bool is_sentencepiece(const struct bpe_text *t)
{
    return t->len > 2 && t->data[0] == '\n' && !is_json(t);
}

static bool is_whole(const struct bpe_text *t)
{
    return is_json(t) || is_tiktoken(t) || is_sentencepiece(t);
}

const char *tokenizer_file_name(const void *vocab, size_t len)
{
    const struct bpe_text t = {"", vocab, len};
    if (is_tekken(&t))
        return "tekken.json";
    if (is_tiktoken(&t))
        return "tokenizer.tiktoken";
    return is_sentencepiece(&t) ? "tokenizer.model" : "tokenizer.json";
}

/* A tokenizer.json: of the two readers the faster one, if it supports the file. */
static err_t json_read(struct tokenizer *t, const struct bpe_text *file, struct why *why)
{
    struct vocab_json json;
    err_t err = vocab_json_read(file, VOCAB_JSON_TOKENIZER, &json, why);
    if (err)
        return err;
    err = bpe_json_new(file->name, &json, &t->bpe, why);
    if (err == ERR_UNSUPPORTED)
        err = chain_json_new(file->name, &json, &t->chain, why);
    vocab_json_fini(&json);
    return err;
}

static err_t model_read(struct tokenizer *t, const struct bpe_text *vocab, const struct bpe_text *merges,
                        struct why *why)
{
    if (!merges && (is_tekken(vocab) || is_tiktoken(vocab)))
        return bpe_ranks_new(vocab, &t->bpe, why);
    if (!merges && is_sentencepiece(vocab))
        return chain_sentencepiece_new(vocab, &t->chain, why);
    return merges ? bpe_new(vocab, merges, &t->bpe, why) : json_read(t, vocab, why);
}

static err_t bpe_make(const struct bpe_text *vocab, const struct bpe_text *merges, struct tokenizer **ret,
                      struct why *why)
{
    struct tokenizer *t;
    err_t err = tokenizer_new(TOKENIZER_BPE, false, &t);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    err = model_read(t, vocab, merges, why);
    if (!err) {
        err = merges ? buf_printf(&t->vocab, PAIR, vocab->len, merges->len) : OK;
        err = err ? err : buf_append(&t->vocab, vocab->data, vocab->len);
        err = err || !merges ? err : buf_append(&t->vocab, merges->data, merges->len);
        if (err)
            why_set(why, err, "%s", err_text(err));
    }
    if (err) {
        tokenizer_free(t);
        return err;
    }
    *ret = t;
    return OK;
}

/* Reads the sizes in the first line. False if the line is invalid or the sizes are wrong. */
static bool pair_line(const uint8_t *data, size_t len, size_t *ret_line, size_t *ret_vocab, size_t *ret_merges)
{
    char line[PAIR_LINE] = "", again[PAIR_LINE];
    memcpy(line, data, len < PAIR_LINE - 1 ? len : PAIR_LINE - 1);
    if (sscanf(line, PAIR, ret_vocab, ret_merges) != 2)
        return false;
    *ret_line = (size_t)snprintf(again, sizeof(again), PAIR, *ret_vocab, *ret_merges);
    return *ret_line <= len && memcmp(data, again, *ret_line) == 0 && *ret_vocab <= len - *ret_line &&
           *ret_merges == len - *ret_line - *ret_vocab;
}

bool tokenizer_bpe_parts(const void *vocab, size_t len, size_t *ret_at, size_t ret_n[2])
{
    return pair_line(vocab, len, ret_at, &ret_n[0], &ret_n[1]);
}

err_t tokenizer_bpe_new(const void *vocab, size_t len, struct tokenizer **ret, struct why *why)
{
    const uint8_t *data = vocab;
    size_t line, n_vocab, n_merges;
    struct bpe_text whole = {"tokenizer.json", data, len};
    if (len < 8 || memcmp(data, "dtd-bpe ", 8) != 0)
        return bpe_make(&whole, NULL, ret, why);
    if (!pair_line(data, len, &line, &n_vocab, &n_merges))
        return why_set(why, ERR_INVALID,
                       "vocabulary: the sizes in its first line are wrong; the file is truncated or was changed");
    struct bpe_text first = {"vocab.json", data + line, n_vocab};
    struct bpe_text second = {"merges.txt", data + line + n_vocab, n_merges};
    return bpe_make(&first, &second, ret, why);
}

static err_t bpe_of_texts(const struct bpe_text *texts, int n, struct tokenizer **ret, struct why *why)
{
    if (n == 1 && is_whole(&texts[0]))
        return bpe_make(&texts[0], NULL, ret, why);
    if (n == 1)
        return why_set(why, ERR_INVALID,
                       "%s: it is not a tokenizer.json, a .model of SentencePiece, a .tiktoken or a tekken.json; a "
                       "merges.txt needs its vocab.json too",
                       texts[0].name);
    bool swapped = is_json(&texts[1]);
    if (is_json(&texts[0]) == swapped)
        return why_set(why, ERR_INVALID, "%s and %s: write one JSON file (vocab.json) and one merges file",
                       texts[0].name, texts[1].name);
    return bpe_make(&texts[swapped], &texts[!swapped], ret, why);
}

err_t tokenizer_bpe_files(char *const *files, int n, struct tokenizer **ret, struct why *why)
{
    struct buf data[2] = {{0}};
    struct bpe_text texts[2];
    err_t err = OK;
    if (n < 1 || n > 2)
        return why_set(why, ERR_INVALID, "%d files; write [tokenizer.json], or [vocab.json, merges.txt]", n);
    for (int i = 0; !err && i < n; i++) {
        err = file_read(files[i], BPE_MAX_BYTES, &data[i]);
        if (err)
            why_set(why, err, "%s: %s", files[i], err == ERR_LIMIT ? "more than 64 MiB" : err_text(err));
        texts[i] = (struct bpe_text){files[i], data[i].data ? data[i].data : (const uint8_t *)"", data[i].len};
    }
    if (!err)
        err = bpe_of_texts(texts, n, ret, why);
    buf_fini(&data[0]);
    buf_fini(&data[1]);
    return err;
}

err_t tokenizer_new_from(enum tokenizer_kind kind, const void *vocab, size_t len, bool lowercase,
                         struct tokenizer **ret, struct why *why)
{
    err_t err;
    switch (kind) {
    case TOKENIZER_WORDS:
    case TOKENIZER_SPLIT:
        return counted_new(kind, vocab, len, lowercase, ret, why);
    case TOKENIZER_BPE:
        return tokenizer_bpe_new(vocab, len, ret, why);
    case TOKENIZER_BYTES:
        break;
    }
    err = tokenizer_bytes_new(ret);
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_free(t->bpe);
    chain_free(t->chain);
    vocab_fini(&t->words);
    buf_fini(&t->vocab);
    free(t);
}

int64_t tokenizer_vocab(const struct tokenizer *t)
{
    switch (t->kind) {
    case TOKENIZER_WORDS:
    case TOKENIZER_SPLIT:
        return t->words.n;
    case TOKENIZER_BPE:
        return t->chain ? chain_vocab(t->chain) : bpe_vocab(t->bpe);
    case TOKENIZER_BYTES:
        break;
    }
    return 256;
}

const void *tokenizer_vocab_file(const struct tokenizer *t, size_t *ret_len)
{
    *ret_len = t->vocab.len;
    return t->vocab.data;
}

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}

bool tokenizer_lowercase(const struct tokenizer *t)
{
    return t->lowercase;
}

bool tokenizer_plain(const struct tokenizer *t)
{
    return !t->chain;
}

const struct chain *tokenizer_chain(const struct tokenizer *t)
{
    return t->chain;
}

bool tokenizer_controls_hidden(const struct tokenizer *t)
{
    return t->chain && chain_hides_controls(t->chain);
}

bool tokenizer_same(const struct tokenizer *a, const struct tokenizer *b)
{
    if (a->kind != b->kind || a->lowercase != b->lowercase)
        return false;
    if (a->bpe && b->bpe)
        return bpe_same(a->bpe, b->bpe);
    return a->vocab.len == b->vocab.len && (!a->vocab.len || memcmp(a->vocab.data, b->vocab.data, a->vocab.len) == 0);
}

/* ---- building a vocabulary ---- */

typedef int order_fn(const void *a, const void *b, void *vocab);

static int compare_words(const void *a, const void *b, void *arg)
{
    const struct vocab *w = arg;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const struct vocab_entry *x = &w->list[i], *y = &w->list[j];
    int order = memcmp(vocab_text(w, i), vocab_text(w, j), x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int compare_counts(const void *a, const void *b, void *arg)
{
    const struct vocab *w = arg;
    const struct vocab_entry *x = &w->list[*(const int32_t *)a], *y = &w->list[*(const int32_t *)b];
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return compare_words(a, b, arg);
}

static err_t print_sorted(const struct vocab *counted, order_fn *compare, struct buf *ret)
{
    err_t err = OK;
    int32_t *order = malloc(((size_t)counted->n + 1) * sizeof(*order));
    if (!order)
        return ERR_NOMEM;
    for (int32_t i = 0; i < counted->n; i++)
        order[i] = i;
    qsort_r(order, (size_t)counted->n, sizeof(*order), compare, (void *)counted);
    for (int32_t i = 0; !err && i < counted->n; i++) {
        err = buf_append(ret, vocab_text(counted, order[i]), counted->list[order[i]].len);
        if (!err)
            err = buf_append(ret, "\n", 1);
    }
    free(order);
    return err;
}

err_t tokenizer_vocab_print(enum tokenizer_kind kind, struct vocab *counted, struct buf *ret)
{
    int32_t id;
    if (kind == TOKENIZER_SPLIT)
        return print_sorted(counted, compare_words, ret);
    err_t err = vocab_add(counted, TOKENIZER_UNK, strlen(TOKENIZER_UNK), &id);
    if (!err)
        err = vocab_add(counted, TOKENIZER_EOS, strlen(TOKENIZER_EOS), &id);
    return err ? err : print_sorted(counted, compare_counts, ret);
}
