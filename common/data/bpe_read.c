/* Reads tokenizer files into a model. The files write each byte of a token as a character: bytes 33..126, 161..172 and
 * 174..255 as the same code point, the other 68 bytes, in order, as U+0100 and up. So no token contains a space or a
 * newline, and merges.txt can be split at those. */
#include "common/data/bpe_priv.h"
#include "common/data/vocab_json.h"

#include "common/base/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char bpe_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct bpe_reader {
    struct bpe *b;
    struct why *why;
    const char *file; /* name of the file, for messages */
    const struct vocab_json *json;
    bool *made; /* by id: whether a byte or a merge produces it */
    struct buf joined;
};

static err_t complain(struct bpe_reader *r, err_t err, const char *place, const char *what)
{
    return why_set(r->why, err, "%s%s%s: %s", r->file, place[0] ? ", " : "", place, what);
}

static err_t no_memory(struct bpe_reader *r)
{
    return complain(r, ERR_NOMEM, "", err_text(ERR_NOMEM));
}

/* ---- characters that encode bytes ---- */

static int byte_of(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < 256 || c >= 256 + 68)
        return -1;
    c -= 256;
    return c < 33 ? (int)c : c < 67 ? (int)c - 33 + 127 : 173;
}

/* Appends the bytes of a token, which is UTF-8. False, and nothing is appended, if a character does not encode a byte.
 */
static bool bytes_of(const char *token, size_t n, struct buf *ret, err_t *err)
{
    size_t before = ret->len;
    for (const char *end = token + n; token < end && !*err;) {
        uint32_t c;
        int len = utf8_decode(token, &c), byte = len ? byte_of(c) : -1;
        uint8_t value = (uint8_t)byte;
        if (byte < 0) {
            ret->len = before;
            return false;
        }
        *err = buf_append(ret, &value, 1);
        token += len;
    }
    return true;
}

/* ---- the vocabulary ---- */

static err_t token_add(struct bpe_reader *r, const char *token, size_t n, int64_t id, bool plain, bool *ret_bytes)
{
    struct bpe *b = r->b;
    struct bpe_token *t = &b->tokens[id];
    size_t offset = b->text.len;
    err_t err = OK;
    bool bytes = !plain && bytes_of(token, n, &b->text, &err);
    if (!err && !bytes)
        err = buf_append(&b->text, token, n);
    if (err)
        return no_memory(r);
    if (b->text.len > UINT32_MAX)
        return complain(r, ERR_LIMIT, "", "more than 4 GiB of tokens");
    *t = (struct bpe_token){(uint32_t)offset, (uint32_t)(b->text.len - offset)};
    *ret_bytes = bytes;
    return OK;
}

static err_t token_complain(struct bpe_reader *r, const char *token, size_t n, const char *what)
{
    char place[120];
    snprintf(place, sizeof(place), "token \"%.*s\"", (int)(n < 80 ? n : 80), token);
    return complain(r, ERR_INVALID, place, what);
}

static err_t id_check(struct bpe_reader *r, const char *token, size_t n, int64_t id)
{
    if (id < 0 || id >= BPE_MAX_TOKENS)
        return token_complain(r, token, n, "its id is not a number from 0 to 16777215");
    return n ? OK : token_complain(r, token, n, "the token is empty");
}

/* A word of the file. */
static const char *word_of(const struct bpe_reader *r, int32_t number, size_t *ret_n)
{
    *ret_n = r->json->words.list[number].len;
    return (const char *)vocab_text(&r->json->words, number);
}

/* Makes room for ids up to the largest. */
static err_t tokens_reserve(struct bpe_reader *r, int64_t largest)
{
    struct bpe *b = r->b;
    if (largest < b->n_tokens)
        return OK;
    struct bpe_token *tokens = realloc(b->tokens, (size_t)(largest + 1) * sizeof(*tokens));
    if (tokens)
        b->tokens = tokens;
    bool *made = tokens ? realloc(r->made, (size_t)(largest + 1) * sizeof(*made)) : NULL;
    if (!made)
        return no_memory(r);
    r->made = made;
    memset(tokens + b->n_tokens, 0, (size_t)(largest + 1 - b->n_tokens) * sizeof(*tokens));
    memset(made + b->n_tokens, 0, (size_t)(largest + 1 - b->n_tokens) * sizeof(*made));
    b->n_tokens = (int32_t)(largest + 1);
    return OK;
}

