/* Byte-level vocabularies without a list of merges: .tiktoken files and tekken.json. A pair may merge if its bytes are
 * a token, and the rank of this token is the rank of the merge; a piece that is a token is taken whole. So every way to
 * cut a token into two tokens is a merge, and the encoder is the same as for GPT-2.
 *
 * A .tiktoken file has neither a pattern nor special tokens: these are in the code of the libraries that read it. The
 * number of its tokens identifies its vocabulary. */
#include "common/data/bpe_priv.h"
#include "common/data/chain_priv.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKEN 1024 /* bytes; the longest token of known files has 128. Bounds the work for its merges */

struct ranks_reader {
    struct bpe *b;
    const char *file;
    struct why *why;
    int32_t n_specials; /* ids of tokens begin behind these (tekken) */
    struct buf bytes;   /* of the token that is being read */
    int64_t splits;     /* upper bound of the number of merges */
};

static err_t complain(struct ranks_reader *r, err_t err, const char *place, const char *what)
{
    return why_set(r->why, err, "%s%s%s: %s", r->file, place[0] ? ", " : "", place, what);
}

/* ---- tokens ---- */

static err_t tokens_reserve(struct ranks_reader *r, int64_t n)
{
    struct bpe *b = r->b;
    if (n > BPE_MAX_TOKENS)
        return complain(r, ERR_INVALID, "", "it has more than 16777216 tokens");
    b->tokens = calloc((size_t)n + 1, sizeof(*b->tokens));
    b->whole_ids = calloc((size_t)n + 1, sizeof(*b->whole_ids));
    b->n_tokens = (int32_t)n;
    return b->tokens && b->whole_ids ? OK : complain(r, ERR_NOMEM, "", err_text(ERR_NOMEM));
}

/* Adds r->bytes. Ranks count from 0 without a gap, so that every id has a token. */
static err_t token_add(struct ranks_reader *r, const char *place, int64_t rank)
{
    struct bpe *b = r->b;
    size_t at = b->text.len, n = r->bytes.len;
    int64_t id = rank + r->n_specials;
    int32_t number;
    if (!n || n > MAX_TOKEN)
        return complain(r, ERR_INVALID, place, "a token has 1 to 1024 bytes");
    if (rank < 0 || id >= b->n_tokens || b->tokens[id].len)
        return complain(r, ERR_INVALID, place, "its rank is another token's, or not below the number of tokens");
    if (vocab_find(&b->whole_tokens, r->bytes.data, n) >= 0)
        return complain(r, ERR_INVALID, place, "another token has the same bytes");
    err_t err = buf_append(&b->text, r->bytes.data, n);
    err = err ? err : vocab_add(&b->whole_tokens, r->bytes.data, n, &number);
    if (err)
        return complain(r, err, place, err_text(err));
    b->tokens[id] = (struct bpe_token){(uint32_t)at, (uint32_t)n};
    b->whole_ids[number] = (int32_t)id;
    if (n == 1)
        b->bytes[r->bytes.data[0]] = (int32_t)id;
    r->splits += (int64_t)n - 1;
    return OK;
}

static int32_t id_of(const struct bpe *b, const uint8_t *p, size_t n)
{
    int32_t number = vocab_find(&b->whole_tokens, p, n);
    return number < 0 ? -1 : b->whole_ids[number];
}

static err_t merges_make(struct ranks_reader *r)
{
    struct bpe *b = r->b;
    err_t err = r->splits > BPE_MAX_TOKENS ? ERR_LIMIT : bpe_merges_init(b, (size_t)r->splits);
    if (err)
        return complain(r, err, "", err == ERR_LIMIT ? "its tokens are too long" : err_text(err));
    for (int32_t id = r->n_specials; id < b->n_tokens; id++) {
        const uint8_t *p = b->text.data + b->tokens[id].offset;
        for (uint32_t cut = 1, n = b->tokens[id].len; cut < n; cut++) {
            int32_t left = id_of(b, p, cut), right = left < 0 ? -1 : id_of(b, p + cut, n - cut);
            if (right >= 0)
                bpe_merges_add(b, left, right, id, id);
        }
    }
    return OK;
}

