/* Reads the syntax that Oniguruma (Ruby) and Rust's expressions share, as far as it occurs in tokenizers, into sets of
 * characters and operators. Where the two engines and PCRE2 differ, the construct is refused:
 *   - `x{2}+` is possessive in PCRE2 and Rust's fancy-regex, and a repetition of a repetition in Oniguruma;
 *   - `^` and `$` are ends of lines in Oniguruma and of the text in Rust;
 *   - without regard to case, Oniguruma lets one character match two letters ("ss"). */
#include "common/data/regex_priv.h"

#include "common/base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 50

struct parser {
    const char *at, *start, *end;
    enum regex_syntax syntax;
    struct regex_program *program;
    bool any_case;   /* within (?i: .. ) */
    bool after_atom; /* whether a quantifier may follow */
    int depth;
    uint32_t before; /* the literal letter before, within (?i: .. ); 0: none */
    struct why *why;
};

static err_t refuse(const struct parser *p, const char *at, int n, const char *why)
{
    int left = (int)(p->end - at);
    return why_set(p->why, ERR_UNSUPPORTED, "byte %zu of the pattern, \"%.*s\": %s", (size_t)(at - p->start),
                   n < left ? n : left, at, why);
}

static err_t no_memory(const struct parser *p, err_t err)
{
    return err ? why_set(p->why, err, "%s", err_text(err)) : OK;
}

static bool begins(const struct parser *p, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, text, n) == 0;
}

/* ---- sets ---- */

static struct unicode_ranges ranges_of(const struct buf *set)
{
    return (struct unicode_ranges){(const struct unicode_range *)(const void *)set->data,
                                   set->len / sizeof(struct unicode_range)};
}

