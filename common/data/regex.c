/* Matching in windows. PCRE2 gets the next 64 characters, and twice as many as long as its answer depends on what
 * follows; so a match costs what it looks at, and the sum of the windows is a measure of work. A usual pattern needs a
 * few windows per piece. A pattern that reads far ahead and then takes one character (\s*x|\s) would need quadratic
 * time: its work exceeds a multiple of the text, and it is refused. Within a window, PCRE2's own limit applies. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/data/regex_priv.h"

#include "common/base/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define CODE_POINTS 0x110000u
#define WINDOW 64
#define WORK_PER_CHAR 256   /* a piece of one character needs a window, one of n more characters at most 4 n */
#define WORK_FREE (1 << 20) /* lets short texts pass whatever the pattern is */
#define MATCH_LIMIT 1000000 /* of PCRE2, for one window */
#define JIT_STACK ((size_t)16 << 20)
#define MASK_WORDS ((REGEX_MAX_SETS + 63) / 64)

struct regex {
    uint8_t *classes; /* of every code point */
    pcre2_code *code;
    bool jit, keeps_words, takes_letters, has_letters, takes_space;
};

struct regex_matcher {
    const struct regex *regex;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint64_t work, work_before, taken, longest; /* work_before: up to the reset */
};

/* ---- classes ---- */

/* The sets that contain a class, as bits. */
struct class_mask {
    uint64_t word[MASK_WORDS];
};

struct classes {
    struct class_mask masks[256];
    int n;
};

static int class_of(struct classes *c, const struct class_mask *mask)
{
    for (int i = 0; i < c->n; i++)
        if (memcmp(&c->masks[i], mask, sizeof(*mask)) == 0)
            return i;
    if (c->n == 256)
        return -1;
    c->masks[c->n] = *mask;
    return c->n++;
}

static int bound_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The first characters of all stretches within which no set begins or ends, ascending; the last one is CODE_POINTS. */
static err_t bounds_of(const struct regex_program *p, struct buf *ret)
{
    uint32_t ends[2] = {0, CODE_POINTS};
    err_t err = buf_append(ret, ends, sizeof(ends));
    for (int i = 0; !err && i < p->n_sets; i++) {
        const struct unicode_range *list = (const struct unicode_range *)(const void *)p->sets[i].data;
        for (size_t k = 0; !err && k < p->sets[i].len / sizeof(*list); k++) {
            uint32_t two[2] = {list[k].first, list[k].last + 1};
            err = buf_append(ret, two, sizeof(two));
        }
    }
    if (!err)
        qsort(ret->data, ret->len / sizeof(uint32_t), sizeof(uint32_t), bound_compare);
    return err;
}

/* Fills r->classes. ERR_LIMIT: there are more than 256 classes. */
static err_t classes_fill(struct regex *r, const struct regex_program *p, struct classes *ret)
{
    struct buf bounds = {0};
    size_t at[REGEX_MAX_SETS] = {0}; /* by set: its first range that may contain the character */
    err_t err = bounds_of(p, &bounds);
    const uint32_t *list = (const uint32_t *)(const void *)bounds.data;
    for (size_t b = 0; !err && b + 1 < bounds.len / sizeof(*list); b++) {
        struct class_mask mask = {{0}};
        if (list[b] == list[b + 1])
            continue;
        for (int i = 0; i < p->n_sets; i++) {
            const struct unicode_range *set = (const struct unicode_range *)(const void *)p->sets[i].data;
            size_t n = p->sets[i].len / sizeof(*set);
            while (at[i] < n && set[at[i]].last < list[b])
                at[i]++;
            if (at[i] < n && set[at[i]].first <= list[b])
                mask.word[i / 64] |= (uint64_t)1 << i % 64;
        }
        int class = class_of(ret, &mask);
        if (class < 0)
            err = ERR_LIMIT;
        else
            memset(r->classes + list[b], class, list[b + 1] - list[b]);
    }
    buf_fini(&bounds);
    return err;
}

size_t regex_classify(const struct regex *r, const uint8_t *text, size_t n, uint8_t *ret)
{
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c = text[i];
        i += c < 0x80 ? 1 : (size_t)utf8_decode((const char *)text + i, &c);
        ret[count++] = r->classes[c];
    }
    return count;
}

bool regex_keeps_words(const struct regex *r)
{
    return r->keeps_words;
}

