/* Binary searches in the generated tables. A tokenizer that asks often keeps the answers in a table of its own. */
#include "common/data/unicode.h"

#include <string.h>

struct unicode_category_range {
    uint32_t first, last, value;
};
struct unicode_string {
    uint32_t c;
    uint16_t at;
    uint8_t n;
};
struct unicode_pair {
    uint32_t first, second, both;
};

#include "common/data/unicode_tables.inc"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* In the order of unicode_generate.py. */
static const char category_names[][3] = {"Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu",
                                         "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc", "Pd", "Pe", "Pf",
                                         "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};

#define SET(name)         \
    {                     \
        name, COUNT(name) \
    }
static const struct unicode_ranges sets[UNICODE_SETS] = {
    [UNICODE_WHITE_SPACE] = SET(white_space),
    [UNICODE_WORD] = SET(word),
    [UNICODE_WORD_ONIG] = SET(word_onig),
    [UNICODE_PUNCTUATION] = SET(punctuation),
    [UNICODE_NUMERIC] = SET(numeric),
    [UNICODE_MARK] = SET(mark),
    [UNICODE_BERT_REMOVED] = SET(bert_removed),
    [UNICODE_BERT_SPACE] = SET(bert_space),
    [UNICODE_BERT_CHINESE] = SET(bert_chinese),
    [UNICODE_BERT_ACCENTS] = SET(bert_accents),
    [UNICODE_CASED] = SET(cased),
    [UNICODE_CASE_IGNORABLE] = SET(case_ignorable),
    [UNICODE_GRAPHEME_EXTEND] = SET(grapheme_extend),
    [UNICODE_GRAPHEME_SPACING] = SET(grapheme_spacingmark),
    [UNICODE_GRAPHEME_PREPEND] = SET(grapheme_prepend),
    [UNICODE_GRAPHEME_CONTROL] = SET(grapheme_control),
};

static const struct {
    const char *name;
    struct unicode_ranges ranges;
} scripts[] = {
    {"Han", SET(script_han)},       {"Hiragana", SET(script_hiragana)},     {"Katakana", SET(script_katakana)},
    {"Hangul", SET(script_hangul)}, {"Latin", SET(script_latin)},           {"Cyrillic", SET(script_cyrillic)},
    {"Greek", SET(script_greek)},   {"Arabic", SET(script_arabic)},         {"Hebrew", SET(script_hebrew)},
    {"Thai", SET(script_thai)},     {"Devanagari", SET(script_devanagari)},
};

/* ---- sets ---- */

struct unicode_ranges unicode_ranges(enum unicode_set set)
{
    return sets[set];
}

bool unicode_in(enum unicode_set set, uint32_t c)
{
    const struct unicode_range *list = sets[set].list;
    size_t low = 0, high = sets[set].n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sets[set].n && list[low].first <= c;
}

static err_t range_append(uint32_t first, uint32_t last, struct buf *ret)
{
    struct unicode_range r = {first, last};
    if (ret->len) {
        struct unicode_range *before = (struct unicode_range *)(void *)(ret->data + ret->len - sizeof(r));
        if (before->last + 1 == first) {
            before->last = last;
            return OK;
        }
    }
    return buf_append(ret, &r, sizeof(r));
}

/* Unassigned characters are those between the ranges of the table. */
static err_t unassigned(struct buf *ret)
{
    uint32_t next = 0;
    err_t err = OK;
    for (size_t i = 0; !err && i < COUNT(categories); i++) {
        if (categories[i].first > next)
            err = range_append(next, categories[i].first - 1, ret);
        next = categories[i].last + 1;
    }
    return err || next > 0x10ffff ? err : range_append(next, 0x10ffff, ret);
}

static err_t categories_append(const char *name, size_t len, struct buf *ret)
{
    bool found = false;
    err_t err = OK;
    for (size_t k = 0; k < COUNT(category_names); k++)
        found |= memcmp(category_names[k], name, len) == 0;
    if (!found || memcmp(name, "C", len) == 0) /* the group C is not used, and would need unassigned characters too */
        return ERR_NOTFOUND;
    if (memcmp(name, "Cn", len) == 0)
        return unassigned(ret);
    for (size_t i = 0; !err && i < COUNT(categories); i++)
        if (memcmp(category_names[categories[i].value], name, len) == 0)
            err = range_append(categories[i].first, categories[i].last, ret);
    return err;
}

err_t unicode_property(const char *name, size_t len, struct buf *ret)
{
    if (len == 1 || len == 2)
        return categories_append(name, len, ret);
    for (size_t i = 0; i < COUNT(scripts); i++)
        if (strlen(scripts[i].name) == len && memcmp(scripts[i].name, name, len) == 0)
            return buf_append(ret, scripts[i].ranges.list, scripts[i].ranges.n * sizeof(struct unicode_range));
    return ERR_NOTFOUND;
}

/* ---- strings ---- */

static const struct unicode_string *string_find(const struct unicode_string *table, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].c < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && table[low].c == c ? &table[low] : NULL;
}

