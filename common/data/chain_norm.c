/* The normalizers of Hugging Face's tokenizers. Each step reads one text and writes another; a step that finds nothing
 * to change costs one pass over the bytes. */
#include "common/data/chain_priv.h"
#include "common/data/unicode.h"

#include <stdlib.h>
#include <string.h>

void norm_step_fini(struct norm_step *s)
{
    buf_fini(&s->pattern);
    buf_fini(&s->content);
    buf_fini(&s->map);
    buf_fini(&s->map_text);
    regex_free(s->regex);
}

/* ---- text ---- */

void text_clear(struct chain_text *t)
{
    t->data.len = t->spans.len = 0;
}

err_t text_put(struct chain_text *t, const void *p, size_t n, struct chain_span span)
{
    err_t err = buf_append(&t->data, p, n);
    for (size_t i = 0; !err && t->tracked && i < n; i++)
        err = buf_append(&t->spans, &span, sizeof(span));
    return err;
}

err_t text_put_char(struct chain_text *t, uint32_t c, struct chain_span span)
{
    uint8_t bytes[4];
    return text_put(t, bytes, unicode_put(c, bytes), span);
}

/* Copies n bytes with their spans. */
static err_t text_copy(struct chain_text *to, const struct chain_text *from, size_t at, size_t n)
{
    err_t err = n ? buf_append(&to->data, from->data.data + at, n) : OK;
    if (!err && n && to->tracked)
        err = buf_append(&to->spans, from->spans.data + at * sizeof(struct chain_span), n * sizeof(struct chain_span));
    return err;
}

static struct chain_span joined(struct chain_span a, struct chain_span b)
{
    return (struct chain_span){a.from < b.from ? a.from : b.from, a.to > b.to ? a.to : b.to};
}

/* ---- normalization forms ---- */

struct form_char {
    uint32_t c;
    uint8_t class;
    uint32_t order; /* keeps the sort stable */
    struct chain_span span;
};

struct form {
    const struct norm_step *step;
    struct chain_text *out;
    struct buf *chars; /* struct form_char: a starter and the marks behind it */
};

static struct form_char *form_list(const struct form *f, size_t *ret_n)
{
    *ret_n = f->chars->len / sizeof(struct form_char);
    return (struct form_char *)(void *)f->chars->data;
}

static int form_compare(const void *a, const void *b)
{
    const struct form_char *x = a, *y = b;
    int by_class = (x->class > y->class) - (x->class < y->class);
    return by_class ? by_class : (x->order > y->order) - (x->order < y->order);
}

/* Sorts the marks behind the starter. */
static void form_sort(struct form_char *list, size_t n)
{
    size_t first = n && !list[0].class;
    bool sorted = true;
    for (size_t i = first + 1; i < n; i++)
        sorted &= list[i - 1].class <= list[i].class;
    if (!sorted)
        qsort(list + first, n - first, sizeof(*list), form_compare);
}

/* Composes the starter with marks that no mark of the same class blocks. Returns the new length. */
static size_t form_compose(struct form_char *list, size_t n)
{
    size_t to = 1;
    if (!n || list[0].class)
        return n;
    for (size_t i = 1; i < n; i++) {
        bool blocked = to > 1 && list[to - 1].class == list[i].class;
        uint32_t both = blocked ? 0 : unicode_compose(list[0].c, list[i].c);
        if (both) {
            list[0].c = both;
            list[0].span = joined(list[0].span, list[i].span);
        } else {
            list[to++] = list[i];
        }
    }
    return to;
}

static err_t form_flush(struct form *f)
{
    size_t n;
    err_t err = OK;
    struct form_char *list = form_list(f, &n);
    form_sort(list, n);
    n = f->step->compose ? form_compose(list, n) : n;
    for (size_t i = 0; !err && i < n; i++)
        err = text_put_char(f->out, list[i].c, list[i].span);
    f->chars->len = 0;
    return err;
}

/* Composes a starter with the starter before, if only that is waiting. */
static bool form_join(struct form *f, uint32_t c, struct chain_span span)
{
    size_t n;
    struct form_char *list = form_list(f, &n);
    if (!f->step->compose || !n || list[0].class)
        return false;
    form_sort(list, n);
    n = form_compose(list, n);
    f->chars->len = n * sizeof(*list);
    uint32_t both = n == 1 ? unicode_compose(list[0].c, c) : 0;
    if (!both)
        return false;
    list[0].c = both;
    list[0].span = joined(list[0].span, span);
    return true;
}

