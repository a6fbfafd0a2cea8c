/* Numbers are encoded byte by byte, so that neither alignment nor the machine's byte order matters. Input from a peer
 * never triggers an assert: each violated rule has an error message, which is logged when the connection is closed. */
#include "common/rpc/frame.h"

static void put_le(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

void frame_encode(const struct frame *frame, uint8_t ret[RPC_HEADER_BYTES])
{
    put_le(ret, RPC_MAGIC, 4);
    put_le(ret + 4, frame->version, 1);
    put_le(ret + 5, frame->kind, 1);
    put_le(ret + 6, frame->method, 2);
    put_le(ret + 8, frame->call, 8);
    put_le(ret + 16, frame->deadline_ms, 4);
    put_le(ret + 20, frame->length, 4);
}

static const char *check(const struct frame *f)
{
    if (f->version < RPC_VERSION_OLDEST || f->version > RPC_VERSION)
        return "a protocol version that is not supported";
    if (f->kind < RPC_REQUEST || f->kind > RPC_CANCEL)
        return "an unknown kind of frame";
    if (!f->call)
        return "call number 0";
    if (f->deadline_ms && f->kind != RPC_REQUEST)
        return "a deadline outside a request";
    if (f->length && (f->kind == RPC_END || f->kind == RPC_CANCEL))
        return "a body in a kind of frame that has none";
    if (f->length > RPC_MAX_BODY_BYTES)
        return "a body above the limit of all methods";
    return NULL;
}

err_t frame_decode(const uint8_t bytes[RPC_HEADER_BYTES], struct frame *ret, const char **ret_reason)
{
    const struct frame f = {
        .version = bytes[4],
        .kind = bytes[5],
        .method = (uint16_t)get_le(bytes + 6, 2),
        .call = get_le(bytes + 8, 8),
        .deadline_ms = (uint32_t)get_le(bytes + 16, 4),
        .length = (uint32_t)get_le(bytes + 20, 4),
    };
    const char *reason = get_le(bytes, 4) == RPC_MAGIC ? check(&f) : "not a dtd frame (wrong magic)";
    if (reason) {
        *ret_reason = reason;
        return ERR_PROTO;
    }
    *ret = f;
    return OK;
}
