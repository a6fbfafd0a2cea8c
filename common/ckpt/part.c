/* One pass over the tensors. For each, the CRC-32 of the payload is computed first, because the header before the
 * payload contains it; the CRC-32C of extents is computed while bytes are written. For a huge payload the disk would
 * have to wait for that CRC-32: there the header is held back until both sums have been computed in one pass. Payloads
 * are aligned to 64 bytes in the file, large ones to 4096, for direct I/O and mappings. The gaps are zeros, which
 * extents cover too. */
#include "common/ckpt/part.h"

#include "common/base/file.h"
#include "common/ckpt/blob.h"
#include "common/ckpt/file_writer.h"
#include "common/ckpt/sums.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LARGE_BYTES 65536u          /* the padding of a larger piece is below 6 % of it */
#define SUM_BYTES ((size_t)4 << 20) /* the disk begins with a piece when the sums of so many bytes are known */
/* The CRC-32 of less takes 1 ms. The extent that contains a held header is read twice, which is 6 % of this on average.
 */
#define HUGE_BYTES ((size_t)8 << 20)
#define BOTH_BYTES ((size_t)256 << 10) /* stays in a core's cache between two checksums */

struct part_stream {
    int fd;
    struct file_writer *writer;
    struct sums_extents sums; /* sums.bytes is the position in the file */
};

static err_t stream_copy(struct part_stream *s, const void *data, size_t len)
{
    err_t err = sums_extents_add(&s->sums, data, len);
    return err ? err : file_writer_copy(s->writer, data, len);
}

static err_t stream_put(struct part_stream *s, const uint8_t *data, size_t len)
{
    err_t err = OK;
    for (size_t at = 0, n; at < len && !err; at += n) {
        n = len - at < SUM_BYTES ? len - at : SUM_BYTES;
        err = sums_extents_add(&s->sums, data + at, n);
        if (!err)
            err = file_writer_put(s->writer, data + at, n);
    }
    return err;
}

/* The same, and *crc is continued by the CRC-32 of the data. */
static err_t stream_put_summed(struct part_stream *s, const uint8_t *data, size_t len, uint32_t *crc)
{
    err_t err = OK;
    for (size_t at = 0, n; at < len && !err; at += n) {
        n = len - at < SUM_BYTES ? len - at : SUM_BYTES;
        for (size_t k = 0, m; k < n && !err; k += m) {
            m = n - k < BOTH_BYTES ? n - k : BOTH_BYTES;
            *crc = sums_crc32(*crc, data + at + k, m);
            err = sums_extents_add(&s->sums, data + at + k, m);
        }
        if (!err)
            err = file_writer_put(s->writer, data + at, n);
    }
    return err;
}

/* Writes zeros up to a position from which a payload that starts `ahead` bytes later is aligned. */
static err_t stream_align(struct part_stream *s, size_t ahead, size_t align)
{
    static const uint8_t zeros[FILE_WRITER_ALIGN];
    return stream_copy(s, zeros, (size_t)(0 - (s->sums.bytes + ahead)) & (align - 1));
}

static err_t piece_check(const struct ckpt_piece *p, struct why *why)
{
    size_t len = p->fqn ? strlen(p->fqn) : 0;
    if (!len || len > PART_MAX_NAME)
        return why_set(why, ERR_INVALID, "a tensor's name has %zu bytes; it must have 1 to %d", len, PART_MAX_NAME);
    if (p->ndim < 0 || p->ndim > BOX_MAX_DIMS || p->box.ndim != p->ndim || !dtype_bytes(p->dtype))
        return why_set(why, ERR_INVALID, "%.200s has no legal type or number of dimensions", p->fqn);
    for (int d = 0; d < p->ndim; d++)
        if (p->box.offset[d] < 0 || p->box.size[d] < 0 || p->box.offset[d] > p->shape[d] ||
            p->box.size[d] > p->shape[d] - p->box.offset[d])
            return why_set(why, ERR_INVALID, "a box of %.200s lies outside it", p->fqn);
    return OK;
}

/* An empty shard of a tensor that has elements is not stored. */
static bool piece_is_empty_shard(const struct ckpt_piece *p)
{
    struct box all = {.ndim = p->ndim};
    memcpy(all.size, p->shape, sizeof(all.size));
    return box_elements(&p->box) == 0 && box_elements(&all) != 0;
}

static err_t blob_make(const struct ckpt_piece *p, size_t bytes, uint32_t crc, struct buf scratch[2])
{
    scratch[0].len = scratch[1].len = 0;
    return blob_tensor_write(p->dtype, p->ndim, p->box.size, bytes, crc, &scratch[0], &scratch[1]);
}

