/* The encoder: from text to segments between added tokens, and from there through the steps.
 *
 * A stream is cut at a space behind an ASCII letter and before another one, if chain_check.c finds that no step looks
 * across this place; both parts then get the ids that the whole text gets. Otherwise the text is kept until its end. */
#include "common/data/chain_priv.h"

#include "common/base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define CUT_BYTES \
    ((size_t)1 << 20) /* a stream is cut after this much, so that memory stays in the cache of a processor */

/* ---- create and free ---- */

void chain_free(struct chain *c)
{
    if (!c)
        return;
    for (int i = 0; i < CHAIN_MAX_STEPS; i++) {
        norm_step_fini(&c->norms[i]);
        buf_fini(&c->pres[i].literal);
        regex_free(c->pres[i].regex);
    }
    added_tokens_fini(&c->added);
    buf_fini(&c->before);
    buf_fini(&c->after);
    vocab_fini(&c->words);
    free(c->ids);
    free(c->tokens);
    buf_fini(&c->text);
    free(c->merges.merges);
    trie_fini(&c->pieces);
    trie_fini(&c->kept);
    free(c->scores);
    buf_fini(&c->prefix);
    free(c);
}

int64_t chain_vocab(const struct chain *c)
{
    return c->n_tokens;
}

const uint8_t *chain_token(const struct chain *c, int32_t id, size_t *ret_len)
{
    *ret_len = c->tokens[id].len;
    return c->text.data + c->tokens[id].offset;
}

const int32_t *chain_template(const struct chain *c, bool after, size_t *ret_n)
{
    const struct buf *b = after ? &c->after : &c->before;
    *ret_n = b->len / sizeof(int32_t);
    return (const int32_t *)(const void *)b->data;
}

bool chain_cuts(const struct chain *c)
{
    return c->cuts;
}

bool chain_hides_controls(const struct chain *c)
{
    return c->sentencepiece;
}

void chain_encoder_plain(struct chain_encoder *e)
{
    e->plain = true;
}

void chain_encoder_free(struct chain_encoder *e)
{
    if (!e)
        return;
    struct buf *bufs[] = {&e->pending,   &e->a.data, &e->a.spans,   &e->b.data,    &e->b.spans, &e->raw.data,
                          &e->raw.spans, &e->pieces, &e->more,      &e->classes,   &e->chars,   &e->nodes,
                          &e->symbols,   &e->starts, &e->text.data, &e->text.spans};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        buf_fini(bufs[i]);
    for (int i = 0; i < CHAIN_MAX_STEPS; i++) {
        regex_matcher_free(e->norm_matchers[i]);
        regex_matcher_free(e->pre_matchers[i]);
    }
    bpe_work_fini(&e->work);
    chain_cache_free(e);
    free(e);
}

err_t chain_encoder_new(const struct chain *c, struct chain_encoder **ret)
{
    struct chain_encoder *e = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->chain = c;
    e->cut_bytes = e->try_at = CUT_BYTES;
    err_t err = chain_cache_new(e);
    for (int i = 0; !err && i < CHAIN_MAX_STEPS; i++) {
        if (c->norms[i].regex)
            err = regex_matcher_new(c->norms[i].regex, &e->norm_matchers[i]);
        if (!err && c->pres[i].regex)
            err = regex_matcher_new(c->pres[i].regex, &e->pre_matchers[i]);
    }
    if (err) {
        chain_encoder_free(e);
        return err;
    }
    *ret = e;
    return OK;
}

/* ---- segments ---- */

static err_t token_emit(struct chain_encoder *e, const struct added_token *t, struct chain_span span)
{
    err_t err = buf_append(e->ids, &t->id, sizeof(t->id));
    return err || !e->spans ? err : buf_append(e->spans, &span, sizeof(span));
}

/* Encodes e->a, which is normalized and has no added tokens. */
static err_t pieces_encode(struct chain_encoder *e)
{
    err_t err = chain_pre(e);
    const struct chain_piece *list = (const struct chain_piece *)(const void *)e->pieces.data;
    for (size_t i = 0; !err && i < e->pieces.len / sizeof(*list); i++)
        err = chain_piece_encode(e, list[i]);
    return err;
}

/* A stretch of normalized text between added tokens of the second pass. */
static err_t normal_gap(void *arg, size_t from, size_t to)
{
    struct chain_encoder *e = arg;
    bool continues = e->continues, at_start = e->at_start;
    e->continues &= !from;
    e->at_start &= !from;
    text_clear(&e->a);
    err_t err = buf_reserve(&e->a.data, to - from + 1);
    err = err ? err : buf_append(&e->a.data, e->text.data.data + from, to - from);
    if (!err && e->a.tracked)
        err = buf_append(&e->a.spans, e->text.spans.data + from * sizeof(struct chain_span),
                         (to - from) * sizeof(struct chain_span));
    err = err ? err : pieces_encode(e);
    e->continues = continues;
    e->at_start = at_start;
    return err;
}