static err_t finish(struct ranks_reader *r, const char *pattern)
{
    struct bpe *b = r->b;
    size_t len = strlen(pattern);
    char text[80];
    for (int i = 0; i < 256; i++)
        if (b->bytes[i] < 0) {
            snprintf(text, sizeof(text), "it has no token for byte 0x%02x", (unsigned)i);
            return complain(r, ERR_INVALID, "", text);
        }
    b->whole = true;
    err_t err = merges_make(r);
    if (err)
        return err;
    err = regex_new(pattern, len, REGEX_RUST, &b->regex, r->why);
    if (err)
        return why_prefix(r->why, err, "%s", r->file);
    err = buf_append(&b->pattern, pattern, len);
    return err ? complain(r, err, "", err_text(err)) : OK;
}

/* Gives an id that no text produces, or a special token, its spelling. */
static err_t spelling_set(struct ranks_reader *r, int32_t id, const char *text, bool special)
{
    struct bpe *b = r->b;
    struct bpe_specials *s = &b->specials[BPE_AS_IS];
    size_t at = b->text.len, n = strlen(text);
    if (special && s->n == BPE_MAX_SPECIALS)
        return complain(r, ERR_LIMIT, "", "more than 4096 special tokens");
    err_t err = buf_append(&b->text, text, n);
    if (err)
        return complain(r, err, "", err_text(err));
    b->tokens[id] = (struct bpe_token){(uint32_t)at, (uint32_t)n};
    if (special) {
        s->list[s->n++] = (struct bpe_special){id, (uint32_t)at, (uint32_t)n, true};
        s->first[(uint8_t)text[0]] = true;
        s->longest = n > s->longest ? n : s->longest;
    }
    return OK;
}

/* ---- .tiktoken ---- */

#define R50K "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"
#define CL100K                                                                                             \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|" \
    "\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define O200K                                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER \
    "]+[" LOWER "]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"    \
    "\\s+(?!\\S)|\\s+"
#define LLAMA3                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN                                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct special {
    int32_t id;
    const char *text;
};
/* tiktoken 0.14, tiktoken_ext/openai_public.py; Meta's and Qwen's readers of such files. Of Llama 3 only those special
 * tokens are listed whose names did not change between its versions. */
static const struct known {
    int32_t tokens, ids; /* of the file; of the model */
    const char *pattern;
    struct special specials[8];
} known[] = {
    {50256, 50257, R50K, {{50256, "<|endoftext|>"}}},
    {100256,
     100277,
     CL100K,
     {{100257, "<|endoftext|>"},
      {100258, "<|fim_prefix|>"},
      {100259, "<|fim_middle|>"},
      {100260, "<|fim_suffix|>"},
      {100276, "<|endofprompt|>"}}},
    {199998, 200019, O200K, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
    {128000,
     128256,
     LLAMA3,
     {{128000, "<|begin_of_text|>"},
      {128001, "<|end_of_text|>"},
      {128006, "<|start_header_id|>"},
      {128007, "<|end_header_id|>"},
      {128009, "<|eot_id|>"}}},
    {151643, 151646, QWEN, {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}},
};

/* One line: base64, a space, the rank. */
static err_t line_read(struct ranks_reader *r, const char *line, size_t n, size_t number)
{
    char place[32], digits[12] = "", *end;
    const char *space = memchr(line, ' ', n);
    snprintf(place, sizeof(place), "line %zu", number);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? n - left - 1 : 0;
    if (!left || !right || right >= sizeof(digits))
        return complain(r, ERR_INVALID, place, "a line must be base64, a space and a rank");
    memcpy(digits, space + 1, right);
    long rank = strtol(digits, &end, 10);
    r->bytes.len = 0;
    err_t err = *end || digits[0] < '0' || digits[0] > '9' ? ERR_INVALID : base64_decode(line, left, &r->bytes);
    if (err)
        return complain(r, err, place, "a line must be base64, a space and a rank");
    return token_add(r, place, rank);
}

static int32_t lines_count(const struct bpe_text *t)
{
    int32_t n = 0;
    const uint8_t *p = t->data, *end = t->data + t->len;
    for (const uint8_t *stop; p < end; p = stop + 1) {
        stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        n += stop > p;
    }
    return n;
}

static err_t lines_read(struct ranks_reader *r, const struct bpe_text *t)
{
    const char *p = (const char *)t->data, *end = p + t->len;
    err_t err = OK;
    for (size_t number = 1; !err && p < end; number++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        if (stop > p)
            err = line_read(r, p, (size_t)(stop - p), number);
        p = stop + 1;
    }
    return err;
}

static err_t tiktoken_read(struct ranks_reader *r, const struct bpe_text *t)
{
    int32_t n = lines_count(t);
    const struct known *k = NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        k = known[i].tokens == n ? &known[i] : k;
    if (!k)
        return why_set(r->why, ERR_UNSUPPORTED,
                       "%s: a file of this format does not contain its pattern, and no known vocabulary has %d tokens "
                       "(docs/use/tokenizers.md lists those). Use the model's tokenizer.json",
                       r->file, n);
    err_t err = tokens_reserve(r, k->ids);
    r->b->n_tokens = n; /* while ranks are read */
    err = err ? err : lines_read(r, t);
    err = err ? err : finish(r, k->pattern);
    r->b->n_tokens = k->ids;
    for (size_t i = 0; !err && i < 8 && k->specials[i].text; i++)
        err = spelling_set(r, k->specials[i].id, k->specials[i].text, true);
    return err;
}

/* ---- tekken.json ---- */

static err_t tekken_token(struct ranks_reader *r, size_t i, const json_t *item)
{
    const json_t *bytes = json_object_get(item, "token_bytes"), *rank = json_object_get(item, "rank");
    char place[40];
    snprintf(place, sizeof(place), "vocab[%zu]", i);
    r->bytes.len = 0;
    if (!json_is_string(bytes) || !json_is_integer(rank) ||
        base64_decode(json_string_value(bytes), json_string_length(bytes), &r->bytes))
        return complain(r, ERR_INVALID, place, "it is not a token with rank and token_bytes");
    return token_add(r, place, json_integer_value(rank));
}

/* No text becomes a special token; their spellings are for printing. */
static err_t tekken_specials(struct ranks_reader *r, const json_t *list)
{
    char text[40];
    err_t err = OK;
    for (int32_t id = 0; !err && id < r->n_specials; id++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, (size_t)id), "token_str"));
        snprintf(text, sizeof(text), "<SPECIAL_%d>", id);
        err = spelling_set(r, id, name && *name ? name : text, false);
    }
    return err;
}

