/* A tokenizer.json from vocab.json, merges.txt and added tokens. Programs that know no pair read it (transformers does
 * not read a llama's pair), and only it can name added tokens. Its fields are those that Hugging Face's tokenizers
 * writes for GPT-2; bpe_read.c reads them back. */
#include "common/data/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct pair {
    const uint8_t *vocab, *merges;
    size_t n_vocab, n_merges;
};

static int added_append(json_t *list, const struct tokenizer_added *x, size_t len)
{
    return json_array_append_new(list, json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)x->id,
                                                 "content", json_stringn(x->content, len), "single_word",
                                                 x->single_word, "lstrip", x->lstrip, "rstrip", x->rstrip, "normalized",
                                                 x->normalized, "special", x->special));
}

struct specials {
    json_t *list;
    const struct tokenizer_added *added;
    int n;
};

/* A special token of vocab.json, unless `added` lists it too, with its own flags. */
static err_t special_append(void *arg, const char *text, size_t len, int32_t id)
{
    const struct specials *s = arg;
    for (int i = 0; i < s->n; i++)
        if (strlen(s->added[i].content) == len && memcmp(s->added[i].content, text, len) == 0)
            return OK;
    const struct tokenizer_added x = {.content = text, .id = id, .special = true};
    return added_append(s->list, &x, len) ? ERR_NOMEM : OK;
}

static int id_compare(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "id"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "id"));
    return (x > y) - (x < y);
}

/* tokenizers numbers added tokens in the order of the list. */
static json_t *list_sorted(json_t *list)
{
    size_t n = json_array_size(list);
    json_t *ret = json_array(), **items = calloc(n + 1, sizeof(*items));
    bool failed = !ret || !items;
    for (size_t i = 0; !failed && i < n; i++)
        items[i] = json_array_get(list, i);
    if (!failed)
        qsort(items, n, sizeof(*items), id_compare);
    for (size_t i = 0; !failed && i < n; i++)
        failed = json_array_append(ret, items[i]);
    free(items);
    json_decref(list);
    if (!failed)
        return ret;
    json_decref(ret);
    return NULL;
}

static json_t *specials_list(const struct bpe *b, const struct tokenizer_added *added, int n)
{
    json_t *list = json_array();
    struct specials specials = {list, added, n};
    bool failed = !list || bpe_specials_each(b, special_append, &specials);
    for (int i = 0; !failed && i < n; i++)
        failed = added_append(list, &added[i], strlen(added[i].content));
    if (!failed)
        return list_sorted(list);
    json_decref(list);
    return NULL;
}

/* The merges as a list of "left right", without lines that begin with #version. */
static json_t *merges_list(const struct pair *p)
{
    json_t *list = json_array();
    const char *at = (const char *)p->merges, *end = at + p->n_merges;
    for (bool failed = !list; !failed && at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at);
        bool version = n >= 8 && memcmp(at, "#version", 8) == 0;
        size_t len = n && at[n - 1] == '\r' ? n - 1 : n;
        if (len && !version && json_array_append_new(list, json_stringn(at, len))) {
            json_decref(list);
            return NULL;
        }
        at += n + 1;
    }
    return list;
}

static json_t *byte_level(bool prefix)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1,
                     "use_regex", 1);
}

static json_t *tokenizer_pack(const struct pair *p, json_t *added)
{
    json_error_t error;
    json_t *vocab = json_loadb((const char *)p->vocab, p->n_vocab, 0, &error);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges_list(p));
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                     "added_tokens", added, "normalizer", "pre_tokenizer", byte_level(false), "post_processor",
                     byte_level(true), "decoder", byte_level(true), "model", model);
}

static err_t print(const struct pair *p, const struct bpe *b, const struct tokenizer_added *added, int n,
                   struct buf *ret)
{
    json_t *list = specials_list(b, added, n), *root = list ? tokenizer_pack(p, list) : NULL;
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    err_t err = text ? buf_printf(ret, "%s\n", text) : ERR_NOMEM;
    free(text);
    json_decref(root);
    return err;
}

err_t tokenizer_pair_json(const void *vocab, size_t len, const struct tokenizer_added *added, int n, struct buf *ret,
                          struct why *why)
{
    size_t at, parts[2], before = ret->len;
    struct bpe *b = NULL;
    struct tokenizer *check = NULL;
    if (!tokenizer_bpe_parts(vocab, len, &at, parts))
        return why_set(why, ERR_INVALID, "the vocabulary is not a pair of vocab.json and merges.txt");
    const struct pair p = {(const uint8_t *)vocab + at, (const uint8_t *)vocab + at + parts[0], parts[0], parts[1]};
    const struct bpe_text texts[] = {{"vocab.json", p.vocab, p.n_vocab}, {"merges.txt", p.merges, p.n_merges}};
    err_t err = bpe_new(&texts[0], &texts[1], &b, why);
    if (!err && (err = print(&p, b, added, n, ret)))
        why_set(why, err, "%s", err_text(err));
    if (!err) /* an added token may take the id of another */
        err = tokenizer_bpe_new(ret->data + before, ret->len - before, &check, why);
    tokenizer_free(check);
    bpe_free(b);
    if (err)
        ret->len = before;
    return err;
}