static int range_compare(const void *a, const void *b)
{
    const struct unicode_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Sorts the ranges and joins those that overlap or touch. */
static void set_tidy(struct buf *set)
{
    struct unicode_range *list = (struct unicode_range *)(void *)set->data;
    size_t n = set->len / sizeof(*list), to = 0;
    if (!n)
        return;
    qsort(list, n, sizeof(*list), range_compare);
    for (size_t i = 1; i < n; i++)
        if (list[i].first <= list[to].last + 1)
            list[to].last = list[i].last > list[to].last ? list[i].last : list[to].last;
        else
            list[++to] = list[i];
    set->len = (to + 1) * sizeof(*list);
}

static err_t set_add(struct buf *set, uint32_t first, uint32_t last)
{
    struct unicode_range r = {first, last};
    return buf_append(set, &r, sizeof(r));
}

static err_t set_add_ranges(struct buf *set, struct unicode_ranges r)
{
    return r.n ? buf_append(set, r.list, r.n * sizeof(*r.list)) : OK;
}

/* Replaces a tidy set by all other characters. */
static err_t set_invert(struct buf *set)
{
    struct unicode_ranges r = ranges_of(set);
    struct buf out = {0};
    uint32_t next = 0;
    err_t err = OK;
    for (size_t i = 0; !err && i < r.n; i++) {
        if (r.list[i].first > next)
            err = set_add(&out, next, r.list[i].first - 1);
        next = r.list[i].last + 1;
    }
    if (!err && next <= 0x10ffff)
        err = set_add(&out, next, 0x10ffff);
    buf_fini(set);
    *set = out;
    return err;
}

/* Both sets are tidy: a and b is what is in neither complement. */
static err_t set_intersect(struct buf *set, struct buf *other)
{
    err_t err = set_invert(set);
    err = err ? err : set_invert(other);
    err = err ? err : set_add_ranges(set, ranges_of(other));
    set_tidy(set);
    return err ? err : set_invert(set);
}

/* ---- units ---- */

static err_t put(struct parser *p, uint32_t unit)
{
    uint16_t u = (uint16_t)unit;
    return no_memory(p, buf_append(&p->program->units, &u, sizeof(u)));
}

static err_t put_text(struct parser *p, const char *text)
{
    err_t err = OK;
    for (; !err && *text; text++)
        err = put(p, (uint8_t)*text);
    return err;
}

/* Emits a set and takes it over. */
static err_t put_set(struct parser *p, struct buf *set)
{
    struct regex_program *x = p->program;
    int i = 0;
    set_tidy(set);
    while (i < x->n_sets &&
           (x->sets[i].len != set->len || (set->len && memcmp(x->sets[i].data, set->data, set->len) != 0)))
        i++;
    if (i == REGEX_MAX_SETS) {
        buf_fini(set);
        return refuse(p, p->start, 20, "it has more than 250 different characters and classes");
    }
    if (i == x->n_sets)
        x->sets[x->n_sets++] = *set;
    else
        buf_fini(set);
    p->after_atom = true;
    return put(p, REGEX_SET_UNIT + (uint32_t)i);
}

/* ---- characters ---- */

static uint32_t other_case(uint32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? c ^ 0x20 : 0;
}

/* Adds a character and, without regard to case, its others: the sign of Kelvin and the long s fold to ASCII letters. */
static err_t char_add(struct parser *p, struct buf *set, const char *at, uint32_t c)
{
    err_t err = set_add(set, c, c);
    if (err || !p->any_case)
        return no_memory(p, err);
    if (c >= 0x80)
        return refuse(p, at, 4, "without regard to case only ASCII letters are supported");
    uint32_t other = other_case(c), low = c | 0x20, special = !other ? 0 : low == 'k' ? 0x212a : low == 's' ? 0x17f : 0;
    if (other)
        err = set_add(set, other, other);
    if (!err && special)
        err = set_add(set, special, special);
    return no_memory(p, err);
}

/* Oniguruma matches a ligature against two letters. */
static err_t ligature_check(struct parser *p, uint32_t c)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    uint32_t low = other_case(c) ? c | 0x20 : 0;
    for (size_t i = 0; p->any_case && p->syntax == REGEX_ONIGURUMA && i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (p->before == (uint32_t)pairs[i][0] && low == (uint32_t)pairs[i][1])
            return refuse(p, p->at, 4, "without regard to case, these letters may be one character in Oniguruma");
    p->before = low;
    return OK;
}

static err_t literal(struct parser *p, uint32_t c, const char *next)
{
    struct buf set = {0};
    err_t err = ligature_check(p, c);
    err = err ? err : char_add(p, &set, p->at, c);
    if (err) {
        buf_fini(&set);
        return err;
    }
    p->at = next;
    return put_set(p, &set);
}

/* ---- escapes ---- */

static err_t hex(struct parser *p, uint32_t *ret)
{
    char digits[9] = "", *stop;
    const char *at = p->at + 2;
    bool braces = at < p->end && *at == '{';
    size_t n = braces ? 0 : p->at[1] == 'u' ? 4 : 2;
    const char *close = braces ? memchr(at, '}', (size_t)(p->end - at)) : NULL;
    if (braces) {
        at++;
        n = close ? (size_t)(close - at) : 0;
    }
    if (!n || n > 8 || (size_t)(p->end - at) < n)
        return refuse(p, p->at, 4, "this escape is not supported");
    memcpy(digits, at, n);
    *ret = (uint32_t)strtoul(digits, &stop, 16);
    if (*stop || *ret > 0x10ffff || (!braces && p->at[1] == 'x' && *ret > 0x7f))
        return refuse(p, p->at, 8, "this escape is not supported");
    p->at = braces ? close + 1 : at + n;
    return OK;
}

/* \p{..}, \P{..}, \p{^..} and, in Rust, \pL. */
static err_t property(struct parser *p, struct buf *set, bool *ret_negated)
{
    const char *open = p->at + 2, *close;
    *ret_negated = p->at[1] == 'P';
    if (open < p->end && *open != '{' && p->syntax == REGEX_RUST) {
        close = open--;
        close++;
    } else {
        close = open < p->end ? memchr(open, '}', (size_t)(p->end - open)) : NULL;
        if (open >= p->end || *open != '{' || !close)
            return refuse(p, p->at, 3, "this escape is not supported");
    }
    if (open + 1 < close && open[1] == '^') {
        *ret_negated = !*ret_negated;
        open++;
    }
    err_t err = unicode_property(open + 1, (size_t)(close - open - 1), set);
    if (err == ERR_NOTFOUND)
        return refuse(p, p->at, (int)(close + 1 - p->at), "this property is not supported");
    p->at = *close == '}' ? close + 1 : close;
    return no_memory(p, err);
}

static const char *const spaces_ascii = "rntfvae0";

static err_t class_escape(struct parser *p, struct buf *set, bool *ret_negated)
{
    char c = p->at[1];
    err_t err;
    *ret_negated = c == 'S' || c == 'D' || c == 'W';
    if (c == 'p' || c == 'P')
        return property(p, set, ret_negated);
    if (c == 's' || c == 'S')
        err = set_add_ranges(set, unicode_ranges(UNICODE_WHITE_SPACE));
    else if (c == 'd' || c == 'D')
        err = unicode_property("Nd", 2, set);
    else
        err = set_add_ranges(set, unicode_ranges(p->syntax == REGEX_RUST ? UNICODE_WORD : UNICODE_WORD_ONIG));
    p->at += 2;
    return no_memory(p, err);
}

static bool is_class_escape(const struct parser *p)
{
    return p->end - p->at > 1 && p->at[0] == '\\' && strchr("sSdDwWpP", p->at[1]) && p->at[1];
}

/* A backslash that stands for one character. */
static err_t char_escape(struct parser *p, uint32_t *ret)
{
    static const char values[] = "\r\n\t\f\v\a\x1b";
    char c = p->end - p->at > 1 ? p->at[1] : '\0';
    const char *known = c ? strchr(spaces_ascii, c) : NULL;
    if (c == 'x' || c == 'u')
        return hex(p, ret);
    if (known && c != '0')
        *ret = (uint8_t)values[known - spaces_ascii];
    else if (c > ' ' && c < 0x7f && !((c >= '0' && c <= '9') || other_case((uint8_t)c)))
        *ret = (uint8_t)c;
    else
        return refuse(p, p->at, 2, "this escape is not supported");
    p->at += 2;
    return OK;
}

/* ---- classes in brackets ---- */

static err_t class_body(struct parser *p, struct buf *ret);

static err_t class_add_set(struct parser *p, struct buf *ret, struct buf *part, bool negated)
{
    set_tidy(part);
    err_t err = negated ? set_invert(part) : OK;
    err = err ? err : set_add_ranges(ret, ranges_of(part));
    buf_fini(part);
    return no_memory(p, err);
}

static err_t class_char(struct parser *p, uint32_t *ret)
{
    if (*p->at == '\\')
        return char_escape(p, ret);
    int n = utf8_decode(p->at, ret);
    p->at += n;
    return n ? OK : refuse(p, p->at, 1, "it is not UTF-8");
}

/* One character, or a range of them. */
static err_t class_range(struct parser *p, struct buf *ret)
{
    const char *at = p->at;
    uint32_t first = 0, last = 0;
    err_t err = class_char(p, &first);
    if (err || p->end - p->at < 2 || p->at[0] != '-' || p->at[1] == ']')
        return err ? err : char_add(p, ret, at, first);
    p->at++;
    if (*p->at == '[' || is_class_escape(p) || begins(p, "-"))
        return refuse(p, at, 6, "this range is not supported");
    err = class_char(p, &last);
    if (err)
        return err;
    if (last < first)
        return why_set(p->why, ERR_INVALID, "byte %zu of the pattern: the range ends before it begins",
                       (size_t)(at - p->start));
    if (p->any_case)
        return refuse(p, at, 6, "without regard to case, ranges are not supported");
    return no_memory(p, set_add(ret, first, last));
}

static err_t class_item(struct parser *p, struct buf *ret)
{
    struct buf part = {0};
    bool negated = false;
    if (*p->at != '[' && !is_class_escape(p))
        return class_range(p, ret);
    if (p->any_case)
        return refuse(p, p->at, 4, "without regard to case, it is not supported inside a class");
    if (begins(p, "[:"))
        return refuse(p, p->at, 6, "POSIX classes are not supported");
    err_t err = *p->at == '[' ? class_body(p, &part) : class_escape(p, &part, &negated);
    if (!err)
        return class_add_set(p, ret, &part, negated);
    buf_fini(&part);
    return err;
}

/* What is between two &&. */
static err_t class_operand(struct parser *p, struct buf *ret)
{
    err_t err = OK;
    while (!err && p->at < p->end && *p->at != ']' && !begins(p, "&&")) {
        if (p->syntax == REGEX_RUST && (begins(p, "--") || begins(p, "~~")))
            return refuse(p, p->at, 2, "this operation on classes is not supported");
        err = class_item(p, ret);
    }
    set_tidy(ret);
    return err;
}

/* At the opening bracket. */
static err_t class_body(struct parser *p, struct buf *ret)
{
    const char *open = p->at++;
    bool negated = p->at < p->end && *p->at == '^';
    if (++p->depth > MAX_DEPTH)
        return refuse(p, open, 4, "it is nested too deeply");
    p->at += negated;
    if (p->at < p->end && *p->at == ']')
        return refuse(p, p->at, 1, "a class that starts with it is not supported");
    if (negated && p->any_case)
        return refuse(p, open, 4, "without regard to case, it is not supported");
    err_t err = class_operand(p, ret);
    while (!err && begins(p, "&&")) {
        struct buf other = {0};
        p->at += 2;
        err = class_operand(p, &other);
        err = err ? err : no_memory(p, set_intersect(ret, &other));
        buf_fini(&other);
    }
    if (!err && p->at == p->end)
        return why_set(p->why, ERR_INVALID, "byte %zu of the pattern: the class has no end", (size_t)(open - p->start));
    p->at++;
    p->depth--;
    return err || !negated ? err : no_memory(p, set_invert(ret));
}

static err_t class_atom(struct parser *p)
{
    struct buf set = {0};
    bool negated = false;
    err_t err = *p->at == '[' ? class_body(p, &set) : class_escape(p, &set, &negated);
    set_tidy(&set);
    if (!err && negated)
        err = no_memory(p, set_invert(&set));
    if (!err)
        return put_set(p, &set);
    buf_fini(&set);
    return err;
}

static err_t dot(struct parser *p)
{
    struct buf set = {0};
    err_t err = set_add(&set, '\n', '\n');
    err = no_memory(p, err ? err : set_invert(&set));
    p->at++;
    if (!err)
        return put_set(p, &set);
    buf_fini(&set);
    return err;
}

/* ---- groups and quantifiers ---- */

static err_t alternatives(struct parser *p);

static err_t group(struct parser *p)
{
    static const char *const legal[] = {"(?:", "(?=", "(?!", "(?>", "(?i:"};
    const char *open = p->at, *found = "(";
    bool any_case = p->any_case;
    for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++)
        if (begins(p, legal[i]))
            found = legal[i];
    if (!found[1] && (begins(p, "(?") || begins(p, "(*")))
        return refuse(p, p->at, 4, "this group is not supported");
    if (++p->depth > MAX_DEPTH)
        return refuse(p, open, 4, "it is nested too deeply");
    bool looks = strcmp(found, "(?=") == 0 || strcmp(found, "(?!") == 0, folds = strcmp(found, "(?i:") == 0;
    p->at += strlen(found);
    p->any_case |= folds;
    err_t err = put_text(p, looks || strcmp(found, "(?>") == 0 ? found : "(?:");
    err = err ? err : alternatives(p);
    if (!err && p->at == p->end)
        return why_set(p->why, ERR_INVALID, "byte %zu of the pattern: the group has no end", (size_t)(open - p->start));
    p->at++;
    p->depth--;
    p->any_case = any_case;
    p->after_atom = !looks; /* a repeated look-ahead has no use */
    return err ? err : put(p, ')');
}