bool regex_takes_letters(const struct regex *r)
{
    return r->takes_letters;
}

bool regex_has_letters(const struct regex *r)
{
    return r->has_letters;
}

bool regex_takes_space(const struct regex *r)
{
    return r->takes_space;
}

/* ---- compiling ---- */

/* Writes the set as PCRE2 sees it: the bytes of its classes. */
static err_t set_print(const struct classes *c, unsigned set, struct buf *ret)
{
    err_t err = buf_printf(ret, "[");
    int n = 0;
    for (int i = 0; !err && i < c->n; i++)
        if (c->masks[i].word[set / 64] >> set % 64 & 1) {
            err = buf_printf(ret, "\\x%02x", (unsigned)i);
            n++;
        }
    if (err || n)
        return err ? err : buf_printf(ret, "]");
    ret->len--; /* an empty set matches nothing */
    return buf_printf(ret, "(?!)");
}

static err_t program_print(const struct regex_program *p, const struct classes *c, struct buf *ret)
{
    const uint16_t *units = (const uint16_t *)(const void *)p->units.data;
    err_t err = OK;
    for (size_t i = 0; !err && i < p->units.len / sizeof(*units); i++)
        err =
            units[i] >= REGEX_SET_UNIT ? set_print(c, units[i] - REGEX_SET_UNIT, ret) : buf_printf(ret, "%c", units[i]);
    return err;
}

static err_t compile(struct regex *r, const struct buf *text, struct why *why)
{
    int number;
    PCRE2_SIZE offset;
    uint32_t empty = 0;
    PCRE2_UCHAR message[128];
    r->code = pcre2_compile(text->data, text->len, 0, &number, &offset, NULL);
    if (!r->code) {
        pcre2_get_error_message(number, message, sizeof(message));
        return why_set(why, ERR_INVALID, "the pattern: %s", (const char *)message);
    }
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return why_set(why, ERR_UNSUPPORTED, "the pattern can match the empty string, which is not supported");
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return OK;
}

/* ---- whether a text may be cut before a space between letters ---- */

static bool set_has(const struct regex_program *p, unsigned set, uint32_t first, uint32_t last)
{
    const struct unicode_range *list = (const struct unicode_range *)(const void *)p->sets[set].data;
    for (size_t i = 0; i < p->sets[set].len / sizeof(*list); i++)
        if (list[i].first <= last && list[i].last >= first)
            return true;
    return false;
}

/* Walks the units of the pattern. Within one alternative at the top, a set with a letter must not come before a set
 * with a space, nor must a group with both be repeated. */
static bool words_kept(const struct regex_program *p)
{
    const uint16_t *units = (const uint16_t *)(const void *)p->units.data;
    bool letter = false, space = false, repeats = false;
    int depth = 0;
    size_t n = p->units.len / sizeof(*units);
    for (size_t i = 0; i < n; i++) {
        depth += units[i] == '(';
        depth -= units[i] == ')';
        if (units[i] == '|' && !depth) {
            letter = space = repeats = false;
            continue;
        }
        repeats |= units[i] == ')' && i + 1 < n && (units[i + 1] == '*' || units[i + 1] == '+' || units[i + 1] == '{');
        if (units[i] >= REGEX_SET_UNIT) {
            unsigned set = units[i] - REGEX_SET_UNIT;
            letter |= set_has(p, set, 'a', 'z') || set_has(p, set, 'A', 'Z');
            bool here = set_has(p, set, ' ', ' ');
            space |= here;
            if (here && letter)
                return false;
        }
        if (repeats && letter && space)
            return false;
    }
    return true;
}

static bool letters_named(const struct regex_program *p)
{
    for (unsigned i = 0; i < (unsigned)p->n_sets; i++)
        if (set_has(p, i, 'a', 'z') || set_has(p, i, 'A', 'Z'))
            return true;
    return false;
}

static bool takes(struct regex_matcher *m, uint32_t c)
{
    uint8_t class = m->regex->classes[c];
    size_t start, end;
    int rc;
    regex_matcher_reset(m);
    return !regex_match(m, &class, 1, 0, true, &rc, &start, &end) && rc;
}

/* Tries texts of one character. A look-ahead sees the end of the text there, and a space in a longer text: only one
 * that distinguishes these would matter, and words_kept refuses those. */