static err_t vocab_size(struct bpe_reader *r)
{
    int64_t largest = -1;
    for (int32_t i = 0; i < r->json->words.n; i++) {
        size_t n;
        const char *token = word_of(r, i, &n);
        int64_t id = vocab_json_id(r->json, i);
        err_t err = id_check(r, token, n, id);
        if (err)
            return err;
        largest = id > largest ? id : largest;
    }
    return tokens_reserve(r, largest);
}

static err_t byte_check(struct bpe_reader *r)
{
    char text[80];
    for (int i = 0; i < 256; i++)
        if (r->b->bytes[i] < 0) {
            snprintf(text, sizeof(text), "it has no token for byte 0x%02x, so it is not a byte-level vocabulary", i);
            return complain(r, ERR_INVALID, "", text);
        }
    return OK;
}

static err_t word_read(struct bpe_reader *r, int32_t number)
{
    struct bpe *b = r->b;
    size_t n;
    const char *token = word_of(r, number, &n);
    const int64_t id = vocab_json_id(r->json, number);
    bool bytes;
    char text[80];
    if (b->tokens[id].len) {
        snprintf(text, sizeof(text), "another token has its id %lld already", (long long)id);
        return token_complain(r, token, n, text);
    }
    err_t err = token_add(r, token, n, id, false, &bytes);
    if (!err && bytes && b->tokens[id].len == 1) {
        b->bytes[b->text.data[b->tokens[id].offset]] = (int32_t)id;
        r->made[id] = true;
    }
    return err;
}

static err_t vocab_read(struct bpe_reader *r)
{
    err_t err = vocab_size(r);
    for (int i = 0; i < 256; i++)
        r->b->bytes[i] = -1;
    for (int32_t i = 0; !err && i < r->json->words.n; i++)
        err = word_read(r, i);
    return err ? err : byte_check(r);
}

/* ---- merges ---- */

static err_t merge_complain(struct bpe_reader *r, const char *place, const char *left, size_t n_left, const char *right,
                            size_t n_right, const char *what)
{
    return why_set(r->why, ERR_INVALID, "%s, %s: \"%.*s\" and \"%.*s\": %s", r->file, place,
                   (int)(n_left < 60 ? n_left : 60), left, (int)(n_right < 60 ? n_right : 60), right, what);
}

static int32_t vocab_id(const struct bpe_reader *r, const char *token, size_t n)
{
    return (int32_t)vocab_json_find(r->json, token, n);
}

static err_t merge_read(struct bpe_reader *r, const char *place, int32_t rank, const char *left, size_t n_left,
                        const char *right, size_t n_right)
{
    int32_t a = n_left ? vocab_id(r, left, n_left) : -1, b = n_right ? vocab_id(r, right, n_right) : -1;
    if (a < 0 || b < 0)
        return merge_complain(r, place, left, n_left, right, n_right,
                              a < 0 ? "the vocabulary lacks the first token" : "the vocabulary lacks the second token");
    r->joined.len = 0;
    err_t err = buf_append(&r->joined, left, n_left);
    if (!err)
        err = buf_append(&r->joined, right, n_right);
    if (err)
        return no_memory(r);
    int32_t id = vocab_id(r, (const char *)r->joined.data, r->joined.len);
    if (id < 0)
        return merge_complain(r, place, left, n_left, right, n_right, "the vocabulary lacks the merged token");
    bpe_merges_add(r->b, a, b, rank, id);
    r->made[id] = true;
    return OK;
}

/* "left right", one space. */
static err_t merge_line(struct bpe_reader *r, const char *place, int32_t rank, const char *line, size_t n)
{
    const char *space = memchr(line, ' ', n);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? n - left - 1 : 0;
    if (!left || !right || memchr(space + 1, ' ', right))
        return why_set(r->why, ERR_INVALID, "%s, %s: \"%.*s\": a merge must be two tokens with one space between them",
                       r->file, place, (int)(n < 80 ? n : 80), line);
    return merge_read(r, place, rank, line, left, space + 1, right);
}

static size_t count_lines(const struct bpe_text *t)
{
    size_t n = 1;
    for (const uint8_t *p = t->data; (p = memchr(p, '\n', t->len - (size_t)(p - t->data))); p++)
        n++;
    return n;
}