static err_t entry_make(const struct part_stream *s, struct ckpt_part *part, const struct ckpt_piece *p, size_t length)
{
    struct part_entry *e = part_entry_add(part, p->fqn, strlen(p->fqn));
    if (!e)
        return ERR_NOMEM;
    e->dtype = p->dtype;
    e->box = p->box;
    memcpy(e->shape, p->shape, sizeof(e->shape));
    e->offset = (int64_t)s->sums.bytes;
    e->length = (int64_t)length;
    return OK;
}

/* The header is held. It lies in one extent, of which the payload fills the rest, and which is complete therefore. */
static err_t huge_write(struct part_stream *s, const struct ckpt_piece *p, size_t bytes, struct buf scratch[2])
{
    uint64_t extent = s->sums.bytes / CKPT_EXTENT_BYTES;
    uint32_t before = s->sums.crc, crc = 0; /* before: of the extent's bytes up to the header */
    err_t err = sums_extents_add(&s->sums, scratch[0].data, scratch[0].len);
    size_t rest = (size_t)(0 - s->sums.bytes) % CKPT_EXTENT_BYTES;
    if (!err)
        err = stream_put_summed(s, p->data, bytes, &crc);
    if (!err)
        err = blob_make(p, bytes, crc, scratch);
    if (err)
        return err;
    before = sums_crc32c(before, scratch[0].data, scratch[0].len);
    sums_extents_replace(&s->sums, extent, sums_crc32c(before, p->data, rest));
    err = file_writer_release(s->writer, scratch[0].data);
    return err ? err : stream_copy(s, scratch[1].data, scratch[1].len);
}

static err_t piece_write(struct part_stream *s, struct ckpt_part *part, const struct ckpt_piece *p,
                         struct buf scratch[2])
{
    size_t bytes = (size_t)box_elements(&p->box) * dtype_bytes(p->dtype);
    bool huge = bytes >= HUGE_BYTES;
    err_t err = blob_make(p, bytes, huge ? 0 : sums_crc32(0, p->data, bytes), scratch);
    if (!err)
        err = stream_align(s, scratch[0].len, bytes >= LARGE_BYTES ? FILE_WRITER_ALIGN : ZIP_PAYLOAD_ALIGN);
    if (!err)
        err = entry_make(s, part, p, scratch[0].len + bytes + scratch[1].len);
    if (!err && huge && file_writer_hold(s->writer, scratch[0].data, scratch[0].len))
        return huge_write(s, p, bytes, scratch);
    if (!err && huge)
        err = blob_make(p, bytes, sums_crc32(0, p->data, bytes), scratch);
    if (!err)
        err = stream_copy(s, scratch[0].data, scratch[0].len);
    if (!err)
        err = stream_put(s, p->data, bytes);
    return err ? err : stream_copy(s, scratch[1].data, scratch[1].len);
}

static err_t scalar_write(struct part_stream *s, struct ckpt_part *part, const struct ckpt_scalar *v,
                          struct buf *scratch, struct why *why)
{
    scratch->len = 0;
    size_t len = v->fqn ? strlen(v->fqn) : 0;
    if (!len || len > PART_MAX_NAME || (v->kind == CKPT_STR && !v->s))
        return why_set(why, ERR_INVALID, "a scalar value's name has %zu bytes, or its string is missing", len);
    err_t err = blob_scalar_write(v, scratch);
    if (!err)
        err = stream_align(s, 0, ZIP_PAYLOAD_ALIGN);
    struct part_entry *e = err ? NULL : part_entry_add(part, v->fqn, len);
    if (!e)
        return why_set(why, err ? err : ERR_NOMEM, "%.200s: %s", v->fqn, err_text(err ? err : ERR_NOMEM));
    e->offset = (int64_t)s->sums.bytes;
    e->length = (int64_t)scratch->len;
    return stream_copy(s, scratch->data, scratch->len);
}

static err_t pieces_check(const struct ckpt_piece *pieces, int n, struct why *why)
{
    err_t err = OK;
    for (int i = 0; i < n && !err; i++)
        err = piece_check(&pieces[i], why);
    return err;
}

err_t ckpt_no_space(const char *path, int64_t bytes, struct why *why)
{
    struct statvfs st;
    int64_t free_bytes = statvfs(path, &st) ? 0 : (int64_t)(st.f_bavail * st.f_frsize);
    return why_set(why, ERR_NOSPACE, "%s: no space left: %" PRId64 " bytes are needed and %" PRId64 " are free", path,
                   bytes, free_bytes);
}

/* Detects a full disk before the data is written; on file systems without fallocate, writing detects it. Sets the size
 * of the file, since file systems serialize direct writes that extend it. */
static err_t reserve(int fd, const char *path, const struct ckpt_piece *pieces, int n, struct why *why)
{
    int64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += box_elements(&pieces[i].box) * (int64_t)dtype_bytes(pieces[i].dtype);
    if (!bytes || !fallocate(fd, 0, 0, bytes) || errno != ENOSPC)
        return OK;
    return ckpt_no_space(path, bytes, why);
}

/* Pieces are sorted by name, so parameters are adjacent and optimizer state is adjacent; a load of only one of them
 * reads few bytes that it does not need. */
