/* Added tokens in a text: the leftmost, then the longest; a token that its flags refuse is passed over with its text,
 * and white space that a token takes does not hide a token that begins in it. */
#include "common/data/chain_priv.h"
#include "common/data/unicode.h"

#include <stdlib.h>

void added_tokens_fini(struct added_tokens *a)
{
    for (int i = 0; i < a->n; i++) {
        buf_fini(&a->list[i].content);
        buf_fini(&a->list[i].matched);
    }
    free(a->list);
    for (int pass = 0; pass < BPE_PASSES; pass++)
        trie_fini(&a->tries[pass]);
}

/* The longest token at p[n]; -1: none. */
static int32_t longest_at(const struct trie *t, const uint8_t *p, size_t n, size_t *ret_len)
{
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n && (node = trie_step(t, node, p[i])); i++)
        if (t->values[node] >= 0) {
            found = t->values[node];
            *ret_len = i + 1;
        }
    return found;
}

/* Bytes of the character before p + at. */
static size_t char_before(const uint8_t *p, size_t at, uint32_t *ret)
{
    size_t n = 1;
    while (p[at - n] >> 6 == 2)
        n++;
    char_at(p + at - n, ret);
    return n;
}

static bool word_beside(const uint8_t *p, size_t n, size_t from, size_t to)
{
    uint32_t c;
    if (from && (char_before(p, from, &c), unicode_in(UNICODE_WORD, c)))
        return true;
    return to < n && (char_at(p + to, &c), unicode_in(UNICODE_WORD, c));
}

static size_t spaces_before(const uint8_t *p, size_t from, size_t least)
{
    uint32_t c;
    while (from > least) {
        size_t n = char_before(p, from, &c);
        if (!unicode_in(UNICODE_WHITE_SPACE, c))
            break;
        from -= n;
    }
    return from;
}

static size_t spaces_behind(const uint8_t *p, size_t n, size_t to)
{
    uint32_t c;
    for (size_t len; to < n; to += len) {
        len = char_at(p + to, &c);
        if (!unicode_in(UNICODE_WHITE_SPACE, c))
            break;
    }
    return to;
}

err_t added_walk(const struct added_tokens *a, enum bpe_pass pass, const uint8_t *text, size_t n,
                 const struct added_walk *walk)
{
    const struct trie *t = &a->tries[pass];
    size_t done = 0, len = 0; /* done: what has been handed out */
    err_t err = OK;
    for (size_t i = 0; !err && t->n && i < n;) {
        int32_t found = longest_at(t, text + i, n - i, &len);
        const struct added_token *x = found < 0 ? NULL : &a->list[found];
        size_t from = i, to = i + len;
        i += x ? len : 1;
        if (!x || (walk->plain && x->special) || (x->single_word && word_beside(text, n, from, to)))
            continue;
        if (x->lstrip) /* white space that the token before took makes this one shorter, down to nothing */
            from = from < done ? done : spaces_before(text, from, done);
        if (x->rstrip)
            to = spaces_behind(text, n, to);
        if (done < from)
            err = walk->gap(walk->arg, done, from);
        if (!err && from < to)
            err = walk->token(walk->arg, x, from, to);
        done = from <= to ? to : done;
    }
    return err || done >= n ? err : walk->gap(walk->arg, done, n);
}
