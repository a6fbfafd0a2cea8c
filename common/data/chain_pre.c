/* The pre-tokenizers. Each step cuts the pieces of the step before; a step that changes text (Metaspace, ByteLevel)
 * first rewrites all of it, with the pieces' new places. */
#include "common/data/chain_priv.h"
#include "common/data/unicode.h"

#include <string.h>

static const struct chain_piece *pieces_of(const struct buf *b, size_t *ret_n)
{
    *ret_n = b->len / sizeof(struct chain_piece);
    return (const struct chain_piece *)(const void *)b->data;
}

static err_t piece_put(struct buf *to, size_t from, size_t end)
{
    const struct chain_piece p = {(uint32_t)from, (uint32_t)end};
    return end > from ? buf_append(to, &p, sizeof(p)) : OK;
}

static struct chain_piece *piece_last(const struct buf *b)
{
    return (struct chain_piece *)(void *)(b->data + b->len - sizeof(struct chain_piece));
}

/* ---- what is done with the matches in a piece ---- */

/* Receives stretches from left to right, each a match or what is between matches, and writes pieces. */
struct cutter {
    const struct pre_step *step;
    struct buf *out;
    size_t first;       /* bytes of `out` before this piece */
    bool before, begun; /* kind of the stretch before */
    bool glue;          /* MERGED_NEXT: the last piece is a match that the next stretch continues */
};

static err_t cutter_extend(struct cutter *c, size_t to)
{
    piece_last(c->out)->to = (uint32_t)to;
    return OK;
}

/* A stretch that is not empty. */
static err_t cutter_put(struct cutter *c, size_t from, size_t to, bool match)
{
    bool begun = c->out->len > c->first, before = c->begun && c->before, glue = c->glue;
    match ^= c->step->invert;
    if (from == to)
        return OK;
    bool same = c->begun && c->before == match;
    c->before = match;
    c->begun = true;
    switch (c->step->behavior) {
    case PRE_REMOVED:
        return match ? OK : piece_put(c->out, from, to);
    case PRE_CONTIGUOUS:
        return same && begun ? cutter_extend(c, to) : piece_put(c->out, from, to);
    case PRE_MERGED_PREVIOUS:
        return match && !before && begun ? cutter_extend(c, to) : piece_put(c->out, from, to);
    case PRE_MERGED_NEXT:
        c->glue = match;
        return !match && glue ? cutter_extend(c, to) : piece_put(c->out, from, to);
    default:
        return piece_put(c->out, from, to);
    }
}

/* ---- matches ---- */

static size_t chars_bytes(const uint8_t *p, size_t n)
{
    size_t at = 0;
    for (uint32_t c; n; n--)
        at += char_at(p + at, &c);
    return at;
}

static err_t cut_regex(struct chain_encoder *e, struct cutter *c, struct chain_piece p)
{
    struct regex_matcher *m = e->pre_matchers[c->step - e->chain->pres];
    const uint8_t *text = e->a.data.data;
    size_t at = 0, from = p.from, start, end, n = p.to - p.from;
    int rc = 1;
    e->classes.len = 0;
    err_t err = buf_reserve(&e->classes, n);
    if (err)
        return err;
    size_t chars = regex_classify(c->step->regex, text + from, n, e->classes.data);
    regex_matcher_reset(m);
    while (!err && at < chars) {
        err = regex_match(m, e->classes.data, chars, at, true, &rc, &start, &end);
        if (err || !rc)
            break;
        size_t gap = chars == n ? start - at : chars_bytes(text + from, start - at);
        size_t len = chars == n ? end - start : chars_bytes(text + from + gap, end - start);
        err = cutter_put(c, from, from + gap, false);
        err = err ? err : cutter_put(c, from + gap, from + gap + len, true);
        from += gap + len;
        at = end;
    }
    return err ? err : cutter_put(c, from, p.to, false);
}

