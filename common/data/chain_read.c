/* Reads a tokenizer.json. Every object is read by a row of a table: its type, the keys that it may have, and a
 * function. A type or a key that is not in the table is refused by its name and place, unless its value is empty. */
#include "common/data/chain_priv.h"
#include "common/data/vocab_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACE 160
#define MAX_DEPTH 8

struct json_reader {
    struct chain_reader r;
    struct vocab_json *json;
    struct buf joined; /* the token that is looked for */
    int depth;
};

struct kind {
    const char *type;
    const char *keys; /* between spaces */
    err_t (*read)(struct json_reader *j, const json_t *o, const char *place);
};

/* ---- helpers ---- */

static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && !json_number_value(value));
}

static err_t complain(struct json_reader *j, err_t err, const char *place, const char *what)
{
    return chain_complain(&j->r, err, place, what);
}

static err_t unsupported(struct json_reader *j, const char *place, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    err_t err =
        why_set(j->r.why, ERR_UNSUPPORTED, "%s, %s%s%s: %.100s is not supported (docs/use/tokenizers.md lists what is)",
                j->r.file, place, *key ? "." : "", key, text ? text : "it");
    free(text);
    return err;
}

static err_t no_memory(struct json_reader *j, err_t err)
{
    return err ? complain(j, err, "", err_text(err)) : OK;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static bool flag(const json_t *o, const char *key, bool missing)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : missing;
}

static bool in_list(const char *list, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = list; n && (at = strstr(at, key)); at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

static err_t keys_check(struct json_reader *j, const json_t *o, const char *place, const char *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)o, key, value) if (strcmp(key, "type") != 0 && !in_list(keys, key) &&
                                                     !is_empty(value)) return unsupported(j, place, key, value);
    return OK;
}

/* Reads an object by its row of the table; null is nothing to do. */
static err_t kind_read(struct json_reader *j, const json_t *o, const char *place, const struct kind *table, size_t n)
{
    const char *type = text_of(o, "type");
    err_t err = OK;
    if (!o || json_is_null(o))
        return OK;
    if (!json_is_object(o) || !type)
        return complain(j, ERR_INVALID, place, "it has no type");
    if (++j->depth > MAX_DEPTH)
        return complain(j, ERR_INVALID, place, "it is nested too deeply");
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].type, type) == 0) {
            err = keys_check(j, o, place, table[i].keys);
            err = err ? err : table[i].read(j, o, place);
            j->depth--;
            return err;
        }
    return unsupported(j, place, "type", json_object_get(o, "type"));
}

typedef err_t read_fn(struct json_reader *j, const json_t *o, const char *place);

static err_t list_read(struct json_reader *j, const json_t *o, const char *place, const char *key, read_fn *read)
{
    char inside[PLACE];
    const json_t *list = json_object_get(o, key), *item;
    size_t i;
    err_t err = json_is_array(list) ? OK : complain(j, ERR_INVALID, place, "its list is missing");
    json_array_foreach(list, i, item)
    {
        snprintf(inside, sizeof(inside), "%s.%s[%zu]", place, key, i);
        err = err ? err : read(j, item, inside);
    }
    return err;
}

static err_t buf_set(struct json_reader *j, struct buf *b, const char *text)
{
    return no_memory(j, buf_append(b, text, strlen(text)));
}

/* A pattern: {"String": ..} or {"Regex": ..}. */
static err_t pattern_read(struct json_reader *j, const json_t *o, const char *place, struct buf *literal,
                          struct regex **regex)
{
    const json_t *pattern = json_object_get(o, "pattern");
    const char *text = text_of(pattern, "String"), *expression = text_of(pattern, "Regex");
    if (text && *text)
        return buf_set(j, literal, text);
    if (!expression)
        return complain(j, ERR_INVALID, place, "its pattern is missing or empty");
    err_t err = regex_new(expression, strlen(expression), REGEX_ONIGURUMA, regex, j->r.why);
    return err ? why_prefix(j->r.why, err, "%s, %s", j->r.file, place) : OK;
}

/* ---- normalizers ---- */

