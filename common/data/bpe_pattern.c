/* \s is replaced by an explicit class. PCRE2's \s includes U+180E, which is not white space since Unicode 6.3, and
 * Python's includes four more control characters. Tokenizers are trained with Oniguruma or Rust, whose \s is the
 * property White_Space.
 *
 * Characters newer than Unicode 14 (PCRE2 10.42) do not count as letters. */
#include "common/data/bpe_priv.h"

#include <ctype.h>
#include <string.h>

const char bpe_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define SPACES \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

struct translation {
    const char *at, *start, *end;
    bool in_class;
    struct buf out;
    struct why *why;
};

static err_t refuse(const struct translation *t, const char *at, int n, const char *why)
{
    return why_set(t->why, ERR_UNSUPPORTED, "byte %zu of the pattern, \"%.*s\": %s", (size_t)(at - t->start), n, at,
                   why);
}

static err_t append_translation(struct translation *t, const char *text, size_t n)
{
    err_t err = buf_append(&t->out, text, n);
    return err ? why_set(t->why, err, "%s", err_text(err)) : OK;
}

static bool begins(const struct translation *t, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(t->end - t->at) >= n && memcmp(t->at, text, n) == 0;
}

/* Copies n bytes. */
static err_t copy(struct translation *t, size_t n)
{
    err_t err = append_translation(t, t->at, n);
    t->at += n;
    return err;
}

static err_t escape_space(struct translation *t, bool negated)
{
    if (t->in_class && negated)
        return refuse(t, t->at, 2, "it is not supported inside a class");
    t->at += 2;
    if (t->in_class)
        return append_translation(t, SPACES, strlen(SPACES));
    return negated ? append_translation(t, "[^" SPACES "]", strlen("[^" SPACES "]"))
                   : append_translation(t, "[" SPACES "]", strlen("[" SPACES "]"));
}

/* At a backslash. */
static err_t escape(struct translation *t)
{
    const char *stop;
    char c = t->end - t->at > 1 ? t->at[1] : '\0';
    if (c == 's' || c == 'S')
        return escape_space(t, c == 'S');
    if (c && (strchr("dDrntf", c) || (ispunct((unsigned char)c))))
        return copy(t, 2);
    if ((c == 'p' || c == 'P') && t->end - t->at > 2 && t->at[2] == '{' &&
        (stop = memchr(t->at, '}', (size_t)(t->end - t->at))))
        return copy(t, (size_t)(stop + 1 - t->at));
    return refuse(t, t->at, c ? 2 : 1, "this escape is not supported");
}

static err_t in_class(struct translation *t)
{
    if (*t->at == ']')
        t->in_class = false;
    else if (*t->at == '[')
        return refuse(t, t->at, 1, "a class inside a class is not supported");
    else if (begins(t, "&&"))
        return refuse(t, t->at, 2, "the intersection of classes is not supported");
    return copy(t, 1);
}

static err_t open_class(struct translation *t)
{
    err_t err = copy(t, begins(t, "[^") ? 2 : 1);
    if (!err && t->at < t->end && *t->at == ']')
        return refuse(t, t->at, 1, "a class that starts with it is not supported");
    t->in_class = true;
    return err;
}

static err_t group(struct translation *t)
{
    static const char *const legal[] = {"(?:", "(?=", "(?!", "(?>", "(?i:"};
    for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++)
        if (begins(t, legal[i]))
            return copy(t, strlen(legal[i]));
    if (begins(t, "(?") || begins(t, "(*"))
        return refuse(t, t->at, t->end - t->at < 4 ? (int)(t->end - t->at) : 4, "this group is not supported");
    return copy(t, 1);
}

static err_t next(struct translation *t)
{
    if (*t->at == '\\')
        return escape(t);
    if (t->in_class)
        return in_class(t);
    if (*t->at == '[')
        return open_class(t);
    if (*t->at == '(')
        return group(t);
    if (*t->at == '^' || *t->at == '$')
        return refuse(t, t->at, 1, "anchors are not supported");
    if (begins(t, "}+") || begins(t, "}?"))
        return refuse(t, t->at, 2, "PCRE2 and Oniguruma differ in its meaning");
    return copy(t, 1);
}

static err_t compile(struct bpe *b, const struct buf *text, struct why *why)
{
    int number;
    PCRE2_SIZE offset;
    uint32_t empty = 0, behind = 0;
    PCRE2_UCHAR message[128];
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 50);
    b->code = pcre2_compile(text->data, text->len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &number, &offset,
                            context);
    pcre2_compile_context_free(context);
    if (!b->code) {
        pcre2_get_error_message(number, message, sizeof(message));
        return why_set(why, ERR_INVALID, "the pattern: %s", (const char *)message);
    }
    pcre2_pattern_info(b->code, PCRE2_INFO_MATCHEMPTY, &empty);
    pcre2_pattern_info(b->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    if (empty || behind)
        return why_set(why, ERR_UNSUPPORTED, "the pattern %s, which is not supported",
                       empty ? "can match the empty string" : "has a lookbehind");
    b->jit = pcre2_jit_compile(b->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return OK;
}

err_t bpe_pattern_compile(struct bpe *b, const char *pattern, size_t len, struct why *why)
{
    struct translation t = {.at = pattern, .start = pattern, .end = pattern + len, .why = why};
    err_t err = OK;
    if (!len || len > BPE_MAX_PATTERN)
        return why_set(why, ERR_INVALID, "the pattern has %zu bytes; it must have 1 to %d", len, BPE_MAX_PATTERN);
    while (!err && t.at < t.end)
        err = next(&t);
    if (!err)
        err = compile(b, &t.out, why);
    if (!err && (err = buf_append(&b->pattern, pattern, len)))
        why_set(why, err, "%s", err_text(err));
    buf_fini(&t.out);
    return err;
}