static err_t cut_literal(struct chain_encoder *e, struct cutter *c, struct chain_piece p)
{
    const uint8_t *text = e->a.data.data, *found;
    const struct buf *what = &c->step->literal;
    size_t from = p.from;
    err_t err = OK;
    while (!err && (found = memmem(text + from, p.to - from, what->data, what->len))) {
        size_t at = (size_t)(found - text);
        err = cutter_put(c, from, at, false);
        err = err ? err : cutter_put(c, at, at + what->len, true);
        from = at + what->len;
    }
    return err ? err : cutter_put(c, from, p.to, false);
}

/* Every character of the set is a match of its own. */
static err_t cut_set(struct chain_encoder *e, struct cutter *c, struct chain_piece p, enum unicode_set set)
{
    const uint8_t *text = e->a.data.data;
    size_t from = p.from;
    err_t err = OK;
    uint32_t ch;
    for (size_t i = p.from, n; !err && i < p.to; i += n) {
        n = char_at(text + i, &ch);
        if (!unicode_in(set, ch))
            continue;
        err = cutter_put(c, from, i, false);
        err = err ? err : cutter_put(c, i, i + n, true);
        from = i + n;
    }
    return err ? err : cutter_put(c, from, p.to, false);
}

/* Whitespace: runs of \w and runs of other visible characters. */
static err_t cut_words(struct chain_encoder *e, struct cutter *c, struct chain_piece p)
{
    const uint8_t *text = e->a.data.data;
    size_t from = p.from;
    int before = 0; /* 0: white space, 1: word, 2: other */
    err_t err = OK;
    uint32_t ch;
    for (size_t i = p.from, n; !err && i < p.to; i += n) {
        n = char_at(text + i, &ch);
        int now = unicode_in(UNICODE_WHITE_SPACE, ch) ? 0 : unicode_in(UNICODE_WORD, ch) ? 1 : 2;
        if (now == before)
            continue;
        err = before ? piece_put(c->out, from, i) : OK;
        from = i;
        before = now;
    }
    return err || !before ? err : piece_put(c->out, from, p.to);
}

static err_t cut(struct chain_encoder *e, struct cutter *c, struct chain_piece p)
{
    switch (c->step->kind) {
    case PRE_BYTES:
    case PRE_REGEX:
        return cut_regex(e, c, p);
    case PRE_METASPACE:
    case PRE_LITERAL:
        return cut_literal(e, c, p);
    case PRE_PUNCTUATION:
        return cut_set(e, c, p, UNICODE_PUNCTUATION);
    case PRE_DIGITS:
        return cut_set(e, c, p, UNICODE_NUMERIC);
    case PRE_SPACES:
        return cut_set(e, c, p, UNICODE_WHITE_SPACE);
    default:
        return cut_words(e, c, p);
    }
}

static err_t cut_all(struct chain_encoder *e, const struct pre_step *s)
{
    size_t n;
    const struct chain_piece *list = pieces_of(&e->pieces, &n);
    err_t err = OK;
    e->more.len = 0;
    for (size_t i = 0; !err && i < n; i++) {
        struct cutter c = {.step = s, .out = &e->more, .first = e->more.len};
        err = cut(e, &c, list[i]);
    }
    struct buf swap = e->pieces;
    e->pieces = e->more;
    e->more = swap;
    return err;
}

/* ---- steps that change the text ---- */

/* Rewrites e->a piece by piece, with `put`, into e->b; what is between pieces is dropped. */
static err_t rewrite(struct chain_encoder *e, const struct pre_step *s,
                     err_t (*put)(struct chain_encoder *e, const struct pre_step *s, struct chain_piece p, bool first))
{
    size_t n = e->pieces.len / sizeof(struct chain_piece);
    struct chain_piece *list = (struct chain_piece *)(void *)e->pieces.data;
    err_t err = OK;
    text_clear(&e->b);
    e->b.tracked = e->a.tracked;
    for (size_t i = 0; !err && i < n; i++) {
        size_t from = e->b.data.len;
        err = put(e, s, list[i], e->at_start && !list[i].from);
        list[i] = (struct chain_piece){(uint32_t)from, (uint32_t)e->b.data.len};
    }
    err = err ? err : buf_reserve(&e->b.data, 1);
    struct chain_text swap = e->a;
    e->a = e->b;
    e->b = swap;
    return err;
}

