/* jansson builds a tree of a line and copies each string several times; it reads 120 MB/s, and zstd decompresses
 * 1,000. The text of a document is one long string, so the scan looks at 32 bytes at once for the end of a run that
 * needs no work. Source code has an escape in every 20 bytes at unforeseeable places: the loop that decodes it has no
 * branch that depends on where they are. Tests compare with jansson. */
#include "common/data/json_scan.h"

#include <endian.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 32

void json_scan_init(struct json_scan *s, const void *text, size_t len)
{
    *s = (struct json_scan){.begin = text, .at = text, .end = (const uint8_t *)text + len};
}

static bool fail(struct json_scan *s, const char *error)
{
    if (!s->error) {
        s->error = error;
        s->err = ERR_INVALID;
    }
    return false;
}

static void skip_space(struct json_scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

enum json_type json_scan_type(struct json_scan *s)
{
    skip_space(s);
    if (s->at == s->end)
        return JSON_NONE;
    switch (*s->at) {
    case '{':
        return JSON_IS_OBJECT;
    case '[':
        return JSON_IS_LIST;
    case '"':
        return JSON_IS_STRING;
    case 't':
    case 'f':
    case 'n':
        return JSON_IS_WORD;
    default:
        return *s->at == '-' || (*s->at >= '0' && *s->at <= '9') ? JSON_IS_NUMBER : JSON_NONE;
    }
}

/* ---- strings ---- */

static bool is_special(uint8_t c)
{
    return c == '"' || c == '\\' || c < 0x20;
}

/* Bit i: byte i of the BLOCK bytes at `at` is special. */
#ifdef __SSE2__
static uint32_t special_16(const uint8_t *at)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)at);
    __m128i quote = _mm_cmpeq_epi8(x, _mm_set1_epi8('"')), slash = _mm_cmpeq_epi8(x, _mm_set1_epi8('\\'));
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(0x1f)), x);
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), control));
}

static uint32_t specials(const uint8_t *at)
{
    return special_16(at) | special_16(at + 16) << 16;
}
#else
#define EIGHT(byte) (0x0101010101010101u * (byte))

/* Bytes that are 0 get their top bit, all others become 0. */
static uint64_t zeros(uint64_t x)
{
    return ~(((x & EIGHT(0x7f)) + EIGHT(0x7f)) | x | EIGHT(0x7f));
}

static uint32_t specials(const uint8_t *at)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < BLOCK; i += 8) {
        uint64_t x;
        memcpy(&x, at + i, 8);
        x = le64toh(x);
        x = zeros(x ^ EIGHT('"')) | zeros(x ^ EIGHT('\\')) | zeros(x & EIGHT(0xe0));
        bits |= (uint32_t)((x >> 7) * 0x0102040810204080u >> 56) << i;
    }
    return bits;
}
#endif

/* The first special byte from `at` on, or the end. */
static const uint8_t *run_end(const uint8_t *at, const uint8_t *end)
{
    for (; end - at >= BLOCK; at += BLOCK) {
        uint32_t bits = specials(at);
        if (bits)
            return at + __builtin_ctz(bits);
    }
    while (at < end && !is_special(*at))
        at++;
    return at;
}

