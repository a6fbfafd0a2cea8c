/* Which bytes each token covers. Encoders that prepare data do not keep this; here a text is short.
 *
 * A byte-level encoder's tokens are the bytes of the text, one after the other. Only an added token may be spelled
 * otherwise than it is matched: then the tokenizer.json is read again as a chain of steps, which gives the same ids and
 * keeps places. The ids of the post-processor are known to the chain as well. */
#include "common/data/chain.h"
#include "common/data/tokenizer.h"

#include <string.h>

struct explaining {
    const struct tokenizer *t;
    struct buf *ids, *spans;
    struct why *why;
};

static err_t fail(const struct explaining *x, err_t err)
{
    return err ? why_set(x->why, err, "the text: %s",
                         err == ERR_UNSUPPORTED ? "a character is not in the vocabulary, which has no unknown token"
                                                : err_text(err))
               : OK;
}

static err_t span_put(const struct explaining *x, size_t from, size_t to)
{
    const struct tokenizer_span span = {(uint32_t)from, (uint32_t)to};
    return buf_append(x->spans, &span, sizeof(span));
}

static err_t template_put(const struct explaining *x, const struct chain *c, bool after, size_t at)
{
    size_t n;
    const int32_t *ids = chain_template(c, after, &n);
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++) {
        err = buf_append(x->ids, &ids[i], sizeof(ids[i]));
        err = err ? err : span_put(x, at, at);
    }
    return err;
}

static err_t chain_explain(const struct explaining *x, const struct chain *c, const void *text, size_t len,
                           bool special)
{
    struct chain_encoder *e = NULL;
    _Static_assert(sizeof(struct tokenizer_span) == sizeof(struct chain_span), "the same two numbers");
    err_t err = special ? template_put(x, c, false, 0) : OK;
    err = err ? err : chain_encoder_new(c, &e);
    err = err ? err : chain_encode(e, text, len, x->ids, x->spans);
    err = err || !special ? err : template_put(x, c, true, len);
    chain_encoder_free(e);
    return fail(x, err);
}

/* *ret: false if the tokens are not the bytes of the text; nothing is appended then. */
static err_t plain_explain(const struct explaining *x, const void *text, size_t len, bool *ret)
{
    struct buf again = {0};
    size_t ids = x->ids->len, spans = x->spans->len, at = 0;
    err_t err = tokenizer_encode(x->t, text, len, x->ids);
    for (size_t i = ids; !err && i < x->ids->len; i += sizeof(int32_t)) {
        at = again.len;
        err = tokenizer_decode(x->t, *(const int32_t *)(const void *)(x->ids->data + i), &again);
        err = err ? err : span_put(x, at, again.len);
    }
    *ret = !err && again.len == len && (!len || memcmp(again.data, text, len) == 0);
    buf_fini(&again);
    if (!*ret) {
        x->ids->len = ids;
        x->spans->len = spans;
    }
    return fail(x, err);
}

static bool is_tokenizer_json(const struct tokenizer *t, const struct bpe_text *file)
{
    return tokenizer_kind(t) == TOKENIZER_BPE && file->len && file->data[0] == '{' &&
           strcmp(tokenizer_file_name(file->data, file->len), "tokenizer.json") == 0;
}

err_t tokenizer_template(const struct tokenizer *t, bool after, struct buf *ids, struct why *why)
{
    struct bpe_text file = {.name = "tokenizer.json"};
    const struct chain *c = tokenizer_chain(t);
    struct chain *again = NULL;
    size_t n;
    file.data = tokenizer_vocab_file(t, &file.len);
    err_t err = !c && is_tokenizer_json(t, &file) ? chain_new(&file, &again, why) : OK;
    c = c ? c : again;
    if (!err && c) {
        const int32_t *list = chain_template(c, after, &n);
        if ((err = buf_append(ids, list, n * sizeof(*list))))
            why_set(why, err, "%s", err_text(err));
    }
    chain_free(again);
    return err;
}

err_t tokenizer_explain(const struct tokenizer *t, const void *text, size_t len, bool special, struct buf *ids,
                        struct buf *spans, struct why *why)
{
    const struct explaining x = {t, ids, spans, why};
    struct bpe_text file = {.name = "tokenizer.json"};
    struct chain *c = NULL;
    bool done = false;
    file.data = tokenizer_vocab_file(t, &file.len);
    if (tokenizer_chain(t))
        return chain_explain(&x, tokenizer_chain(t), text, len, special);
    bool json = is_tokenizer_json(t, &file);
    err_t err = json && special ? OK : plain_explain(&x, text, len, &done);
    if (err || done)
        return err;
    if (!json)
        return why_set(why, ERR_UNSUPPORTED, "the text: a token is spelled otherwise than the text");
    err = chain_new(&file, &c, why);
    err = err ? err : chain_explain(&x, c, text, len, special);
    chain_free(c);
    return err;
}
