/* The check of a snapshot reads the file through a small buffer, so that an error of the disk is an error of a call.
 * The mapping is read only by the kernel, when libuv writes it to the socket of the receiver: an error of the disk
 * there fails the write (EFAULT), libraft connects anew, and the snapshot is sent again.
 *
 * Pages that the kernel has read through the mapping count as memory of this process until they are given back. libraft
 * does not report how far it has sent, so all of them are: those that are not sent yet are still in the page cache,
 * because the check has just read them. If the kernel has evicted one, the loop waits for the disk as it does for a
 * page of the program. */
#include "daemon/control/log/snapshot_file.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/log/internal.h"
#include "daemon/control/log/sum.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES (256u << 10) /* of the file, in memory while it is checked */
#define TRIM_MS 5               /* the sockets take some MiB in this time; trimming 100 MiB takes some 10 us */
#define ALIGNMENT 4096          /* mappings are aligned to a page, which has at least so many bytes */
#define NAME_BYTES 96           /* of a snapshot's file: three numbers of at most 20 digits */

/* ---- mappings ---- */

struct snapshot_mapping {
    LIST_ENTRY(snapshot_mapping) link;
    void *base;
    size_t len;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, snapshot_mapping) mappings = LIST_HEAD_INITIALIZER(mappings);
static uint64_t trimmed_ms;

static err_t map_content(int fd, size_t len, struct raft_buffer *ret)
{
    struct snapshot_mapping *m = malloc(sizeof(*m));
    void *base = m ? mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(m);
        return ERR_NOMEM;
    }
    m->base = base;
    m->len = len;
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&mappings, m, link);
    pthread_mutex_unlock(&lock);
    *ret = (struct raft_buffer){.base = base, .len = len};
    return OK;
}

static struct snapshot_mapping *take_mapping(const void *base)
{
    struct snapshot_mapping *m;
    pthread_mutex_lock(&lock);
    LIST_FOREACH(m, &mappings, link)
    if (m->base == base)
        break;
    if (m)
        LIST_REMOVE(m, link);
    pthread_mutex_unlock(&lock);
    return m;
}

/* No block of malloc begins at a page. */
static void free_or_unmap(void *arg, void *p)
{
    (void)arg;
    struct snapshot_mapping *m = (uintptr_t)p % ALIGNMENT == 0 ? take_mapping(p) : NULL;
    if (m)
        munmap(m->base, m->len);
    else
        free(p);
    free(m);
}

