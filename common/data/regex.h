/* Regular expressions of tokenizer files, matched by PCRE2 over classes of characters. For common/data only.
 *
 * A pattern uses few sets of characters (\p{L}, \s, 's'). All characters that are in the same sets form a class, and a
 * class is one byte. The text is first translated to its classes, and PCRE2 then matches bytes, without Unicode: so the
 * result depends on the tables of unicode.h only, never on the version of PCRE2, and every set is a bitmap.
 *
 * Only syntax with one meaning is accepted; a match is never empty, and does not look behind. */
#ifndef DTD_COMMON_DATA_REGEX_H
#define DTD_COMMON_DATA_REGEX_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGEX_MAX_PATTERN 4096

enum regex_syntax {
    REGEX_ONIGURUMA, /* tokenizer.json */
    REGEX_RUST,      /* tiktoken and tekken: `$` is the end of the text */
};

struct regex;
/* ERR_UNSUPPORTED: the sentence names the construct and its place in the pattern. */
NODISCARD err_t regex_new(const char *pattern, size_t len, enum regex_syntax syntax, struct regex **ret,
                          struct why *why);
void regex_free(struct regex *r);
/* Translates text[n], which is valid UTF-8, to classes. Writes at most n and returns the number of characters. */
size_t regex_classify(const struct regex *r, const uint8_t *text, size_t n, uint8_t *ret);
/* Whether no match contains an ASCII letter directly followed by a space, or looks across this place. Conservative. */
bool regex_keeps_words(const struct regex *r);
/* Whether, in addition, every ASCII letter is in a match. */
bool regex_takes_letters(const struct regex *r);

/* Whether a set of the pattern has an ASCII letter. */
bool regex_has_letters(const struct regex *r);
/* Whether a text of one space has a match. */
bool regex_takes_space(const struct regex *r);

/* State of matching, of one thread. */
struct regex_matcher;
NODISCARD err_t regex_matcher_new(const struct regex *r, struct regex_matcher **ret);
void regex_matcher_free(struct regex_matcher *m);
/* Begins a text: the amount of work is counted from here on. */
void regex_matcher_reset(struct regex_matcher *m);
/* Finds the first match in classes[at .. n). *ret: 1: found, 0: there is none, -1: `whole` is false, and more text may
 * change the result. ERR_LIMIT: the pattern backtracks too much, or would read the text again and again; the work is
 * bounded by a multiple of the length of the text. */
NODISCARD err_t regex_match(struct regex_matcher *m, const uint8_t *classes, size_t n, size_t at, bool whole, int *ret,
                            size_t *ret_start, size_t *ret_end);
/* Characters that were given to PCRE2 since the matcher was created, a measure of work. */
uint64_t regex_work(const struct regex_matcher *m);

#endif
