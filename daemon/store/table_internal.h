/* Internals of a table, shared by table.c and table_wait.c. */
#ifndef DTD_DAEMON_STORE_TABLE_INTERNAL_H
#define DTD_DAEMON_STORE_TABLE_INTERNAL_H

#include "daemon/store/table.h"

/* A name with a value, items, waiters, or a waiter that owes a pop. An entry without any of these is freed. */
struct table_entry {
    struct table_entry *next; /* in its bucket */
    uint64_t hash;
    bool present; /* has a value */
    uint8_t *value;
    size_t len, cap;
    size_t n_items;
    STAILQ_HEAD(, table_item) items;
    TAILQ_HEAD(table_waits, table_wait) waits; /* waits for the key to exist: empty while it has a value */
    struct table_waits parked;                 /* waits at a barrier */
    LIST_HEAD(, table_waiter) owed;
    size_t key_len;
    uint8_t key[];
};

struct store_table {
    struct budget *budget;
    uint64_t seed[2];
    struct table_entry ***segments;
    size_t n_segments; /* capacity of `segments` */
    size_t n_buckets;
    size_t n_entries, n_keys, key_bytes;
};

/* table.c */
struct table_entry *table_find(const struct store_table *t, struct byte_view key);
/* A new entry is empty: the caller must fill it or call table_free_if_empty. */
err_t table_find_or_make(struct store_table *t, struct byte_view key, struct table_entry **ret);
void table_free_if_empty(struct store_table *t, struct table_entry *e);
err_t table_add_to(struct store_table *t, struct table_entry *e, int64_t delta, int64_t *ret);
bool table_number(const struct table_entry *e, int64_t *ret); /* false: the value is not a 64-bit number */

/* table_wait.c */
void table_wake_present(struct store_table *t, struct table_entry *e);
void table_wake_reached(struct store_table *t, struct table_entry *e);

#endif