static err_t norm_new(struct json_reader *j, const char *place, enum norm_kind kind, struct norm_step **ret)
{
    struct chain *c = j->r.c;
    if (c->n_norms == CHAIN_MAX_STEPS)
        return complain(j, ERR_LIMIT, place, "more than 32 normalizers");
    *ret = &c->norms[c->n_norms++];
    (*ret)->kind = kind;
    return OK;
}

static err_t form_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    const char *type = text_of(o, "type");
    err_t err = norm_new(j, place, NORM_FORM, &s);
    if (!err) {
        s->compatible = type[2] == 'K';
        s->compose = type[strlen(type) - 1] == 'C';
    }
    return err;
}

static err_t lower_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    (void)o;
    return norm_new(j, place, NORM_LOWER, &s);
}

static err_t accents_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    (void)o;
    return norm_new(j, place, NORM_STRIP_ACCENTS, &s);
}

static err_t bytes_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    (void)o;
    return norm_new(j, place, NORM_BYTES, &s);
}

static err_t strip_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    err_t err = norm_new(j, place, NORM_STRIP, &s);
    if (!err) {
        s->left = flag(o, "strip_left", true);
        s->right = flag(o, "strip_right", true);
    }
    return err;
}

static err_t replace_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    const char *content = text_of(o, "content");
    if (!content)
        return complain(j, ERR_INVALID, place, "its content is missing");
    err_t err = norm_new(j, place, NORM_REPLACE, &s);
    err = err ? err : pattern_read(j, o, place, &s->pattern, &s->regex);
    return err ? err : buf_set(j, &s->content, content);
}

static err_t prepend_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    const char *text = text_of(o, "prepend");
    if (!text)
        return complain(j, ERR_INVALID, place, "prepend is missing");
    err_t err = norm_new(j, place, NORM_PREPEND, &s);
    return err ? err : buf_set(j, &s->content, text);
}

static err_t bert_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    err_t err = norm_new(j, place, NORM_BERT, &s);
    if (!err) {
        s->clean = flag(o, "clean_text", true);
        s->chinese = flag(o, "handle_chinese_chars", true);
        s->lower = flag(o, "lowercase", true);
        s->accents = flag(o, "strip_accents", s->lower);
    }
    return err;
}

static err_t precompiled_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct norm_step *s = NULL;
    struct buf blob = {0};
    const json_t *map = json_object_get(o, "precompiled_charsmap");
    if (is_empty(map))
        return OK;
    err_t err = norm_new(j, place, NORM_PRECOMPILED, &s);
    if (err)
        return err;
    err = json_is_string(map) ? base64_decode(json_string_value(map), json_string_length(map), &blob) : ERR_INVALID;
    err = err ? err : norm_map_read(s, blob.data, blob.len);
    buf_fini(&blob);
    return err ? complain(j, err, place, "precompiled_charsmap is damaged") : OK;
}

static err_t norm_read(struct json_reader *j, const json_t *o, const char *place);

static err_t norms_read(struct json_reader *j, const json_t *o, const char *place)
{
    return list_read(j, o, place, "normalizers", norm_read);
}

static err_t norm_read(struct json_reader *j, const json_t *o, const char *place)
{
    static const struct kind table[] = {
        {"Sequence", "normalizers", norms_read},
        {"NFC", "", form_read},
        {"NFD", "", form_read},
        {"NFKC", "", form_read},
        {"NFKD", "", form_read},
        {"Lowercase", "", lower_read},
        {"Strip", "strip_left strip_right", strip_read},
        {"StripAccents", "", accents_read},
        {"Replace", "pattern content", replace_read},
        {"Prepend", "prepend", prepend_read},
        {"BertNormalizer", "clean_text handle_chinese_chars strip_accents lowercase", bert_read},
        {"Precompiled", "precompiled_charsmap", precompiled_read},
        {"ByteLevel", "", bytes_read},
    };
    return kind_read(j, o, place, table, sizeof(table) / sizeof(table[0]));
}

/* ---- pre-tokenizers ---- */

static err_t pre_new(struct json_reader *j, const char *place, enum pre_kind kind, struct pre_step **ret)
{
    struct chain *c = j->r.c;
    if (c->n_pres == CHAIN_MAX_STEPS)
        return complain(j, ERR_LIMIT, place, "more than 32 pre-tokenizers");
    *ret = &c->pres[c->n_pres++];
    (*ret)->kind = kind;
    (*ret)->behavior = PRE_ISOLATED;
    return OK;
}