const uint32_t *unicode_lower(uint32_t c, size_t *ret_n)
{
    const struct unicode_string *s = string_find(lower, COUNT(lower), c);
    *ret_n = s ? s->n : 0;
    return s ? lower_text + s->at : NULL;
}

/* ---- normalization ---- */

/* Hangul syllables are composed by arithmetic (The Unicode Standard, 3.12). */
enum {
    HANGUL = 0xac00,
    LEADS = 0x1100,
    VOWELS = 0x1161,
    TAILS = 0x11a7,
    N_VOWELS = 21,
    N_TAILS = 28,
    N_HANGUL = 11172
};

static size_t hangul_decompose(uint32_t c, uint32_t *ret)
{
    uint32_t i = c - HANGUL, tail = i % N_TAILS;
    ret[0] = LEADS + i / (N_VOWELS * N_TAILS);
    ret[1] = VOWELS + i % (N_VOWELS * N_TAILS) / N_TAILS;
    ret[2] = TAILS + tail;
    return tail ? 3 : 2;
}

size_t unicode_decompose(uint32_t c, bool compatible_too, uint32_t *ret)
{
    const struct unicode_string *s = NULL;
    const uint32_t *text = compatible_text;
    ret[0] = c;
    if (c < 0xa0)
        return 1;
    if (c - HANGUL < N_HANGUL)
        return hangul_decompose(c, ret);
    if (compatible_too)
        s = string_find(compatible, COUNT(compatible), c);
    if (!s) {
        s = string_find(canonical, COUNT(canonical), c);
        text = canonical_text;
    }
    if (!s)
        return 1;
    memcpy(ret, text + s->at, s->n * sizeof(*ret));
    return s->n;
}

uint8_t unicode_class(uint32_t c)
{
    size_t low = 0, high = COUNT(classes);
    if (c < 0x300)
        return 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (classes[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(classes) && classes[low].first <= c ? (uint8_t)classes[low].value : 0;
}

uint32_t unicode_compose(uint32_t a, uint32_t b)
{
    size_t low = 0, high = COUNT(pairs);
    if (a - LEADS < 19 && b - VOWELS < N_VOWELS)
        return HANGUL + ((a - LEADS) * N_VOWELS + (b - VOWELS)) * N_TAILS;
    if (a - HANGUL < N_HANGUL && (a - HANGUL) % N_TAILS == 0 && b - TAILS - 1 < N_TAILS - 1)
        return a + (b - TAILS);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pairs[middle].first < a || (pairs[middle].first == a && pairs[middle].second < b))
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(pairs) && pairs[low].first == a && pairs[low].second == b ? pairs[low].both : 0;
}

size_t unicode_put(uint32_t c, uint8_t *ret)
{
    if (c < 0x80) {
        ret[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, c >>= 6)
        ret[i] = (uint8_t)(0x80 | (c & 0x3f));
    ret[0] = (uint8_t)((0xf00 >> n) | c);
    return n;
}
