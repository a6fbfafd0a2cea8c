/* A set of byte strings, each with a number, walked byte by byte. Built by one thread, then read by any number. */
#ifndef DTD_COMMON_DATA_TRIE_H
#define DTD_COMMON_DATA_TRIE_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define TRIE_MAX_NODES (1u << 24) /* a key of the table has 24 bits of node and 8 of byte */

struct trie_slot {
    uint32_t key, child; /* child 0: free */
};
/* A zeroed struct is an empty set. */
struct trie {
    struct trie_slot *slots; /* hash table: (node, byte) -> child */
    uint32_t mask;           /* number of slots - 1 */
    int32_t *values;         /* of each node; -1: no string ends here. Node 0 is the root */
    uint32_t n, cap;
};
void trie_fini(struct trie *t);
/* A string that is there already gets the new number. `value` is not negative. */
NODISCARD err_t trie_add(struct trie *t, const uint8_t *key, size_t len, int32_t value);

static inline uint32_t trie_hash(uint32_t key)
{
    uint32_t h = key * 0x9e3779b1u;
    return h ^ h >> 15;
}

/* The node behind `byte`; 0: no string goes on like this. */
static inline uint32_t trie_step(const struct trie *t, uint32_t node, uint8_t byte)
{
    uint32_t key = node << 8 | byte, slot;
    if (!t->slots)
        return 0;
    for (slot = trie_hash(key) & t->mask; t->slots[slot].child; slot = (slot + 1) & t->mask)
        if (t->slots[slot].key == key)
            return t->slots[slot].child;
    return 0;
}

#endif