static err_t behavior_read(struct json_reader *j, const json_t *o, const char *place, enum pre_behavior *ret)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *text = text_of(o, "behavior");
    for (int i = 0; text && i < PRE_BEHAVIORS; i++)
        if (strcmp(names[i], text) == 0) {
            *ret = (enum pre_behavior)i;
            return OK;
        }
    return text ? unsupported(j, place, "behavior", json_object_get(o, "behavior")) : OK;
}

static err_t byte_level_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    err_t err = pre_new(j, place, PRE_BYTES, &s);
    if (err)
        return err;
    s->prefix_space = flag(o, "add_prefix_space", true);
    if (!flag(o, "use_regex", true))
        return OK;
    return regex_new(bpe_gpt2_pattern, strlen(bpe_gpt2_pattern), REGEX_ONIGURUMA, &s->regex, j->r.why);
}

/* Files of before 2024 have add_prefix_space instead of prepend_scheme. */
static err_t metaspace_read(struct json_reader *j, const json_t *o, const char *place)
{
    static const char *const names[] = {"always", "first", "never"};
    struct pre_step *s = NULL;
    const char *mark = text_of(o, "replacement"), *scheme = text_of(o, "prepend_scheme");
    err_t err = pre_new(j, place, PRE_METASPACE, &s);
    if (err)
        return err;
    s->split = flag(o, "split", true);
    s->behavior = PRE_MERGED_NEXT;
    s->prepend = flag(o, "add_prefix_space", true) ? PRE_ALWAYS : PRE_NEVER;
    bool found = !scheme;
    for (int i = 0; scheme && i < 3; i++)
        if (strcmp(scheme, names[i]) == 0) {
            found = true;
            s->prepend = (enum pre_prepend)i;
        }
    if (!found)
        return unsupported(j, place, "prepend_scheme", json_object_get(o, "prepend_scheme"));
    return buf_set(j, &s->literal, mark && *mark ? mark : CHAIN_SPACE);
}

static err_t split_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    err_t err = pre_new(j, place, PRE_REGEX, &s);
    err = err ? err : behavior_read(j, o, place, &s->behavior);
    err = err ? err : pattern_read(j, o, place, &s->literal, &s->regex);
    if (err)
        return err;
    s->kind = s->regex ? PRE_REGEX : PRE_LITERAL;
    s->invert = flag(o, "invert", false);
    return OK;
}

static err_t delimiter_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    const char *text = text_of(o, "delimiter");
    if (!text || !*text)
        return complain(j, ERR_INVALID, place, "its delimiter is missing");
    err_t err = pre_new(j, place, PRE_LITERAL, &s);
    if (err)
        return err;
    s->behavior = PRE_REMOVED;
    return buf_set(j, &s->literal, text);
}

static err_t punctuation_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    err_t err = pre_new(j, place, PRE_PUNCTUATION, &s);
    return err ? err : behavior_read(j, o, place, &s->behavior);
}

static err_t digits_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    err_t err = pre_new(j, place, PRE_DIGITS, &s);
    if (!err)
        s->behavior = flag(o, "individual_digits", false) ? PRE_ISOLATED : PRE_CONTIGUOUS;
    return err;
}

static err_t words_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    (void)o;
    return pre_new(j, place, PRE_WORDS, &s);
}

static err_t spaces_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    (void)o;
    err_t err = pre_new(j, place, PRE_SPACES, &s);
    if (!err)
        s->behavior = PRE_REMOVED;
    return err;
}

static err_t bert_pre_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct pre_step *s = NULL;
    err_t err = spaces_read(j, o, place);
    return err ? err : pre_new(j, place, PRE_PUNCTUATION, &s);
}

static err_t pre_read(struct json_reader *j, const json_t *o, const char *place);

static err_t pres_read(struct json_reader *j, const json_t *o, const char *place)
{
    return list_read(j, o, place, "pretokenizers", pre_read);
}