static err_t form_put(struct form *f, uint32_t c, struct chain_span span)
{
    const struct form_char x = {c, unicode_class(c), (uint32_t)(f->chars->len / sizeof(x)), span};
    err_t err = OK;
    if (!x.class) {
        if (form_join(f, c, span))
            return OK;
        err = form_flush(f);
    }
    return err ? err : buf_append(f->chars, &x, sizeof(x));
}

static err_t norm_form(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                       struct chain_text *out)
{
    struct form f = {s, out, &e->chars};
    const uint8_t *p = in->data.data;
    uint32_t c, list[UNICODE_MAX_DECOMPOSED];
    err_t err = OK;
    e->chars.len = 0;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        size_t run = 0;
        while (i + run + 1 < in->data.len && p[i + run] < 0x80 && p[i + run + 1] < 0x80)
            run++; /* an ASCII character before another one neither changes nor composes */
        n = run;
        if (run) {
            err = form_flush(&f);
            err = err ? err : text_copy(out, in, i, run);
            continue;
        }
        n = char_at(p + i, &c);
        size_t count = unicode_decompose(c, s->compatible, list);
        for (size_t k = 0; !err && k < count; k++)
            err = form_put(&f, list[k], text_span(in, i, n));
    }
    return err ? err : form_flush(&f);
}

/* ---- steps that change one character at a time ---- */

static err_t lower_put(struct chain_text *out, const struct chain_text *in, size_t at, size_t n, uint32_t c)
{
    size_t count;
    const uint32_t *list = unicode_lower(c, &count);
    if (!list)
        return text_copy(out, in, at, n);
    err_t err = OK;
    for (size_t i = 0; !err && i < count; i++)
        err = text_put_char(out, list[i], text_span(in, at, n));
    return err;
}

static err_t norm_lower(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                        struct chain_text *out)
{
    err_t err = OK;
    uint32_t c;
    (void)e, (void)s;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        n = char_at(in->data.data + i, &c);
        err = lower_put(out, in, i, n, c);
    }
    return err;
}

static err_t set_remove(enum unicode_set set, const struct chain_text *in, struct chain_text *out)
{
    err_t err = OK;
    uint32_t c;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        n = char_at(in->data.data + i, &c);
        if (!unicode_in(set, c))
            err = text_copy(out, in, i, n);
    }
    return err;
}

static err_t norm_strip_accents(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                                struct chain_text *out)
{
    (void)e, (void)s;
    return set_remove(UNICODE_MARK, in, out);
}

static err_t norm_bytes(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                        struct chain_text *out)
{
    err_t err = OK;
    (void)e, (void)s;
    for (size_t i = 0; !err && i < in->data.len; i++)
        err = text_put_char(out, byte_char(in->data.data[i]), text_span(in, i, 1));
    return err;
}

/* ---- BertNormalizer ---- */

static err_t bert_clean(const struct chain_text *in, struct chain_text *out)
{
    err_t err = OK;
    uint32_t c;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        n = char_at(in->data.data + i, &c);
        if (c > ' ' && c < 0x7f)
            err = text_copy(out, in, i, n);
        else if (unicode_in(UNICODE_BERT_SPACE, c))
            err = text_put(out, " ", 1, text_span(in, i, n));
        else if (!unicode_in(UNICODE_BERT_REMOVED, c))
            err = text_copy(out, in, i, n);
    }
    return err;
}

static err_t bert_chinese(const struct chain_text *in, struct chain_text *out)
{
    err_t err = OK;
    uint32_t c;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        n = char_at(in->data.data + i, &c);
        bool apart = c > 0x7f && unicode_in(UNICODE_BERT_CHINESE, c);
        if (apart)
            err = text_put(out, " ", 1, text_span(in, i, n));
        err = err ? err : text_copy(out, in, i, n);
        if (!err && apart)
            err = text_put(out, " ", 1, text_span(in, i, n));
    }
    return err;
}

static void texts_swap(struct chain_text *a, struct chain_text *b)
{
    struct chain_text t = *a;
    *a = *b;
    *b = t;
}

static err_t norm_bert(struct chain_encoder *e, const struct norm_step *s, struct chain_text *t)
{
    static const struct norm_step nfd = {.kind = NORM_FORM};
    err_t err = OK;
    if (s->clean) {
        text_clear(&e->b);
        err = bert_clean(t, &e->b);
        texts_swap(t, &e->b);
    }
    if (!err && s->chinese) {
        text_clear(&e->b);
        err = bert_chinese(t, &e->b);
        texts_swap(t, &e->b);
    }
    if (!err && s->accents) {
        text_clear(&e->b);
        err = norm_form(e, &nfd, t, &e->b);
        text_clear(t);
        err = err ? err : set_remove(UNICODE_BERT_ACCENTS, &e->b, t);
    }
    if (!err && s->lower) {
        text_clear(&e->b);
        err = norm_lower(e, s, t, &e->b);
        texts_swap(t, &e->b);
    }
    return err;
}

