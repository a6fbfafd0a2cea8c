/* A compressed file, by gzip or zstd. Reading it in other pieces gives the same bytes; a file from which bytes are
 * missing is never read as a complete one of the same content. */
#include "common/data/stream.h"
#include "tests/lib/memory_source.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST ((size_t)4 << 20) /* of the content; small files can be made that are gigabytes */

static void require(bool true_)
{
    if (!true_)
        abort();
}

static err_t read_all(const uint8_t *data, size_t size, size_t piece, uint64_t *ret_sum, size_t *ret_n)
{
    static uint8_t out[1 << 16];
    struct memory_source source = memory_source(data, size);
    const struct stream_codec *codec = stream_codec_find(data, size);
    struct byte_stream *stored, *stream;
    struct why why = {""};
    uint64_t sum = 1;
    size_t n = 1, all = 0;
    err_t err = OK;
    require(stream_of_source(&source.base, 0, (int64_t)size, &stored, NULL) == OK);
    require(codec->open(stored, &stream, NULL) == OK);
    while (!err && n && all < MOST) {
        err = stream->ops->read(stream, out, piece, &n, &why);
        require(err || n <= piece);
        for (size_t i = 0; !err && i < n; i++)
            sum = (sum ^ out[i]) * 0x100000001b3u;
        all += err ? 0 : n;
    }
    require(!err || why.text[0]);
    stream->ops->close(stream);
    stored->ops->close(stored);
    *ret_sum = sum;
    *ret_n = all;
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t a, b;
    size_t n, m;
    if (!stream_codec_find(data, size))
        return 0;
    err_t err = read_all(data, size, 1 << 16, &a, &n);
    err_t again = read_all(data, size, 13, &b, &m);
    require(n >= MOST || err == again);
    require(err || n >= MOST || (a == b && n == m));
    return 0;
}
