/* A ring of units in the order in which they will be needed. A unit is either read at once into memory of its own,
 * directly from the disk (FLYING, DONE), or later by file_reader_get, from the page cache (LATER). The caller consumes
 * units in order; a unit that it has passed is free for the next expected one. Units that were not expected are read
 * when they are needed.
 *
 * Units are small and their memory is used again at once: on a machine with 2 cores and a virtual disk this reads up to
 * 1.8 times as fast as direct reads into the pages of the destination, which are scattered and not in the cache. One
 * thread checks and copies 5 GB/s meanwhile, so no thread of its own computes the checksums. */
#include "common/ckpt/file_reader.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES ((uint64_t)4096) /* the largest logical block of a disk, and the least that the page cache reads */
/* 16 MiB in flight: at 2 GB/s the disk has work for 8 ms, in which a thread checks and copies 40 MB. */
#define MAX_UNITS 16
#define MAX_FILES (MAX_UNITS + 1)         /* each unit is of one file, and so is the window */
#define SMALL_BYTES ((uint64_t)64 << 10)  /* a direct read of less costs more than the page cache does */
#define HUGE_PAGE_BYTES ((size_t)2 << 20) /* the kernel pins a few huge pages faster than many small ones */

struct open_file {
    const struct ckpt_file *file; /* NULL: unused */
    int fd, direct_fd;            /* direct_fd -1: not open yet */
    int refs;                     /* units, and r->last */
    bool no_direct;               /* refused by the file system */
    uint8_t *map;                 /* never accessed, only examined by mincore; NULL: that is not possible */
    struct read_claim *claim;
};

struct unit {
    enum unit_state { UNIT_FREE, UNIT_FLYING, UNIT_DONE, UNIT_LATER } state;
    struct open_file *of;
    uint64_t at, len, order;
    uint64_t done; /* bytes that the direct read has provided */
    bool dropped;  /* passed while it was in flight */
    uint8_t *data;
};

struct file_reader {
    const char *dir;
    struct read_claims *claims;
    struct open_file files[MAX_FILES];
    struct open_file *last; /* of the latest file_reader_open; it stays open */
    struct unit units[MAX_UNITS];
    struct unit *current; /* whose data is the caller's window */
    uint64_t order;       /* of the next unit */
    int in_flight;
    uint8_t *memory; /* of all units, and one more: `spare`, for units that are read when they are needed */
    uint8_t *spare;
    bool has_ring;
    struct io_uring ring;
    const struct file_range *ranges;
    size_t n_ranges, range; /* range: the one that is being read ahead */
    uint64_t next;          /* the position in it; 0: its start */
    int64_t bytes;
};

uint64_t file_reader_grain(const struct ckpt_file *file)
{
    return file->sums ? CKPT_EXTENT_BYTES : PAGE_BYTES;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- open files ---- */

static err_t path_make(const struct file_reader *r, const struct ckpt_file *file, char path[PATH_MAX], struct why *why)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", r->dir, file->name) >= PATH_MAX)
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", r->dir);
    return OK;
}

/* The kernel reports by mincore what is in the page cache only to the owner of a file and to processes that may write
 * to it; to others it reports that all of it is. */
static void cache_watch(struct open_file *of, const struct stat *st, const char *path)
{
    bool truth = st->st_uid == geteuid() || access(path, W_OK) == 0;
    void *map = truth && of->file->size ? mmap(NULL, (size_t)of->file->size, PROT_READ, MAP_SHARED, of->fd, 0) : NULL;
    of->map = map == MAP_FAILED ? NULL : map;
}

static void of_close(struct file_reader *r, struct open_file *of)
{
    if (of->map)
        munmap(of->map, (size_t)of->file->size);
    if (of->claim)
        read_claims_leave(r->claims, of->claim);
    if (of->direct_fd >= 0)
        close(of->direct_fd);
    close(of->fd);
    *of = (struct open_file){.file = NULL};
}

static void of_release(struct file_reader *r, struct open_file *of)
{
    if (--of->refs == 0)
        of_close(r, of);
}

