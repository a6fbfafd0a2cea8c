/* Libraries that decompress into memory of the right size. None of them writes beyond it. */
#include "common/data/unpack.h"

#include <limits.h>
#include <lz4.h>
#include <snappy-c.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static err_t unpack_snappy(const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    size_t n = 0;
    if (snappy_uncompressed_length((const char *)in, in_len, &n) != SNAPPY_OK || n != out_len)
        return ERR_CORRUPT;
    return snappy_uncompress((const char *)in, in_len, (char *)out, &n) == SNAPPY_OK && n == out_len ? OK : ERR_CORRUPT;
}

/* One or more members, which zlib reads one at a time. Each has a CRC-32, which zlib checks. */
static err_t unpack_gzip(const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    z_stream z = {.next_in = in_len ? (uint8_t *)(uintptr_t)in : NULL,
                  .avail_in = (uInt)in_len,
                  .next_out = out,
                  .avail_out = (uInt)out_len};
    int rc;
    if (in_len > UINT_MAX || out_len > UINT_MAX)
        return ERR_CORRUPT;
    if (inflateInit2(&z, 15 + 32) != Z_OK) /* the largest window; gzip or zlib, by the head */
        return ERR_NOMEM;
    do
        rc = inflate(&z, Z_FINISH);
    while (rc == Z_STREAM_END && z.avail_in > 0 && (rc = inflateReset(&z)) == Z_OK);
    inflateEnd(&z);
    return rc == Z_STREAM_END && z.avail_out == 0 ? OK : rc == Z_MEM_ERROR ? ERR_NOMEM : ERR_CORRUPT;
}

static err_t unpack_zstd(const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    size_t n = ZSTD_decompress(out, out_len, in, in_len);
    return !ZSTD_isError(n) && n == out_len ? OK : ERR_CORRUPT;
}

static err_t unpack_lz4(const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    if (in_len > INT_MAX || out_len > INT_MAX)
        return ERR_CORRUPT;
    int n = LZ4_decompress_safe((const char *)in, (char *)out, (int)in_len, (int)out_len);
    return n >= 0 && (size_t)n == out_len ? OK : ERR_CORRUPT;
}

static err_t unpack_none(const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    if (in_len != out_len)
        return ERR_CORRUPT;
    memcpy(out, in, in_len);
    return OK;
}

err_t unpack_block(enum unpack_codec codec, const uint8_t *in, size_t in_len, uint8_t *out, size_t out_len)
{
    static err_t (*const table[])(const uint8_t *, size_t, uint8_t *, size_t) = {
        [UNPACK_NONE] = unpack_none, [UNPACK_SNAPPY] = unpack_snappy, [UNPACK_GZIP] = unpack_gzip,
        [UNPACK_ZSTD] = unpack_zstd, [UNPACK_LZ4] = unpack_lz4,
    };
    if (in_len == 0 && out_len == 0) /* some writers compress nothing to nothing */
        return OK;
    return table[codec](in, in_len, out, out_len);
}