/* merges.txt: "#version: .." and then one merge per line, by rank. */
static err_t merges_text(struct bpe_reader *r, const struct bpe_text *t)
{
    const char *p = (const char *)t->data, *end = p + t->len;
    char place[32];
    int32_t rank = 0;
    r->file = t->name;
    if (t->len && memchr(p, '\0', t->len))
        return complain(r, ERR_INVALID, "", "it contains a NUL byte, so it is not a text file");
    err_t err = bpe_merges_init(r->b, t->len ? count_lines(t) : 1);
    if (err)
        return complain(r, err, "", err_text(err));
    for (int line = 1; !err && p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((stop ? stop : end) - p);
        if (n && p[n - 1] == '\r')
            n--;
        snprintf(place, sizeof(place), "line %d", line);
        if (n < 8 || memcmp(p, "#version", 8) != 0)
            err = merge_line(r, place, rank++, p, n);
        p = stop ? stop + 1 : end;
    }
    return err;
}

static err_t merge_item(struct bpe_reader *r, const char *place, size_t i)
{
    const struct vocab_json_merge *m = vocab_json_merge(r->json, i);
    const char *text = (const char *)r->json->text.data;
    switch (m->kind) {
    case VOCAB_JSON_TEXT:
        return merge_line(r, place, (int32_t)i, text + m->left, m->n_left);
    case VOCAB_JSON_PAIR:
        return merge_read(r, place, (int32_t)i, text + m->left, m->n_left, text + m->right, m->n_right);
    case VOCAB_JSON_NONE:
        break;
    }
    return complain(r, ERR_INVALID, place, "a merge must be two tokens");
}

/* model.merges: a list of "a b" or, in newer files, of ["a", "b"]. */
static err_t merges_json(struct bpe_reader *r, const json_t *list)
{
    const size_t n = vocab_json_merges(r->json);
    char place[48];
    if (!json_is_array(list))
        return complain(r, ERR_INVALID, "model.merges", "it is missing or not a list");
    err_t err = bpe_merges_init(r->b, n);
    if (err)
        return complain(r, err, "model.merges", err_text(err));
    for (size_t i = 0; !err && i < n; i++) {
        snprintf(place, sizeof(place), "model.merges[%zu]", i);
        err = merge_item(r, place, i);
    }
    return err;
}

/* ---- special tokens ---- */

static err_t special_add(struct bpe_reader *r, enum bpe_pass pass, int32_t id, const char *text, size_t len,
                         bool special)
{
    struct bpe *b = r->b;
    struct bpe_specials *s = &b->specials[pass];
    size_t offset = b->text.len;
    if (b->specials[BPE_AS_IS].n + b->specials[BPE_NORMALIZED].n == BPE_MAX_SPECIALS)
        return complain(r, ERR_INVALID, "",
                        "more than 4096 tokens that no merge produces: the merges belong to another vocabulary");
    if (buf_append(&b->text, text, len))
        return no_memory(r);
    if (b->text.len > UINT32_MAX)
        return complain(r, ERR_LIMIT, "", "more than 4 GiB of tokens");
    s->list[s->n++] = (struct bpe_special){id, (uint32_t)offset, (uint32_t)len, special};
    s->first[(uint8_t)text[0]] = true;
    s->longest = len > s->longest ? len : s->longest;
    return OK;
}

/* vocab.json does not mark special tokens; those that encoding cannot produce count as special. */
static err_t specials_of_vocab(struct bpe_reader *r)
{
    err_t err = OK;
    for (int32_t i = 0; !err && i < r->json->words.n; i++) {
        size_t n;
        const char *token = word_of(r, i, &n);
        const int32_t id = (int32_t)vocab_json_id(r->json, i);
        bool bytes;
        if (r->made[id])
            continue;
        err = token_add(r, token, n, id, true, &bytes); /* special tokens are literal text */
        err = err ? err : special_add(r, BPE_AS_IS, id, token, n, true);
    }
    return err;
}

static err_t added_read(struct bpe_reader *r, const char *place, const json_t *item)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    const char *content = json_string_value(json_object_get(item, "content"));
    const json_t *stated = json_object_get(item, "id");
    const int64_t id = json_is_integer(stated) ? json_integer_value(stated) : -1;
    const size_t n = content ? strlen(content) : 0;
    bool bytes;
    if (!content)
        return complain(r, ERR_INVALID, place, "content is missing or not a string");
    err_t err = id_check(r, content, n, id);
    if (err)
        return why_prefix(r->why, err, "%s", place);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (json_is_true(json_object_get(item, flags[i])))
            return why_set(r->why, ERR_UNSUPPORTED, "%s, %s: \"%.80s\" with %s: true is not supported", r->file, place,
                           content, flags[i]);
    err = tokens_reserve(r, id);
    if (err)
        return err;
    if (r->b->tokens[id].len && vocab_json_find(r->json, content, n) != id)
        return why_set(r->why, ERR_INVALID, "%s, %s: \"%.80s\": another token has its id %lld already", r->file, place,
                       content, (long long)id);
    err = r->made[id] ? OK : token_add(r, content, n, id, true, &bytes);
    enum bpe_pass pass = json_is_true(json_object_get(item, "normalized")) ? BPE_NORMALIZED : BPE_AS_IS;
    return err ? err : special_add(r, pass, (int32_t)id, content, n, json_is_true(json_object_get(item, "special")));
}

