/* Whether a stream may be cut at "x y", before the space. Both parts get the ids of the whole if
 *   - no normalizer, pattern or added token reaches across this place, or removes the space or the letter before it,
 * and
 *   - a pre-tokenizer cuts there anyway, or no token of the vocabulary reaches across.
 * Steps that are not understood here forbid cutting; then the text is kept in memory until its end. */
#include "common/data/chain_priv.h"

#include <string.h>

static bool is_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

static bool has_letter(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_letter(p[i]))
            return true;
    return false;
}

static bool has(const struct buf *b, const char *what)
{
    return b->len && memmem(b->data, b->len, what, strlen(what));
}

/* Whether a letter is directly before `mark` somewhere. */
static bool crosses(const uint8_t *p, size_t n, const char *mark)
{
    size_t len = strlen(mark);
    for (size_t i = 1; i + len <= n; i++)
        if (is_letter(p[i - 1]) && memcmp(p + i, mark, len) == 0)
            return true;
    return false;
}

static bool replace_allows(const struct norm_step *s, const char **mark)
{
    if (s->regex)
        return !regex_has_letters(s->regex) && !(regex_takes_space(s->regex) && strcmp(*mark, " ") == 0);
    bool space = s->pattern.len == 1 && s->pattern.data[0] == ' ';
    if (has_letter(s->pattern.data, s->pattern.len) || (!space && has(&s->pattern, CHAIN_SPACE)))
        return false;
    if (space && (s->content.len != 3 || memcmp(s->content.data, CHAIN_SPACE, 3) != 0))
        return false;
    if (space)
        *mark = CHAIN_SPACE;
    return true;
}

static bool norm_allows(const struct norm_step *s, const char **mark)
{
    switch (s->kind) {
    case NORM_REPLACE:
        return replace_allows(s, mark);
    case NORM_BYTES:
        return false;
    case NORM_SENTENCEPIECE:
        *mark = s->escape ? CHAIN_SPACE : " ";
        return !s->suffix;
    default:
        return true;
    }
}

/* *ret: set if the step cuts at the space. */
static bool pre_allows(const struct pre_step *s, const char **mark, bool *ret)
{
    bool plain = strcmp(*mark, " ") == 0, space;
    switch (s->kind) {
    case PRE_METASPACE:
        if (s->literal.len != 3 || memcmp(s->literal.data, CHAIN_SPACE, 3) != 0)
            return false;
        *ret |= s->split;
        *mark = CHAIN_SPACE;
        return true;
    case PRE_BYTES:
        *ret |= plain && s->regex;
        *mark = "\xc4\xa0"; /* U+0120 */
        return plain;
    case PRE_REGEX:
        *ret |= plain && regex_takes_letters(s->regex) && !s->invert &&
                (s->behavior == PRE_ISOLATED || s->behavior == PRE_REMOVED);
        return plain && regex_keeps_words(s->regex);
    case PRE_LITERAL:
        space = has(&s->literal, *mark);
        *ret |= space && s->literal.len == strlen(*mark) && s->behavior != PRE_MERGED_PREVIOUS;
        return !space || (s->literal.len == strlen(*mark) && s->behavior != PRE_MERGED_PREVIOUS);
    case PRE_SPACES:
    case PRE_WORDS:
        *ret |= plain;
        return true;
    default:
        return true;
    }
}

static bool added_allow(const struct added_token *t)
{
    const struct buf *both[] = {&t->content, &t->matched};
    for (int i = 0; i < 2; i++) {
        const uint8_t *p = both[i]->data;
        size_t n = both[i]->len;
        if (!n)
            continue;
        if (crosses(p, n, " ") || crosses(p, n, CHAIN_SPACE) || crosses(p, n, "\xc4\xa0"))
            return false;
        if ((t->lstrip && is_letter(p[0])) || (t->rstrip && is_letter(p[n - 1])))
            return false;
        if (t->single_word && !is_letter(p[0]) && p[0] != '<' && p[0] != '[')
            return false;
    }
    return true;
}

static bool model_allows(const struct chain *c, const char *mark)
{
    if (c->model != MODEL_BPE || c->whole || chain_id(c, (const uint8_t *)mark, strlen(mark)) < 0)
        return false;
    for (int32_t id = 0; id < c->n_tokens; id++)
        if (crosses(c->text.data + c->tokens[id].offset, c->tokens[id].len, mark))
            return false;
    return true;
}

/* Whether a piece may be cut before every U+2581 that is behind another character. */
static bool pieces_allow(const struct chain *c)
{
    if (c->model != MODEL_BPE || c->whole || chain_id(c, (const uint8_t *)CHAIN_SPACE, 3) < 0)
        return false;
    for (int32_t id = 0; id < c->n_tokens; id++) {
        const uint8_t *p = c->text.data + c->tokens[id].offset;
        bool mark = true;
        for (size_t i = 0, n = c->tokens[id].len; i < n; i++) {
            bool here = n - i >= 3 && memcmp(p + i, CHAIN_SPACE, 3) == 0;
            if (here && !mark)
                return false;
            mark = here;
            i += here ? 2 : 0;
        }
    }
    return true;
}

void chain_check(struct chain *c)
{
    const char *mark = " ";
    bool allowed = true, cut = false;
    for (int i = 0; allowed && i < c->n_norms; i++)
        allowed = norm_allows(&c->norms[i], &mark);
    for (int i = 0; allowed && i < c->n_pres; i++)
        allowed = pre_allows(&c->pres[i], &mark, &cut);
    for (int i = 0; allowed && i < c->added.n; i++)
        allowed = added_allow(&c->added.list[i]);
    c->cuts_pieces = pieces_allow(c);
    c->cuts = allowed && (cut || model_allows(c, mark));
}
