/* Small text files of lines KEY=VALUE that dtd itself writes and reads: tickets, and the files of a cluster. A key that
 * is not in the reader's table, written by a newer dtd, may have a meaning that must not be ignored, so it is refused.
 * Any thread; load and store block for a few kilobytes. */
#ifndef DTD_COMMON_BASE_KEY_LINES_H
#define DTD_COMMON_BASE_KEY_LINES_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEY_LINES_MAX 4096 /* bytes: more than the largest file, which lists all voters of a cluster */

struct key_line {
    const char *key;
    /* Reads a value into the field, which has `size` bytes. False: the value is not valid. */
    bool (*read)(const char *value, void *field, size_t size);
    size_t offset, size;
};
#define KEY_LINE_FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field)

bool key_line_text(const char *value, void *field, size_t size);   /* a text, which fits with its NUL */
bool key_line_number(const char *value, void *field, size_t size); /* decimal; uint32_t, or 63 bits of (u)int64_t */
bool key_line_hex(const char *value, void *field, size_t size);    /* bytes, as lower-case digits */
bool key_line_flag(const char *value, void *field, size_t size);   /* bool: 0 or 1 */

/* Parses complete lines into the struct `to`, of which a failure leaves some fields changed. `where`, a path, is for
 * messages. ERR_CORRUPT: a key occurs twice or is unknown, a value is not valid, or the text is too long. Bit k of
 * ret_seen: keys[k] occurs. */
NODISCARD err_t key_lines_parse(const char *where, const char *text, size_t len, const struct key_line *keys,
                                size_t n_keys, void *to, uint32_t *ret_seen, struct why *why);

/* Reads or replaces a file, with mode 0600. ERR_NOTFOUND: there is none. */
NODISCARD err_t key_lines_load(const char *path, struct buf *ret, struct why *why);
NODISCARD err_t key_lines_store(const char *path, const char *text, size_t len, struct why *why);

#endif