static struct chain_span first_span(const struct chain_text *t, struct chain_piece p)
{
    uint32_t c;
    return text_span(t, p.from, char_at(t->data.data + p.from, &c));
}

static err_t metaspace_put(struct chain_encoder *e, const struct pre_step *s, struct chain_piece p, bool first)
{
    const uint8_t *text = e->a.data.data + p.from;
    size_t n = p.to - p.from, mark = s->literal.len;
    bool has = text[0] == ' ' || (n >= mark && memcmp(text, s->literal.data, mark) == 0);
    bool prepends = !has && (s->prepend == PRE_ALWAYS ? !(e->continues && !p.from) : s->prepend == PRE_FIRST && first);
    err_t err = prepends ? text_put(&e->b, s->literal.data, mark, first_span(&e->a, p)) : OK;
    for (size_t i = 0; !err && i < n; i++) {
        struct chain_span span = text_span(&e->a, p.from + i, 1);
        err = text[i] == ' ' ? text_put(&e->b, s->literal.data, mark, span) : text_put(&e->b, text + i, 1, span);
    }
    return err;
}

static err_t prefix_put(struct chain_encoder *e, const struct pre_step *s, struct chain_piece p, bool first)
{
    const uint8_t *text = e->a.data.data + p.from;
    (void)s, (void)first;
    err_t err = text[0] != ' ' && !(e->continues && !p.from) ? text_put(&e->b, " ", 1, first_span(&e->a, p)) : OK;
    for (size_t i = 0; !err && i < p.to - p.from; i++)
        err = text_put(&e->b, text + i, 1, text_span(&e->a, p.from + i, 1));
    return err;
}

/* bytes_put without spans: every byte of every byte-level text comes here. The characters have one or two bytes. */
static err_t bytes_put_fast(struct chain_text *to, const uint8_t *text, size_t n)
{
    err_t err = buf_reserve(&to->data, 2 * n + 1);
    if (err)
        return err;
    uint8_t *out = to->data.data + to->data.len;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = byte_char(text[i]);
        bool two = c >= 0x80;
        out[0] = (uint8_t)(two ? 0xc0 | c >> 6 : c);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        out += 1 + two;
    }
    to->data.len = (size_t)(out - to->data.data);
    return OK;
}

static err_t bytes_put(struct chain_encoder *e, const struct pre_step *s, struct chain_piece p, bool first)
{
    err_t err = OK;
    (void)s, (void)first;
    if (!e->b.tracked)
        return bytes_put_fast(&e->b, e->a.data.data + p.from, p.to - p.from);
    for (size_t i = p.from; !err && i < p.to; i++)
        err = text_put_char(&e->b, byte_char(e->a.data.data[i]), text_span(&e->a, i, 1));
    return err;
}

static err_t step_run(struct chain_encoder *e, const struct pre_step *s)
{
    err_t err = OK;
    if (s->kind == PRE_METASPACE) {
        err = rewrite(e, s, metaspace_put);
        return err || !s->split ? err : cut_all(e, s);
    }
    if (s->kind != PRE_BYTES)
        return cut_all(e, s);
    if (s->prefix_space)
        err = rewrite(e, s, prefix_put);
    if (!err && s->regex)
        err = cut_all(e, s);
    return err ? err : rewrite(e, s, bytes_put);
}

err_t chain_pre(struct chain_encoder *e)
{
    e->pieces.len = 0;
    err_t err = piece_put(&e->pieces, 0, e->a.data.len);
    for (int i = 0; !err && i < e->chain->n_pres; i++)
        err = step_run(e, &e->chain->pres[i]);
    return err;
}
