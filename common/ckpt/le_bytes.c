/* Values are assembled byte by byte, so the code depends on neither alignment nor byte order of the machine. */
#include "common/ckpt/le_bytes.h"

const uint8_t *le_bytes(struct le_reader *w, uint64_t len)
{
    if (w->bad || len > le_left(w)) {
        w->bad = true;
        return NULL;
    }
    const uint8_t *p = w->p;
    w->p += len;
    return p;
}

static uint64_t get(struct le_reader *w, int bytes)
{
    const uint8_t *p = le_bytes(w, (uint64_t)bytes);
    uint64_t v = 0;
    for (int i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint16_t le_u16(struct le_reader *w)
{
    return (uint16_t)get(w, 2);
}

uint32_t le_u32(struct le_reader *w)
{
    return (uint32_t)get(w, 4);
}

uint64_t le_u64(struct le_reader *w)
{
    return get(w, 8);
}

static err_t append_le(struct buf *b, uint64_t v, int bytes)
{
    uint8_t raw[8];
    for (int i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, raw, (size_t)bytes);
}

err_t le_put_u16(struct buf *b, uint16_t v)
{
    return append_le(b, v, 2);
}

err_t le_put_u32(struct buf *b, uint32_t v)
{
    return append_le(b, v, 4);
}

err_t le_put_u64(struct buf *b, uint64_t v)
{
    return append_le(b, v, 8);
}
