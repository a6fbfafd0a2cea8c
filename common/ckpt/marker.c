/* A marker is little-endian and ends with a CRC-32C of all bytes before it; lengths are checked against the bytes that
 * are left. The writer writes a temporary file, fsyncs it, renames it and fsyncs the folder, so a marker appears
 * complete and durable. Anything else that a reader finds is damaged or a foreign file, and the reader rejects it. */
#include "common/ckpt/marker.h"

#include "common/base/file.h"
#include "common/ckpt/le_bytes.h"
#include "common/ckpt/sums.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "DTDWORDS"
#define VERSION 1u
#define CRC_BYTES 4
#define MAX_CODE 64         /* errors are -1 .. -MAX_CODE */
#define MAX_WORLD (1 << 24) /* above JOB_MAX_WORKERS (2^20): a larger value means damage */

/* ---- bytes ---- */

static err_t head_write(const struct marker *w, struct buf *b)
{
    const uint32_t small[] = {VERSION,           (uint32_t)w->kind,  (uint32_t)-w->code,
                              (uint32_t)w->rank, (uint32_t)w->world, (uint32_t)strlen(w->by.job)};
    const uint64_t large[] = {(uint64_t)w->by.submitted_ms, w->by.epoch, w->by.writer, (uint64_t)w->step,
                              w->body_bytes};
    err_t err = buf_append(b, MAGIC, sizeof(MAGIC) - 1);
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]) && !err; i++)
        err = le_put_u32(b, small[i]);
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]) && !err; i++)
        err = le_put_u64(b, large[i]);
    return err ? err : buf_append(b, w->by.job, strlen(w->by.job));
}

err_t marker_encode(const struct marker *w, struct buf *ret)
{
    size_t start = ret->len;
    err_t err = head_write(w, ret);
    if (!err && w->body_bytes)
        err = buf_append(ret, w->body, w->body_bytes);
    if (!err)
        err = le_put_u32(ret, sums_crc32c(0, ret->data + start, ret->len - start));
    if (err)
        ret->len = start;
    return err;
}

static bool is_legal(const struct marker *w)
{
    bool of_save = w->kind == MARKER_PART || w->kind == MARKER_FAILED;
    if (w->kind < MARKER_PREPARING || w->kind >= MARKER_KINDS || w->step < 0)
        return false;
    if ((w->kind == MARKER_FAILED) != (w->code < 0) || w->code > 0 || w->code < -MAX_CODE)
        return false;
    if (w->kind == MARKER_LEASE)
        return !w->step && !w->rank && !w->world && w->body_bytes;
    if (!of_save)
        return !w->step && !w->rank && !w->world && !w->body_bytes;
    return w->world >= 1 && w->world <= MAX_WORLD && w->rank < w->world &&
           w->rank >= (w->kind == MARKER_FAILED ? -1 : 0);
}

static err_t check_and_open(const void *data, size_t len, struct le_reader *ret)
{
    struct le_reader tail =
        len >= CRC_BYTES ? le_reader_of((const uint8_t *)data + len - CRC_BYTES, CRC_BYTES) : le_reader_of(data, 0);
    uint32_t crc = le_u32(&tail);
    if (tail.bad || crc != sums_crc32c(0, data, len - CRC_BYTES))
        return ERR_CORRUPT;
    *ret = le_reader_of(data, len - CRC_BYTES);
    const uint8_t *magic = le_bytes(ret, sizeof(MAGIC) - 1);
    if (!magic || memcmp(magic, MAGIC, sizeof(MAGIC) - 1) != 0)
        return ERR_CORRUPT;
    return le_u32(ret) == VERSION ? OK : ret->bad ? ERR_CORRUPT : ERR_UNSUPPORTED;
}

