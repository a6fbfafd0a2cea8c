/* Patterns: the pieces they cut (expected ones from Hugging Face's tokenizers), what is refused, and the amount of
 * work. */
#include "common/data/regex.h"
#include "common/data/unicode.h"
#include "tests/lib/test.h"

#include <string.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"                              \
    "|\\s+(?!\\S)|\\s+"
#define NEMO                                                                                                           \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?" \
    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static struct regex *of(const char *pattern, enum regex_syntax syntax)
{
    struct regex *r = NULL;
    struct why why = {0};
    if (regex_new(pattern, strlen(pattern), syntax, &r, &why))
        fail_msg("%s: %s", pattern, why.text);
    return r;
}

static size_t char_bytes(const char *p)
{
    return (uint8_t)*p < 0x80 ? 1 : (uint8_t)*p < 0xe0 ? 2 : (uint8_t)*p < 0xf0 ? 3 : 4;
}

static const char *chars_copy(const char *p, size_t n, char **to)
{
    for (; n; n--)
        for (size_t k = char_bytes(p); k; k--)
            *(*to)++ = *p++;
    return p;
}

/* The matches of a text, as "a|b"; what lies between matches as "<a>". */
static void check_cut(const char *pattern, enum regex_syntax syntax, const char *text, const char *expected)
{
    struct regex *r = of(pattern, syntax);
    struct regex_matcher *m;
    uint8_t classes[256];
    char found[1024], *to = found;
    size_t n = regex_classify(r, (const uint8_t *)text, strlen(text), classes), at = 0, start, end;
    int rc;
    assert_ok(regex_matcher_new(r, &m));
    regex_matcher_reset(m);
    for (; at < n; at = end) {
        assert_ok(regex_match(m, classes, n, at, true, &rc, &start, &end));
        if (to > found)
            *to++ = '|';
        if (!rc)
            start = end = n;
        if (start > at) {
            *to++ = '<';
            text = chars_copy(text, start - at, &to);
            *to++ = '>';
        }
        if (end > start && start > at)
            *to++ = '|';
        text = chars_copy(text, end - start, &to);
    }
    *to = '\0';
    assert_string_equal(found, expected);
    regex_matcher_free(m);
    regex_free(r);
}

TEST(patterns_of_known_models)
{
    check_cut(GPT2, REGEX_ONIGURUMA, "Hello  world's 1234\n\n x", "Hello| | world|'s| 1234|\n\n| x");
    check_cut(LLAMA3, REGEX_ONIGURUMA, "Hello  world'S 1234\r\n\n x!?\n", "Hello| | world|'S| |123|4|\r\n\n| x|!?\n");
    check_cut(LLAMA3, REGEX_ONIGURUMA, "it'\xc5\xbf \xe4\xb8\xad\xe6\x96\x87",
              "it|'\xc5\xbf| \xe4\xb8\xad\xe6\x96\x87");
    check_cut(NEMO, REGEX_RUST, "HelloWorld ABCdef/x//\n", "Hello|World| ABCdef|/x|//\n");
    check_cut("[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x83\xbf]+", REGEX_ONIGURUMA, "ab\xe4\xb8\xad\xe3\x81\x82z",
              "<ab>|\xe4\xb8\xad\xe3\x81\x82|<z>");
    check_cut("\\s++$|\\s", REGEX_RUST, " a  ", " |<a>|  ");
}

