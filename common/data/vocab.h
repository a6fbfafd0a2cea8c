/* A set of words, each with a number and a count. It is used to count the words of a vocabulary and to look up a word's
 * id in a tokenizer. Numbers are assigned in the order in which words are added. Words are arbitrary bytes. Threads may
 * call vocab_find concurrently, but not vocab_add. */
#ifndef DTD_COMMON_DATA_VOCAB_H
#define DTD_COMMON_DATA_VOCAB_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdint.h>

#define VOCAB_MAX_WORDS (1 << 24)  /* distinct words; the limit of model.vocab */
#define VOCAB_MAX_BYTES (1u << 30) /* of all words together: offsets have 32 bits */
#define VOCAB_WORD_MAX_BYTES 1024  /* longer words count as unknown */

struct vocab_entry {
    uint64_t hash;
    uint32_t offset, len; /* in vocab.text */
    int64_t count;
};

struct vocab {
    struct buf text;
    struct vocab_entry *list;
    int32_t *slots; /* hash table: number + 1, 0: free; a power of two of slots, at most 2/3 full */
    int32_t n, n_slots, cap;
};

/* A zeroed struct is an empty set. */
void vocab_fini(struct vocab *w);
/* Returns the word's number; a new word gets count 0. ERR_LIMIT beyond the bounds above. */
NODISCARD err_t vocab_add(struct vocab *w, const void *word, size_t len, int32_t *ret);
/* Returns the word's number; -1: not found. */
int32_t vocab_find(const struct vocab *w, const void *word, size_t len);
static inline const uint8_t *vocab_text(const struct vocab *w, int32_t number)
{
    return w->text.data + w->list[number].offset;
}

#endif
