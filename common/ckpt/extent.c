/* The extent_reader returns bytes only after it has checked the CRC-32C of their extent, or if there is no manifest. It
 * loads a complete window, verifies it, and reads from it, so reading in order never loads an extent twice. */
#include "common/base/file.h"
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/sums.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_BYTES ((uint64_t)8 << 20) /* 8 extents per read: fewer system calls */
#define AHEAD_BYTES (4 * WINDOW_BYTES)   /* the disk reads on while a window is verified and copied */
#define BLOCK_BYTES 4096u                /* a page, which the kernel reads in any case */

void extent_reader_init(struct extent_reader *r, const char *dir)
{
    *r = (struct extent_reader){.dir = dir, .fd = -1};
}

void extent_reader_fini(struct extent_reader *r)
{
    if (r->fd >= 0)
        close(r->fd);
    free(r->window);
    extent_reader_init(r, NULL);
}

err_t extent_reader_open(struct extent_reader *r, const struct ckpt_file *file, struct why *why)
{
    char path[PATH_MAX];
    if (r->file == file)
        return OK;
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    r->file = NULL;
    r->len = r->end = 0;
    if (!r->window && !(r->window = malloc(WINDOW_BYTES)))
        return why_set(why, ERR_NOMEM, "out of memory for a window of %llu bytes", (unsigned long long)WINDOW_BYTES);
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", r->dir, file->name) >= sizeof(path))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", r->dir);
    r->fd = file_open_plain(path);
    if (r->fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    r->file = file;
    return OK;
}

uint64_t extent_reader_grain(const struct extent_reader *r)
{
    return r->file->sums ? CKPT_EXTENT_BYTES : BLOCK_BYTES;
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
    if (from >= r->at && from - r->at < r->len)
        return OK;
    uint64_t grain = extent_reader_grain(r), start = from - from % grain, end = to > from ? to : from + 1;
    if (from >= r->file->size)
        return why_set(why, ERR_CORRUPT, "%s/%s ends before byte %llu", r->dir, r->file->name,
                       (unsigned long long)from);
    end = end > r->file->size ? r->file->size : end;
    end = (end + grain - 1) / grain * grain;
    end = end - start > WINDOW_BYTES ? start + WINDOW_BYTES : end;
    end = end > r->file->size ? r->file->size : end;
    r->at = start;
    r->len = 0;
    err_t err = file_pread_all(r->fd, r->window, (size_t)(end - start), (off_t)start);
    if (err)
        return why_set(why, err, "%s/%s: bytes %llu to %llu: %s", r->dir, r->file->name, (unsigned long long)start,
                       (unsigned long long)end, err_text(err));
    if (start == r->end)
        (void)posix_fadvise(r->fd, (off_t)end, AHEAD_BYTES, POSIX_FADV_WILLNEED);
    r->end = end;
    r->len = end - start;
    r->bytes_read += (int64_t)r->len;
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