static err_t specials_of_json(struct bpe_reader *r, const json_t *list)
{
    char place[48];
    size_t i;
    const json_t *item;
    if (list && !json_is_array(list) && !json_is_null(list))
        return complain(r, ERR_INVALID, "added_tokens", "it is not a list");
    json_array_foreach(list, i, item)
    {
        snprintf(place, sizeof(place), "added_tokens[%zu]", i);
        err_t err = added_read(r, place, item);
        if (err)
            return err;
    }
    return OK;
}

static int special_compare(const void *a, const void *b, void *arg)
{
    const struct bpe_special *x = a, *y = b;
    const uint8_t *text = arg;
    int order = memcmp(text + x->offset, text + y->offset, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static void specials_sort(struct bpe *b)
{
    for (int pass = 0; pass < BPE_PASSES; pass++)
        qsort_r(b->specials[pass].list, (size_t)b->specials[pass].n, sizeof(struct bpe_special), special_compare,
                b->text.data);
}

/* ---- tokenizer.json ---- */

static err_t unsupported(struct bpe_reader *r, const char *field, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    err_t err = why_set(r->why, ERR_UNSUPPORTED,
                        "%s, %s: %.100s is not supported (docs/formats/prepared-data.md lists what is)", r->file, field,
                        text ? text : "it");
    free(text);
    return err;
}

static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && !json_number_value(value));
}

static bool has_type(const json_t *object, const char *type)
{
    const char *text = json_string_value(json_object_get(object, "type"));
    return text && strcmp(text, type) == 0;
}

static err_t model_check(struct bpe_reader *r, const json_t *model)
{
    static const char *const fields[] = {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"};
    if (!json_is_object(model))
        return complain(r, ERR_INVALID, "model", "it is missing or not an object");
    const json_t *type = json_object_get(model, "type");
    if (type && !has_type(model, "BPE"))
        return unsupported(r, "model.type", type);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "model.%s", fields[i]);
        if (!is_empty(json_object_get(model, fields[i])))
            return unsupported(r, name, json_object_get(model, fields[i]));
    }
    bool there = json_is_object(json_object_get(model, "vocab"));
    return there ? OK : complain(r, ERR_INVALID, "model.vocab", "it is missing or not an object");
}

/* Reads one step of the pre-tokenizer. `pattern`: that of a Split before, else NULL. `ret_done`: this was the last
 * step, ByteLevel. */
static err_t pre_step(struct bpe_reader *r, const json_t *step, const json_t **pattern, bool *ret_done)
{
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    if (has_type(step, "ByteLevel")) {
        const json_t *regex = json_object_get(step, "use_regex");
        bool own = !regex || json_is_true(regex);
        if (!is_empty(json_object_get(step, "add_prefix_space")) || (own && *pattern) || (!own && !*pattern))
            return unsupported(r, "pre_tokenizer", step);
        *ret_done = true;
        return OK;
    }
    if (!has_type(step, "Split") || *pattern || !behavior || strcmp(behavior, "Isolated") != 0 ||
        !is_empty(json_object_get(step, "invert")))
        return unsupported(r, "pre_tokenizer", step);
    *pattern = json_object_get(json_object_get(step, "pattern"), "Regex");
    return json_is_string(*pattern) ? OK : unsupported(r, "pre_tokenizer", step);
}

static err_t pattern_set(struct bpe_reader *r, const char *pattern)
{
    size_t len = strlen(pattern);
    err_t err = regex_new(pattern, len, REGEX_ONIGURUMA, &r->b->regex, r->why);
    if (err)
        return err;
    err = buf_append(&r->b->pattern, pattern, len);
    return err ? no_memory(r) : OK;
}

