/* A hash table with chains, and a list of waits. A wait is in the list until its callback is called or it is dropped.
 * No wait in the list is for a key that exists. */
#include "daemon/control/job/rendezvous.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct store_entry {
    struct store_entry *next;
    uint32_t hash;
    size_t key_len, value_len;
    uint8_t bytes[]; /* key, then value */
};

/* FNV-1a. With at most RENDEZVOUS_KEYS_MAX keys, even keys that are chosen to collide cost little. */
static uint32_t hash_of(struct rendezvous_bytes key)
{
    const uint8_t *p = key.data;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < key.len; i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static bool bytes_equal(const void *a, size_t a_len, struct rendezvous_bytes b)
{
    return a_len == b.len && (a_len == 0 || memcmp(a, b.data, a_len) == 0);
}

static struct store_entry *find_entry(const struct rendezvous *s, struct rendezvous_bytes key, uint32_t hash)
{
    for (struct store_entry *e = s->buckets[hash % RENDEZVOUS_BUCKETS]; e; e = e->next)
        if (e->hash == hash && bytes_equal(e->bytes, e->key_len, key))
            return e;
    return NULL;
}

static struct rendezvous_bytes value_of(const struct store_entry *e)
{
    return (struct rendezvous_bytes){e->bytes + e->key_len, e->value_len};
}

static bool legal_key(struct rendezvous_bytes key)
{
    return key.len >= 1 && key.len <= RENDEZVOUS_KEY_MAX;
}

void rendezvous_init(struct rendezvous *s)
{
    *s = (struct rendezvous){.n_keys = 0};
    TAILQ_INIT(&s->waits);
}

static void finish_wait(struct rendezvous *s, struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value)
{
    TAILQ_REMOVE(&s->waits, w, link);
    w->done(w, err, value);
}

void rendezvous_clear(struct rendezvous *s, err_t err)
{
    struct rendezvous_wait *w;
    while ((w = TAILQ_FIRST(&s->waits)))
        finish_wait(s, w, err, (struct rendezvous_bytes){0});
    for (int b = 0; b < RENDEZVOUS_BUCKETS; b++)
        while (s->buckets[b]) {
            struct store_entry *e = s->buckets[b];
            s->buckets[b] = e->next;
            free(e);
        }
    s->n_keys = 0;
}

static void wake_waits(struct rendezvous *s, const struct store_entry *e)
{
    const struct rendezvous_bytes key = {e->bytes, e->key_len};
    for (struct rendezvous_wait *w = TAILQ_FIRST(&s->waits), *next; w; w = next) {
        next = TAILQ_NEXT(w, link);
        if (w->hash == e->hash && bytes_equal(w->key, w->key_len, key))
            finish_wait(s, w, OK, value_of(e));
    }
}

err_t rendezvous_put(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes value)
{
    uint32_t hash = hash_of(key);
    if (!legal_key(key) || value.len > RENDEZVOUS_VALUE_MAX)
        return ERR_INVALID;
    struct store_entry *e = find_entry(s, key, hash);
    if (e)
        return bytes_equal(e->bytes + e->key_len, e->value_len, value) ? OK : ERR_EXISTS;
    if (s->n_keys >= RENDEZVOUS_KEYS_MAX)
        return ERR_LIMIT;
    e = malloc(sizeof(*e) + key.len + value.len);
    if (!e)
        return ERR_NOMEM;
    *e = (struct store_entry){s->buckets[hash % RENDEZVOUS_BUCKETS], hash, key.len, value.len};
    memcpy(e->bytes, key.data, key.len);
    if (value.len)
        memcpy(e->bytes + key.len, value.data, value.len);
    s->buckets[hash % RENDEZVOUS_BUCKETS] = e;
    s->n_keys++;
    wake_waits(s, e);
    return OK;
}

err_t rendezvous_get(const struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes *ret)
{
    const struct store_entry *e = legal_key(key) ? find_entry(s, key, hash_of(key)) : NULL;
    if (!e)
        return ERR_NOTFOUND;
    *ret = value_of(e);
    return OK;
}

static int waits_of(const struct rendezvous *s, int owner)
{
    int n = 0;
    const struct rendezvous_wait *w;
    TAILQ_FOREACH(w, &s->waits, link)
    n += w->owner == owner;
    return n;
}

err_t rendezvous_wait(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_wait *w)
{
    if (!legal_key(key))
        return ERR_INVALID;
    w->hash = hash_of(key);
    if (find_entry(s, key, w->hash))
        return ERR_EXISTS;
    if (waits_of(s, w->owner) >= RENDEZVOUS_WAITS_MAX)
        return ERR_LIMIT;
    memcpy(w->key, key.data, key.len);
    w->key_len = key.len;
    TAILQ_INSERT_TAIL(&s->waits, w, link);
    return OK;
}

void rendezvous_wait_drop(struct rendezvous *s, struct rendezvous_wait *w)
{
    TAILQ_REMOVE(&s->waits, w, link);
}

void rendezvous_expire(struct rendezvous *s, int64_t now_ms)
{
    for (struct rendezvous_wait *w = TAILQ_FIRST(&s->waits), *next; w; w = next) {
        next = TAILQ_NEXT(w, link);
        if (w->deadline_ms <= now_ms)
            finish_wait(s, w, ERR_TIMEOUT, (struct rendezvous_bytes){0});
    }
}