/* Whether {..} at p->at is a quantifier. Otherwise the brace is refused, because engines differ in its meaning. */
static size_t braces(const struct parser *p)
{
    size_t n = 1, digits = 0, commas = 0;
    for (; p->at + n < p->end && p->at[n] != '}'; n++) {
        commas += p->at[n] == ',';
        digits += p->at[n] >= '0' && p->at[n] <= '9';
        if (digits > 6 || commas > 1 || (p->at[n] != ',' && (p->at[n] < '0' || p->at[n] > '9')))
            return 0;
    }
    return p->at + n < p->end && digits && p->at[1] != ',' ? n + 1 : 0;
}

static err_t quantifier(struct parser *p)
{
    const char *at = p->at;
    size_t n = *at == '{' ? braces(p) : 1;
    if (!n || !p->after_atom)
        return refuse(p, at, 4, p->after_atom ? "this quantifier is not supported" : "there is nothing to repeat");
    if (at + n < p->end && (at[n] == '+' || at[n] == '?')) {
        if (*at == '{' && (p->syntax == REGEX_ONIGURUMA || at[n] == '?'))
            return refuse(p, at + n - 1, 2, "PCRE2 and Oniguruma differ in its meaning");
        n++;
    }
    p->after_atom = false;
    p->at += n;
    err_t err = OK;
    for (size_t i = 0; !err && i < n; i++)
        err = put(p, (uint8_t)at[i]);
    return err;
}

