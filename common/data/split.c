/* Bytes are added to a word one by one, and white space is recognised at the word's end: a character that a chunk cuts
 * needs no case of its own. */
#include "common/data/split.h"

#include "common/base/utf8.h"
#include "common/data/unicode.h"

#define SIGMA 0x3a3
#define SMALL_SIGMA 0x3c3
#define FINAL_SIGMA 0x3c2

static bool is_space(uint32_t c)
{
    return unicode_in(UNICODE_WHITE_SPACE, c) || (c >= 0x1c && c <= 0x1f);
}

/* Bytes of the white space that ends the word; 0: it does not end in any. The last byte decides most cases. */
static size_t space_at_end(const struct split *s)
{
    const uint8_t *end = s->word + s->n;
    if (end[-1] < 0x80)
        return end[-1] <= ' ' && is_space(end[-1]) ? 1 : 0;
    for (size_t len = 2; len <= 3 && len <= s->n; len++) { /* no white space has more bytes */
        char text[4] = "";
        uint32_t c = 0;
        memcpy(text, end - len, len);
        if (utf8_decode(text, &c) == (int)len && is_space(c))
            return len;
    }
    return 0;
}

/* ---- lower case ---- */

struct letters {
    uint32_t list[VOCAB_WORD_MAX_BYTES];
    size_t n;
};

/* Whether cased letters lie in this direction, behind letters that do not count. */
static bool cased_beside(const struct letters *l, size_t at, int step)
{
    size_t i = at + (size_t)step; /* wraps below 0 */
    while (i < l->n && unicode_in(UNICODE_CASE_IGNORABLE, l->list[i]))
        i += (size_t)step;
    return i < l->n && unicode_in(UNICODE_CASED, l->list[i]);
}

static size_t put_lower(const struct letters *l, size_t at, uint8_t *ret)
{
    size_t n, len = 0;
    const uint32_t *mapped = unicode_lower(l->list[at], &n);
    if (l->list[at] == SIGMA)
        return unicode_put(cased_beside(l, at, -1) && !cased_beside(l, at, 1) ? FINAL_SIGMA : SMALL_SIGMA, ret);
    if (!mapped)
        return unicode_put(l->list[at], ret);
    for (size_t i = 0; i < n; i++)
        len += unicode_put(mapped[i], ret + len);
    return len;
}

/* False: the word is no UTF-8. */
static bool letters_of(const struct split *s, struct letters *ret)
{
    char text[VOCAB_WORD_MAX_BYTES + 1];
    memcpy(text, s->word, s->n);
    text[s->n] = '\0';
    ret->n = 0;
    for (size_t i = 0; i < s->n;) {
        int len = utf8_decode(text + i, &ret->list[ret->n++]);
        if (!len)
            return false;
        i += (size_t)len;
    }
    return true;
}

static err_t emit(struct split *s)
{
    struct letters l;
    uint8_t lower[8 * VOCAB_WORD_MAX_BYTES]; /* a letter becomes at most two code points */
    size_t len = 0;
    if (s->n > VOCAB_WORD_MAX_BYTES)
        return ERR_UNSUPPORTED;
    if (!s->lowercase || !letters_of(s, &l))
        return s->emit(s->arg, s->word, s->n);
    for (size_t i = 0; i < l.n; i++)
        len += put_lower(&l, i, lower + len);
    return len > VOCAB_WORD_MAX_BYTES ? ERR_UNSUPPORTED : s->emit(s->arg, lower, len);
}

/* ---- splitting ---- */

err_t split_feed(struct split *s, const uint8_t *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (s->n == sizeof(s->word))
            return ERR_UNSUPPORTED;
        s->word[s->n++] = text[i];
        size_t space = space_at_end(s);
        if (!space)
            continue;
        s->n -= space;
        err_t err = split_finish(s);
        if (err)
            return err;
    }
    return OK;
}

err_t split_finish(struct split *s)
{
    err_t err = s->n ? emit(s) : OK;
    s->n = 0;
    return err;
}
