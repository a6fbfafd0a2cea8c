/* Linear probing. Each entry stores its hash, so growing does not read the text, and a probe compares bytes only if all
 * 64 bits of the hash agree. */
#include "common/data/vocab.h"

#include <stdlib.h>
#include <string.h>

static uint64_t load(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static uint64_t hash_of(const uint8_t *p, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;
    for (; len >= 8; p += 8, len -= 8) {
        h = (h ^ load(p, 8)) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    h = (h ^ load(p, len)) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* The slot that contains the word, or the free slot for it. */
static int32_t slot_of(const struct vocab *w, uint64_t hash, const void *word, size_t len)
{
    int32_t mask = w->n_slots - 1, slot = (int32_t)(hash & (uint64_t)mask);
    for (; w->slots[slot]; slot = (slot + 1) & mask) {
        const struct vocab_entry *there = &w->list[w->slots[slot] - 1];
        if (there->hash == hash && there->len == len && memcmp(w->text.data + there->offset, word, len) == 0)
            break;
    }
    return slot;
}

static err_t grow_slots(struct vocab *w)
{
    int32_t n = w->n_slots ? 2 * w->n_slots : 1024;
    int32_t *slots = calloc((size_t)n, sizeof(*slots));
    if (!slots)
        return ERR_NOMEM;
    for (int32_t i = 0; i < w->n; i++) {
        int32_t slot = (int32_t)(w->list[i].hash & (uint64_t)(n - 1));
        while (slots[slot])
            slot = (slot + 1) & (n - 1);
        slots[slot] = i + 1;
    }
    free(w->slots);
    w->slots = slots;
    w->n_slots = n;
    return OK;
}

static err_t grow_list(struct vocab *w)
{
    int32_t cap = w->cap ? 2 * w->cap : 1024;
    struct vocab_entry *list = realloc(w->list, (size_t)cap * sizeof(*list));
    if (!list)
        return ERR_NOMEM;
    w->list = list;
    w->cap = cap;
    return OK;
}

void vocab_fini(struct vocab *w)
{
    buf_fini(&w->text);
    free(w->list);
    free(w->slots);
    *w = (struct vocab){0};
}

err_t vocab_add(struct vocab *w, const void *word, size_t len, int32_t *ret)
{
    uint64_t hash = hash_of(word, len);
    err_t err = (int64_t)w->n * 3 >= (int64_t)w->n_slots * 2 ? grow_slots(w) : OK;
    if (err)
        return err;
    int32_t slot = slot_of(w, hash, word, len);
    if (w->slots[slot]) {
        *ret = w->slots[slot] - 1;
        return OK;
    }
    if (w->n >= VOCAB_MAX_WORDS || w->text.len + len > VOCAB_MAX_BYTES)
        return ERR_LIMIT;
    if (w->n == w->cap)
        err = grow_list(w);
    if (!err)
        err = buf_append(&w->text, word, len);
    if (err)
        return err;
    w->list[w->n] = (struct vocab_entry){.hash = hash, .offset = (uint32_t)(w->text.len - len), .len = (uint32_t)len};
    *ret = w->n++;
    w->slots[slot] = w->n;
    return OK;
}

int32_t vocab_find(const struct vocab *w, const void *word, size_t len)
{
    return w->n ? w->slots[slot_of(w, hash_of(word, len), word, len)] - 1 : -1;
}