static err_t pre_read(struct bpe_reader *r, const json_t *pre)
{
    const json_t *steps = has_type(pre, "Sequence") ? json_object_get(pre, "pretokenizers") : NULL, *pattern = NULL;
    size_t n = steps ? json_array_size(steps) : 1;
    bool done = false;
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++)
        err = done ? unsupported(r, "pre_tokenizer", pre)
                   : pre_step(r, steps ? json_array_get(steps, i) : pre, &pattern, &done);
    if (err)
        return err;
    if (!done)
        return unsupported(r, "pre_tokenizer", pre ? pre : json_null());
    const char *text = pattern ? json_string_value(pattern) : bpe_gpt2_pattern;
    err = pattern_set(r, text);
    return err ? why_prefix(r->why, err, "%s, pre_tokenizer", r->file) : OK;
}

static err_t whole_tokens_read(struct bpe_reader *r)
{
    struct bpe *b = r->b;
    struct buf bytes = {0};
    err_t err = OK;
    b->whole_ids = malloc(((size_t)r->json->words.n + 1) * sizeof(*b->whole_ids));
    if (!b->whole_ids)
        return no_memory(r);
    for (int32_t i = 0; !err && i < r->json->words.n; i++) {
        size_t n;
        const char *token = word_of(r, i, &n);
        int32_t number;
        bytes.len = 0;
        if (!bytes_of(token, n, &bytes, &err))
            continue;
        err = err ? err : vocab_add(&b->whole_tokens, bytes.data, bytes.len, &number);
        if (!err)
            b->whole_ids[number] = (int32_t)vocab_json_id(r->json, i);
    }
    buf_fini(&bytes);
    return err ? complain(r, err, "model.vocab", err_text(err)) : OK;
}

static err_t tokenizer_read(struct bpe_reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model"), *normalizer = json_object_get(root, "normalizer");
    err_t err = model_check(r, model);
    if (!err && !is_empty(normalizer) &&
        !(has_type(normalizer, "Sequence") && !json_array_size(json_object_get(normalizer, "normalizers"))))
        err = unsupported(r, "normalizer", normalizer);
    err = err ? err : pre_read(r, json_object_get(root, "pre_tokenizer"));
    err = err ? err : vocab_read(r);
    err = err ? err : merges_json(r, json_object_get(model, "merges"));
    err = err ? err : specials_of_json(r, json_object_get(root, "added_tokens"));
    r->b->whole = json_is_true(json_object_get(model, "ignore_merges"));
    return err || !r->b->whole ? err : whole_tokens_read(r);
}

/* ---- vocab.json and merges.txt ---- */

static err_t pair_read(struct bpe_reader *r, const struct bpe_text *merges)
{
    const char *file = r->file;
    if (r->json->model)
        return complain(r, ERR_INVALID, "", "it is a tokenizer.json, which needs no separate merges file");
    err_t err = vocab_read(r);
    err = err ? err : merges_text(r, merges);
    r->file = file;
    err = err ? err : specials_of_vocab(r);
    return err ? err : pattern_set(r, bpe_gpt2_pattern);
}

/* ---- either ---- */

/* merges NULL: a tokenizer.json. */
static err_t make(const char *name, const struct vocab_json *json, const struct bpe_text *merges, struct bpe **ret,
                  struct why *why)
{
    struct bpe *b = calloc(1, sizeof(*b));
    struct bpe_reader r = {.b = b, .why = why, .file = name, .json = json};
    if (!b)
        return no_memory(&r);
    err_t err = OK;
    for (int pass = 0; !err && pass < BPE_PASSES; pass++)
        if (!(b->specials[pass].list = malloc(BPE_MAX_SPECIALS * sizeof(struct bpe_special))))
            err = no_memory(&r);
    err = err ? err : merges ? pair_read(&r, merges) : tokenizer_read(&r, json->root);
    buf_fini(&r.joined);
    free(r.made);
    if (err) {
        bpe_free(b);
        return err;
    }
    specials_sort(b);
    *ret = b;
    return OK;
}

err_t bpe_json_new(const char *name, const struct vocab_json *json, struct bpe **ret, struct why *why)
{
    return make(name, json, NULL, ret, why);
}

err_t bpe_new(const struct bpe_text *vocab, const struct bpe_text *merges, struct bpe **ret, struct why *why)
{
    struct vocab_json json;
    if (merges->len > BPE_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "%s: more than 64 MiB", vocab->name);
    err_t err = vocab_json_read(vocab, VOCAB_JSON_WORDS, &json, why);
    if (err)
        return err;
    err = make(vocab->name, &json, merges, ret, why);
    vocab_json_fini(&json);
    return err;
}
