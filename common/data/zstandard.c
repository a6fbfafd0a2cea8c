/* A frame's window is memory that the reader must have. The file chooses it, so it needs a bound: `zstd --long=31` asks
 * for 2 GiB. 128 MiB is the bound of the program zstd, so what that reads without an option is read here. */
#include "common/data/zstandard.h"

#include <stdlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define WINDOW_LOG 27
#define INPUT (256 << 10)

struct zstd_stream {
    struct byte_stream base;
    struct byte_stream *in;
    ZSTD_DCtx *ctx;
    ZSTD_inBuffer input;
    bool within; /* a frame */
    bool full;   /* the last output filled its room, so libzstd may hold more */
    uint8_t bytes[INPUT];
};

#define MAGIC 0xfd2fb528u
#define SKIPPABLE 0x184d2a50u /* to 0x184d2a5f */

static bool zstd_is(const uint8_t *head, size_t len)
{
    uint32_t magic = len < 4 ? 0 : head[0] | head[1] << 8 | head[2] << 16 | (uint32_t)head[3] << 24;
    return magic == MAGIC || (magic & ~15u) == SKIPPABLE;
}

static err_t fail_zstd(const struct zstd_stream *z, size_t rc, struct why *why)
{
    switch (ZSTD_getErrorCode(rc)) {
    case ZSTD_error_memory_allocation:
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    case ZSTD_error_frameParameter_windowTooLarge:
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: it was compressed with a window of more than %d MiB, which is not supported; compress it "
                       "again: zstd -dc --long=31 FILE | zstd -o NEW",
                       z->base.name, 1 << (WINDOW_LOG - 20));
    case ZSTD_error_dictionary_wrong:
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: it was compressed with a dictionary, which is not supported; decompress it with zstd -D",
                       z->base.name);
    default:
        return why_set(why, ERR_CORRUPT, "%s: the zstd data is damaged (%s)", z->base.name, ZSTD_getErrorName(rc));
    }
}

static err_t zstd_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct zstd_stream *z = (struct zstd_stream *)s;
    ZSTD_outBuffer out = {ret, cap, 0};
    while (!out.pos) {
        if (z->input.pos == z->input.size && !z->full) {
            size_t n = 0;
            err_t err = z->in->ops->read(z->in, z->bytes, sizeof(z->bytes), &n, why);
            if (err)
                return err;
            if (!n && z->within)
                return why_set(why, ERR_CORRUPT, "%s: the file ends within its zstd data", s->name);
            if (!n)
                break;
            z->input = (ZSTD_inBuffer){z->bytes, n, 0};
        }
        size_t rc = ZSTD_decompressStream(z->ctx, &out, &z->input);
        if (ZSTD_isError(rc))
            return fail_zstd(z, rc, why);
        z->within = rc != 0;
        z->full = z->within && out.pos == out.size;
    }
    *ret_n = out.pos;
    return OK;
}

static void zstd_close(struct byte_stream *s)
{
    struct zstd_stream *z = (struct zstd_stream *)s;
    ZSTD_freeDCtx(z->ctx);
    free(z);
}

static err_t zstd_open(struct byte_stream *in, struct byte_stream **ret, struct why *why)
{
    static const struct byte_stream_ops ops = {zstd_read, zstd_close};
    struct zstd_stream *z = calloc(1, sizeof(*z));
    if (!z || !(z->ctx = ZSTD_createDCtx())) {
        free(z);
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    ZSTD_DCtx_setParameter(z->ctx, ZSTD_d_windowLogMax, WINDOW_LOG);
    z->base = (struct byte_stream){&ops, in->name};
    z->in = in;
    *ret = &z->base;
    return OK;
}

const struct stream_codec zstd_codec = {"zstd", zstd_is, zstd_open};
