/* A write is either a part of the caller's memory or a block, into which small and unaligned data is copied. Writes are
 * submitted in the order of the file, and end in any order. O_DIRECT needs addresses, offsets and lengths that are
 * multiples of the disk's logical block, so the last block is filled up with zeros and the file is cut at the end. */
#include "common/ckpt/file_writer.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)1 << 20)
#define N_BLOCKS 4
#define WRITE_BYTES ((size_t)4 << 20) /* of one write; disks reach their rate with far less */
/* 64 MiB in flight: at 2 GB/s the disk has work for 32 ms, in which a thread computes a checksum of 300 MB. */
#define MAX_WRITES 16
#define LARGE_BYTES ((size_t)64 << 10) /* shorter data is copied, since a write of its own would cost more */

struct write {
    const uint8_t *data;
    size_t len;
    off_t at;
    bool *busy; /* of its block; NULL: memory of the caller */
    struct write *next_free;
};

struct file_writer {
    int fd;
    const char *path;
    bool direct, has_ring;
    struct io_uring ring;
    struct write writes[MAX_WRITES], *free;
    int in_flight;
    uint8_t *blocks;
    bool busy[N_BLOCKS];
    int block;     /* that is being filled */
    size_t fill;   /* its bytes */
    uint8_t *held; /* the last FILE_WRITER_ALIGN bytes of those that file_writer_hold appended */
    bool held_busy;
    size_t held_len; /* of what is to be replaced, at the end of `held`; 0: nothing is held */
    off_t held_at;
    off_t at; /* bytes that were submitted, without the zeros of the last write */
    err_t err;
};

static bool is_aligned(const struct file_writer *w, const void *data)
{
    return !w->direct || (uintptr_t)data % FILE_WRITER_ALIGN == 0;
}

/* ---- one write ---- */

static void direct_off(struct file_writer *w, const char *why)
{
    w->direct = false;
    log_debug("writes through the page cache path=%s why=\"%s\"", w->path, why);
}

/* Some file systems accept O_DIRECT when a file is opened, and refuse the write. */
static err_t write_now(struct file_writer *w, const void *data, size_t len, off_t at)
{
    err_t err = file_pwrite_all(w->fd, data, len, at);
    if (!err || errno != EINVAL || !w->direct)
        return err;
    direct_off(w, "the file system refuses a direct write");
    int flags = fcntl(w->fd, F_GETFL);
    if (flags < 0 || fcntl(w->fd, F_SETFL, flags & ~O_DIRECT))
        return err_from_errno(errno);
    return file_pwrite_all(w->fd, data, len, at);
}

static void write_end(struct file_writer *w, struct write *x)
{
    if (x->busy)
        *x->busy = false;
    x->next_free = w->free;
    w->free = x;
    w->in_flight--;
}

/* Waits for a write to end. The rest of a short or refused write is written now. */
static void reap(struct file_writer *w)
{
    struct io_uring_cqe *cqe;
    int status;
    do
        status = io_uring_wait_cqe(&w->ring, &cqe);
    while (status == -EINTR);
    if (status) { /* only a broken ring: memory of the writes must stay valid, so there is no way back */
        log_error("io_uring fails path=%s why=\"%s\"", w->path, strerror(-status));
        abort();
    }
    struct write *x = io_uring_cqe_get_data(cqe);
    size_t done = cqe->res > 0 ? (size_t)cqe->res : 0;
    io_uring_cqe_seen(&w->ring, cqe);
    if (done < x->len && !w->err)
        w->err = write_now(w, x->data + done, x->len - done, x->at + (off_t)done);
    write_end(w, x);
}

static void drain(struct file_writer *w)
{
    while (w->in_flight)
        reap(w);
}

static void submit_at(struct file_writer *w, const void *data, size_t len, off_t at, bool *busy)
{
    if (!w->err && !w->has_ring)
        w->err = write_now(w, data, len, at);
    while (!w->err && w->has_ring && !w->free)
        reap(w);
    if (w->err || !w->has_ring)
        return;
    struct write *x = w->free;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->ring); /* there is one: each write is submitted at once */
    w->free = x->next_free;
    *x = (struct write){.data = data, .len = len, .at = at, .busy = busy};
    if (busy)
        *busy = true;
    io_uring_prep_write(sqe, w->fd, data, (unsigned)len, (uint64_t)at);
    io_uring_sqe_set_data(sqe, x);
    w->in_flight++;
    int status;
    do
        status = io_uring_submit(&w->ring);
    while (status == -EINTR || status == -EAGAIN || status == -EBUSY);
    if (status < 0) {
        w->err = err_from_errno(-status);
        write_end(w, x);
    }
}

