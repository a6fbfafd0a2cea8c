/* Memory of a c10d store: a view of bytes, the memory limit of one store, and a growing buffer that counts against the
 * limit. Each store has one budget. Everything that a client can make the store hold (values, waiters, incomplete
 * requests, answers that the client does not read) is taken from it, so that one number bounds the memory of the store.
 * One thread. */
#ifndef DTD_DAEMON_STORE_BYTES_H
#define DTD_DAEMON_STORE_BYTES_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_view {
    const uint8_t *data; /* may be NULL when len is 0 */
    size_t len;
};

struct budget {
    size_t used, max;
    struct budget *parent; /* what is taken from this one is taken from that one, too; NULL: none */
};

/* Approximate overhead of the allocator per allocation; counted as part of it. */
#define BUDGET_PIECE_BYTES 16

NODISCARD err_t budget_take(struct budget *b, size_t bytes); /* ERR_LIMIT: over the limit, nothing taken */
void budget_give(struct budget *b, size_t bytes);
/* Returns to the parent all that is taken from it; from now on the budget has none. */
void budget_leave(struct budget *b);
/* malloc and free of counted memory. ERR_LIMIT, ERR_NOMEM. */
NODISCARD err_t budget_alloc(struct budget *b, size_t bytes, void **ret);
/* realloc: `was` is the present size of `*memory`, 0 with NULL. A failure changes nothing. */
NODISCARD err_t budget_realloc(struct budget *b, void **memory, size_t was, size_t bytes);
void budget_free(struct budget *b, void *memory, size_t bytes);

/* Empty when every field except `budget` is zero. */
struct bytebuf {
    struct budget *budget;
    uint8_t *data;
    size_t len, cap;
};

void bytebuf_fini(struct bytebuf *p); /* the buffer is then empty and can be used again */
/* Makes room for `more` bytes after the last one. The capacity at least doubles. */
NODISCARD err_t bytebuf_reserve(struct bytebuf *p, size_t more);
NODISCARD err_t bytebuf_add(struct bytebuf *p, const void *data, size_t len);
/* Empties the buffer. Its memory is kept for reuse if it is at most `keep` bytes. */
void bytebuf_clear(struct bytebuf *p, size_t keep);

#endif
