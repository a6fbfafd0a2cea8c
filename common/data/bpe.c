/* From a stream of text to ids:
 *
 *   feed -> pending -> segments between special tokens (two passes) -> runs of valid UTF-8 -> pieces of the pattern ->
 * ids
 *
 * The ids must not depend on where the stream is cut. So the encoder holds back the end of the pending text: as many
 * bytes as a special token might need, an incomplete character, and the piece that the pattern might continue to match,
 * look-aheads included (regex_match). It tries again when there is twice as much
 * text, so a text that the pattern never cuts costs at most twice its length. */
#include "common/data/bpe_priv.h"

#include "common/base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Words repeat, so recent results are cached. A slot holds one word and its ids, and fits in a cache line. */
#define CACHE_SLOTS (1u << 15)
#define CACHE_TEXT 30
#define CACHE_IDS 8

struct cached {
    uint8_t len, n; /* len 0: free */
    uint8_t text[CACHE_TEXT];
    int32_t ids[CACHE_IDS];
};

struct bpe_encoder {
    const struct bpe *bpe;
    struct buf pending;
    size_t try_at; /* do not try before so many bytes are pending */
    struct bpe_work work;
    struct cached *cache;
    struct regex_matcher *matcher;
    struct buf classes; /* of the run that is being split */
    int32_t *out;       /* place of the next id; there is one for each pending byte */
    bool plain;         /* the spelling of a special token is text */
};

/* ---- create and free ---- */

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    buf_fini(&b->text);
    free(b->tokens);
    free(b->merges);
    for (int pass = 0; pass < BPE_PASSES; pass++)
        free(b->specials[pass].list);
    vocab_fini(&b->whole_tokens);
    free(b->whole_ids);
    buf_fini(&b->pattern);
    regex_free(b->regex);
    free(b);
}

int64_t bpe_vocab(const struct bpe *b)
{
    return b->n_tokens;
}

const uint8_t *bpe_token(const struct bpe *b, int32_t id, size_t *ret_len)
{
    *ret_len = b->tokens[id].len;
    return b->text.data + b->tokens[id].offset;
}

err_t bpe_encoder_new(const struct bpe *b, struct bpe_encoder **ret)
{
    struct bpe_encoder *e = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->bpe = b;
    e->cache = calloc(CACHE_SLOTS, sizeof(*e->cache));
    if (!e->cache || regex_matcher_new(b->regex, &e->matcher)) {
        bpe_encoder_free(e);
        return ERR_NOMEM;
    }
    *ret = e;
    return OK;
}

void bpe_encoder_plain(struct bpe_encoder *e)
{
    e->plain = true;
}

void bpe_encoder_free(struct bpe_encoder *e)
{
    if (!e)
        return;
    buf_fini(&e->pending);
    bpe_work_fini(&e->work);
    free(e->cache);
    regex_matcher_free(e->matcher);
    buf_fini(&e->classes);
    free(e);
}

/* ---- pieces ---- */

static uint32_t cache_slot(const uint8_t *p, size_t n)
{
    uint64_t h = n, v;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    v = 0;
    memcpy(&v, p, n);
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 40) & (CACHE_SLOTS - 1);
}

static void cache_put(struct cached *c, const uint8_t *p, size_t n, const int32_t *ids, size_t n_ids)
{
    if (n_ids > CACHE_IDS)
        return;
    c->len = (uint8_t)n;
    c->n = (uint8_t)n_ids;
    memcpy(c->text, p, n);
    memcpy(c->ids, ids, n_ids * sizeof(*ids));
}

static err_t emit(struct bpe_encoder *e, const uint8_t *p, size_t n)
{
    struct cached *c = NULL;
    size_t made;
    if (n <= CACHE_TEXT) {
        c = &e->cache[cache_slot(p, n)];
        if (c->len == n && memcmp(c->text, p, n) == 0) {
            memcpy(e->out, c->ids, c->n * sizeof(*c->ids));
            e->out += c->n;
            return OK;
        }
    }
    if (n > BPE_MAX_PIECE)
        return ERR_LIMIT;
    err_t err = bpe_merge_piece(e->bpe, p, n, &e->work, e->out, &made);
    if (!err && c)
        cache_put(c, p, n, e->out, made);
    if (!err)
        e->out += made;
    return err;
}