static void submit(struct file_writer *w, const void *data, size_t len, bool *busy)
{
    submit_at(w, data, len, w->at, busy);
    w->at += (off_t)len;
}

/* ---- blocks ---- */

static void block_submit(struct file_writer *w)
{
    if (!w->fill)
        return;
    submit(w, w->blocks + (size_t)w->block * BLOCK_BYTES, w->fill, &w->busy[w->block]);
    w->fill = 0;
    w->block = (w->block + 1) % N_BLOCKS;
    while (w->busy[w->block])
        reap(w);
}

static size_t block_add(struct file_writer *w, const void *data, size_t len)
{
    size_t n = len < BLOCK_BYTES - w->fill ? len : BLOCK_BYTES - w->fill;
    memcpy(w->blocks + (size_t)w->block * BLOCK_BYTES + w->fill, data, n);
    w->fill += n;
    if (w->fill == BLOCK_BYTES)
        block_submit(w);
    return n;
}

/* ---- the file ---- */

err_t file_writer_new(int fd, const char *path, struct file_writer **ret)
{
    struct file_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return ERR_NOMEM;
    *w = (struct file_writer){.fd = fd, .path = path, .direct = true};
    w->blocks = aligned_alloc(FILE_WRITER_ALIGN, N_BLOCKS * BLOCK_BYTES + FILE_WRITER_ALIGN);
    if (!w->blocks) {
        free(w);
        return ERR_NOMEM;
    }
    w->held = w->blocks + N_BLOCKS * BLOCK_BYTES;
    for (int i = 0; i < MAX_WRITES; i++) {
        w->writes[i].next_free = w->free;
        w->free = &w->writes[i];
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT))
        direct_off(w, strerror(errno));
    int status = io_uring_queue_init(MAX_WRITES, &w->ring, 0);
    w->has_ring = status == 0;
    if (status)
        log_debug("writes are synchronous path=%s why=\"io_uring: %s\"", path, strerror(-status));
    *ret = w;
    return OK;
}

err_t file_writer_copy(struct file_writer *w, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len && !w->err) {
        size_t n = block_add(w, p, len);
        p += n;
        len -= n;
    }
    return w->err;
}

err_t file_writer_put(struct file_writer *w, const void *data, size_t len)
{
    const uint8_t *p = data;
    while (len >= LARGE_BYTES && !w->err && is_aligned(w, p) && (!w->direct || w->fill % FILE_WRITER_ALIGN == 0)) {
        size_t n = len < WRITE_BYTES ? len / FILE_WRITER_ALIGN * FILE_WRITER_ALIGN : WRITE_BYTES;
        block_submit(w);
        submit(w, p, n, NULL);
        p += n;
        len -= n;
    }
    return file_writer_copy(w, p, len);
}

/* Bytes of the block that precede the held ones in the same unit of the disk move with them. */
bool file_writer_hold(struct file_writer *w, const void *data, size_t len)
{
    size_t lead = (size_t)(w->at + (off_t)w->fill) % FILE_WRITER_ALIGN;
    if (!len || lead + len != FILE_WRITER_ALIGN || lead > w->fill || w->held_len)
        return false;
    while (w->held_busy)
        reap(w);
    w->fill -= lead;
    memcpy(w->held, w->blocks + (size_t)w->block * BLOCK_BYTES + w->fill, lead);
    memcpy(w->held + lead, data, len);
    block_submit(w);
    w->held_len = len;
    w->held_at = w->at;
    w->at += FILE_WRITER_ALIGN;
    return true;
}

err_t file_writer_release(struct file_writer *w, const void *data)
{
    memcpy(w->held + FILE_WRITER_ALIGN - w->held_len, data, w->held_len);
    w->held_len = 0;
    submit_at(w, w->held, FILE_WRITER_ALIGN, w->held_at, &w->held_busy);
    return w->err;
}

err_t file_writer_end(struct file_writer *w)
{
    off_t bytes = w->at + (off_t)w->fill;
    size_t over = w->direct ? (0 - w->fill) & (FILE_WRITER_ALIGN - 1) : 0;
    memset(w->blocks + (size_t)w->block * BLOCK_BYTES + w->fill, 0, over);
    w->fill += over;
    block_submit(w);
    drain(w);
    if (!w->err && ftruncate(w->fd, bytes))
        w->err = err_from_errno(errno);
    return w->err;
}

void file_writer_free(struct file_writer *w)
{
    if (!w)
        return;
    drain(w);
    if (w->has_ring)
        io_uring_queue_exit(&w->ring);
    free(w->blocks);
    free(w);
}
