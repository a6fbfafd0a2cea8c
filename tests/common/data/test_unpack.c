/* Blocks that the compressing side of each library made. */
#include "common/data/unpack.h"
#include "tests/lib/test.h"

#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#define N 5000

static uint8_t text[N], packed[2 * N], out[N + 1];

static size_t pack_gzip(const uint8_t *data, size_t n, uint8_t *ret, size_t size)
{
    z_stream z = {.next_in = (uint8_t *)(uintptr_t)data, .avail_in = (uInt)n, .next_out = ret, .avail_out = (uInt)size};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return size - z.avail_out;
}

static size_t pack(enum unpack_codec codec)
{
    size_t n = sizeof(packed);
    switch (codec) {
    case UNPACK_SNAPPY:
        assert_int_equal(snappy_compress((char *)text, N, (char *)packed, &n), SNAPPY_OK);
        return n;
    case UNPACK_GZIP: /* two members */
        n = pack_gzip(text, N / 2, packed, N);
        return n + pack_gzip(text + N / 2, N / 2, packed + n, N);
    case UNPACK_ZSTD: /* two frames */
        n = ZSTD_compress(packed, N, text, N / 2, 3);
        return n + ZSTD_compress(packed + n, N, text + N / 2, N / 2, 3);
    case UNPACK_LZ4:
        return (size_t)LZ4_compress_default((char *)text, (char *)packed, N, sizeof(packed));
    default:
        memcpy(packed, text, N);
        return N;
    }
}

TEST(every_codec)
{
    for (int i = 0; i < N; i++)
        text[i] = (uint8_t)("the quick brown fox"[i * i % 19] + i / 1000);
    for (enum unpack_codec codec = UNPACK_NONE; codec <= UNPACK_LZ4; codec++) {
        size_t n = pack(codec);
        memset(out, 0, sizeof(out));
        assert_ok(unpack_block(codec, packed, n, out, N));
        assert_memory_equal(out, text, N);
        assert_err(ERR_CORRUPT, unpack_block(codec, packed, n - 1, out, N));
        assert_err(ERR_CORRUPT, unpack_block(codec, packed, n, out, N - 1));
        assert_err(ERR_CORRUPT, unpack_block(codec, packed, n, out, N + 1));
        assert_ok(unpack_block(codec, packed, 0, out, 0));
    }
}