/* ---- the ends of the text ---- */

static err_t norm_strip(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                        struct chain_text *out)
{
    size_t from = 0, to = in->data.len, n;
    uint32_t c;
    while (s->left && !e->continues && from < to &&
           (n = char_at(in->data.data + from, &c), unicode_in(UNICODE_WHITE_SPACE, c)))
        from += n;
    while (s->right && to > from) {
        for (n = 1; in->data.data[to - n] >> 6 == 2; n++)
            ;
        char_at(in->data.data + to - n, &c);
        if (!unicode_in(UNICODE_WHITE_SPACE, c))
            break;
        to -= n;
    }
    return text_copy(out, in, from, to - from);
}

static err_t norm_prepend(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                          struct chain_text *out)
{
    uint32_t c;
    err_t err = OK;
    if (in->data.len && !e->continues)
        err = text_put(out, s->content.data, s->content.len, text_span(in, 0, char_at(in->data.data, &c)));
    return err ? err : text_copy(out, in, 0, in->data.len);
}

/* ---- Replace ---- */

static err_t replace_literal(const struct norm_step *s, const struct chain_text *in, struct chain_text *out)
{
    const uint8_t *p = in->data.data, *found;
    size_t at = 0, n = s->pattern.len, len = in->data.len;
    err_t err = OK;
    while (!err && (found = memmem(p + at, len - at, s->pattern.data, n))) {
        size_t gap = (size_t)(found - p) - at;
        err = text_copy(out, in, at, gap);
        err = err ? err : text_put(out, s->content.data, s->content.len, text_span(in, at + gap, n));
        at += gap + n;
    }
    return err ? err : text_copy(out, in, at, len - at);
}

static size_t chars_bytes(const uint8_t *p, size_t n)
{
    size_t at = 0;
    for (uint32_t c; n; n--)
        at += char_at(p + at, &c);
    return at;
}

static err_t replace_regex(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                           struct chain_text *out)
{
    struct regex_matcher *m = e->norm_matchers[s - e->chain->norms];
    size_t at = 0, from = 0, start, end, chars;
    int rc = 1;
    e->classes.len = 0;
    err_t err = buf_reserve(&e->classes, in->data.len);
    if (err)
        return err;
    chars = regex_classify(s->regex, in->data.data, in->data.len, e->classes.data);
    regex_matcher_reset(m);
    while (!err && at < chars) {
        err = regex_match(m, e->classes.data, chars, at, true, &rc, &start, &end);
        if (err || !rc)
            break;
        size_t gap = chars_bytes(in->data.data + from, start - at);
        size_t len = chars_bytes(in->data.data + from + gap, end - start);
        err = text_copy(out, in, from, gap);
        err = err ? err : text_put(out, s->content.data, s->content.len, text_span(in, from + gap, len));
        from += gap + len;
        at = end;
    }
    return err ? err : text_copy(out, in, from, in->data.len - from);
}

static err_t norm_replace(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                          struct chain_text *out)
{
    return s->regex ? replace_regex(e, s, in, out) : replace_literal(s, in, out);
}

/* ---- SentencePiece's map of characters: a double array (Darts) that yields the place of a replacement ---- */

err_t norm_map_read(struct norm_step *s, const uint8_t *blob, size_t len)
{
    uint32_t size;
    if (!len)
        return OK;
    if (len < 4)
        return ERR_INVALID;
    memcpy(&size, blob, 4);
    if (size > len - 4 || size % 4 || !size || blob[len - 1])
        return ERR_INVALID;
    err_t err = buf_append(&s->map, blob + 4, size);
    return err ? err : buf_append(&s->map_text, blob + 4 + size, len - 4 - size);
}

/* Looks up prefixes of p[n]: the first that is found, or the longest. Returns its length, 0: none. */
static size_t map_find(const struct norm_step *s, const uint8_t *p, size_t n, bool longest, const char **ret)
{
    const uint32_t *units = (const uint32_t *)(const void *)s->map.data;
    size_t n_units = s->map.len / sizeof(*units), node = 0, found = 0;
    if (!n_units)
        return 0;
    node = (units[0] >> 10) << ((units[0] & 0x200) >> 6);
    for (size_t i = 0; i < n; i++) {
        node ^= p[i];
        if (node >= n_units || (units[node] & 0x800000ff) != p[i])
            break;
        uint32_t unit = units[node];
        node ^= (unit >> 10) << ((unit & 0x200) >> 6);
        if (!(unit >> 8 & 1) || node >= n_units)
            continue;
        uint32_t at = units[node] & 0x7fffffff;
        if (at >= s->map_text.len)
            continue;
        *ret = (const char *)s->map_text.data + at;
        found = i + 1;
        if (!longest)
            break;
    }
    return found;
}

