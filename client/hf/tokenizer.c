/* The tokenizer of a Hugging Face folder. Several files describe it; transformers reads tokenizer.json if it is there,
 * and lets tokenizer_config.json and added_tokens.json add tokens. A folder whose files disagree about a token is
 * refused, because either reading would train on wrong ids. */
#include "client/hf/source.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that a file adds. */
struct added_list {
    struct tokenizer_added *list;
    int n;
};

static err_t added_put(const struct hf_source *s, struct added_list *a, const struct tokenizer_added *x)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->list[i].content, x->content) == 0) {
            if (a->list[i].id != x->id)
                return why_set(s->why, ERR_INVALID,
                               "%s: \"%.80s\" has the id %" PRId64 " in tokenizer_config.json and %" PRId64
                               " in added_tokens.json. Correct the wrong one",
                               s->dir, x->content, a->list[i].id, x->id);
            return OK;
        }
    struct tokenizer_added *more = realloc(a->list, ((size_t)a->n + 1) * sizeof(*more));
    if (!more)
        return why_set(s->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    a->list = more;
    a->list[a->n++] = *x;
    return OK;
}

static bool flag(const json_t *token, const char *name)
{
    return json_is_true(json_object_get(token, name));
}

static struct tokenizer_added added_of(const json_t *token, int64_t id)
{
    return (struct tokenizer_added){.content = json_string_value(json_object_get(token, "content")),
                                    .id = id,
                                    .normalized = flag(token, "normalized"),
                                    .special = flag(token, "special"),
                                    .single_word = flag(token, "single_word"),
                                    .lstrip = flag(token, "lstrip"),
                                    .rstrip = flag(token, "rstrip")};
}

/* tokenizer_config.json: {"added_tokens_decoder": {"50257": {"content": .., "normalized": .., "special": ..}}} */
static err_t added_of_config(const struct hf_source *s, const json_t *config, struct added_list *a)
{
    json_t *decoder = json_object_get(config, "added_tokens_decoder"), *value;
    const char *key;
    json_object_foreach(decoder, key, value)
    {
        char *end;
        const struct tokenizer_added x = added_of(value, strtoll(key, &end, 10));
        if (!x.content || !*x.content || *end || x.id < 0)
            return why_set(s->why, ERR_INVALID,
                           "%s/tokenizer_config.json: added_tokens_decoder: \"%.40s\" is not an id with a content",
                           s->dir, key);
        err_t err = added_put(s, a, &x);
        if (err)
            return err;
    }
    return OK;
}

/* tokenizer.json: {"added_tokens": [{"id": 50257, "content": .., ..}]}, which has been read without an error. */
static err_t added_of_tokenizer(const struct hf_source *s, const json_t *root, struct added_list *a)
{
    const json_t *list = json_object_get(root, "added_tokens"), *value;
    size_t i;
    err_t err = OK;
    json_array_foreach(list, i, value)
    {
        const struct tokenizer_added x = added_of(value, json_integer_value(json_object_get(value, "id")));
        err = err ? err : added_put(s, a, &x);
    }
    return err;
}

/* added_tokens.json: {"<|im_start|>": 50257} */
static err_t added_of_map(const struct hf_source *s, json_t *map, struct added_list *a)
{
    const char *content;
    json_t *value;
    json_object_foreach(map, content, value)
    {
        const struct tokenizer_added x = {.content = content, .id = json_integer_value(value), .special = true};
        if (!*content || !json_is_integer(value) || x.id < 0)
            return why_set(s->why, ERR_INVALID, "%s/added_tokens.json: \"%.80s\" has no id", s->dir, content);
        err_t err = added_put(s, a, &x);
        if (err)
            return err;
    }
    return OK;
}

/* Whether the tokenizer gives this text exactly this id, as one token. In a .model, no text gives a control token, and
 * it suffices that the id is spelled like this. */
static err_t token_has(const struct tokenizer *t, const struct tokenizer_added *x, bool *ret)
{
    struct buf ids = {0}, text = {0};
    err_t err = tokenizer_encode(t, x->content, strlen(x->content), &ids);
    *ret = !err && ids.len == sizeof(int32_t) && *(const int32_t *)(const void *)ids.data == x->id;
    if (!err && !*ret && tokenizer_controls_hidden(t) && x->id < tokenizer_vocab(t)) {
        err = tokenizer_decode(t, (int32_t)x->id, &text);
        *ret = !err && text.len == strlen(x->content) && memcmp(text.data, x->content, text.len) == 0;
    }
    buf_fini(&ids);
    buf_fini(&text);
    return err;
}

/* Leaves the tokens in the list that the tokenizer lacks. */
static err_t added_missing(const struct hf_source *s, const struct tokenizer *t, struct added_list *a)
{
    int n = 0;
    for (int i = 0; i < a->n; i++) {
        bool known;
        err_t err = token_has(t, &a->list[i], &known);
        if (err)
            return why_set(s->why, err, "%s: \"%.80s\": %s", s->dir, a->list[i].content, err_text(err));
        if (!known)
            a->list[n++] = a->list[i];
    }
    a->n = n;
    return OK;
}

