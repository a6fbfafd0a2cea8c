/* The storage of a folder, as checkpoints use it: a save writes one file past the page cache and ends with fdatasync,
 * and a restart reads what no memory holds any more. The file has no name, so that nothing remains of it, however this
 * process ends. Both size and time are bounded: the time of a first block decides how many more are written. */
#include "worker/measure_part.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define BLOCK ((size_t)16 << 20) /* one write or read: large enough that the kernel has several requests in flight */
#define MAX_BLOCKS 16            /* 256 MiB: more than the cache of a disk that a laptop or a cloud has */
#define STORAGE_S 2.0            /* of the writes, and of the reads */
#define MOST_OF_FREE 4           /* no more than a quarter of the free space */
#define CACHED 0.1               /* a larger part of the file in memory: the read was not one from the disk */

struct storage_file {
    int fd;
    uint8_t *block; /* BLOCK bytes that a disk accepts */
    int blocks;     /* that the file has */
};

/* Where the file system has no files without names, the name is removed at once. */
static int open_nameless(const char *folder)
{
    char path[4096];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    const int n = snprintf(path, sizeof(path), "%s/.dtd-measure-XXXXXX", folder);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* ---- writes ---- */

/* Writes the file anew, with `blocks` blocks, as a save does. */
static err_t write_file(struct storage_file *f, int blocks, double *ret_rate)
{
    struct file_writer *w = NULL;
    err_t err = ftruncate(f->fd, 0) ? err_from_errno(errno) : OK;
    const int64_t start = clock_mono_ns();
    err = err ? err : file_writer_new(f->fd, "a file that is measured", &w);
    for (int i = 0; !err && i < blocks; i++)
        err = file_writer_put(w, f->block, BLOCK);
    err = err ? err : file_writer_end(w);
    if (!err && fdatasync(f->fd))
        err = err_from_errno(errno);
    *ret_rate = (double)blocks * (double)BLOCK / (double)(clock_mono_ns() - start) * 1e9;
    file_writer_free(w);
    f->blocks = blocks;
    return err;
}

/* At least one, and as many as there are time and space for. */
static int count_blocks(const struct storage_file *f, double rate)
{
    struct statvfs s;
    const double in_time = rate * STORAGE_S / (double)BLOCK;
    double blocks = in_time < MAX_BLOCKS ? in_time : MAX_BLOCKS;
    if (fstatvfs(f->fd, &s) == 0) {
        const double room = (double)s.f_bavail * (double)s.f_frsize / MOST_OF_FREE / (double)BLOCK;
        blocks = room < blocks ? room : blocks;
    }
    return blocks < 1 ? 1 : (int)blocks;
}

static err_t measure_writes(struct storage_file *f, double *ret_rate)
{
    err_t err = write_file(f, 1, ret_rate);
    const int blocks = err ? 1 : count_blocks(f, *ret_rate);
    return err || blocks == 1 ? err : write_file(f, blocks, ret_rate);
}

/* ---- reads ---- */

/* The part of the file that is in memory; 0 where that is not known. */
static double cached_part(const struct storage_file *f)
{
    const size_t len = (size_t)f->blocks * BLOCK, page = (size_t)sysconf(_SC_PAGESIZE), pages = len / page;
    unsigned char *in = calloc(1, pages);
    void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, f->fd, 0);
    size_t n = 0;
    if (in && map != MAP_FAILED && mincore(map, len, in) == 0)
        for (size_t i = 0; i < pages; i++)
            n += in[i] & 1;
    if (map != MAP_FAILED)
        munmap(map, len);
    free(in);
    return (double)n / (double)pages;
}

/* Another descriptor of the same file: the page cache is left out where the file system can do so. */
static int open_direct(const struct storage_file *f)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
    const int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd >= 0 && pread(fd, f->block, BLOCK, 0) == (ssize_t)BLOCK)
        return fd;
    if (fd >= 0)
        close(fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* *ret_cached: whether the file system keeps the file in memory, so that the rate is that of memory. */
static err_t measure_reads(struct storage_file *f, double *ret_rate, double *ret_cached)
{
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    const double cached = cached_part(f);
    const int fd = open_direct(f);
    if (fd < 0)
        return err_from_errno(errno);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* of the block with which O_DIRECT was tried */
    const int64_t start = clock_mono_ns();
    double seconds = 0;
    int read = 0;
    err_t err = OK;
    for (; !err && read < f->blocks && seconds < STORAGE_S; read++) {
        err = file_pread_all(fd, f->block, BLOCK, (off_t)read * (off_t)BLOCK);
        seconds = (double)(clock_mono_ns() - start) * 1e-9;
    }
    close(fd);
    if (err)
        return err;
    *ret_rate = (double)read * (double)BLOCK / seconds;
    *ret_cached = cached > CACHED ? 1 : 0;
    return OK;
}

err_t measure_storage(struct measure *m, double *ret_write, double *ret_read, double *ret_cached)
{
    struct storage_file f = {.fd = -1};
    err_t err = posix_memalign((void **)&f.block, FILE_WRITER_ALIGN, BLOCK) ? ERR_NOMEM : OK;
    if (!err) {
        memset(f.block, 0x5a, BLOCK);
        f.fd = open_nameless(m->folder);
        err = f.fd < 0 ? err_from_errno(errno) : OK;
    }
    err = err ? err : measure_writes(&f, ret_write);
    err = err ? err : measure_reads(&f, ret_read, ret_cached);
    if (f.fd >= 0)
        close(f.fd);
    free(f.block);
    return err ? why_set(m->why, err,
                         "no file of %zu MiB can be written and read in folder %s: %s. Name the folder for "
                         "checkpoints with --folder",
                         BLOCK >> 20, m->folder, err_text(err))
               : OK;
}
