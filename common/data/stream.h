/* Sequential bytes: a file, a part of one, a decompressed file, a member of an archive. Readers of text and JSON lines
 * need no more. For common/data only; one thread at a time. */
#ifndef DTD_COMMON_DATA_STREAM_H
#define DTD_COMMON_DATA_STREAM_H

#include "common/data/source.h"

struct byte_stream;

struct byte_stream_ops {
    /* Reads at least one and at most cap bytes; *ret_n = 0: the end. After an error the stream can only be closed. */
    err_t (*read)(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why);
    void (*close)(struct byte_stream *s); /* not what it reads from */
};

struct byte_stream {
    const struct byte_stream_ops *ops;
    const char *name; /* for messages */
};

/* Bytes [at, at + len) of `in`, which must stay open. */
NODISCARD err_t stream_of_source(struct byte_source *in, int64_t at, int64_t len, struct byte_stream **ret,
                                 struct why *why);

/* A compression that wraps one file. */
struct stream_codec {
    const char *name;
    bool (*is)(const uint8_t *head, size_t len);
    /* `in` must stay open until *ret is closed. */
    err_t (*open)(struct byte_stream *in, struct byte_stream **ret, struct why *why);
};
/* NULL: a file that begins with these bytes is not compressed, or by a program that is not supported. */
const struct stream_codec *stream_codec_find(const uint8_t *head, size_t len);

/* Reads up to cap bytes; fewer only at the end. */
NODISCARD err_t stream_read_full(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why);

#endif