err_t marker_decode(const void *data, size_t len, struct marker *ret)
{
    struct le_reader r;
    struct marker w = {0};
    err_t err = check_and_open(data, len, &r);
    if (err)
        return err;
    w.kind = (enum marker_kind)le_u32(&r);
    uint32_t code = le_u32(&r);
    w.rank = (int)le_u32(&r);
    w.world = (int)le_u32(&r);
    uint32_t job_bytes = le_u32(&r);
    w.by.submitted_ms = (int64_t)le_u64(&r);
    w.by.epoch = le_u64(&r);
    w.by.writer = le_u64(&r);
    w.step = (int64_t)le_u64(&r);
    w.body_bytes = le_u64(&r);
    const uint8_t *job = le_bytes(&r, job_bytes);
    w.body = le_bytes(&r, w.body_bytes);
    if (r.bad || le_left(&r) || code > MAX_CODE || job_bytes >= CKPT_JOB_BYTES || memchr(job, 0, job_bytes))
        return ERR_CORRUPT;
    w.code = -(err_t)code;
    memcpy(w.by.job, job, job_bytes);
    if (!is_legal(&w))
        return ERR_CORRUPT;
    *ret = w;
    return OK;
}

/* ---- files ---- */

int marker_folder_open(const char *root, const char *sub)
{
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !sub)
        return fd;
    int in = openat(fd, sub, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), saved = errno;
    close(fd);
    errno = saved;
    return in;
}

static err_t file_error(const char *root, const char *sub, const char *name, err_t err, struct why *why)
{
    const char *text = err == ERR_CORRUPT ? "dtd-io did not write this file, or it is damaged or a link; remove it"
                       : err == ERR_UNSUPPORTED ? "another version of dtd wrote this file"
                                                : err_text(err);
    return why_set(why, err, "%s/%s%s%s: %s", root, sub ? sub : "", sub ? "/" : "", name, text);
}

static err_t file_write_in(int dir, const char *name, const char *aside, const struct buf *b)
{
    int fd = openat(dir, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = file_write_all(fd, b->data, b->len);
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    if (close(fd) && !err)
        err = err_from_errno(errno);
    if (!err && renameat(dir, aside, dir, name))
        err = err_from_errno(errno);
    if (err)
        unlinkat(dir, aside, 0);
    else if (fsync(dir))
        err = err_from_errno(errno);
    return err == ERR_LIMIT ? ERR_NOSPACE : err; /* EFBIG, as in part.c */
}

err_t marker_write(const char *root, const char *sub, const char *name, const struct marker *w, struct why *why)
{
    char aside[NAME_MAX];
    struct buf b = {0};
    snprintf(aside, sizeof(aside), "%s.%016" PRIx64 ".tmp", name, w->by.writer);
    err_t err = marker_encode(w, &b);
    int dir = err ? -1 : marker_folder_open(root, sub);
    if (!err)
        err = dir < 0 ? err_from_errno(errno) : OK;
    if (!err) {
        unlinkat(dir, aside, 0); /* left by a failed attempt of this process */
        err = file_write_in(dir, name, aside, &b);
    }
    if (dir >= 0)
        close(dir);
    buf_fini(&b);
    return err ? file_error(root, sub, name, err, why) : OK;
}

static err_t read_all(int fd, size_t len, struct buf *ret)
{
    err_t err = buf_reserve(ret, len + 1);
    if (!err)
        err = file_pread_all(fd, ret->data + ret->len, len, 0);
    if (!err)
        ret->len += len;
    return err;
}

/* O_NONBLOCK: opening a pipe would block. Other users may be able to create files here. */
static err_t file_read_in(int dir, const char *name, struct buf *bytes, struct marker *ret)
{
    struct stat st;
    size_t start = bytes->len;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP || errno == ENXIO ? ERR_CORRUPT : errno == ESTALE ? ERR_NOTFOUND : err_from_errno(errno);
    err_t err = fstat(fd, &st) ? err_from_errno(errno) : OK;
    if (!err && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > MARKER_MAX_BYTES))
        err = ERR_CORRUPT;
    if (!err)
        err = read_all(fd, (size_t)st.st_size, bytes);
    close(fd);
    return err ? err : marker_decode(bytes->data + start, bytes->len - start, ret);
}

err_t marker_read(const char *root, const char *sub, const char *name, struct buf *bytes, struct marker *ret,
                  struct why *why)
{
    int dir = marker_folder_open(root, sub);
    err_t err = dir >= 0                             ? file_read_in(dir, name, bytes, ret)
                : errno == ELOOP || errno == ENOTDIR ? ERR_CORRUPT
                                                     : err_from_errno(errno);
    if (dir >= 0)
        close(dir);
    return err ? file_error(root, sub, name, err, why) : OK;
}
