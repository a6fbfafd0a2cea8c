/* Words as Python's text.split() gives them, or text.lower().split(): what courses call a word-level tokenizer. For
 * common/data only.
 *
 * White space is what str.isspace accepts: White_Space of Unicode and U+001C to U+001F. Lower case is the full mapping
 * of Unicode with its rule for a sigma at the end of a word; neither depends on the locale. Text arrives in chunks cut
 * anywhere. Bytes that are no UTF-8 belong to words and are left unchanged. */
#ifndef DTD_COMMON_DATA_SPLIT_H
#define DTD_COMMON_DATA_SPLIT_H

#include "common/data/vocab.h"

#include <stdbool.h>

/* A zeroed struct with emit and arg is at the start of a text. */
struct split {
    bool lowercase;
    err_t (*emit)(void *arg, const uint8_t *word, size_t len); /* an error that it returns ends the feed */
    void *arg;
    size_t n;                               /* bytes of an incomplete word at the end of the last chunk */
    uint8_t word[VOCAB_WORD_MAX_BYTES + 4]; /* with the white space behind it */
};
/* ERR_UNSUPPORTED: a word has more than VOCAB_WORD_MAX_BYTES. */
NODISCARD err_t split_feed(struct split *s, const uint8_t *text, size_t len);
/* Ends the text: emits the incomplete word, if any. */
NODISCARD err_t split_finish(struct split *s);

#endif
