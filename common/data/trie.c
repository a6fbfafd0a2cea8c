/* One hash table for the edges of all nodes: a node costs 16 bytes, and a step one access in most cases. */
#include "common/data/trie.h"

#include <stdlib.h>
#include <string.h>

void trie_fini(struct trie *t)
{
    free(t->slots);
    free(t->values);
    memset(t, 0, sizeof(*t));
}

static void edge_put(struct trie *t, uint32_t key, uint32_t child)
{
    uint32_t slot = trie_hash(key) & t->mask;
    while (t->slots[slot].child)
        slot = (slot + 1) & t->mask;
    t->slots[slot] = (struct trie_slot){key, child};
}

/* Doubles the room for nodes. At most half of the slots are used. */
static err_t grow(struct trie *t)
{
    uint32_t cap = t->cap ? 2 * t->cap : 256, before = t->slots ? t->mask + 1 : 0;
    if (cap > TRIE_MAX_NODES)
        return ERR_LIMIT;
    int32_t *values = realloc(t->values, cap * sizeof(*values));
    if (!values)
        return ERR_NOMEM;
    t->values = values;
    struct trie_slot *old = t->slots, *slots = calloc((size_t)cap * 2, sizeof(*slots));
    if (!slots)
        return ERR_NOMEM;
    t->slots = slots;
    t->mask = cap * 2 - 1;
    t->cap = cap;
    for (uint32_t i = 0; i < before; i++)
        if (old[i].child)
            edge_put(t, old[i].key, old[i].child);
    free(old);
    if (!t->n)
        t->values[t->n++] = -1;
    return OK;
}

static err_t node_new(struct trie *t, uint32_t parent, uint8_t byte, uint32_t *ret)
{
    err_t err = t->n == t->cap ? grow(t) : OK;
    if (err)
        return err;
    edge_put(t, parent << 8 | byte, t->n);
    t->values[t->n] = -1;
    *ret = t->n++;
    return OK;
}

err_t trie_add(struct trie *t, const uint8_t *key, size_t len, int32_t value)
{
    uint32_t node = 0;
    err_t err = t->n ? OK : grow(t);
    for (size_t i = 0; !err && i < len; i++) {
        uint32_t child = trie_step(t, node, key[i]);
        if (child)
            node = child;
        else
            err = node_new(t, node, key[i], &node);
    }
    if (!err)
        t->values[node] = value;
    return err;
}
