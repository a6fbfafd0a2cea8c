/* Bytes are put together one by one: no alignment and no byte order of the machine is assumed. */
#include "common/ckpt/le_bytes.h"

const uint8_t *wire_bytes(struct wire *w, uint64_t len)
{
    if (w->bad || len > wire_left(w)) {
        w->bad = true;
        return NULL;
    }
    const uint8_t *p = w->p;
    w->p += len;
    return p;
}

static uint64_t get(struct wire *w, int bytes)
{
    const uint8_t *p = wire_bytes(w, (uint64_t)bytes);
    uint64_t v = 0;
    for (int i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint16_t wire_u16(struct wire *w)
{
    return (uint16_t)get(w, 2);
}

uint32_t wire_u32(struct wire *w)
{
    return (uint32_t)get(w, 4);
}

uint64_t wire_u64(struct wire *w)
{
    return get(w, 8);
}

static err_t put(struct buf *b, uint64_t v, int bytes)
{
    uint8_t raw[8];
    for (int i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, raw, (size_t)bytes);
}

err_t wire_put_u16(struct buf *b, uint16_t v)
{
    return put(b, v, 2);
}

err_t wire_put_u32(struct buf *b, uint32_t v)
{
    return put(b, v, 4);
}

err_t wire_put_u64(struct buf *b, uint64_t v)
{
    return put(b, v, 8);
}
