/* A compact layout: no data descriptors, and ZIP64 records only for values above 32 bits. Every payload starts at a
 * multiple of 64 bytes in the archive; a padding field in its local header ensures that, as in torch's archives. */
#include "common/ckpt/zip.h"

#include "common/ckpt/le_bytes.h"
#include "common/ckpt/zip_format.h"

#include <string.h>

/* Output buffer that keeps its first error. */
struct zip_out {
    struct buf *b;
    err_t err;
};

static void put16(struct zip_out *o, uint32_t v)
{
    if (!o->err)
        o->err = le_put_u16(o->b, (uint16_t)v);
}

static void put32(struct zip_out *o, uint64_t v)
{
    if (!o->err)
        o->err = le_put_u32(o->b, v >= ZIP_SATURATED ? ZIP_SATURATED : (uint32_t)v);
}

static void put64(struct zip_out *o, uint64_t v)
{
    if (!o->err)
        o->err = le_put_u64(o->b, v);
}

static void put_name(struct zip_out *o, const char *name)
{
    if (!o->err)
        o->err = buf_append(o->b, ZIP_ROOT, strlen(ZIP_ROOT));
    if (!o->err)
        o->err = buf_append(o->b, name, strlen(name));
}

static bool is_big(const struct zip_record *r)
{
    return r->size >= ZIP_SATURATED;
}

/* Compressed and uncompressed size, which are equal because records are stored uncompressed. */
static void put_extra64(struct zip_out *o, const struct zip_record *r)
{
    put16(o, ZIP_EXTRA_64);
    put16(o, 16);
    put64(o, r->size);
    put64(o, r->size);
}

static void put_padding(struct zip_out *o, size_t pad)
{
    static const char z[ZIP_PAYLOAD_ALIGN] = "ZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZZ";
    put16(o, ZIP_EXTRA_PAD);
    put16(o, (uint32_t)pad);
    if (!o->err)
        o->err = buf_append(o->b, z, pad);
}

static void put_common(struct zip_out *o, const struct zip_record *r)
{
    put16(o, is_big(r) ? 45 : 0); /* version needed */
    put16(o, ZIP_FLAG_UTF8);
    put16(o, 0); /* stored */
    put32(o, 0); /* time and date */
    put32(o, r->crc);
    put32(o, r->size);
    put32(o, r->size);
    put16(o, (uint32_t)(strlen(ZIP_ROOT) + strlen(r->name)));
}

static void put_local(struct zip_out *o, const struct zip_record *r, size_t base)
{
    size_t fixed = ZIP_LOCAL_BYTES + strlen(ZIP_ROOT) + strlen(r->name) + 4u + (is_big(r) ? 20u : 0u);
    size_t pad = (0 - (o->b->len - base + fixed)) % ZIP_PAYLOAD_ALIGN;
    put32(o, ZIP_LOCAL_SIG);
    put_common(o, r);
    put16(o, (uint32_t)(4 + pad + (is_big(r) ? 20 : 0)));
    put_name(o, r->name);
    if (is_big(r))
        put_extra64(o, r);
    put_padding(o, pad);
}

static void put_central(struct zip_out *o, const struct zip_record *r, uint64_t header)
{
    put32(o, ZIP_CENTRAL_SIG);
    put16(o, 0); /* made by */
    put_common(o, r);
    put16(o, is_big(r) ? 20 : 0);
    put16(o, 0); /* comment */
    put16(o, 0); /* disk */
    put16(o, 0); /* internal attributes */
    put32(o, 0); /* external attributes */
    put32(o, header);
    put_name(o, r->name);
    if (is_big(r))
        put_extra64(o, r);
}

static void put_end64(struct zip_out *o, int n, uint64_t size, uint64_t offset)
{
    put32(o, ZIP_END64_SIG);
    put64(o, ZIP_END64_BYTES - 12);
    put16(o, 0x031e);
    put16(o, 45);
    put32(o, 0);
    put32(o, 0);
    put64(o, (uint64_t)n);
    put64(o, (uint64_t)n);
    put64(o, size);
    put64(o, offset);
    put32(o, ZIP_LOCATOR_SIG);
    put32(o, 0);
    put64(o, offset + size);
    put32(o, 1);
}

static void put_end(struct zip_out *o, int n, uint64_t size, uint64_t offset)
{
    if (offset >= ZIP_SATURATED)
        put_end64(o, n, size, offset);
    put32(o, ZIP_END_SIG);
    put16(o, 0);
    put16(o, 0);
    put16(o, (uint32_t)n);
    put16(o, (uint32_t)n);
    put32(o, size);
    put32(o, offset);
    put16(o, 0);
}

err_t zip_write(const struct zip_record *records, int n, struct buf *head, struct buf *tail)
{
    struct zip_out h = {head, OK}, t = {tail, OK};
    size_t base = head->len, start = tail->len;
    for (int i = 0; i < n && !h.err && !t.err; i++) {
        uint64_t header = head->len - base;
        put_local(&h, &records[i], base);
        put_central(&t, &records[i], header);
        if (i < n - 1 && !h.err)
            h.err = buf_append(head, records[i].data, (size_t)records[i].size);
    }
    uint64_t size = tail->len - start, offset = head->len - base + records[n - 1].size;
    put_end(&t, n, size, offset);
    return h.err ? h.err : t.err;
}