static err_t tekken_read(struct ranks_reader *r, const json_t *root)
{
    const json_t *config = json_object_get(root, "config"), *vocab = json_object_get(root, "vocab");
    const char *pattern = json_string_value(json_object_get(config, "pattern"));
    int64_t size = json_integer_value(json_object_get(config, "default_vocab_size"));
    int64_t specials = json_integer_value(json_object_get(config, "default_num_special_tokens"));
    if (!pattern || size < 1 || specials < 0 || specials >= size || (int64_t)json_array_size(vocab) < size - specials)
        return complain(r, ERR_INVALID, "config",
                        "pattern, default_vocab_size and default_num_special_tokens do not describe the vocabulary");
    r->n_specials = (int32_t)specials;
    err_t err = tokens_reserve(r, size);
    for (size_t i = 0; !err && i < (size_t)(size - specials); i++)
        err = tekken_token(r, i, json_array_get(vocab, i));
    err = err ? err : finish(r, pattern);
    return err ? err : tekken_specials(r, json_object_get(root, "special_tokens"));
}

/* ---- either ---- */

static int special_compare(const void *a, const void *b, void *arg)
{
    const struct bpe_special *x = a, *y = b;
    const uint8_t *text = arg;
    int order = memcmp(text + x->offset, text + y->offset, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static err_t json_read(struct ranks_reader *r, const struct bpe_text *t)
{
    json_error_t error;
    json_t *root = json_loadb((const char *)t->data, t->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    err_t err =
        root ? tekken_read(r, root) : why_set(r->why, ERR_INVALID, "%s, line %d: %s", t->name, error.line, error.text);
    json_decref(root);
    return err;
}

err_t bpe_ranks_new(const struct bpe_text *t, struct bpe **ret, struct why *why)
{
    struct bpe *b = calloc(1, sizeof(*b));
    struct ranks_reader r = {.b = b, .file = t->name, .why = why};
    if (!b || !(b->specials[BPE_AS_IS].list = malloc(BPE_MAX_SPECIALS * sizeof(struct bpe_special)))) {
        free(b);
        return complain(&r, ERR_NOMEM, "", err_text(ERR_NOMEM));
    }
    for (int i = 0; i < 256; i++)
        b->bytes[i] = -1;
    err_t err = t->len && t->data[0] == '{' ? json_read(&r, t) : tiktoken_read(&r, t);
    buf_fini(&r.bytes);
    if (err) {
        bpe_free(b);
        return err;
    }
    qsort_r(b->specials[BPE_AS_IS].list, (size_t)b->specials[BPE_AS_IS].n, sizeof(struct bpe_special), special_compare,
            b->text.data);
    *ret = b;
    return OK;
}
