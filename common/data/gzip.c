/* zlib checks length and CRC of each member. A file that ends within a member is an error, so that a download that was
 * cut off is noticed. */
#include "common/data/gzip.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define INPUT (256 << 10)
#define GZIP_WINDOW (15 + 16) /* the largest window of gzip, 32 KiB; 16: a gzip header, and not zlib's */

struct gzip_stream {
    struct byte_stream base;
    struct byte_stream *in;
    z_stream z;
    bool within; /* a member */
    bool began;  /* a first member */
    bool end;    /* of the input */
    uint8_t input[INPUT];
};

static bool gzip_is(const uint8_t *head, size_t len)
{
    return len >= 3 && head[0] == 0x1f && head[1] == 0x8b && head[2] == 8;
}

static err_t fill(struct gzip_stream *g, struct why *why)
{
    size_t n = 0;
    if (g->z.avail_in || g->end)
        return OK;
    err_t err = g->in->ops->read(g->in, g->input, sizeof(g->input), &n, why);
    if (err)
        return err;
    g->end = n == 0;
    g->z.next_in = g->input;
    g->z.avail_in = (uInt)n;
    return OK;
}

/* Zeros may follow the last member. */
static void skip_zeros(struct gzip_stream *g)
{
    while (g->began && g->z.avail_in && *g->z.next_in == 0) {
        g->z.next_in++;
        g->z.avail_in--;
    }
}

static err_t begin_member(struct gzip_stream *g, struct why *why)
{
    if (g->began && *g->z.next_in != 0x1f)
        return why_set(why, ERR_CORRUPT, "%s: bytes that are not gzip's follow the compressed data", g->base.name);
    if (inflateReset(&g->z) != Z_OK)
        return why_set(why, ERR_INTERNAL, "%s: %s", g->base.name, err_text(ERR_INTERNAL));
    g->within = g->began = true;
    return OK;
}

static err_t fail_inflate(const struct gzip_stream *g, int rc, struct why *why)
{
    if (rc == Z_MEM_ERROR)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    return why_set(why, ERR_CORRUPT, "%s: the gzip data is damaged (%s)", g->base.name, g->z.msg ? g->z.msg : "format");
}

static err_t gzip_read(struct byte_stream *s, void *ret, size_t cap, size_t *ret_n, struct why *why)
{
    struct gzip_stream *g = (struct gzip_stream *)s;
    uInt room = cap > UINT_MAX ? UINT_MAX : (uInt)cap;
    g->z.next_out = ret;
    g->z.avail_out = room;
    while (g->z.avail_out == room) {
        err_t err = fill(g, why);
        if (err)
            return err;
        if (!g->within)
            skip_zeros(g);
        if (!g->z.avail_in && !g->end)
            continue;
        if (!g->z.avail_in && g->within)
            return why_set(why, ERR_CORRUPT, "%s: the file ends within its gzip data", s->name);
        if (!g->z.avail_in)
            break;
        err = g->within ? OK : begin_member(g, why);
        if (err)
            return err;
        int rc = inflate(&g->z, Z_NO_FLUSH);
        if (rc == Z_STREAM_END)
            g->within = false;
        else if (rc != Z_OK && rc != Z_BUF_ERROR)
            return fail_inflate(g, rc, why);
    }
    *ret_n = room - g->z.avail_out;
    return OK;
}

static void gzip_close(struct byte_stream *s)
{
    struct gzip_stream *g = (struct gzip_stream *)s;
    inflateEnd(&g->z);
    free(g);
}

static err_t gzip_open(struct byte_stream *in, struct byte_stream **ret, struct why *why)
{
    static const struct byte_stream_ops ops = {gzip_read, gzip_close};
    struct gzip_stream *g = calloc(1, sizeof(*g));
    if (!g || inflateInit2(&g->z, GZIP_WINDOW) != Z_OK) {
        free(g);
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    g->base = (struct byte_stream){&ops, in->name};
    g->in = in;
    *ret = &g->base;
    return OK;
}

const struct stream_codec gzip_codec = {"gzip", gzip_is, gzip_open};
