/* The models: from a piece to ids. */
#include "common/data/chain_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Words repeat, so recent results are cached. A slot holds one word and its ids, and fits in a cache line. */
#define CACHE_SLOTS (1u << 15)
#define CACHE_TEXT 30
#define CACHE_IDS 8

struct chain_cached {
    uint8_t len, n; /* len 0: free */
    uint8_t text[CACHE_TEXT];
    int32_t ids[CACHE_IDS];
};

err_t chain_cache_new(struct chain_encoder *e)
{
    e->cache = calloc(CACHE_SLOTS, sizeof(*e->cache));
    return e->cache ? OK : ERR_NOMEM;
}

void chain_cache_free(struct chain_encoder *e)
{
    free(e->cache);
}

/* Emits a token that covers e->a[at .. at + n). */
static err_t emit(struct chain_encoder *e, int32_t id, size_t at, size_t n)
{
    err_t err = buf_append(e->ids, &id, sizeof(id));
    if (err || !e->spans)
        return err;
    const struct chain_span span = text_span(&e->a, at, n);
    return buf_append(e->spans, &span, sizeof(span));
}

/* The ids of "<0x..>" for each byte. Nothing is emitted, and *ret is false, if one is missing. */
static err_t emit_bytes(struct chain_encoder *e, size_t at, size_t n, bool *ret)
{
    const uint8_t *p = e->a.data.data + at;
    err_t err = OK;
    *ret = false;
    for (size_t i = 0; i < n; i++)
        if (e->chain->byte_ids[p[i]] < 0)
            return OK;
    for (size_t i = 0; !err && i < n; i++)
        err = emit(e, e->chain->byte_ids[p[i]], at + i, 1);
    *ret = true;
    return err;
}

/* ---- BPE ---- */

struct symbols {
    struct chain_encoder *e;
    err_t err;
    bool unk; /* an unknown character is waiting: it may become one token with the next */
    size_t unk_at;
};

static void symbol_add(struct symbols *s, int32_t id, size_t at)
{
    uint32_t start = (uint32_t)at;
    s->err = s->err ? s->err : buf_append(&s->e->symbols, &id, sizeof(id));
    s->err = s->err ? s->err : buf_append(&s->e->starts, &start, sizeof(start));
}

static void unk_flush(struct symbols *s)
{
    if (s->unk)
        symbol_add(s, s->e->chain->unk, s->unk_at);
    s->unk = false;
}

/* The bytes of a character that the vocabulary lacks. As in tokenizers, a waiting unknown character stays behind them.
 */
