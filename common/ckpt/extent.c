/* The extent_reader returns bytes only after it has checked the CRC-32C of their extent, or if there is no manifest. */
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/file_reader.h"
#include "common/ckpt/sums.h"

#include <inttypes.h>
#include <string.h>

void extent_reader_init(struct extent_reader *r, const char *dir, struct read_claims *claims)
{
    *r = (struct extent_reader){.dir = dir, .claims = claims};
}

void extent_reader_fini(struct extent_reader *r)
{
    file_reader_free(r->source);
    extent_reader_init(r, NULL, NULL);
}

static err_t source_need(struct extent_reader *r)
{
    return r->source ? OK : file_reader_new(r->dir, r->claims, &r->source);
}

err_t extent_reader_expect(struct extent_reader *r, const struct file_range *ranges, size_t n)
{
    err_t err = source_need(r);
    if (!err)
        file_reader_expect(r->source, ranges, n);
    return err;
}

err_t extent_reader_open(struct extent_reader *r, const struct ckpt_file *file, struct why *why)
{
    if (r->file == file)
        return OK;
    r->file = NULL;
    r->len = 0;
    err_t err = source_need(r);
    if (err)
        return why_set(why, err, "out of memory for a reader of %s", r->dir);
    err = file_reader_open(r->source, file, why);
    if (!err)
        r->file = file;
    return err;
}

uint64_t extent_reader_grain(const struct extent_reader *r)
{
    return file_reader_grain(r->file);
}

int64_t extent_reader_bytes(const struct extent_reader *r)
{
    return r->source ? file_reader_bytes(r->source) : 0;
}

static err_t window_verify(const struct extent_reader *r, struct why *why)
{
    for (uint64_t o = 0; r->file->sums && o < r->len; o += CKPT_EXTENT_BYTES) {
        uint64_t n = r->len - o < CKPT_EXTENT_BYTES ? r->len - o : CKPT_EXTENT_BYTES;
        uint64_t extent = (r->at + o) / CKPT_EXTENT_BYTES;
        if (sums_crc32c(0, r->window + o, (size_t)n) != r->file->sums->crcs[extent])
            return why_set(why, ERR_CORRUPT,
                           "%s/%s: extent %" PRIu64 " (bytes %" PRIu64 " to %" PRIu64
                           ") does not match its checksum in " CKPT_MANIFEST "; use another checkpoint",
                           r->dir, r->file->name, extent, r->at + o, r->at + o + n);
    }
    return OK;
}

err_t extent_reader_load(struct extent_reader *r, uint64_t from, uint64_t to, struct why *why)
{
    struct file_window w;
    if (from >= r->at && from - r->at < r->len)
        return OK;
    r->len = 0;
    if (from >= r->file->size)
        return why_set(why, ERR_CORRUPT, "%s/%s ends before byte %llu", r->dir, r->file->name,
                       (unsigned long long)from);
    err_t err = file_reader_get(r->source, r->file, from, to, &w, why);
    if (err)
        return err;
    r->window = w.data;
    r->at = w.at;
    r->len = w.len;
    err = window_verify(r, why);
    if (err)
        r->len = 0;
    return err;
}

err_t extent_reader_copy(struct extent_reader *r, uint64_t from, void *dst, size_t len, struct why *why)
{
    uint8_t *p = dst;
    while (len) {
        err_t err = extent_reader_load(r, from, from + len, why);
        if (err)
            return err;
        uint64_t have = r->at + r->len - from;
        size_t n = have < len ? (size_t)have : len;
        memcpy(p, r->window + (from - r->at), n);
        p += n;
        from += n;
        len -= n;
    }
    return OK;
}

static err_t source_read(void *arg, uint64_t offset, void *dst, size_t len, struct why *why)
{
    struct blob_source *s = arg;
    if (offset > s->zip.length || len > s->zip.length - offset)
        return why_set(why, ERR_CORRUPT, "a record reaches beyond its archive");
    return extent_reader_copy(s->reader, s->offset + offset, dst, len, why);
}

void blob_source_init(struct blob_source *s, struct extent_reader *r, uint64_t offset, uint64_t length)
{
    *s = (struct blob_source){.reader = r, .offset = offset, .zip = {source_read, s, length}};
}