enum grapheme_class { G_OTHER, G_PREPEND, G_L, G_V, G_T, G_LV, G_LVT, G_EXTEND, G_SPACING, G_CR, G_LF, G_CONTROL };

static enum grapheme_class hangul_class(uint32_t c)
{
    if (c >= 0xac00 && c <= 0xd7a3)
        return (c - 0xac00) % 28 ? G_LVT : G_LV;
    if ((c >= 0x1100 && c <= 0x115f) || (c >= 0xa960 && c <= 0xa97c))
        return G_L;
    if ((c >= 0x1160 && c <= 0x11a7) || (c >= 0xd7b0 && c <= 0xd7c6))
        return G_V;
    return (c >= 0x11a8 && c <= 0x11ff) || (c >= 0xd7cb && c <= 0xd7fb) ? G_T : G_OTHER;
}

static enum grapheme_class grapheme_class(uint32_t c)
{
    if (c == '\r' || c == '\n')
        return c == '\r' ? G_CR : G_LF;
    if (c >= ' ' && c < 0x7f)
        return G_OTHER;
    if (unicode_in(UNICODE_GRAPHEME_CONTROL, c))
        return G_CONTROL;
    if (c == 0x200d || unicode_in(UNICODE_GRAPHEME_EXTEND, c))
        return G_EXTEND;
    if (unicode_in(UNICODE_GRAPHEME_SPACING, c))
        return G_SPACING;
    return unicode_in(UNICODE_GRAPHEME_PREPEND, c) ? G_PREPEND : hangul_class(c);
}

/* UAX 29, rules GB3 to GB9b. */
static bool graphemes_join(enum grapheme_class a, enum grapheme_class b)
{
    if (a >= G_CR)
        return a == G_CR && b == G_LF;
    if (b >= G_EXTEND || a == G_PREPEND)
        return b < G_CR;
    if (a == G_L)
        return b == G_L || b == G_V || b == G_LV || b == G_LVT;
    if (a == G_V || a == G_LV)
        return b == G_V || b == G_T;
    return (a == G_T || a == G_LVT) && b == G_T;
}

/* Bytes of the grapheme cluster at p[n]. Only clusters of less than 6 bytes matter, so flags, emoji and conjuncts,
 * which need more, have no rule here. */
static size_t grapheme_bytes(const uint8_t *p, size_t n)
{
    uint32_t c;
    size_t at = char_at(p, &c);
    enum grapheme_class before = grapheme_class(c);
    while (at < n) {
        size_t len = char_at(p + at, &c);
        enum grapheme_class next = grapheme_class(c);
        if (!graphemes_join(before, next))
            break;
        at += len;
        before = next;
    }
    return at;
}

static err_t map_char(const struct norm_step *s, const struct chain_text *in, size_t at, size_t n,
                      struct chain_text *out)
{
    const char *text;
    if (map_find(s, in->data.data + at, n, false, &text))
        return text_put(out, text, strlen(text), text_span(in, at, n));
    return text_copy(out, in, at, n);
}

/* tokenizers looks up each grapheme cluster, and replaces all of it by what its shortest known prefix maps to. */
static err_t norm_precompiled(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                              struct chain_text *out)
{
    err_t err = OK;
    const char *text;
    uint32_t c;
    (void)e;
    for (size_t i = 0, n; !err && i < in->data.len; i += n) {
        n = grapheme_bytes(in->data.data + i, in->data.len - i);
        if (n < 6 && map_find(s, in->data.data + i, n, false, &text)) {
            err = text_put(out, text, strlen(text), text_span(in, i, n));
            continue;
        }
        for (size_t k = 0, len; !err && k < n; k += len) {
            len = char_at(in->data.data + i + k, &c);
            err = map_char(s, in, i + k, len, out);
        }
    }
    return err;
}

/* ---- SentencePiece's own normalizer ---- */

struct piece_of {
    const uint8_t *text;
    size_t n, taken;
};

/* The next stretch of normalized text: a string that is kept, what the map gives for the longest prefix, or one
 * character. */