TEST(sets_and_operators)
{
    check_cut("[a-c[x-z]&&[^b]]+", REGEX_ONIGURUMA, "abczq", "a|<b>|cz|<q>");
    check_cut("\\p{Han}+", REGEX_ONIGURUMA, "a\xe3\x80\x87\xe4\xb8\xad", "<a>|\xe3\x80\x87\xe4\xb8\xad");
    check_cut("[\\S&&[^\\p{L}]]", REGEX_ONIGURUMA, "a- 1", "<a>|-|< >|1");
    check_cut("a{2}|a{3,}", REGEX_ONIGURUMA, "aaaaa", "aa|aa|<a>");
    check_cut("(?:ab)++c?|.", REGEX_ONIGURUMA, "ababcd\n", "ababc|d|<\n>");
    check_cut("\\x{2581}\\u0041", REGEX_ONIGURUMA,
              "\xe2\x96\x81"
              "A",
              "\xe2\x96\x81"
              "A");
    /* a letter of Unicode 15.1 and one of 16.0: the installed PCRE2 may know neither */
    check_cut("\\p{L}+", REGEX_ONIGURUMA, "a\xf0\xae\xaf\xb0\xea\x9f\x9a-", "a\xf0\xae\xaf\xb0\xea\x9f\x9a|<->");
}

TEST(syntax_that_is_refused)
{
    static const struct {
        const char *pattern;
        enum regex_syntax syntax;
        err_t code;
        const char *part;
    } cases[] = {
        {"a|^b", REGEX_RUST, ERR_UNSUPPORTED, "byte 2 of the pattern, \"^\""},
        {"a$", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "anchors are not supported"},
        {"(?<=a)b", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "this group"},
        {"(?i:stop)", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "one character in Oniguruma"},
        {"(?i:\xc3\xa9)", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "only ASCII letters"},
        {"\\p{Foo}", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "\"\\p{Foo}\": this property"},
        {"[[:alpha:]]", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "POSIX"},
        {"[a~~b]", REGEX_RUST, ERR_UNSUPPORTED, "this operation"},
        {"x{,3}", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "this quantifier"},
        {"x{2}+", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "differ in its meaning"},
        {"*a", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "nothing to repeat"},
        {"a?", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "empty string"},
        {"[z-a]", REGEX_ONIGURUMA, ERR_INVALID, "ends before it begins"},
        {"[ab", REGEX_ONIGURUMA, ERR_INVALID, "the class has no end"},
        {"(a", REGEX_ONIGURUMA, ERR_INVALID, "the group has no end"},
        {"a)", REGEX_ONIGURUMA, ERR_INVALID, "without its ("},
        {"\\1", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "this escape"},
        {"\\", REGEX_ONIGURUMA, ERR_UNSUPPORTED, "this escape"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct regex *r;
        struct why why = {0};
        err_t err = regex_new(cases[i].pattern, strlen(cases[i].pattern), cases[i].syntax, &r, &why);
        if (err != cases[i].code || !strstr(why.text, cases[i].part))
            fail_msg("%s: %s: \"%s\", not \"%s\"", cases[i].pattern, err_name(err), why.text, cases[i].part);
    }
}

/* Matches a text of n times `part` and returns the work; ERR_LIMIT ends it. */
static err_t work_of(const char *pattern, const char *part, size_t n, uint64_t *ret)
{
    struct regex *r = of(pattern, REGEX_ONIGURUMA);
    struct regex_matcher *m;
    struct buf text = {0}, classes = {0};
    size_t at = 0, start, end;
    err_t err = OK;
    int rc = 1;
    for (size_t i = 0; i < n; i++)
        assert_ok(buf_append(&text, part, strlen(part)));
    assert_ok(buf_reserve(&classes, text.len));
    size_t chars = regex_classify(r, text.data, text.len, classes.data);
    assert_ok(regex_matcher_new(r, &m));
    regex_matcher_reset(m);
    for (; !err && rc && at < chars; at = end)
        err = regex_match(m, classes.data, chars, at, true, &rc, &start, &end);
    *ret = regex_work(m);
    regex_matcher_free(m);
    regex_free(r);
    buf_fini(&text);
    buf_fini(&classes);
    return err;
}

TEST(work_is_linear)
{
    static const char *const patterns[] = {GPT2, LLAMA3, NEMO}, *const parts[] = {
                                                                    "a", " ",  "\n",   "1",        "A",
                                                                    "-", " a", "\r\n", "\xcc\x81", "\xe4\xb8\xad",
                                                                    "'s"};
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            uint64_t half, all;
            assert_ok(work_of(patterns[p], parts[i], 1 << 15, &half));
            assert_ok(work_of(patterns[p], parts[i], 1 << 16, &all));
            if (all > half * 5 / 2 || all > (uint64_t)200 << 16)
                fail_msg("pattern %zu, \"%s\": %llu, then %llu", p, parts[i], (unsigned long long)half,
                         (unsigned long long)all);
        }
}