static err_t pre_read(struct json_reader *j, const json_t *o, const char *place)
{
    static const struct kind table[] = {
        {"Sequence", "pretokenizers", pres_read},
        {"ByteLevel", "add_prefix_space trim_offsets use_regex", byte_level_read},
        {"Metaspace", "replacement prepend_scheme add_prefix_space split str_rep", metaspace_read},
        {"Split", "pattern behavior invert", split_read},
        {"CharDelimiterSplit", "delimiter", delimiter_read},
        {"Punctuation", "behavior", punctuation_read},
        {"Digits", "individual_digits", digits_read},
        {"Whitespace", "", words_read},
        {"WhitespaceSplit", "", spaces_read},
        {"BertPreTokenizer", "", bert_pre_read},
    };
    return kind_read(j, o, place, table, sizeof(table) / sizeof(table[0]));
}

/* ---- the vocabulary ---- */

static err_t word_read(struct json_reader *j, int32_t number)
{
    const struct vocab *words = &j->json->words;
    const uint8_t *token = vocab_text(words, number);
    const uint32_t n = words->list[number].len;
    const int64_t id = vocab_json_id(j->json, number);
    const char *what = id < 0 || id >= BPE_MAX_TOKENS                    ? "its id is not a number from 0 to 16777215"
                       : id < j->r.c->n_tokens && j->r.c->tokens[id].len ? "another token has its id already"
                                                                         : NULL;
    char place[PLACE];
    if (!what)
        return chain_spelling_set(&j->r, token, n, id);
    snprintf(place, sizeof(place), "token \"%.*s\"", (int)(n < 80 ? n : 80), (const char *)token);
    return complain(j, ERR_INVALID, place, what);
}

/* Takes the table, which the scan has made already. */
static err_t words_take(struct json_reader *j)
{
    struct chain *c = j->r.c;
    const int32_t n = j->json->words.n;
    c->ids = malloc(((size_t)n + 1) * sizeof(*c->ids));
    if (!c->ids)
        return no_memory(j, ERR_NOMEM);
    for (int32_t i = 0; i < n; i++)
        c->ids[i] = (int32_t)vocab_json_id(j->json, i);
    c->words = j->json->words;
    j->json->words = (struct vocab){0};
    return OK;
}

static err_t vocab_read(struct json_reader *j, const json_t *model)
{
    const struct vocab_json *v = j->json;
    int64_t largest = -1;
    if (!json_is_object(json_object_get(model, "vocab")))
        return complain(j, ERR_INVALID, "model.vocab", "it is missing or not an object");
    for (int32_t i = 0; i < v->words.n; i++)
        largest = vocab_json_id(v, i) > largest ? vocab_json_id(v, i) : largest;
    err_t err = largest < BPE_MAX_TOKENS ? chain_reserve(&j->r, largest + 1) : OK; /* or word_read names the token */
    for (int32_t i = 0; !err && i < v->words.n; i++)
        err = word_read(j, i);
    err = err ? err : words_take(j);
    chain_words_finish(j->r.c);
    return err;
}

/* The id of model.unk_token; -1 if that is null. */
static err_t unk_read(struct json_reader *j, const json_t *model, const char *missing, bool needed)
{
    const json_t *v = json_object_get(model, "unk_token");
    const char *text = v ? json_string_value(v) : missing;
    struct chain *c = j->r.c;
    c->unk = text ? chain_id(c, (const uint8_t *)text, strlen(text)) : -1;
    if (c->unk < 0 && (needed || text))
        return complain(j, ERR_INVALID, "model.unk_token", "the vocabulary lacks it");
    return OK;
}

/* ---- BPE ---- */

static err_t merge_read(struct json_reader *j, size_t i, const char *left, size_t n_left, const char *right,
                        size_t n_right)
{
    struct chain *c = j->r.c;
    int32_t a = chain_id(c, (const uint8_t *)left, n_left), b = chain_id(c, (const uint8_t *)right, n_right);
    j->joined.len = 0;
    err_t err = buf_append(&j->joined, left, n_left);
    err = err ? err : buf_append(&j->joined, right, n_right);
    if (err)
        return no_memory(j, err);
    int32_t made = chain_id(c, j->joined.data, j->joined.len);
    if (a < 0 || b < 0 || made < 0)
        return why_set(j->r.why, ERR_INVALID, "%s, model.merges[%zu]: \"%.*s\" and \"%.*s\": the vocabulary lacks %s",
                       j->r.file, i, (int)(n_left < 60 ? n_left : 60), left, (int)(n_right < 60 ? n_right : 60), right,
                       a < 0   ? "the first token"
                       : b < 0 ? "the second token"
                               : "the merged token");
    bpe_merges_add(&c->merges, a, b, (int32_t)i, made);
    return OK;
}

