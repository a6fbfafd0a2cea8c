/* UTF-8, one code point at a time. Pure. */
#ifndef DTD_COMMON_BASE_UTF8_H
#define DTD_COMMON_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the sequence at s, whose string is NUL-terminated, and its code point. 0: not legal UTF-8 (a stray or
 * missing byte, an overlong form, a surrogate, a code point beyond U+10FFFF). */
static inline int utf8_decode(const char *s, uint32_t *ret)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)s;
    int len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (!len)
        return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *ret = c;
    return len;
}

static inline bool utf8_valid(const char *s)
{
    for (int len; *s; s += len) {
        uint32_t c;
        len = utf8_decode(s, &c);
        if (!len)
            return false;
    }
    return true;
}

/* Number of valid bytes at the start of p[n]. The caller ensures that a NUL follows. */
static inline size_t utf8_run(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t v;
        uint32_t c;
        if (n - i >= 8 && (memcpy(&v, p + i, 8), !(v & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        int len = utf8_decode((const char *)p + i, &c);
        if (!len || (size_t)len > n - i)
            break;
        i += (size_t)len;
    }
    return i;
}

#endif