/* Replaces a tokenizer that is made of a pair by the same one with more tokens. */
static err_t pair_extend(const struct hf_source *s, struct tokenizer **t, const struct added_list *a)
{
    struct buf json = {0};
    size_t len;
    const void *pair = tokenizer_vocab_file(*t, &len);
    err_t err = tokenizer_pair_json(pair, len, a->list, a->n, &json, s->why);
    if (err)
        why_prefix(s->why, err, "%s: the tokens of added_tokens.json and tokenizer_config.json", s->dir);
    tokenizer_free(*t);
    *t = NULL;
    err = err ? err : tokenizer_bpe_new(json.data, json.len, t, s->why);
    buf_fini(&json);
    return err;
}

static err_t added_apply(const struct hf_source *s, struct hf_tokenizer *t, struct added_list *a)
{
    err_t err = added_missing(s, t->tokenizer, a);
    if (err || !a->n)
        return err;
    if (t->n_paths == 2) {
        t->made = true;
        return pair_extend(s, &t->tokenizer, a);
    }
    return why_set(s->why, ERR_INVALID,
                   "%s: tokenizer_config.json or added_tokens.json gives \"%.80s\" the id %" PRId64
                   ", but %s does not. Save the tokenizer again with transformers, so that they agree",
                   s->dir, a->list[0].content, a->list[0].id, strrchr(t->paths[0], '/') + 1);
}

static err_t files_read(const struct hf_source *s, struct hf_tokenizer *t)
{
    char *list[] = {t->paths[0], t->paths[1]};
    static const char *const whole[] = {"tokenizer.json", "tokenizer.model", "tekken.json"};
    for (size_t i = 0; !t->n_paths && i < sizeof(whole) / sizeof(whole[0]); i++) {
        bool pair =
            i == 1 && hf_source_has(s, "vocab.json", t->paths[0]) && hf_source_has(s, "merges.txt", t->paths[1]);
        t->n_paths = pair ? 2 : hf_source_has(s, whole[i], t->paths[0]);
    }
    if (!t->n_paths)
        return OK;
    return tokenizer_bpe_files(list, t->n_paths, &t->tokenizer, s->why);
}

/* Whether vocab.json and merges.txt, with the tokens that tokenizer.json adds, are the same tokenizer. */
static err_t pair_agrees(const struct hf_source *s, const struct hf_tokenizer *t, char *const paths[2], bool *ret)
{
    struct tokenizer *pair = NULL;
    struct added_list added = {0};
    json_t *root = NULL;
    *ret = false;
    err_t err = hf_source_json(s, "tokenizer.json", &root);
    err = err ? err : added_of_tokenizer(s, root, &added);
    if (!err && tokenizer_bpe_files(paths, 2, &pair, NULL) == OK && added_missing(s, pair, &added) == OK)
        *ret = pair_extend(s, &pair, &added) == OK && tokenizer_same(pair, t->tokenizer);
    tokenizer_free(pair);
    free(added.list);
    json_decref(root);
    return err;
}

/* Warns about a pair of vocab.json and merges.txt that contradicts tokenizer.json, because a user may expect it to be
 * read. */
static err_t pair_compare(const struct hf_source *s, const struct hf_tokenizer *t)
{
    char paths[2][PATH_MAX], *list[] = {paths[0], paths[1]};
    bool agrees;
    if (t->n_paths != 1 || !tokenizer_plain(t->tokenizer) || !hf_source_has(s, "vocab.json", paths[0]) ||
        !hf_source_has(s, "merges.txt", paths[1]))
        return OK;
    err_t err = pair_agrees(s, t, list, &agrees);
    if (!err && !agrees)
        hf_source_warn(s,
                       "%s: tokenizer.json is read, as transformers does; vocab.json and merges.txt describe another "
                       "tokenizer and are ignored",
                       s->dir);
    return err;
}

err_t hf_tokenizer_read(const struct hf_source *s, struct hf_tokenizer *ret)
{
    struct hf_tokenizer t = {0};
    struct added_list added = {0};
    json_t *config = NULL, *map = NULL;
    err_t err = files_read(s, &t);
    if (!err && t.tokenizer) {
        err = hf_source_json(s, "tokenizer_config.json", &config);
        err = err ? err : hf_source_json(s, "added_tokens.json", &map);
        err = err ? err : added_of_config(s, config, &added);
        err = err ? err : added_of_map(s, map, &added);
        err = err ? err : added_apply(s, &t, &added);
    }
    if (!err && t.tokenizer)
        err = pair_compare(s, &t);
    free(added.list);
    json_decref(config);
    json_decref(map);
    if (err)
        hf_tokenizer_fini(&t);
    else
        *ret = t;
    return err;
}

void hf_tokenizer_fini(struct hf_tokenizer *t)
{
    tokenizer_free(t->tokenizer);
    t->tokenizer = NULL;
}