/* Bytes of the next n characters, which are valid UTF-8. */
static size_t chars_bytes(const uint8_t *p, size_t n)
{
    size_t at = 0;
    for (; n; n--)
        at += p[at] < 0x80 ? 1 : p[at] < 0xe0 ? 2 : p[at] < 0xf0 ? 3 : 4;
    return at;
}

static err_t classify(struct bpe_encoder *e, const uint8_t *text, size_t n, size_t *ret_chars)
{
    e->classes.len = 0;
    err_t err = buf_reserve(&e->classes, n);
    if (!err)
        *ret_chars = regex_classify(e->bpe->regex, text, n, e->classes.data);
    return err;
}

/* Encodes a run of valid UTF-8. `whole`: later text does not belong to it. ret: number of encoded bytes. */
static err_t split(struct bpe_encoder *e, const uint8_t *text, size_t n, bool whole, size_t *ret)
{
    size_t chars = 0, at = 0, start, end;
    const uint8_t *from = text;
    err_t err = classify(e, text, n, &chars);
    bool ascii = chars == n;
    regex_matcher_reset(e->matcher);
    while (!err && at < chars) {
        int rc;
        err = regex_match(e->matcher, e->classes.data, chars, at, whole, &rc, &start, &end);
        if (err || rc < 0)
            break;
        if (!rc)
            start = end = chars;
        size_t gap = ascii ? start - at : chars_bytes(from, start - at);
        size_t len = ascii ? end - start : chars_bytes(from + gap, end - start);
        if (gap) /* text that the pattern skips is a piece too */
            err = emit(e, from, gap);
        if (!err && len)
            err = emit(e, from + gap, len);
        from += gap + len;
        at = end;
    }
    *ret = err ? 0 : (size_t)(from - text);
    return err;
}

/* ---- runs of valid UTF-8 ---- */

/* Whether p[n] is an incomplete character. */
static bool utf8_unfinished(const uint8_t *p, size_t n)
{
    size_t len = p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (n >= len)
        return false;
    for (size_t i = 1; i < n; i++)
        if (p[i] >> 6 != 2)
            return false;
    return true;
}

/* Encodes text between special tokens. `whole`: it ends here. */
static err_t segment(struct bpe_encoder *e, const uint8_t *text, size_t n, bool whole, size_t *ret)
{
    size_t at = 0, done;
    err_t err = OK;
    while (!err && at < n) {
        size_t run = utf8_run(text + at, n - at);
        bool open = !whole && (at + run == n || utf8_unfinished(text + at + run, n - at - run));
        err = split(e, text + at, run, !open, &done);
        at += done;
        if (err || done < run || open)
            break;
        if (at < n) /* a byte that is not UTF-8 becomes its byte token */
            *e->out++ = e->bpe->bytes[text[at++]];
    }
    *ret = at;
    return err;
}

/* ---- special tokens ---- */

/* The longest special token that starts at p; NULL: none. The list is sorted, so each byte narrows it from both ends.
 */
static const struct bpe_special *special_at(const struct bpe *b, const struct bpe_specials *s, const uint8_t *p,
                                            size_t n)
{
    const struct bpe_special *low = s->list, *high = s->list + s->n, *best = NULL;
    for (size_t depth = 0; depth < n && low < high; depth++) {
        while (low < high && (low->len == depth || b->text.data[low->offset + depth] < p[depth]))
            low++;
        while (low < high && b->text.data[high[-1].offset + depth] > p[depth])
            high--;
        if (low < high && low->len == depth + 1)
            best = low;
    }
    return best;
}