TEST(a_pattern_that_reads_ahead_again_and_again)
{
    uint64_t work;
    assert_err(ERR_LIMIT, work_of("\\s*x|\\s", " ", 1 << 18, &work));
    assert_true(work <
                (uint64_t)1 << 28); /* the square would be 2^35; below a million, the limit of PCRE2 does not help */
    assert_ok(work_of("\\s*x|\\s", " ", 100, &work));
    assert_err(ERR_LIMIT, work_of("(?:a+)+b|a", "a", 60, &work));
}

/* ---- tables ---- */

TEST(characters)
{
    uint32_t d[UNICODE_MAX_DECOMPOSED];
    size_t n = 0, total = 0;
    struct unicode_ranges white = unicode_ranges(UNICODE_WHITE_SPACE);
    for (size_t i = 0; i < white.n; i++)
        total += white.list[i].last - white.list[i].first + 1;
    assert_int_equal(total, 25);
    assert_true(unicode_in(UNICODE_WORD, '_') && !unicode_in(UNICODE_WORD, '-'));
    assert_true(unicode_in(UNICODE_PUNCTUATION, '$') && !unicode_in(UNICODE_PUNCTUATION, 0x2e43));
    assert_true(unicode_in(UNICODE_NUMERIC, 0x11de0) && unicode_in(UNICODE_NUMERIC, 0xbd));
    const uint32_t *low = unicode_lower(0x130, &n);
    assert_int_equal(n, 2);
    assert_true(low[0] == 'i' && low[1] == 0x307);
    assert_null(unicode_lower('a', &n));
    /* The Unicode Standard, 3.12: U+D4DB is U+1111 U+1171 U+11B6 */
    assert_int_equal(unicode_decompose(0xd4db, false, d), 3);
    assert_true(d[0] == 0x1111 && d[1] == 0x1171 && d[2] == 0x11b6);
    assert_int_equal(unicode_compose(unicode_compose(0x1111, 0x1171), 0x11b6), 0xd4db);
    assert_int_equal(unicode_compose('e', 0x301), 0xe9);
    assert_int_equal(unicode_compose(0x0915, 0x093c), 0); /* U+0958 is excluded from composition */
    assert_int_equal(unicode_decompose(0xfdfa, true, d), 18);
    assert_int_equal(unicode_decompose(0xfdfa, false, d), 1);
    assert_true(unicode_class(0x301) == 230 && unicode_class(0x345) == 240 && !unicode_class('a'));
}

TEST(properties)
{
    static const struct {
        const char *name;
        size_t count;
    } cases[] = {
        {"Nd", 760}, {"Lu", 1858}, {"L", 141028}, {"Zs", 17}, {"Cc", 65}}; /* DerivedGeneralCategory-16.0.0.txt */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};
        size_t total = 0;
        assert_ok(unicode_property(cases[i].name, strlen(cases[i].name), &b));
        const struct unicode_range *r = (const struct unicode_range *)(const void *)b.data;
        for (size_t k = 0; k < b.len / sizeof(*r); k++) {
            assert_true(r[k].first <= r[k].last && (!k || r[k - 1].last + 1 < r[k].first));
            total += r[k].last - r[k].first + 1;
        }
        if (total != cases[i].count)
            fail_msg("%s: %zu, not %zu", cases[i].name, total, cases[i].count);
        buf_fini(&b);
    }
    struct buf b = {0};
    assert_err(ERR_NOTFOUND, unicode_property("Lx", 2, &b));
    assert_err(ERR_NOTFOUND, unicode_property("Klingon", 7, &b));
}