static err_t merge_item(struct json_reader *j, size_t i)
{
    const struct vocab_json_merge *m = vocab_json_merge(j->json, i);
    const char *left = (const char *)j->json->text.data + m->left, *end = left + m->n_left;
    const char *space = m->kind == VOCAB_JSON_TEXT ? memchr(left, ' ', m->n_left) : NULL;
    if (m->kind == VOCAB_JSON_PAIR)
        return merge_read(j, i, left, m->n_left, (const char *)j->json->text.data + m->right, m->n_right);
    if (m->kind == VOCAB_JSON_TEXT && m->n_left >= 8 && memcmp(left, "#version", 8) == 0)
        return OK;
    if (space && space > left && space + 1 < end && !memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return merge_read(j, i, left, (size_t)(space - left), space + 1, (size_t)(end - space - 1));
    return why_set(j->r.why, ERR_INVALID, "%s, model.merges[%zu]: a merge must be two tokens", j->r.file, i);
}

static err_t bpe_read(struct json_reader *j, const json_t *o, const char *place)
{
    const size_t n = vocab_json_merges(j->json);
    struct chain *c = j->r.c;
    (void)place;
    if (!json_is_array(json_object_get(o, "merges")))
        return complain(j, ERR_INVALID, "model.merges", "it is missing or not a list");
    c->model = MODEL_BPE;
    c->fuse_unk = flag(o, "fuse_unk", false);
    c->byte_fallback = flag(o, "byte_fallback", false);
    c->whole = flag(o, "ignore_merges", false);
    err_t err = vocab_read(j, o);
    err = err ? err : unk_read(j, o, NULL, false);
    err = err ? err : no_memory(j, bpe_merges_init(&c->merges, n));
    for (size_t i = 0; !err && i < n; i++)
        err = merge_item(j, i);
    return err;
}

/* ---- the other models ---- */

static err_t piece_read(struct json_reader *j, size_t i, double *least)
{
    struct chain *c = j->r.c;
    const struct vocab_json_piece *piece = vocab_json_piece(j->json, i);
    const uint8_t *p = j->json->text.data + piece->text;
    char place[PLACE];
    if (!piece->valid || !isfinite(piece->score)) {
        snprintf(place, sizeof(place), "model.vocab[%zu]", i);
        return complain(j, ERR_INVALID, place, "it is not a piece and its score");
    }
    c->scores[i] = piece->score;
    *least = c->scores[i] < *least ? c->scores[i] : *least;
    if (!piece->n)
        return OK; /* an empty piece matches nothing */
    err_t err = chain_word_add(&j->r, p, piece->n, (int64_t)i);
    return err ? err : no_memory(j, trie_add(&c->pieces, p, piece->n, (int32_t)i));
}

static err_t unigram_read(struct json_reader *j, const json_t *o, const char *place)
{
    const json_t *unk = json_object_get(o, "unk_id");
    const size_t n = vocab_json_pieces(j->json);
    struct chain *c = j->r.c;
    double least = INFINITY;
    (void)place;
    if (!n || n > BPE_MAX_TOKENS)
        return complain(j, ERR_INVALID, "model.vocab", "it is not a list of 1 to 16777215 pieces");
    c->model = MODEL_UNIGRAM;
    c->byte_fallback = flag(o, "byte_fallback", false);
    c->scores = calloc(n, sizeof(*c->scores));
    err_t err = c->scores ? chain_reserve(&j->r, (int64_t)n) : no_memory(j, ERR_NOMEM);
    for (size_t i = 0; !err && i < n; i++)
        err = piece_read(j, i, &least);
    c->unk = json_is_integer(unk) ? (int32_t)json_integer_value(unk) : -1;
    if (!err && json_is_integer(unk) && (json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)n))
        return complain(j, ERR_INVALID, "model.unk_id", "there is no such piece");
    c->unk_score = least - 10;
    chain_words_finish(c);
    return err;
}