/* Start of the first special token in p[from .. to), which ends at `n` at the latest; `to`: none. */
static size_t special_find(const struct bpe_encoder *e, enum bpe_pass pass, const uint8_t *p, size_t from, size_t to,
                           size_t n, const struct bpe_special **ret)
{
    const struct bpe_specials *s = &e->bpe->specials[pass];
    *ret = NULL;
    for (size_t i = from; s->n && i < to; i++) {
        const struct bpe_special *x = s->first[p[i]] ? special_at(e->bpe, s, p + i, n - i) : NULL;
        if (x && e->plain && x->special) {
            i += x->len - 1; /* passed over as a whole, as tokenizers does with encode_special_tokens */
        } else if (x) {
            *ret = x;
            return i;
        }
    }
    return to;
}

/* ---- the stream ---- */

/* Number of bytes at the end of an open text in which a token of this pass may begin that later text completes. */
static size_t hold_back(const struct bpe *b, enum bpe_pass pass)
{
    return b->specials[pass].longest ? b->specials[pass].longest - 1 : 0;
}

/* Encodes text[n] between special tokens of the first pass. `whole`: it ends here. ret: number of encoded bytes. */
static err_t between(struct bpe_encoder *e, const uint8_t *text, size_t n, bool whole, size_t *ret)
{
    size_t hold = whole ? 0 : hold_back(e->bpe, BPE_NORMALIZED), limit = n > hold ? n - hold : 0, at = 0, done;
    err_t err = OK;
    while (!err && at < limit) {
        const struct bpe_special *special;
        size_t stop = special_find(e, BPE_NORMALIZED, text, at, limit, n, &special);
        err = segment(e, text + at, stop - at, whole || special, &done);
        at += done;
        if (err || at < stop || !special)
            break;
        *e->out++ = special->id;
        at += special->len;
    }
    *ret = at;
    return err;
}

static err_t consume(struct bpe_encoder *e, bool last, size_t *ret_done)
{
    const uint8_t *text = e->pending.data;
    size_t n = e->pending.len, hold = last ? 0 : hold_back(e->bpe, BPE_AS_IS), limit = n > hold ? n - hold : 0;
    size_t at = 0, done;
    err_t err = OK;
    while (!err && at < limit) {
        const struct bpe_special *special;
        size_t stop = special_find(e, BPE_AS_IS, text, at, limit, n, &special);
        err = between(e, text + at, stop - at, last || special, &done);
        at += done;
        if (err || at < stop || !special)
            break;
        *e->out++ = special->id;
        at += special->len;
    }
    *ret_done = at;
    return err;
}

static err_t encode(struct bpe_encoder *e, bool last, struct buf *ids)
{
    size_t done;
    err_t err = buf_reserve(ids, e->pending.len * sizeof(int32_t));
    if (err)
        return err;
    int32_t *start = (int32_t *)(void *)(ids->data + ids->len);
    e->out = start;
    err = consume(e, last, &done);
    if (err)
        return err;
    ids->len += (size_t)(e->out - start) * sizeof(*start);
    e->pending.len -= done;
    memmove(e->pending.data, e->pending.data + done, e->pending.len);
    e->try_at = done ? 0 : 2 * e->pending.len;
    return e->pending.len > BPE_MAX_PIECE ? ERR_LIMIT : OK;
}

err_t bpe_encoder_feed(struct bpe_encoder *e, const uint8_t *text, size_t len, bool last, struct buf *ids)
{
    err_t err = buf_reserve(&e->pending, len + 1);
    if (!err)
        err = buf_append(&e->pending, text, len);
    if (err || !e->pending.len || (!last && e->pending.len < e->try_at))
        return err;
    e->pending.data[e->pending.len] = '\0';
    err = encode(e, last, ids);
    if (err || last) {
        e->pending.len = 0;
        e->try_at = 0;
    }
    return err;
}

size_t bpe_encoder_pending(const struct bpe_encoder *e)
{
    return e->pending.len;
}