/* What a letter behind a backslash stands for; 0: nothing, or more letters follow. */
static const uint8_t escapes[256] = {
    ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Four hex digits at `at`; -1: there are none. */
static int hex_unit(const struct json_scan *s, const uint8_t *at)
{
    int unit = 0;
    if (s->end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static size_t utf8_put(uint32_t c, uint8_t ret[4])
{
    if (c < 0x80) {
        ret[0] = (uint8_t)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i; i--, c >>= 6)
        ret[i] = (uint8_t)(0x80 | (c & 0x3f));
    ret[0] = (uint8_t)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* s->at is behind "\u". */
static bool unicode_escape(struct json_scan *s, uint8_t ret[4], size_t *ret_n)
{
    int unit = hex_unit(s, s->at);
    if (unit < 0)
        return fail(s, "\\u is not followed by four hex digits");
    s->at += 4;
    uint32_t c = (uint32_t)unit;
    if (unit >= 0xd800 && unit < 0xdc00 && s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u') {
        int low = hex_unit(s, s->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            s->at += 6;
        }
    }
    const bool half = c >= 0xd800 && c < 0xe000;
    if (s->strict && (half || !c))
        return fail(s, "an escape is no character");
    if (half)
        c = 0xfffd;
    *ret_n = utf8_put(c, ret);
    return true;
}

static bool escape(struct json_scan *s, uint8_t ret[4], size_t *ret_n)
{
    uint8_t c = s->at + 1 < s->end ? s->at[1] : 0;
    s->at += 2;
    if (c == 'u')
        return unicode_escape(s, ret, ret_n);
    if (!escapes[c])
        return fail(s, "an unknown escape in a string");
    ret[0] = escapes[c];
    *ret_n = 1;
    return true;
}

/* Copies and decodes up to the end of the string, an escape of several letters, an error, or the last bytes of the
 * text. Always copies BLOCK bytes, of which the next copy overwrites those that do not count. */
static uint8_t *copy_blocks(struct json_scan *s, uint8_t *out)
{
    const uint8_t *at = s->at;
    for (; s->end - at >= 2 * BLOCK + 2; at += BLOCK) {
        const uint8_t *from = at, *end = at + BLOCK;
        for (uint32_t bits = specials(at); bits;) {
            const uint8_t *special = at + __builtin_ctz(bits);
            uint8_t letter = escapes[special[1]];
            memcpy(out, from, BLOCK);
            out += special - from;
            if (*special != '\\' || !letter) {
                s->at = special;
                return out;
            }
            *out++ = letter;
            from = special + 2;
            bits &= ~((uint32_t)3 << (special - at));
        }
        memcpy(out, from, BLOCK);
        if (__builtin_expect(from <= end, 1)) {
            out += end - from;
        } else {
            at++; /* the block ended within an escape */
        }
    }
    s->at = at;
    return out;
}

/* Copies bytes up to the next special one that is no simple escape. */
static uint8_t *copy_run(struct json_scan *s, uint8_t *out)
{
    out = copy_blocks(s, out);
    while (s->at < s->end && !is_special(*s->at))
        *out++ = *s->at++;
    return out;
}

/* A string from s->at, its begin, that has an escape. The decoded string is never longer than its spelling. */
static bool decode(struct json_scan *s, struct buf *decoded)
{
    if (buf_reserve(decoded, (size_t)(s->end - s->at) + BLOCK)) {
        s->error = err_text(ERR_NOMEM);
        s->err = ERR_NOMEM;
        return false;
    }
    uint8_t *out = copy_run(s, decoded->data + decoded->len);
    while (s->at < s->end && *s->at == '\\') {
        size_t n;
        if (!escape(s, out, &n))
            return false;
        out = copy_run(s, out + n);
    }
    decoded->len = (size_t)(out - decoded->data);
    return true;
}

bool json_scan_string(struct json_scan *s, struct buf *decoded, const uint8_t **ret, size_t *ret_len)
{
    if (json_scan_type(s) != JSON_IS_STRING)
        return fail(s, "a string is expected");
    const uint8_t *run = ++s->at;
    size_t from = decoded->len;
    s->at = run_end(run, s->end);
    bool plain = s->at == s->end || *s->at != '\\';
    if (!plain) {
        s->at = run;
        if (!decode(s, decoded))
            return false;
    }
    if (s->at == s->end)
        return fail(s, "a string does not end");
    if (*s->at != '"')
        return fail(s, "a control character in a string; JSON writes a line's end as \\n");
    *ret_len = plain ? (size_t)(s->at - run) : decoded->len - from;
    *ret = plain ? run : decoded->data + from;
    s->at++;
    return true;
}

static bool skip_string(struct json_scan *s)
{
    s->at++;
    for (;;) {
        uint8_t bytes[4];
        size_t n;
        s->at = run_end(s->at, s->end);
        if (s->at == s->end)
            return fail(s, "a string does not end");
        if (*s->at == '"')
            break;
        if (*s->at != '\\')
            return fail(s, "a control character in a string; JSON writes a line's end as \\n");
        if (!escape(s, bytes, &n))
            return false;
    }
    s->at++;
    return true;
}

/* ---- numbers and words ---- */

static bool digits(struct json_scan *s)
{
    const uint8_t *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > from || fail(s, "a number without digits");
}

static bool integer_part(struct json_scan *s)
{
    if (*s->at == '-')
        s->at++;
    if (s->end - s->at >= 2 && s->at[0] == '0' && s->at[1] >= '0' && s->at[1] <= '9')
        return fail(s, "a number begins with 0");
    return digits(s);
}

static bool is_fraction(const struct json_scan *s)
{
    return s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E');
}

static bool skip_number(struct json_scan *s)
{
    if (!integer_part(s))
        return false;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits(s))
            return false;
    }
    if (s->at == s->end || (*s->at | 0x20) != 'e')
        return true;
    s->at++;
    if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
        s->at++;
    return digits(s);
}

bool json_scan_integer(struct json_scan *s, int64_t *ret)
{
    int64_t n = 0;
    if (json_scan_type(s) != JSON_IS_NUMBER)
        return fail(s, "an integer is expected");
    const uint8_t *at = s->at;
    bool negative = *at == '-';
    if (!integer_part(s))
        return false;
    if (is_fraction(s))
        return fail(s, "an integer is expected, and not a fraction");
    for (at += negative; at < s->at; at++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *at - '0', &n))
            return fail(s, "a number is out of range");
    *ret = negative ? -n : n;
    return true;
}

bool json_scan_word(struct json_scan *s, int *ret)
{
    static const struct {
        const char *name;
        size_t len;
        int value;
    } words[] = {{"true", 4, 1}, {"false", 5, 0}, {"null", 4, -1}};
    skip_space(s);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((size_t)(s->end - s->at) >= words[i].len && memcmp(s->at, words[i].name, words[i].len) == 0) {
            s->at += words[i].len;
            *ret = words[i].value;
            return true;
        }
    return fail(s, "true, false or null is expected");
}

/* ---- lists and objects ---- */

bool json_scan_enter(struct json_scan *s, char open)
{
    skip_space(s);
    if (s->at == s->end || *s->at != open)
        return fail(s, open == '{' ? "an object is expected" : "a list is expected");
    if (s->depth == JSON_SCAN_DEPTH)
        return fail(s, "lists and objects are nested too deeply");
    s->at++;
    skip_space(s);
    if (s->at < s->end && *s->at == (open == '{' ? '}' : ']')) {
        s->at++;
        return false;
    }
    s->depth++;
    return true;
}

bool json_scan_more(struct json_scan *s, char close)
{
    if (s->error)
        return false;
    skip_space(s);
    if (s->at < s->end && *s->at == ',') {
        s->at++;
        return true;
    }
    if (s->at == s->end || *s->at != close)
        return fail(s, close == '}' ? "an object does not end" : "a list does not end");
    s->at++;
    s->depth--;
    return false;
}

static bool colon(struct json_scan *s)
{
    skip_space(s);
    if (s->at == s->end || *s->at != ':')
        return fail(s, "a colon is missing");
    s->at++;
    return true;
}

bool json_scan_key(struct json_scan *s, struct buf *decoded, const uint8_t **ret, size_t *ret_len)
{
    return json_scan_string(s, decoded, ret, ret_len) && colon(s);
}

static bool skip_list(struct json_scan *s)
{
    for (bool more = json_scan_enter(s, '['); more; more = json_scan_more(s, ']'))
        if (!json_scan_skip(s))
            return false;
    return !s->error;
}

static bool skip_object(struct json_scan *s)
{
    for (bool more = json_scan_enter(s, '{'); more; more = json_scan_more(s, '}')) {
        skip_space(s);
        if (s->at == s->end || *s->at != '"')
            return fail(s, "a key of an object is expected");
        if (!skip_string(s) || !colon(s) || !json_scan_skip(s))
            return false;
    }
    return !s->error;
}

bool json_scan_skip(struct json_scan *s)
{
    int word;
    switch (json_scan_type(s)) {
    case JSON_IS_OBJECT:
        return skip_object(s);
    case JSON_IS_LIST:
        return skip_list(s);
    case JSON_IS_STRING:
        return skip_string(s);
    case JSON_IS_NUMBER:
        return skip_number(s);
    case JSON_IS_WORD:
        return json_scan_word(s, &word);
    case JSON_NONE:
        break;
    }
    return fail(s, "a value is expected");
}

bool json_scan_end(struct json_scan *s)
{
    skip_space(s);
    return s->at == s->end || fail(s, "something follows the value");
}
