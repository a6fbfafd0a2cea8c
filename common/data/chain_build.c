/* Filling a chain, whatever format describes it. */
#include "common/data/chain_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

err_t chain_complain(struct chain_reader *r, err_t err, const char *place, const char *what)
{
    return why_set(r->why, err, "%s%s%s: %s", r->file, place[0] ? ", " : "", place, what);
}

/* ---- the vocabulary ---- */

err_t chain_reserve(struct chain_reader *r, int64_t n)
{
    struct chain *c = r->c;
    if (n <= c->n_tokens)
        return OK;
    if (n > BPE_MAX_TOKENS)
        return chain_complain(r, ERR_INVALID, "", "a token has an id above 16777215");
    struct bpe_token *tokens = realloc(c->tokens, (size_t)n * sizeof(*tokens));
    if (!tokens)
        return chain_complain(r, ERR_NOMEM, "", err_text(ERR_NOMEM));
    memset(tokens + c->n_tokens, 0, (size_t)(n - c->n_tokens) * sizeof(*tokens));
    c->tokens = tokens;
    c->n_tokens = (int32_t)n;
    return OK;
}

err_t chain_spelling_set(struct chain_reader *r, const uint8_t *p, size_t n, int64_t id)
{
    struct chain *c = r->c;
    size_t at = c->text.len;
    err_t err = chain_reserve(r, id + 1);
    if (!err && buf_append(&c->text, p, n))
        err = chain_complain(r, ERR_NOMEM, "", err_text(ERR_NOMEM));
    if (!err && c->text.len > UINT32_MAX)
        err = chain_complain(r, ERR_LIMIT, "", "more than 4 GiB of tokens");
    if (!err)
        c->tokens[id] = (struct bpe_token){(uint32_t)at, (uint32_t)n};
    return err;
}

err_t chain_word_add(struct chain_reader *r, const uint8_t *p, size_t n, int64_t id)
{
    struct chain *c = r->c;
    int32_t number, before = c->words.n;
    err_t err = chain_spelling_set(r, p, n, id);
    if (err)
        return err;
    err = vocab_add(&c->words, p, n, &number);
    if (!err && number == before && (number & (number - 1)) == 0) { /* room grows by powers of two */
        int32_t *ids = realloc(c->ids, ((size_t)number * 2 + 1) * sizeof(*ids));
        err = ids ? OK : ERR_NOMEM;
        c->ids = ids ? ids : c->ids;
    }
    if (err)
        return chain_complain(r, err, "", err_text(err));
    c->ids[number] = (int32_t)id; /* of two tokens that are spelled alike, the later one counts */
    return OK;
}

void chain_words_finish(struct chain *c)
{
    char text[8];
    for (int i = 0; i < 256; i++) {
        int n = snprintf(text, sizeof(text), "<0x%02X>", (unsigned)i);
        c->byte_ids[i] = chain_id(c, (const uint8_t *)text, (size_t)n);
    }
    for (int i = 0; i < 128; i++) {
        uint8_t one = (uint8_t)i;
        c->ascii[i] = chain_id(c, &one, 1);
    }
}

/* ---- added tokens ---- */

/* What is looked for in the normalized text: the token's content, normalized like a text. */
static err_t added_normalize(struct chain_encoder *e, struct added_token *t)
{
    text_clear(&e->a);
    err_t err = buf_reserve(&e->a.data, t->content.len + 1);
    err = err ? err : buf_append(&e->a.data, t->content.data, t->content.len);
    err = err ? err : chain_normalize(e, &e->a);
    return err ? err : buf_append(&t->matched, e->a.data.data, e->a.data.len);
}

/* tokenizers finds an empty token everywhere. */
static err_t added_empty(struct chain_reader *r, const struct added_token *t)
{
    return why_set(r->why, ERR_UNSUPPORTED,
                   "%s, added_tokens: nothing is left of \"%.*s\" by the normalizer. Set its normalized to false",
                   r->file, (int)(t->content.len < 60 ? t->content.len : 60), (const char *)t->content.data);
}

static err_t added_finish(struct chain_reader *r, struct chain_encoder *e)
{
    struct chain *c = r->c;
    err_t err = OK;
    for (int i = 0; !err && i < c->added.n; i++) {
        struct added_token *t = &c->added.list[i];
        if (t->normalized)
            err = added_normalize(e, t);
        else
            err = buf_append(&t->matched, t->content.data, t->content.len);
        if (!err && !t->matched.len)
            return added_empty(r, t);
        if (!err)
            err = trie_add(&c->added.tries[t->normalized ? BPE_NORMALIZED : BPE_AS_IS], t->matched.data, t->matched.len,
                           i);
    }
    return err ? chain_complain(r, err, "added_tokens", err_text(err)) : OK;
}

err_t chain_finish(struct chain_reader *r)
{
    struct chain_encoder *e = NULL;
    err_t err = chain_encoder_new(r->c, &e);
    err = err ? chain_complain(r, err, "", err_text(err)) : added_finish(r, e);
    chain_encoder_free(e);
    if (err)
        return err;
    chain_check(r->c);
    return OK;
}

/* ---- base64 ---- */

static int digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

err_t base64_decode(const char *text, size_t len, struct buf *ret)
{
    uint32_t bits = 0;
    err_t err = len % 4 ? ERR_INVALID : OK;
    size_t pad = len && text[len - 1] == '=' ? 1 + (text[len - 2] == '=') : 0;
    for (size_t i = 0; !err && i < len; i++) {
        int d = i >= len - pad ? 0 : digit(text[i]);
        if (d < 0)
            return ERR_INVALID;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 == 3) {
            uint8_t bytes[3] = {(uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits};
            err = buf_append(ret, bytes, i + 1 == len ? 3 - pad : 3);
        }
    }
    return err;
}
