/* libraft writes entries by io_submit and io_getevents, through the C library's syscall. A write with RWF_NOWAIT that
 * would hang reports EAGAIN, as the kernel does; libraft repeats it in a thread. */
#include "tests/daemon/control/log/disk_faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct disk_faults own;
struct disk_faults *disk_faults = &own;

__attribute__((constructor)) static void attach(void)
{
    const char *file = getenv("DTD_TEST_DISK");
    int fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(own), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    disk_faults = at == MAP_FAILED ? &own : at;
    if (fd >= 0)
        close(fd);
}

static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (!f)
        abort();
    return f;
}

/* ---- which files ---- */

static int is_in_folder(const char *path)
{
    return disk_faults->folder[0] && strstr(path, disk_faults->folder) != NULL;
}

static int is_ours(int fd)
{
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    errno = saved;
    path[n > 0 ? n : 0] = '\0';
    return is_in_folder(path);
}

static int fails(int errnum)
{
    if (!errnum)
        return 0;
    disk_faults->calls++;
    errno = errnum;
    return 1;
}

static void hang(void)
{
    disk_faults->calls += disk_faults->hangs != 0;
    while (disk_faults->hangs)
        usleep(5000);
}

/* ---- the replaced functions ---- */

int fsync(int fd)
{
    int (*f)(int) = next("fsync");
    int ours = is_ours(fd);
    if (ours)
        hang();
    return ours && fails(disk_faults->sync) ? -1 : f(fd);
}

int fdatasync(int fd)
{
    int (*f)(int) = next("fdatasync");
    int ours = is_ours(fd);
    if (ours)
        hang();
    return ours && fails(disk_faults->sync) ? -1 : f(fd);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t offset)
{
    ssize_t (*f)(int, const void *, size_t, off_t) = next("pwrite");
    return is_ours(fd) && fails(disk_faults->write) ? -1 : f(fd, data, len, offset);
}

int posix_fallocate(int fd, off_t offset, off_t len)
{
    int (*f)(int, off_t, off_t) = next("posix_fallocate");
    return is_ours(fd) && fails(disk_faults->allocate) ? disk_faults->allocate : f(fd, offset, len);
}

int ftruncate(int fd, off_t len)
{
    int (*f)(int, off_t) = next("ftruncate");
    return is_ours(fd) && fails(disk_faults->cut) ? -1 : f(fd, len);
}

int unlink(const char *path)
{
    int (*f)(const char *) = next("unlink");
    return is_in_folder(path) && fails(disk_faults->cut) ? -1 : f(path);
}

int open(const char *path, int flags, ...)
{
    int (*f)(const char *, int, ...) = next("open");
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_ACCMODE && is_in_folder(path) && fails(disk_faults->open))
        return -1;
    return f(path, flags, mode);
}

/* libuv calls the functions by these names. */
int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int ftruncate64(int fd, off64_t len) __attribute__((alias("ftruncate")));
ssize_t pwrite64(int fd, const void *data, size_t len, off64_t offset) __attribute__((alias("pwrite")));
int posix_fallocate64(int fd, off64_t offset, off64_t len) __attribute__((alias("posix_fallocate")));

static int is_write(const struct iocb *io)
{
    return (io->aio_lio_opcode == IOCB_CMD_PWRITEV || io->aio_lio_opcode == IOCB_CMD_PWRITE) &&
           is_ours((int)io->aio_fildes);
}

long syscall(long number, ...)
{
    long (*f)(long, ...) = next("syscall");
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_io_setup && disk_faults->folder[0] && fails(disk_faults->setup))
        return -1;
    if (number == SYS_io_submit && disk_faults->hangs && is_write(*(struct iocb **)a[2])) {
        if ((*(struct iocb **)a[2])->aio_rw_flags & RWF_NOWAIT) {
            errno = EAGAIN;
            return -1;
        }
        hang();
    }
    long ret = f(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents && ret > 0 && disk_faults->write && disk_faults->folder[0]) {
        struct io_event *events = (struct io_event *)a[3];
        for (long i = 0; i < ret; i++)
            if (is_write((const struct iocb *)(uintptr_t)events[i].obj) && events[i].res > 0) {
                disk_faults->calls++;
                events[i].res = -disk_faults->write;
            }
    }
    return ret;
}
