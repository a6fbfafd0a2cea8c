/* A set of words with a number and a count for each: the vocabulary while it is counted, and the look-up of a
 * tokenizer. Numbers are given in the order of arrival. Words are bytes, of any value. Concurrent finds are fine, adds
 * are not. */
#ifndef DTD_COMMON_DATA_VOCAB_H
#define DTD_COMMON_DATA_VOCAB_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdint.h>

#define VOCAB_MAX_WORDS (1 << 24) /* distinct words */
#define VOCAB_MAX_BYTES (1u << 30)
#define VOCAB_WORD_MAX_BYTES 1024 /* a longer one counts as unknown */

struct vocab_entry {
    uint64_t hash;
    uint32_t offset, len; /* in text */
    int64_t count;
};

struct vocab {
    struct buf text;
    struct vocab_entry *list;
    int32_t *slots; /* open addressing: number + 1, 0: free; a power of two, at most 2/3 full */
    int32_t n, n_slots, cap;
};

/* A zeroed struct is an empty set. */
void vocab_fini(struct vocab *w);
/* The word's number; a new one has count 0. ERR_LIMIT beyond the bounds above. */
NODISCARD err_t vocab_add(struct vocab *w, const void *word, size_t len, int32_t *ret);
/* -1 when it is not there. */
int32_t vocab_find(const struct vocab *w, const void *word, size_t len);
static inline const uint8_t *vocab_text(const struct vocab *w, int32_t number)
{
    return w->text.data + w->list[number].offset;
}

#endif
