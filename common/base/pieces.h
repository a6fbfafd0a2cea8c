/* Bytes in pieces: small ones are copied, large ones are borrowed from memory that does not change. So bytes that
 * consist mostly of long texts can be written and summed without a copy of the texts. One owner, one thread. */
#ifndef DTD_COMMON_BASE_PIECES_H
#define DTD_COMMON_BASE_PIECES_H

#include "common/base/err.h"

#include <stddef.h>

struct piece {
    const void *data;
    size_t len;
};

struct pieces_block;
struct pieces {
    struct piece *at; /* in order; none is empty */
    size_t n, cap;
    size_t bytes;               /* sum of the lengths */
    struct pieces_block *block; /* memory of the copies, the newest first */
};

void pieces_fini(struct pieces *p); /* may be called on a zeroed struct; leaves it zeroed */
/* Appends a copy. */
NODISCARD err_t pieces_copy(struct pieces *p, const void *data, size_t len);
/* Appends bytes that stay where they are until the pieces are freed. */
NODISCARD err_t pieces_borrow(struct pieces *p, const void *data, size_t len);

#endif