/* The caller gets a reference. ERR_LIMIT: too many files are open. */
static err_t of_open(struct file_reader *r, const struct ckpt_file *file, struct open_file **ret, struct why *why)
{
    struct open_file *of = NULL;
    for (int i = 0; i < MAX_FILES; i++) {
        if (r->files[i].file == file) {
            r->files[i].refs++;
            *ret = &r->files[i];
            return OK;
        }
        of = !of && !r->files[i].file ? &r->files[i] : of;
    }
    char path[PATH_MAX];
    struct stat st;
    err_t err = of ? path_make(r, file, path, why) : ERR_LIMIT;
    if (err)
        return err;
    int fd = file_open_plain(path);
    if (fd < 0 || fstat(fd, &st))
        err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (err) {
        if (fd >= 0)
            close(fd);
        return err;
    }
    *of = (struct open_file){.file = file, .fd = fd, .direct_fd = -1, .refs = 1};
    if (r->n_ranges)
        cache_watch(of, &st, path);
    if (r->claims)
        of->claim = read_claims_enter(r->claims, st.st_dev, st.st_ino, file->size / FILE_READER_BYTES + 1);
    *ret = of;
    return OK;
}

static void direct_off(struct open_file *of, const char *path, const char *why)
{
    of->no_direct = true;
    log_debug("reads through the page cache path=%s why=\"%s\"", path, why);
}

/* Clears O_NONBLOCK, with which io_uring would return EAGAIN instead of waiting. */
static bool direct_open(const struct file_reader *r, struct open_file *of)
{
    char path[PATH_MAX];
    if (of->direct_fd >= 0 || of->no_direct)
        return !of->no_direct;
    if (path_make(r, of->file, path, NULL))
        return false;
    of->direct_fd = file_open_plain(path);
    if (of->direct_fd < 0 || fcntl(of->direct_fd, F_SETFL, O_DIRECT))
        direct_off(of, path, strerror(errno));
    return !of->no_direct;
}

/* ---- one unit ---- */

static void unit_free(struct file_reader *r, struct unit *u)
{
    of_release(r, u->of);
    u->of = NULL;
    u->state = UNIT_FREE;
    u->dropped = false;
}

static void unit_drop(struct file_reader *r, struct unit *u)
{
    if (u->state == UNIT_FLYING)
        u->dropped = true;
    else if (u->state != UNIT_FREE && u != r->current)
        unit_free(r, u);
}

static bool page_is_cached(const struct open_file *of, uint64_t at)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char present = 0;
    return mincore(of->map + at / page * page, 1, &present) == 0 && present & 1;
}

/* Two pages stand for all: the kernel brings neighbours into the cache together. A page that is missing after all is
 * read when it is needed. */
static bool is_cached(const struct open_file *of, const struct unit *u)
{
    return of->map && page_is_cached(of, u->at) && page_is_cached(of, u->at + u->len - 1);
}

static bool may_fly(const struct file_reader *r, struct open_file *of, const struct unit *u)
{
    return r->has_ring && u->len >= SMALL_BYTES && direct_open(r, of) &&
           (!of->claim || read_claims_take(r->claims, of->claim, u->at / FILE_READER_BYTES));
}

