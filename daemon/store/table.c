/* A hash table with linear hashing: buckets are split one at a time, in order, as entries are added, so that no single
 * insertion has to rebuild the table. Buckets lie in segments of a fixed size; only the short array of segments is ever
 * moved. If memory for a split is lacking, chains become longer; there is no other effect.
 *
 * The memory of a small value is reused when the value is overwritten, so that counters and flags allocate once. */
#include "daemon/store/table_internal.h"

#include "daemon/store/siphash.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT 256        /* buckets; a power of two */
#define VALUE_MIN_BYTES 24 /* fits every 64-bit number in decimal */

static bool equal(struct byte_view a, struct byte_view b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* ---- buckets ---- */

static struct table_entry **bucket(const struct store_table *t, size_t i)
{
    return &t->segments[i / SEGMENT][i % SEGMENT];
}

/* The smallest mask that covers all buckets. */
static size_t mask_of(size_t n_buckets)
{
    size_t mask = SEGMENT - 1;
    while (mask < n_buckets - 1)
        mask = mask * 2 + 1;
    return mask;
}

static size_t place_of(const struct store_table *t, uint64_t hash)
{
    size_t mask = mask_of(t->n_buckets), i = hash & mask;
    return i < t->n_buckets ? i : i & (mask >> 1);
}

static err_t add_segment(struct store_table *t)
{
    size_t i = t->n_buckets / SEGMENT;
    void *p = t->segments;
    if (i == t->n_segments) {
        size_t n = i ? i * 2 : 4;
        err_t err = budget_realloc(t->budget, &p, i * sizeof(void *), n * sizeof(void *));
        if (err)
            return err;
        t->segments = p;
        t->n_segments = n;
    }
    err_t err = budget_alloc(t->budget, SEGMENT * sizeof(void *), &p);
    if (err)
        return err;
    memset(p, 0, SEGMENT * sizeof(void *));
    t->segments[i] = p;
    return OK;
}

/* Adds one bucket and moves to it the entries that belong there from the bucket that held them. */
static void split(struct store_table *t)
{
    size_t to = t->n_buckets, mask = mask_of(to + 1);
    if (to % SEGMENT == 0 && add_segment(t))
        return;
    t->n_buckets++;
    struct table_entry **target = bucket(t, to);
    for (struct table_entry **at = bucket(t, to & (mask >> 1)), *e; (e = *at);) {
        if ((e->hash & mask) != to) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = *target;
        *target = e;
    }
}

/* ---- entries ---- */

static struct table_entry *entry_find(const struct store_table *t, struct byte_view key, uint64_t hash)
{
    for (struct table_entry *e = *bucket(t, place_of(t, hash)); e; e = e->next)
        if (e->hash == hash && equal((struct byte_view){e->key, e->key_len}, key))
            return e;
    return NULL;
}

static uint64_t hash_of(const struct store_table *t, struct byte_view key)
{
    return siphash(t->seed, key.data, key.len);
}

struct table_entry *table_find(const struct store_table *t, struct byte_view key)
{
    return entry_find(t, key, hash_of(t, key));
}

static err_t entry_new(struct store_table *t, struct byte_view key, uint64_t hash, struct table_entry **ret)
{
    void *p;
    err_t err = budget_alloc(t->budget, sizeof(struct table_entry) + key.len, &p);
    if (err)
        return err;
    struct table_entry *e = p;
    if (t->n_entries >= t->n_buckets)
        split(t);
    struct table_entry **at = bucket(t, place_of(t, hash));
    *e = (struct table_entry){.next = *at, .hash = hash, .key_len = key.len};
    if (key.len)
        memcpy(e->key, key.data, key.len);
    STAILQ_INIT(&e->items);
    TAILQ_INIT(&e->waits);
    TAILQ_INIT(&e->parked);
    LIST_INIT(&e->owed);
    *at = e;
    t->n_entries++;
    *ret = e;
    return OK;
}

err_t table_find_or_make(struct store_table *t, struct byte_view key, struct table_entry **ret)
{
    uint64_t hash = hash_of(t, key);
    struct table_entry *e = entry_find(t, key, hash);
    if (!e)
        return entry_new(t, key, hash, ret);
    *ret = e;
    return OK;
}

static void free_entry(struct store_table *t, struct table_entry *e)
{
    budget_free(t->budget, e->value, e->cap);
    budget_free(t->budget, e, sizeof(*e) + e->key_len);
}

void table_free_if_empty(struct store_table *t, struct table_entry *e)
{
    if (e->present || e->n_items || !TAILQ_EMPTY(&e->waits) || !TAILQ_EMPTY(&e->parked) || !LIST_EMPTY(&e->owed))
        return;
    struct table_entry **at = bucket(t, place_of(t, e->hash));
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    t->n_entries--;
    free_entry(t, e);
}

/* ---- the table ---- */

err_t table_new(struct budget *budget, const uint64_t seed[2], struct store_table **ret)
{
    void *p;
    err_t err = budget_alloc(budget, sizeof(struct store_table), &p);
    if (err)
        return err;
    struct store_table *t = p;
    *t = (struct store_table){.budget = budget, .seed = {seed[0], seed[1]}};
    err = add_segment(t);
    if (err) {
        budget_free(budget, t->segments, t->n_segments * sizeof(void *));
        budget_free(budget, t, sizeof(*t));
        return err;
    }
    t->n_buckets = SEGMENT;
    *ret = t;
    return OK;
}

static void free_items(struct store_table *t, struct table_entry *e)
{
    struct table_item *item;
    while ((item = STAILQ_FIRST(&e->items))) {
        STAILQ_REMOVE_HEAD(&e->items, link);
        table_item_free(t, item);
    }
}

void table_free(struct store_table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_buckets; i++)
        for (struct table_entry *e = *bucket(t, i), *next; e; e = next) {
            next = e->next;
            assert(TAILQ_EMPTY(&e->waits) && TAILQ_EMPTY(&e->parked) && LIST_EMPTY(&e->owed));
            free_items(t, e);
            free_entry(t, e);
        }
    for (size_t i = 0; i * SEGMENT < t->n_buckets; i++)
        budget_free(t->budget, t->segments[i], SEGMENT * sizeof(void *));
    budget_free(t->budget, t->segments, t->n_segments * sizeof(void *));
    budget_free(t->budget, t, sizeof(*t));
}

