/* The capacity doubles; a failed call leaves the buffer unchanged. */
#include "common/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

err_t buf_reserve(struct buf *b, size_t more)
{
    if (more <= b->cap - b->len)
        return OK;
    if (more > SIZE_MAX / 2 - b->len)
        return ERR_LIMIT;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < more)
        cap *= 2;
    uint8_t *data = realloc(b->data, cap);
    if (!data)
        return ERR_NOMEM;
    b->data = data;
    b->cap = cap;
    return OK;
}

err_t buf_append(struct buf *b, const void *data, size_t len)
{
    if (!len)
        return OK;
    err_t err = buf_reserve(b, len);
    if (err)
        return err;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return OK;
}

err_t buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    err_t err = n < 0 ? ERR_INVALID : buf_reserve(b, (size_t)n + 1);
    if (!err) {
        vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return err;
}