/* Takes the reference to the file over. True: the read must be submitted. */
static bool unit_begin(struct file_reader *r, struct unit *u, struct open_file *of, uint64_t at, uint64_t len)
{
    u->of = of;
    u->at = at;
    u->len = len;
    u->order = r->order++;
    u->done = 0;
    u->state = UNIT_LATER;
    if (is_cached(of, u))
        return false;
    if (!may_fly(r, of, u)) {
        (void)posix_fadvise(of->fd, (off_t)at, (off_t)len, POSIX_FADV_WILLNEED);
        return false;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring); /* there is one for each unit */
    io_uring_prep_read(sqe, of->direct_fd, u->data, (unsigned)((len + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES), at);
    io_uring_sqe_set_data(sqe, u);
    u->state = UNIT_FLYING;
    r->in_flight++;
    return true;
}

/* Waits for a read to end. A rest that the kernel did not read is read when it is needed, with the error if there is
 * one. */
static void reap(struct file_reader *r)
{
    struct io_uring_cqe *cqe;
    char path[PATH_MAX];
    int status;
    do
        status = io_uring_wait_cqe(&r->ring, &cqe);
    while (status == -EINTR);
    if (status) { /* only a broken ring: memory of the reads must stay valid, so there is no way back */
        log_error("io_uring fails path=%s why=\"%s\"", r->dir, strerror(-status));
        abort();
    }
    struct unit *u = io_uring_cqe_get_data(cqe);
    int res = cqe->res;
    io_uring_cqe_seen(&r->ring, cqe);
    r->in_flight--;
    u->state = UNIT_DONE;
    u->done = res > 0 ? min_u64((uint64_t)res, u->len) : 0;
    r->bytes += (int64_t)u->done;
    if (res == -EINVAL && !u->of->no_direct && !path_make(r, u->of->file, path, NULL))
        direct_off(u->of, path, "the file system refuses a direct read");
    if (u->dropped)
        unit_free(r, u);
}

static void submit(struct file_reader *r)
{
    int status;
    do
        status = io_uring_submit(&r->ring);
    while (status == -EINTR || status == -EAGAIN || status == -EBUSY);
    if (status < 0) {
        log_error("io_uring fails path=%s why=\"%s\"", r->dir, strerror(-status));
        abort();
    }
}

/* ---- reading ahead ---- */

static struct unit *unit_find(struct file_reader *r, const struct ckpt_file *file, uint64_t from)
{
    for (int i = 0; i < MAX_UNITS; i++) {
        struct unit *u = &r->units[i];
        if (u->state != UNIT_FREE && !u->dropped && u->of->file == file && from >= u->at && from - u->at < u->len)
            return u;
    }
    return NULL;
}

/* The unit of the file from `from` on: up to `to`, but not beyond the end of an extent or of the file. */
static uint64_t unit_end(const struct ckpt_file *file, uint64_t from, uint64_t to)
{
    uint64_t grain = file_reader_grain(file), end = (to > from ? to : from + 1);
    end = (end + grain - 1) / grain * grain;
    end = min_u64(end, (from / FILE_READER_BYTES + 1) * FILE_READER_BYTES);
    return min_u64(end, file->size);
}

/* False: nothing more is expected. */
static bool next_unit(struct file_reader *r, uint64_t *ret_at, uint64_t *ret_len)
{
    for (; r->range < r->n_ranges; r->range++) {
        const struct file_range *x = &r->ranges[r->range];
        uint64_t grain = file_reader_grain(x->file), at = r->next > x->from ? r->next : x->from / grain * grain;
        if (at < min_u64(x->to, x->file->size)) {
            *ret_at = at;
            *ret_len = unit_end(x->file, at, x->to) - at;
            return true;
        }
        if (r->range + 1 < r->n_ranges && r->ranges[r->range + 1].file != x->file)
            r->next = 0;
    }
    return false;
}

static void read_ahead(struct file_reader *r)
{
    bool added = false;
    uint64_t at, len;
    for (int i = 0; i < MAX_UNITS; i++) {
        struct unit *u = &r->units[i];
        struct open_file *of;
        if (u->state != UNIT_FREE)
            continue;
        if (!next_unit(r, &at, &len) || of_open(r, r->ranges[r->range].file, &of, NULL))
            break; /* an error appears again when the file is needed */
        added |= unit_begin(r, u, of, at, len);
        r->next = at + len;
    }
    if (added)
        submit(r);
}

static err_t memory_need(struct file_reader *r, struct why *why)
{
    if (r->memory)
        return OK;
    size_t bytes = (MAX_UNITS + 2) * (size_t)FILE_READER_BYTES; /* a multiple of a huge page */
    r->memory = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (!r->memory)
        return why_set(why, ERR_NOMEM, "out of memory for windows of %zu bytes", bytes);
    if (r->n_ranges)
        (void)madvise(r->memory, bytes, MADV_HUGEPAGE);
    for (int i = 0; i < MAX_UNITS; i++)
        r->units[i].data = r->memory + (size_t)i * FILE_READER_BYTES;
    r->spare = r->memory + MAX_UNITS * (size_t)FILE_READER_BYTES;
    return OK;
}

void file_reader_expect(struct file_reader *r, const struct file_range *ranges, size_t n)
{
    r->ranges = ranges;
    r->n_ranges = n;
    r->range = 0;
    r->next = 0;
    if (r->has_ring || !n)
        return;
    int status = io_uring_queue_init(MAX_UNITS, &r->ring, 0);
    r->has_ring = status == 0;
    if (status)
        log_debug("reads through the page cache path=%s why=\"io_uring: %s\"", r->dir, strerror(-status));
}

/* ---- what the caller needs ---- */

static err_t fill(struct file_reader *r, const struct open_file *of, uint8_t *data, uint64_t at, uint64_t len,
                  struct why *why)
{
    err_t err = file_pread_all(of->fd, data, (size_t)len, (off_t)at);
    r->bytes += (int64_t)len;
    if (err)
        return why_set(why, err, "%s/%s: bytes %" PRIu64 " to %" PRIu64 ": %s", r->dir, of->file->name, at, at + len,
                       err_text(err));
    return OK;
}

static err_t unit_finish(struct file_reader *r, struct unit *u, struct why *why)
{
    while (u->state == UNIT_FLYING)
        reap(r);
    uint8_t *data = u->state == UNIT_LATER ? r->spare : u->data;
    return u->done < u->len ? fill(r, u->of, data + u->done, u->at + u->done, u->len - u->done, why) : OK;
}

static void pass_to(struct file_reader *r, const struct unit *u)
{
    for (int i = 0; i < MAX_UNITS; i++)
        if (r->units[i].state != UNIT_FREE && r->units[i].order < u->order)
            unit_drop(r, &r->units[i]);
}

static void current_release(struct file_reader *r)
{
    struct unit *u = r->current;
    r->current = NULL;
    if (u)
        unit_free(r, u);
}

err_t file_reader_open(struct file_reader *r, const struct ckpt_file *file, struct why *why)
{
    if (r->last && r->last->file == file)
        return OK;
    if (r->last)
        of_release(r, r->last);
    r->last = NULL;
    return of_open(r, file, &r->last, why);
}

err_t file_reader_get(struct file_reader *r, const struct ckpt_file *file, uint64_t from, uint64_t to,
                      struct file_window *ret, struct why *why)
{
    current_release(r);
    err_t err = memory_need(r, why);
    if (!err)
        err = file_reader_open(r, file, why);
    if (err)
        return err;
    read_ahead(r);
    struct unit *u = unit_find(r, file, from);
    if (!u) {
        uint64_t at = from / file_reader_grain(file) * file_reader_grain(file), end = unit_end(file, from, to);
        *ret = (struct file_window){r->spare, at, end - at};
        return fill(r, r->last, r->spare, at, end - at, why);
    }
    pass_to(r, u);
    err = unit_finish(r, u, why);
    *ret = (struct file_window){u->state == UNIT_LATER ? r->spare : u->data, u->at, u->len};
    r->current = u;
    return err;
}

int64_t file_reader_bytes(const struct file_reader *r)
{
    return r->bytes;
}

err_t file_reader_new(const char *dir, struct read_claims *claims, struct file_reader **ret)
{
    struct file_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return ERR_NOMEM;
    r->dir = dir;
    r->claims = claims;
    *ret = r;
    return OK;
}

void file_reader_free(struct file_reader *r)
{
    if (!r)
        return;
    while (r->in_flight)
        reap(r);
    r->current = NULL;
    for (int i = 0; i < MAX_UNITS; i++)
        unit_drop(r, &r->units[i]);
    if (r->last)
        of_release(r, r->last);
    if (r->has_ring)
        io_uring_queue_exit(&r->ring);
    free(r->memory);
    free(r);
}