static struct piece_of sp_next(const struct norm_step *s, const uint8_t *p, size_t n)
{
    const char *text;
    size_t kept = 0;
    uint32_t node = 0, c;
    for (size_t i = 0; s->kept && i < n && (node = trie_step(s->kept, node, p[i])); i++)
        if (s->kept->values[node] >= 0)
            kept = i + 1;
    if (kept)
        return (struct piece_of){p, kept, kept};
    size_t found = map_find(s, p, n, true, &text);
    if (found)
        return (struct piece_of){(const uint8_t *)text, strlen(text), found};
    size_t len = char_at(p, &c);
    return (struct piece_of){p, len, len};
}

static err_t sp_space(const struct norm_step *s, struct chain_text *out, struct chain_span span)
{
    return s->escape ? text_put(out, CHAIN_SPACE, 3, span) : text_put(out, " ", 1, span);
}

/* Removes the spaces at the end. */
static void sp_trim(const struct norm_step *s, struct chain_text *out)
{
    const char *space = s->escape ? CHAIN_SPACE : " ";
    size_t n = strlen(space);
    while (out->data.len >= n && memcmp(out->data.data + out->data.len - n, space, n) == 0) {
        out->data.len -= n;
        out->spans.len -= out->tracked ? n * sizeof(struct chain_span) : 0;
    }
}

static err_t norm_sentencepiece(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                                struct chain_text *out)
{
    const uint8_t *p = in->data.data;
    size_t i = 0, len = in->data.len;
    bool space_before = s->squeeze && !e->continues, dummy = s->dummy_prefix && !e->continues;
    err_t err = OK;
    while (space_before && i < len) { /* spaces at the beginning */
        struct piece_of next = sp_next(s, p + i, len - i);
        if (next.n != 1 || next.text[0] != ' ')
            break;
        i += next.taken;
    }
    if (i == len)
        return OK;
    if (dummy && !s->suffix)
        err = sp_space(s, out, text_span(in, i, 1));
    space_before = s->squeeze && !e->continues;
    for (struct piece_of next; !err && i < len; i += next.taken) {
        next = sp_next(s, p + i, len - i);
        size_t from = 0;
        while (space_before && from < next.n && next.text[from] == ' ')
            from++;
        for (size_t k = from; !err && k < next.n; k++)
            err = next.text[k] == ' ' ? sp_space(s, out, text_span(in, i, next.taken))
                                      : text_put(out, next.text + k, 1, text_span(in, i, next.taken));
        if (s->squeeze && next.n > from)
            space_before = next.text[next.n - 1] == ' ';
    }
    if (!err && s->squeeze)
        sp_trim(s, out);
    if (!err && dummy && s->suffix)
        err = sp_space(s, out, text_span(in, len - 1, 1));
    return err;
}

/* ---- all steps ---- */

typedef err_t norm_fn(struct chain_encoder *e, const struct norm_step *s, const struct chain_text *in,
                      struct chain_text *out);

static bool is_ascii(const struct buf *b)
{
    size_t i = 0;
    uint64_t v;
    for (; i + 8 <= b->len; i += 8)
        if (memcpy(&v, b->data + i, 8), v & 0x8080808080808080u)
            return false;
    for (; i < b->len; i++)
        if (b->data[i] >= 0x80)
            return false;
    return true;
}

err_t chain_normalize(struct chain_encoder *e, struct chain_text *t)
{
    static norm_fn *const steps[] = {
        [NORM_FORM] = norm_form,
        [NORM_LOWER] = norm_lower,
        [NORM_STRIP] = norm_strip,
        [NORM_STRIP_ACCENTS] = norm_strip_accents,
        [NORM_REPLACE] = norm_replace,
        [NORM_PREPEND] = norm_prepend,
        [NORM_PRECOMPILED] = norm_precompiled,
        [NORM_BYTES] = norm_bytes,
        [NORM_SENTENCEPIECE] = norm_sentencepiece,
    };
    err_t err = OK;
    for (int i = 0; !err && i < e->chain->n_norms; i++) {
        const struct norm_step *s = &e->chain->norms[i];
        if ((s->kind == NORM_FORM || s->kind == NORM_STRIP_ACCENTS) && is_ascii(&t->data))
            continue;
        if (s->kind == NORM_BERT) {
            err = norm_bert(e, s, t);
            continue;
        }
        text_clear(&e->b);
        e->b.tracked = t->tracked;
        err = buf_reserve(&e->b.data, t->data.len + 16);
        err = err ? err : steps[s->kind](e, s, t, &e->b);
        texts_swap(t, &e->b);
    }
    return err ? err : buf_reserve(&t->data, 1);
}