static err_t wordpiece_read(struct json_reader *j, const json_t *o, const char *place)
{
    const char *prefix = text_of(o, "continuing_subword_prefix");
    const json_t *most = json_object_get(o, "max_input_chars_per_word");
    struct chain *c = j->r.c;
    (void)place;
    c->model = MODEL_WORDPIECE;
    c->max_chars = json_is_integer(most) ? json_integer_value(most) : 100;
    if (c->max_chars < 1 || c->max_chars > 1000) /* the work of a word is the square of its length */
        return unsupported(j, "model", "max_input_chars_per_word", most);
    err_t err = buf_set(j, &c->prefix, prefix ? prefix : "##");
    err = err ? err : vocab_read(j, o);
    return err ? err : unk_read(j, o, "[UNK]", true);
}

static err_t wordlevel_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)place;
    j->r.c->model = MODEL_WORDLEVEL;
    err_t err = vocab_read(j, o);
    return err ? err : unk_read(j, o, "<unk>", true);
}

static err_t model_read(struct json_reader *j, const json_t *model)
{
    static const struct kind table[] = {
        {"BPE", "unk_token fuse_unk byte_fallback ignore_merges vocab merges", bpe_read},
        {"Unigram", "unk_id byte_fallback vocab", unigram_read},
        {"WordPiece", "unk_token continuing_subword_prefix max_input_chars_per_word vocab", wordpiece_read},
        {"WordLevel", "unk_token vocab", wordlevel_read},
    };
    if (!json_is_object(model))
        return complain(j, ERR_INVALID, "model", "it is missing or not an object");
    if (json_object_get(model, "type"))
        return kind_read(j, model, "model", table, sizeof(table) / sizeof(table[0]));
    err_t err = keys_check(j, model, "model", table[0].keys); /* older files of BPE have no type */
    return err ? err : bpe_read(j, model, "model");
}

/* ---- added tokens ---- */

static struct added_token *added_find(struct added_tokens *a, const char *content)
{
    for (int i = 0; i < a->n; i++)
        if (a->list[i].content.len == strlen(content) &&
            memcmp(a->list[i].content.data, content, a->list[i].content.len) == 0)
            return &a->list[i];
    return NULL;
}

static err_t added_new(struct json_reader *j, const char *content, struct added_token **ret)
{
    struct added_tokens *a = &j->r.c->added;
    if (a->n == BPE_MAX_SPECIALS)
        return complain(j, ERR_LIMIT, "added_tokens", "more than 4096 tokens");
    struct added_token *list = realloc(a->list, ((size_t)a->n + 1) * sizeof(*list));
    if (!list)
        return no_memory(j, ERR_NOMEM);
    a->list = list;
    *ret = memset(&list[a->n++], 0, sizeof(*list));
    return buf_set(j, &(*ret)->content, content);
}

/* tokenizers takes the id of the vocabulary, else the next free one, whatever the file states. A file that states
 * another id is refused, because other programs follow the file. */
static err_t added_id(struct json_reader *j, const char *place, const char *content, const json_t *stated,
                      int64_t *next, int32_t *ret)
{
    struct chain *c = j->r.c;
    int32_t id = chain_id(c, (const uint8_t *)content, strlen(content));
    if (id < 0)
        id = (int32_t)(*next)++;
    if (!json_is_integer(stated) || json_integer_value(stated) != id)
        return why_set(j->r.why, ERR_INVALID, "%s, %s: \"%.80s\" has the id %lld, but tokenizers gives it %d",
                       j->r.file, place, content, (long long)json_integer_value(stated), id);
    *ret = id;
    return id < c->n_tokens && c->tokens[id].len
               ? OK
               : chain_spelling_set(&j->r, (const uint8_t *)content, strlen(content), id);
}

static err_t added_read(struct json_reader *j, const json_t *item, const char *place, int64_t *next)
{
    const char *content = text_of(item, "content");
    if (!content)
        return complain(j, ERR_INVALID, place, "content is missing or not a string");
    if (!*content)
        return OK; /* as in tokenizers */
    err_t err = keys_check(j, item, place, "id content single_word lstrip rstrip normalized special");
    struct added_token *t = added_find(&j->r.c->added, content);
    int32_t id = t ? t->id : 0;
    if (!err && !t) {
        err = added_id(j, place, content, json_object_get(item, "id"), next, &id);
        err = err ? err : added_new(j, content, &t);
    }
    if (err)
        return err;
    t->id = id;
    t->single_word = flag(item, "single_word", false);
    t->lstrip = flag(item, "lstrip", false);
    t->rstrip = flag(item, "rstrip", false);
    t->special = flag(item, "special", false);
    t->normalized = flag(item, "normalized", !t->special);
    return OK;
}

