/* Little-endian fields into a buffer and out of a bounded one: what manifest, part record and zip share. A reader that
 * was asked for more than there is turns `bad` and gives zeros from then on, so that callers check once. Pure. */
#ifndef DTD_COMMON_CKPT_LE_BYTES_H
#define DTD_COMMON_CKPT_LE_BYTES_H

#include "common/base/buf.h"

#include <stdbool.h>

struct wire {
    const uint8_t *p, *end;
    bool bad;
};

static inline struct wire wire_of(const void *data, size_t len)
{
    return (struct wire){data, (const uint8_t *)data + len, false};
}
static inline size_t wire_left(const struct wire *w)
{
    return (size_t)(w->end - w->p);
}
/* NULL when fewer are left. */
const uint8_t *wire_bytes(struct wire *w, uint64_t len);
uint16_t wire_u16(struct wire *w);
uint32_t wire_u32(struct wire *w);
uint64_t wire_u64(struct wire *w);

NODISCARD err_t wire_put_u16(struct buf *b, uint16_t v);
NODISCARD err_t wire_put_u32(struct buf *b, uint32_t v);
NODISCARD err_t wire_put_u64(struct buf *b, uint64_t v);

#endif