static err_t anchor(struct parser *p)
{
    if (*p->at == '^' || p->syntax == REGEX_ONIGURUMA)
        return refuse(p, p->at, 1, "anchors are not supported");
    p->at++;
    p->after_atom = false;
    return put_text(p, "\\z");
}

static err_t atom(struct parser *p)
{
    uint32_t c = 0;
    const char *at = p->at;
    if (*at != '\\') {
        int n = utf8_decode(at, &c);
        return n ? literal(p, c, at + n) : refuse(p, at, 1, "it is not UTF-8");
    }
    err_t err = char_escape(p, &c);
    if (err)
        return err;
    const char *next = p->at;
    p->at = at;
    return literal(p, c, next);
}

static err_t next(struct parser *p)
{
    if (*p->at == '*' || *p->at == '+' || *p->at == '?' || *p->at == '{')
        return quantifier(p);
    if (*p->at == '^' || *p->at == '$')
        return anchor(p);
    bool letter = *p->at != '[' && *p->at != '(' && *p->at != '.' && !is_class_escape(p);
    if (letter)
        return atom(p);
    p->before = 0;
    if (*p->at == '(')
        return group(p);
    return *p->at == '.' ? dot(p) : class_atom(p);
}

/* Up to the end, or to the closing parenthesis of a group. */
static err_t alternatives(struct parser *p)
{
    err_t err = OK;
    p->after_atom = false;
    while (!err && p->at < p->end && *p->at != ')') {
        if (*p->at != '|') {
            err = next(p);
            continue;
        }
        p->at++;
        p->before = 0;
        p->after_atom = false;
        err = put(p, '|');
    }
    p->before = 0;
    return err;
}

void regex_program_fini(struct regex_program *p)
{
    buf_fini(&p->units);
    for (int i = 0; i < p->n_sets; i++)
        buf_fini(&p->sets[i]);
    p->n_sets = 0;
}

err_t regex_parse(const char *pattern, size_t len, enum regex_syntax syntax, struct regex_program *ret, struct why *why)
{
    struct parser p = {
        .at = pattern, .start = pattern, .end = pattern + len, .syntax = syntax, .program = ret, .why = why};
    if (!len || len > REGEX_MAX_PATTERN)
        return why_set(why, ERR_INVALID, "the pattern has %zu bytes; it must have 1 to %d", len, REGEX_MAX_PATTERN);
    err_t err = alternatives(&p);
    if (!err && p.at < p.end)
        return why_set(why, ERR_INVALID, "byte %zu of the pattern: a ) without its (", (size_t)(p.at - p.start));
    return err;
}
