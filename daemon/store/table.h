/* What a c10d store holds: keys with values, queues, and who waits for them. Pure: no sockets, no clock. One thread.
 *
 * Keys and queues of one name are apart, but a waiter is content with either. A waiter is woken when the last of what
 * it misses is really there, exactly once, and never after table_wait_cancel; a queue's item wakes one waiter, the one
 * that has waited longest. Memory comes from the store's budget: what fails with ERR_LIMIT or ERR_NOMEM has changed
 * nothing. */
#ifndef DTD_DAEMON_STORE_TABLE_H
#define DTD_DAEMON_STORE_TABLE_H

#include "daemon/store/bytes.h"

#include <sys/queue.h>

struct store_table;
struct table_entry;
struct table_waiter;

/* One key that a waiter misses, in the key's list and in the waiter's. */
struct table_wait {
    TAILQ_ENTRY(table_wait) of_entry;
    LIST_ENTRY(table_wait) of_waiter;
    struct table_entry *entry;
    struct table_waiter *waiter;
    bool parked; /* at a barrier, until the number under the key is `world` */
    int64_t world;
};

/* In the caller's memory, zeroed but for `woken`; one for each connection. Waiting for one key takes no other memory.
 */
struct table_waiter {
    void (*woken)(struct table_waiter *w); /* may not call the table */
    bool waiting, collecting;
    uint32_t missing;
    LIST_HEAD(, table_wait) waits;
    struct table_wait first;
    struct table_entry *owes; /* woken by an item of this queue, which it has not taken yet */
    LIST_ENTRY(table_waiter) of_owed;
};

/* An item that has left its queue: the caller's, until table_item_free. */
struct table_item {
    STAILQ_ENTRY(table_item) link;
    size_t len;
    uint8_t bytes[];
};

/* `seed` is secret and random: whoever knows it can make keys collide. */
NODISCARD err_t table_new(struct budget *budget, const uint64_t seed[2], struct store_table **ret);
/* Every waiter has been cancelled. */
void table_free(struct store_table *t);

size_t table_keys(const struct store_table *t);      /* with a value */
size_t table_key_bytes(const struct store_table *t); /* the lengths of their names together */
void table_each(const struct store_table *t, void (*cb)(void *arg, struct byte_view key), void *arg); /* in no order */

/* Views of values are valid until the table changes. */
NODISCARD err_t table_set(struct store_table *t, struct byte_view key, struct byte_view value);
NODISCARD err_t table_append(struct store_table *t, struct byte_view key, struct byte_view tail);
/* Missing and nothing expected, or equal to what is expected: becomes `desired`. `ret` is what is there afterwards; for
 * a missing key that does not become anything, what was expected. */
NODISCARD err_t table_compare_set(struct store_table *t, struct byte_view key, struct byte_view expected,
                                  struct byte_view desired, struct byte_view *ret);
/* The value is decimal text, nothing counts as 0, the sum wraps. ERR_INVALID: it is no number of 64 bits. */
NODISCARD err_t table_add(struct store_table *t, struct byte_view key, int64_t delta, int64_t *ret);
bool table_get(const struct store_table *t, struct byte_view key, struct byte_view *ret);
bool table_delete(struct store_table *t, struct byte_view key);
bool table_has(const struct store_table *t, struct byte_view key); /* a value, or an item in its queue */

NODISCARD err_t table_queue_push(struct store_table *t, struct byte_view key, struct byte_view item);
/* Returns the length before; an item is handed out when it is not 0. `w`: who asks. */
size_t table_queue_pop(struct store_table *t, struct byte_view key, struct table_waiter *w, struct table_item **ret);
size_t table_queue_len(const struct store_table *t, struct byte_view key);
void table_item_free(struct store_table *t, struct table_item *item);

/* A wait: begin, a key at a time, end. What is there when it is named is not waited for. End says whether nothing is
 * missing; else `woken` will be called. ERR_PROTO: it waits already. After an error the waiter does not wait. */
NODISCARD err_t table_wait_begin(struct store_table *t, struct table_waiter *w);
NODISCARD err_t table_wait_key(struct store_table *t, struct table_waiter *w, struct byte_view key);
bool table_wait_end(struct store_table *t, struct table_waiter *w);
/* One more has come to the barrier: adds 1 to the key. `*ret_ready`: `world` have come, everybody in it is woken; else
 * `woken` will be called when the number under the key reaches `world`. ERR_INVALID as table_add, ERR_PROTO as above.
 */
NODISCARD err_t table_barrier(struct store_table *t, struct byte_view key, int64_t world, struct table_waiter *w,
                              bool *ret_ready);
/* Whatever it waits for, or nothing. Takes as long as it misses keys. An item that it was woken for and has not taken
 * wakes the next one. */
void table_wait_cancel(struct store_table *t, struct table_waiter *w);

#endif