void log_snapshot_file_trim(uint64_t now_ms)
{
    struct snapshot_mapping *m;
    pthread_mutex_lock(&lock);
    if (now_ms - trimmed_ms >= TRIM_MS) {
        trimmed_ms = now_ms;
        LIST_FOREACH(m, &mappings, link)
        madvise(m->base, m->len, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the files ---- */

/* A snapshot has two files: snapshot-TERM-INDEX-TIME with its content, and one with .meta behind the name. */
struct snapshot_name {
    uint64_t term, index, time;
};

static bool parse_meta_name(const char *text, struct snapshot_name *ret)
{
    int end = 0;
    return sscanf(text, "snapshot-%" SCNu64 "-%" SCNu64 "-%" SCNu64 ".meta%n", &ret->term, &ret->index, &ret->time,
                  &end) == 3 &&
           end && !text[end];
}

static void print_name(const struct snapshot_name *name, const char *suffix, char ret[NAME_BYTES])
{
    snprintf(ret, NAME_BYTES, "snapshot-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "%s", name->term, name->index, name->time,
             suffix);
}

static bool is_newer(const struct snapshot_name *a, const struct snapshot_name *b)
{
    return a->term != b->term ? a->term > b->term : a->index != b->index ? a->index > b->index : a->time > b->time;
}

/* libraft makes the file with the content last, so a snapshot without it is not complete. */
static bool has_content(int dir, const struct snapshot_name *name)
{
    char text[NAME_BYTES];
    struct stat st;
    print_name(name, "", text);
    return fstatat(dir, text, &st, 0) == 0 && st.st_size > 0;
}

static err_t find_newest(DIR *dir, struct snapshot_name *ret)
{
    struct snapshot_name name;
    bool found = false;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!parse_meta_name(e->d_name, &name) || (found && !is_newer(&name, ret)) || !has_content(dirfd(dir), &name))
            continue;
        *ret = name;
        found = true;
    }
    return found ? OK : ERR_NOTFOUND;
}

static err_t open_at(int dir, const struct snapshot_name *name, const char *suffix, int *ret)
{
    char text[NAME_BYTES];
    print_name(name, suffix, text);
    *ret = openat(dir, text, O_RDONLY | O_CLOEXEC);
    return *ret < 0 ? err_from_errno(errno) : OK;
}

/* The file .meta is {u64 format, u64 sum, u64 index of the configuration, u64 its bytes, configuration}; the sum is of
 * everything behind it. */
#define META_FORMAT 1
#define META_CONFIGURATION_MAX_BYTES (1u << 20) /* libraft has the same limit */

static err_t read_configuration(int fd, const uint64_t head[4], struct raft_snapshot *ret)
{
    struct raft_buffer bytes = {.len = le64toh(head[3])};
    if (!bytes.len || bytes.len > META_CONFIGURATION_MAX_BYTES)
        return ERR_CORRUPT;
    bytes.base = malloc(bytes.len);
    err_t err = bytes.base ? file_pread_all(fd, bytes.base, bytes.len, 4 * sizeof(head[0])) : ERR_NOMEM;
    if (!err && log_crc(log_crc(0, &head[2], 2 * sizeof(head[0])), bytes.base, bytes.len) != le64toh(head[1]))
        err = ERR_CORRUPT;
    if (!err)
        err = log_err_from_raft(raft_configuration_decode(&bytes, &ret->configuration));
    free(bytes.base);
    return err;
}

static err_t read_meta(int dir, const struct snapshot_name *name, struct raft_snapshot *ret)
{
    uint64_t head[4];
    int fd;
    err_t err = open_at(dir, name, ".meta", &fd);
    if (err)
        return err;
    err = file_pread_all(fd, head, sizeof(head), 0);
    if (!err && le64toh(head[0]) != META_FORMAT)
        err = ERR_UNSUPPORTED;
    err = err ? err : read_configuration(fd, head, ret);
    close(fd);
    if (err)
        return err;
    ret->term = name->term;
    ret->index = name->index;
    ret->configuration_index = le64toh(head[2]);
    return OK;
}

static err_t sum_file(int fd, size_t len, uint32_t *ret)
{
    uint8_t *part = malloc(PART_BYTES);
    uint32_t crc = 0;
    err_t err = part ? OK : ERR_NOMEM;
    for (size_t at = 0; !err && at < len;) {
        size_t n = len - at < PART_BYTES ? len - at : PART_BYTES;
        err = file_pread_all(fd, part, n, (off_t)at);
        if (!err)
            crc = log_crc(crc, part, n);
        at += n;
    }
    free(part);
    if (!err)
        *ret = crc;
    return err;
}

/* Length, padding and sum; see snapshot.c. */
static err_t check_content(int fd, size_t len)
{
    uint8_t tail[LOG_SUM_BYTES];
    uint64_t data;
    uint32_t crc;
    if (len < sizeof(data) + sizeof(tail)) /* also a snapshot without a sum has as much */
        return ERR_CORRUPT;
    err_t err = file_pread_all(fd, &data, sizeof(data), 0);
    err = err ? err : file_pread_all(fd, tail, sizeof(tail), (off_t)(len - sizeof(tail)));
    if (err)
        return err;
    bool has_sum = log_sum_is_there(tail);
    size_t bytes = has_sum ? len - sizeof(tail) : len;
    if (le64toh(data) > bytes - sizeof(data) || (sizeof(data) + le64toh(data) + 7) / 8 * 8 != bytes)
        return ERR_CORRUPT;
    if (!has_sum)
        return OK;
    err = sum_file(fd, bytes, &crc);
    if (err)
        return err;
    uint8_t expected[LOG_SUM_BYTES];
    log_sum_encode(crc, expected);
    return memcmp(tail, expected, sizeof(tail)) == 0 ? OK : ERR_CORRUPT;
}

static err_t read_content(int dir, const struct snapshot_name *name, struct raft_snapshot *ret)
{
    struct stat st;
    int fd;
    err_t err = open_at(dir, name, "", &fd);
    if (err)
        return err;
    err = fstat(fd, &st) ? err_from_errno(errno) : check_content(fd, (size_t)st.st_size);
    ret->bufs = err ? NULL : raft_calloc(1, sizeof(*ret->bufs));
    if (!err)
        err = ret->bufs ? map_content(fd, (size_t)st.st_size, ret->bufs) : ERR_NOMEM;
    ret->n_bufs = 1;
    close(fd);
    return err;
}

/* ---- the read ---- */

struct snapshot_file_read {
    uv_work_t work;
    struct log *log;
    struct raft_io_snapshot_get *req;
    struct snapshot_name name;
    struct raft_snapshot *snapshot;
    err_t err;
};

static void run_read(uv_work_t *work)
{
    struct snapshot_file_read *r = work->data;
    DIR *dir = opendir(r->log->raft_dir);
    r->err = dir ? find_newest(dir, &r->name) : err_from_errno(errno);
    if (dir && !r->err)
        r->err = read_meta(dirfd(dir), &r->name, r->snapshot);
    if (dir && !r->err)
        r->err = read_content(dirfd(dir), &r->name, r->snapshot);
    if (dir)
        closedir(dir);
}

static void drop_snapshot(struct raft_snapshot *s)
{
    raft_configuration_close(&s->configuration);
    raft_free(s->bufs);
    raft_free(s);
}

static void read_done(uv_work_t *work, int status)
{
    (void)status;
    struct snapshot_file_read r = *(const struct snapshot_file_read *)work->data;
    free(work->data);
    if (r.err == ERR_CORRUPT)
        log_error("a snapshot on this disk is damaged and not sent index=%" PRIu64, r.name.index);
    else if (r.err)
        log_warn("a snapshot on this disk is not sent index=%" PRIu64 " why=\"%s\"", r.name.index, err_text(r.err));
    if (r.err)
        drop_snapshot(r.snapshot);
    r.req->cb(r.req, r.err ? NULL : r.snapshot, r.err ? RAFT_IOERR : 0);
    log_snapshot_work_end(r.log);
}

static int snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req, raft_io_snapshot_get_cb cb)
{
    struct log *log = (struct log *)((char *)io - offsetof(struct log, io));
    struct snapshot_file_read *r = calloc(1, sizeof(*r));
    struct raft_snapshot *snapshot = raft_calloc(1, sizeof(*snapshot));
    if (!r || !snapshot) {
        free(r);
        raft_free(snapshot);
        return RAFT_NOMEM;
    }
    *r = (struct snapshot_file_read){.work = {.data = r}, .log = log, .req = req, .snapshot = snapshot};
    raft_configuration_init(&snapshot->configuration);
    req->cb = cb;
    log_snapshot_work_begin(log, &r->work, run_read, read_done);
    return 0;
}

void log_snapshot_file_install(struct raft_io *io)
{
    static struct raft_heap heap;
    heap = *raft_heap_get();
    heap.free = free_or_unmap;
    raft_heap_set(&heap);
    io->snapshot_get = snapshot_get;
}
