#include "worker/text_stream.h"

#include "common/base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void text_stream_init(struct text_stream *s, const char *const *stops, int n_stops)
{
    *s = (struct text_stream){.stops = stops, .n_stops = n_stops};
}

void text_stream_fini(struct text_stream *s)
{
    buf_fini(&s->raw);
    buf_fini(&s->text);
}

/* Whether p[n], n < 4, may be the beginning of a character. */
static bool may_continue(const uint8_t *p, size_t n)
{
    const size_t len = p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if (p[i] >> 6 != 2)
            return false;
    return n < len;
}

/* Moves complete characters from raw to text; at the end of the text also what remains. */
static err_t decode(struct text_stream *s, bool end)
{
    err_t err = buf_append(&s->raw, "", 1); /* utf8_decode reads up to a NUL */
    const size_t n = s->raw.len ? s->raw.len - 1 : 0;
    size_t i = 0;
    while (!err && i < n) {
        uint32_t c;
        const uint8_t *p = s->raw.data + i;
        const int len = utf8_decode((const char *)p, &c);
        if (!len && !end && n - i < 4 && may_continue(p, n - i))
            break;
        const bool legal = len && (size_t)len <= n - i;
        err = legal ? buf_append(&s->text, p, (size_t)len) : buf_append(&s->text, REPLACEMENT, 3);
        i += legal ? (size_t)len : 1;
    }
    if (err)
        return err;
    memmove(s->raw.data, s->raw.data + i, n - i);
    s->raw.len = n - i;
    return OK;
}

static void cut_at_stop(struct text_stream *s)
{
    for (int i = 0; i < s->n_stops; i++) {
        const size_t n = strlen(s->stops[i]);
        const uint8_t *at = n && s->text.len ? memmem(s->text.data, s->text.len, s->stops[i], n) : NULL;
        if (!at)
            continue;
        s->text.len = (size_t)(at - s->text.data);
        s->stopped = true;
    }
}

/* The length of the longest end of the text that is the beginning of a stop. */
static size_t waiting(const struct text_stream *s)
{
    size_t most = 0;
    for (int i = 0; i < s->n_stops && !s->stopped; i++) {
        const size_t len = strlen(s->stops[i]);
        for (size_t n = s->text.len < len ? s->text.len : len; n > most; n--)
            if (memcmp(s->text.data + s->text.len - n, s->stops[i], n) == 0)
                most = n;
    }
    return most;
}

err_t text_stream_add(struct text_stream *s, const void *bytes, size_t n)
{
    if (s->stopped)
        return OK;
    err_t err = buf_append(&s->raw, bytes, n);
    err = err ? err : decode(s, false);
    if (!err)
        cut_at_stop(s);
    return err;
}

err_t text_stream_end(struct text_stream *s)
{
    if (s->stopped)
        return OK;
    err_t err = decode(s, true);
    s->n_stops = 0;
    return err;
}

err_t text_stream_take(struct text_stream *s, struct buf *to)
{
    const size_t n = s->text.len - waiting(s);
    err_t err = buf_append(to, s->text.data, n);
    if (err || !n)
        return err;
    memmove(s->text.data, s->text.data + n, s->text.len - n);
    s->text.len -= n;
    return OK;
}
