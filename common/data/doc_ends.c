/* Tokenizer files mark special tokens, but do not write which of them ends a document; tokenizer_config.json does,
 * which is another file. The names below are those of published tokenizers. Where a tokenizer has several of them, the
 * first in this order is the one that its authors use between documents: Phi-3 has <|endoftext|> and </s>, and Gemma's
 * vocabulary has HTML's </s> besides <eos>. */
#include "common/data/doc_ends.h"

#include "common/data/index.h"

#include <string.h>

static const char *const eos_names[] = {"<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", NULL};
static const char *const bos_names[] = {"<|begin_of_text|>", "<bos>", "<s>", NULL};

/* -1: there is none. */
static int32_t find_token(const struct tokenizer *t, const char *name)
{
    size_t want = strlen(name), len;
    for (int32_t id = 0; id < tokenizer_vocab(t); id++) {
        const uint8_t *text = tokenizer_token(t, id, &len);
        if (len == want && memcmp(text, name, want) == 0)
            return id;
    }
    return -1;
}

static int32_t find_any(const struct tokenizer *t, const char *const *names)
{
    int32_t id = -1;
    for (; *names && id < 0; names++)
        id = find_token(t, *names);
    return id;
}

static err_t put(struct buf *ids, int32_t id, struct why *why)
{
    err_t err = buf_append(ids, &id, sizeof(id));
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

/* One token: the known one for "always", otherwise that of this text. */
static err_t put_token(const struct tokenizer *t, const char *key, const char *value, const char *const *known,
                       struct buf *ids, struct why *why)
{
    bool always = strcmp(value, "always") == 0;
    int32_t id = always ? find_any(t, known) : find_token(t, value);
    if (id >= 0)
        return put(ids, id, why);
    if (always)
        return why_set(why, ERR_INVALID,
                       "%s: always: the tokenizer has no token with a usual name (%s, ..); write the token's text, or "
                       "none",
                       key, known[0]);
    return why_set(why, ERR_INVALID, "%s: the tokenizer has no token \"%.80s\"", key, value);
}

static err_t make_before(const struct tokenizer *t, const char *bos, struct doc_ends *e, struct why *why)
{
    if (strcmp(bos, "none") == 0)
        return OK;
    if (strcmp(bos, "file") == 0)
        return tokenizer_template(t, false, &e->before, why);
    return put_token(t, "data.bos", bos, bos_names, &e->before, why);
}

static err_t make_after(const struct tokenizer *t, const char *eos, struct doc_ends *e, struct why *why)
{
    if (strcmp(eos, "none") == 0)
        return OK;
    if (strcmp(eos, "file") == 0)
        return tokenizer_template(t, true, &e->after, why);
    if (strcmp(eos, "auto") != 0)
        return put_token(t, "data.eos", eos, eos_names, &e->after, why);
    err_t err = tokenizer_template(t, true, &e->after, why);
    int32_t id = err || e->after.len ? -1 : find_any(t, eos_names);
    return id < 0 ? err : put(&e->after, id, why);
}

/* bytes, words and split have no tokens besides those of the text; <eos> of words is a newline. */
static err_t make_simple(enum tokenizer_kind kind, const char *bos, const char *eos, struct doc_ends *e,
                         struct why *why)
{
    const char *name = index_tokenizer_name(kind);
    bool words = kind == TOKENIZER_WORDS, always = strcmp(eos, "always") == 0,
         none = strcmp(eos, "none") == 0 || strcmp(eos, "file") == 0;
    if (strcmp(bos, "file") != 0 && strcmp(bos, "none") != 0)
        return why_set(why, ERR_INVALID,
                       "data.bos: the tokenizer %s has no token for the begin of a document; write none", name);
    if (strcmp(eos, "auto") != 0 && !none && !(always && words))
        return why_set(why, ERR_INVALID, "data.eos: the tokenizer %s has no such token; write %s", name,
                       words ? "always, for <eos>, or none" : "none");
    e->line = words && !none;
    return OK;
}

err_t doc_ends_make(enum tokenizer_kind kind, const struct tokenizer *t, const char *bos, const char *eos,
                    struct doc_ends *ret, struct why *why)
{
    struct doc_ends e = {0};
    bos = bos && bos[0] ? bos : "file";
    eos = eos && eos[0] ? eos : "auto";
    err_t err;
    if (kind == TOKENIZER_BPE) {
        err = make_before(t, bos, &e, why);
        err = err ? err : make_after(t, eos, &e, why);
    } else {
        err = make_simple(kind, bos, eos, &e, why);
    }
    if (err) {
        doc_ends_fini(&e);
        return err;
    }
    *ret = e;
    return OK;
}

void doc_ends_fini(struct doc_ends *e)
{
    buf_fini(&e->before);
    buf_fini(&e->after);
}
