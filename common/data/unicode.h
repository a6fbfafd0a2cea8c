/* Properties of characters, from tables of our own: libraries of Debian 12 and 13 have different versions of Unicode,
 * and a tokenizer must give the same ids on both. Pure.
 *
 * unicode_generate.py makes the tables. General categories are those of Unicode 16.0; the others are those of the
 * components of Hugging Face's tokenizers 0.23.3, which were built with several versions, because ids must be equal to
 * theirs. */
#ifndef DTD_COMMON_DATA_UNICODE_H
#define DTD_COMMON_DATA_UNICODE_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Part of the hash of a prepared set. Changes with the tables. */
#define UNICODE_TABLES "16.0-1"

struct unicode_range {
    uint32_t first, last;
};
struct unicode_ranges {
    const struct unicode_range *list; /* ascending, disjoint, not adjacent */
    size_t n;
};

/* Sets of characters, each with the component that uses it. */
enum unicode_set {
    UNICODE_WHITE_SPACE,  /* 25 characters, the same in all components */
    UNICODE_WORD,         /* \w of Whitespace, and of added tokens with single_word */
    UNICODE_WORD_ONIG,    /* \w of Split and Replace */
    UNICODE_PUNCTUATION,  /* Punctuation, BertPreTokenizer */
    UNICODE_NUMERIC,      /* Digits */
    UNICODE_MARK,         /* what StripAccents removes */
    UNICODE_BERT_REMOVED, /* what BertNormalizer removes with clean_text */
    UNICODE_BERT_SPACE,   /* what it makes a space */
    UNICODE_BERT_CHINESE, /* what it puts between spaces with handle_chinese_chars */
    UNICODE_BERT_ACCENTS, /* what it removes with strip_accents, after decomposition */
    UNICODE_CASED,        /* these two decide which sigma is final, as in Python's str.lower */
    UNICODE_CASE_IGNORABLE,
    UNICODE_GRAPHEME_EXTEND,
    UNICODE_GRAPHEME_SPACING,
    UNICODE_GRAPHEME_PREPEND,
    UNICODE_GRAPHEME_CONTROL,
    UNICODE_SETS
};
struct unicode_ranges unicode_ranges(enum unicode_set set);
bool unicode_in(enum unicode_set set, uint32_t c);

/* Appends the ranges of a property to `ret` (struct unicode_range), ascending: a general category ("Lu"), a group of
 * categories ("L"), or a script ("Han"). ERR_NOTFOUND: the table has no such property. */
NODISCARD err_t unicode_property(const char *name, size_t len, struct buf *ret);

/* The full mapping to lower case, of 1 or 2 code points. NULL: the character maps to itself. */
const uint32_t *unicode_lower(uint32_t c, size_t *ret_n);

/* ---- normalization forms; characters that are newer than the tables of tokenizers have no class and do not compose
 * ---- */

enum { UNICODE_MAX_DECOMPOSED = 18 };
/* The full canonical (or compatibility) decomposition. Writes at most UNICODE_MAX_DECOMPOSED code points, returns their
 * number. */
size_t unicode_decompose(uint32_t c, bool compatible, uint32_t *ret);
uint8_t unicode_class(uint32_t c);
/* The composition of two characters; 0: there is none. */
uint32_t unicode_compose(uint32_t a, uint32_t b);

/* Writes c as UTF-8 and returns the length, 1 to 4. */
size_t unicode_put(uint32_t c, uint8_t *ret);

#endif
