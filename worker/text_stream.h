/* The text of a continuation, token by token: what can be shown already. Bytes of an incomplete character wait for the
 * next token, and so does text that may be the beginning of a stop; bytes that are not UTF-8 become U+FFFD. */
#ifndef DTD_WORKER_TEXT_STREAM_H
#define DTD_WORKER_TEXT_STREAM_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct text_stream {
    const char *const *stops; /* the text ends before the first of these; owned by the caller */
    int n_stops;
    bool stopped;
    struct buf raw;  /* bytes of an incomplete character */
    struct buf text; /* UTF-8 that has not been taken yet */
};

void text_stream_init(struct text_stream *s, const char *const *stops, int n_stops);
void text_stream_fini(struct text_stream *s);
/* Adds the bytes of a token. After a stop, more text has no effect. */
NODISCARD err_t text_stream_add(struct text_stream *s, const void *bytes, size_t n);
/* The text is complete: nothing waits any more. */
NODISCARD err_t text_stream_end(struct text_stream *s);
/* Moves the text that no later token can change to the end of `to`. */
NODISCARD err_t text_stream_take(struct text_stream *s, struct buf *to);

#endif