static bool symbol_bytes(struct symbols *s, const uint8_t *p, size_t at, size_t n)
{
    const int32_t *ids = s->e->chain->byte_ids;
    for (size_t i = 0; i < n; i++)
        if (ids[p[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        symbol_add(s, ids[p[i]], at + i);
    return true;
}

static void symbol_put(struct symbols *s, const uint8_t *p, size_t at, size_t n)
{
    const struct chain *c = s->e->chain;
    int32_t id = n == 1 ? c->ascii[p[0]] : chain_id(c, p, n);
    if (id >= 0) {
        unk_flush(s);
        symbol_add(s, id, at);
        return;
    }
    if (c->byte_fallback && symbol_bytes(s, p, at, n))
        return;
    if (c->unk < 0) /* tokenizers drops the character */
        return;
    if (!s->unk || !c->fuse_unk) {
        unk_flush(s);
        s->unk_at = at;
    }
    s->unk = true;
}

static err_t bpe_symbols(struct chain_encoder *e, struct chain_piece p)
{
    struct symbols s = {.e = e};
    const uint8_t *text = e->a.data.data;
    uint32_t c;
    e->symbols.len = e->starts.len = 0;
    for (size_t i = p.from, n; !s.err && i < p.to; i += n) {
        n = char_at(text + i, &c);
        symbol_put(&s, text + i, i, n);
    }
    unk_flush(&s);
    return s.err;
}

static err_t bpe_emit(struct chain_encoder *e, struct chain_piece p, const int32_t *ids, const uint32_t *at, size_t n)
{
    const uint32_t *starts = (const uint32_t *)(const void *)e->starts.data;
    err_t err = OK;
    if (!e->spans)
        return buf_append(e->ids, ids, n * sizeof(*ids));
    for (size_t i = 0; !err && i < n; i++) {
        size_t from = starts[at[i]], to = i + 1 < n ? starts[at[i + 1]] : p.to;
        to = to > from ? to : p.to; /* an unknown character may stand behind later bytes */
        err = emit(e, ids[i], from, to - from);
    }
    return err;
}

static err_t bpe_encode(struct chain_encoder *e, struct chain_piece p)
{
    const struct chain *c = e->chain;
    int32_t whole = c->whole ? chain_id(c, e->a.data.data + p.from, p.to - p.from) : -1;
    size_t made = 0;
    if (whole >= 0)
        return emit(e, whole, p.from, p.to - p.from);
    err_t err = bpe_symbols(e, p);
    size_t n = e->symbols.len / sizeof(int32_t);
    if (err || !n)
        return err;
    int32_t *ids = (int32_t *)(void *)e->symbols.data;
    const uint32_t *at = NULL;
    err = bpe_merge_ids(&c->merges, ids, n, &e->work, e->spans ? &at : NULL, &made);
    return err ? err : bpe_emit(e, p, ids, at, made);
}

/* ---- SentencePiece's BPE: unknown characters take part in merging, and become bytes or unk afterwards ---- */

enum { UNKNOWN = -2, FROZEN = -3 }; /* ids of symbols; FROZEN - id: a user-defined piece, which does not merge */

static size_t frozen_at(const struct chain *c, const uint8_t *p, size_t n, int32_t *ret)
{
    size_t found = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < n && c->kept.n && (node = trie_step(&c->kept, node, p[i])); i++)
        if (c->kept.values[node] >= 0) {
            found = i + 1;
            *ret = FROZEN - c->kept.values[node];
        }
    return found;
}

/* *ret: whether every symbol is a piece that may merge. */
static err_t sp_symbols(struct chain_encoder *e, struct chain_piece p, bool *ret)
{
    const struct chain *c = e->chain;
    struct symbols s = {.e = e};
    const uint8_t *text = e->a.data.data;
    uint32_t ch;
    *ret = true;
    e->symbols.len = e->starts.len = 0;
    for (size_t i = p.from, n; !s.err && i < p.to; i += n) {
        int32_t id = 0;
        n = frozen_at(c, text + i, p.to - i, &id);
        if (!n) {
            n = char_at(text + i, &ch);
            id = n == 1 ? c->ascii[text[i]] : chain_id(c, text + i, n);
            id = id < 0 ? UNKNOWN : id;
        }
        *ret &= id >= 0 && id < c->n_tokens;
        symbol_add(&s, id, i);
    }
    return s.err;
}

/* Whether a symbol that is left is no piece. */
static bool sp_unknown(const struct chain *c, int32_t id)
{
    return id == UNKNOWN || id >= c->n_tokens;
}

static err_t sp_emit(struct chain_encoder *e, struct chain_piece p, const int32_t *ids, const uint32_t *at, size_t n)
{
    const struct chain *c = e->chain;
    const uint32_t *starts = (const uint32_t *)(const void *)e->starts.data;
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++) {
        size_t from = starts[at[i]], k = i;
        if (!sp_unknown(c, ids[i])) {
            size_t to = i + 1 < n ? starts[at[i + 1]] : p.to;
            err = emit(e, ids[i] <= FROZEN ? FROZEN - ids[i] : ids[i], from, to - from);
            continue;
        }
        while (k + 1 < n && sp_unknown(c, ids[k + 1]))
            k++;
        size_t to = k + 1 < n ? starts[at[k + 1]] : p.to;
        bool done = false;
        err = c->byte_fallback ? emit_bytes(e, from, to - from, &done) : OK;
        err = err || done ? err : emit(e, c->unk, from, to - from);
        i = k;
    }
    return err;
}

static err_t sp_encode(struct chain_encoder *e, struct chain_piece p)
{
    bool plain;
    size_t made = 0;
    const uint32_t *at = NULL;
    err_t err = sp_symbols(e, p, &plain);
    size_t n = e->symbols.len / sizeof(int32_t);
    int32_t *ids = (int32_t *)(void *)e->symbols.data;
    if (err)
        return err;
    plain &= !e->spans;
    err = bpe_merge_ids(&e->chain->merges, ids, n, &e->work, plain ? NULL : &at, &made);
    if (err)
        return err;
    return plain ? buf_append(e->ids, ids, made * sizeof(*ids)) : sp_emit(e, p, ids, at, made);
}

/* ---- Unigram: the path of the largest sum of scores, the first of several ---- */

struct node {
    double score;
    int32_t id;
    uint32_t from; /* UINT32_MAX: not reached */
};

static void node_offer(const struct chain *c, struct node *to, size_t from, int32_t id, double score)
{
    if (c->sentencepiece)
        score = (double)(float)score;
    if (to->from == UINT32_MAX || score > to->score)
        *to = (struct node){score, id, (uint32_t)from};
}

static uint64_t viterbi(const struct chain *c, const uint8_t *p, size_t n, struct node *nodes)
{
    uint64_t steps = 0;
    uint32_t ch;
    for (size_t at = 0, len; at < n; at += len) {
        bool single = false;
        uint32_t node = 0;
        double before = at ? nodes[at].score : 0;
        len = char_at(p + at, &ch);
        for (size_t i = at; i < n && (node = trie_step(&c->pieces, node, p[i])); i++) {
            int32_t id = c->pieces.values[node];
            steps++;
            if (id < 0)
                continue;
            node_offer(c, &nodes[i + 1], at, id, c->scores[id] + before);
            single |= i + 1 == at + len;
        }
        if (!single)
            node_offer(c, &nodes[at + len], at, c->unk, c->unk_score + before);
    }
    return steps;
}

/* An unknown stretch: the token that is spelled like it, else its bytes, else unk. */
static err_t unigram_unknown(struct chain_encoder *e, size_t at, size_t n)
{
    const struct chain *c = e->chain;
    int32_t id = c->sentencepiece ? -1 : chain_id(c, e->a.data.data + at, n);
    bool done = false;
    if (id >= 0)
        return emit(e, id, at, n);
    err_t err = c->byte_fallback ? emit_bytes(e, at, n, &done) : OK;
    if (err || done)
        return err;
    return c->unk < 0 ? ERR_UNSUPPORTED : emit(e, c->unk, at, n);
}

static err_t unigram_encode(struct chain_encoder *e, struct chain_piece p)
{
    const struct chain *c = e->chain;
    size_t n = p.to - p.from;
    e->nodes.len = 0;
    err_t err = buf_reserve(&e->nodes, (n + 1) * sizeof(struct node));
    if (err)
        return err;
    struct node *nodes = (struct node *)(void *)e->nodes.data;
    for (size_t i = 0; i <= n; i++)
        nodes[i].from = UINT32_MAX;
    e->count += viterbi(c, e->a.data.data + p.from, n, nodes);
    for (size_t at = n, from; at;
         at = from) { /* the path is known from its end: keep in each node where its token ends */
        from = nodes[at].from;
        nodes[from].score = (double)at; /* exact: a text has less than 2^32 bytes */
    }
    for (size_t at = 0, to; !err && at < n; at = to) {
        to = (size_t)nodes[at].score;
        int32_t id = nodes[to].id;
        if (id == c->unk) { /* consecutive ones become one */
            while (to < n && nodes[(size_t)nodes[to].score].id == c->unk)
                to = (size_t)nodes[to].score;
            err = unigram_unknown(e, p.from + at, to - at);
        } else {
            err = emit(e, id, p.from + at, to - at);
        }
    }
    return err;
}

/* ---- WordPiece: the longest token that fits, from left to right ---- */

static size_t char_start(const uint8_t *p, size_t at)
{
    while (p[at] >> 6 == 2)
        at--;
    return at;
}

static int32_t wordpiece_longest(struct chain_encoder *e, const uint8_t *p, size_t from, size_t *to)
{
    const struct chain *c = e->chain;
    for (size_t end = *to; end > from; end = char_start(p, end - 1)) {
        e->symbols.len = 0;
        if ((from && buf_append(&e->symbols, c->prefix.data, c->prefix.len)) ||
            buf_append(&e->symbols, p + from, end - from))
            return -2;
        e->count += end - from;
        int32_t id = chain_id(c, e->symbols.data, e->symbols.len);
        if (id >= 0) {
            *to = end;
            return id;
        }
    }
    return -1;
}

static err_t wordpiece_encode(struct chain_encoder *e, struct chain_piece p)
{
    const struct chain *c = e->chain;
    const uint8_t *text = e->a.data.data + p.from;
    size_t n = p.to - p.from, chars = 0, ids = e->ids->len, spans = e->spans ? e->spans->len : 0;
    err_t err = OK;
    for (size_t i = 0; i < n; i++)
        chars += text[i] >> 6 != 2;
    bool known = (int64_t)chars <= c->max_chars;
    for (size_t from = 0, to; !err && known && from < n; from = to) {
        to = n;
        int32_t id = wordpiece_longest(e, text, from, &to);
        known = id >= 0;
        err = id == -2 ? ERR_NOMEM : known ? emit(e, id, p.from + from, to - from) : OK;
    }
    if (err || known)
        return err;
    e->ids->len = ids;
    if (e->spans)
        e->spans->len = spans;
    return emit(e, c->unk, p.from, n);
}

static err_t wordlevel_encode(struct chain_encoder *e, struct chain_piece p)
{
    int32_t id = chain_id(e->chain, e->a.data.data + p.from, p.to - p.from);
    return emit(e, id < 0 ? e->chain->unk : id, p.from, p.to - p.from);
}

/* ---- any model ---- */

static err_t model_encode(struct chain_encoder *e, struct chain_piece p)
{
    switch (e->chain->model) {
    case MODEL_BPE:
        return e->chain->sentencepiece ? sp_encode(e, p) : bpe_encode(e, p);
    case MODEL_UNIGRAM:
        return unigram_encode(e, p);
    case MODEL_WORDPIECE:
        return wordpiece_encode(e, p);
    case MODEL_WORDLEVEL:
        break;
    }
    return wordlevel_encode(e, p);
}

static struct chain_cached *cache_slot(struct chain_encoder *e, const uint8_t *p, size_t n)
{
    uint64_t h = n, v;
    for (size_t i = 0; i < n; i += 8) {
        v = 0;
        memcpy(&v, p + i, n - i < 8 ? n - i : 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return &e->cache[(h >> 40) & (CACHE_SLOTS - 1)];
}

static err_t cached_encode(struct chain_encoder *e, struct chain_piece p)
{
    size_t n = p.to - p.from, before = e->ids->len;
    const uint8_t *text = e->a.data.data + p.from;
    if (n > CACHE_TEXT || e->spans)
        return model_encode(e, p);
    struct chain_cached *slot = cache_slot(e, text, n);
    if (slot->len == n && memcmp(slot->text, text, n) == 0)
        return buf_append(e->ids, slot->ids, slot->n * sizeof(int32_t));
    err_t err = model_encode(e, p);
    size_t made = (e->ids->len - before) / sizeof(int32_t);
    if (!err && made <= CACHE_IDS) {
        *slot = (struct chain_cached){.len = (uint8_t)n, .n = (uint8_t)made};
        memcpy(slot->text, text, n);
        memcpy(slot->ids, e->ids->data + before, made * sizeof(int32_t));
    }
    return err;
}

/* End of the part of a piece that no token continues: before a U+2581 behind another character. */
static size_t part_end(const uint8_t *p, size_t from, size_t to)
{
    bool mark = true; /* the part begins with marks, or right away */
    for (size_t i = from; i + 2 < to; i++) {
        bool here = p[i] == 0xe2 && p[i + 1] == 0x96 && p[i + 2] == 0x81;
        if (here && !mark)
            return i;
        mark = here;
        i += here ? 2 : 0;
    }
    return to;
}

err_t chain_piece_encode(struct chain_encoder *e, struct chain_piece p)
{
    err_t err = OK;
    if (!e->chain->cuts_pieces)
        return cached_encode(e, p);
    for (size_t at = p.from, to; !err && at < p.to; at = to) {
        to = part_end(e->a.data.data, at, p.to);
        err = cached_encode(e, (struct chain_piece){(uint32_t)at, (uint32_t)to});
    }
    return err;
}