static err_t words_check(struct regex *r, const struct regex_program *p)
{
    struct regex_matcher *m;
    err_t err = regex_matcher_new(r, &m);
    if (err)
        return err;
    r->keeps_words = words_kept(p);
    r->has_letters = letters_named(p);
    r->takes_space = takes(m, ' ');
    r->takes_letters = true;
    for (uint32_t i = 0; i < 26; i++)
        r->takes_letters &= takes(m, 'a' + i) && takes(m, 'A' + i);
    regex_matcher_free(m);
    return OK;
}

static err_t program_compile(struct regex *r, const struct regex_program *p, struct why *why)
{
    struct classes *c = calloc(1, sizeof(*c));
    struct buf text = {0};
    err_t err = c ? classes_fill(r, p, c) : ERR_NOMEM;
    err = err ? err : program_print(p, c, &text);
    if (err)
        why_set(why, err, "the pattern: %s",
                err == ERR_LIMIT ? "it distinguishes more than 256 classes of characters" : err_text(err));
    err = err ? err : compile(r, &text, why);
    if (!err && (err = words_check(r, p)))
        why_set(why, err, "%s", err_text(err));
    buf_fini(&text);
    free(c);
    return err;
}

err_t regex_new(const char *pattern, size_t len, enum regex_syntax syntax, struct regex **ret, struct why *why)
{
    struct regex_program *p = calloc(1, sizeof(*p));
    struct regex *r = calloc(1, sizeof(*r));
    if (r)
        r->classes = malloc(CODE_POINTS);
    err_t err = p && r && r->classes ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = err ? err : regex_parse(pattern, len, syntax, p, why);
    err = err ? err : program_compile(r, p, why);
    if (p)
        regex_program_fini(p);
    free(p);
    if (err) {
        regex_free(r);
        return err;
    }
    *ret = r;
    return OK;
}

void regex_free(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->classes);
    free(r);
}

/* ---- matching ---- */

err_t regex_matcher_new(const struct regex *r, struct regex_matcher **ret)
{
    struct regex_matcher *m = calloc(1, sizeof(*m));
    if (!m)
        return ERR_NOMEM;
    m->regex = r;
    m->match = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = r->jit ? pcre2_jit_stack_create(32 << 10, JIT_STACK, NULL) : NULL;
    if (!m->match || !m->context || (r->jit && !m->stack)) {
        regex_matcher_free(m);
        return ERR_NOMEM;
    }
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *ret = m;
    return OK;
}

void regex_matcher_free(struct regex_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->match);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

void regex_matcher_reset(struct regex_matcher *m)
{
    m->work_before = m->work;
    m->taken = m->longest = 0;
}

uint64_t regex_work(const struct regex_matcher *m)
{
    return m->work;
}

static int match_window(struct regex_matcher *m, const uint8_t *classes, size_t n, size_t at, uint32_t options)
{
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    m->work += n - at;
    if (m->regex->jit)
        rc = pcre2_jit_match(m->regex->code, classes, n, at, options, m->match, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(m->regex->code, classes, n, at, options | PCRE2_NO_JIT, m->match, m->context);
    return rc;
}

static err_t work_check(const struct regex_matcher *m)
{
    return m->work - m->work_before > WORK_FREE + 16 * m->longest + WORK_PER_CHAR * m->taken ? ERR_LIMIT : OK;
}

static err_t error_of(int rc)
{
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH || rc == PCRE2_ERROR_PARTIAL)
        return OK;
    return rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT;
}

err_t regex_match(struct regex_matcher *m, const uint8_t *classes, size_t n, size_t at, bool whole, int *ret,
                  size_t *ret_start, size_t *ret_end)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(m->match);
    err_t err = OK;
    int rc;
    m->longest = n > m->longest ? n : m->longest;
    for (size_t window = WINDOW;; window *= 2) {
        bool all = window >= n - at;
        size_t end = all ? n : at + window;
        rc = match_window(m, classes, end, at, all && whole ? 0 : PCRE2_PARTIAL_HARD);
        err = error_of(rc);
        if (err || all || rc >= 0)
            break;
        err = work_check(m);
        if (err)
            break;
    }
    if (err)
        return err;
    *ret = rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH && whole ? 0 : -1;
    if (rc >= 0) {
        *ret_start = found[0];
        *ret_end = found[1];
        m->taken += found[1] - at;
    }
    return OK;
}
