/* Group fields (wire types 3 and 4) are refused: no message that is read here has one. */
#include "common/metrics/pb.h"

#include <string.h>

enum wire { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

#define VARINT_BYTES 10 /* of a 64-bit number, 7 bits a byte */

static err_t varint(struct buf *b, uint64_t value)
{
    uint8_t bytes[VARINT_BYTES];
    size_t n = 0;
    for (; value > 127; value >>= 7)
        bytes[n++] = (uint8_t)(value | 128);
    bytes[n++] = (uint8_t)value;
    return buf_append(b, bytes, n);
}

static err_t key(struct buf *b, uint32_t field, enum wire wire)
{
    return varint(b, (uint64_t)field << 3 | wire);
}

static err_t little_endian(struct buf *b, uint64_t value, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    return buf_append(b, bytes, n);
}

err_t pb_uint(struct buf *b, uint32_t field, uint64_t value)
{
    err_t err = key(b, field, WIRE_VARINT);
    return err ? err : varint(b, value);
}

err_t pb_double(struct buf *b, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    err_t err = key(b, field, WIRE_64);
    return err ? err : little_endian(b, bits, sizeof(bits));
}

err_t pb_float(struct buf *b, uint32_t field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    err_t err = key(b, field, WIRE_32);
    return err ? err : little_endian(b, bits, sizeof(bits));
}

err_t pb_bytes(struct buf *b, uint32_t field, const void *data, size_t len)
{
    err_t err = key(b, field, WIRE_BYTES);
    err = err ? err : varint(b, len);
    return err || !len ? err : buf_append(b, data, len);
}

err_t pb_text(struct buf *b, uint32_t field, const char *text)
{
    return pb_bytes(b, field, text, strlen(text));
}

err_t pb_message(struct buf *b, uint32_t field, const struct buf *message)
{
    return pb_bytes(b, field, message->data, message->len);
}

/* ---- reading ---- */

static bool take_varint(struct pb_reader *r, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; r->at < r->end && shift < 64; shift += 7) {
        uint8_t byte = *r->at++;
        *ret |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool take_fixed(struct pb_reader *r, size_t n, uint64_t *ret)
{
    *ret = 0;
    if ((size_t)(r->end - r->at) < n)
        return false;
    for (size_t i = 0; i < n; i++)
        *ret |= (uint64_t)*r->at++ << 8 * i;
    return true;
}

static bool take_value(struct pb_reader *r, enum wire wire, struct pb_field *f)
{
    uint64_t n;
    float narrow;
    switch (wire) {
    case WIRE_VARINT:
        return take_varint(r, &f->whole);
    case WIRE_64:
        if (!take_fixed(r, 8, &n))
            return false;
        memcpy(&f->real, &n, sizeof(f->real));
        return true;
    case WIRE_32:
        if (!take_fixed(r, 4, &n))
            return false;
        memcpy(&narrow, &(uint32_t){(uint32_t)n}, sizeof(narrow));
        f->real = (double)narrow;
        return true;
    case WIRE_BYTES:
        if (!take_varint(r, &n) || n > (uint64_t)(r->end - r->at))
            return false;
        f->data = r->at;
        f->len = (size_t)n;
        r->at += n;
        return true;
    }
    return false;
}

bool pb_next(struct pb_reader *r, struct pb_field *ret)
{
    uint64_t k;
    *ret = (struct pb_field){0};
    if (r->broken || r->at == r->end)
        return false;
    r->broken = !take_varint(r, &k) || k >> 3 == 0 || k >> 3 > UINT32_MAX;
    ret->field = r->broken ? 0 : (uint32_t)(k >> 3);
    r->broken = r->broken || !take_value(r, (enum wire)(k & 7), ret);
    return !r->broken;
}