size_t table_keys(const struct store_table *t)
{
    return t->n_keys;
}

size_t table_key_bytes(const struct store_table *t)
{
    return t->key_bytes;
}

void table_each(const struct store_table *t, void (*cb)(void *arg, struct byte_view key), void *arg)
{
    for (size_t i = 0; i < t->n_buckets; i++)
        for (const struct table_entry *e = *bucket(t, i); e; e = e->next)
            if (e->present)
                cb(arg, (struct byte_view){e->key, e->key_len});
}

/* ---- values ---- */

static err_t make_room(struct store_table *t, struct table_entry *e, size_t cap)
{
    void *p = e->value;
    err_t err = budget_realloc(t->budget, &p, e->cap, cap);
    if (err)
        return err;
    e->value = p;
    e->cap = cap;
    return OK;
}

static void become_present(struct store_table *t, struct table_entry *e)
{
    if (e->present)
        return;
    e->present = true;
    t->n_keys++;
    t->key_bytes += e->key_len;
}

static err_t value_set(struct store_table *t, struct table_entry *e, struct byte_view value)
{
    size_t want = value.len > VALUE_MIN_BYTES ? value.len : VALUE_MIN_BYTES;
    if (value.len > e->cap || e->cap > 4 * want) {
        err_t err = make_room(t, e, want);
        if (err)
            return err;
    }
    if (value.len)
        memcpy(e->value, value.data, value.len);
    e->len = value.len;
    become_present(t, e);
    return OK;
}

static void wake_waiters(struct store_table *t, struct table_entry *e)
{
    table_wake_present(t, e);
    table_wake_reached(t, e);
}

err_t table_set(struct store_table *t, struct byte_view key, struct byte_view value)
{
    struct table_entry *e;
    err_t err = table_find_or_make(t, key, &e);
    if (err)
        return err;
    err = value_set(t, e, value);
    if (err)
        table_free_if_empty(t, e);
    else
        wake_waiters(t, e);
    return err;
}

