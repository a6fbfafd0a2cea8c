/* Comparison of two models by what they do, not by the form of their files: a pair of vocab.json and merges.txt may
 * equal a tokenizer.json. Two patterns are the same only if they are written alike. */
#include "common/data/bpe_priv.h"

#include <string.h>

static bool tokens_same(const struct bpe *a, const struct bpe *b)
{
    size_t n_a, n_b;
    if (a->n_tokens != b->n_tokens)
        return false;
    for (int32_t id = 0; id < a->n_tokens; id++) {
        const uint8_t *x = bpe_token(a, id, &n_a), *y = bpe_token(b, id, &n_b);
        if (n_a != n_b || (n_a && memcmp(x, y, n_a) != 0))
            return false;
    }
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

/* Every merge of `a` is one of `b`, with the same rank. */
static bool merges_within(const struct bpe *a, const struct bpe *b)
{
    for (uint32_t i = 0; i <= a->mask; i++) {
        const struct bpe_merge *x = &a->merges[i], *y;
        if (x->id < 0)
            continue;
        y = bpe_merges_find(b, x->left, x->right);
        if (!y || y->rank != x->rank || y->id != x->id)
            return false;
    }
    return true;
}

static bool specials_same(const struct bpe *a, const struct bpe *b, enum bpe_pass pass)
{
    const struct bpe_specials *s = &a->specials[pass], *t = &b->specials[pass];
    if (s->n != t->n)
        return false;
    for (int i = 0; i < s->n; i++) {
        const struct bpe_special *x = &s->list[i], *y = &t->list[i];
        if (x->id != y->id || x->len != y->len ||
            memcmp(a->text.data + x->offset, b->text.data + y->offset, x->len) != 0)
            return false;
    }
    return true;
}

bool bpe_same(const struct bpe *a, const struct bpe *b)
{
    return a->whole == b->whole && a->pattern.len == b->pattern.len &&
           memcmp(a->pattern.data, b->pattern.data, a->pattern.len) == 0 && tokens_same(a, b) && merges_within(a, b) &&
           merges_within(b, a) && specials_same(a, b, BPE_AS_IS) && specials_same(a, b, BPE_NORMALIZED);
}

err_t bpe_specials_each(const struct bpe *b, err_t (*each)(void *arg, const char *text, size_t len, int32_t id),
                        void *arg)
{
    err_t err = OK;
    for (int pass = 0; pass < BPE_PASSES; pass++)
        for (int i = 0; !err && i < b->specials[pass].n; i++) {
            const struct bpe_special *s = &b->specials[pass].list[i];
            err = each(arg, (const char *)b->text.data + s->offset, s->len, s->id);
        }
    return err;
}
