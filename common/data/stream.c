#include "common/data/stream.h"

#include "common/data/gzip.h"
#include "common/data/zstandard.h"

#include <stdlib.h>

/* ---- a part of a source ---- */

struct part_stream {
    struct byte_stream base;
    struct byte_source *in;
    int64_t at, end;
};

static err_t part_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct part_stream *p = (struct part_stream *)s;
    size_t n = p->end - p->at < (int64_t)cap ? (size_t)(p->end - p->at) : cap;
    err_t err = n ? p->in->ops->read(p->in, p->at, ret, n, why) : OK;
    if (err)
        return err;
    p->at += (int64_t)n;
    *ret_n = n;
    return OK;
}

static void part_close(struct byte_stream *s)
{
    free(s);
}

err_t stream_of_source(struct byte_source *in, int64_t at, int64_t len, struct byte_stream **ret, struct why *why)
{
    static const struct byte_stream_ops ops = {part_read, part_close};
    struct part_stream *p = calloc(1, sizeof(*p));
    if (!p)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    *p = (struct part_stream){{&ops, in->name}, in, at, at + len};
    *ret = &p->base;
    return OK;
}

/* ---- all streams ---- */

const struct stream_codec *stream_codec_find(const uint8_t *head, size_t len)
{
    static const struct stream_codec *const codecs[] = {&gzip_codec, &zstd_codec};
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        if (codecs[i]->is(head, len))
            return codecs[i];
    return NULL;
}

err_t stream_read_full(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    size_t sum = 0, n = 1;
    while (sum < cap && n) {
        err_t err = s->ops->read(s, (uint8_t *)ret + sum, cap - sum, &n, why);
        if (err)
            return err;
        sum += n;
    }
    *ret_n = sum;
    return OK;
}