static int piece_compare(const void *x, const void *y)
{
    const struct ckpt_piece *a = *(const struct ckpt_piece *const *)x, *b = *(const struct ckpt_piece *const *)y;
    int c = strcmp(a->fqn, b->fqn);
    for (int d = 0; !c && d < a->ndim && d < b->ndim; d++)
        c = a->box.offset[d] < b->box.offset[d] ? -1 : a->box.offset[d] > b->box.offset[d];
    return c;
}

static const struct ckpt_piece **pieces_sorted(const struct ckpt_piece *pieces, int n)
{
    const struct ckpt_piece **sorted = calloc((size_t)n + 1, sizeof(struct ckpt_piece *));
    for (int i = 0; sorted && i < n; i++)
        sorted[i] = &pieces[i];
    if (sorted)
        qsort(sorted, (size_t)n, sizeof(*sorted), piece_compare);
    return sorted;
}

static err_t all_write(struct part_stream *s, struct ckpt_part *part, const struct ckpt_piece *pieces, int n_pieces,
                       const struct ckpt_scalar *scalars, int n_scalars, struct why *why)
{
    struct buf scratch[2] = {{0}};
    const struct ckpt_piece **sorted = pieces_sorted(pieces, n_pieces);
    err_t err = sorted ? OK : ERR_NOMEM;
    for (int i = 0; i < n_scalars && !err; i++)
        err = scalar_write(s, part, &scalars[i], &scratch[0], why);
    for (int i = 0; i < n_pieces && !err; i++)
        if (!piece_is_empty_shard(sorted[i]))
            err = piece_write(s, part, sorted[i], scratch);
    if (!err)
        err = file_writer_end(s->writer);
    if (!err)
        err = sums_extents_end(&s->sums);
    buf_fini(&scratch[0]);
    buf_fini(&scratch[1]);
    free(sorted);
    return err;
}

static err_t part_finish(struct part_stream *s, struct ckpt_part *part)
{
    uint32_t *crcs = malloc(s->sums.crcs.len + 1);
    if (!crcs)
        return ERR_NOMEM;
    if (s->sums.crcs.len)
        memcpy(crcs, s->sums.crcs.data, s->sums.crcs.len);
    part->crcs = crcs;
    part->n_crcs = (uint32_t)(s->sums.crcs.len / sizeof(*crcs));
    part->size = s->sums.bytes;
    return fsync(s->fd) ? err_from_errno(errno) : OK;
}

/* Neither the folder nor the file may be a link: if other users may write to the checkpoint directory, a link could
 * lead to any file of this user. */
static err_t part_open(const char *dir, const char *file, int *ret, struct why *why)
{
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = folder < 0 ? -1 : openat(folder, file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    int saved = errno;
    if (folder >= 0)
        close(folder);
    if (fd >= 0) {
        *ret = fd;
        return OK;
    }
    if (saved == ELOOP || saved == ENOTDIR)
        return why_set(why, ERR_DENIED, "%s%s%s is a link, or not a folder; dtd does not write through links", dir,
                       folder < 0 ? "" : "/", folder < 0 ? "" : file);
    return err_from_errno(saved);
}

err_t ckpt_part_write(const char *dir, int rank, const struct ckpt_piece *pieces, int n_pieces,
                      const struct ckpt_scalar *scalars, int n_scalars, struct ckpt_part **ret, struct why *why)
{
    char path[PATH_MAX];
    err_t err = pieces_check(pieces, n_pieces, why);
    struct ckpt_part *part = err ? NULL : part_new(rank);
    if (!part)
        return err ? err : why_set(why, ERR_NOMEM, "out of memory for a part");
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, part->file) >= sizeof(path)) {
        ckpt_part_free(part);
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", dir);
    }
    err = file_make_dirs(dir, 0777);
    if (why)
        why->text[0] = '\0';
    struct part_stream s = {.fd = -1};
    if (!err)
        err = part_open(dir, part->file, &s.fd, why);
    if (!err)
        err = reserve(s.fd, path, pieces, n_pieces, why);
    if (!err)
        err = file_writer_new(s.fd, path, &s.writer);
    if (!err)
        err = all_write(&s, part, pieces, n_pieces, scalars, n_scalars, why);
    if (!err)
        err = part_finish(&s, part);
    file_writer_free(s.writer);
    if (s.fd >= 0 && close(s.fd) && !err)
        err = err_from_errno(errno);
    if (!err)
        err = file_sync_dir(dir);
    sums_extents_fini(&s.sums);
    if (!err) {
        *ret = part;
        return OK;
    }
    ckpt_part_free(part);
    if (err == ERR_LIMIT)
        err = ERR_NOSPACE; /* EFBIG: the effect of a file size limit is that of a full disk */
    return why && why->text[0] ? err : why_set(why, err, "%s: %s", path, err_text(err));
}
