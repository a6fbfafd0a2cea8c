/* A growing byte buffer in the caller's memory. One owner, one thread. */
#ifndef DTD_COMMON_BASE_BUF_H
#define DTD_COMMON_BASE_BUF_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len, cap;
};

void buf_fini(struct buf *b); /* may be called on a zeroed struct; leaves it zeroed */
NODISCARD err_t buf_reserve(struct buf *b, size_t more);
NODISCARD err_t buf_append(struct buf *b, const void *data, size_t len);
NODISCARD err_t buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
