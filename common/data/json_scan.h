/* A pull reader of one JSON text (RFC 8259) in memory, for lines of a few hundred bytes to many MiB: it allocates
 * nothing but decoded strings. For common/data only.
 *
 * Every function begins at the next value and ends behind it; after false the scan's `error` is set and nothing more
 * may be read. */
#ifndef DTD_COMMON_DATA_JSON_SCAN_H
#define DTD_COMMON_DATA_JSON_SCAN_H

#include "common/base/buf.h"

#include <stdbool.h>

#define JSON_SCAN_DEPTH 128 /* nested lists and objects: more is no data, and the scan is recursive */

struct json_scan {
    const uint8_t *begin, *at, *end;
    const char *error; /* a literal; NULL: none */
    int depth;
    err_t err;   /* ERR_INVALID, or ERR_NOMEM */
    bool strict; /* \u0000 and half a surrogate pair are errors */
};

enum json_type { JSON_NONE, JSON_IS_OBJECT, JSON_IS_LIST, JSON_IS_STRING, JSON_IS_NUMBER, JSON_IS_WORD };

void json_scan_init(struct json_scan *s, const void *text, size_t len);
/* Kind of the next value; JSON_NONE: no value begins here. JSON_IS_WORD: true, false or null. */
enum json_type json_scan_type(struct json_scan *s);
/* A string. *ret points into the text, or into `decoded`, to which it is appended, if it has escapes; appending more
 * may move it. \u0000 is a NUL byte; half a surrogate pair becomes U+FFFD. Bytes that are not UTF-8 are kept. */
NODISCARD bool json_scan_string(struct json_scan *s, struct buf *decoded, const uint8_t **ret, size_t *ret_len);
NODISCARD bool json_scan_integer(struct json_scan *s, int64_t *ret);
/* true, false: 1, 0. null: -1. */
NODISCARD bool json_scan_word(struct json_scan *s, int *ret);
NODISCARD bool json_scan_skip(struct json_scan *s);

/* for (bool more = json_scan_enter(s, '{'); more; more = json_scan_more(s, '}')) { key, then value }. A loop that ends
 * with an error leaves it in the scan. */
NODISCARD bool json_scan_enter(struct json_scan *s, char open);
NODISCARD bool json_scan_more(struct json_scan *s, char close);
/* A key of an object and its colon, like a string. */
NODISCARD bool json_scan_key(struct json_scan *s, struct buf *decoded, const uint8_t **ret, size_t *ret_len);
/* Nothing but white space is left. */
NODISCARD bool json_scan_end(struct json_scan *s);

#endif
