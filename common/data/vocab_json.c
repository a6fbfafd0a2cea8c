/* One scan of the file fills the tables and finds the places of the large values; jansson reads a copy without
 * them. The scan accepts no file that jansson refuses. A file that it does not accept is read by jansson as a whole,
 * whose sentence has the line of the error. */
#include "common/data/vocab_json.h"

#include "common/base/utf8.h"
#include "common/data/json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value of the file that becomes a table; begin NULL: it is not there. */
struct large {
    const uint8_t *begin, *end;
    const char *empty; /* a value of the same type */
};

struct vocab_scan {
    struct json_scan s;
    struct vocab_json *v;
    struct buf decoded;
    struct large vocab, merges;
};

static bool fail(struct vocab_scan *x, err_t err, const char *error)
{
    if (!x->s.error) {
        x->s.error = error;
        x->s.err = err;
    }
    return false;
}

static bool put(struct vocab_scan *x, struct buf *to, const void *data, size_t n)
{
    err_t err = buf_append(to, data, n);
    return err ? fail(x, err, err_text(err)) : true;
}

/* A value that is neither an id nor a merge, from `from` to the scan's place. The readers refuse it later; before, the
 * file must be JSON by jansson's rules too (ranges of numbers, keys that occur twice). */
static bool odd_check(struct vocab_scan *x, const uint8_t *from)
{
    const size_t n = (size_t)(x->s.at - from);
    json_t *value = json_loadb((const char *)from, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    json_decref(value);
    return value || fail(x, ERR_INVALID, "a value is not JSON");
}

/* ---- words ---- */

static bool id_scan(struct vocab_scan *x, int64_t *ret)
{
    const bool number = json_scan_type(&x->s) == JSON_IS_NUMBER;
    const struct json_scan before = x->s;
    if (number && json_scan_integer(&x->s, ret))
        return true;
    x->s = before;
    *ret = -1;
    return json_scan_skip(&x->s) && odd_check(x, before.at);
}

static bool word_scan(struct vocab_scan *x)
{
    const uint8_t *word;
    size_t n;
    int32_t number, before = x->v->words.n;
    int64_t id;
    x->decoded.len = 0;
    if (!json_scan_key(&x->s, &x->decoded, &word, &n))
        return false;
    err_t err = vocab_add(&x->v->words, word, n, &number);
    if (err)
        return fail(x, err, err_text(err));
    if (number != before)
        return fail(x, ERR_INVALID, "two tokens are spelled alike");
    if (n == 5 && memcmp(word, "model", 5) == 0)
        x->v->model = json_scan_type(&x->s) == JSON_IS_OBJECT;
    return id_scan(x, &id) && put(x, &x->v->ids, &id, sizeof(id));
}

static bool words_scan(struct vocab_scan *x)
{
    for (bool more = json_scan_enter(&x->s, '{'); more; more = json_scan_more(&x->s, '}'))
        if (!word_scan(x))
            return false;
    return !x->s.error;
}

/* ---- texts in lists ---- */

static bool text_scan(struct vocab_scan *x, uint32_t *ret, uint32_t *ret_n)
{
    const uint8_t *text;
    size_t n;
    x->decoded.len = 0;
    if (!json_scan_string(&x->s, &x->decoded, &text, &n))
        return false;
    *ret = (uint32_t)x->v->text.len; /* the file is below 4 GiB */
    *ret_n = (uint32_t)n;
    return put(x, &x->v->text, text, n);
}

/* ---- pieces ---- */

/* The value of a number of JSON, behind which the text goes on. */
static bool score_scan(struct vocab_scan *x, double *ret)
{
    const uint8_t *from = x->s.at;
    if (!json_scan_skip(&x->s))
        return false;
    *ret = strtod((const char *)from, NULL);
    return true;
}

#define PLAIN_SCORE 1e18 /* jansson refuses integers beyond 64 bits and real numbers that overflow */

/* A list is a piece if it begins with a string and a number. */
static bool piece_list_scan(struct vocab_scan *x, struct vocab_json_piece *p, bool *ret_plain)
{
    size_t n = 0, found = 0;
    for (bool more = json_scan_enter(&x->s, '['); more; more = json_scan_more(&x->s, ']'), n++) {
        const enum json_type type = json_scan_type(&x->s);
        const bool text = n == 0 && type == JSON_IS_STRING, score = n == 1 && type == JSON_IS_NUMBER;
        if (text ? !text_scan(x, &p->text, &p->n) : score ? !score_scan(x, &p->score) : !json_scan_skip(&x->s))
            return false;
        found += text || score;
    }
    p->valid = found == 2;
    *ret_plain = p->valid && n == 2 && fabs(p->score) < PLAIN_SCORE;
    return !x->s.error;
}

static bool piece_scan(struct vocab_scan *x)
{
    struct vocab_json_piece p = {.valid = false};
    const bool list = json_scan_type(&x->s) == JSON_IS_LIST;
    const uint8_t *from = x->s.at;
    bool plain = false;
    if (list ? !piece_list_scan(x, &p, &plain) : !json_scan_skip(&x->s))
        return false;
    return (plain || odd_check(x, from)) && put(x, &x->v->pieces, &p, sizeof(p));
}

static bool pieces_scan(struct vocab_scan *x)
{
    for (bool more = json_scan_enter(&x->s, '['); more; more = json_scan_more(&x->s, ']'))
        if (!piece_scan(x))
            return false;
    return !x->s.error;
}

/* ---- merges ---- */

/* A list is a merge if it has two items, both strings. */
static bool pair_scan(struct vocab_scan *x, struct vocab_json_merge *m)
{
    size_t n = 0, strings = 0;
    for (bool more = json_scan_enter(&x->s, '['); more; more = json_scan_more(&x->s, ']'), n++) {
        bool wanted = n < 2 && json_scan_type(&x->s) == JSON_IS_STRING;
        if (wanted ? !text_scan(x, n ? &m->right : &m->left, n ? &m->n_right : &m->n_left) : !json_scan_skip(&x->s))
            return false;
        strings += wanted;
    }
    if (n == 2 && strings == 2)
        m->kind = VOCAB_JSON_PAIR;
    return !x->s.error;
}

static bool merge_scan(struct vocab_scan *x)
{
    struct vocab_json_merge m = {.kind = VOCAB_JSON_NONE};
    const enum json_type type = json_scan_type(&x->s);
    const uint8_t *from = x->s.at;
    if (type == JSON_IS_STRING)
        m.kind = VOCAB_JSON_TEXT;
    if (type == JSON_IS_STRING ? !text_scan(x, &m.left, &m.n_left)
        : type == JSON_IS_LIST ? !pair_scan(x, &m)
                               : !json_scan_skip(&x->s))
        return false;
    if (m.kind == VOCAB_JSON_NONE && !odd_check(x, from))
        return false;
    return put(x, &x->v->merges, &m, sizeof(m));
}

static bool merges_scan(struct vocab_scan *x)
{
    for (bool more = json_scan_enter(&x->s, '['); more; more = json_scan_more(&x->s, ']'))
        if (!merge_scan(x))
            return false;
    return !x->s.error;
}

/* ---- the file ---- */

static bool is(const uint8_t *key, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(key, name, n) == 0;
}

/* Scans a large value, and notes its place. */
static bool large_scan(struct vocab_scan *x, struct large *place, const char *empty, bool (*scan)(struct vocab_scan *x))
{
    if (place->begin)
        return fail(x, ERR_INVALID, "a key occurs twice");
    place->begin = x->s.at;
    place->empty = empty;
    bool ok = scan(x);
    place->end = x->s.at;
    return ok;
}

static bool model_value_scan(struct vocab_scan *x, const uint8_t *key, size_t n)
{
    const enum json_type type = json_scan_type(&x->s);
    if (type == JSON_IS_OBJECT && is(key, n, "vocab"))
        return large_scan(x, &x->vocab, "{}", words_scan);
    if (type == JSON_IS_LIST && is(key, n, "vocab"))
        return large_scan(x, &x->vocab, "[]", pieces_scan);
    if (type == JSON_IS_LIST && is(key, n, "merges"))
        return large_scan(x, &x->merges, "[]", merges_scan);
    return json_scan_skip(&x->s);
}

static bool model_scan(struct vocab_scan *x)
{
    const uint8_t *key;
    size_t n;
    for (bool more = json_scan_enter(&x->s, '{'); more; more = json_scan_more(&x->s, '}')) {
        x->decoded.len = 0;
        if (!json_scan_key(&x->s, &x->decoded, &key, &n) || !model_value_scan(x, key, n))
            return false;
    }
    return !x->s.error;
}

static bool file_scan(struct vocab_scan *x)
{
    const uint8_t *key;
    size_t n;
    for (bool more = json_scan_enter(&x->s, '{'); more; more = json_scan_more(&x->s, '}')) {
        x->decoded.len = 0;
        if (!json_scan_key(&x->s, &x->decoded, &key, &n))
            return false;
        bool model = is(key, n, "model") && json_scan_type(&x->s) == JSON_IS_OBJECT;
        if (model ? !model_scan(x) : !json_scan_skip(&x->s))
            return false;
    }
    return !x->s.error;
}

static err_t complain(const struct bpe_text *file, const struct vocab_scan *x, struct why *why)
{
    json_error_t error;
    json_t *root = json_loadb((const char *)file->data, file->len, JSON_REJECT_DUPLICATES, &error);
    bool object = json_is_object(root);
    json_decref(root);
    if (!root)
        return why_set(why, ERR_INVALID, "%s, line %d: %s", file->name, error.line, error.text);
    return why_set(why, x->s.error ? x->s.err : ERR_INVALID, "%s: %s", file->name,
                   !object      ? "it is not a JSON object"
                   : x->s.error ? x->s.error
                                : "it is not JSON");
}

/* Copies the file, with empty values for the large ones. */
static err_t rest_copy(const struct bpe_text *file, const struct vocab_scan *x, struct buf *ret)
{
    const bool swap = x->merges.begin < x->vocab.begin;
    const struct large *places[] = {swap ? &x->merges : &x->vocab, swap ? &x->vocab : &x->merges};
    const uint8_t *at = file->data;
    err_t err = OK;
    for (int i = 0; i < 2; i++) {
        if (!places[i]->begin)
            continue;
        err = err ? err : buf_append(ret, at, (size_t)(places[i]->begin - at));
        err = err ? err : buf_append(ret, places[i]->empty, 2);
        at = places[i]->end;
    }
    return err ? err : buf_append(ret, at, (size_t)(file->data + file->len - at));
}

static err_t rest_read(const struct bpe_text *file, struct vocab_scan *x, struct why *why)
{
    struct buf rest = {0};
    err_t err = rest_copy(file, x, &rest);
    if (err)
        why_set(why, err, "%s: %s", file->name, err_text(err));
    else if (!(x->v->root = json_loadb((const char *)rest.data, rest.len, JSON_REJECT_DUPLICATES, NULL)))
        err = complain(file, x, why);
    buf_fini(&rest);
    return err;
}

/* Without a NUL behind it: the file is JSON and ends with ASCII, which no sequence contains. */
static bool is_utf8(const struct bpe_text *file)
{
    return utf8_run(file->data, file->len) == file->len;
}

err_t vocab_json_read(const struct bpe_text *file, enum vocab_json_kind kind, struct vocab_json *ret, struct why *why)
{
    struct vocab_json v = {0};
    struct vocab_scan x = {.v = &v};
    if (file->len > BPE_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "%s: more than 64 MiB", file->name);
    json_scan_init(&x.s, file->data, file->len);
    x.s.strict = true;
    /* A pointer to an empty text is no NULL. */
    err_t err = buf_reserve(&v.words.text, 1) ? ERR_NOMEM : buf_reserve(&v.text, 1);
    if (err)
        why_set(why, err, "%s: %s", file->name, err_text(err));
    else if (!(kind == VOCAB_JSON_WORDS ? words_scan(&x) : file_scan(&x)) || !json_scan_end(&x.s) || !is_utf8(file))
        err = complain(file, &x, why);
    else if (kind == VOCAB_JSON_TOKENIZER)
        err = rest_read(file, &x, why);
    buf_fini(&x.decoded);
    if (err) {
        vocab_json_fini(&v);
        return err;
    }
    *ret = v;
    return OK;
}

void vocab_json_fini(struct vocab_json *v)
{
    json_decref(v->root);
    vocab_fini(&v->words);
    buf_fini(&v->ids);
    buf_fini(&v->pieces);
    buf_fini(&v->merges);
    buf_fini(&v->text);
    *v = (struct vocab_json){0};
}
