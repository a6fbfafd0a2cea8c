/* Bytes of a c10d store: a view of some, the cap on all that one store may hold, and a growing buffer that is counted
 * against that cap. One budget per store; everything of the store (values, waiters, half requests, answers that nobody
 * takes) is taken from it, so that one number bounds what its clients can make the process hold. One thread. */
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
};

/* What the allocator adds to a piece of memory, about; part of what is counted. */
#define BUDGET_PIECE_BYTES 16

NODISCARD err_t budget_take(struct budget *b, size_t bytes); /* ERR_LIMIT: over the cap, nothing taken */
void budget_give(struct budget *b, size_t bytes);
/* malloc and free of counted memory. ERR_LIMIT, ERR_NOMEM. */
NODISCARD err_t budget_alloc(struct budget *b, size_t bytes, void **ret);
/* realloc: `was` is what `*memory` was allocated with, 0 with NULL. A failure changes nothing. */
NODISCARD err_t budget_realloc(struct budget *b, void **memory, size_t was, size_t bytes);
void budget_free(struct budget *b, void *memory, size_t bytes);

/* Zeroed but for `budget` is empty. */
struct bytebuf {
    struct budget *budget;
    uint8_t *data;
    size_t len, cap;
};

void bytebuf_fini(struct bytebuf *p); /* leaves it empty, and usable */
/* Room for `more` bytes after the last one; at least doubles. */
NODISCARD err_t bytebuf_reserve(struct bytebuf *p, size_t more);
NODISCARD err_t bytebuf_add(struct bytebuf *p, const void *data, size_t len);
/* Empty again; its memory is kept if it is no more than `keep` bytes. */
void bytebuf_clear(struct bytebuf *p, size_t keep);

#endif
