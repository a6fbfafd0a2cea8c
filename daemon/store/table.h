/* The data of a c10d store: keys with values, queues, and the clients that wait for them. Pure: no sockets, no clock.
 * One thread.
 *
 * A key and a queue of the same name are separate, but either one ends a wait for that name. A waiter is woken exactly
 * once, when the last of its missing keys exists, and never after table_wait_cancel. An item pushed to a queue wakes
 * one waiter, the one that has waited longest. Memory comes from the store's budget: a call that fails with ERR_LIMIT
 * or ERR_NOMEM has changed nothing. */
#ifndef DTD_DAEMON_STORE_TABLE_H
#define DTD_DAEMON_STORE_TABLE_H

#include "daemon/store/bytes.h"

#include <sys/queue.h>

struct store_table;
struct table_entry;
struct table_waiter;

/* One missing key of one waiter, linked into the key's list and the waiter's list. */
struct table_wait {
    TAILQ_ENTRY(table_wait) of_entry;
    LIST_ENTRY(table_wait) of_waiter;
    struct table_entry *entry;
    struct table_waiter *waiter;
    bool parked; /* at a barrier, until the number under the key is `world` */
    int64_t world;
};

/* One per connection, in the caller's memory; zero except `woken`. A wait for one key needs no other memory. */
struct table_waiter {
    void (*woken)(struct table_waiter *w); /* may not call the table */
    bool waiting, collecting;
    uint32_t missing;
    LIST_HEAD(, table_wait) waits;
    struct table_wait first;
    struct table_entry *owes; /* the queue whose item woke this waiter, until the waiter has popped it */
    LIST_ENTRY(table_waiter) of_owed;
};

/* An item popped from its queue. The caller owns it and frees it by table_item_free. */
struct table_item {
    STAILQ_ENTRY(table_item) link;
    size_t len;
    uint8_t bytes[];
};

/* `seed` is random and secret: a client that knows it can make keys collide. */
NODISCARD err_t table_new(struct budget *budget, const uint64_t seed[2], struct store_table **ret);
/* Every waiter must have been cancelled before. */
void table_free(struct store_table *t);

size_t table_keys(const struct store_table *t);      /* with a value */
size_t table_key_bytes(const struct store_table *t); /* sum of the lengths of their names */
void table_each(const struct store_table *t, void (*cb)(void *arg, struct byte_view key), void *arg); /* in no order */

/* Views of values are valid until the table changes. */
NODISCARD err_t table_set(struct store_table *t, struct byte_view key, struct byte_view value);
NODISCARD err_t table_append(struct store_table *t, struct byte_view key, struct byte_view tail);
/* Sets the key to `desired` if its value equals `expected`, or if the key is missing and `expected` is empty. `ret` is
 * the value afterwards; if the key is still missing, `ret` is `expected`. */
NODISCARD err_t table_compare_set(struct store_table *t, struct byte_view key, struct byte_view expected,
                                  struct byte_view desired, struct byte_view *ret);
/* The value is decimal text; a missing key counts as 0; the sum wraps. ERR_INVALID: not a 64-bit number. */
NODISCARD err_t table_add(struct store_table *t, struct byte_view key, int64_t delta, int64_t *ret);
bool table_get(const struct store_table *t, struct byte_view key, struct byte_view *ret);
bool table_delete(struct store_table *t, struct byte_view key);
bool table_has(const struct store_table *t, struct byte_view key); /* the key has a value, or its queue an item */

NODISCARD err_t table_queue_push(struct store_table *t, struct byte_view key, struct byte_view item);
/* Returns the length of the queue before the call; if it is not 0, *ret is the popped item. `w`: of the client. */
size_t table_queue_pop(struct store_table *t, struct byte_view key, struct table_waiter *w, struct table_item **ret);
size_t table_queue_len(const struct store_table *t, struct byte_view key);
void table_item_free(struct store_table *t, struct table_item *item);

/* A wait consists of one begin, one call per key, and one end. A key that exists when it is named is not waited for.
 * table_wait_end returns true if no key is missing; otherwise `woken` will be called. ERR_PROTO: the waiter already
 * waits. After an error the waiter does not wait. */
NODISCARD err_t table_wait_begin(struct store_table *t, struct table_waiter *w);
NODISCARD err_t table_wait_key(struct store_table *t, struct table_waiter *w, struct byte_view key);
bool table_wait_end(struct store_table *t, struct table_waiter *w);
/* Enters a barrier: adds 1 to the key. *ret_ready is true if `world` clients have entered; all others in the barrier
 * have then been woken. Otherwise `woken` will be called when the number under the key reaches `world`. ERR_INVALID as
 * in table_add, ERR_PROTO as above. */
NODISCARD err_t table_barrier(struct store_table *t, struct byte_view key, int64_t world, struct table_waiter *w,
                              bool *ret_ready);
/* Ends any wait of `w`; none is not an error. The time is proportional to the number of missing keys. If `w` was woken
 * by a queue item and has not popped it, the next waiter is woken. */
void table_wait_cancel(struct store_table *t, struct table_waiter *w);

#endif
