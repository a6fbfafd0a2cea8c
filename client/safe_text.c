/* Widths are those of the C library, which terminals and ncurses use, in the locale C.UTF-8, so that they do not depend
 * on the user's. Without that locale all text is ASCII. */
#include "client/safe_text.h"

#include <locale.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>

/* Marks above and below one letter: more than two are an attack on the lines around it. */
#define MARKS_MAX 2

/* Returns the bytes of the character at `s`, 0 if it is not valid. */
static int decode(const unsigned char *s, uint32_t *ret)
{
    static const struct {
        unsigned char mask, lead;
        int bytes;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};
    for (size_t k = 0; k < sizeof(forms) / sizeof(forms[0]); k++) {
        if ((s[0] & forms[k].mask) != forms[k].lead)
            continue;
        uint32_t c = s[0] & (unsigned char)~forms[k].mask;
        for (int i = 1; i < forms[k].bytes; i++) {
            if ((s[i] & 0xc0) != 0x80)
                return 0;
            c = c << 6 | (s[i] & 0x3f);
        }
        bool surrogate = c >= 0xd800 && c < 0xe000;
        if (c < forms[k].least || c > 0x10ffff || surrogate)
            return 0;
        *ret = c;
        return forms[k].bytes;
    }
    return 0;
}

/* Invisible characters, among them those that change the direction of writing. */
static bool is_hidden(uint32_t c)
{
    return c == 0xad || c == 0x61c || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || (c >= 0xfe00 && c <= 0xfe0f) || c == 0xfeff || c >= 0xe0000;
}

static locale_t utf8_locale(void)
{
    static locale_t locale;
    static bool tried;
    if (!tried)
        locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    tried = true;
    return locale;
}

/* Columns; -1: not printable. */
static int width_of(uint32_t c)
{
    locale_t locale = utf8_locale();
    if (c < 0x80 || !locale)
        return c >= 0x20 && c < 0x7f ? 1 : -1;
    locale_t before = uselocale(locale);
    int width = wcwidth((wchar_t)c);
    uselocale(before);
    return width;
}

int safe_text_width(const char *text)
{
    int columns = 0;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        uint32_t c;
        int bytes = decode(s, &c), width = bytes ? width_of(c) : 1;
        columns += width > 0 ? width : 0;
        s += bytes ? bytes : 1;
    }
    return columns;
}

/* One character of the result. */
struct cell {
    const char *bytes;
    int n, width;
};

static struct cell cell_of(const char **at, bool utf8, int *marks)
{
    uint32_t c = 0;
    const char *s = *at;
    int bytes = decode((const unsigned char *)s, &c), width = bytes ? width_of(c) : -1;
    *at += bytes ? bytes : 1;
    if (bytes && is_hidden(c))
        return (struct cell){"", 0, 0};
    if (c == '\t' || c == '\n')
        return (struct cell){" ", 1, 1};
    if (width < 0)
        return (struct cell){"?", 1, 1};
    *marks = width ? 0 : *marks + 1;
    if (!width && (*marks > MARKS_MAX || !utf8))
        return (struct cell){"", 0, 0};
    if (c >= 0x80 && !utf8)
        return (struct cell){"??", width, width};
    return (struct cell){s, bytes, width};
}

int safe_text(const char *text, int columns, bool utf8, char *ret, size_t size)
{
    size_t len = 0, mark = 0; /* mark: where the text ends if it must be cut */
    int used = 0, mark_used = 0, marks = 0;
    for (const char *s = text; *s;) {
        struct cell c = cell_of(&s, utf8, &marks);
        if (used + c.width > columns || len + (size_t)c.n + 2 > size) {
            len = mark;
            used = mark_used;
            if (columns > 0 && len + 2 <= size) {
                ret[len++] = '~';
                used++;
            }
            break;
        }
        memcpy(ret + len, c.bytes, (size_t)c.n);
        len += (size_t)c.n;
        used += c.width;
        if (used < columns) {
            mark = len;
            mark_used = used;
        }
    }
    if (size)
        ret[len] = '\0';
    return used;
}
