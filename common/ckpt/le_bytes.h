/* Little-endian fields: appended to a buffer, or read from a bounded one. Manifest, part index, markers and zip use
 * them. A reader that is asked for more bytes than are left becomes `bad` and returns zeros from then on, so callers
 * need to check only once. Pure. */
#ifndef DTD_COMMON_CKPT_LE_BYTES_H
#define DTD_COMMON_CKPT_LE_BYTES_H

#include "common/base/buf.h"

#include <stdbool.h>

struct le_reader {
    const uint8_t *p, *end;
    bool bad;
};

static inline struct le_reader le_reader_of(const void *data, size_t len)
{
    return (struct le_reader){data, (const uint8_t *)data + len, false};
}
static inline size_t le_left(const struct le_reader *w)
{
    return (size_t)(w->end - w->p);
}
/* NULL if fewer are left. */
const uint8_t *le_bytes(struct le_reader *w, uint64_t len);
uint16_t le_u16(struct le_reader *w);
uint32_t le_u32(struct le_reader *w);
uint64_t le_u64(struct le_reader *w);

NODISCARD err_t le_put_u16(struct buf *b, uint16_t v);
NODISCARD err_t le_put_u32(struct buf *b, uint32_t v);
NODISCARD err_t le_put_u64(struct buf *b, uint64_t v);

#endif
