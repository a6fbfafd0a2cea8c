/* Preloaded: reads of files whose path contains the text in the file $EIO_FILE fail, as on a broken disk: with EIO, or
 * with EBADF by io_uring, which has no other way to fail a read from outside. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t pread64(int fd, void *data, size_t len, off64_t offset);
ssize_t pread(int fd, void *data, size_t len, off_t offset);

static int is_broken(int fd)
{
    char text[PATH_MAX] = "", path[PATH_MAX], link[64];
    const char *list = getenv("EIO_FILE");
    FILE *f = list ? fopen(list, "r") : NULL;
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof(path) - 1);
    if (!text[0] || len < 0)
        return 0;
    path[len] = '\0';
    return strstr(path, text) != NULL;
}

ssize_t pread64(int fd, void *data, size_t len, off64_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    if (is_broken(fd)) {
        errno = EIO;
        return -1;
    }
    return next(fd, data, len, offset);
}

ssize_t pread(int fd, void *data, size_t len, off_t offset)
{
    return pread64(fd, data, len, offset);
}

int io_uring_submit(struct io_uring *r)
{
    static int (*next)(struct io_uring *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "io_uring_submit");
    for (unsigned i = r->sq.sqe_head; i != r->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &r->sq.sqes[i & *r->sq.kring_mask];
        if (sqe->opcode == IORING_OP_READ && is_broken(sqe->fd))
            sqe->fd = -1;
    }
    return next(r);
}