static err_t added_list_read(struct json_reader *j, const json_t *list)
{
    char place[PLACE];
    const json_t *item;
    size_t i;
    int64_t next = j->r.c->model == MODEL_UNIGRAM ? j->r.c->n_tokens : j->r.c->words.n;
    err_t err = !list || json_is_array(list) || json_is_null(list)
                    ? OK
                    : complain(j, ERR_INVALID, "added_tokens", "it is not a list");
    json_array_foreach(list, i, item)
    {
        snprintf(place, sizeof(place), "added_tokens[%zu]", i);
        err = err ? err : added_read(j, item, place, &next);
    }
    return err;
}

/* ---- post-processors: only what they put before and behind a text matters ---- */

static err_t id_put(struct json_reader *j, const char *place, struct buf *to, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= BPE_MAX_TOKENS)
        return complain(j, ERR_INVALID, place, "an id is not a number from 0 to 16777215");
    int32_t id = (int32_t)json_integer_value(value);
    return no_memory(j, buf_append(to, &id, sizeof(id)));
}

/* Puts the ids of a step around those of the steps before. */
static err_t template_add(struct json_reader *j, struct buf *before, struct buf *after)
{
    struct chain *c = j->r.c;
    err_t err = before->len || c->before.len ? buf_append(before, c->before.data, c->before.len) : OK;
    if (!err && after->len)
        err = buf_append(&c->after, after->data, after->len);
    buf_fini(&c->before);
    c->before = *before;
    *before = (struct buf){0};
    buf_fini(after);
    return no_memory(j, err);
}

static err_t template_item(struct json_reader *j, const json_t *o, const json_t *item, const char *place,
                           struct buf *to, bool *text)
{
    const json_t *special = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
    const char *name = text_of(special, "id"), *which = text_of(sequence, "id");
    const json_t *ids, *id;
    size_t i;
    err_t err = OK;
    if (which && strcmp(which, "A") == 0 && !*text) {
        *text = true;
        return OK;
    }
    ids = name ? json_object_get(json_object_get(json_object_get(o, "special_tokens"), name), "ids") : NULL;
    if (!json_is_array(ids))
        return name ? complain(j, ERR_INVALID, place, "special_tokens lacks a token of the template")
                    : unsupported(j, place, "single", item);
    json_array_foreach(ids, i, id) err = err ? err : id_put(j, place, to, id);
    return err;
}

static err_t template_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct buf ids[2] = {{0}};
    const json_t *item;
    size_t i;
    bool text = false;
    err_t err = OK;
    json_array_foreach(json_object_get(o, "single"), i, item) err =
        err ? err : template_item(j, o, item, place, &ids[text], &text);
    if (!err && !text)
        err = complain(j, ERR_INVALID, place, "the template has no place for the text");
    if (!err)
        return template_add(j, &ids[0], &ids[1]);
    buf_fini(&ids[0]);
    buf_fini(&ids[1]);
    return err;
}

static err_t pair_processing_read(struct json_reader *j, const json_t *o, const char *place)
{
    struct buf ids[2] = {{0}};
    err_t err = id_put(j, place, &ids[0], json_array_get(json_object_get(o, "cls"), 1));
    err = err ? err : id_put(j, place, &ids[1], json_array_get(json_object_get(o, "sep"), 1));
    if (!err)
        return template_add(j, &ids[0], &ids[1]);
    buf_fini(&ids[0]);
    buf_fini(&ids[1]);
    return err;
}

static err_t nothing_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)j, (void)o, (void)place;
    return OK;
}

static err_t processor_read(struct json_reader *j, const json_t *o, const char *place);

static err_t processors_read(struct json_reader *j, const json_t *o, const char *place)
{
    return list_read(j, o, place, "processors", processor_read);
}