static err_t normal_token(void *arg, const struct added_token *t, size_t from, size_t to)
{
    struct chain_encoder *e = arg;
    return token_emit(e, t, text_span(&e->text, from, to - from));
}

static void text_swap(struct chain_text *a, struct chain_text *b)
{
    struct chain_text t = *a;
    *a = *b;
    *b = t;
}

/* A stretch of the raw text between added tokens of the first pass. */
static err_t raw_gap(void *arg, size_t from, size_t to)
{
    struct chain_encoder *e = arg;
    const struct added_walk walk = {normal_gap, normal_token, e, e->plain};
    e->at_start = !e->begun && !from;
    e->continues = e->begun && !from;
    text_clear(&e->a);
    err_t err = buf_reserve(&e->a.data, to - from + 1);
    err = err ? err : buf_append(&e->a.data, e->raw.data.data + from, to - from);
    if (!err && e->a.tracked)
        err = buf_append(&e->a.spans, e->raw.spans.data + from * sizeof(struct chain_span),
                         (to - from) * sizeof(struct chain_span));
    err = err ? err : chain_normalize(e, &e->a);
    if (err || !e->chain->added.tries[BPE_NORMALIZED].n)
        return err ? err : pieces_encode(e);
    text_swap(&e->text, &e->a);
    e->a.tracked = e->text.tracked;
    return added_walk(&e->chain->added, BPE_NORMALIZED, e->text.data.data, e->text.data.len, &walk);
}

static err_t raw_token(void *arg, const struct added_token *t, size_t from, size_t to)
{
    struct chain_encoder *e = arg;
    return token_emit(e, t, text_span(&e->raw, from, to - from));
}

/* ---- text that may not be UTF-8 ---- */

static err_t spans_put(struct chain_text *t, size_t from, size_t n)
{
    err_t err = OK;
    for (size_t i = 0, len; !err && t->tracked && i < n; i += len) {
        uint32_t c;
        len = char_at(t->data.data + t->data.len - n + i, &c);
        const struct chain_span span = {(uint32_t)(from + i), (uint32_t)(from + i + len)};
        for (size_t k = 0; !err && k < len; k++)
            err = buf_append(&t->spans, &span, sizeof(span));
    }
    return err;
}

/* Fills e->raw. Each byte that is not UTF-8 becomes U+FFFD. */
static err_t raw_fill(struct chain_encoder *e, const uint8_t *text, size_t len)
{
    text_clear(&e->raw);
    err_t err = buf_reserve(&e->raw.data, len + 1);
    for (size_t at = 0; !err && at < len;) {
        size_t run = utf8_run(text + at, len - at);
        err = buf_append(&e->raw.data, text + at, run);
        err = err ? err : spans_put(&e->raw, at, run);
        at += run;
        if (!err && at < len) {
            const struct chain_span span = {(uint32_t)at, (uint32_t)at + 1};
            err = text_put(&e->raw, "\xef\xbf\xbd", 3, span);
            at++;
        }
    }
    return err ? err : buf_reserve(&e->raw.data, 1);
}

/* Encodes text[len], behind which a NUL is. */
static err_t chunk_encode(struct chain_encoder *e, const uint8_t *text, size_t len, struct buf *ids, struct buf *spans)
{
    const struct added_walk walk = {raw_gap, raw_token, e, e->plain};
    e->ids = ids;
    e->spans = spans;
    e->raw.tracked = e->a.tracked = e->b.tracked = e->text.tracked = spans != NULL;
    err_t err = raw_fill(e, text, len);
    if (!err)
        e->raw.data.data[e->raw.data.len] = '\0';
    e->count += len;
    return err ? err : added_walk(&e->chain->added, BPE_AS_IS, e->raw.data.data, e->raw.data.len, &walk);
}

/* ---- the stream ---- */

static bool is_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* The last place at which p[n] can be cut; 0: there is none. */
static size_t cut_find(const struct chain *c, const uint8_t *p, size_t n)
{
    for (size_t i = n; c->cuts && i > 2; i--)
        if (p[i - 2] == ' ' && is_letter(p[i - 1]) && is_letter(p[i - 3]))
            return i - 2;
    return 0;
}

static err_t stream_encode(struct chain_encoder *e, bool last, struct buf *ids)
{
    struct buf *p = &e->pending;
    size_t n = last ? p->len : cut_find(e->chain, p->data, p->len);
    if (!n) {
        e->try_at = 2 * p->len;
        return p->len > CHAIN_MAX_UNCUT ? ERR_LIMIT : OK;
    }
    uint8_t kept = p->data[n];
    p->data[n] = '\0';
    err_t err = n > UINT32_MAX / 4 ? ERR_LIMIT : chunk_encode(e, p->data, n, ids, NULL);
    p->data[n] = kept;
    p->len -= n;
    memmove(p->data, p->data + n, p->len);
    e->try_at = e->cut_bytes;
    e->begun = true;
    return err;
}