static err_t value_append(struct store_table *t, struct table_entry *e, struct byte_view tail)
{
    if (!e->present)
        return value_set(t, e, tail);
    if (tail.len > e->cap - e->len) {
        size_t need = e->len + tail.len, twice = 2 * e->cap;
        err_t err = make_room(t, e, need > twice ? need : twice);
        if (err)
            return err;
    }
    if (tail.len)
        memcpy(e->value + e->len, tail.data, tail.len);
    e->len += tail.len;
    return OK;
}

err_t table_append(struct store_table *t, struct byte_view key, struct byte_view tail)
{
    struct table_entry *e;
    err_t err = table_find_or_make(t, key, &e);
    if (err)
        return err;
    err = value_append(t, e, tail);
    if (err)
        table_free_if_empty(t, e);
    else
        wake_waiters(t, e);
    return err;
}

err_t table_compare_set(struct store_table *t, struct byte_view key, struct byte_view expected,
                        struct byte_view desired, struct byte_view *ret)
{
    struct byte_view now = {NULL, 0};
    bool there = table_get(t, key, &now);
    if (equal(now, expected)) {
        err_t err = table_set(t, key, desired);
        if (err)
            return err;
        now = desired;
    }
    *ret = there || !expected.len ? now : expected;
    return OK;
}

bool table_get(const struct store_table *t, struct byte_view key, struct byte_view *ret)
{
    const struct table_entry *e = table_find(t, key);
    if (!e || !e->present)
        return false;
    *ret = (struct byte_view){e->value, e->len};
    return true;
}

bool table_has(const struct store_table *t, struct byte_view key)
{
    const struct table_entry *e = table_find(t, key);
    return e && (e->present || e->n_items);
}

bool table_delete(struct store_table *t, struct byte_view key)
{
    struct table_entry *e = table_find(t, key);
    if (!e || !e->present)
        return false;
    e->present = false;
    t->n_keys--;
    t->key_bytes -= e->key_len;
    budget_free(t->budget, e->value, e->cap);
    e->value = NULL;
    e->len = e->cap = 0;
    table_free_if_empty(t, e);
    return true;
}

/* ---- numbers ---- */

static bool blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Parses like strtoll: blanks, a sign, digits; anything may follow. */
static bool number_of(struct byte_view text, int64_t *ret)
{
    if (!text.len) /* text.data may be NULL */
        return false;
    const uint8_t *p = text.data, *end = p + text.len;
    while (p < end && blank(*p))
        p++;
    bool minus = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    if (p == end || *p < '0' || *p > '9')
        return false;
    uint64_t n = 0, most = (uint64_t)INT64_MAX + minus;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        unsigned digit = *p - '0';
        if (n > (most - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    *ret = (int64_t)(minus ? 0 - n : n);
    return true;
}

bool table_number(const struct table_entry *e, int64_t *ret)
{
    return number_of((struct byte_view){e->value, e->len}, ret);
}

static struct byte_view text_of(int64_t number, uint8_t room[24])
{
    uint8_t *p = room + 24;
    uint64_t n = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        *--p = '0' + n % 10;
    while (n /= 10);
    if (number < 0)
        *--p = '-';
    return (struct byte_view){p, (size_t)(room + 24 - p)};
}

err_t table_add_to(struct store_table *t, struct table_entry *e, int64_t delta, int64_t *ret)
{
    int64_t was = 0;
    uint8_t room[24];
    if (e->present && !table_number(e, &was))
        return ERR_INVALID;
    int64_t sum = (int64_t)((uint64_t)was + (uint64_t)delta);
    err_t err = value_set(t, e, text_of(sum, room));
    if (!err)
        *ret = sum;
    return err;
}

err_t table_add(struct store_table *t, struct byte_view key, int64_t delta, int64_t *ret)
{
    struct table_entry *e;
    err_t err = table_find_or_make(t, key, &e);
    if (err)
        return err;
    err = table_add_to(t, e, delta, ret);
    if (err)
        table_free_if_empty(t, e);
    else
        wake_waiters(t, e);
    return err;
}