static err_t processor_read(struct json_reader *j, const json_t *o, const char *place)
{
    static const struct kind table[] = {
        {"Sequence", "processors", processors_read},
        {"ByteLevel", "add_prefix_space trim_offsets use_regex", nothing_read},
        {"TemplateProcessing", "single pair special_tokens", template_read},
        {"BertProcessing", "sep cls", pair_processing_read},
        {"RobertaProcessing", "sep cls trim_offsets add_prefix_space", pair_processing_read},
    };
    return kind_read(j, o, place, table, sizeof(table) / sizeof(table[0]));
}

/* ---- decoders: what one token prints ---- */

static err_t decode_bytes_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)o, (void)place;
    j->r.c->decode_bytes = true;
    return OK;
}

static err_t decode_space_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)o, (void)place;
    j->r.c->decode_space = true;
    return OK;
}

static err_t decode_fallback_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)o, (void)place;
    j->r.c->decode_fallback = true;
    return OK;
}

static err_t decode_wordpiece_read(struct json_reader *j, const json_t *o, const char *place)
{
    (void)o, (void)place;
    j->r.c->decode_wordpiece = true;
    return OK;
}

static err_t decode_replace_read(struct json_reader *j, const json_t *o, const char *place)
{
    const char *from = text_of(json_object_get(o, "pattern"), "String"), *to = text_of(o, "content");
    if (!from || !to || strcmp(from, CHAIN_SPACE) != 0 || strcmp(to, " ") != 0)
        return unsupported(j, place, "", o);
    return decode_space_read(j, o, place);
}

static err_t decoder_read(struct json_reader *j, const json_t *o, const char *place);

static err_t decoders_read(struct json_reader *j, const json_t *o, const char *place)
{
    return list_read(j, o, place, "decoders", decoder_read);
}

static err_t decoder_read(struct json_reader *j, const json_t *o, const char *place)
{
    static const struct kind table[] = {
        {"Sequence", "decoders", decoders_read},
        {"ByteLevel", "add_prefix_space trim_offsets use_regex", decode_bytes_read},
        {"Metaspace", "replacement prepend_scheme add_prefix_space split str_rep", decode_space_read},
        {"ByteFallback", "", decode_fallback_read},
        {"WordPiece", "prefix cleanup", decode_wordpiece_read},
        {"Replace", "pattern content", decode_replace_read},
        {"Fuse", "", nothing_read},
        {"Strip", "content start stop", nothing_read},
    };
    return kind_read(j, o, place, table, sizeof(table) / sizeof(table[0]));
}

/* ---- the file ---- */

static err_t root_read(struct json_reader *j, const json_t *root)
{
    err_t err =
        keys_check(j, root, "the file",
                   "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model");
    err = err ? err : norm_read(j, json_object_get(root, "normalizer"), "normalizer");
    err = err ? err : pre_read(j, json_object_get(root, "pre_tokenizer"), "pre_tokenizer");
    err = err ? err : model_read(j, json_object_get(root, "model"));
    err = err ? err : added_list_read(j, json_object_get(root, "added_tokens"));
    err = err ? err : processor_read(j, json_object_get(root, "post_processor"), "post_processor");
    err = err ? err : decoder_read(j, json_object_get(root, "decoder"), "decoder");
    return err ? err : chain_finish(&j->r);
}

err_t chain_json_new(const char *name, struct vocab_json *json, struct chain **ret, struct why *why)
{
    struct chain *c = calloc(1, sizeof(*c));
    struct json_reader j = {.r = {c, name, why}, .json = json};
    if (!c)
        return why_set(why, ERR_NOMEM, "%s: %s", name, err_text(ERR_NOMEM));
    c->unk = -1;
    err_t err = root_read(&j, json->root);
    buf_fini(&j.joined);
    if (err) {
        chain_free(c);
        return err;
    }
    *ret = c;
    return OK;
}

err_t chain_new(const struct bpe_text *file, struct chain **ret, struct why *why)
{
    struct vocab_json json;
    err_t err = vocab_json_read(file, VOCAB_JSON_TOKENIZER, &json, why);
    if (err)
        return err;
    err = chain_json_new(file->name, &json, ret, why);
    vocab_json_fini(&json);
    return err;
}
