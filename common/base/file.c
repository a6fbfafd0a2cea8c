/* EINTR and partial reads and writes are handled only in this file. */
#include "common/base/file.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

err_t file_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_from_errno(errno);
        p += n;
        len -= (size_t)n;
    }
    return OK;
}

err_t file_pwrite_all(int fd, const void *data, size_t len, off_t offset)
{
    const char *p = data;
    while (len) {
        ssize_t n = pwrite(fd, p, len, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_from_errno(errno);
        p += n;
        offset += n;
        len -= (size_t)n;
    }
    return OK;
}

err_t file_pread_all(int fd, void *data, size_t len, off_t offset)
{
    char *p = data;
    while (len) {
        ssize_t n = pread(fd, p, len, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_from_errno(errno);
        if (n == 0)
            return ERR_CORRUPT;
        p += n;
        offset += n;
        len -= (size_t)n;
    }
    return OK;
}

static err_t read_and_close(int fd, size_t max_bytes, struct buf *ret)
{
    if (fd < 0)
        return err_from_errno(errno);
    size_t start = ret->len;
    err_t err;
    for (;;) {
        err = buf_reserve(ret, 65536);
        if (err)
            break;
        ssize_t n = read(fd, ret->data + ret->len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            err = err_from_errno(errno);
        if (n <= 0)
            break;
        ret->len += (size_t)n;
        if (ret->len - start > max_bytes) {
            err = ERR_LIMIT;
            break;
        }
    }
    if (err)
        ret->len = start;
    close(fd);
    return err;
}

err_t file_read(const char *path, size_t max_bytes, struct buf *ret)
{
    return read_and_close(open(path, O_RDONLY | O_CLOEXEC), max_bytes, ret);
}

int file_open_plain(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
        return fd;
    close(fd);
    errno = EINVAL;
    return -1;
}

err_t file_read_plain(const char *path, size_t max_bytes, struct buf *ret)
{
    return read_and_close(file_open_plain(path), max_bytes, ret);
}

err_t file_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = fsync(fd) ? err_from_errno(errno) : OK;
    close(fd);
    return err;
}

static err_t sync_parent(const char *path)
{
    char dir[PATH_MAX];
    if (strlen(path) >= sizeof(dir))
        return ERR_LIMIT;
    strcpy(dir, path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        return file_sync_dir(".");
    *(slash == dir ? slash + 1 : slash) = '\0';
    return file_sync_dir(dir);
}

err_t file_replace(const char *path, const void *data, size_t len, mode_t mode)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof(tmp), "%s.tmp", path) >= sizeof(tmp))
        return ERR_LIMIT;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = file_write_all(fd, data, len);
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    close(fd);
    if (!err && rename(tmp, path))
        err = err_from_errno(errno);
    if (err) {
        unlink(tmp);
        return err;
    }
    return sync_parent(path);
}

/* A file of this name is an error, as for mkdir -p. */
static err_t make_dir(const char *path, mode_t mode)
{
    struct stat st;
    if (mkdir(path, mode) == 0)
        return OK;
    int errnum = errno;
    if (errnum == EEXIST && stat(path, &st) == 0)
        errnum = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    errno = errnum;
    return errnum ? err_from_errno(errnum) : OK;
}

err_t file_make_dirs(const char *path, mode_t mode)
{
    err_t err = OK;
    char p[PATH_MAX];
    if (strlen(path) >= sizeof(p)) {
        errno = ENAMETOOLONG;
        return ERR_LIMIT;
    }
    strcpy(p, path);
    for (char *s = p + 1; *s && !err; s++) {
        if (*s != '/')
            continue;
        *s = '\0';
        err = make_dir(p, mode);
        *s = '/';
    }
    return err ? err : make_dir(p, mode);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path) && errno != ENOENT ? -1 : 0;
}

err_t file_remove_tree(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) && errno != ENOENT ? err_from_errno(errno) : OK;
}