err_t chain_encoder_feed(struct chain_encoder *e, const uint8_t *text, size_t len, bool last, struct buf *ids)
{
    err_t err = buf_reserve(&e->pending, len + 1);
    if (!err && len)
        err = buf_append(&e->pending, text, len);
    if (err || (!last && e->pending.len < e->try_at))
        return err;
    if (e->pending.len) {
        e->pending.data[e->pending.len] = '\0';
        err = stream_encode(e, last, ids);
    }
    if (err || last) {
        e->pending.len = 0;
        e->try_at = e->cut_bytes;
        e->begun = false;
    }
    return err;
}

size_t chain_encoder_pending(const struct chain_encoder *e)
{
    return e->pending.len;
}

void chain_encoder_continue(struct chain_encoder *e)
{
    e->begun = true;
}

void chain_encoder_cut(struct chain_encoder *e, size_t bytes)
{
    e->cut_bytes = e->try_at = bytes;
}

err_t chain_encode(struct chain_encoder *e, const uint8_t *text, size_t len, struct buf *ids, struct buf *spans)
{
    e->pending.len = 0;
    e->begun = false;
    if (len > CHAIN_MAX_UNCUT)
        return ERR_LIMIT;
    err_t err = buf_reserve(&e->pending, len + 1);
    if (!err && len)
        err = buf_append(&e->pending, text, len);
    if (err || !len)
        return err;
    e->pending.data[len] = '\0';
    err = chunk_encode(e, e->pending.data, len, ids, spans);
    e->pending.len = 0;
    return err;
}

uint64_t chain_encoder_work(const struct chain_encoder *e)
{
    uint64_t sum = e->count + e->work.steps;
    for (int i = 0; i < CHAIN_MAX_STEPS; i++) {
        sum += e->norm_matchers[i] ? regex_work(e->norm_matchers[i]) : 0;
        sum += e->pre_matchers[i] ? regex_work(e->pre_matchers[i]) : 0;
    }
    return sum;
}

/* ---- decoding ---- */

static int byte_of_char(uint32_t c)
{
    if (c < 256)
        return byte_char((uint8_t)c) == c ? (int)c : -1;
    for (int b = 0; b < 256; b++)
        if (byte_char((uint8_t)b) == c)
            return b;
    return -1;
}

/* ByteLevel: characters that stand for bytes; a token with another character is taken as it is. */
static err_t decode_bytes(const uint8_t *p, size_t n, struct buf *ret)
{
    size_t before = ret->len;
    uint32_t c;
    err_t err = OK;
    for (size_t i = 0; !err && i < n;) {
        i += char_at(p + i, &c);
        int b = byte_of_char(c);
        uint8_t byte = (uint8_t)b;
        if (b < 0) {
            ret->len = before;
            return buf_append(ret, p, n);
        }
        err = buf_append(ret, &byte, 1);
    }
    return err;
}

static int hex_digit(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static err_t decode_spaces(const uint8_t *p, size_t n, struct buf *ret)
{
    err_t err = OK;
    for (size_t i = 0, len; !err && i < n; i += len) {
        bool space = n - i >= 3 && memcmp(p + i, CHAIN_SPACE, 3) == 0;
        len = space ? 3 : 1;
        err = buf_append(ret, space ? (const uint8_t *)" " : p + i, 1);
    }
    return err;
}

static err_t decode_wordpiece(const struct chain *c, const uint8_t *p, size_t n, struct buf *ret)
{
    size_t prefix = c->prefix.len;
    if (prefix && n >= prefix && memcmp(p, c->prefix.data, prefix) == 0)
        return buf_append(ret, p + prefix, n - prefix);
    err_t err = buf_append(ret, " ", 1);
    return err ? err : buf_append(ret, p, n);
}

static bool is_added(const struct chain *c, int32_t id)
{
    for (int i = 0; i < c->added.n; i++)
        if (c->added.list[i].id == id)
            return true;
    return false;
}

err_t chain_decode(const struct chain *c, int32_t id, struct buf *ret)
{
    size_t n;
    const uint8_t *p = chain_token(c, id, &n);
    if (is_added(c, id))
        return buf_append(ret, p, n);
    if (c->decode_bytes)
        return decode_bytes(p, n, ret);
    if (c->decode_fallback && n == 6 && memcmp(p, "<0x", 3) == 0 && hex_digit(p[3]) >= 0 && hex_digit(p[4]) >= 0) {
        uint8_t byte = (uint8_t)(hex_digit(p[3]) << 4 | hex_digit(p[4]));
        return buf_append(ret, &byte, 1);
    }
    if (c->decode_wordpiece)
        return decode_wordpiece(c, p, n, ret);
    return c->decode_space ? decode_spaces(p, n, ret) : buf_append(ret, p, n);
}
