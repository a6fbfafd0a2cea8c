/* A change of a file while it is read gives data that never existed. Size, time of modification and time of the inode's
 * change are compared with those of the first reading; programs can set the second, but not the third. */
#include "common/data/file_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_source {
    struct byte_source base;
    int fd;
    struct file_identity identity;
};

static struct file_identity identity_of(const struct stat *st)
{
    return (struct file_identity){.bytes = st->st_size,
                                  .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
                                  .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
                                  .dev = st->st_dev,
                                  .ino = st->st_ino};
}

static err_t file_source_read(struct byte_source *s, int64_t at, void *ret, size_t len, struct why *why)
{
    struct file_source *f = (struct file_source *)s;
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(f->fd, (uint8_t *)ret + done, len - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return why_set(why, err_from_errno(errno), "%s: %s", s->name, strerror(errno));
        if (n == 0)
            return why_set(why, ERR_CORRUPT, "%s: the file ends at byte %lld, within data that it announces", s->name,
                           (long long)(at + (int64_t)done));
        done += (size_t)n;
    }
    return OK;
}

static void file_source_close(struct byte_source *s)
{
    close(((struct file_source *)s)->fd);
    free(s);
}

err_t file_source_open(const char *path, struct byte_source **ret, struct why *why)
{
    static const struct byte_source_ops ops = {file_source_read, file_source_close};
    struct stat st;
    /* Without O_NONBLOCK, opening a pipe would block. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        err_t err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return err;
    }
    struct file_source *f = S_ISREG(st.st_mode) ? calloc(1, sizeof(*f)) : NULL;
    if (!f) {
        close(fd);
        return S_ISREG(st.st_mode) ? why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM))
                                   : why_set(why, ERR_INVALID, "%s: it is not a regular file", path);
    }
    *f = (struct file_source){{&ops, path, st.st_size}, fd, identity_of(&st)};
    *ret = &f->base;
    return OK;
}

void file_source_identity(const struct byte_source *s, struct file_identity *ret)
{
    *ret = ((const struct file_source *)s)->identity;
}

err_t file_source_same(const struct byte_source *s, const struct file_identity *before, struct why *why)
{
    const struct file_source *f = (const struct file_source *)s;
    struct stat st;
    if (fstat(f->fd, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", s->name, strerror(errno));
    struct file_identity now = identity_of(&st);
    return now.bytes == before->bytes && now.mtime_ns == before->mtime_ns && now.ctime_ns == before->ctime_ns &&
                   now.dev == before->dev && now.ino == before->ino
               ? OK
               : why_set(why, ERR_AGAIN, "%s: the file changed while it was read; run the command again", s->name);
}
